//! What reconcile needs to know about the node.

use std::{path::PathBuf, sync::Arc, time::Duration};

use mainstay_apiserver::Client;
use mainstay_config::CredentialProvider;
use mainstay_cri::Cri;
use mainstay_podspec::runtime::NodeSettings;
use mainstay_policy::{NodeFacts, PullVerification};
use mainstay_resources::Resources;
use mainstay_trace::Tracer;
use mainstay_types::{EventSink, Heartbeat, NodeCounters, NodePressure, NodeQuestions, ReadWish};
use tokio::sync::{mpsc, watch};

use crate::{IdPool, cgroups::Cgroups};

/// Everything reconcile works with.
#[derive(Debug)]
pub struct ReconcileConfig {
    /// The runtime.
    pub cri: Cri,
    /// Where to wish for a fresh reading of a pod.
    pub refresh: mpsc::Sender<ReadWish>,
    /// What is counted of its work.
    pub counters: Arc<NodeCounters>,
    /// What is told of how long it takes.
    pub tracer: Tracer,
    /// Where to tell of events.
    pub events: EventSink,
    /// Settings and facts that container configurations depend on; the addresses in it are those of the start.
    pub node: NodeSettings,
    /// What pods are judged by before they are taken up.
    pub admission: NodeFacts,
    /// What the node runs short of; pods are judged by its newest value.
    pub pressure: watch::Receiver<NodePressure>,
    /// CPUs, memory and devices, and who holds them.
    pub resources: Resources,
    /// `cpuManagerReconcilePeriod`: how often it is looked whether containers run on the CPUs that they should.
    pub cpusets_period: Duration,
    /// The node's addresses, primary first; they may change while mainstay runs.
    pub addresses: watch::Receiver<Arc<[String]>>,
    /// The node's resolver configuration, read for each pod anew; `None` turns lookups off in pods.
    pub resolv_conf: Option<PathBuf>,
    /// `clusterDNS`.
    pub cluster_dns: Vec<String>,
    /// Pod cgroups; `None` when `cgroupsPerQOS` is off.
    pub cgroups: Option<Cgroups>,
    /// Where `<pod>_<ns>_<container>-<id>.log` links are made.
    pub container_log_links: PathBuf,
    /// Work on volumes, by pod UID; shared with who removes what pods left behind.
    pub volume_jobs: mainstay_volume::Jobs,
    /// Limits on pulls.
    pub pulls: PullLimits,
    /// When a pod must prove that it may use an image that is there.
    pub pull_verification: PullVerification,
    /// The programs that know how to log in to registries.
    pub credential_providers: Vec<CredentialProvider>,
    /// The API server, asked for the service accounts that some of those programs log in by; nothing else is asked of it here.
    pub accounts: Option<Client>,
    /// Where to ask whether the Node object is still so; `None` without an API server.
    pub node_questions: Option<NodeQuestions>,
    /// `crashLoopBackOff.maxContainerRestartPeriod`.
    pub max_restart_period: Duration,
    /// `syncFrequency`: how often a pod is looked at though nothing seems to change.
    pub sync_frequency: Duration,
    /// Whose pods may be cleaned up.
    pub ownership: Ownership,
    /// Where to give signs of life.
    pub heartbeat: Heartbeat,
    /// User IDs for pods with `hostUsers: false`.
    pub id_pool: IdPool,
}

/// How images are pulled.
#[derive(Clone, Copy, Debug)]
pub struct PullLimits {
    /// At most so many at once; 1 is `serializeImagePulls`, `None` no limit.
    pub parallel: Option<usize>,
    /// `registryPullQPS`; 0 no limit.
    pub per_second: u32,
    /// `registryBurst`.
    pub burst: u32,
}

/// Which pods in the runtime are mainstay's business when no source wants them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Only those it started itself from this root directory (`mainstay run`).
    OnlyOurs,
    /// All, as upstream's kubelet sees it (`mainstay kubelet`).
    Everything,
}
