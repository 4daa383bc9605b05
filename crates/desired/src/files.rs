//! Looking at the static pod path: which manifests are there, and what is in those that changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, Metadata, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use mainstay_podspec::{MAX_MANIFEST_BYTES, PodGates, StaticPodPlace};
use mainstay_types::PodSource;

use crate::{
    SourcesConfig,
    book::Reading,
    entry::{EntryState, read_entries},
};

/// A file that was changed less than this ago and makes no sense is read once more before it is ruled over: it may be
/// half-written.
const HALF_WRITTEN: Duration = Duration::from_millis(200);
/// A file that is gone is looked for once more after this time: some editors remove a file and make it again.
const GONE_FILE: Duration = Duration::from_millis(50);
/// The same for a path that is one manifest.
const GONE_PATH: Duration = Duration::from_millis(250);

/// What a look showed.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// Files that are new or changed, by path.
    pub(crate) readings: Vec<(String, Reading)>,
    /// Files that are gone.
    pub(crate) removed: Vec<String>,
    /// Files that are there but have not been ruled over yet, because they are being written.
    pub(crate) pending: Vec<String>,
    /// Look again after this time: something was not clear yet.
    pub(crate) again_in: Option<Duration>,
    /// The path itself could not be read; what was known before still counts.
    pub(crate) failure: Option<String>,
    /// The directory is not there. Nobody deleted its files one by one, so they are not taken for deleted.
    pub(crate) directory_gone: bool,
}

impl Scan {
    fn again_in(&mut self, wait: Duration) {
        self.again_in = Some(self.again_in.map_or(wait, |earlier| earlier.min(wait)));
    }
}

/// Which files a look should treat in a special way.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// Known to have changed, whatever their times say.
    pub(crate) changed: BTreeSet<PathBuf>,
    /// Being written: leave them for now.
    pub(crate) writing: BTreeSet<PathBuf>,
}

/// Remembers what was seen, so that only changed files are read. Everything blocks.
#[derive(Debug)]
pub(crate) struct FileScanner {
    path: PathBuf,
    any_extension: bool,
    node_name: Arc<str>,
    api_server: bool,
    gates: PodGates,
    known: BTreeMap<String, Known>,
}

#[derive(Debug)]
struct Known {
    stamp: Stamp,
    /// It has been ruled over once.
    reported: bool,
    /// This state of the file made no sense and has been given time.
    patience_spent: Option<Stamp>,
    gone_since: Option<Instant>,
}

/// Tells one state of a file from another without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    /// Set for what is not read.
    ignored: bool,
}

impl Stamp {
    fn new(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            ignored: false,
        }
    }

    const IGNORED: Self = Self { device: 0, inode: 0, size: 0, modified: (0, 0), ignored: true };
    /// Equal to no file's, so that it is tried again at each look.
    const UNREADABLE: Self = Self { size: 1, ..Self::IGNORED };
}

/// One thing in the directory.
enum Found {
    File(PathBuf),
    Ignored(PathBuf, &'static str),
}

impl FileScanner {
    pub(crate) fn new(path: PathBuf, config: &SourcesConfig) -> Self {
        Self {
            path,
            any_extension: config.any_extension,
            node_name: Arc::clone(&config.node_name),
            api_server: config.api_server.is_some(),
            gates: config.gates,
            known: BTreeMap::new(),
        }
    }

    /// Whether this file is there, or was a moment ago.
    pub(crate) fn knows(&self, origin: &str) -> bool {
        self.known.contains_key(origin)
    }

    /// Looks at the path.
    pub(crate) fn scan(&mut self, hints: &Hints) -> Scan {
        let mut scan = Scan::default();
        let (found, gone_after) = match self.list() {
            Ok(Some(found)) => (found, GONE_FILE),
            Ok(None) if self.is_single_file() => (Vec::new(), GONE_PATH),
            Ok(None) => {
                // When it comes back, each file in it is read again.
                self.known.values_mut().for_each(|known| known.reported = false);
                scan.directory_gone = true;
                return scan;
            }
            Err(error) => {
                let path = self.path.display();
                scan.failure = Some(format!(
                    "cannot read the static pod path {path}: {error}; check its owner and mode"
                ));
                return scan;
            }
        };
        let mut present = BTreeSet::new();
        let mut appeared = false;
        for found in found {
            let (path, ignored) = match &found {
                Found::File(path) => (path, None),
                Found::Ignored(path, why) => (path, Some(*why)),
            };
            let Some(origin) = path.to_str().map(str::to_owned) else {
                tracing::debug!(path = %path.display(), "a file whose name is not UTF-8 is no manifest");
                continue;
            };
            let is_new = !self.known.contains_key(&origin);
            let is_there = match ignored {
                Some(why) => self.note_ignored(&mut scan, &origin, why),
                None => self.look_at(&mut scan, path, &origin, hints),
            };
            if is_there {
                appeared |= is_new;
                present.insert(origin);
            }
        }
        let unread = |origin: &&String| self.known.get(*origin).is_some_and(|known| !known.reported);
        scan.pending = present.iter().filter(unread).cloned().collect();
        self.note_gone(&mut scan, &present, appeared, gone_after);
        scan
    }

    /// The path was seen to be a manifest itself: without it there is nothing.
    fn is_single_file(&self) -> bool {
        self.path.to_str().is_some_and(|path| self.known.contains_key(path))
    }

