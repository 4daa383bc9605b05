//! Why a volume cannot be described.

use crate::runtime::SpecError;

/// Why a volume, or a mount of it, cannot be made as the pod wants it. Upstream's words where it has some, then the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeSpecError {
    /// A ConfigMap or Secret that is not optional does not exist.
    #[error(
        "{kind} {name:?} not found in namespace {namespace:?}; create it (without an API server: put its manifest beside the pod's), or set optional: true"
    )]
    NotFound {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// It lacks a key that is not optional.
    #[error(
        "{kind} {name:?} references non-existent {what} key: {key}; add the key, or remove it from items, or set optional: true"
    )]
    NoSuchKey {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// `config` or `secret`.
        what: &'static str,
        /// The object's name.
        name: String,
        /// The key.
        key: String,
    },
    /// A key or an item's path is no path for a file in the volume.
    #[error("the path {path:?} of {what} cannot be a file in a volume: it {why}; use another key or path")]
    Path {
        /// Where it comes from.
        what: String,
        /// The path.
        path: String,
        /// What is wrong.
        why: &'static str,
    },
    /// One path is a file and a directory at once.
    #[error(
        "the path {path:?} is a file and also the directory of another file; change the path of one of them"
    )]
    FileAndDirectory {
        /// The path.
        path: String,
    },
    /// A ConfigMap or Secret with too much in it.
    #[error("{kind} {name:?} holds {bytes} bytes, more than the {max} that are allowed; split it")]
    TooLarge {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its name.
        name: String,
        /// How much is in it.
        bytes: usize,
        /// The most there may be.
        max: usize,
    },
    /// What is made for a volume is too much.
    #[error(
        "with {what} the volume holds more than {max} bytes that are made for it; show less, or in several volumes"
    )]
    TooMuchMade {
        /// The last that was made.
        what: String,
        /// The most there may be.
        max: usize,
    },
    /// A field or resource of the downward API.
    #[error("{0}")]
    Downward(#[from] SpecError),
    /// The API server has not issued a token yet.
    #[error(
        "no token for the service account {account:?} yet; it is asked for again: does the account exist?"
    )]
    NoToken {
        /// The account.
        account: String,
    },
    /// Nothing is known of ClusterTrustBundles.
    #[error(
        "the API server has not given {what} yet; it is asked again: does it serve certificates.k8s.io/v1 (Kubernetes 1.37 or newer)?"
    )]
    NoTrustYet {
        /// Which are wanted.
        what: String,
    },
    /// A ClusterTrustBundle that is not optional does not exist.
    #[error("clustertrustbundle {name:?} not found; create it, or set optional: true")]
    NoTrustBundle {
        /// Its name.
        name: String,
    },
    /// No ClusterTrustBundle is as wanted, and that is not optional.
    #[error(
        "combination of signerName and labelSelector matched zero ClusterTrustBundles (signer {signer:?}); create or label one, or set optional: true"
    )]
    NoTrustMatch {
        /// The signer.
        signer: String,
    },
    /// A ClusterTrustBundle does not hold certificates.
    #[error("clustertrustbundle {name:?} holds what is no certificate in PEM; mend its spec.trustBundle")]
    BadTrustBundle {
        /// Its name.
        name: String,
    },
    /// A clusterTrustBundle source without a word about which.
    #[error("the clusterTrustBundle source names neither a bundle nor a signer; set name or signerName")]
    WhichTrustBundle,
    /// There is no certificate for the pod.
    #[error("no certificate of signer {signer:?}: {problem}")]
    NoCertificate {
        /// Who is to sign it.
        signer: String,
        /// Why there is none.
        problem: String,
    },
    /// A label selector that cannot be understood.
    #[error("labelSelector: {operator:?} is no operator; use In, NotIn, Exists or DoesNotExist")]
    SelectorOperator {
        /// The operator.
        operator: String,
    },
    /// The API server has not been heard of a claim.
    #[error("nothing is known of persistentvolumeclaim {name:?} yet; the API server is asked again")]
    NoClaimYet {
        /// The claim.
        name: String,
    },
    /// A claim that has no volume.
    #[error("persistentvolumeclaim {name:?} {problem}")]
    ClaimUnbound {
        /// The claim.
        name: String,
        /// What is with it.
        problem: String,
    },
    /// The claim of an ephemeral volume is somebody else's.
    #[error(
        "persistentvolumeclaim {name:?} was not created for this pod (pod is not owner); remove it, or rename the pod or the volume"
    )]
    ClaimOfAnother {
        /// The claim.
        name: String,
    },
    /// A volume without a file system.
    #[error(
        "persistentvolume {volume:?} is a block device (volumeMode: Block), which this version does not map into containers; use volumeMode: Filesystem"
    )]
    BlockVolume {
        /// The PersistentVolume.
        volume: String,
    },
    /// A PersistentVolume of a kind that cannot be mounted.
    #[error(
        "persistentvolume {volume:?} is of type {source_kind}, which this version does not mount; local, hostPath and nfs it does"
    )]
    VolumeKind {
        /// The PersistentVolume.
        volume: String,
        /// Its type.
        source_kind: &'static str,
    },
    /// A kind of volume that this version does not know.
    #[error("volumes of type {source_kind} are not supported by this version; use another type")]
    Unsupported {
        /// Its name in the API.
        source_kind: &'static str,
    },
    /// A volume that says nothing about itself.
    #[error("the volume has no source; name one, such as emptyDir: {{}}")]
    NoSource,
    /// An emptyDir on a medium that does not exist.
    #[error("unknown storage medium {medium:?}; use \"\", Memory, HugePages or HugePages-<size>")]
    Medium {
        /// The medium.
        medium: String,
    },
    /// HugePages without one certain page size.
    #[error(
        "medium {medium}: {why}; name the size (HugePages-2Mi), and let a container request hugepages of it"
    )]
    HugePages {
        /// The medium.
        medium: String,
        /// What is unclear.
        why: &'static str,
    },
    /// A host path with a step upwards.
    #[error("the host path {path:?} must not contain '..'; write the path out")]
    HostPathBackstep {
        /// The path.
        path: String,
    },
    /// A mount of a volume that the pod does not have.
    #[error("container {container}: there is no volume {volume:?}; add it to spec.volumes")]
    NoSuchVolume {
        /// The container.
        container: String,
        /// The volume.
        volume: String,
    },
    /// A subPathExpr that refers to a variable that is missing or empty.
    #[error(
        "failed to expand subPathExpr {expression:?} of mount {mount_path:?}: variable {variable:?} is missing or empty in the container's environment"
    )]
    SubPathVariable {
        /// The expression.
        expression: String,
        /// Where it is mounted.
        mount_path: String,
        /// The variable.
        variable: String,
    },
    /// A subPathExpr that becomes no path.
    #[error(
        "subPathExpr {expression:?} of mount {mount_path:?} becomes longer than the 4096 bytes of a path; refer to shorter variables"
    )]
    SubPathTooLong {
        /// How the expression begins.
        expression: String,
        /// Where it is mounted.
        mount_path: String,
    },
    /// A sub path that leads out of the volume.
    #[error("subPath {path:?} of mount {mount_path:?} must be relative and must not contain '..'")]
    SubPath {
        /// The path.
        path: String,
        /// Where it is mounted.
        mount_path: String,
    },
    /// Recursive read-only is a must and the runtime cannot.
    #[error(
        "mount {mount_path:?}: recursive read-only mount requested, but the container runtime cannot do it; use recursiveReadOnly: IfPossible, or a newer runtime and kernel (5.12)"
    )]
    RecursiveReadOnly {
        /// Where it is mounted.
        mount_path: String,
    },
    /// Recursive read-only on a mount that is not read-only or propagates.
    #[error(
        "mount {mount_path:?}: recursiveReadOnly needs readOnly: true and no mountPropagation; change one of them"
    )]
    RecursiveReadOnlyCombination {
        /// Where it is mounted.
        mount_path: String,
    },
    /// Image volumes, and the runtime cannot.
    #[error(
        "volume {volume:?}: {runtime} cannot mount images; use containerd 2.1 or CRI-O 1.31 or newer, or copy the files with an init container"
    )]
    ImageVolumes {
        /// The volume.
        volume: String,
        /// The runtime and its version.
        runtime: String,
    },
    /// A sub path of an image volume, and the runtime cannot.
    #[error(
        "volume {volume:?}: {runtime} cannot mount a subPath of an image; use containerd 2.2 or CRI-O 1.33 or newer, or mount the whole image"
    )]
    ImageSubPath {
        /// The volume.
        volume: String,
        /// The runtime and its version.
        runtime: String,
    },
    /// Mount options that cannot be passed on.
    #[error("mount {mount_path:?}: bindMountOptions are not supported by this version; remove them")]
    BindMountOptions {
        /// Where it is mounted.
        mount_path: String,
    },
}
