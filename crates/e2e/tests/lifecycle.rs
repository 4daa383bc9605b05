//! A pod from its file to its end: started as upstream starts it, replaced, removed, and what its containers are given.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use mainstay_e2e::{PodSeen, SOON, World, idle, pod, sh, with};
use mainstay_testkit::{BUSYBOX, CgroupDriver, Flavor, Image, wait_until};
use serde_json::{Value, json};

/// Upstream's hash of `{"image":…,"name":…}` (reference section 1.5), written anew here: FNV-1a 32 over Go's printing of
/// the bytes.
fn container_hash(name: &str, image: &str) -> String {
    let json = format!(r#"{{"image":"{image}","name":"{name}"}}"#);
    let bytes: Vec<String> = json.bytes().map(|byte| byte.to_string()).collect();
    let text = format!("([]uint8)[{}]", bytes.join(" "));
    let hash =
        text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:x}")
}

#[test]
fn the_hash_of_these_tests_is_upstreams() {
    assert_eq!(container_hash("test_container", "foo/image:v1"), "8e45cbd0");
    assert_eq!(container_hash("nginx", "nginx:1.27"), "91edee8f");
}

/// What a container of [`ends_when_told`] waits for.
const END: &str = "/tmp/end";

/// A script that begins with `first` and ends once it was asked to and [`END`] is there: what happens meanwhile can be looked
/// at without haste.
fn ends_when_told(first: &str) -> String {
    let end = format!("echo term; while [ ! -e {END} ]; do sleep 0.1; done; echo bye; exit 0");
    format!("trap '{end}' TERM; {first}; while :; do sleep 0.1; done")
}

fn multi() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "multi",
            "labels": { "app": "multi" },
            "annotations": { "example.test/note": "kept" },
        },
        "spec": {
            "terminationGracePeriodSeconds": 3,
            "initContainers": [sh("setup", "echo setting up"), with(idle("sidecar"), json!({ "restartPolicy": "Always" }))],
            "containers": [
                with(idle("a"), json!({
                    "ports": [{ "name": "http", "containerPort": 8080 }],
                    "resources": { "requests": { "cpu": "100m", "memory": "16Mi" }, "limits": { "memory": "64Mi" } },
                    "lifecycle": { "preStop": { "exec": { "command": ["true"] } } },
                })),
                idle("b"),
            ],
        },
    })
}

#[test]
fn a_file_becomes_a_running_pod_that_upstreams_kubelet_would_adopt() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        world.put_manifest("multi", &multi()).unwrap();
        let seen = world.running("multi").unwrap();
        let uid = seen.uid().to_owned();
        check_status(&world, &seen);
        check_sandbox(&world, &seen);
        for name in ["setup", "sidecar", "a", "b"] {
            check_container(&world, &seen, name);
        }
        assert_eq!(world.sandboxes_of(&uid).unwrap().len(), 1);
        assert_eq!(world.containers_of(&uid).unwrap().len(), 4);
    }
}

