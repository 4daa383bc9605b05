//! The sources as a whole: real directories, real inotify, real files of kept manifests.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use mainstay_desired::{Sources, SourcesConfig, SourcesError, UrlSource, Wish};
use mainstay_task::TaskGroup;
use mainstay_types::{
    DesiredPod, DesiredState, Event, EventSink, EventTarget, FileVerdict, FullName, ObservedPod,
    ObservedSandbox, ObservedState, PodExt as _, PodSource, PodUid, Ruling, SandboxId, TerminationWish,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::{mpsc, watch},
};

const PATIENCE: Duration = Duration::from_secs(10);

/// A node's directories, which outlive the sources that run in them.
struct Node {
    directory: tempfile::TempDir,
    /// Off by default, so that tests prove that inotify works.
    check_frequency: Duration,
    any_extension: bool,
    url: Option<UrlSource>,
    path: PathBuf,
}

struct Running {
    tasks: TaskGroup,
    desired: watch::Receiver<Arc<DesiredState>>,
    wishes: mpsc::Sender<Wish>,
    observed: watch::Sender<Arc<ObservedState>>,
    events: mpsc::Receiver<Event>,
}

impl Node {
    fn new() -> Self {
        let node = Self::without_path();
        fs::create_dir(&node.path).unwrap();
        node
    }

    fn without_path() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("manifests");
        Self { directory, check_frequency: Duration::from_secs(3600), any_extension: false, url: None, path }
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    fn config(&self) -> SourcesConfig {
        SourcesConfig {
            node_name: "node-1".into(),
            root_dir: self.root(),
            static_pod_path: Some(self.path.clone()),
            file_check_frequency: self.check_frequency,
            any_extension: self.any_extension,
            static_pod_url: self.url.clone(),
            api_server: false,
        }
    }

    fn start(&self) -> Running {
        self.start_with(listed(Vec::new()))
    }

    fn start_with(&self, observed: ObservedState) -> Running {
        let tasks = TaskGroup::new();
        let (sink, events) = EventSink::bounded(1000);
        let (observed, receiver) = watch::channel(Arc::new(observed));
        let Sources { desired, wishes } = Sources::start(self.config(), &tasks, sink, receiver).unwrap();
        Running { tasks, desired, wishes, observed, events }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).unwrap();
    }

    fn records(&self) -> usize {
        fs::read_dir(self.root().join("mainstay/manifests")).unwrap().count()
    }
}

impl Running {
    /// Waits for a state of which `wanted` is true, and says what the last one was if none comes.
    async fn wait(&self, what: &str, wanted: impl Fn(&DesiredState) -> bool) -> Arc<DesiredState> {
        let mut desired = self.desired.clone();
        let waited = tokio::time::timeout(PATIENCE, desired.wait_for(|state| wanted(state))).await;
        match waited {
            Ok(state) => Arc::clone(&state.unwrap()),
            Err(_) => panic!("waited in vain for {what}; last state: {:#?}", self.desired.borrow()),
        }
    }

    async fn pod(&self, name: &str) -> Arc<DesiredPod> {
        let state = self.wait(&format!("pod {name}"), |state| find(state, name).is_some()).await;
        find(&state, name).unwrap()
    }

    async fn synced(&self) -> Arc<DesiredState> {
        self.wait("synced", |state| state.synced).await
    }

    async fn stop(self) {
        let drained = self.tasks.drain(Duration::from_secs(5)).await;
        assert_eq!(drained.aborted, Vec::<String>::new());
    }

    fn told(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }
}

fn find(state: &DesiredState, name: &str) -> Option<Arc<DesiredPod>> {
    state.pods.values().find(|pod| &*pod.full_name.name == name).cloned()
}

fn verdict<'a>(state: &'a DesiredState, path: &Path) -> &'a FileVerdict {
    let mut of_file = state.verdicts.iter().filter(|verdict| verdict.path == path);
    let verdict =
        of_file.next().unwrap_or_else(|| panic!("no verdict about {path:?}: {:#?}", state.verdicts));
    assert_eq!(of_file.next(), None);
    verdict
}

fn is_rejected(state: &DesiredState, path: &Path, kept: bool) -> bool {
    state.verdicts.iter().any(|verdict| {
        verdict.path == path
            && matches!(verdict.ruling, Ruling::Rejected { previous_kept, .. } if previous_kept == kept)
    })
}

