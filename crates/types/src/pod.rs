//! Reading a `v1.Pod` without a chain of options at every place.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

/// Label keys that the runtime's objects carry.
pub mod labels {
    /// Pod name.
    pub const POD_NAME: &str = "io.kubernetes.pod.name";
    /// Pod namespace.
    pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    /// Pod UID.
    pub const POD_UID: &str = "io.kubernetes.pod.uid";

    /// The UID of the pod that a runtime's object belongs to. UID, name and namespace become names of directories and cgroups,
    /// which are removed one day: an object on which they could not be that (`..`, nothing, a slash) is nobody's pod.
    #[must_use]
    pub fn owner(of: &std::collections::HashMap<String, String>) -> Option<crate::PodUid> {
        let is_safe = |key: &str| {
            of.get(key).is_some_and(|text| {
                let at_the_ends = |byte: char| byte.is_ascii_alphanumeric();
                text.len() <= 253
                    && text.starts_with(at_the_ends)
                    && text.ends_with(at_the_ends)
                    && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
            })
        };
        let uid = of.get(POD_UID)?;
        [POD_UID, POD_NAME, POD_NAMESPACE].into_iter().all(is_safe).then(|| uid.as_str().into())
    }
    /// Container name.
    pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
}

/// Annotation keys that pods and the runtime's objects carry.
pub mod annotations {
    /// `file`, `http` or `api`.
    pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
    /// When the pod was first seen.
    pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
    /// A static pod's UID.
    pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
    /// On a mirror pod: the static pod's `config.hash`.
    pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
    /// Container hash.
    pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
    /// Restart count.
    pub const CONTAINER_RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    /// Termination message path.
    pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    /// Termination message policy.
    pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    /// Grace period of a pod that was being deleted when the container was made.
    pub const POD_DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
    /// Grace period of the pod's spec.
    pub const POD_TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
    /// The preStop hook as JSON.
    pub const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
    /// The container's ports as JSON.
    pub const PORTS: &str = "io.kubernetes.container.ports";
}

/// Which of a pod's lists a container stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContainerKind {
    /// `spec.initContainers` without a restart policy of `Always`.
    Init,
    /// `spec.initContainers` with `restartPolicy: Always`.
    Sidecar,
    /// `spec.containers`.
    Regular,
    /// `spec.ephemeralContainers`.
    Ephemeral,
}

impl ContainerKind {
    /// As metrics label it.
    #[must_use]
    pub const fn metric_label(self) -> &'static str {
        match self {
            Self::Init | Self::Sidecar => "init_container",
            Self::Regular => "container",
            Self::Ephemeral => "ephemeral_container",
        }
    }

    /// `spec.containers{web}`: how events name the container.
    #[must_use]
    pub fn field_path(self, name: &str) -> String {
        match self {
            Self::Init | Self::Sidecar => format!("spec.initContainers{{{name}}}"),
            Self::Regular => format!("spec.containers{{{name}}}"),
            Self::Ephemeral => format!("spec.ephemeralContainers{{{name}}}"),
        }
    }
}

/// Short ways into a pod.
pub trait PodExt {
    /// The spec; pods in `DesiredState` always have one.
    fn spec_ref(&self) -> &PodSpec;
    /// Name, or empty.
    fn name_ref(&self) -> &str;
    /// Namespace, or empty.
    fn namespace_ref(&self) -> &str;
    /// UID, or empty.
    fn uid_ref(&self) -> &str;
    /// `restartPolicy`, defaulted.
    fn restart_policy(&self) -> &str;
    /// Annotation value.
    fn annotation(&self, key: &str) -> Option<&str>;
    /// Uses the host's network.
    fn host_network(&self) -> bool;
    /// `terminationGracePeriodSeconds`, defaulted.
    fn grace_seconds(&self) -> i64;
    /// Init, sidecar and regular containers in start order. Ephemeral containers have a type of their own.
    fn all_containers(&self) -> impl Iterator<Item = (ContainerKind, &Container)>;
    /// Finds a container of any list but the ephemeral ones.
    fn container(&self, name: &str) -> Option<(ContainerKind, &Container)> {
        self.all_containers().find(|(_, container)| container.name == name)
    }
    /// Annotations, empty if there are none.
    fn annotations_map(&self) -> &BTreeMap<String, String>;
}

static NO_STRINGS: BTreeMap<String, String> = BTreeMap::new();
static NO_SPEC: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);

impl PodExt for Pod {
    fn spec_ref(&self) -> &PodSpec {
        self.spec.as_ref().unwrap_or(&NO_SPEC)
    }

    fn name_ref(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    fn namespace_ref(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    fn uid_ref(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    fn restart_policy(&self) -> &str {
        self.spec_ref().restart_policy.as_deref().unwrap_or("Always")
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations_map().get(key).map(String::as_str)
    }

    fn host_network(&self) -> bool {
        self.spec_ref().host_network.unwrap_or(false)
    }

    fn grace_seconds(&self) -> i64 {
        self.spec_ref().termination_grace_period_seconds.unwrap_or(30)
    }

    fn all_containers(&self) -> impl Iterator<Item = (ContainerKind, &Container)> {
        let spec = self.spec_ref();
        let init = spec.init_containers.iter().flatten().map(|container| {
            let sidecar = container.restart_policy.as_deref() == Some("Always");
            (if sidecar { ContainerKind::Sidecar } else { ContainerKind::Init }, container)
        });
        init.chain(spec.containers.iter().map(|container| (ContainerKind::Regular, container)))
    }

    fn annotations_map(&self) -> &BTreeMap<String, String> {
        self.metadata.annotations.as_ref().unwrap_or(&NO_STRINGS)
    }
}

#[cfg(test)]
mod tests {
    use super::labels;

    #[test]
    fn labels_that_could_not_be_directories_make_nobody_a_pod() {
        let owner = |uid: &str, name: &str| {
            let labels = [(labels::POD_UID, uid), (labels::POD_NAME, name), (labels::POD_NAMESPACE, "ns")];
            labels::owner(&labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into())
        };
        assert_eq!(owner("3f1c2a5e-0000", "web.a-node"), Some("3f1c2a5e-0000".into()));
        for bad in ["", ".", "..", "../pki", "a/b", "-a", "a\0b", &"a".repeat(254)] {
            assert_eq!(owner(bad, "web"), None, "{bad:?}");
            assert_eq!(owner("uid", bad), None, "{bad:?}");
        }
        assert_eq!(labels::owner(&[(labels::POD_UID.to_owned(), "uid".to_owned())].into()), None);
    }
}
