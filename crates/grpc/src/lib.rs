//! The node's gRPC interfaces: a window into the node for agents on it.
//!
//! [`bind`] takes the sockets, [`Bound::serve`] answers on them:
//!
//! | socket | services | gate |
//! | --- | --- | --- |
//! | `<root>/pod-info/kubelet.sock` | `podinfo.v1alpha1.PodInfo` | `PodInfoAPI` |
//! | `<root>/pods-api/pods-api.sock` | `v1alpha1.Pods` | `PodsAPI` |
//! | `<root>/pod-resources/kubelet.sock` | `v1.PodResourcesLister`, `v1alpha1.PodResourcesLister`, `mainstay.podresources.v1alpha1.PodResourcesWatcher` | |
//!
//! Names, numbers, codes and texts are upstream's of 1.37 (`docs/grpc.md` says where they are not). An answer is complete or
//! FAILED_PRECONDITION: before the first snapshot nothing is told.
//!
//! gRPC is spoken here on hyper's HTTP/2 directly (`wire`): an answer is made once, and everybody who asks for it is sent the same
//! bytes; hundreds of watchers cost what they read. Whoever does not read has pieces of 16 KiB waiting for him, and a place that is one of few.
//!
//! What it does not do: it decides nothing and asks no manager; it reads snapshots and assignments. Who may connect is said by the
//! directory's owner and mode, not here.
//!
//! Tasks, in the group given to [`Bound::serve`]: one per socket, one per connection, one per call while it is answered, and
//! `pods feed`, which tells watchers of pods what has changed.

#![forbid(unsafe_code)]

mod cache;
mod connection;
mod deadline;
mod metrics;
mod peer;
mod piece;
mod podinfo;
mod podresources;
mod pods;
mod ready;
mod service;
mod socket;
#[cfg(test)]
mod tests;
mod wire;

use std::{path::PathBuf, sync::Arc, time::Duration};

use mainstay_snapshot::SnapshotReader;
use mainstay_task::TaskGroup;
use mainstay_types::{Assignments, Counters};
use tokio::sync::watch;

pub use deadline::PATIENCE;
pub use peer::Rate;
pub use socket::{Access, SocketError};

use crate::{
    podinfo::PodInfo,
    podresources::PodResources,
    pods::Pods,
    service::{Api, Service},
    socket::Socket,
};

/// What is served, and to whom.
#[derive(Clone, Debug)]
pub struct GrpcConfig {
    /// The sockets' directories are made in here.
    pub root: PathBuf,
    /// Who may connect.
    pub access: Access,
    /// How often each of them may ask.
    pub rate: Rate,
    /// How long the answer to a call may take to be taken; [`PATIENCE`] unless a test cannot wait. Streams have no end.
    pub patience: Duration,
    /// Gate `PodInfoAPI`.
    pub pod_info: bool,
    /// Gate `PodsAPI`.
    pub pods: bool,
    /// Gate `KubeletPodResourcesGetAllocatable`, which upstream has dropped.
    pub get_allocatable: bool,
    /// Gate `KubeletPodResourcesListUseActivePods`.
    pub list_active: bool,
}

/// What is told.
#[derive(Clone, Debug)]
pub struct GrpcState {
    /// The pods.
    pub snapshots: SnapshotReader,
    /// What they hold.
    pub assignments: watch::Receiver<Arc<Assignments>>,
    /// Where calls are counted.
    pub counters: Arc<Counters>,
}

/// Sockets that are open and not served yet. Dropping it closes and removes them.
#[derive(Debug)]
pub struct Bound {
    config: GrpcConfig,
    pod_info: Option<Socket>,
    pods: Option<Socket>,
    pod_resources: Socket,
}

/// Takes the sockets; one whose gate is off is removed if an earlier mainstay left it.
///
/// # Errors
/// When a directory or socket cannot be made.
pub fn bind(config: GrpcConfig) -> Result<Bound, SocketError> {
    let open = |directory: &str, name: &str, wanted: bool| {
        let directory = config.root.join(directory);
        if wanted {
            return Socket::bind(&directory, name, &config.access).map(Some);
        }
        socket::remove_stale(&directory.join(name)).map(|()| None)
    };
    let pod_info = open("pod-info", "kubelet.sock", config.pod_info)?;
    let pods = open("pods-api", "pods-api.sock", config.pods)?;
    let pod_resources = Socket::bind(&config.root.join("pod-resources"), "kubelet.sock", &config.access)?;
    Ok(Bound { config, pod_info, pods, pod_resources })
}

impl Bound {
    /// Answers until shutdown is signalled.
    pub fn serve(self, state: GrpcState, tasks: &TaskGroup) {
        let GrpcState { snapshots, assignments, counters } = state;
        let (rate, patience) = (self.config.rate, self.config.patience);
        let pods_here = snapshots.clone();
        let start = |socket: Socket, api: Api| {
            let path = socket.path().to_owned();
            let name = api.name();
            let service = Arc::new(Service::new(api, rate, Arc::clone(&counters), pods_here.clone(), tasks));
            let serving = connection::serve(socket, service, patience, tasks.clone());
            tasks.spawn_critical(format!("grpc {name}"), serving);
            tracing::info!(socket = %path.display(), "the {name} API takes calls");
        };
        if let Some(socket) = self.pod_info {
            start(socket, Api::PodInfo(PodInfo::new(snapshots.clone())));
        }
        if let Some(socket) = self.pods {
            let pods = Arc::new(Pods::new(snapshots.clone(), Arc::clone(&counters)));
            let (feed, shutdown) = (Arc::clone(&pods), tasks.shutdown());
            tasks.spawn_critical("pods feed", async move {
                shutdown.run_until_signalled(feed.run()).await;
                feed.close();
            });
            start(socket, Api::Pods(pods));
        }
        let resources = PodResources::new(
            snapshots,
            assignments,
            podresources::Switches {
                get_allocatable: self.config.get_allocatable,
                list_active: self.config.list_active,
            },
        );
        start(self.pod_resources, Api::PodResources(resources));
    }
}

/// The parsers without sockets, for fuzzing.
#[doc(hidden)]
pub mod fuzz {
    use crate::peer::Peer;

    /// Whose process it is, by `/proc/PID/cgroup`; in words.
    #[must_use]
    pub fn peer(cgroups: &str) -> &'static str {
        match Peer::in_cgroups(cgroups, 0, |_| true) {
            Peer::Pod(_) => "pod",
            Peer::Service(..) => "service",
            Peer::User(_) => "user",
            Peer::Orphan => "nobody",
        }
    }
}
