//! What is really there, as read from the runtime.

use std::{cmp::Reverse, collections::HashMap, sync::Arc, time::Instant};

use jiff::Timestamp;

use crate::{ContainerId, ContainerName, FullName, PodUid, SandboxId};

/// Everything seen in the runtime, as one immutable value.
#[derive(Clone, Debug)]
pub struct ObservedState {
    /// Counts up with every change; 0 means that nothing has been read yet.
    pub generation: u64,
    /// When the newest complete list was begun: a pod that is not in `pods` did not exist then.
    pub listed_at: Option<Instant>,
    /// All pods with a sandbox or a container, by UID, whoever made them.
    pub pods: HashMap<PodUid, Arc<ObservedPod>>,
    /// Pods that the runtime lists but does not answer about: what `pods` may say of them is old, nothing is done about them,
    /// and the others go on without them.
    pub silent: HashMap<PodUid, FullName>,
    /// How the runtime itself is.
    pub runtime: Arc<RuntimeHealth>,
}

impl ObservedState {
    /// The state before anything was read.
    #[must_use]
    pub fn unread() -> Self {
        Self {
            generation: 0,
            listed_at: None,
            pods: HashMap::new(),
            silent: HashMap::new(),
            runtime: Arc::new(RuntimeHealth::default()),
        }
    }

    /// When it was last read whether (and how) this pod exists.
    #[must_use]
    pub fn read_at(&self, uid: &PodUid) -> Option<Instant> {
        if self.silent.contains_key(uid) {
            return None;
        }
        self.pods.get(uid).map(|pod| pod.read_at).max(self.listed_at)
    }
}

/// A wish for a fresh reading of one pod.
#[derive(Clone, Debug)]
pub struct ReadWish {
    /// The pod.
    pub uid: PodUid,
    /// Its name, in case nothing is known of it yet.
    pub full_name: FullName,
    /// What was made since the last reading, so that it need not be searched for; `None` when that is not certain, and
    /// the runtime must be asked to list what the pod has.
    pub made: Option<MadeObjects>,
}

/// Objects made in the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MadeObjects {
    /// Sandboxes.
    pub sandboxes: Vec<SandboxId>,
    /// Containers, each with its sandbox.
    pub containers: Vec<(ContainerId, SandboxId)>,
}

/// The runtime's own word about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeHealth {
    /// `containerd`, `cri-o`: the prefix of container IDs in the API. Empty until first contact.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What is wrong with the runtime by its own word (condition RuntimeReady); `None` when nothing is.
    pub runtime_problem: Option<String>,
    /// What is wrong with the pod network (condition NetworkReady); `None` when nothing is.
    pub network_problem: Option<String>,
    /// It answered the last call.
    pub reachable: bool,
    /// If not: since when.
    pub unreachable_since: Option<Timestamp>,
    /// It sends container events, so that the relist is only a safety net.
    pub events: bool,
    /// It can hold containers to the pod's groups (`supplementalGroupsPolicy: Strict`).
    pub strict_groups: bool,
    /// Its default handler can make mounts recursively read-only.
    pub recursive_read_only: bool,
    /// It says what it can do at all; older ones do not.
    pub tells_features: bool,
    /// The handlers that it tells of, in its order; the default one has no name.
    pub handlers: Vec<RuntimeHandler>,
}

impl RuntimeHealth {
    /// Whether a handler can make mounts recursively read-only; the default one has no name.
    #[must_use]
    pub fn recursive_read_only_by(&self, handler: &str) -> bool {
        if handler.is_empty() {
            return self.recursive_read_only;
        }
        let found = self.handlers.iter().find(|other| other.name == handler);
        found.and_then(|found| found.recursive_read_only) == Some(true)
    }
}

/// One way in which the runtime runs containers, which a RuntimeClass may name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeHandler {
    /// Its name.
    pub name: String,
    /// It can make mounts recursively read-only; `None` if it does not say what it can.
    pub recursive_read_only: Option<bool>,
    /// It can map users; `None` if it does not say what it can.
    pub user_namespaces: Option<bool>,
}

/// One pod in the runtime.
#[derive(Clone, Debug)]
pub struct ObservedPod {
    /// Its UID, from the labels.
    pub uid: PodUid,
    /// Namespace and name, from the labels.
    pub full_name: FullName,
    /// When reading it was begun. Reconcile plans only on reads begun after its own last action.
    pub read_at: Instant,
    /// Sandboxes, newest attempt first.
    pub sandboxes: Vec<ObservedSandbox>,
    /// Containers, newest first.
    pub containers: Vec<ObservedContainer>,
}

