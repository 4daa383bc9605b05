//! What should run: the union of all sources, and the wishes of those who want a pod gone.

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node, PersistentVolumeSpec, Pod, Secret, Service};
use tokio::sync::watch;

use crate::{FullName, PodUid, RemoteStatus};

/// Everything that the sources want on this node, as one immutable value.
///
/// Published through a `watch` channel. A pod that is missing from it is to be stopped, but only once [`Self::synced`],
/// and only if its source is not [awaited](Self::awaits).
#[derive(Clone, Debug, Default)]
pub struct DesiredState {
    /// Counts up with every change.
    pub generation: u64,
    /// Every configured source has delivered, or was waited for long enough (see `awaited`); nothing may be cleaned up,
    /// and nothing shown, before.
    pub synced: bool,
    /// The sources that have not delivered. What they may own is not cleaned up.
    pub awaited: Arc<Vec<AwaitedSource>>,
    /// The pods, by UID.
    pub pods: Arc<BTreeMap<PodUid, Arc<DesiredPod>>>,
    /// ConfigMaps and Secrets given as files beside the pods.
    pub objects: Arc<Objects>,
    /// The Node object by the API server's word, with what others than this node say in its status; `None` without one.
    pub node: Option<Arc<Node>>,
    /// The last question whether the Node object is still so that has been answered, by looking or by having tried in vain: see
    /// [`NodeQuestions`].
    pub node_answered: u64,
    /// What became of each file, for people to ask.
    pub verdicts: Arc<Vec<FileVerdict>>,
}

impl DesiredState {
    /// Whether a source has not delivered yet, so that pods of it may be wanted although they are not here.
    #[must_use]
    pub fn awaits(&self, source: PodSource) -> bool {
        !self.synced || self.awaited.iter().any(|awaited| awaited.source == source)
    }

    /// The sources of which nothing is known, not even from an earlier life: pods of theirs may run that nobody can name.
    pub fn unknown(&self) -> impl Iterator<Item = &AwaitedSource> {
        self.awaited.iter().filter(|source| !source.remembered)
    }

    /// Whether all that is wanted is here, so that whatever else there is may be cleaned up.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.synced && self.awaited.is_empty()
    }
}

/// Where it is asked whether the Node object is still what it was. Pods and their node are heard of separately, and who hears of a pod
/// first would turn it away for a label or a taint that is no longer so. A question is a number, and answered when
/// [`DesiredState::node_answered`] has come to it.
#[derive(Clone, Debug)]
pub struct NodeQuestions(watch::Sender<u64>);

impl NodeQuestions {
    /// Where to ask, and where it is heard.
    #[must_use]
    pub fn channel() -> (Self, watch::Receiver<u64>) {
        let (sender, receiver) = watch::channel(0);
        (Self(sender), receiver)
    }

    /// Asks; the question's number.
    #[must_use]
    pub fn ask(&self) -> u64 {
        let mut number = 0;
        self.0.send_modify(|last| {
            *last += 1;
            number = *last;
        });
        number
    }
}

/// A source that has not delivered.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AwaitedSource {
    /// Its kind.
    pub source: PodSource,
    /// `staticPodURL http://…`: the setting and its value.
    pub name: String,
    /// What it said in an earlier life is here, and holds until it says another.
    pub remembered: bool,
}

impl AwaitedSource {
    /// One of which nothing is known.
    #[must_use]
    pub fn new(source: PodSource, name: impl Into<String>) -> Self {
        Self { source, name: name.into(), remembered: false }
    }
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
    /// What the API server had of its status, for API pods.
    pub remote: Option<Arc<RemoteStatus>>,
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
    /// What ran out, by upstream's word for an eviction's cause (`emptydirfs.limit`); `None` for what is no eviction.
    pub signal: Option<&'static str>,
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
    /// Services with an address, of all namespaces; only what pods are told of them.
    pub services: BTreeMap<FullName, Arc<Service>>,
    /// The runtime's name for each RuntimeClass, by the class's name.
    pub runtime_classes: BTreeMap<String, Arc<str>>,
    /// Tokens of service accounts that the API server issued to pods.
    pub tokens: BTreeMap<TokenKey, Arc<ServiceToken>>,
    /// What was found for each question after ClusterTrustBundles; nothing while the API server has not answered it.
    pub trust_bundles: BTreeMap<TrustQuery, Arc<TrustBundles>>,
    /// Certificates of pods, as far as they have been asked for.
    pub certificates: BTreeMap<CertificateKey, Arc<PodCertificate>>,
    /// PersistentVolumeClaims by namespace and name, as far as the API server has answered.
    pub claims: BTreeMap<FullName, Arc<Claim>>,
}

/// What is known of a PersistentVolumeClaim.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Claim {
    /// The UIDs of its owners: a pod, for the claim of an ephemeral volume.
    pub owners: Vec<String>,
    /// The PersistentVolume that it is bound to.
    pub volume: Option<ClaimedVolume>,
    /// Why there is none, or why only the pods that were given it still have it.
    pub problem: String,
}

/// A PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ClaimedVolume {
    /// Its name.
    pub name: String,
    /// What it is.
    pub spec: PersistentVolumeSpec,
    /// The group that the administrator says it belongs to (annotation `pv.beta.kubernetes.io/gid`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<i64>,
}

/// Which ClusterTrustBundles a volume shows; labels choose among those of a signer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum TrustQuery {
    /// The one of this name.
    Name(String),
    /// All of this signer.
    Signer(String),
}

/// ClusterTrustBundles by name.
pub type TrustBundles = BTreeMap<String, TrustBundle>;

/// What pods are shown of a ClusterTrustBundle.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TrustBundle {
    /// The object's labels.
    pub labels: BTreeMap<String, String>,
    /// Certificates in PEM.
    pub certificates: String,
}

/// By what a token of a service account is known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenKey {
    /// The pod that it is bound to.
    pub pod: PodUid,
    /// Whom it is for; empty for the API server.
    pub audience: String,
    /// How long it was asked to be good.
    pub expiration_seconds: i64,
}

/// A token of a service account.
#[derive(Clone, PartialEq, Eq)]
pub struct ServiceToken {
    /// The token itself. Never logged.
    pub token: String,
    /// Until when it is good.
    pub expires: Timestamp,
}

impl fmt::Debug for ServiceToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceToken(until {})", self.expires)
    }
}

/// By what a certificate of a pod is known: the source of a projected volume that shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct CertificateKey {
    /// The pod.
    pub pod: PodUid,
    /// The volume.
    pub volume: String,
    /// Its place among the volume's sources.
    pub source: usize,
}

/// What a pod wants of a certificate (`podCertificate`).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CertificateWish {
    /// Who is to sign it.
    pub signer: String,
    /// What kind of key it is for.
    pub key_type: String,
    /// How long it may be good at most; the API server decides if nothing is said.
    pub max_expiration_seconds: Option<i32>,
    /// What the signer is told besides.
    pub annotations: BTreeMap<String, String>,
}

/// What is known of a pod's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodCertificate {
    /// The newest that was issued.
    pub issued: Option<IssuedCertificate>,
    /// Why there is no newer one.
    pub problem: String,
}

/// A certificate that was issued to a pod, with its key.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct IssuedCertificate {
    /// The key in PEM (PKCS #8). Never logged.
    pub key: String,
    /// The certificate and those between it and its authority, in PEM.
    pub chain: String,
    /// When another is asked for.
    pub refresh_at: Timestamp,
    /// Until when it is good.
    pub expires: Timestamp,
}

impl fmt::Debug for IssuedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IssuedCertificate(until {})", self.expires)
    }
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
