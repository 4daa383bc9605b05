//! What survives a restart, and what a takeover keeps.

use std::{fs, os::unix::fs::PermissionsExt as _, sync::Arc, time::Duration};

use mainstay_types::{FullName, ObservedState};

use crate::common::{Node, find, is_rejected, listed, pod, sandbox};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identity_and_last_good_version_survive_restarts() {
    let node = Node::new();
    node.write("a.yaml", &format!("{}---\n{}", pod("a", "b:1"), pod("second", "b:1")));
    node.write("b.yaml", &pod("b", "b:1"));
    node.write("c.yaml", &pod("c", "b:1"));
    let running = node.start();
    let before = running.synced().await;
    assert_eq!(before.pods.len(), 4);
    running.stop().await;
    assert_eq!(node.records(), 4);

    // While nobody looks: one file breaks in its second document, one as a whole, one is edited, one is removed.
    node.write("a.yaml", &format!("{}---\nkind: Pod\n", pod("a", "b:1")));
    node.write("b.yaml", "{{{ broken");
    node.write("c.yaml", &pod("c", "b:2"));
    let running = node.start();
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
    let running = node.start();
    let last = running.synced().await;
    assert_eq!(last.pods.len(), 2);
    assert_eq!(find(&last, "a-node-1"), find(&before, "a-node-1"));
    running.stop().await;
    assert_eq!(node.records(), 2);

    // Corrupt records are no loss while the files are good.
    for entry in fs::read_dir(node.root().join("mainstay/manifests")).unwrap() {
        fs::write(entry.unwrap().path(), "garbage").unwrap();
    }
    let running = node.start();
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
    let running = node.start_with(left_behind());
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
    let running = node.start_with(listed(vec![sandbox("a-node-1", "upstream-a", "file", true)]));
    running.synced().await;
    running.stop().await;

    // The sandbox is gone after a reboot; the record still knows.
    let running = node.start();
    assert_eq!(running.pod("a-node-1").await.uid.as_str(), "upstream-a");
    running.stop().await;

    // Edited while mainstay was away: the old sandbox must not lend its UID to the new pod.
    node.write("a.yaml", &pod("a", "b:2"));
    let running = node.start_with(listed(vec![sandbox("a-node-1", "upstream-a", "file", true)]));
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
    let running = node.start();
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
    let running = node.start();
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
async fn pods_run_although_their_manifests_cannot_be_kept() {
    let node = Node::new();
    let running = node.start();
    running.synced().await;
    let kept = node.root().join("mainstay/manifests");
    fs::remove_dir(&kept).unwrap();
    fs::write(&kept, "in the way").unwrap();
    node.write("a.yaml", &pod("a", "b:1"));
    let uid = running.pod("a-node-1").await.uid.clone();
    // Back again, the change is written with the next one.
    tokio::time::sleep(Duration::from_millis(200)).await;
    fs::remove_file(&kept).unwrap();
    fs::create_dir(&kept).unwrap();
    node.write("b.yaml", &pod("b", "b:1"));
    running.pod("b-node-1").await;
    running.stop().await;
    assert_eq!(node.records(), 2);
    let running = node.start();
    assert_eq!(running.pod("a-node-1").await.uid, uid);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rulings_stand_since_they_were_made_and_not_since_the_restart() {
    let node = Node::new();
    node.write("good.yaml", &pod("good", "b:1"));
    node.write("bad.yaml", "{{{ broken");
    node.write("mended.yaml", "{{{ broken");
    node.write("notes.txt", "not a manifest");
    let running = node.start();
    running.synced().await;
    node.write("mended.yaml", &pod("mended", "b:1"));
    let before = running.wait("the mended pod", |state| find(state, "mended-node-1").is_some()).await;
    running.stop().await;

    let running = node.start();
    let mut after = running.synced().await;
    assert_eq!(after.verdicts, before.verdicts, "times included");
    assert_eq!(after.verdicts.len(), 4);
    running.stop().await;

    // Broken while nobody looked, and a file that cannot be used: now they stand since this start.
    node.write("good.yaml", "{{{ broken");
    let running = node.start();
    after = running.synced().await;
    let since = |state: &mainstay_types::DesiredState, name: &str| {
        state.verdicts.iter().find(|verdict| verdict.path == node.file(name)).unwrap().since
    };
    assert!(since(&after, "good.yaml") > since(&before, "good.yaml"));
    assert_eq!(since(&after, "bad.yaml"), since(&before, "bad.yaml"));
    running.stop().await;
    fs::write(node.root().join("mainstay/verdicts.json"), "garbage").unwrap();
    let mut running = node.start();
    let last = running.synced().await;
    assert!(since(&last, "bad.yaml") > since(&before, "bad.yaml"));
    let told: Vec<String> = running.told().iter().map(|event| event.reason.to_string()).collect();
    assert!(told.contains(&"StateFileSetAside".to_owned()), "{told:?}");
    running.stop().await;
}