fn check_status(world: &World, seen: &PodSeen) {
    assert_eq!(seen.text("/metadata/name"), "multi-node");
    assert_eq!(seen.text("/metadata/namespace"), "default");
    assert_eq!(seen.text("/metadata/annotations/kubernetes.io~1config.source"), "file");
    assert_eq!(seen.text("/metadata/annotations/kubernetes.io~1config.hash"), seen.uid());
    assert!(!seen.text("/metadata/annotations/kubernetes.io~1config.seen").is_empty());
    assert_eq!(seen.text("/spec/nodeName"), "node");
    assert_eq!(
        seen.0.pointer("/spec/tolerations").unwrap(),
        &json!([{ "operator": "Exists", "effect": "NoExecute" }])
    );
    assert_eq!(seen.text("/status/qosClass"), "Burstable");
    assert!(!seen.text("/status/startTime").is_empty());
    let subnet = world.containerd.subnet();
    let network = subnet.rsplit_once('.').unwrap().0.rsplit_once('.').unwrap().0.to_owned();
    assert!(seen.text("/status/podIP").starts_with(&network), "{} in {subnet}", seen.text("/status/podIP"));
    assert_eq!(seen.0.pointer("/status/podIPs").unwrap(), &json!([{ "ip": seen.text("/status/podIP") }]));
    let types: Vec<&str> = seen.0["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|condition| condition["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        types,
        ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"]
    );
    for condition in types {
        assert!(seen.is_true(condition), "{condition}");
        assert!(seen.condition(condition)["lastTransitionTime"].is_string());
        assert!(seen.condition(condition)["reason"].is_null(), "{condition}");
    }
    let setup = seen.container("setup");
    assert_eq!(setup["state"]["terminated"]["reason"], "Completed");
    assert_eq!(
        (seen.exit_code("setup"), &setup["ready"], &setup["started"]),
        (Some(0), &json!(true), &json!(false))
    );
    for name in ["sidecar", "a", "b"] {
        let status = seen.container(name);
        assert!(seen.runs(name), "{name}");
        assert_eq!((&status["ready"], &status["started"]), (&json!(true), &json!(true)), "{name}");
        assert_eq!((seen.restarts(name), &status["lastState"]), (0, &json!({})), "{name}");
        assert_eq!(status["image"], BUSYBOX);
        assert!(status["imageID"].as_str().unwrap().starts_with("sha256:"), "{status}");
        assert!(status["containerID"].as_str().unwrap().starts_with("containerd://"));
    }
}

fn check_sandbox(world: &World, seen: &PodSeen) {
    let uid = seen.uid();
    let sandboxes = world.sandboxes_of(uid).unwrap();
    let id = sandboxes[0]["id"].as_str().unwrap();
    let config = world.crictl(&["inspectp", id]).unwrap()["info"]["config"].clone();
    let metadata = &config["metadata"];
    assert_eq!(
        (&metadata["name"], &metadata["namespace"], &metadata["uid"]),
        (&json!("multi-node"), &json!("default"), &json!(uid))
    );
    assert_eq!(metadata["attempt"].as_u64().unwrap_or(0), 0);
    assert_eq!(config["hostname"], "multi-node");
    assert_eq!(
        config["labels"],
        json!({
            "app": "multi",
            "io.kubernetes.pod.name": "multi-node",
            "io.kubernetes.pod.namespace": "default",
            "io.kubernetes.pod.uid": uid,
        })
    );
    let annotations = config["annotations"].as_object().unwrap();
    assert_eq!(annotations.len(), 4, "{annotations:?}");
    assert_eq!(annotations["kubernetes.io/config.source"], "file");
    assert_eq!(annotations["kubernetes.io/config.hash"], uid);
    assert_eq!(annotations["example.test/note"], "kept");
    assert_eq!(config["log_directory"], log_dir(world, uid).to_str().unwrap());
    let root = world.node.cgroup_root().trim_start_matches('/');
    let parent = CgroupDriver::of_this_run().parent(&[root, "kubepods", "burstable", &format!("pod{uid}")]);
    assert_eq!(config["linux"]["cgroup_parent"], parent);
    assert_eq!(config["port_mappings"], json!([{ "container_port": 8080 }]));
    assert_eq!(
        config["linux"]["security_context"]["namespace_options"]["pid"], 1,
        "a PID namespace per container"
    );
    assert!(
        cgroup_dirs(world, uid).iter().all(|dir| dir.ends_with(parent.trim_start_matches('/'))),
        "{:?}",
        cgroup_dirs(world, uid)
    );
    assert!(!cgroup_dirs(world, uid).is_empty());
}

