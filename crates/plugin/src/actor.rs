//! What is there, what was taken, and what is to be tried again.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use mainstay_task::{Attempts, Backoff, Lane, TaskGroup};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep_until},
};

use crate::{
    Handlers,
    call::{self, Taken},
    scan::{self, Identity},
};

/// Registrations at a time whose end waits to be taken note of. Each has a task that waits for room.
const OUTCOMES: usize = 16;
/// How often the directory is looked through although nothing was told.
const NET: Duration = Duration::from_secs(30);
/// Changes come in heaps.
const SETTLE: Duration = Duration::from_millis(20);
/// What a look may take.
const LOOK: Duration = Duration::from_secs(10);
/// Upstream's, for each socket.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(500), Duration::from_secs(2 * 60 + 2));

static DISK: Lane = Lane::new(1);

/// A socket.
#[derive(Debug)]
struct Socket {
    identity: Identity,
    state: State,
    attempts: Attempts,
}

#[derive(Debug)]
enum State {
    /// It is being asked.
    Asked,
    /// It has gone, or is another one by now, while it was asked: what was taken is taken back when that is known.
    GoneWhileAsked,
    Taken(Taken),
    /// It was not taken, and is asked again.
    Refused {
        again: Instant,
    },
}

/// What came of asking.
#[derive(Debug)]
struct Outcome {
    socket: PathBuf,
    identity: Identity,
    result: Result<Taken, String>,
}

#[derive(Debug)]
struct Actor {
    directory: PathBuf,
    handlers: Arc<Handlers>,
    tasks: TaskGroup,
    sockets: BTreeMap<PathBuf, Socket>,
    outcomes: mpsc::Sender<Outcome>,
    complained: bool,
}

/// Watches until it is dropped.
pub(crate) async fn run(directory: PathBuf, handlers: Handlers, tasks: TaskGroup) {
    let (sender, mut outcomes) = mpsc::channel(OUTCOMES);
    let hint = Arc::new(Notify::new());
    let _watcher = watch(&directory, Arc::clone(&hint));
    let mut actor = Actor {
        directory,
        handlers: Arc::new(handlers),
        tasks,
        sockets: BTreeMap::new(),
        outcomes: sender,
        complained: false,
    };
    loop {
        actor.look().await;
        let due = actor.due();
        // Cancel safe, all of them: a notification and an outcome that are not taken are there the next time.
        tokio::select! {
            () = hint.notified() => tokio::time::sleep(SETTLE).await,
            outcome = outcomes.recv() => if let Some(outcome) = outcome { actor.conclude(outcome) },
            () = sleep_until(due) => {}
        }
    }
}

fn watch(directory: &Path, hint: Arc<Notify>) -> Option<RecommendedWatcher> {
    let told = move |event: notify::Result<notify::Event>| {
        // Our own looks are no news.
        if !event.is_ok_and(|event| event.kind.is_access()) {
            hint.notify_one();
        }
    };
    let watching = notify::recommended_watcher(told)
        .and_then(|mut watcher| watcher.watch(directory, RecursiveMode::Recursive).map(|()| watcher));
    match watching {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            tracing::warn!(
                directory = %directory.display(), %error,
                "cannot watch the directory of plugins, new ones are found within {} s; is fs.inotify.max_user_watches too low?",
                NET.as_secs()
            );
            None
        }
    }
}

impl Actor {
    /// Compares what is there with what is known: takes back what has gone, asks what is new or due.
    async fn look(&mut self) {
        let directory = self.directory.clone();
        let found = match DISK.run(LOOK, move || scan::sockets(&directory)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return self.complain(&error),
            Err(error) => return self.complain(&error),
        };
        self.complained = false;
        self.sockets.retain(|path, socket| {
            if found.get(path) == Some(&socket.identity) {
                return true;
            }
            match &socket.state {
                State::Taken(taken) => {
                    tracing::info!(socket = %path.display(), plugin = taken.plugin.name, "a plugin has gone");
                    taken.handler.deregister(&taken.plugin);
                    false
                }
                State::Refused { .. } => false,
                // Not before it is known what came of it: a handler hears of one plugin's end before the next one's beginning.
                State::Asked | State::GoneWhileAsked => {
                    socket.state = State::GoneWhileAsked;
                    true
                }
            }
        });
        let now = Instant::now();
        for (path, identity) in found {
            let due = match self.sockets.get(&path).map(|socket| &socket.state) {
                None => true,
                Some(State::Refused { again }) => *again <= now,
                Some(State::Asked | State::GoneWhileAsked | State::Taken(_)) => false,
            };
            if due {
                self.ask(path, identity);
            }
        }
    }

    fn ask(&mut self, path: PathBuf, identity: Identity) {
        let socket = self.sockets.entry(path.clone()).or_insert_with(|| Socket {
            identity,
            state: State::Asked,
            attempts: BACKOFF.attempts(),
        });
        socket.state = State::Asked;
        let (handlers, outcomes) = (Arc::clone(&self.handlers), self.outcomes.clone());
        let shutdown = self.tasks.shutdown();
        self.tasks.spawn(format!("plugin {}", path.display()), async move {
            let asking = call::register(path.clone(), &handlers);
            let Some(result) = shutdown.run_until_signalled(asking).await else { return };
            // Nobody listens when mainstay ends.
            outcomes.send(Outcome { socket: path, identity, result }).await.ok();
        });
    }

    fn conclude(&mut self, outcome: Outcome) {
        let Outcome { socket: path, identity, result } = outcome;
        let Some(socket) = self.sockets.get_mut(&path).filter(|socket| socket.identity == identity) else {
            return;
        };
        match (result, &socket.state) {
            (Ok(taken), State::GoneWhileAsked) => {
                taken.handler.deregister(&taken.plugin);
                self.sockets.remove(&path);
            }
            (Err(_), State::GoneWhileAsked) => {
                self.sockets.remove(&path);
            }
            (Ok(taken), _) => {
                tracing::info!(socket = %path.display(), plugin = taken.plugin.name, "a plugin has registered");
                socket.attempts.succeeded();
                socket.state = State::Taken(taken);
            }
            (Err(why), _) => {
                let wait = socket.attempts.failed();
                tracing::warn!(socket = %path.display(), again_in_seconds = wait.as_secs_f32(), "a plugin is not taken: {why}");
                socket.state = State::Refused { again: Instant::now() + wait };
            }
        }
    }

    /// When to look again although nobody says anything.
    fn due(&self) -> Instant {
        let refused = self.sockets.values().filter_map(|socket| match socket.state {
            State::Refused { again } => Some(again),
            _ => None,
        });
        refused.chain([Instant::now() + NET]).min().unwrap_or_else(Instant::now)
    }

    fn complain(&mut self, error: &dyn std::error::Error) {
        if !std::mem::replace(&mut self.complained, true) {
            tracing::warn!(
                directory = %self.directory.display(), %error,
                "cannot look for plugins; those that are known stay, and it is tried again"
            );
        }
    }
}
