//! What should run: the union of all sources, and the wishes of those who want a pod gone.

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};

use crate::{FullName, PodUid};

/// Everything that the sources want on this node, as one immutable value.
///
/// Published through a `watch` channel. A pod that is missing from it is to be stopped, but only once [`Self::synced`].
#[derive(Clone, Debug, Default)]
pub struct DesiredState {
    /// Counts up with every change.
    pub generation: u64,
    /// Every configured source has delivered at least once; nothing may be cleaned up before.
    pub synced: bool,
    /// The pods, by UID.
    pub pods: Arc<BTreeMap<PodUid, Arc<DesiredPod>>>,
    /// ConfigMaps and Secrets given as files beside the pods.
    pub objects: Arc<Objects>,
    /// What became of each file, for people to ask.
    pub verdicts: Arc<Vec<FileVerdict>>,
}

/// One pod that should run.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredPod {
    /// Its UID (also in `pod.metadata.uid`).
    pub uid: PodUid,
    /// Namespace and name (also in `pod.metadata`).
    pub full_name: FullName,
    /// The pod after defaulting and naming; `status` is `None`. Never changed in place.
    pub pod: Arc<Pod>,
    /// Where it came from.
    pub source: PodSource,
    /// The file path or URL it was read from; empty for API pods.
    pub origin: Arc<str>,
    /// Set when somebody wants it to end although its source still has it.
    pub terminate: Option<TerminationWish>,
}

/// A wish that a pod end: eviction, node shutdown, preemption. Only reconcile acts on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TerminationWish {
    /// `status.reason`, for example `Evicted`.
    pub reason: String,
    /// `status.message`.
    pub message: String,
    /// Grace for the containers; the pod's own when `None`.
    pub grace: Option<Duration>,
}

/// The kind of source a pod came from, as in annotation `kubernetes.io/config.source`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PodSource {
    /// `staticPodPath`.
    File,
    /// `staticPodURL`.
    Http,
    /// The API server.
    Api,
}

impl PodSource {
    /// The word in the annotation.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
            Self::Api => "api",
        }
    }

    /// Whether pods of this source are static: known to no API server but this node.
    #[must_use]
    pub fn is_static(self) -> bool {
        self != Self::Api
    }
}

impl fmt::Display for PodSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Objects that pods may refer to, known without an API server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Objects {
    /// ConfigMaps by namespace and name.
    pub config_maps: BTreeMap<FullName, Arc<ConfigMap>>,
    /// Secrets by namespace and name. Their contents must never be logged.
    pub secrets: BTreeMap<FullName, Arc<Secret>>,
}

/// What became of one document of one file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileVerdict {
    /// The file (or URL).
    pub path: PathBuf,
    /// `Pod default/web`, as far as it could be read.
    pub object: Option<String>,
    /// The ruling.
    #[serde(flatten)]
    pub ruling: Ruling,
    /// Since when it stands.
    pub since: Timestamp,
}

/// The ruling over one document.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase", tag = "verdict")]
pub enum Ruling {
    /// It is part of the desired state.
    #[serde(rename_all = "camelCase")]
    Accepted {
        /// Things that will not work as written, though the rest does.
        warnings: Vec<String>,
    },
    /// It is not, and why.
    #[serde(rename_all = "camelCase")]
    Rejected {
        /// Every problem found, each naming its field and the remedy.
        problems: Vec<String>,
        /// The last good version of it is still wanted.
        previous_kept: bool,
    },
    /// Not a manifest (by its name), so it was not read.
    Ignored {
        /// Why.
        why: String,
    },
}
