//! What the API server is told of this node: the Node object, its Lease, its status; its pods' statuses and ends, the
//! mirror pods of static ones, and events.
//!
//! [`start`] registers the node (an object that is there already keeps what others wrote into it), renews its Lease, and
//! sends the Node's status when something of it changed or when it is due. Of pods it sends what the API server does not
//! have yet, by comparison with what it has ([`ApiPods`]). All of it is read from the newest
//! [`NodeSnapshot`](mainstay_types::NodeSnapshot); nothing here asks the runtime or decides anything about pods.
//!
//! What it does not do: it does not listen (the API server's pods and objects come in through `desired`), and an API
//! server that is away holds nobody up: whatever could not be told is told later, from the newest state then.
//!
//! Tasks, all in the group given: `node registration` (makes it again when it was deleted), `node lease`, `node status`, `pod statuses`,
//! `api events`.

#![forbid(unsafe_code)]

mod events;
mod lease;
mod node_status;
mod pods;
mod register;

use std::{pin::Pin, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node, Taint};
use mainstay_apiserver::{Client, Rate};
use mainstay_snapshot::{EventReader, SnapshotReader};
use mainstay_task::TaskGroup;
use mainstay_types::{ApiPods, NodeCounters};
use tokio::sync::watch;

/// What the node tells of itself, and how often.
#[derive(Clone, Debug)]
pub struct UplinkConfig {
    /// The API server.
    pub client: Client,
    /// What is counted for `/metrics`.
    pub counters: Arc<NodeCounters>,
    /// The node's name.
    pub node_name: Arc<str>,
    /// `registerNode`: make the Node object if there is none.
    pub register: bool,
    /// `registerWithTaints`: only for a Node object that is made.
    pub taints: Vec<Taint>,
    /// `--cloud-provider=external`: somebody else completes the Node object and knows its addresses.
    pub external_cloud: bool,
    /// No kubelet has run on this root before: what device plugins offered by the Node object's word was another machine's.
    pub offers_are_new: bool,
    /// `--node-ip`, for the external cloud provider.
    pub node_ip: Option<String>,
    /// `nodeLeaseDurationSeconds`.
    pub lease_duration_seconds: i32,
    /// `nodeStatusUpdateFrequency`: how often it is looked whether something changed that need not be told at once.
    pub status_update_frequency: Duration,
    /// `nodeStatusReportFrequency`: how often it is told that nothing changed.
    pub status_report_frequency: Duration,
    /// `eventRecordQPS` and `eventBurst`; `None` for no limit.
    pub event_rate: Option<Rate>,
}

/// What there is to tell.
#[derive(Clone, Debug)]
pub struct Feeds {
    /// The node and its pods.
    pub snapshots: SnapshotReader,
    /// What happened.
    pub events: EventReader,
    /// Events up to this one are of an earlier life, and were told then.
    pub events_after: u64,
    /// What the API server has of the pods.
    pub api_pods: watch::Receiver<ApiPods>,
}

/// Starts telling.
pub fn start(config: UplinkConfig, feeds: Feeds, tasks: &TaskGroup) {
    let Feeds { snapshots, events, events_after, api_pods } = feeds;
    let config = Arc::new(config);
    let (registered, node) = watch::channel(None);
    let until_shutdown = |work: Pin<Box<dyn Future<Output = ()> + Send>>| {
        let shutdown = tasks.shutdown();
        async move {
            shutdown.run_until_signalled(work).await;
        }
    };
    // The UID of a Node object to which nothing could be told, because it is not there.
    let (missing, is_missing) = watch::channel(None);
    let work =
        register::run(Arc::clone(&config), snapshots.clone(), api_pods.clone(), registered, is_missing);
    tasks.spawn("node registration", until_shutdown(Box::pin(work)));
    let work = lease::run(Arc::clone(&config), node.clone());
    tasks.spawn_critical("node lease", until_shutdown(Box::pin(work)));
    let work = pods::run(Arc::clone(&config), snapshots.clone(), api_pods.clone(), node.clone());
    tasks.spawn_critical("pod statuses", until_shutdown(Box::pin(work)));
    let work = events::run(Arc::clone(&config), events, events_after, node.clone());
    tasks.spawn_critical("api events", until_shutdown(Box::pin(work)));
    let work = node_status::run(config, snapshots, api_pods, node, missing);
    tasks.spawn_critical("node status", until_shutdown(Box::pin(work)));
}

/// The Node object as the API server had it when it was registered; `None` until then.
type RegisteredNode = watch::Receiver<Option<Arc<Node>>>;

/// Waits until the node is registered; for ever, if mainstay ends before.
async fn registered(node: &mut RegisteredNode) -> Arc<Node> {
    let known = node.wait_for(Option::is_some).await.ok().and_then(|node| node.clone());
    match known {
        Some(node) => node,
        None => std::future::pending().await,
    }
}

impl UplinkConfig {
    /// Signs of life do not wait behind other requests, and are worth nothing when they come too late.
    fn heartbeat_client(&self) -> Client {
        let lease = Duration::from_secs(u64::try_from(self.lease_duration_seconds).unwrap_or(40));
        self.client
            .with_rate(Rate { per_second: 1000, burst: 1000 })
            .with_deadline(Duration::from_secs(10).min(lease))
    }
}
