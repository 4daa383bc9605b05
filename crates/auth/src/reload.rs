//! A file whose content is used until a better one is there.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// The file is looked at no more often than this, and only when somebody asks.
const LOOK: Duration = Duration::from_secs(1);

/// What makes a value of a file's bytes.
pub type Parse<T> = Box<dyn Fn(&[u8]) -> Result<T, String> + Send + Sync>;

/// How long a look may hold up a request; a disk that hangs makes the old value do.
const LOOK_DEADLINE: Duration = Duration::from_secs(2);

/// What is wrong with a file that must not be believed, by what the system says of it (owner, mode); `Ok` if it may.
pub type Trust = fn(&Path, &fs::Metadata) -> Result<(), String>;

/// A value read from a file, read again when the file has changed. One that cannot be read, or says nothing sensible, leaves
/// the value as it was and is told of once. Where there is a value for no file ([`Self::open_or`]), that is in force while
/// the file is gone or must not be believed.
pub struct Reloaded<T> {
    inner: Arc<Inner<T>>,
}

struct Inner<T> {
    path: PathBuf,
    /// Another file that the parser reads (a key beside a certificate); a change of it is one of the value.
    beside: Option<PathBuf>,
    parse: Parse<T>,
    /// For a file that may be absent.
    optional: Option<Optional<T>>,
    state: Mutex<State<T>>,
    /// Somebody is looking at the file.
    looking: AtomicBool,
}

impl<T> std::fmt::Debug for Reloaded<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloaded").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

struct Optional<T> {
    otherwise: Arc<T>,
    trust: Trust,
}

/// Why a file's value is not to be had.
enum Unusable {
    /// There is no file.
    Absent,
    /// It may say what it wants.
    Distrusted(String),
    /// It cannot be read or understood.
    Broken(String),
}

struct State<T> {
    value: Arc<T>,
    /// Of the files that the value came from; `None` if one was not there.
    stamp: Option<Vec<Stamp>>,
    looked: Instant,
    /// What was told last, so that it is told once.
    told: Option<String>,
}

/// By these a changed file is known: device, inode, length, time of change; and owner, mode and the time of any change of
/// the inode, because who may write a file is as important as what it says.
type Stamp = ([u64; 3], [i64; 4], [u32; 3]);

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct ReloadError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: String,
}

impl<T> Reloaded<T> {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// When it cannot be read or used: at the start there is nothing to fall back on.
    pub fn open(
        path: impl Into<PathBuf>,
        parse: impl Fn(&[u8]) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, ReloadError> {
        Self::open_both(path.into(), None, Box::new(parse))
    }

    /// As [`Self::open`], for a value that `parse` makes of the file and of another beside it: a change of either is seen.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(
        path: impl Into<PathBuf>,
        beside: impl Into<PathBuf>,
        parse: impl Fn(&[u8]) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, ReloadError> {
        Self::open_both(path.into(), Some(beside.into()), Box::new(parse))
    }

    fn open_both(path: PathBuf, beside: Option<PathBuf>, parse: Parse<T>) -> Result<Self, ReloadError> {
        let stamp = stamps(&path, beside.as_deref());
        let value = read(&path, &parse, None)
            .map_err(|problem| ReloadError { path: path.clone(), problem: problem.to_string() })?;
        let state = State { value: Arc::new(value), stamp, looked: Instant::now(), told: None };
        Ok(Self::of((path, beside), parse, None, state))
    }

    /// As [`Self::open`], but a file that is not there (yet, or any more), cannot be used at the start, or must not be
    /// believed stands for a value of its own. What is wrong with one that is there comes along.
    pub fn open_or(
        path: impl Into<PathBuf>,
        otherwise: T,
        trust: Trust,
        parse: impl Fn(&[u8]) -> Result<T, String> + Send + Sync + 'static,
    ) -> (Self, Option<ReloadError>) {
        let path = path.into();
        let parse: Parse<T> = Box::new(parse);
        let optional = Optional { otherwise: Arc::new(otherwise), trust };
        let found = stamps(&path, None);
        let (value, stamp, problem) = match read(&path, &parse, Some(trust)) {
            Ok(value) => (Arc::new(value), found, None),
            Err(Unusable::Absent) => (Arc::clone(&optional.otherwise), None, None),
            Err(problem) => (Arc::clone(&optional.otherwise), None, Some(problem.to_string())),
        };
        let state = State { value, stamp, looked: Instant::now(), told: problem.clone() };
        let problem = problem.map(|problem| ReloadError { path: path.clone(), problem });
        (Self::of((path, None), parse, Some(optional), state), problem)
    }

    fn of(
        (path, beside): (PathBuf, Option<PathBuf>),
        parse: Parse<T>,
        optional: Option<Optional<T>>,
        state: State<T>,
    ) -> Self {
        let (state, looking) = (Mutex::new(state), AtomicBool::new(false));
        Self { inner: Arc::new(Inner { path, beside, parse, optional, state, looking }) }
    }

    /// The value that was read last. Never waits.
    pub fn get(&self) -> Arc<T> {
        Arc::clone(&self.inner.lock().value)
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }
}

impl<T: Send + Sync + 'static> Reloaded<T> {
    /// Looks at the file, on a blocking thread, if nobody has within the last second. Waits for the look, but not for ever.
    /// Cancel safe: a look that was begun goes on.
    pub async fn refresh(&self) {
        if !self.inner.begin(Instant::now()) {
            return;
        }
        let inner = Arc::clone(&self.inner);
        let look = tokio::task::spawn_blocking(move || inner.look());
        if tokio::time::timeout(LOOK_DEADLINE, look).await.is_err() {
            tracing::warn!(path = %self.inner.path.display(), "cannot look at the file; does its disk answer? What it said before stays in force");
        }
    }
}

