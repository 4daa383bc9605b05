//! What happens to files while the sources run.

use std::{
    collections::BTreeMap,
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use mainstay_desired::{Evidence, Sources, SourcesConfig, SourcesError, UrlSource, Wish};
use mainstay_task::TaskGroup;
use mainstay_types::{
    EventSink, EventTarget, ObservedState, PodExt as _, PodSource, PodStorage, PodUid, Quantity, Ruling,
    StorageLimits, StorageUsage, TerminationWish,
};
use tokio::sync::watch;

use crate::common::{Node, find, image, is_rejected, pod, verdict};

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
    assert_eq!((events.len(), events[0].reason.as_ref()), (1, "FailedValidation"));

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
    let running = node.start();
    running.synced().await;
    // Written elsewhere and renamed, or written in place: both end with one event.
    for in_place in [false, true] {
        let mut fastest = Duration::MAX;
        // The fastest of many, because the machine that runs the tests may be busy with others; and still less than what a
        // file that is being written is given.
        for round in 0..100 {
            let name = format!("p{round}-{in_place}");
            let manifest = pod(&name, "b:1");
            if in_place {
                fs::write(node.file(&format!("{name}.yaml")), manifest).unwrap();
            } else {
                node.write(&format!("{name}.yaml"), &manifest);
            }
            let dropped = Instant::now();
            running.pod(&format!("{name}-node-1")).await;
            fastest = fastest.min(dropped.elapsed());
            if fastest < Duration::from_millis(150) {
                break;
            }
        }
        assert!(fastest < Duration::from_millis(150), "{fastest:?}, in place: {in_place}");
    }
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
    for round in 0.. {
        let name = format!("slow-{round}");
        let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
        let mut file = fs::File::create(node.file(&format!("{name}.yaml"))).unwrap();
        for piece in pod(&name, "b:1").as_bytes().chunks(30) {
            file.write_all(piece).unwrap();
            let now = Instant::now();
            longest = longest.max(now - last);
            last = now;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        longest = longest.max(last.elapsed());
        drop(file);
        running.pod(&format!("{name}-node-1")).await;
        let told = running.told();
        // A writer that was itself held up shows nothing.
        if longest < Duration::from_millis(100) {
            assert_eq!(told, []);
            break;
        }
        assert!(round < 50, "this machine never lets anybody write");
    }
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
    let running = node.start();
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
        (
            "kind.yaml",
            "supported are v1 Pod, ConfigMap, Secret, List and PodList, and node.k8s.io/v1 RuntimeClass",
        ),
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
    let running = node.start();
    let state = running.synced().await;
    // Touched, rewritten with the same content, looked at periodically: nothing to tell.
    let touched = fs::File::options().write(true).open(node.file("a.yaml")).unwrap();
    touched.set_modified(std::time::SystemTime::now()).unwrap();
    drop(touched);
    node.write("a.yaml", &pod("a", "b:1"));
    node.write("a.yaml", &format!("# only a comment\n{}", pod("a", "b:1")));
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(running.desired.borrow().generation, state.generation);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_comes_goes_and_is_replaced() {
    let node = Node::without_path();
    let running = node.start();
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

    // A directory that vanishes is not a deletion of what was in it: each file says what happened, and is kept.
    fs::rename(&node.path, node.directory.path().join("unmounted")).unwrap();
    let kept = running
        .wait("verdicts", |state| {
            state.verdicts.len() == 3
                && state.verdicts.iter().all(|verdict| {
                    matches!(&verdict.ruling, Ruling::Rejected { problems, previous_kept: true }
                        if problems.iter().all(|problem| problem.contains("is gone; make it again")))
                })
        })
        .await;
    assert_eq!(kept.pods.len(), 3);
    assert!(Arc::ptr_eq(&first, &kept.pods[&first.uid]));
    // Back again, without one of them: only that one is deleted.
    fs::remove_file(node.directory.path().join("unmounted/c.yaml")).unwrap();
    fs::rename(node.directory.path().join("unmounted"), &node.path).unwrap();
    let back = running.wait("two pods", |state| state.pods.len() == 2).await;
    assert!(Arc::ptr_eq(&first, &back.pods[&first.uid]));
    running
        .wait("acceptance", |state| {
            state.verdicts.iter().all(|verdict| matches!(verdict.ruling, Ruling::Accepted { .. }))
        })
        .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_is_gone_at_the_start_keeps_its_pods_and_an_empty_one_removes_them() {
    let node = Node::new();
    node.write("a.yaml", &pod("a", "b:1"));
    let running = node.start();
    let first = running.pod("a-node-1").await;
    running.stop().await;

    let away = node.directory.path().join("away");
    fs::rename(&node.path, &away).unwrap();
    let running = node.start();
    let state = running.synced().await;
    assert_eq!(state.pods.keys().collect::<Vec<_>>(), [&first.uid]);
    fs::create_dir(&node.path).unwrap();
    running.wait("nothing", |state| state.pods.is_empty()).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_path_may_be_one_file() {
    let mut node = Node::new();
    node.path = node.path.join("only.manifest");
    let running = node.start();
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
    let running = node.start();
    let state = running.synced().await;
    assert_eq!(state.pods.len(), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wishes_stand_until_the_pod_is_gone() {
    let node = Node::new();
    node.write("a.yaml", &pod("a", "b:1"));
    let running = node.start();
    let before = running.pod("a-node-1").await;
    let wish = TerminationWish {
        reason: "Evicted".into(),
        message: "low on memory".into(),
        grace: None,
        signal: Some("memory.available"),
    };
    running.wishes.send(Wish { uid: PodUid::from("unknown"), wish: wish.clone() }).await.unwrap();
    running.wishes.send(Wish { uid: before.uid.clone(), wish: wish.clone() }).await.unwrap();
    let state = running
        .wait("the wish", |state| find(state, "a-node-1").is_some_and(|pod| pod.terminate.is_some()))
        .await;
    assert_eq!(state.pods[&before.uid].terminate, Some(wish));
    assert!(!Arc::ptr_eq(&before, &state.pods[&before.uid]));
    // Edited in place: whatever is seen of it halfway, the whole counts in the end.
    fs::write(node.file("a.yaml"), pod("a", "b:2")).unwrap();
    let state = running
        .wait("the new pod", |state| find(state, "a-node-1").is_some_and(|pod| image(&pod) == "b:2"))
        .await;
    assert_eq!(find(&state, "a-node-1").unwrap().terminate, None);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_wrote_too_much_is_wished_away() {
    let node = Node::new();
    node.write("a.yaml", &pod("a", "b:1"));
    let running = node.start();
    let before = running.pod("a-node-1").await;
    let limits = StorageLimits { total: Some(Quantity::whole(10)), ..StorageLimits::default() };
    let measured = |pod: &Arc<Pod>, total| PodStorage {
        pod: Arc::clone(pod),
        limits: Arc::new(limits.clone()),
        volumes: BTreeMap::new(),
        containers: BTreeMap::new(),
        total,
    };
    let tell = |storage| {
        let pods = [(before.uid.clone(), Arc::new(storage))].into();
        running.usage.send_replace(Arc::new(StorageUsage { generation: 1, pods }));
    };
    // An earlier life of the same UID, and one within its limits, change nothing; the wish after them shows it.
    tell(measured(&Arc::new(Pod::clone(&before.pod)), 11));
    tell(measured(&before.pod, 10));
    let generation = running.desired.borrow().generation;
    tell(measured(&before.pod, 11));
    let state = running
        .wait("the wish", |state| find(state, "a-node-1").is_some_and(|pod| pod.terminate.is_some()))
        .await;
    assert_eq!(state.generation, generation + 1);
    let wish = state.pods[&before.uid].terminate.clone().unwrap();
    assert_eq!(wish.reason, "Evicted");
    assert_eq!(wish.message, "Pod ephemeral local storage usage exceeds the total limit of containers 10. ");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_files_at_once() {
    let node = Node::new();
    let running = node.start();
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

/// As on a full disk: what cannot be kept is still run.

#[tokio::test]
async fn what_cannot_start_says_why() {
    let node = Node::new();
    let start = |config: SourcesConfig| {
        let (sink, _events) = EventSink::bounded(1);
        let (_sender, observed) = watch::channel(Arc::new(ObservedState::unread()));
        let (_sender, usage) = watch::channel(Arc::default());
        let evidence = Evidence { observed, usage };
        Sources::start(config, &TaskGroup::new(), sink, evidence).map(drop)
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
