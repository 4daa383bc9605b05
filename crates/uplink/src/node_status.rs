//! The Node's status: sent when it changed, when others have said otherwise meanwhile, and from time to time to say that it did not.
//!
//! A controller that does not hear of the node says that nothing is known of it, and has its pods sent away after some minutes. It goes by the
//! Lease, and takes nothing back when it hears of the node again: that is for the node to do, as soon as it sees what was said.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, NodeCondition, NodeStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use mainstay_apiserver::{Patch, Scope};
use mainstay_lifecycle::node_digest;
use mainstay_snapshot::SnapshotReader;
use mainstay_task::{Backoff, random_unit};
use mainstay_types::{ApiNode, ApiPods, NodeView, to_seconds};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::warn;

use crate::{RegisteredNode, UplinkConfig, registered};

const RETRY: Backoff =
    Backoff::doubling(Duration::from_millis(500), Duration::from_secs(10)).with_jitter(0.2);

/// Tells the API server how the node is, for ever; and `missing`, by its UID, that the object is not there to be told.
pub(crate) async fn run(
    config: Arc<UplinkConfig>,
    mut snapshots: SnapshotReader,
    mut api: watch::Receiver<ApiPods>,
    mut node: RegisteredNode,
    missing: watch::Sender<Option<String>>,
) {
    let mut object = registered(&mut node).await;
    // What the object had when it was registered has been set right. Once: what comes later is somebody's word.
    let mut set_right = false;
    let mut heard = Heard::default();
    // Others who keep saying otherwise are answered so often.
    let mut may_repair = Instant::now();
    let client = config.heartbeat_client();
    let mut sent: Option<NodeStatus> = None;
    let mut rewinds = 0;
    let mut looked_at: Option<Arc<NodeView>> = None;
    let mut due = Instant::now();
    let mut look_at = Instant::now();
    let mut attempts = RETRY.attempts();
    let mut warned = false;
    node.mark_unchanged();
    loop {
        if let Ok(true) = node.has_changed() {
            // Another object, which has nothing of what was told.
            node.mark_unchanged();
            object = registered(&mut node).await;
            (sent, set_right) = (None, false);
            due = Instant::now();
        }
        let view = snapshots.borrow_and_update().as_ref().and_then(|snapshot| snapshot.node.clone());
        let (there, rewinds_now) = {
            let pods = api.borrow_and_update();
            (pods.node, pods.rewinds)
        };
        let now = Instant::now();
        if std::mem::replace(&mut rewinds, rewinds_now) != rewinds_now {
            // The API server was put back to what it had before: what it answered since says nothing of what it has.
            (sent, heard, due) = (None, Heard::default(), now);
        }
        let overruled = sent.is_some() && heard.is_overruled_by(there);
        if overruled && now >= may_repair {
            sent = None;
            due = now;
        }
        if let Some(view) = view
            && (now >= due || is_news(looked_at.as_ref(), &view, now >= look_at))
        {
            let status = view.own_status();
            let changed = sent.as_ref().is_none_or(|sent| !same(sent, &status));
            if changed || now >= due {
                let with_addresses = !config.external_cloud || there.version > 0 && !there.has_addresses;
                let stale =
                    if set_right { Vec::new() } else { stale(&object, config.offers_are_new, &status) };
                let patch = patch(with_addresses, &status, &stale, Timestamp::now());
                let told = client
                    .patch::<Node>(
                        Scope::Cluster,
                        (&config.node_name, Some("status")),
                        &Patch::Strategic(patch),
                    )
                    .await;
                match told {
                    Ok(answer) => {
                        heard = Heard::of(&answer);
                        may_repair = Instant::now() + config.status_update_frequency;
                        attempts.succeeded();
                        (warned, set_right) = (false, true);
                        sent = Some(status);
                        // Spread, so that the nodes of a cluster that changed together do not report together for ever.
                        let spread = if changed { 0.5 + random_unit() } else { 1.0 };
                        due = Instant::now() + config.status_report_frequency.mul_f64(spread);
                    }
                    Err(error) => {
                        if error.status() == Some(404) {
                            missing.send_replace(object.metadata.uid.clone());
                        }
                        if !std::mem::replace(&mut warned, true) {
                            warn!(%error, "cannot tell the API server how the node is; it is tried again");
                        }
                        due = Instant::now() + attempts.failed();
                        // Cancel safe: both only wait. Another object is told at once.
                        tokio::select! {
                            () = sleep_until(due) => {}
                            Ok(()) = node.changed() => node.mark_changed(),
                        }
                        continue;
                    }
                }
            }
            looked_at = Some(view);
            look_at = Instant::now() + config.status_update_frequency;
        }
        // Cancel safe: both only wait.
        tokio::select! {
            changed = snapshots.changed() => if changed.is_err() { return std::future::pending().await },
            Ok(()) = node.changed() => node.mark_changed(),
            Ok(()) = api.changed() => {}
            () = sleep_until(may_repair), if overruled && now < may_repair => {}
            () = sleep_until(due.min(look_at.max(now + Duration::from_secs(1)))) => {}
        }
    }
}