impl<T> Inner<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is time for a look and the caller is the one to take it.
    fn begin(&self, now: Instant) -> bool {
        let mut state = self.lock();
        if now.saturating_duration_since(state.looked) < LOOK || self.looking.swap(true, Ordering::AcqRel) {
            return false;
        }
        state.looked = now;
        true
    }

    fn look(&self) {
        let stamp = stamps(&self.path, self.beside.as_deref());
        if stamp != self.lock().stamp {
            // Without the lock: reading may take its time, and the old value is asked for meanwhile.
            let trust = self.optional.as_ref().map(|optional| optional.trust);
            let read = read(&self.path, &self.parse, trust);
            let mut state = self.lock();
            match (read, &self.optional) {
                (Ok(value), _) => {
                    tracing::info!(path = %self.path.display(), "read again, because it changed");
                    state.value = Arc::new(value);
                    state.stamp = stamp;
                    state.told = None;
                }
                (Err(problem @ (Unusable::Absent | Unusable::Distrusted(_))), Some(optional)) => {
                    state.value = Arc::clone(&optional.otherwise);
                    // Looked at again and again: whatever becomes of it is a change.
                    state.stamp = None;
                    self.tell(&mut state, &problem, "what it said before is not in force any more");
                }
                // Tried again at the next look: what goes with it (a key beside a certificate) may still be on its way.
                (Err(problem), _) => self.tell(&mut state, &problem, "what it said before stays in force"),
            }
        }
        self.looking.store(false, Ordering::Release);
    }

    /// Once for each problem.
    fn tell(&self, state: &mut State<T>, problem: &Unusable, consequence: &str) {
        let problem = problem.to_string();
        if state.told.as_ref() != Some(&problem) {
            tracing::warn!(path = %self.path.display(), problem, "changed, and cannot be used; {consequence}");
            state.told = Some(problem);
        }
    }

    #[cfg(test)]
    fn get_at(&self, now: Instant) -> Arc<T> {
        if self.begin(now) {
            self.look();
        }
        Arc::clone(&self.lock().value)
    }
}

fn stamps(path: &Path, beside: Option<&Path>) -> Option<Vec<Stamp>> {
    [path].into_iter().chain(beside).map(stamp).collect()
}

fn stamp(path: &Path) -> Option<Stamp> {
    let found = fs::metadata(path).ok()?;
    Some((
        [found.dev(), found.ino(), found.len()],
        [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()],
        [found.mode(), found.uid(), found.gid()],
    ))
}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Absent => f.write_str("there is no such file"),
            Self::Distrusted(problem) | Self::Broken(problem) => f.write_str(problem),
        }
    }
}