impl ObservedPod {
    /// The reading that there is nothing.
    #[must_use]
    pub fn nothing(uid: PodUid, full_name: Option<FullName>, read_at: Instant) -> Self {
        let full_name = full_name.unwrap_or_else(|| FullName::new("", ""));
        Self { uid, full_name, read_at, sandboxes: Vec::new(), containers: Vec::new() }
    }

    /// Whether the runtime has nothing of it.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }

    /// Puts sandboxes and containers in order, newest first. What counts up decides before any time does: a clock that was
    /// set back would otherwise let a dead instance pass for the newest, and another be started beside the running one.
    pub fn sort(&mut self) {
        self.sandboxes.sort_by_key(|sandbox| Reverse((sandbox.attempt, sandbox.created_at)));
        self.containers.sort_by_key(|container| Reverse((container.restart_count, container.created_at)));
    }

    /// Whether two readings say the same, whenever they were made.
    #[must_use]
    pub fn same_as(&self, other: &Self) -> bool {
        self.full_name == other.full_name
            && self.sandboxes == other.sandboxes
            && self.containers == other.containers
    }

    /// The newest instance of a container.
    #[must_use]
    pub fn newest(&self, name: &str) -> Option<&ObservedContainer> {
        self.containers.iter().find(|container| container.name.as_str() == name)
    }

    /// All instances of a container, newest first.
    pub fn instances<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a ObservedContainer> {
        self.containers.iter().filter(move |container| container.name.as_str() == name)
    }

    /// Whether any container may be running.
    #[must_use]
    pub fn any_running(&self) -> bool {
        self.containers.iter().any(|c| matches!(c.phase, ContainerPhase::Running | ContainerPhase::Unknown))
    }

    /// The sandbox in use: the newest one, when it is ready.
    #[must_use]
    pub fn ready_sandbox(&self) -> Option<&ObservedSandbox> {
        self.sandboxes.first().filter(|sandbox| sandbox.ready)
    }
}

/// One sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedSandbox {
    /// Its ID.
    pub id: SandboxId,
    /// Its attempt number.
    pub attempt: u32,
    /// SANDBOX_READY.
    pub ready: bool,
    /// When it was made.
    pub created_at: Timestamp,
    /// Primary IP first; empty on the host's network.
    pub ips: Vec<String>,
    /// It uses the host's network.
    pub host_network: bool,
    /// Annotation `kubernetes.io/config.source`, by which a static pod's UID is kept.
    pub source: Option<Arc<str>>,
}

/// One container instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedContainer {
    /// Its ID.
    pub id: ContainerId,
    /// The sandbox it is in.
    pub sandbox: SandboxId,
    /// The container's name in the pod.
    pub name: ContainerName,
    /// Restart count (annotation, else the attempt number).
    pub restart_count: u32,
    /// Annotation `io.kubernetes.container.hash`; 0 when missing or unreadable, as upstream reads it.
    pub hash: u32,
    /// What it is doing.
    pub phase: ContainerPhase,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// How it ended.
    pub exit_code: i32,
    /// The runtime's reason (`Completed`, `Error`, `OOMKilled` …).
    pub reason: Arc<str>,
    /// The runtime's message, with the termination message appended.
    pub message: Arc<str>,
    /// The kernel killed it for want of memory, by the word of its pod's cgroup.
    pub oom_killed: bool,
    /// The signal that ends it, by its API name (`SIGTERM`), where the runtime tells and the gate is on.
    pub stop_signal: Option<Arc<str>>,
    /// The image as the runtime names it.
    pub image: Arc<str>,
    /// The image's identity.
    pub image_ref: Arc<str>,
    /// Where the runtime writes its log.
    pub log_path: Arc<str>,
    /// Who it runs as, where the runtime tells.
    pub user: Option<ContainerUser>,
    /// Grace as written down when it was made, for containers whose pod is no longer known.
    pub termination_grace_seconds: Option<i64>,
    /// The preStop hook as JSON, as written down when it was made.
    pub pre_stop: Option<Arc<str>>,
}

/// The user a container runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerUser {
    /// User ID.
    pub uid: i64,
    /// Group ID.
    pub gid: i64,
    /// Supplemental groups.
    pub groups: Vec<i64>,
}

/// CRI's container states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContainerPhase {
    /// Made, not started.
    Created,
    /// Running.
    Running,
    /// Ended.
    Exited,
    /// The runtime does not know.
    Unknown,
}
