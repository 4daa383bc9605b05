//! Whether mainstay itself is well. Checks, order and texts as upstream's (`apiserver/pkg/server/healthz`).

use std::{io::Write as _, sync::OnceLock, time::Duration};

use http::StatusCode;
use mainstay_task::{Shutdown, TaskGroup};
use mainstay_types::Heartbeat;

use crate::{
    answer::{self, Answer},
    request::{Query, quoted},
    route::{App, Face},
};

/// The sync loop may be silent for twice its period, but at least this long.
const SYNC_LOOP_SILENCE_MIN: Duration = Duration::from_secs(5 * 60);
const FLUSH_PERIOD: Duration = Duration::from_secs(60);
const FLUSH_OVERDUE: Duration = Duration::from_secs(120);

/// One of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// Somebody answers.
    Ping,
    /// Log lines can be written.
    Log,
    /// The sync loop goes round.
    SyncLoop,
}

impl Check {
    fn name(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::Log => "log",
            Self::SyncLoop => "syncloop",
        }
    }

    fn run(self, app: &App) -> Result<(), &'static str> {
        match self {
            Self::Ping => Ok(()),
            Self::Log => app.log_check.run(&app.tasks, &app.shutdown),
            Self::SyncLoop => {
                // Unlike upstream, a loop that was never entered is not healthy for ever: the beat's age counts from
                // the start.
                let limit = (app.sync_frequency * 2).max(SYNC_LOOP_SILENCE_MIN);
                if app.state.heartbeat.age() > limit {
                    Err("sync Loop took longer than expected")
                } else {
                    Ok(())
                }
            }
        }
    }
}

/// `/healthz`: all checks of this listener.
pub(crate) fn root(app: &App, face: Face, query: &Query<'_>) -> Answer {
    let checks: &[Check] =
        if face == Face::Healthz { &[Check::Ping] } else { &[Check::Ping, Check::Log, Check::SyncLoop] };
    let mut excluded: Vec<&str> = query.all("exclude").collect();
    excluded.sort_unstable();
    excluded.dedup();
    let mut lines = String::new();
    let mut failed = Vec::new();
    for check in checks {
        let name = check.name();
        if let Some(at) = excluded.iter().position(|excluded| *excluded == name) {
            excluded.remove(at);
            lines.push_str(&format!("[+]{name} excluded: ok\n"));
        } else if let Err(why) = check.run(app) {
            lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
            failed.push(format!("{name}: {why}"));
        } else {
            lines.push_str(&format!("[+]{name} ok\n"));
        }
    }
    if !excluded.is_empty() {
        let names = excluded.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(",");
        lines.push_str(&format!("warn: some health checks cannot be excluded: no matches for {names}\n"));
    }
    if !failed.is_empty() {
        tracing::warn!(checks = failed.join("; "), "health check failed");
        return answer::error(StatusCode::INTERNAL_SERVER_ERROR, &format!("{lines}healthz check failed"));
    }
    answer::nosniff(if query.first("verbose").is_some() {
        answer::plain(StatusCode::OK, format!("{lines}healthz check passed\n"))
    } else {
        answer::plain(StatusCode::OK, "ok")
    })
}

/// `/healthz/NAME`: one check, with its reason.
pub(crate) fn single(app: &App, check: Check) -> Answer {
    match check.run(app) {
        Ok(()) => answer::plain(StatusCode::OK, "ok"),
        Err(why) => {
            answer::error(StatusCode::INTERNAL_SERVER_ERROR, &format!("internal server error: {why}"))
        }
    }
}

/// Finds out whether log lines can still be written: from the first check on, a task takes the log's output (stderr) once
/// a minute and flushes it. While a writer is stuck on a full pipe it holds that output, and the flush does not come back.
#[derive(Debug, Default)]
pub(crate) struct LogCheck {
    flushed: OnceLock<Heartbeat>,
}

impl LogCheck {
    fn run(&self, tasks: &TaskGroup, shutdown: &Shutdown) -> Result<(), &'static str> {
        let flushed = self.flushed.get_or_init(|| {
            let flushed = Heartbeat::default();
            let (beat, shutdown) = (flushed.clone(), shutdown.clone());
            tasks.spawn("log flush", async move {
                shutdown.run_until_signalled(flush_periodically(beat)).await;
            });
            flushed
        });
        if flushed.age() > FLUSH_OVERDUE { Err("logging blocked") } else { Ok(()) }
    }
}

async fn flush_periodically(flushed: Heartbeat) {
    loop {
        // Off the async workers, because it may hang; that it failed does not matter, only that it came back.
        let flush = tokio::task::spawn_blocking(|| drop(std::io::stderr().lock().flush()));
        if flush.await.is_err() {
            return;
        }
        flushed.beat();
        tokio::time::sleep(FLUSH_PERIOD).await;
    }
}
