//! Asking file systems how full they are, each for itself.
//!
//! One that does not answer keeps a thread and is left alone until it does; the others are asked.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use mainstay_host::FilesystemUsage;
use mainstay_task::{Lane, LaneError};
use tracing::{debug, info, warn};

/// Longest that a file system may take to say how full it is.
const DEADLINE: Duration = Duration::from_secs(2);
/// One for those who answer, the others for those that do not.
static LANE: Lane = Lane::new(5);
/// With so many hanging, nobody is asked who has never answered: the threads that are left are for the others.
const MOST_HANGING: usize = 3;

/// Sizes by the path that was asked for, each with its time.
pub(super) type Sizes = HashMap<PathBuf, (Timestamp, FilesystemUsage)>;

/// What file systems have said, also those that do not answer any more.
#[derive(Debug)]
pub(super) struct Asker {
    sizes: Sizes,
    hanging: Arc<Mutex<HashSet<PathBuf>>>,
    lane: &'static Lane,
    ask: fn(&Path) -> Option<FilesystemUsage>,
}

impl Default for Asker {
    fn default() -> Self {
        let ask = |path: &Path| FilesystemUsage::of(path).ok();
        Self { sizes: Sizes::new(), hanging: Arc::default(), lane: &LANE, ask }
    }
}

impl Asker {
    /// Asks those of these paths, and knows no others afterwards. What does not answer keeps what it said before.
    pub(super) async fn ask(&mut self, paths: &[PathBuf]) {
        self.sizes.retain(|path, _| paths.contains(path));
        for path in paths {
            let hanging = {
                let hanging = lock(&self.hanging);
                if hanging.contains(path) {
                    continue;
                }
                hanging.len()
            };
            if hanging >= MOST_HANGING && !self.sizes.contains_key(path) {
                continue;
            }
            self.ask_one(path.clone()).await;
        }
    }

    async fn ask_one(&mut self, path: PathBuf) {
        lock(&self.hanging).insert(path.clone());
        let told = Arc::new(AtomicBool::new(false));
        let (ask, question) =
            (self.ask, Question(path.clone(), Arc::clone(&self.hanging), Arc::clone(&told)));
        let work = move || ask(&question.0).map(|usage| (Timestamp::now(), usage));
        match self.lane.run(DEADLINE, work).await {
            Ok(Some(answer)) => drop(self.sizes.insert(path, answer)),
            // It is not there, or refuses.
            Ok(None) => drop(self.sizes.remove(&path)),
            Err(LaneError::Late) => {
                told.store(true, Ordering::Relaxed);
                warn!(path = %path.display(), "the file system does not say how full it is; it is left out until it does");
            }
            Err(error @ (LaneError::Full | LaneError::Interrupted)) => {
                debug!(path = %path.display(), %error, "the file system was not asked how full it is");
            }
        }
    }

    /// The newest word of a path.
    pub(super) fn get(&self, path: &Path) -> Option<&(Timestamp, FilesystemUsage)> {
        self.sizes.get(path)
    }
}

/// That a file system is being asked, until it has answered, whoever still waits for that.
struct Question(PathBuf, Arc<Mutex<HashSet<PathBuf>>>, Arc<AtomicBool>);

impl Drop for Question {
    fn drop(&mut self) {
        lock(&self.1).remove(&self.0);
        if self.2.load(Ordering::Relaxed) {
            info!(path = %self.0.display(), "the file system answers again");
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage() -> FilesystemUsage {
        FilesystemUsage::of(Path::new("/")).unwrap()
    }

    #[tokio::test]
    async fn one_that_hangs_keeps_nobody_else_from_being_asked() {
        static LANE: Lane = Lane::new(5);
        static HANG: AtomicBool = AtomicBool::new(true);
        fn ask(path: &Path) -> Option<FilesystemUsage> {
            while path.to_str()?.starts_with("/hung") && HANG.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            (path != Path::new("/none")).then(usage)
        }
        let paths: Vec<PathBuf> =
            ["/hung/1", "/a", "/none", "/hung/2", "/b", "/hung/3", "/hung/4"].map(PathBuf::from).into();
        let mut asker = Asker { lane: &LANE, ask, ..Asker::default() };
        asker.ask(&paths).await;
        let known = |asker: &Asker| {
            paths
                .iter()
                .filter(|path| asker.get(path).is_some())
                .map(|path| path.display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(known(&asker), ["/a", "/b"]);
        assert_eq!(lock(&asker.hanging).len(), MOST_HANGING, "the fourth was not asked");
        // They are not asked again and not waited for; those that answer are.
        let before = asker.get(Path::new("/a")).unwrap().0;
        let begun = tokio::time::Instant::now();
        asker.ask(&paths).await;
        assert!(begun.elapsed() < DEADLINE, "nobody waits for what is known to hang");
        assert!(asker.get(Path::new("/a")).unwrap().0 > before);
        assert_eq!(known(&asker), ["/a", "/b"]);
        HANG.store(false, Ordering::Relaxed);
        let until = tokio::time::Instant::now() + Duration::from_secs(60);
        while known(&asker).len() < 6 {
            assert!(tokio::time::Instant::now() < until, "{asker:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
            asker.ask(&paths).await;
        }
        // What one said before it hung stays, with its time.
        HANG.store(true, Ordering::Relaxed);
        let before = *asker.get(Path::new("/hung/1")).unwrap();
        asker.ask(&paths[..1]).await;
        assert_eq!(asker.get(Path::new("/hung/1")), Some(&before));
        assert_eq!(known(&asker), ["/hung/1"], "nobody asks for the others");
        HANG.store(false, Ordering::Relaxed);
    }

    #[tokio::test]
    async fn a_question_that_panics_is_asked_again() {
        static LANE: Lane = Lane::new(1);
        let paths = [PathBuf::from("/")];
        let mut asker = Asker { lane: &LANE, ask: |_| panic!("on purpose"), ..Asker::default() };
        asker.ask(&paths).await;
        assert_eq!(asker.get(Path::new("/")), None);
        asker.ask = |_| Some(usage());
        asker.ask(&paths).await;
        assert!(asker.get(Path::new("/")).is_some());
    }
}
