//! Making the Node object, or taking up the one that is there.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{Node, NodeSpec, Taint},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use mainstay_apiserver::{ApiError, Client, Patch, Scope};
use mainstay_snapshot::SnapshotReader;
use mainstay_task::Backoff;
use mainstay_types::{ApiPods, Barriers, NodeSnapshot};
use serde_json::json;
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::UplinkConfig;

/// Upstream's.
const RETRY: Backoff = Backoff::doubling(Duration::from_millis(100), Duration::from_secs(7)).with_jitter(0.2);
/// Whoever makes the node's volumes attached: the controller, as everywhere.
const ATTACH_BY_CONTROLLER: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// Labels that say what the node is, and not what it is for: these are set right on an object that is there already.
const FACTS: [&str; 5] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// What the lifecycle controller of the cluster says by taints it takes from the Node's conditions, and says anew of another object.
const BY_CONDITIONS: [&str; 6] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/pid-pressure",
    "node.kubernetes.io/network-unavailable",
];
/// Who is told that the object is not there may be told sooner than those who watch it, who also know what it was.
const WATCHES_LAG: Duration = Duration::from_secs(2);

/// Registers the node as soon as it can be said how it is, and again whenever its object was deleted: those who watch it say so, or
/// `missing`, which names the object (by UID) to which a status could not be told because it was not there.
pub(crate) async fn run(
    config: Arc<UplinkConfig>,
    mut snapshots: SnapshotReader,
    mut api: watch::Receiver<ApiPods>,
    registered: watch::Sender<Option<Arc<Node>>>,
    mut missing: watch::Receiver<Option<String>>,
) {
    let mut attempts = RETRY.attempts();
    let mut told = None;
    let mut before: Option<Arc<Barriers>> = None;
    let mut losses = api.borrow_and_update().node_losses;
    loop {
        let known = |snapshot: &Option<Arc<NodeSnapshot>>| {
            snapshot.as_ref().is_some_and(|snapshot| snapshot.node.is_some())
        };
        let node = match snapshots.wait_for(known).await {
            Ok(snapshot) => snapshot.as_ref().and_then(|snapshot| own(snapshot)),
            // Nobody makes snapshots any more: mainstay ends.
            Err(_) => return,
        };
        let Some(node) = node else { continue };
        match register(&config, &node, before.as_deref()).await {
            Ok(Some(node)) => {
                let uid = node.metadata.uid.clone().unwrap_or_default();
                info!(node = %config.node_name, uid, server = config.client.server(), "the node is registered");
                let barriers = Arc::new(Barriers::of(&node));
                registered.send_replace(Some(Arc::new(node)));
                attempts.succeeded();
                told = None;
                // Upstream's kubelet would have to be restarted; a node that runs is a node. One that was closed to pods stays
                // so: who drains a machine and takes it out of the cluster does not want it filled again until it is off.
                let Some(now) = lost(&mut api, losses, &mut missing, &uid).await else { return };
                losses = now;
                let seen = api.borrow().barriers.clone();
                before = Some(seen.unwrap_or(barriers));
                warn!(node = %config.node_name, "the Node object was deleted; it is made again");
                continue;
            }
            Ok(None) => {
                if told.replace(String::new()).is_none() {
                    warn!(
                        node = %config.node_name,
                        "there is no Node object, and registerNode is false: somebody has to make one"
                    );
                }
            }
            Err(error) => {
                let text = explain(&config, &error);
                if told.as_ref() != Some(&text) {
                    error!("{text}");
                    told = Some(text);
                }
            }
        }
        tokio::time::sleep(attempts.failed()).await;
    }
}

/// Waits until the object of that UID is gone; how many losses those who watch have seen by then. `None` when mainstay ends.
async fn lost(
    api: &mut watch::Receiver<ApiPods>,
    losses: u64,
    missing: &mut watch::Receiver<Option<String>>,
    uid: &str,
) -> Option<u64> {
    // Cancel safe: both only wait.
    tokio::select! {
        seen = api.wait_for(|api| api.node_losses != losses) => return seen.ok().map(|api| api.node_losses),
        told = missing.wait_for(|missing| missing.as_deref() == Some(uid)) => drop(told.ok()?),
    }
    let seen = api.wait_for(|api| api.node_losses != losses);
    // If they have not: they did not know that there was one, and will not miss it.
    let seen = tokio::time::timeout(WATCHES_LAG, seen).await;
    Some(seen.ok().and_then(Result::ok).map_or(losses, |api| api.node_losses))
}

/// The node by its own word, whatever the API server had of it before.
fn own(snapshot: &NodeSnapshot) -> Option<Node> {
    let view = snapshot.node.as_ref()?;
    let node = &view.node;
    Some(Node {
        metadata: ObjectMeta {
            name: Some(snapshot.node_name.to_string()),
            labels: Some(snapshot.resources.labels.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: node.spec.as_ref().and_then(|spec| spec.provider_id.clone()),
            ..NodeSpec::default()
        }),
        status: Some(view.own_status()),
    })
}

fn explain(config: &UplinkConfig, error: &ApiError) -> String {
    let name = &config.node_name;
    match error.status() {
        Some(403) => format!(
            "cannot register the node {name}: {error}; the user of the kubeconfig must be system:node:{name} in the group \
             system:nodes: is the name another machine's? Give the right kubeconfig, or another --hostname-override"
        ),
        Some(422) => format!("cannot register the node {name}: {error}; correct its labels, taints or name"),
        _ => format!("cannot register the node {name}: {error}; it is tried again"),
    }
}

