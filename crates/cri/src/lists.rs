//! Both lists of the runtime, compared before they are decoded.
//!
//! Where a runtime sends no events everything is listed every second, and almost always nothing has changed. Most of what a
//! list costs its reader are the labels and annotations of each entry; ID and state are enough to see whether to look at them.

use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_cri::v1 as cri;
use prost::{Message, bytes::Bytes};
use tonic::Status;

use crate::raw;

/// All sandboxes and containers, as the runtime has written them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lists {
    pub(crate) sandboxes: Bytes,
    pub(crate) containers: Bytes,
}

/// The entries of `ListPodSandboxResponse`; prost passes over the rest.
#[derive(Clone, PartialEq, Message)]
struct SandboxStates {
    #[prost(message, repeated, tag = "1")]
    items: Vec<SandboxState>,
}

#[derive(Clone, PartialEq, Message)]
struct SandboxState {
    #[prost(bytes = "bytes", tag = "1")]
    id: Bytes,
    #[prost(int32, tag = "3")]
    state: i32,
}

/// The entries of `ListContainersResponse`.
#[derive(Clone, PartialEq, Message)]
struct ContainerStates {
    #[prost(message, repeated, tag = "1")]
    items: Vec<ContainerState>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerState {
    #[prost(bytes = "bytes", tag = "1")]
    id: Bytes,
    #[prost(int32, tag = "6")]
    state: i32,
}

impl Lists {
    /// The same for the same entries in the same states, in whichever order the runtime lists them; `None` if they cannot be
    /// understood.
    #[must_use]
    pub fn print(&self) -> Option<u64> {
        let sandboxes = SandboxStates::decode(self.sandboxes.clone()).ok()?;
        let containers = ContainerStates::decode(self.containers.clone()).ok()?;
        let sandboxes = sandboxes.items.iter().map(|item| hash(&(0, &item.id, item.state)));
        let containers = containers.items.iter().map(|item| hash(&(1, &item.id, item.state)));
        Some(sandboxes.chain(containers).fold(0, u64::wrapping_add))
    }

    /// The lists in full.
    pub(crate) fn decode(self) -> Result<(Vec<cri::PodSandbox>, Vec<cri::Container>), Status> {
        let sandboxes: cri::ListPodSandboxResponse = raw::decode(self.sandboxes)?;
        let containers: cri::ListContainersResponse = raw::decode(self.containers)?;
        Ok((sandboxes.items, containers.containers))
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(sandboxes: &[(&str, i32)], containers: &[(&str, i32)], label: &str) -> Lists {
        let labels = || [("io.kubernetes.pod.uid".to_owned(), label.to_owned())].into();
        let items = sandboxes.iter().map(|(id, state)| cri::PodSandbox {
            id: (*id).to_owned(),
            state: *state,
            labels: labels(),
            ..Default::default()
        });
        let sandboxes = cri::ListPodSandboxResponse { items: items.collect() };
        let items = containers.iter().map(|(id, state)| cri::Container {
            id: (*id).to_owned(),
            state: *state,
            labels: labels(),
            ..Default::default()
        });
        let containers = cri::ListContainersResponse { containers: items.collect() };
        Lists { sandboxes: sandboxes.encode_to_vec().into(), containers: containers.encode_to_vec().into() }
    }

    #[test]
    fn ids_and_states_tell_lists_apart_and_their_order_does_not() {
        let base = lists(&[("a", 0), ("b", 1)], &[("c", 1)], "x");
        assert!(base.print().is_some());
        assert_eq!(base.print(), lists(&[("b", 1), ("a", 0)], &[("c", 1)], "y").print());
        for other in [
            lists(&[("a", 1), ("b", 1)], &[("c", 1)], "x"),
            lists(&[("a", 0), ("b", 1)], &[("c", 2)], "x"),
            lists(&[("a", 0)], &[("c", 1)], "x"),
            lists(&[("a", 0), ("b", 1), ("c", 1)], &[], "x"),
            lists(&[("a", 0), ("b", 1)], &[("c", 1), ("d", 0)], "x"),
        ] {
            assert_ne!(base.print(), other.print(), "{other:?}");
        }
        let (sandboxes, containers) = base.decode().unwrap();
        assert_eq!((sandboxes.len(), containers[0].labels["io.kubernetes.pod.uid"].as_str()), (2, "x"));
        let broken = Lists { sandboxes: Bytes::from_static(b"\xff"), containers: Bytes::new() };
        assert_eq!(broken.print(), None);
        assert!(broken.decode().is_err());
    }
}
