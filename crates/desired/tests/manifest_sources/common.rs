//! A node's directories, and the sources that run in them.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use mainstay_desired::{Evidence, Sources, SourcesConfig, UrlSource, Wish};
use mainstay_task::TaskGroup;
use mainstay_types::{
    DesiredPod, DesiredState, Event, EventSink, FileVerdict, FullName, ObservedPod, ObservedSandbox,
    ObservedState, PodExt as _, Ruling, SandboxId, StorageUsage,
};
use tokio::sync::{mpsc, watch};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A node's directories, which outlive the sources that run in them.
pub(crate) struct Node {
    pub(crate) directory: tempfile::TempDir,
    /// Off by default, so that tests prove that inotify works.
    pub(crate) check_frequency: Duration,
    pub(crate) any_extension: bool,
    pub(crate) url: Option<UrlSource>,
    pub(crate) path: PathBuf,
}

pub(crate) struct Running {
    pub(crate) tasks: TaskGroup,
    pub(crate) desired: watch::Receiver<Arc<DesiredState>>,
    pub(crate) wishes: mpsc::Sender<Wish>,
    pub(crate) observed: watch::Sender<Arc<ObservedState>>,
    pub(crate) usage: watch::Sender<Arc<StorageUsage>>,
    pub(crate) events: mpsc::Receiver<Event>,
}

impl Node {
    pub(crate) fn new() -> Self {
        let node = Self::without_path();
        fs::create_dir(&node.path).unwrap();
        node
    }

    pub(crate) fn without_path() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("manifests");
        Self { directory, check_frequency: Duration::from_secs(3600), any_extension: false, url: None, path }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    pub(crate) fn config(&self) -> SourcesConfig {
        SourcesConfig {
            takes_over: true,
            node_name: "node-1".into(),
            root_dir: self.root(),
            static_pod_path: Some(self.path.clone()),
            file_check_frequency: self.check_frequency,
            any_extension: self.any_extension,
            static_pod_url: self.url.clone(),
            api_server: None,
            node_questions: mainstay_types::NodeQuestions::channel().1,
            object_key: None,
            gates: mainstay_podspec::PodGates::DEFAULT,
        }
    }

    pub(crate) fn start(&self) -> Running {
        self.start_with(listed(Vec::new()))
    }

    pub(crate) fn start_with(&self, observed: ObservedState) -> Running {
        let tasks = TaskGroup::new();
        let (sink, events) = EventSink::bounded(1000);
        let (observed, observed_receiver) = watch::channel(Arc::new(observed));
        let (usage, usage_receiver) = watch::channel(Arc::default());
        let evidence = Evidence { observed: observed_receiver, usage: usage_receiver };
        let Sources { desired, wishes, .. } = Sources::start(self.config(), &tasks, sink, evidence).unwrap();
        Running { tasks, desired, wishes, observed, usage, events }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Puts a whole file into place: a writer that is held up halfway would be judged by what it has written.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let outside = self.directory.path().join("outside");
        fs::write(&outside, text).unwrap();
        fs::rename(&outside, self.file(name)).unwrap();
    }

    pub(crate) fn records(&self) -> usize {
        fs::read_dir(self.root().join("mainstay/manifests")).unwrap().count()
    }
}

impl Running {
    /// Waits for a state of which `wanted` is true, and says what the last one was if none comes.
    pub(crate) async fn wait(&self, what: &str, wanted: impl Fn(&DesiredState) -> bool) -> Arc<DesiredState> {
        let mut desired = self.desired.clone();
        let waited = tokio::time::timeout(PATIENCE, desired.wait_for(|state| wanted(state))).await;
        match waited {
            Ok(state) => Arc::clone(&state.unwrap()),
            Err(_) => panic!("waited in vain for {what}; last state: {:#?}", self.desired.borrow()),
        }
    }

    pub(crate) async fn pod(&self, name: &str) -> Arc<DesiredPod> {
        let state = self.wait(&format!("pod {name}"), |state| find(state, name).is_some()).await;
        find(&state, name).unwrap()
    }

    pub(crate) async fn synced(&self) -> Arc<DesiredState> {
        self.wait("synced", |state| state.synced).await
    }

    pub(crate) async fn stop(self) {
        let drained = self.tasks.drain(PATIENCE).await;
        assert_eq!(drained.aborted, Vec::<String>::new());
    }

    pub(crate) fn told(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }
}

pub(crate) fn find(state: &DesiredState, name: &str) -> Option<Arc<DesiredPod>> {
    state.pods.values().find(|pod| &*pod.full_name.name == name).cloned()
}

pub(crate) fn verdict<'a>(state: &'a DesiredState, path: &Path) -> &'a FileVerdict {
    let mut of_file = state.verdicts.iter().filter(|verdict| verdict.path == path);
    let verdict =
        of_file.next().unwrap_or_else(|| panic!("no verdict about {path:?}: {:#?}", state.verdicts));
    assert_eq!(of_file.next(), None);
    verdict
}

pub(crate) fn is_rejected(state: &DesiredState, path: &Path, kept: bool) -> bool {
    state.verdicts.iter().any(|verdict| {
        verdict.path == path
            && matches!(verdict.ruling, Ruling::Rejected { previous_kept, .. } if previous_kept == kept)
    })
}

pub(crate) fn image(pod: &DesiredPod) -> &str {
    pod.pod.spec_ref().containers[0].image.as_deref().unwrap()
}

pub(crate) fn pod(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: a\n    image: {image}\n"
    )
}

pub(crate) fn listed(pods: Vec<ObservedPod>) -> ObservedState {
    let pods = pods.into_iter().map(|pod| (pod.uid.clone(), Arc::new(pod))).collect::<HashMap<_, _>>();
    ObservedState { generation: 1, listed_at: Some(Instant::now()), pods, ..ObservedState::unread() }
}

pub(crate) fn sandbox(name: &str, uid: &str, source: &str, ready: bool) -> ObservedPod {
    ObservedPod {
        uid: uid.into(),
        full_name: FullName::new("default", name),
        read_at: Instant::now(),
        sandboxes: vec![ObservedSandbox {
            id: SandboxId::from(format!("sandbox-{uid}")),
            attempt: 0,
            ready,
            created_at: jiff::Timestamp::now(),
            ips: Vec::new(),
            host_network: false,
            source: Some(source.into()),
        }],
        containers: Vec::new(),
    }
}
