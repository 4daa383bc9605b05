//! Being told about changes of the static pod path.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode, ModifyKind},
};
use tokio::sync::mpsc;

/// What happened to a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// It is as it will stay for now: closed after writing, renamed, removed.
    Settled(PathBuf),
    /// It is being made or written.
    Writing(PathBuf),
    /// Something was missed; everything has to be looked at.
    Missed,
}

/// Watches a path that may be a directory, a file, or nothing yet, and the directory above it, so that it is noticed
/// when the path is made or replaced. If watching fails, that is logged once and the periodic look has to do.
#[derive(Debug)]
pub(crate) struct PathWatch {
    target: PathBuf,
    watcher: Option<RecommendedWatcher>,
    watched: Vec<(PathBuf, (u64, u64))>,
    complained: bool,
}

impl PathWatch {
    /// Nothing is watched before [`Self::arm`]. At most as many changes wait as `sender` holds; what comes on top is
    /// told as [`Told::Missed`] by whoever empties it.
    pub(crate) fn new(
        target: &Path,
        sender: mpsc::Sender<Told>,
        missed: std::sync::Arc<tokio::sync::Notify>,
    ) -> Self {
        let filter = target.to_owned();
        let handler = move |event: notify::Result<Event>| {
            let told = match event {
                Ok(event) if event.need_rescan() => vec![Told::Missed],
                Ok(event) => translate(&event, &filter),
                Err(_) => vec![Told::Missed],
            };
            for told in told {
                if sender.try_send(told).is_err() {
                    missed.notify_one();
                }
            }
        };
        let watcher = match notify::recommended_watcher(handler) {
            Ok(watcher) => Some(watcher),
            Err(error) => {
                tracing::warn!(%error, "no inotify; static pods are found by fileCheckFrequency only");
                None
            }
        };
        Self { target: target.to_owned(), complained: watcher.is_none(), watcher, watched: Vec::new() }
    }

    /// Watches what is there now. Called before each look at the path, so that no change falls between the two.
    /// Blocks.
    pub(crate) fn arm(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        let mut wanted = Vec::new();
        if let Ok(metadata) = fs::metadata(&self.target)
            && metadata.is_dir()
        {
            wanted.push((self.target.clone(), (metadata.dev(), metadata.ino())));
        }
        // The nearest directory above that exists, in which the path (or one above it) will appear.
        let above = self.target.ancestors().skip(1).find_map(|above| {
            let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
            let metadata = fs::metadata(above).ok().filter(fs::Metadata::is_dir)?;
            Some((above.to_owned(), (metadata.dev(), metadata.ino())))
        });
        wanted.extend(above);
        if wanted == self.watched {
            return;
        }
        for (path, _) in self.watched.drain(..) {
            // It may be gone already, and then so is its watch.
            drop(watcher.unwatch(&path));
        }
        for (path, identity) in wanted {
            match watcher.watch(&path, RecursiveMode::NonRecursive) {
                Ok(()) => self.watched.push((path, identity)),
                Err(error) if is_gone(&error) => {}
                Err(error) => {
                    if !self.complained {
                        tracing::warn!(
                            path = %path.display(), %error,
                            "cannot watch the static pod path, changes are found by fileCheckFrequency only; \
                             is fs.inotify.max_user_watches too low?"
                        );
                    }
                    self.complained = true;
                }
            }
        }
    }
}

fn is_gone(error: &notify::Error) -> bool {
    match &error.kind {
        notify::ErrorKind::PathNotFound => true,
        notify::ErrorKind::Io(error) => error.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

/// What an event means for the target. Events of the directory above about other things mean nothing, and so do our
/// own reads.
fn translate(event: &Event, target: &Path) -> Vec<Told> {
    let settled = match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => return Vec::new(),
        EventKind::Create(_) | EventKind::Modify(ModifyKind::Data(_)) => false,
        EventKind::Any | EventKind::Other | EventKind::Modify(_) | EventKind::Remove(_) => true,
    };
    let relevant = |path: &&PathBuf| path.starts_with(target) || target.starts_with(path);
    event
        .paths
        .iter()
        .filter(relevant)
        .map(|path| {
            // A link is complete as soon as it exists, and a directory is looked into, not waited for.
            let at_once = || fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file());
            if settled || at_once() { Told::Settled(path.clone()) } else { Told::Writing(path.clone()) }
        })
        .collect()
}
