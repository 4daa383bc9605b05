//! Plugins that make themselves known by a socket below `<root>/plugins_registry` (upstream's plugin watcher, `pkg/kubelet/pluginmanager`
//! of 1.37): each socket is asked what it is (`GetInfo`), handed to the [`Handler`] of its kind, and told what came of it
//! (`NotifyRegistrationStatus`). A socket that goes, or is made anew, is taken back first.
//!
//! What it does not do: it knows nothing of what plugins are for; a kind that nobody handles is told so and asked again, ever more rarely.
//!
//! In: the directory, watched by inotify (hints) and looked through every half a minute (the net). Out: calls of handlers, which must not block.
//! Tasks, in the group given to [`start`]: `plugin watcher`, and `plugin PATH` while one is being registered.

#![forbid(unsafe_code)]

mod actor;
mod call;
mod dial;
mod scan;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap, fmt, fs, io, os::unix::fs::DirBuilderExt as _, path::PathBuf, pin::Pin, sync::Arc,
};

use mainstay_task::TaskGroup;

pub use dial::connect;

/// Upstream's: who may enter may register.
const MODE: u32 = 0o750;

/// What a plugin says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// For a device plugin its resource, for a CSI driver its name.
    pub name: String,
    /// Where it is served: the registration socket itself, or another one that it named.
    pub endpoint: PathBuf,
    /// Versions of its interface.
    pub versions: Vec<String>,
}

/// What a [`Handler`] does that takes time.
pub type Work<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Takes plugins of one kind.
pub trait Handler: fmt::Debug + Send + Sync {
    /// Whether it can be taken at all.
    ///
    /// # Errors
    /// Why not, for the plugin.
    fn validate(&self, plugin: &Candidate) -> Result<(), String>;

    /// Takes it. Called again for one that came back, after [`Self::deregister`]. Has deadlines of its own.
    ///
    /// # Errors
    /// Why not, for the plugin; it is tried again later.
    fn register<'a>(&'a self, plugin: &'a Candidate) -> Work<'a, Result<(), String>>;

    /// It has gone, or could not be told that it was taken.
    fn deregister(&self, plugin: &Candidate);
}

/// Handlers by kind, in the words of `PluginInfo.type`.
pub type Handlers = BTreeMap<&'static str, Arc<dyn Handler>>;

/// The directory cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot make the directory of plugins {}; can root write there?", path.display())]
pub struct PluginError {
    path: PathBuf,
    source: io::Error,
}

/// Makes the directory and begins to watch it.
///
/// # Errors
/// When it cannot be made.
pub fn start(directory: PathBuf, handlers: Handlers, tasks: &TaskGroup) -> Result<(), PluginError> {
    let made = fs::DirBuilder::new().recursive(true).mode(MODE).create(&directory);
    made.map_err(|source| PluginError { path: directory.clone(), source })?;
    let (group, shutdown) = (tasks.clone(), tasks.shutdown());
    tasks.spawn_critical("plugin watcher", async move {
        shutdown.run_until_signalled(actor::run(directory, handlers, group)).await;
    });
    Ok(())
}