/// What the API server had of the node when it was last told.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    version: u64,
    conditions: u64,
}

impl Heard {
    fn of(answer: &Node) -> Self {
        let version = answer.metadata.resource_version.as_ref().and_then(|text| text.parse().ok());
        Self { version: version.unwrap_or_default(), conditions: node_digest(answer.status.as_ref()) }
    }

    /// Whether something else is said there since.
    fn is_overruled_by(self, there: ApiNode) -> bool {
        there.version > self.version && there.conditions != self.conditions
    }
}

/// Whether it must be looked at what there is to tell. A condition that turned is told at once, the rest (images come and
/// go) when it is time to look.
fn is_news(last: Option<&Arc<NodeView>>, view: &Arc<NodeView>, time_to_look: bool) -> bool {
    let Some(last) = last else { return true };
    if Arc::ptr_eq(last, view) {
        return false;
    }
    let turns = |view: &NodeView| -> Vec<(String, String)> {
        let conditions = view.node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.map(|condition| (condition.type_.clone(), condition.status.clone())).collect()
    };
    time_to_look || turns(last) != turns(view)
}

/// Whether two statuses say the same, heartbeats aside.
fn same(a: &NodeStatus, b: &NodeStatus) -> bool {
    let still = |status: &NodeStatus| NodeStatus {
        conditions: status.conditions.as_ref().map(|conditions| {
            let still =
                |condition: &NodeCondition| NodeCondition { last_heartbeat_time: None, ..condition.clone() };
            conditions.iter().map(still).collect()
        }),
        ..status.clone()
    };
    still(a) == still(b)
}

/// Resources in the Node object as it was when it was registered that the node does not have: huge pages of a size that its kernel does not
/// know, and on a machine that is new what device plugins of another one offered. Otherwise somebody may have advertised them.
fn stale(registered: &Node, offers_are_new: bool, status: &NodeStatus) -> Vec<(String, Value)> {
    let there = registered.status.iter().flat_map(|it| [&it.capacity, &it.allocatable]).flatten();
    let has = |name: &String| status.capacity.as_ref().is_some_and(|own| own.contains_key(name));
    there
        .flat_map(BTreeMap::keys)
        .filter(|name| !has(name))
        .filter_map(|name| match name.as_str() {
            size if size.starts_with("hugepages-") => Some((name.clone(), Value::Null)),
            device if offers_are_new && device.contains('/') => Some((name.clone(), json!("0"))),
            _ => None,
        })
        .collect()
}

/// Everything that is ours, so that nothing depends on what the API server has. Conditions of others stay, because they
/// are merged by type. Where a cloud's controller knows the addresses, ours are told only while there are none: it may run on this node and
/// must be reached itself.
fn patch(with_addresses: bool, status: &NodeStatus, stale: &[(String, Value)], now: Timestamp) -> Value {
    let mut status = status.clone();
    for condition in status.conditions.iter_mut().flatten() {
        condition.last_heartbeat_time = Some(Time(to_seconds(now)));
    }
    let addresses = status.addresses.take();
    let mut value = serde_json::to_value(&status).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        // A field that is empty now was not always.
        for name in ["images", "runtimeHandlers", "features", "declaredFeatures", "volumesInUse"] {
            fields.entry(name).or_insert(Value::Null);
        }
        for name in ["capacity", "allocatable"] {
            if let Some(amounts) = fields.get_mut(name).and_then(Value::as_object_mut) {
                amounts.extend(stale.iter().cloned());
            }
        }
        if with_addresses {
            // They would be merged by type, and two of one type (IPv4 and IPv6) would be lost.
            let mut list = vec![json!({ "$patch": "replace" })];
            list.extend(addresses.iter().flatten().filter_map(|it| serde_json::to_value(it).ok()));
            fields.insert("addresses".to_owned(), Value::Array(list));
        }
    }
    json!({ "status": value })
}
