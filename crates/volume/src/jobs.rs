//! A thread of its own for work that may hang.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::{oneshot, watch};
use tracing::warn;

/// Enough for what is done here; thousands of pods may be set up at once.
const STACK_BYTES: usize = 256 << 10;

/// What a job is doing, for those who wait for it.
#[derive(Debug, Default)]
pub struct Progress {
    doing: Mutex<String>,
    /// Files that were given to the pod's group, and one more; 0 while none are being given.
    given: AtomicU64,
    /// Files that were removed.
    removed: AtomicU64,
    abandoned: AtomicBool,
}

impl Progress {
    /// Says what is being done from now on.
    pub fn doing(&self, what: impl Into<String>) {
        self.given.store(0, Ordering::Relaxed);
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = what.into();
    }

    /// Where files that are removed are counted, which takes as long as there are many.
    pub(crate) const fn removed(&self) -> &AtomicU64 {
        &self.removed
    }

    /// Says that it is giving files to the pod's group, and how many it has given.
    pub(crate) fn has_given(&self, files: u64) {
        self.given.store(files.saturating_add(1), Ordering::Relaxed);
    }

    /// Nobody wants the result any more: whatever can be given up should be.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    fn text(&self) -> String {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A job has not ended in time. It goes on; nothing else is done for its pod until it has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{doing} has not ended after {seconds} s{}", remedy(*given, *removing))]
pub struct Hung {
    /// What it is doing.
    pub doing: String,
    /// For how long it has been running.
    pub seconds: u64,
    /// It goes through a volume to give it to the pod's group, and has given so many files.
    pub given: Option<u64>,
    /// Files were removed while somebody waited for it: it does not hang, there are just many.
    pub removing: bool,
}

fn remedy(given: Option<u64>, removing: bool) -> String {
    match given {
        None if removing => "; there may be much to remove. Only this pod waits for it".to_owned(),
        Some(files) => format!(
            " ({files} files so far); only this pod waits for it; fsGroupChangePolicy: OnRootMismatch looks at the volume's root alone"
        ),
        None => "; is what it waits for (a server, a disk, systemd) reachable? Only this pod waits for it"
            .to_owned(),
    }
}

/// Work that may hang, one job at a time for each key. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Jobs {
    running: Arc<Mutex<HashMap<String, Arc<Job>>>>,
}

#[derive(Debug)]
struct Job {
    progress: Progress,
    begun: Instant,
    ended: watch::Sender<bool>,
}

impl Job {
    fn removed(&self) -> u64 {
        self.progress.removed.load(Ordering::Relaxed)
    }

    /// For one who began to wait when so many files had been removed.
    fn hung(&self, removed_before: u64) -> Hung {
        Hung {
            doing: self.progress.text(),
            seconds: self.begun.elapsed().as_secs(),
            given: self.progress.given.load(Ordering::Relaxed).checked_sub(1),
            removing: self.removed() > removed_before,
        }
    }
}

/// Takes the job off the list however the thread ends.
struct Registered {
    jobs: Jobs,
    key: String,
    job: Arc<Job>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.jobs.running().remove(&self.key);
        self.job.ended.send_replace(true);
    }
}