fn check_container(world: &World, seen: &PodSeen, name: &str) {
    let uid = seen.uid();
    let answer = world.crictl(&["inspect", seen.id(name)]).unwrap();
    let (status, config) = (&answer["status"], &answer["info"]["config"]);
    assert_eq!(status["metadata"]["name"], name);
    assert_eq!(status["metadata"]["attempt"].as_u64().unwrap_or(0), 0);
    assert_eq!(
        config["labels"],
        json!({
            "io.kubernetes.container.name": name,
            "io.kubernetes.pod.name": "multi-node",
            "io.kubernetes.pod.namespace": "default",
            "io.kubernetes.pod.uid": uid,
        })
    );
    let mut expected = json!({
        "io.kubernetes.container.hash": container_hash(name, BUSYBOX),
        "io.kubernetes.container.restartCount": "0",
        "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
        "io.kubernetes.container.terminationMessagePolicy": "File",
        "io.kubernetes.pod.terminationGracePeriod": "3",
    });
    if name == "a" {
        expected = with(
            expected,
            json!({
                "io.kubernetes.container.preStopHandler": r#"{"exec":{"command":["true"]}}"#,
                "io.kubernetes.container.ports": r#"[{"name":"http","containerPort":8080,"protocol":"TCP"}]"#,
            }),
        );
    }
    assert_eq!(config["annotations"], expected, "{name}");
    assert_eq!(config["log_path"], format!("{name}/0.log"));
    let log = log_dir(world, uid).join(name).join("0.log");
    assert!(log.is_file(), "{}", log.display());
    let link = world
        .node
        .root()
        .join("container-logs")
        .join(format!("multi-node_default_{name}-{}.log", seen.id(name)));
    // It is made when the container is up, which may be seen before.
    wait_until(SOON, "the link to its log", || match fs::read_link(&link) {
        Ok(found) if found == log => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    assert_eq!(config["image"]["user_specified_image"].as_str().unwrap_or(BUSYBOX), BUSYBOX);
    if name == "a" {
        assert_eq!(config["linux"]["resources"]["cpu_shares"], 102);
        assert_eq!(config["linux"]["resources"]["memory_limit_in_bytes"], 64 << 20);
    }
}

fn log_dir(world: &World, uid: &str) -> PathBuf {
    world.node.pod_logs().join(format!("default_multi-node_{uid}"))
}

/// The pod's cgroups in every hierarchy.
fn cgroup_dirs(world: &World, uid: &str) -> Vec<PathBuf> {
    let pod = format!("pod{uid}");
    [&["kubepods", &pod][..], &["kubepods", "burstable", &pod], &["kubepods", "besteffort", &pod]]
        .iter()
        .flat_map(|parts| world.node.cgroup(parts))
        .collect()
}

#[test]
fn several_documents_and_lists_in_a_file_each_become_a_pod() {
    let world = World::start(Flavor::Debian16).unwrap();
    let one = |name: &str| pod(name, json!({ "containers": [idle("c")] }));
    let yaml = |name: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{from: yaml}}}}\nspec:\n  containers:\n  - name: c\n    \
             image: {BUSYBOX}\n    command: [/bin/sh, -c, \"trap 'exit 0' TERM; while :; do sleep 0.1; done\"]\n"
        )
    };
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [one("in-list-1"), one("in-list-2")] });
    world.node.write_manifest("list.json", &list.to_string()).unwrap();
    world
        .node
        .write_manifest("docs.yml", &format!("# first\n{}---\n{}---\n", yaml("doc-1"), yaml("doc-2")))
        .unwrap();
    world.node.write_manifest("alone.yaml", &yaml("alone")).unwrap();
    world.node.write_manifest("notes.txt", &one("ignored").to_string()).unwrap();
    let names = ["in-list-1", "in-list-2", "doc-1", "doc-2", "alone"];
    let before: Vec<PodSeen> = names.iter().map(|name| world.running(name).unwrap()).collect();
    assert_eq!(world.pods().unwrap().len(), names.len(), "a .txt file is no manifest");

    // One document of two goes; nothing else is touched.
    world.node.write_manifest("docs.yml", &yaml("doc-2")).unwrap();
    world.gone("doc-1").unwrap();
    for old in &before {
        let name = old.text("/metadata/name").trim_end_matches("-node");
        if name != "doc-1" {
            let now = world.running(name).unwrap();
            assert_eq!((now.uid(), now.id("c")), (old.uid(), old.id("c")), "{name}");
            assert_eq!(now.condition("Ready"), old.condition("Ready"), "{name}");
        }
    }
}