fn read<T>(path: &Path, parse: &Parse<T>, trust: Option<Trust>) -> Result<T, Unusable> {
    let broken = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Unusable::Absent,
        _ => Unusable::Broken(error.to_string()),
    };
    let mut file = fs::File::open(path).map_err(broken)?;
    if let Some(trust) = trust {
        // Of the very file that is read, not of one that has taken its name since.
        trust(path, &file.metadata().map_err(broken)?).map_err(Unusable::Distrusted)?;
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(broken)?;
    parse(&bytes).map_err(Unusable::Broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(bytes: &[u8]) -> Result<u32, String> {
        String::from_utf8_lossy(bytes).trim().parse().map_err(|_| "not a number".into())
    }

    #[test]
    fn the_newest_good_value_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n");
        assert!(Reloaded::open(&path, number).is_err());
        fs::write(&path, "x").unwrap();
        let error = Reloaded::open(&path, number).unwrap_err().to_string();
        assert_eq!(error, format!("{}: not a number", path.display()));

        fs::write(&path, "1").unwrap();
        let file = Reloaded::open(&path, number).unwrap();
        let start = file.inner.lock().looked;
        let after = |seconds| *file.inner.get_at(start + Duration::from_secs(seconds));
        fs::write(&path, "22").unwrap();
        assert_eq!(after(0), 1, "not looked at so soon");
        assert_eq!(after(2), 22);
        fs::write(&path, "bad").unwrap();
        assert_eq!(after(4), 22);
        fs::remove_file(&path).unwrap();
        assert_eq!(after(6), 22);
        fs::write(&path, "333").unwrap();
        assert_eq!(after(8), 333);
    }

    #[test]
    fn a_change_of_either_of_two_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let (path, beside) = (dir.path().join("n"), dir.path().join("m"));
        let sum = {
            let beside = beside.clone();
            move |bytes: &[u8]| {
                let other = fs::read(&beside).map_err(|error| format!("the other: {error}"))?;
                Ok(number(bytes)? + number(&other).map_err(|problem| format!("the other: {problem}"))?)
            }
        };
        fs::write(&path, "1").unwrap();
        assert!(Reloaded::open_with(&path, &beside, sum.clone()).is_err());
        fs::write(&beside, "10").unwrap();
        let file = Reloaded::open_with(&path, &beside, sum).unwrap();
        let start = file.inner.lock().looked;
        let after = |seconds| *file.inner.get_at(start + Duration::from_secs(seconds));
        let told = || file.inner.lock().told.clone().unwrap_or_default();
        fs::write(&beside, "200").unwrap();
        assert_eq!((after(2), told().as_str()), (201, ""));
        fs::write(&beside, "bad").unwrap();
        assert_eq!((after(4), told().as_str()), (201, "the other: not a number"));
        fs::remove_file(&beside).unwrap();
        assert_eq!(after(6), 201);
        assert!(told().starts_with("the other: No such file"), "{}", told());
        fs::write(&path, "3").unwrap();
        assert_eq!(after(8), 201);
        fs::write(&beside, "4000").unwrap();
        assert_eq!((after(10), told().as_str()), (4003, ""));
    }

    #[test]
    fn a_file_may_come_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n");
        let any: Trust = |_, _| Ok(());
        let (file, problem) = Reloaded::open_or(&path, 7, any, number);
        assert!(problem.is_none());
        let later = |seconds| Instant::now() + Duration::from_secs(seconds);
        assert_eq!(*file.inner.get_at(later(5)), 7);
        fs::write(&path, "8").unwrap();
        assert_eq!(*file.inner.get_at(later(10)), 8);
        fs::write(&path, "broken").unwrap();
        assert_eq!(*file.inner.get_at(later(15)), 8, "a mistake in it leaves it in force");
        let away = dir.path().join("away");
        fs::write(&path, "8").unwrap();
        assert_eq!(*file.inner.get_at(later(20)), 8);
        fs::rename(&path, &away).unwrap();
        assert_eq!(*file.inner.get_at(later(25)), 7, "a file that is gone says nothing any more");
        fs::rename(&away, &path).unwrap();
        assert_eq!(*file.inner.get_at(later(30)), 8, "the same is back");

        fs::write(&path, "x").unwrap();
        let (file, problem) = Reloaded::open_or(&path, 7, any, number);
        assert_eq!(problem.unwrap().problem, "not a number");
        assert_eq!(*file.inner.get_at(later(5)), 7, "closed, not ended");
        fs::write(&path, "9").unwrap();
        assert_eq!(*file.inner.get_at(later(10)), 9);
    }

    #[test]
    fn a_file_that_others_may_write_is_not_believed_any_more() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n");
        fs::write(&path, "8").unwrap();
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o600);
        let trust: Trust =
            |_, found| if found.mode() & 0o022 == 0 { Ok(()) } else { Err("others can write it".into()) };
        let (file, problem) = Reloaded::open_or(&path, 7, trust, number);
        assert!(problem.is_none());
        let later = |seconds| Instant::now() + Duration::from_secs(seconds);
        assert_eq!(*file.inner.get_at(later(5)), 8);
        mode(0o666);
        assert_eq!(*file.inner.get_at(later(10)), 7, "nothing else changed, neither length nor time");
        mode(0o600);
        assert_eq!(*file.inner.get_at(later(15)), 8);
    }
}