impl Jobs {
    fn running(&self) -> MutexGuard<'_, HashMap<String, Arc<Job>>> {
        // Nothing under this lock can panic.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `work` on a thread of its own, after an earlier job of the same key has ended. Cancel safe in so far as a job
    /// that was begun goes on to its end.
    ///
    /// # Errors
    /// When it, or the earlier one, has not ended within `patience`; `work` then either goes on or was not begun.
    pub async fn run<T: Send + 'static>(
        &self,
        key: &str,
        patience: Duration,
        work: impl FnOnce(&Progress) -> T + Send + 'static,
    ) -> Result<T, Hung> {
        let deadline = tokio::time::Instant::now() + patience;
        let job = loop {
            let earlier = {
                let mut running = self.running();
                match running.get(key) {
                    Some(job) => Arc::clone(job),
                    None => {
                        let job = Arc::new(Job {
                            progress: Progress::default(),
                            begun: Instant::now(),
                            ended: watch::channel(false).0,
                        });
                        running.insert(key.to_owned(), Arc::clone(&job));
                        break job;
                    }
                }
            };
            let removed_before = earlier.removed();
            let mut ended = earlier.ended.subscribe();
            if tokio::time::timeout_at(deadline, ended.wait_for(|ended| *ended)).await.is_err() {
                return Err(earlier.hung(removed_before));
            }
        };
        let registered = Registered { jobs: self.clone(), key: key.to_owned(), job: Arc::clone(&job) };
        let (sender, receiver) = oneshot::channel();
        let body = move || {
            let result = work(&registered.job.progress);
            // Off the list before anybody hears of the result: the next job finds the place free.
            drop(registered);
            // Whoever waited may have given up.
            sender.send(result).ok();
        };
        let thread = std::thread::Builder::new().name("volumes".into()).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(body) {
            warn!(%error, "cannot start a thread for a pod's volumes");
            let doing = format!("starting a thread ({error})");
            return Err(Hung { doing, seconds: 0, given: None, removing: false });
        }
        match tokio::time::timeout_at(deadline, receiver).await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(_)) => {
                let doing = format!("{} (it died)", job.progress.text());
                Err(Hung { doing, seconds: 0, given: None, removing: false })
            }
            Err(_) => Err(job.hung(0)),
        }
    }

    /// Waits for the end of the key's job, if there is one, but no longer than until it has been running for `patience`: who holds
    /// something that others want asks before. Cancel safe.
    ///
    /// # Errors
    /// When it has been running for longer.
    pub async fn idle(&self, key: &str, patience: Duration) -> Result<(), Hung> {
        let Some(job) = self.running().get(key).map(Arc::clone) else { return Ok(()) };
        let removed_before = job.removed();
        let mut ended = job.ended.subscribe();
        let left = patience.saturating_sub(job.begun.elapsed());
        match tokio::time::timeout(left, ended.wait_for(|ended| *ended)).await {
            Ok(_) => Ok(()),
            Err(_) => Err(job.hung(removed_before)),
        }
    }

    /// Tells a job that its result is no longer wanted.
    pub fn abandon(&self, key: &str) {
        if let Some(job) = self.running().get(key) {
            job.progress.abandoned.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_job_that_hangs_is_named_and_blocks_only_its_key() {
        let jobs = Jobs::default();
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let hung = jobs
            .run("a", Duration::from_secs(5), move |progress| {
                progress.doing("mounting x");
                wait.recv().ok();
            })
            .await
            .unwrap_err();
        assert_eq!(hung.doing, "mounting x");
        assert_eq!(jobs.run("b", Duration::from_secs(60), |_| 7).await, Ok(7));
        let again = jobs.run("a", Duration::from_millis(50), |_| 8).await.unwrap_err();
        assert_eq!(again.doing, "mounting x", "the second was not begun");
        release.send(()).unwrap();
        assert_eq!(jobs.run("a", Duration::from_secs(60), |_| 9).await, Ok(9));
        assert!(jobs.running().is_empty());
    }

    #[tokio::test]
    async fn who_waits_for_files_to_change_hands_is_told_how_many_have() {
        let jobs = Jobs::default();
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let hung = jobs.run("a", Duration::from_secs(5), move |progress| {
            progress.doing("giving what is in volume \"data\" to group 7");
            progress.has_given(4096);
            wait.recv().ok();
        });
        let hung = hung.await.unwrap_err();
        assert_eq!(hung.given, Some(4096));
        assert!(hung.to_string().contains("(4096 files so far)"), "{hung}");
        assert!(hung.to_string().contains("OnRootMismatch"), "{hung}");
        release.send(()).unwrap();
    }

    #[tokio::test]
    async fn removing_much_is_not_taken_for_hanging() {
        let jobs = Jobs::default();
        let (step, steps) = std::sync::mpsc::channel::<()>();
        let work = move |progress: &Progress| {
            progress.doing("removing x");
            while steps.recv().is_ok() {
                progress.removed().fetch_add(1, Ordering::Relaxed);
            }
        };
        step.send(()).unwrap();
        let hung = jobs.run("a", Duration::from_secs(1), work).await.unwrap_err();
        assert!(hung.removing && hung.to_string().contains("much to remove"), "{hung}");
        // Who waits for it next, while it removes nothing, is told that it hangs, and later that it goes on.
        let again = || jobs.run("a", Duration::from_millis(200), |_| ());
        let hung = again().await.unwrap_err();
        assert!(!hung.removing && hung.to_string().contains("reachable"), "{hung}");
        let (hung, ()) = tokio::join!(again(), async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            step.send(()).unwrap();
        });
        assert!(hung.unwrap_err().removing);
        drop(step);
        jobs.run("a", Duration::from_secs(5), |_| ()).await.unwrap();
    }

    #[tokio::test]
    async fn whether_a_job_hangs_is_told_without_waiting_for_it_anew() {
        let jobs = Jobs::default();
        assert_eq!(jobs.idle("a", Duration::ZERO).await, Ok(()));
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let work = move |progress: &Progress| {
            progress.doing("mounting x");
            wait.recv().ok();
        };
        jobs.run("a", Duration::from_millis(50), work).await.unwrap_err();
        let asked = Instant::now();
        let hung = jobs.idle("a", Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(hung.doing, "mounting x");
        assert!(asked.elapsed() < Duration::from_millis(50), "its patience was over before");
        assert_eq!(jobs.idle("b", Duration::ZERO).await, Ok(()), "only the key's own");
        let (idle, ()) = tokio::join!(jobs.idle("a", Duration::from_secs(60)), async {
            release.send(()).unwrap();
        });
        assert_eq!(idle, Ok(()), "what ends in time is waited for");
    }

    #[tokio::test]
    async fn a_job_that_panics_frees_its_place() {
        let jobs = Jobs::default();
        let died = jobs.run("a", Duration::from_secs(60), |_| -> () { panic!("on purpose") }).await;
        assert!(died.unwrap_err().doing.contains("died"));
        assert_eq!(jobs.run("a", Duration::from_secs(60), |_| 1).await, Ok(1));
    }

    #[tokio::test]
    async fn an_abandoned_job_hears_of_it() {
        let jobs = Jobs::default();
        let other = jobs.clone();
        let work = jobs.run("a", Duration::from_secs(60), |progress| {
            let begun = Instant::now();
            while !progress.is_abandoned() && begun.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(5));
            }
            progress.is_abandoned()
        });
        let abandon = async {
            tokio::time::sleep(Duration::from_millis(30)).await;
            other.abandon("a");
        };
        let (abandoned, ()) = tokio::join!(work, abandon);
        assert_eq!(abandoned, Ok(true));
    }
}