#[test]
fn a_changed_file_replaces_the_pod_and_never_shows_two_of_a_name() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        let version = |text: &str| {
            json!({
                "terminationGracePeriodSeconds": 600,
                "containers": [sh("c", &ends_when_told(&format!("echo {text} begins")))],
            })
        };
        world.put("app", version("one")).unwrap();
        let old = world.running("app").unwrap();
        world.logged("app", "c", "one begins").unwrap();
        world.put("app", version("two")).unwrap();
        let mut saw_old_one_go = false;
        let new = wait_until(SOON, "the new pod", || {
            let pods = world.named("app").map_err(|error| error.to_string())?;
            let running = world.crictl(&["ps", "--output", "json"]).map_err(|error| error.to_string())?;
            let running = running["containers"].as_array().cloned().unwrap_or_default();
            assert!(running.len() <= 1, "two at once: {running:#?}");
            // While the old one goes, the new one is listed too, and waits.
            for pod in &pods {
                let is_old = pod.uid() == old.uid();
                assert_eq!(
                    is_old && pods.len() > 1,
                    pod.0["metadata"]["deletionTimestamp"].is_string(),
                    "{pods:#?}"
                );
                if is_old && pods.len() > 1 && !saw_old_one_go {
                    // Now that it was seen, it may end.
                    saw_old_one_go = true;
                    world.touch(&old, "c", END).unwrap();
                }
                assert!(
                    is_old || pods.len() == 1 || (pod.phase() == "Pending" && pod.id("c").is_empty()),
                    "{pods:#?}"
                );
            }
            match pods.as_slice() {
                [pod] if pod.uid() != old.uid() && pod.is_true("Ready") => Ok(pod.clone()),
                other => Err(format!("{other:#?}")),
            }
        })
        .unwrap();
        assert!(saw_old_one_go);
        assert_ne!(new.id("c"), old.id("c"));
        assert_eq!(new.restarts("c"), 0);
        assert_eq!(world.logged("app", "c", "two begins").unwrap(), "two begins\n");
        wait_until(SOON, "the old pod's remains to go", || {
            let left = world.sandboxes_of(old.uid()).map_err(|error| error.to_string())?;
            if left.is_empty() { Ok(()) } else { Err(format!("{left:#?}")) }
        })
        .unwrap();
    }
}

#[test]
fn a_new_image_under_the_same_uid_restarts_the_container_in_its_sandbox() {
    let containerd = mainstay_testkit::Containerd::builder(Flavor::Debian16)
        .image(Image::named("docker.io/local/busybox:2").env("VERSION", "2"))
        .start()
        .unwrap();
    let world = World::on(containerd, "{}").unwrap();
    let version = |image: &str| {
        let containers = [with(idle("c"), json!({ "image": image })), idle("other")];
        let mut pod = pod("app", json!({ "containers": containers }));
        pod["metadata"]["uid"] = json!("0b1f5c7e-0001-4000-8000-000000000001");
        pod
    };
    world.put_manifest("app", &version(BUSYBOX)).unwrap();
    let old = world.running("app").unwrap();
    assert_eq!(old.uid(), "0b1f5c7e-0001-4000-8000-000000000001", "an explicit UID is used as it is");
    world.put_manifest("app", &version("docker.io/local/busybox:2")).unwrap();
    let new =
        world.wait("app", "the new image", |pod| pod.restarts("c") == 1 && pod.is_true("Ready")).unwrap();
    assert_eq!(new.uid(), old.uid());
    assert_eq!(new.id("other"), old.id("other"), "the other container is left alone");
    assert_eq!(new.text("/status/podIP"), old.text("/status/podIP"), "the sandbox is kept");
    assert_eq!(new.container("c")["image"], "docker.io/local/busybox:2");
    assert_eq!(
        new.container("c")["lastState"]["terminated"]["containerID"],
        format!("containerd://{}", old.id("c"))
    );
    let event = world.event("app", "Killing", "definition changed").unwrap();
    assert_eq!(event.message, "Container c definition changed, will be restarted");
    let config = world.crictl(&["inspect", new.id("c")]).unwrap()["info"]["config"].clone();
    assert_eq!(config["annotations"]["io.kubernetes.container.restartCount"], "1");
    assert_eq!(config["log_path"], "c/1.log");
    assert_eq!(
        config["annotations"]["io.kubernetes.container.hash"],
        container_hash("c", "docker.io/local/busybox:2")
    );
}