fn image(pod: &DesiredPod) -> &str {
    pod.pod.spec_ref().containers[0].image.as_deref().unwrap()
}

fn pod(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: a\n    image: {image}\n"
    )
}

fn listed(pods: Vec<ObservedPod>) -> ObservedState {
    let pods = pods.into_iter().map(|pod| (pod.uid.clone(), Arc::new(pod))).collect::<HashMap<_, _>>();
    ObservedState { generation: 1, listed_at: Some(Instant::now()), pods, ..ObservedState::unread() }
}

fn sandbox(name: &str, uid: &str, source: &str, ready: bool) -> ObservedPod {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drop_edit_break_repair_remove() {
    let node = Node::new();
    let mut running = node.start();
    let empty = running.synced().await;
    assert!(empty.pods.is_empty() && empty.verdicts.is_empty());

    node.write("web.yaml", &pod("web", "busybox:1"));
    let first = running.pod("web-node-1").await;
    assert_eq!(first.source, PodSource::File);
    assert_eq!(&*first.origin, node.file("web.yaml").to_str().unwrap());
    assert_eq!(first.pod.annotation("kubernetes.io/config.source"), Some("file"));
    assert_eq!(first.pod.annotation("kubernetes.io/config.hash"), Some(first.uid.as_str()));
    assert_eq!(first.uid.as_str().len(), 32);

    // Another file: the first pod keeps its pointer.
    node.write("other.json", r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"other"},"spec":{"containers":[{"name":"a","image":"b:1"}]}}"#);
    running.pod("other-node-1").await;
    let state = running.desired.borrow().clone();
    assert!(Arc::ptr_eq(&first, &state.pods[&first.uid]));

    // Edited: another pod in its place.
    node.write("web.yaml", &pod("web", "busybox:2"));
    let state = running
        .wait("the edit", |state| find(state, "web-node-1").is_some_and(|pod| image(&pod) == "busybox:2"))
        .await;
    let second = find(&state, "web-node-1").unwrap();
    assert_ne!(second.uid, first.uid);
    assert!(!state.pods.contains_key(&first.uid));

    // Broken: the last good one stays.
    let told_before = running.told().len();
    assert_eq!(told_before, 0);
    node.write("web.yaml", "apiVersion: v1\nkind: Pod\nmetadata: name: web\n");
    let state = running.wait("the verdict", |state| is_rejected(state, &node.file("web.yaml"), true)).await;
    assert!(Arc::ptr_eq(&second, &state.pods[&second.uid]));
    let Ruling::Rejected { problems, .. } = &verdict(&state, &node.file("web.yaml")).ruling else { panic!() };
    assert!(problems[0].contains("line 3 column 15"), "{problems:?}");
    let events = running.told();
    assert_eq!((events.len(), events[0].reason), (1, "FailedValidation"));

    // Invalid instead of unparsable: the same, and the event knows the pod.
    node.write("web.yaml", &pod("web", "\"\""));
    let state = running
        .wait("the other verdict", |state| {
            state.verdicts.iter().any(|v| {
                v.object.as_deref() == Some("Pod default/web")
                    && matches!(&v.ruling, Ruling::Rejected { previous_kept: true, .. })
            })
        })
        .await;
    assert!(Arc::ptr_eq(&second, &state.pods[&second.uid]));
    let events = running.told();
    let EventTarget::Pod { uid, full_name, .. } = &events[0].target else { panic!("{events:?}") };
    assert_eq!((uid, &*full_name.name), (&second.uid, "web-node-1"));

    // Repaired to what it was: as if nothing had been.
    node.write("web.yaml", &pod("web", "busybox:2"));
    let state = running
        .wait("the repair", |state| {
            matches!(verdict(state, &node.file("web.yaml")).ruling, Ruling::Accepted { .. })
        })
        .await;
    assert!(Arc::ptr_eq(&second, &state.pods[&second.uid]));

    fs::remove_file(node.file("web.yaml")).unwrap();
    let state = running.wait("the removal", |state| find(state, "web-node-1").is_none()).await;
    assert_eq!(state.verdicts.len(), 1);
    running.stop().await;
    assert_eq!(node.records(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_file_is_there_within_milliseconds() {
    let node = Node::new();
    let mut running = node.start();
    running.synced().await;
    let mut fastest = Duration::MAX;
    for round in 0..10 {
        let name = format!("p{round}");
        // Written elsewhere and renamed, or written in place: both end with one event.
        if round % 2 == 0 {
            let outside = node.directory.path().join("outside");
            fs::write(&outside, pod(&name, "b:1")).unwrap();
            fs::rename(&outside, node.file(&format!("{name}.yaml"))).unwrap();
        } else {
            node.write(&format!("{name}.yaml"), &pod(&name, "b:1"));
        }
        let dropped = Instant::now();
        running.pod(&format!("{name}-node-1")).await;
        fastest = fastest.min(dropped.elapsed());
    }
    // The fastest of ten, because the machine that runs the tests may be busy with others.
    assert!(fastest < Duration::from_millis(20), "{fastest:?}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renames_and_links() {
    let node = Node::new();
    let mut running = node.start();
    running.synced().await;
    node.write("a.yaml", &pod("web", "b:1"));
    let first = running.pod("web-node-1").await;

    // Renamed: the place is part of the identity, and no duplicate is seen on the way.
    fs::rename(node.file("a.yaml"), node.file("b.yaml")).unwrap();
    let state = running
        .wait("the new name", |state| {
            find(state, "web-node-1").is_some_and(|pod| pod.origin.ends_with("b.yaml"))
        })
        .await;
    assert_ne!(find(&state, "web-node-1").unwrap().uid, first.uid);
    assert_eq!(running.told(), []);

    // A link, and a replaced target.
    let target = node.directory.path().join("target");
    fs::write(&target, pod("linked", "b:1")).unwrap();
    std::os::unix::fs::symlink(&target, node.file("link.yaml")).unwrap();
    running.pod("linked-node-1").await;

    // An atomic replacement by rename.
    let next = node.file(".next");
    fs::write(&next, pod("web", "b:2")).unwrap();
    fs::rename(&next, node.file("b.yaml")).unwrap();
    running
        .wait("the replacement", |state| find(state, "web-node-1").is_some_and(|pod| image(&pod) == "b:2"))
        .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_written_slowly_is_not_judged_before_it_is_complete() {
    use std::io::Write as _;
    let node = Node::new();
    let mut running = node.start();
    running.synced().await;
    let text = pod("slow", "b:1");
    let mut file = fs::File::create(node.file("slow.yaml")).unwrap();
    for piece in text.as_bytes().chunks(30) {
        file.write_all(piece).unwrap();
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    drop(file);
    running.pod("slow-node-1").await;
    assert_eq!(running.told(), []);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_are_refused_loudly_and_the_first_path_wins() {
    let node = Node::new();
    node.write("b.yaml", &pod("web", "b:1"));
    node.write("c.yaml", &format!("{}---\n{}", pod("web", "c:1"), pod("own", "c:1")));
    let mut running = node.start();
    let state = running.synced().await;
    assert_eq!(state.pods.len(), 2);
    assert_eq!(image(&find(&state, "web-node-1").unwrap()), "b:1");
    assert!(is_rejected(&state, &node.file("c.yaml"), false));
    let events = running.told();
    assert_eq!(events.len(), 1);
    assert!(events[0].message.contains("also defined in"), "{}", events[0].message);

    node.write("a.yaml", &pod("web", "a:1"));
    let state = running
        .wait("the first", |state| find(state, "web-node-1").is_some_and(|pod| image(&pod) == "a:1"))
        .await;
    assert!(is_rejected(&state, &node.file("b.yaml"), false));

    fs::remove_file(node.file("a.yaml")).unwrap();
    running
        .wait("the second", |state| find(state, "web-node-1").is_some_and(|pod| image(&pod) == "b:1"))
        .await;

    // One UID for two pods is no better.
    node.write("d.yaml", &pod("x", "x:1").replace("name: x\n", "name: x\n  uid: same\n"));
    node.write("e.yaml", &pod("y", "x:1").replace("name: y\n", "name: y\n  uid: same\n"));
    let state = running.wait("the second UID", |state| is_rejected(state, &node.file("e.yaml"), false)).await;
    assert_eq!(find(&state, "x-node-1").unwrap().uid.as_str(), "same");
    assert_eq!(find(&state, "y-node-1"), None);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_touches_nothing_else() {
    let node = Node::new();
    node.write("good.yaml", &pod("good", "b:1"));
    let mut running = node.start();
    let good = running.pod("good-node-1").await;

    node.write("huge.yaml", &"# a comment\n".repeat(1_000_000));
    node.write("empty.yaml", "");
    node.write("nopods.yaml", "apiVersion: v1\nkind: PodList\nitems: []\n");
    node.write("kind.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n");
    node.write(
        "quantity.yaml",
        &format!("{}    resources: {{limits: {{memory: lots}}}}\n", pod("quantity", "b:1")),
    );
    node.write("none.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: none}\n");
    node.write("notes.txt", "not a manifest");
    node.write(".hidden.yaml", &pod("hidden", "b:1"));
    fs::create_dir(node.file("sub.yaml")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, node.file("fifo.yaml"), rustix::fs::Mode::RWXU).unwrap();
    std::os::unix::fs::symlink("/nowhere", node.file("dangling.yaml")).unwrap();

    let expected = [
        ("empty.yaml", "the manifest is empty"),
        ("huge.yaml", "larger than 10 MiB"),
        ("kind.yaml", "supported are v1 Pod, ConfigMap, Secret, List and PodList"),
        ("none.yaml", "spec.containers: Required value"),
        ("quantity.yaml", "\"lots\" is not a quantity"),
    ];
    let state = running
        .wait("all verdicts", |state| {
            expected.iter().all(|(name, _)| is_rejected(state, &node.file(name), false))
                && state.verdicts.len() == 11
        })
        .await;
    for (name, text) in expected {
        let Ruling::Rejected { problems, .. } = &verdict(&state, &node.file(name)).ruling else {
            panic!("{name}")
        };
        assert!(problems.iter().any(|problem| problem.contains(text)), "{name}: {problems:?}");
    }
    for name in ["notes.txt", ".hidden.yaml", "sub.yaml", "fifo.yaml"] {
        assert!(matches!(verdict(&state, &node.file(name)).ruling, Ruling::Ignored { .. }), "{name}");
    }
    assert!(matches!(verdict(&state, &node.file("nopods.yaml")).ruling, Ruling::Accepted { .. }));
    assert_eq!(state.pods.len(), 1);
    assert!(Arc::ptr_eq(&good, &state.pods[&good.uid]));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_changed_is_published() {
    let node = Node { check_frequency: Duration::from_millis(100), ..Node::new() };
    node.write("a.yaml", &pod("a", "b:1"));
    let mut running = node.start();
    let state = running.synced().await;
    // Touched, rewritten with the same content, looked at periodically: nothing to tell.
    node.write("a.yaml", &pod("a", "b:1"));
    node.write("a.yaml", &format!("# only a comment\n{}", pod("a", "b:1")));
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(running.desired.borrow().generation, state.generation);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_comes_goes_and_is_replaced() {
    let node = Node::without_path();
    let mut running = node.start();
    assert!(running.synced().await.pods.is_empty());

    fs::create_dir(&node.path).unwrap();
    node.write("a.yaml", &pod("a", "b:1"));
    let first = running.pod("a-node-1").await;

    // Another directory in its place, with the same file: the pod is not touched.
    let next = node.directory.path().join("next");
    fs::create_dir(&next).unwrap();
    fs::write(next.join("a.yaml"), pod("a", "b:1")).unwrap();
    fs::write(next.join("b.yaml"), pod("b", "b:1")).unwrap();
    fs::rename(&node.path, node.directory.path().join("old")).unwrap();
    fs::rename(&next, &node.path).unwrap();
    running.pod("b-node-1").await;
    assert!(Arc::ptr_eq(&first, &running.desired.borrow().pods[&first.uid]));

    // The new directory is watched.
    node.write("c.yaml", &pod("c", "b:1"));
    running.pod("c-node-1").await;

    fs::remove_dir_all(&node.path).unwrap();
    running.wait("nothing", |state| state.pods.is_empty()).await;
    fs::create_dir(&node.path).unwrap();
    node.write("a.yaml", &pod("a", "b:1"));
    running.pod("a-node-1").await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_path_may_be_one_file() {
    let mut node = Node::new();
    node.path = node.path.join("only.manifest");
    let mut running = node.start();
    running.synced().await;
    fs::write(&node.path, pod("only", "b:1")).unwrap();
    running.pod("only-node-1").await;
    let sibling = node.path.with_file_name("sibling.yaml");
    fs::write(sibling, pod("sibling", "b:1")).unwrap();
    fs::write(&node.path, pod("only", "b:2")).unwrap();
    let state = running
        .wait("the edit", |state| find(state, "only-node-1").is_some_and(|pod| image(&pod) == "b:2"))
        .await;
    assert_eq!(state.pods.len(), 1);
    fs::remove_file(&node.path).unwrap();
    running.wait("nothing", |state| state.pods.is_empty()).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_extension_as_upstream() {
    let node = Node { any_extension: true, ..Node::new() };
    node.write("web.yaml.bak", &pod("web", "b:1"));
    node.write(".dot", &pod("dot", "b:1"));
    let mut running = node.start();
    let state = running.synced().await;
    assert_eq!(state.pods.len(), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identity_and_last_good_version_survive_restarts() {
    let node = Node::new();
    node.write("a.yaml", &format!("{}---\n{}", pod("a", "b:1"), pod("second", "b:1")));
    node.write("b.yaml", &pod("b", "b:1"));
    node.write("c.yaml", &pod("c", "b:1"));
    let mut running = node.start();
    let before = running.synced().await;
    assert_eq!(before.pods.len(), 4);
    running.stop().await;
    assert_eq!(node.records(), 4);

    // While nobody looks: one file breaks in its second document, one as a whole, one is edited, one is removed.
    node.write("a.yaml", &format!("{}---\nkind: Pod\n", pod("a", "b:1")));
    node.write("b.yaml", "{{{ broken");
    node.write("c.yaml", &pod("c", "b:2"));
    let mut running = node.start();
    let after = running.synced().await;
    for name in ["a-node-1", "second-node-1", "b-node-1"] {
        assert_eq!(find(&after, name), find(&before, name), "{name}: UID, config.seen and all the rest");
    }
    assert_ne!(find(&after, "c-node-1").unwrap().uid, find(&before, "c-node-1").unwrap().uid);
    assert!(is_rejected(&after, &node.file("a.yaml"), true));
    assert!(is_rejected(&after, &node.file("b.yaml"), true));
    running.stop().await;

    // A repaired file without its second document: now it is a deletion.
    node.write("a.yaml", &pod("a", "b:1"));
    fs::remove_file(node.file("b.yaml")).unwrap();
    let mut running = node.start();
    let last = running.synced().await;
    assert_eq!(last.pods.len(), 2);
    assert_eq!(find(&last, "a-node-1"), find(&before, "a-node-1"));
    running.stop().await;
    assert_eq!(node.records(), 2);

    // Corrupt records are no loss while the files are good.
    for entry in fs::read_dir(node.root().join("mainstay/manifests")).unwrap() {
        fs::write(entry.unwrap().path(), "garbage").unwrap();
    }
    let mut running = node.start();
    let state = running.synced().await;
    assert_eq!(find(&state, "a-node-1").unwrap().uid, find(&before, "a-node-1").unwrap().uid);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_wait_for_the_runtime_but_verdicts_do_not() {
    let node = Node::new();
    node.write("a.yaml", &pod("a", "b:1"));
    node.write("bad.yaml", "[");
    let mut running = node.start_with(ObservedState::unread());
    let state = running.wait("verdicts", |state| state.verdicts.len() == 2).await;
    assert!(state.pods.is_empty() && !state.synced);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(running.desired.borrow().pods.is_empty());
    running.observed.send_replace(Arc::new(listed(Vec::new())));
    let state = running.synced().await;
    assert_eq!(state.pods.len(), 1);
    assert_eq!(running.told().len(), 1, "the rejection is told once");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_pods_of_another_kubelet_keep_their_uid() {
    let node = Node::new();
    node.write("a.yaml", &pod("a", "b:1"));
    node.write("b.yaml", &pod("b", "b:1"));
    node.write("c.yaml", &pod("c", "b:1").replace("name: c\n", "name: c\n  uid: explicit\n"));
    let left_behind = || {
        listed(vec![
            sandbox("a-node-1", "upstream-old", "file", false),
            sandbox("a-node-1", "upstream-a", "file", true),
            sandbox("b-node-1", "upstream-b", "api", true),
            sandbox("c-node-1", "upstream-c", "file", true),
        ])
    };
    let mut running = node.start_with(left_behind());
    let state = running.synced().await;
    assert_eq!(find(&state, "a-node-1").unwrap().uid.as_str(), "upstream-a");
    assert_eq!(find(&state, "b-node-1").unwrap().uid.as_str().len(), 32, "another source is another pod");
    assert_eq!(find(&state, "c-node-1").unwrap().uid.as_str(), "explicit");

    // Later, a sandbox of that name is what a deleted pod left: no pod inherits from it.
    fs::remove_file(node.file("a.yaml")).unwrap();
    running.wait("the removal", |state| find(state, "a-node-1").is_none()).await;
    node.write("a.yaml", &pod("a", "b:2"));
    let again = running.pod("a-node-1").await;
    assert_eq!(again.uid.as_str().len(), 32);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_uid_that_was_taken_over_is_kept_until_the_file_is_edited() {
    let node = Node::new();
    node.write("a.yaml", &pod("a", "b:1"));
    let mut running = node.start_with(listed(vec![sandbox("a-node-1", "upstream-a", "file", true)]));
    running.synced().await;
    running.stop().await;

    // The sandbox is gone after a reboot; the record still knows.
    let mut running = node.start();
    assert_eq!(running.pod("a-node-1").await.uid.as_str(), "upstream-a");
    running.stop().await;

    // Edited while mainstay was away: the old sandbox must not lend its UID to the new pod.
    node.write("a.yaml", &pod("a", "b:2"));
    let mut running = node.start_with(listed(vec![sandbox("a-node-1", "upstream-a", "file", true)]));
    assert_eq!(running.pod("a-node-1").await.uid.as_str().len(), 32);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn config_maps_and_secrets_are_objects() {
    let node = Node::new();
    let map = |value: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\nimmutable: true\ndata: {{key: {value}}}\n"
        )
    };
    node.write("c.yaml", &map("one"));
    node.write("s.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: apps}\nstringData: {password: hunter2}\n");
    let mut running = node.start();
    let state = running.synced().await;
    let name = FullName::new("default", "c");
    assert_eq!(state.objects.config_maps[&name].data.as_ref().unwrap()["key"], "one");
    let secret = &state.objects.secrets[&FullName::new("apps", "s")];
    assert_eq!(secret.data.as_ref().unwrap()["password"].0, b"hunter2");
    assert_eq!(secret.type_.as_deref(), Some("Opaque"));

    // Immutable objects do not change, across a restart neither.
    node.write("c.yaml", &map("two"));
    let state = running.wait("the refusal", |state| is_rejected(state, &node.file("c.yaml"), true)).await;
    assert_eq!(state.objects.config_maps[&name].data.as_ref().unwrap()["key"], "one");
    running.stop().await;
    let mut running = node.start();
    let state = running.synced().await;
    assert_eq!(state.objects.config_maps[&name].data.as_ref().unwrap()["key"], "one");
    assert!(is_rejected(&state, &node.file("c.yaml"), true));

    fs::remove_file(node.file("s.yaml")).unwrap();
    running.wait("the removal", |state| state.objects.secrets.is_empty()).await;
    running.stop().await;
    let modes = fs::read_dir(node.root().join("mainstay/manifests"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().permissions().mode() & 0o777);
    assert_eq!(modes.collect::<Vec<_>>(), [0o600]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wishes_stand_until_the_pod_is_gone() {
    let node = Node::new();
    node.write("a.yaml", &pod("a", "b:1"));
    let mut running = node.start();
    let before = running.pod("a-node-1").await;
    let wish = TerminationWish { reason: "Evicted".into(), message: "low on memory".into(), grace: None };
    running.wishes.send(Wish { uid: PodUid::from("unknown"), wish: wish.clone() }).await.unwrap();
    running.wishes.send(Wish { uid: before.uid.clone(), wish: wish.clone() }).await.unwrap();
    let state = running
        .wait("the wish", |state| find(state, "a-node-1").is_some_and(|pod| pod.terminate.is_some()))
        .await;
    assert_eq!(state.pods[&before.uid].terminate, Some(wish));
    assert!(!Arc::ptr_eq(&before, &state.pods[&before.uid]));
    node.write("a.yaml", &pod("a", "b:2"));
    let state = running
        .wait("the new pod", |state| find(state, "a-node-1").is_some_and(|pod| image(&pod) == "b:2"))
        .await;
    assert_eq!(find(&state, "a-node-1").unwrap().terminate, None);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_files_at_once() {
    let node = Node::new();
    let mut running = node.start();
    running.synced().await;
    for index in 0..100 {
        node.write(&format!("p{index}.yaml"), &pod(&format!("p{index}"), "b:1"));
    }
    running.wait("all of them", |state| state.pods.len() == 100).await;
    for index in 0..100 {
        fs::remove_file(node.file(&format!("p{index}.yaml"))).unwrap();
    }
    running.wait("none", |state| state.pods.is_empty()).await;
    running.stop().await;
    assert_eq!(node.records(), 0);
}

/// An HTTP server that answers with whatever it holds, and what it was asked.
struct Server {
    url: String,
    answer: watch::Sender<(u16, String)>,
    asked: watch::Receiver<String>,
}

async fn server(tasks: &TaskGroup, status: u16, body: &str) -> Server {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/pods", listener.local_addr().unwrap());
    let (answer, receiver) = watch::channel((status, body.to_owned()));
    let (asked_sender, asked) = watch::channel(String::new());
    let shutdown = tasks.shutdown();
    tasks.spawn("server", async move {
        while let Some(Ok((mut stream, _))) = shutdown.run_until_signalled(listener.accept()).await {
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap_or_default();
            asked_sender.send_replace(String::from_utf8_lossy(&request[..length]).into_owned());
            let (status, body) = receiver.borrow().clone();
            let answer = format!(
                "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            drop(stream.write_all(answer.as_bytes()).await);
        }
    });
    Server { url, answer, asked }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_from_a_url() {
    let servers = TaskGroup::new();
    let server = server(&servers, 500, "").await;
    let node = Node {
        url: Some(UrlSource {
            url: server.url.clone(),
            headers: vec![("X-Token".into(), "hunter2".into())],
            check_frequency: Duration::from_secs(1),
        }),
        ..Node::new()
    };
    assert!(!format!("{:?}", node.config()).contains("hunter2"));
    node.write("f.yaml", &pod("file", "b:1"));
    let mut running = node.start();
    // Files are not held up, but nothing counts as complete before the URL has answered.
    let state = running
        .wait("the file", |state| find(state, "file-node-1").is_some() && state.verdicts.len() == 2)
        .await;
    assert!(!state.synced);

    server.answer.send_replace((200, format!("{}---\n{}", pod("one", "b:1"), pod("two", "b:1"))));
    let state = running.synced().await;
    assert!(server.asked.borrow().to_lowercase().contains("x-token: hunter2"));
    let one = find(&state, "one-node-1").unwrap();
    assert_eq!((one.source, &*one.origin), (PodSource::Http, server.url.as_str()));
    assert_eq!(one.pod.spec_ref().tolerations, None);

    // An error keeps what was there, across a restart too.
    server.answer.send_replace((404, String::new()));
    running.wait("the error", |state| is_rejected(state, Path::new(&server.url), true)).await;
    running.stop().await;
    let mut running = node.start();
    let again = running.pod("one-node-1").await;
    assert_eq!(again, one);
    assert!(!running.desired.borrow().synced);

    server.answer.send_replace((200, pod("one", "b:1")));
    let state = running.synced().await;
    assert_eq!(find(&state, "two-node-1"), None);
    assert!(Arc::ptr_eq(&again, &state.pods[&again.uid]));

    // An empty list is a deletion.
    server.answer.send_replace((200, r#"{"apiVersion":"v1","kind":"PodList","items":[]}"#.into()));
    running.wait("the deletion", |state| find(state, "one-node-1").is_none()).await;
    running.stop().await;
    servers.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    let node = Node::new();
    let start = |config: SourcesConfig| {
        let (sink, _events) = EventSink::bounded(1);
        let (_sender, observed) = watch::channel(Arc::new(ObservedState::unread()));
        Sources::start(config, &TaskGroup::new(), sink, observed).map(drop)
    };
    let file = node.directory.path().join("file");
    fs::write(&file, "").unwrap();
    let error = start(SourcesConfig { root_dir: file, ..node.config() }).unwrap_err();
    assert!(matches!(error, SourcesError::State(_)), "{error}");

    for url in ["ftp://x/", "nonsense", "http:///x", "http://user:hunter2@host/x"] {
        let source =
            UrlSource { url: url.into(), headers: Vec::new(), check_frequency: Duration::from_secs(20) };
        let error =
            start(SourcesConfig { static_pod_url: Some(source), ..node.config() }).unwrap_err().to_string();
        assert!(error.starts_with("staticPodURL ") && !error.contains("hunter2"), "{error}");
    }
}
