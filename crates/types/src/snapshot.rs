//! The one answer to "which pods exist": what every server reads.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeCondition, NodeStatus, Pod, PodStatus};

use crate::{DesiredState, FullName, NodeResources, ObservedPod, ObservedState, PodSource, PodStage, PodUid};

/// The node at one moment: immutable, numbered, complete.
#[derive(Debug)]
pub struct NodeSnapshot {
    /// Counts up with every published change.
    pub generation: u64,
    /// The node's name.
    pub node_name: Arc<str>,
    /// All pods, sorted by namespace and name.
    pub pods: Vec<Arc<PodView>>,
    /// What the pods were made from.
    pub desired: Arc<DesiredState>,
    /// What the runtime showed.
    pub observed: Arc<ObservedState>,
    /// What the node has.
    pub resources: Arc<NodeResources>,
    /// What is to be said of the node itself.
    pub conditions: Arc<[NodeCondition]>,
    /// The Node object; `None` where nobody makes one.
    pub node: Option<Arc<NodeView>>,
    pod_list: OnceLock<Bytes>,
}

/// One pod as clients see it.
#[derive(Debug)]
pub struct PodView {
    /// Its UID.
    pub uid: PodUid,
    /// Namespace and name.
    pub full_name: FullName,
    /// The pod; of its status [`Self::status`] tells.
    pub pod: Arc<Pod>,
    /// Its status.
    pub status: Arc<PodStatus>,
    /// The pod with its status as JSON, made once.
    pub json: Bytes,
    /// What the runtime showed of it.
    pub observed: Option<Arc<ObservedPod>>,
    /// The file or URL it came from.
    pub origin: Arc<str>,
    /// What kind of source that is.
    pub source: PodSource,
    /// How far it is.
    pub stage: PodStage,
}

/// The node as clients see it.
#[derive(Debug)]
pub struct NodeView {
    /// The generation of the snapshot in which it was new.
    pub version: u64,
    /// The object.
    pub node: Arc<Node>,
    /// The same as JSON, with `kind`, `apiVersion` and a final newline, made once.
    pub json: Bytes,
    /// What of it is not the node's own word.
    pub others: OthersWord,
}

/// What in a Node's status others say, by way of the API server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OthersWord {
    /// Types of conditions.
    pub conditions: BTreeSet<String>,
    /// Resources that somebody advertises for the node.
    pub resources: BTreeSet<String>,
    /// The node's own addresses, where a cloud's are shown.
    pub own_addresses: Option<Vec<NodeAddress>>,
}

impl NodeView {
    /// The status without what others say.
    #[must_use]
    pub fn own_status(&self) -> NodeStatus {
        let mut status = self.node.status.clone().unwrap_or_default();
        status.volumes_attached = None;
        status
            .conditions
            .iter_mut()
            .for_each(|all| all.retain(|it| !self.others.conditions.contains(&it.type_)));
        for amounts in [&mut status.capacity, &mut status.allocatable].into_iter().flatten() {
            amounts.retain(|name, _| !self.others.resources.contains(name));
        }
        if let Some(own) = &self.others.own_addresses {
            status.addresses = Some(own.clone());
        }
        status
    }
}

impl NodeSnapshot {
    /// Puts a snapshot together. `pods` are sorted here.
    #[must_use]
    pub fn new(
        generation: u64,
        node_name: Arc<str>,
        mut pods: Vec<Arc<PodView>>,
        desired: Arc<DesiredState>,
        observed: Arc<ObservedState>,
    ) -> Self {
        pods.sort_by(|a, b| (&a.full_name, &a.uid).cmp(&(&b.full_name, &b.uid)));
        Self {
            generation,
            node_name,
            pods,
            desired,
            observed,
            resources: Arc::default(),
            conditions: Arc::default(),
            node: None,
            pod_list: OnceLock::new(),
        }
    }

    /// The same with what the node has.
    #[must_use]
    pub fn with_resources(mut self, resources: Arc<NodeResources>) -> Self {
        self.resources = resources;
        self
    }

    /// The same with what is to be said of the node itself.
    #[must_use]
    pub fn with_conditions(mut self, conditions: Arc<[NodeCondition]>) -> Self {
        self.conditions = conditions;
        self
    }

    /// The same with the Node object.
    #[must_use]
    pub fn with_node(mut self, node: Option<Arc<NodeView>>) -> Self {
        self.node = node;
        self
    }

    /// Finds a pod by namespace and name; while one replaces another, the one that is not being deleted.
    #[must_use]
    pub fn by_name(&self, full_name: &FullName) -> Option<&Arc<PodView>> {
        let mut found = self.pods.iter().filter(|view| view.full_name == *full_name);
        let first = found.next()?;
        Some(
            std::iter::once(first)
                .chain(found)
                .find(|view| view.pod.metadata.deletion_timestamp.is_none())
                .unwrap_or(first),
        )
    }

    /// Finds a pod by UID.
    #[must_use]
    pub fn by_uid(&self, uid: &str) -> Option<&Arc<PodView>> {
        self.pods.iter().find(|view| view.uid.as_str() == uid)
    }

    /// The whole `PodList` as JSON with a final newline, joined from the pods' bytes the first time it is asked for.
    pub fn pod_list_json(&self) -> Bytes {
        self.pod_list
            .get_or_init(|| {
                const HEAD: &[u8] = br#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":"#;
                let size = self.pods.iter().map(|view| view.json.len() + 1).sum::<usize>();
                let mut list = Vec::with_capacity(HEAD.len() + size + 8);
                list.extend_from_slice(HEAD);
                if self.pods.is_empty() {
                    // Upstream encodes an empty list as null, and clients have seen nothing else.
                    list.extend_from_slice(b"null");
                } else {
                    for (i, view) in self.pods.iter().enumerate() {
                        list.push(if i == 0 { b'[' } else { b',' });
                        list.extend_from_slice(&view.json);
                    }
                    list.push(b']');
                }
                list.extend_from_slice(b"}\n");
                list.into()
            })
            .clone()
    }

    /// UIDs of all pods in this snapshot.
    #[must_use]
    pub fn uids(&self) -> HashMap<&str, &Arc<PodView>> {
        self.pods.iter().map(|view| (view.uid.as_str(), view)).collect()
    }
}

/// One line of the event store: equal events are counted, not repeated.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventRecord {
    /// Counts up; a watcher asks for what came after the last one it saw.
    pub sequence: u64,
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Upstream's reason.
    pub reason: String,
    /// The text for people.
    pub message: String,
    /// `Pod` or `Node`.
    pub object_kind: String,
    /// Namespace, empty for the node.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID, empty for the node.
    pub uid: String,
    /// `spec.containers{web}`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub field_path: Option<String>,
    /// How often.
    pub count: u32,
    /// First time.
    pub first_timestamp: Timestamp,
    /// Last time.
    pub last_timestamp: Timestamp,
}