/// The object as the API server has it afterwards; `None` when there is none and none is to be made.
async fn register(
    config: &UplinkConfig,
    node: &Node,
    before: Option<&Barriers>,
) -> Result<Option<Node>, ApiError> {
    let client = config.heartbeat_client();
    match client.get::<Node>(Scope::Cluster, &config.node_name).await {
        Ok(existing) => return take_up(&client, config, node, existing).await.map(Some),
        Err(error) if error.status() == Some(404) => {}
        Err(error) => return Err(error),
    }
    if !config.register {
        return Ok(None);
    }
    match client.create(Scope::Cluster, &first(config, node, before)).await {
        Ok(node) => Ok(Some(node)),
        Err(error) if error.status() == Some(409) => {
            let existing = client.get::<Node>(Scope::Cluster, &config.node_name).await?;
            take_up(&client, config, node, existing).await.map(Some)
        }
        Err(error) => Err(error),
    }
}

/// The object to be made: with the taints that it is configured to have, or with what kept pods from it before.
fn first(config: &UplinkConfig, node: &Node, before: Option<&Barriers>) -> Node {
    let mut node = node.clone();
    node.metadata.annotations.get_or_insert_default().extend(annotations(config));
    let mut taints = match before {
        Some(before) => before.taints.clone(),
        None => config.taints.clone(),
    };
    taints.retain(|taint| !(BY_CONDITIONS.contains(&taint.key.as_str()) && before.is_some()));
    if config.external_cloud && !taints.iter().any(|taint| taint.key == UNINITIALIZED) {
        taints.push(Taint {
            key: UNINITIALIZED.to_owned(),
            value: Some("true".to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        });
    }
    let spec = node.spec.get_or_insert_default();
    spec.unschedulable = before.map(|before| before.unschedulable).filter(|closed| *closed);
    spec.taints = (!taints.is_empty()).then_some(taints);
    node
}

fn annotations(config: &UplinkConfig) -> BTreeMap<String, String> {
    let provided = config.node_ip.clone().filter(|_| config.external_cloud);
    let provided = provided.map(|ip| (PROVIDED_NODE_IP.to_owned(), ip));
    [(ATTACH_BY_CONTROLLER.to_owned(), "true".to_owned())].into_iter().chain(provided).collect()
}

/// Sets right what says how the node is; labels, annotations and taints of others stay.
async fn take_up(
    client: &Client,
    config: &UplinkConfig,
    node: &Node,
    existing: Node,
) -> Result<Node, ApiError> {
    let info = |node: &Node| {
        let info = node.status.as_ref()?.node_info.as_ref()?;
        Some((info.machine_id.clone(), info.system_uuid.clone()))
    };
    if let (Some(was), Some(is)) = (info(&existing), info(node))
        && was != is
        && !(was.0.is_empty() && was.1.is_empty())
    {
        warn!(
            node = %config.node_name, ?was, ?is,
            "the Node object was another machine's (machine ID and system UUID differ); if that one still runs, give one of \
             them another --hostname-override"
        );
    }
    match corrections(config, node, &existing) {
        None => Ok(existing),
        Some(patch) => {
            client.patch(Scope::Cluster, (&config.node_name, None), &Patch::Strategic(patch)).await
        }
    }
}

/// The difference that is to be made; `None` if there is none.
fn corrections(config: &UplinkConfig, node: &Node, existing: &Node) -> Option<serde_json::Value> {
    let empty = BTreeMap::new();
    let missing = |wanted: BTreeMap<String, String>, there: Option<&BTreeMap<String, String>>| {
        let there = there.unwrap_or(&empty);
        wanted.into_iter().filter(|(key, value)| there.get(key) != Some(value)).collect::<BTreeMap<_, _>>()
    };
    let facts = node.metadata.labels.iter().flatten().filter(|(key, _)| FACTS.contains(&key.as_str()));
    let facts = facts.map(|(key, value)| (key.clone(), value.clone())).collect();
    let labels = missing(facts, existing.metadata.labels.as_ref());
    let wanted = annotations(config);
    // An address that was given once and is not any more would be taken for this node's by a cloud's controller.
    let withdrawn = existing.metadata.annotations.iter().flatten().map(|(key, _)| key);
    let withdrawn = withdrawn.filter(|key| *key == PROVIDED_NODE_IP && !wanted.contains_key(*key)).cloned();
    let withdrawn: Vec<String> = withdrawn.collect();
    let annotations: BTreeMap<String, Option<String>> =
        missing(wanted, existing.metadata.annotations.as_ref())
            .into_iter()
            .map(|(key, value)| (key, Some(value)))
            .chain(withdrawn.into_iter().map(|key| (key, None)))
            .collect();
    let provider = |node: &Node| node.spec.as_ref().and_then(|spec| spec.provider_id.clone());
    // It can be given once and never changed.
    let provider = provider(node).filter(|_| provider(existing).is_none_or(|id| id.is_empty()));
    if labels.is_empty() && annotations.is_empty() && provider.is_none() {
        return None;
    }
    let mut patch = json!({ "metadata": { "labels": labels, "annotations": annotations } });
    if let Some(provider) = provider {
        patch["spec"] = json!({ "providerID": provider });
    }
    Some(patch)
}

#[cfg(test)]
mod tests;
