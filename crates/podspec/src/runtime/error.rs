//! Why a pod cannot be turned into CRI messages.

use super::expand::{MAX_EXPANDED_BYTES, MAX_PROGRAM_BYTES};

/// Why a sandbox's or a container's configuration cannot be made. The texts are upstream's where it has one, because
/// people search for them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A ConfigMap that is not optional does not exist.
    #[error("configmap {name:?} not found")]
    ConfigMapNotFound {
        /// Its name.
        name: String,
    },
    /// A Secret that is not optional does not exist.
    #[error("secret {name:?} not found")]
    SecretNotFound {
        /// Its name.
        name: String,
    },
    /// A ConfigMap or Secret lacks a key that is not optional.
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    KeyNotFound {
        /// `ConfigMap` or `Secret`.
        kind: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The key.
        key: String,
    },
    /// A Secret's value is not text, so it cannot be an environment variable.
    #[error(
        "key {key} in Secret {namespace}/{name} is not UTF-8 text and cannot be an environment variable; mount the Secret as a volume instead"
    )]
    SecretNotText {
        /// The Secret's namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The key.
        key: String,
    },
    /// `$(VAR)` makes too much of a text.
    #[error(
        "{what} becomes longer than {MAX_EXPANDED_BYTES} bytes when $(VAR) is replaced, and Linux takes 128 KiB; refer to shorter variables, or give long texts in a file of a volume"
    )]
    TooLong {
        /// Which.
        what: String,
    },
    /// All of them together are too much.
    #[error(
        "environment, command or arguments of container {container:?} are longer than {MAX_PROGRAM_BYTES} bytes, and Linux starts no program with more than 6 MiB; give long texts in a file of a volume"
    )]
    TooMuch {
        /// The container.
        container: String,
    },
    /// A `fieldRef` of another API version.
    #[error("unsupported pod version: {0}")]
    FieldVersion(String),
    /// A `fieldRef` with a subscript where none is allowed.
    #[error("field label does not support subscript: {0}")]
    FieldSubscript(String),
    /// A `fieldRef` to something that is no pod field.
    #[error("field label not supported: {0}")]
    FieldLabel(String),
    /// A `fieldRef` to a pod field that cannot be had in this way.
    #[error("unsupported fieldPath: {0}")]
    FieldPath(String),
    /// The node's address is asked for and not known.
    #[error("host IP unknown; known addresses: []")]
    NoHostIp,
    /// A `resourceFieldRef` to something else than a resource.
    #[error("unsupported container resource : {0}")]
    ContainerResource(String),
    /// A `resourceFieldRef` to a container that the pod does not have.
    #[error("container {0} not found")]
    NoSuchContainer(String),
    /// A `fileKeyRef` into a volume that is not there.
    #[error("cannot find the volume {0:?} referenced by FileKeyRef")]
    EnvFileVolume(String),
    /// A `fileKeyRef` into a file that is not of the form `VAR='value'`.
    #[error("couldn't parse env file {path:?} of volume {volume:?}: {why}")]
    EnvFile {
        /// The volume.
        volume: String,
        /// The path in it.
        path: String,
        /// What is wrong, with the line.
        why: String,
    },
    /// A `fileKeyRef` to a key that the file does not have.
    #[error("environment variable key {key:?} not found in file {path:?}")]
    EnvFileKey {
        /// The path in the volume.
        path: String,
        /// The key.
        key: String,
    },
    /// runAsNonRoot with runAsUser 0.
    #[error("container's runAsUser breaks non-root policy (pod: {pod:?}, container: {container})")]
    RunAsUserIsRoot {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
    /// runAsNonRoot, and the image's user is root.
    #[error("container has runAsNonRoot and image will run as root (pod: {pod:?}, container: {container})")]
    ImageRunsAsRoot {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
    /// runAsNonRoot, and the image's user is a name.
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root (pod: {pod:?}, container: {container})"
    )]
    ImageUserNotNumeric {
        /// The image's user.
        user: String,
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
    /// runAsNonRoot, and the image's user is no user ID.
    #[error(
        "container has runAsNonRoot and image has an invalid user id ({uid}). (Must be 1-(2147483647)): must be between 0 and 2147483647, inclusive (pod: {pod:?}, container: {container})"
    )]
    ImageUserInvalid {
        /// The image's user.
        uid: i64,
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
    /// A capability that no kernel has.
    #[error(
        "unknown capability {0:?} in securityContext.capabilities; write a name of capabilities(7) without CAP_, such as NET_ADMIN"
    )]
    Capability(String),
    /// A seccomp profile of type Localhost without a file.
    #[error("localhostProfile must be set if seccompProfile type is Localhost.")]
    SeccompLocalhost,
    /// An AppArmor profile of type Localhost without a name.
    #[error("missing localhost apparmor profile name")]
    AppArmorLocalhost,
    /// An AppArmor profile of an unknown type.
    #[error("unknown apparmor profile type: {0:?}")]
    AppArmorType(String),
    /// Neither Merge nor Strict.
    #[error("unsupported supplementalGroupsPolicy: {0}")]
    GroupsPolicy(String),
    /// `hostUsers: false` without mappings: the runtime cannot do it.
    #[error("can't set `spec.hostUsers: false`, runtime does not support user namespaces")]
    UserNamespace,
    /// A host name that DNS does not allow.
    #[error("pod {field} {value:?} is not a valid DNS {form}: {why}")]
    HostName {
        /// `Hostname`, `HostnameOverride` or `Subdomain`.
        field: &'static str,
        /// Its value.
        value: String,
        /// `label` or `subdomain`.
        form: &'static str,
        /// What DNS wants.
        why: String,
    },
    /// A host name of nothing but dashes and dots.
    #[error("hostname for pod {pod:?} was invalid: {hostname:?}")]
    HostNameEmpty {
        /// The pod's name.
        pod: String,
        /// Its host name.
        hostname: String,
    },
    /// `setHostnameAsFQDN` with a name too long for the kernel.
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long (64 characters is the max, {length} characters requested)"
    )]
    FqdnTooLong {
        /// The name.
        fqdn: String,
        /// Its length.
        length: usize,
    },
}

impl SpecError {
    /// The waiting reason of a container that cannot be made for this. (A sandbox that cannot be made is told of by
    /// event `FailedCreatePodSandBox` instead.)
    #[must_use]
    pub fn reason(&self) -> &'static str {
        "CreateContainerConfigError"
    }
}