#[test]
fn a_removed_file_stops_its_pod_in_its_own_time_and_leaves_nothing() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        let script = ends_when_told("echo up");
        // Whoever waited for the whole grace would not be gone soon.
        world
            .put("going", json!({ "terminationGracePeriodSeconds": 600, "containers": [sh("c", &script)] }))
            .unwrap();
        world.put("staying", json!({ "containers": [idle("c")] })).unwrap();
        let seen = world.running("going").unwrap();
        let staying = world.running("staying").unwrap();
        let uid = seen.uid().to_owned();
        let traces = || traces(&world, "going", &uid);
        assert!(traces().iter().any(|trace| trace.contains("cgroup")), "{:?}", traces());
        assert!(traces().len() >= 5, "{:?}", traces());

        // A reader of its log hears its last words.
        world.logged("going", "c", "up").unwrap();
        let mut words = world.node.follow_logs("default", "going-node", "c", "", SOON).unwrap();
        world.take_away("going").unwrap();
        let going = world
            .wait("going", "the mark of deletion", |pod| pod.0["metadata"]["deletionTimestamp"].is_string());
        let going = going.unwrap();
        assert_eq!(going.0["metadata"]["deletionGracePeriodSeconds"], 600);
        assert_eq!(going.phase(), "Running", "it is not over before it is");
        world.touch(&seen, "c", END).unwrap();
        world.gone("going").unwrap();
        let mut heard = String::new();
        words.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "up\nterm\nbye\n");
        wait_until(SOON, "nothing left", || {
            let left = traces();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:#?}")) }
        })
        .unwrap();
        let now = world.running("staying").unwrap();
        assert_eq!((now.id("c"), now.condition("Ready")), (staying.id("c"), staying.condition("Ready")));
    }
}

/// Everything on the machine that belongs to a pod.
fn traces(world: &World, name: &str, uid: &str) -> Vec<String> {
    let mut found: Vec<String> =
        cgroup_dirs(world, uid).iter().map(|dir| format!("cgroup {}", dir.display())).collect();
    let containers = world.containers_of(uid).unwrap();
    found.extend(containers.iter().map(|container| format!("container {}", container["id"])));
    found.extend(world.sandboxes_of(uid).unwrap().iter().map(|sandbox| format!("sandbox {}", sandbox["id"])));
    let root = world.node.root();
    let pod_dir = root.join("pods").join(uid);
    let log_dir = world.node.pod_logs().join(format!("default_{name}-node_{uid}"));
    found.extend(
        [pod_dir, log_dir]
            .iter()
            .filter(|dir| dir.exists())
            .map(|dir| format!("directory {}", dir.display())),
    );
    let links = entries(&root.join("container-logs"));
    found.extend(links.into_iter().filter(|link| link.starts_with(&format!("{name}-node_"))));
    found
}

