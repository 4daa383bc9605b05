//! What reconcile needs to know about the node.

use std::{path::PathBuf, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use mainstay_cgroup::{CgroupError, CgroupNames, CgroupPath};
use mainstay_cri::Cri;
use mainstay_podspec::runtime::{HostResolv, NodeSettings, PodCgroupValues, QosClass, qos_class};
use mainstay_types::{EventSink, Heartbeat, PodExt, ReadWish};
use tokio::sync::mpsc;

/// Everything reconcile works with.
#[derive(Debug)]
pub struct ReconcileConfig {
    /// The runtime.
    pub cri: Cri,
    /// Where to wish for a fresh reading of a pod.
    pub refresh: mpsc::Sender<ReadWish>,
    /// Where to tell of events.
    pub events: EventSink,
    /// Settings and facts that container configurations depend on.
    pub node: NodeSettings,
    /// The node's resolver configuration; `None` turns lookups off in pods.
    pub host_resolv: Option<HostResolv>,
    /// `clusterDNS`.
    pub cluster_dns: Vec<String>,
    /// Pod cgroups; `None` when `cgroupsPerQOS` is off.
    pub cgroups: Option<Cgroups>,
    /// Where `<pod>_<ns>_<container>-<id>.log` links are made.
    pub container_log_links: PathBuf,
    /// Limits on pulls.
    pub pulls: PullLimits,
    /// `crashLoopBackOff.maxContainerRestartPeriod`.
    pub max_restart_period: Duration,
    /// `syncFrequency`: how often a pod is looked at though nothing seems to change.
    pub sync_frequency: Duration,
    /// Whose pods may be cleaned up.
    pub ownership: Ownership,
    /// Where to give signs of life.
    pub heartbeat: Heartbeat,
}

/// Pod cgroups.
#[derive(Clone, Debug)]
pub struct Cgroups {
    /// What they are called.
    pub names: CgroupNames,
    /// Where they are made; `None` with the systemd driver, where the runtime has systemd make them.
    pub hierarchy: Option<Arc<mainstay_cgroup::Cgroups>>,
    /// `podPidsLimit`; none or not positive is no limit.
    pub pids_max: Option<i64>,
}

impl Cgroups {
    fn path(&self, pod: &Pod) -> CgroupPath {
        self.names.pod(qos_class(pod), &pod.uid_ref().into())
    }

    /// The pod's cgroup in the form a sandbox configuration wants it.
    pub(crate) fn parent(&self, pod: &Pod) -> String {
        self.path(pod).as_str().to_owned()
    }

    /// Makes the pod's cgroup with its limits. Blocks.
    pub(crate) fn create(&self, pod: &Pod, values: &PodCgroupValues) -> Result<(), CgroupError> {
        let Some(hierarchy) = &self.hierarchy else { return Ok(()) };
        let path = self.path(pod);
        hierarchy.create(&path)?;
        hierarchy.apply(&path, values, self.pids_max)
    }

    /// Removes the pod's cgroup, in whichever class it is: of a pod that only the runtime knows, nobody knows the class.
    /// Blocks.
    pub(crate) fn remove(&self, pod: &Pod) -> Result<(), CgroupError> {
        let Some(hierarchy) = &self.hierarchy else { return Ok(()) };
        let uid = pod.uid_ref().into();
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            hierarchy.remove(&self.names.pod(class, &uid))?;
        }
        Ok(())
    }
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
