//! Whether mainstay itself is well. Checks, order and texts as upstream's (`apiserver/pkg/server/healthz`).

use std::{
    collections::BTreeMap,
    io::Write as _,
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

use http::StatusCode;
use mainstay_task::{Shutdown, TaskGroup};
use mainstay_types::Heartbeat;

use crate::{
    answer::{self, Answer},
    request::{Query, quoted},
    route::App,
    table::Face,
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
    /// Listening for device plugins has not failed.
    DevicePlugin,
}

impl Check {
    fn name(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::Log => "log",
            Self::SyncLoop => "syncloop",
            Self::DevicePlugin => "device-plugin",
        }
    }

    fn run(self, app: &App) -> Result<(), &'static str> {
        match self {
            Self::Ping => Ok(()),
            Self::DevicePlugin if app.state.assignments.borrow().deaf => {
                Err("device plugin registration gRPC server failed and no device plugins can register")
            }
            Self::DevicePlugin => Ok(()),
            Self::Log => app.log_check.run(&app.tasks, &app.shutdown),
            Self::SyncLoop => sync_loop_verdict(app.state.heartbeat.age(), app.sync_frequency),
        }
    }
}

/// Unlike upstream, a loop that was never entered is not healthy for ever: the first beat is due like any other.
fn sync_loop_verdict(silence: Duration, sync_frequency: Duration) -> Result<(), &'static str> {
    let limit = sync_frequency.saturating_mul(2).max(SYNC_LOOP_SILENCE_MIN);
    if silence > limit { Err("sync Loop took longer than expected") } else { Ok(()) }
}

/// How often the checks of the root passed and failed, for `/metrics/slis`.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    by_name: Mutex<BTreeMap<&'static str, Count>>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) is_well: bool,
}

impl Counts {
    fn add(&self, name: &'static str, is_well: bool) {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        let count = by_name.entry(name).or_default();
        count.is_well = is_well;
        if is_well {
            count.passed += 1;
        } else {
            count.failed += 1;
        }
    }

    pub(crate) fn read(&self) -> BTreeMap<&'static str, Count> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn reset(&self) {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// `/healthz`: all checks of this listener.
pub(crate) fn root(app: &App, face: Face, query: &Query<'_>) -> Answer {
    let all = [Check::Ping, Check::Log, Check::SyncLoop, Check::DevicePlugin];
    let checks = if face == Face::Healthz { &all[..1] } else { &all };
    let mut excluded: Vec<&str> = query.all("exclude").collect();
    excluded.sort_unstable();
    excluded.dedup();
    let mut results = Vec::new();
    for check in checks {
        let at = excluded.iter().position(|excluded| *excluded == check.name());
        let result = match at {
            Some(at) => {
                excluded.remove(at);
                None
            }
            None => {
                let result = check.run(app);
                app.health_counts.add(check.name(), result.is_ok());
                Some(result)
            }
        };
        results.push((check.name(), result));
    }
    summary(&results, &excluded, query.first("verbose").is_some())
}

/// The answer over all checks; `None` for one that was excluded. A failure is always told in full, but for its reason.
fn summary(results: &[(&str, Option<Result<(), &str>>)], unknown_excludes: &[&str], verbose: bool) -> Answer {
    let mut lines = String::new();
    let mut failed = Vec::new();
    for (name, result) in results {
        match result {
            None => lines.push_str(&format!("[+]{name} excluded: ok\n")),
            Some(Ok(())) => lines.push_str(&format!("[+]{name} ok\n")),
            Some(Err(why)) => {
                lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
                failed.push(format!("{name}: {why}"));
            }
        }
    }
    if !unknown_excludes.is_empty() {
        let names = unknown_excludes.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(",");
        lines.push_str(&format!("warn: some health checks cannot be excluded: no matches for {names}\n"));
    }
    if !failed.is_empty() {
        tracing::warn!(checks = failed.join("; "), "health check failed");
        return answer::error(StatusCode::INTERNAL_SERVER_ERROR, &format!("{lines}healthz check failed"));
    }
    let text = if verbose { format!("{lines}healthz check passed\n") } else { "ok".to_owned() };
    answer::nosniff(answer::plain(StatusCode::OK, text))
}

/// `/healthz/NAME`: one check, with its reason.
pub(crate) fn single(app: &App, check: Check) -> Answer {
    single_answer(check.run(app))
}

fn single_answer(result: Result<(), &str>) -> Answer {
    match result {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::Body;

    fn check(answer: Answer, status: u16, text: &str) {
        assert_eq!(answer.status(), status);
        assert!(matches!(answer.body(), Body::Whole(bytes) if bytes == text), "{:?}", answer.body());
    }

    #[test]
    fn a_failure_is_told_without_its_reason_at_the_root_and_with_it_at_the_check() {
        let results = [
            ("ping", Some(Ok(()))),
            ("log", None),
            ("syncloop", Some(Err("sync Loop took longer than expected"))),
        ];
        let text = "[+]ping ok\n[+]log excluded: ok\n[-]syncloop failed: reason withheld\n\
                    warn: some health checks cannot be excluded: no matches for \"x\"\nhealthz check failed\n";
        for verbose in [false, true] {
            check(summary(&results, &["x"], verbose), 500, text);
        }
        check(single_answer(Err("logging blocked")), 500, "internal server error: logging blocked\n");
    }

    #[test]
    fn the_sync_loop_may_be_silent_for_twice_its_period_but_at_least_five_minutes() {
        let minute = Duration::from_secs(60);
        let late = Err("sync Loop took longer than expected");
        assert_eq!(sync_loop_verdict(Duration::from_secs(299), minute), Ok(()));
        assert_eq!(sync_loop_verdict(Duration::from_secs(301), minute), late);
        assert_eq!(sync_loop_verdict(Duration::from_secs(1000), Duration::from_secs(501)), Ok(()));
        assert_eq!(sync_loop_verdict(Duration::from_secs(1003), Duration::from_secs(501)), late);
    }
}