fn entries(dir: &Path) -> Vec<String> {
    let read = fs::read_dir(dir).into_iter().flatten();
    read.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_file_that_comes_back_while_its_pod_ends_starts_it_anew() {
    let world = World::start(Flavor::Debian16).unwrap();
    let spec = json!({
        "terminationGracePeriodSeconds": 600,
        "containers": [sh("c", &ends_when_told("echo up"))],
    });
    world.put("back", spec.clone()).unwrap();
    let old = world.running("back").unwrap();
    world.logged("back", "c", "up").unwrap();
    // Times are told in seconds: the next start has to be in another one.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    world.take_away("back").unwrap();
    world.wait("back", "its end to begin", |pod| pod.0["metadata"]["deletionTimestamp"].is_string()).unwrap();
    world.put("back", spec).unwrap();
    world.touch(&old, "c", END).unwrap();
    let new = world
        .wait("back", "a fresh start", |pod| {
            pod.is_true("Ready")
                && pod.0["metadata"]["deletionTimestamp"].is_null()
                && pod.id("c") != old.id("c")
        })
        .unwrap();
    assert_eq!(new.restarts("c"), 0, "it is a new life, not a restart");
    assert!(new.text("/status/startTime") > old.text("/status/startTime"));
    let containers = world.containers_of(new.uid()).unwrap();
    assert_eq!(containers.len(), 1, "nothing of the old one is left: {containers:#?}");
    assert_eq!(world.sandboxes_of(new.uid()).unwrap().len(), 1);
}

#[test]
fn of_several_quick_changes_only_the_last_is_run() {
    let world = World::start(Flavor::Debian16).unwrap();
    let version = |text: &str| {
        json!({
            "terminationGracePeriodSeconds": 600,
            "containers": [sh("c", &ends_when_told(&format!("echo {text}")))],
        })
    };
    world.put("app", version("one")).unwrap();
    let first = world.running("app").unwrap();
    world.logged("app", "c", "one").unwrap();
    for text in ["two", "three", "four"] {
        world.put("app", version(text)).unwrap();
        // Each is noticed while the first one still goes.
        wait_until(SOON, "the change to be noticed", || {
            let pods = world.named("app").map_err(|error| error.to_string())?;
            let known = pods.iter().any(|pod| pod.0["spec"].to_string().contains(&format!("echo {text};")));
            if known { Ok(()) } else { Err(format!("{} pods", pods.len())) }
        })
        .unwrap();
    }
    world.touch(&first, "c", END).unwrap();
    world.running("app").unwrap();
    assert_eq!(world.logged("app", "c", "four").unwrap(), "four\n");
    let started = wait_until(SOON, "the starts to be told of", || {
        let events = world.events("app").map_err(|error| format!("{error:#}"))?;
        let starts = events.iter().filter(|event| event.reason == "Started");
        match starts.map(|event| event.count).sum::<u64>() {
            started if started >= 2 => Ok(started),
            started => Err(format!("{started}")),
        }
    });
    assert_eq!(started.unwrap(), 2, "the first and the last");
}

#[test]
fn a_pod_that_does_not_run_goes_at_once_and_leaves_nothing() {
    let world = World::start(Flavor::Debian16).unwrap();
    let over = json!({ "restartPolicy": "Never", "containers": [sh("c", "exit 0")] });
    let crashing = json!({ "containers": [sh("c", "exit 1")] });
    let stuck = json!({ "initContainers": [sh("c", "exit 1")], "containers": [idle("main")] });
    let unpullable = json!({ "containers": [with(idle("c"), json!({ "image": "docker.io/local/absent:1", "imagePullPolicy": "Never" }))] });
    let pods = [("over", over), ("crashing", crashing), ("stuck", stuck), ("unpullable", unpullable)];
    for (name, spec) in &pods {
        // Whoever waited for a grace would not be gone soon.
        world.put(name, with(spec.clone(), json!({ "terminationGracePeriodSeconds": 600 }))).unwrap();
    }
    let mut uids = Vec::new();
    for (name, _) in &pods {
        let seen = world.wait(name, "its rest", |pod| {
            pod.phase() == "Succeeded" || ["CrashLoopBackOff", "ErrImageNeverPull"].contains(&pod.waits("c"))
        });
        uids.push((*name, seen.unwrap().uid().to_owned()));
    }
    for (name, _) in &pods {
        world.take_away(name).unwrap();
    }
    for (name, uid) in &uids {
        world.gone(name).unwrap();
        wait_until(SOON, "nothing left", || {
            let left = traces(&world, name, uid);
            if left.is_empty() { Ok(()) } else { Err(format!("{left:#?}")) }
        })
        .unwrap();
    }
    assert!(world.pods().unwrap().is_empty());
}
