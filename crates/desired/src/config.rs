//! What the sources are told, and why they may not start.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use mainstay_apiserver::Client;
use mainstay_checkpoint::SealKey;
use mainstay_podspec::PodGates;
use tokio::sync::watch;

/// Where desired pods come from.
#[derive(Clone, Debug)]
pub struct SourcesConfig {
    /// The node's name: part of static pods' names and UIDs.
    pub node_name: Arc<str>,
    /// The root directory; the last good manifests are kept in `mainstay/manifests` below it.
    pub root_dir: PathBuf,
    /// `staticPodPath`: a file or a directory, which may come to be later.
    pub static_pod_path: Option<PathBuf>,
    /// `fileCheckFrequency`: how often to look although inotify says nothing.
    pub file_check_frequency: Duration,
    /// Take every file that is no dot-file for a manifest, as upstream does, not only `.yaml`, `.yml` and `.json`.
    pub any_extension: bool,
    /// `staticPodURL`.
    pub static_pod_url: Option<UrlSource>,
    /// The API server, if there is one: pods come from it too, and static pods may not refer to config maps and secrets.
    pub api_server: Option<Client>,
    /// Who wants to know whether the Node object is still so.
    pub node_questions: watch::Receiver<u64>,
    /// With what the API server's objects are sealed on disk; without it they are not kept there.
    pub object_key: Option<Arc<SealKey>>,
    /// A pod that another kubelet runs under the name of one of ours is that one, and is taken over (`mainstay kubelet`).
    /// Otherwise it is somebody else's and left alone.
    pub takes_over: bool,
    /// Which fields of a pod mean something.
    pub gates: PodGates,
}

/// A URL that pods are read from.
#[derive(Clone)]
pub struct UrlSource {
    /// `staticPodURL`.
    pub url: String,
    /// `staticPodURLHeader`. Never logged.
    pub headers: Vec<(String, String)>,
    /// `httpCheckFrequency`.
    pub check_frequency: Duration,
}

impl fmt::Debug for UrlSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UrlSource")
            .field("url", &self.url)
            .field("headers", &format_args!("{} (hidden)", self.headers.len()))
            .field("check_frequency", &self.check_frequency)
            .finish()
    }
}

/// Why the sources cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum SourcesError {
    /// The directory for the last good manifests cannot be made.
    #[error("cannot keep manifests below the root directory; choose another --root-dir or make it writable")]
    State(#[source] mainstay_checkpoint::WriteError),
    /// `staticPodURL` is no URL that can be asked.
    #[error("staticPodURL {url}: {why}; correct it or leave it out")]
    Url {
        /// The URL as configured, without user name and password.
        url: String,
        /// What is wrong with it.
        why: String,
    },
}