    /// What is there; `None` when the path itself is not.
    fn list(&self) -> io::Result<Option<Vec<Found>>> {
        let metadata = match fs::metadata(&self.path) {
            Ok(metadata) => metadata,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if !metadata.is_dir() {
            return Ok(Some(vec![Found::File(self.path.clone())]));
        }
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            let path = entry.path();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            found.push(if name.starts_with('.') {
                Found::Ignored(path, "its name begins with a dot")
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                Found::Ignored(
                    path,
                    "it is a directory; manifests are not looked for below the static pod path",
                )
            } else if !self.any_extension && !has_manifest_extension(&name) {
                Found::Ignored(path, "its name does not end in .yaml, .yml or .json")
            } else {
                Found::File(path)
            });
        }
        Ok(Some(found))
    }

    fn note_ignored(&mut self, scan: &mut Scan, origin: &str, why: &'static str) -> bool {
        let known = self.known.entry(origin.to_owned()).or_insert_with(Known::unread);
        known.gone_since = None;
        if known.stamp != Stamp::IGNORED || !known.reported {
            *known = Known { stamp: Stamp::IGNORED, reported: true, ..Known::unread() };
            scan.readings.push((origin.to_owned(), Reading::Ignored(why.to_owned())));
        }
        true
    }

    /// Reads a file if it changed. Returns whether it exists.
    fn look_at(&mut self, scan: &mut Scan, path: &Path, origin: &str, hints: &Hints) -> bool {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            // Gone since it was listed, or a link to nothing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return false,
            Err(error) => {
                self.report_unreadable(scan, origin, &error);
                return true;
            }
        };
        if !metadata.is_file() {
            return self.note_ignored(scan, origin, "it is not a regular file");
        }
        let stamp = Stamp::new(&metadata);
        let known = self.known.entry(origin.to_owned()).or_insert_with(Known::unread);
        known.gone_since = None;
        if hints.writing.contains(path)
            || (known.reported && known.stamp == stamp && !hints.changed.contains(path))
        {
            return true;
        }
        let bytes = match read(path) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                let mib = MAX_MANIFEST_BYTES >> 20;
                let problem = format!(
                    "the manifest is larger than {mib} MiB; a pod needs a few KiB, split the file or move data out of it"
                );
                known.settle(stamp);
                scan.readings.push((origin.to_owned(), Reading::Unreadable(vec![problem])));
                return true;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return false,
            Err(error) => {
                self.report_unreadable(scan, origin, &error);
                return true;
            }
        };
        let place = StaticPodPlace {
            node_name: &self.node_name,
            source: PodSource::File,
            origin,
            api_server: self.api_server,
            gates: self.gates,
        };
        let reading = match read_entries(&bytes, &place) {
            Ok(entries) => Reading::Documents(entries),
            Err(error) => Reading::Unreadable(vec![error.to_string()]),
        };
        if makes_no_sense(&reading) && known.patience_spent != Some(stamp) {
            let age = metadata.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
            if let Some(wait) =
                HALF_WRITTEN.checked_sub(age.unwrap_or_default()).filter(|wait| !wait.is_zero())
            {
                known.patience_spent = Some(stamp);
                scan.again_in(wait);
                return true;
            }
        }
        known.settle(stamp);
        scan.readings.push((origin.to_owned(), reading));
        true
    }

    fn report_unreadable(&mut self, scan: &mut Scan, origin: &str, error: &io::Error) {
        // Told again at each look: the book sees that nothing changed.
        let known = Known { stamp: Stamp::UNREADABLE, reported: true, ..Known::unread() };
        self.known.insert(origin.to_owned(), known);
        let problem = format!("cannot be read: {error}; check its owner and mode");
        scan.readings.push((origin.to_owned(), Reading::Unreadable(vec![problem])));
    }

    fn note_gone(
        &mut self,
        scan: &mut Scan,
        present: &BTreeSet<String>,
        appeared: bool,
        gone_after: Duration,
    ) {
        let now = Instant::now();
        let mut removed = Vec::new();
        for (origin, known) in &mut self.known {
            if present.contains(origin) {
                continue;
            }
            let gone_for = now.duration_since(*known.gone_since.get_or_insert(now));
            // A file that appears while another is gone is a renamed one; the old name will not come back.
            if appeared || known.stamp.ignored || gone_for >= gone_after {
                removed.push(origin.clone());
            } else {
                scan.again_in(gone_after.saturating_sub(gone_for));
            }
        }
        for origin in removed {
            self.known.remove(&origin);
            scan.removed.push(origin);
        }
    }
}

impl Known {
    fn unread() -> Self {
        Self { stamp: Stamp::IGNORED, reported: false, patience_spent: None, gone_since: None }
    }

    fn settle(&mut self, stamp: Stamp) {
        *self = Self { stamp, reported: true, ..Self::unread() };
    }
}

/// Nothing in it can be read, or a document in it is unfit: both may be the first half of something.
fn makes_no_sense(reading: &Reading) -> bool {
    match reading {
        Reading::Documents(entries) => {
            entries.iter().any(|entry| matches!(entry.state, EntryState::Rejected(_)))
        }
        Reading::Unreadable(_) => true,
        Reading::Ignored(_) | Reading::Pending => false,
    }
}

fn has_manifest_extension(name: &str) -> bool {
    [".yaml", ".yml", ".json"].iter().any(|extension| name.ends_with(extension))
}

/// Reads a whole regular file; `None` when it is too large for a manifest.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // Opening a FIFO that took the file's place would wait for its writer.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let limit = MAX_MANIFEST_BYTES as u64;
    if metadata.len() > limit {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or_default());
    file.take(limit + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() <= MAX_MANIFEST_BYTES).then_some(bytes))
}
