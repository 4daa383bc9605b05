//! The node's gRPC sockets, asked by Python's gRPC with stubs from `proto/`.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use mainstay_e2e::{Everybody, Listening, PodSeen, SOON, World, ask, idle, node_api, sh, with};
use mainstay_testkit::{Containerd, Flavor, Node, mainstay_binary, wait_until};
use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde_json::{Value, json};

const SOCKETS: [&str; 3] = ["pod-info/kubelet.sock", "pods-api/pods-api.sock", "pod-resources/kubelet.sock"];

fn code(answer: &Value) -> &str {
    answer["code"].as_str().unwrap_or_default()
}

fn failure(code: &str, message: &str) -> Value {
    json!({"code": code, "message": message})
}

/// A counter on `/metrics`, 0 if it is not there.
fn counted(node: &Node, series: &str) -> u64 {
    let text = node.get("/metrics").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map_or(0, |count| count.parse().unwrap())
}

/// Waits until calls are counted: one may be after its answer was read.
#[track_caller]
fn all_counted(node: &Node, expected: &[(String, u64)]) {
    wait_until(SOON, "the calls to be counted", || {
        let found: Vec<_> = expected.iter().map(|(it, _)| (it.clone(), counted(node, it))).collect();
        if found == expected { Ok(()) } else { Err(format!("{found:#?}")) }
    })
    .unwrap();
}

fn web() -> Value {
    let resources = json!({"resources": {
        "requests": {"cpu": "100m", "memory": "16Mi"}, "limits": {"memory": "64Mi"},
    }, "ports": [{"name": "http", "containerPort": 8080}], "env": [{"name": "A", "value": "ü"}]});
    json!({
        "terminationGracePeriodSeconds": 1,
        "initContainers": [sh("setup", "true"), with(idle("sidecar"), json!({"restartPolicy": "Always"}))],
        "containers": [with(idle("a"), resources), idle("b")],
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}],
    })
}

/// P2, P3, P6 and P12.
#[test]
fn pods_and_their_conditions_in_another_language() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        world.put("web", web()).unwrap();
        let seen = world.running("web").unwrap();
        check_pods(&world, &seen);
        check_conditions(&world, &seen);
    }
}

/// The example in Rust, as `cargo build` makes it.
#[test]
fn the_client_in_rust_is_answered() {
    let world = World::start(Flavor::Debian16).unwrap();
    world.put("web", web()).unwrap();
    world.wait("web", "its readiness", |pod| pod.is_true("Ready")).unwrap();
    let program = mainstay_binary().unwrap().with_file_name("node-api");
    assert!(program.is_file(), "cargo build -p mainstay-node-api");
    let says = |word: &str| -> Vec<String> {
        let output = Command::new(&program).arg("--root").arg(world.node.root()).arg(word).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    };
    let name = format!("default/{}", world.full_name("web"));
    let expected = |word: &str| match word {
        "pods" => vec![format!("{name} Running")],
        "conditions" => vec![format!("{name} ready")],
        _ => ["sidecar", "a", "b"].map(|container| format!("{name} {container} cpus [] devices []")).to_vec(),
    };
    for word in ["pods", "conditions", "resources"] {
        wait_until(SOON, word, || {
            let said = says(word);
            if said == expected(word) { Ok(()) } else { Err(said.join("; ")) }
        })
        .unwrap();
    }
    let mut watch = Command::new(&program);
    watch.arg("--root").arg(world.node.root()).arg("watch-pods").stdout(Stdio::piped());
    let mut watch = watch.spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), format!("ADDED {name} Running"));
    assert_eq!(lines.next().unwrap(), "INITIAL_SYNC_COMPLETE / ");
    world.take_away("web").unwrap();
    assert!(lines.any(|line| line.starts_with(&format!("DELETED {name}"))));
    watch.kill().unwrap();
    watch.wait().unwrap();
}

fn check_pods(world: &World, seen: &PodSeen) {
    let list = ask(&world.node, &["list"]).unwrap();
    let pod = list[0].clone();
    assert_eq!(list.as_array().unwrap().len(), 1);
    for path in [
        "/metadata/name",
        "/metadata/uid",
        "/metadata/annotations",
        "/status/phase",
        "/status/podIP",
        "/status/qosClass",
    ] {
        assert_eq!(pod.pointer(path), seen.0.pointer(path), "{path}");
    }
    assert_eq!(pod["spec"]["containers"][0]["env"], json!([{"name": "A", "value": "ü"}]));
    assert_eq!(pod["spec"]["containers"][0]["ports"][0]["containerPort"], 8080);
    assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"], json!({"memory": {"string": "64Mi"}}));
    assert_eq!(pod["spec"]["initContainers"][1]["restartPolicy"], "Always");
    assert_eq!(
        pod["spec"]["volumes"][0],
        json!({"name": "v", "volumeSource": {"emptyDir": {"sizeLimit": {"string": "1Mi"}}}})
    );
    let ids = |pod: &Value| -> Vec<String> {
        let statuses = pod["status"]["containerStatuses"].as_array().unwrap();
        statuses.iter().map(|status| status["containerID"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&pod), ids(&seen.0));
    assert_eq!(ask(&world.node, &["get", seen.uid()]).unwrap(), pod);
    for uid in ["none", ""] {
        let message = format!("pod with UID {uid} not found");
        assert_eq!(ask(&world.node, &["get", uid]).unwrap(), failure("NOT_FOUND", &message));
    }
    let mask = "metadata.name,spec.containers.name,status.phase";
    let masked = ask(&world.node, &["get", seen.uid(), "--mask", mask]).unwrap();
    let expected = json!({
        "metadata": {"name": world.full_name("web")},
        "spec": {"containers": [{"name": "a"}, {"name": "b"}]},
        "status": {"phase": "Running"},
    });
    assert_eq!(masked, expected);
    assert_eq!(ask(&world.node, &["list", "--mask", mask]).unwrap(), json!([expected]));
    for what in ["list", "watch"] {
        let refused = ask(&world.node, &[what, "--mask", "spec.contaners"]).unwrap();
        let message = r#"field mask: "spec.contaners" is not a field of a pod: PodSpec has no "contaners""#;
        assert_eq!(refused, failure("INVALID_ARGUMENT", message));
    }
    let series = |name: &str, code: &str| {
        format!("kubelet_pod_requests_{name}{{server_api_version=\"v1alpha1\",status_code=\"{code}\"}}")
    };
    let expected = [
        (series("list_total", "OK"), 2),
        (series("get_total", "OK"), 2),
        (series("get_total", "NotFound"), 2),
        (series("watch_total", "InvalidArgument"), 1),
        (series("total", "OK"), 4),
    ];
    all_counted(&world.node, &expected);
}

fn check_conditions(world: &World, seen: &PodSeen) {
    let list = ask(&world.node, &["conditions"]).unwrap();
    let pod = &list["Pods"][0];
    assert_eq!(pod["podUID"], seen.uid());
    assert_eq!((&pod["podNamespace"], &pod["static"]), (&json!("default"), &json!(true)));
    assert_eq!(pod["podName"], seen.0["metadata"]["name"]);
    assert!(pod.get("DeletionTimestamp").is_none(), "{pod}");
    let told: Vec<(&str, &str)> = pod["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|condition| (condition["Type"].as_str().unwrap(), condition["Status"].as_str().unwrap()))
        .collect();
    let known: Vec<(&str, &str)> = seen.0["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|condition| (condition["type"].as_str().unwrap(), condition["status"].as_str().unwrap()))
        .collect();
    assert_eq!(told, known);
    assert!(told.contains(&("Ready", "True")) && told.len() >= 4, "{told:?}");
    assert_eq!(&ask(&world.node, &["get-conditions", seen.uid()]).unwrap(), pod);
    assert_eq!(code(&ask(&world.node, &["get-conditions", "none"]).unwrap()), "NOT_FOUND");
    assert_eq!(code(&ask(&world.node, &["get-conditions", ""]).unwrap()), "INVALID_ARGUMENT");
    let expected = [
        ("requests_total", 4),
        ("requests_list", 1),
        ("requests_get", 3),
        ("errors_list", 0),
        ("errors_get", 2),
    ];
    let expected = expected.map(|(name, count)| {
        (format!("kubelet_pod_info_endpoint_{name}{{server_api_version=\"v1alpha1\"}}"), count)
    });
    all_counted(&world.node, &expected);
}

/// P4, P5, P10 and P14.
#[test]
fn a_watch_tells_what_happens_to_pods() {
    let world = World::start(Flavor::Debian16).unwrap();
    world.put("first", json!({"terminationGracePeriodSeconds": 1, "containers": [idle("c")]})).unwrap();
    let first = world.running("first").unwrap();
    let watch = Listening::start(node_api(&world.node, &["watch"]).unwrap()).unwrap();
    let names =
        Listening::start(node_api(&world.node, &["watch", "--mask", "metadata.name"]).unwrap()).unwrap();
    let conditions = Listening::start(node_api(&world.node, &["watch-conditions"]).unwrap()).unwrap();
    for watch in [&watch, &names] {
        watch
            .wait("the end of the beginning", |said| {
                (said.get(1)? == &json!({"type": "INITIAL_SYNC_COMPLETE", "pod": {}})).then_some(())
            })
            .unwrap();
    }
    assert_eq!(watch.said()[0]["type"], "ADDED");
    assert_eq!(watch.said()[0]["pod"]["metadata"]["uid"], first.uid());
    let count = |said: &[Value]| said.last().map(|last| last["Pods"].as_array().unwrap().len());
    conditions.wait("one pod", |said| (count(said)? == 1).then_some(())).unwrap();

    // Ready only when it is told to be, so that it is heard of before.
    let probe = json!({"exec": {"command": ["/bin/sh", "-c", "test -e /tmp/ready"]}, "periodSeconds": 1, "timeoutSeconds": 20});
    let container = with(idle("c"), json!({"readinessProbe": probe}));
    world.put("second", json!({"terminationGracePeriodSeconds": 1, "containers": [container]})).unwrap();
    let second = world.wait("second", "that it runs", |pod| pod.runs("c")).unwrap();
    let is_ready = |event: &Value| {
        let conditions = event["pod"]["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|it| it["type"] == "Ready" && it["status"] == "True")
    };
    let of = |said: &[Value], uid: &str| -> Vec<Value> {
        said.iter().filter(|event| event["pod"]["metadata"]["uid"] == uid).cloned().collect()
    };
    let ready = |said: &[Value]| of(said, second.uid()).last().filter(|event| is_ready(event)).map(|_| ());
    watch.wait("the second pod", |said| (!of(said, second.uid()).is_empty()).then_some(())).unwrap();
    world.touch(&second, "c", "/tmp/ready").unwrap();
    watch.wait("the second pod ready", ready).unwrap();
    conditions.wait("two pods", |said| (count(said)? == 2).then_some(())).unwrap();
    world.take_away("second").unwrap();
    world.gone("second").unwrap();
    let last = watch
        .wait("the end of the second pod", |said| {
            of(said, second.uid()).pop().filter(|event| event["type"] == "DELETED")
        })
        .unwrap();
    let remains =
        json!({"metadata": {"name": world.full_name("second"), "namespace": "default", "uid": second.uid()}});
    assert_eq!(last["pod"], remains);
    conditions.wait("one pod again", |said| (count(said)? == 1).then_some(())).unwrap();

    let events = of(&watch.said(), second.uid());
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let (middle, ends) = (&kinds[1..kinds.len() - 1], [kinds[0], kinds[kinds.len() - 1]]);
    assert_eq!(ends, ["ADDED", "DELETED"]);
    assert!(!middle.is_empty() && middle.iter().all(|kind| *kind == "MODIFIED"), "{kinds:?}");
    let deleting: Vec<bool> = events[..events.len() - 1]
        .iter()
        .map(|event| event["pod"]["metadata"].get("deletionTimestamp").is_some())
        .collect();
    assert!(deleting.is_sorted(), "once it is being deleted it stays so: {deleting:?}");
    // Only names: nothing that changed afterwards has one.
    let said = names
        .wait("the end of the second pod", |said| (said.last()?["type"] == "DELETED").then(|| said.to_vec()))
        .unwrap();
    let kinds: Vec<_> = said.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["ADDED", "INITIAL_SYNC_COMPLETE", "ADDED", "DELETED"]);

    drop(watch);
    let canceled =
        "kubelet_pod_requests_watch_total{server_api_version=\"v1alpha1\",status_code=\"Canceled\"}";
    wait_until(SOON, "the watch to be counted", || match counted(&world.node, canceled) {
        1 => Ok(()),
        other => Err(other.to_string()),
    })
    .unwrap();
}

/// R1, R2, R5, R6, R8, R9, R10, R11, R14, R15, R16 and R22.
#[test]
fn who_holds_what() {
    let world = World::start(Flavor::Debian16).unwrap();
    world.put("web", web()).unwrap();
    let amounts = |cpu: &str| json!({"cpu": cpu, "memory": "64Mi"});
    let jobs = [
        ("job-besteffort", "BestEffort", json!({})),
        ("job-burstable", "Burstable", json!({"requests": amounts("100m")})),
        ("job-guaranteed", "Guaranteed", json!({"requests": amounts("100m"), "limits": amounts("100m")})),
    ];
    for (name, _, resources) in &jobs {
        let container = with(sh("c", "true"), json!({"resources": resources}));
        world.put(name, json!({"restartPolicy": "Never", "containers": [container]})).unwrap();
    }
    let web = world.full_name("web");
    world.running("web").unwrap();
    let watch = Listening::start(node_api(&world.node, &["watch-resources"]).unwrap()).unwrap();
    let is_over = |pod: &PodSeen| pod.phase() == "Succeeded" && !pod.is_true("PodReadyToStartContainers");
    for (name, class, _) in &jobs {
        let job = world.wait(name, "its end and that of its sandbox", is_over).unwrap();
        assert_eq!(job.text("/status/qosClass"), *class);
    }
    let jobs = jobs.map(|(name, ..)| world.full_name(name));
    let [first, second, third] = jobs.each_ref().map(String::as_str);
    let nothing = |name: &str| json!({"name": name, "devices": [], "cpu_ids": [], "memory": [], "dynamic_resources": []});
    let containers = ["sidecar", "a", "b"].map(nothing);
    let expected =
        json!({"name": web, "namespace": "default", "containers": containers, "cpu_ids": [], "memory": []});
    let list = json!({"pod_resources": [expected]});
    // That it was stopped is seen before it is noted, and until then it is not over.
    let mut lists = 0;
    wait_until(SOON, "only the pod that runs: what is over holds nothing", || {
        lists += 1;
        let said = ask(&world.node, &["resources"]).map_err(|error| format!("{error:#}"))?;
        if said == list { Ok(()) } else { Err(said.to_string()) }
    })
    .unwrap();
    watch.wait("only the pod that runs", |said| (said.last()? == &list).then_some(())).unwrap();
    let one = ask(&world.node, &["get-resources", "default", &web]).unwrap();
    assert_eq!(one, json!({"pod_resources": expected}));
    for (namespace, name) in [
        ("default", first),
        ("default", second),
        ("default", third),
        ("default", "none"),
        ("kube-system", &web),
    ] {
        let message = format!("pod {name} in namespace {namespace} not found");
        assert_eq!(
            ask(&world.node, &["get-resources", namespace, name]).unwrap(),
            failure("UNKNOWN", &message)
        );
    }
    let old = |name: &str, containers: &[&str]| {
        let containers: Vec<_> = containers.iter().map(|name| json!({"name": name, "devices": []})).collect();
        json!({"name": name, "namespace": "default", "containers": containers})
    };
    assert_eq!(
        ask(&world.node, &["resources-v1alpha1"]).unwrap(),
        json!({"pod_resources": [old(first, &["c"]), old(second, &["c"]), old(third, &["c"]), old(&web, &["a", "b"])]}),
        "the first version lists everything"
    );
    let allocatable = ask(&world.node, &["allocatable"]).unwrap();
    assert_eq!(allocatable, json!({"devices": [], "cpu_ids": [], "memory": []}), "nothing is given out");
    let expected = [
        ("requests_total", "v1", lists + 7),
        ("requests_total", "v1alpha1", 1),
        ("requests_list", "v1", lists),
        ("requests_list", "v1alpha1", 0),
        ("requests_get", "v1", 6),
        ("errors_get", "v1", 5),
        ("requests_get_allocatable", "v1", 1),
    ];
    let expected = expected.map(|(name, version, count)| {
        (format!("kubelet_pod_resources_endpoint_{name}{{server_api_version=\"{version}\"}}"), count)
    });
    all_counted(&world.node, &expected);
}

/// P11 and R12.
#[test]
fn what_is_switched_off_is_not_there() {
    let mut world = World::start(Flavor::Debian16).unwrap();
    for socket in SOCKETS {
        let path = world.node.root().join(socket);
        assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket());
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o750);
    }
    // Nobody removes them.
    world.node.kill9();
    assert!(SOCKETS.iter().all(|socket| world.node.root().join(socket).exists()));
    let (containerd, root) = (world.containerd, world.node.root().to_owned());
    drop(world.node);
    let gates = "{featureGates: {PodInfoAPI: false, PodsAPI: false, KubeletPodResourcesGetAllocatable: false, \
                 KubeletPodResourcesListUseActivePods: false}}";
    fs::create_dir_all(root.join("pods-api")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(root.join("pods-api/pods-api.sock")));
    let node = Node::builder().containerd(&containerd).root(&root).config(gates).start().unwrap();
    world = World { node, containerd };
    world.put("job", json!({"restartPolicy": "Never", "containers": [sh("c", "true")]})).unwrap();
    world.wait("job", "its end", |pod| pod.phase() == "Succeeded").unwrap();
    assert!(!root.join(SOCKETS[0]).exists() && !root.join(SOCKETS[1]).exists(), "nothing stale");
    for words in [&["list"][..], &["get", "x"], &["conditions"], &["get-conditions", "x"]] {
        assert_eq!(code(&ask(&world.node, words).unwrap()), "UNAVAILABLE", "{words:?}");
    }
    let refused = failure("UNKNOWN", "PodResources API GetAllocatableResources disabled");
    assert_eq!(ask(&world.node, &["allocatable"]).unwrap(), refused);
    let errors = "kubelet_pod_resources_endpoint_errors_get_allocatable{server_api_version=\"v1\"}";
    all_counted(&world.node, &[(errors.to_owned(), 1)]);
    let list = ask(&world.node, &["resources"]).unwrap();
    assert_eq!(list["pod_resources"][0]["name"], world.full_name("job").as_str(), "also what is over");
    let job = world.full_name("job");
    wait_until(SOON, "the end of the job's sandbox", || {
        let answer =
            ask(&world.node, &["get-resources", "default", &job]).map_err(|error| error.to_string())?;
        if code(&answer) == "UNKNOWN" { Ok(()) } else { Err(answer.to_string()) }
    })
    .unwrap();
    world.node.sigterm().unwrap();
    assert!(!root.join(SOCKETS[2]).exists(), "it goes with mainstay");
}

/// P7 the other way (a restart is no evidence) and P13.
#[test]
fn a_restart_is_never_seen_as_a_pod_that_is_not_ready() {
    let mut world = World::start(Flavor::Debian16).unwrap();
    let names: Vec<String> = (0..5).map(|number| format!("pod-{number}")).collect();
    for name in &names {
        world.put(name, json!({"terminationGracePeriodSeconds": 1, "containers": [idle("c")]})).unwrap();
    }
    for name in &names {
        world.running(name).unwrap();
    }
    let everybody = Everybody::listens(&world.node, names.iter().map(|name| world.full_name(name))).unwrap();
    world.node.kill9();
    everybody.are_refused().unwrap();
    world.node.start_again().unwrap();
    wait_until(SOON, "all pods after the restart", || {
        let said = ask(&world.node, &["conditions"]).map_err(|error| format!("{error:#}"))?;
        if said["Pods"].as_array().is_some_and(|pods| pods.len() == 5) {
            Ok(())
        } else {
            Err(said.to_string())
        }
    })
    .unwrap();
    // The client goes on for a while after everything is known again.
    let series = "kubelet_pod_info_endpoint_requests_list{server_api_version=\"v1alpha1\"}";
    let enough = counted(&world.node, series) + 100;
    wait_until(SOON, "more answers", || match counted(&world.node, series) {
        now if now >= enough => Ok(()),
        now => Err(format!("{now} of {enough}")),
    })
    .unwrap();
    everybody.were_told_the_whole_or_nothing().unwrap();
}

#[test]
fn nothing_is_told_before_everything_is_known() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    // A runtime that is not there is waited for.
    let missing = "unix:///run/mainstay-e2e-no-such-runtime.sock";
    let mut node = Node::builder().containerd(&containerd).endpoint(missing).spawn().unwrap();
    wait_until(SOON, "the sockets", || {
        let there = SOCKETS.iter().all(|socket| node.root().join(socket).exists());
        if there { Ok(()) } else { Err(node.log()) }
    })
    .unwrap();
    let initializing = failure("FAILED_PRECONDITION", "Kubelet is initializing");
    for words in [
        &["list"][..],
        &["watch"],
        &["get", "x"],
        &["conditions"],
        &["watch-conditions"],
        &["get-conditions", "x"],
        &["resources"],
        &["watch-resources"],
        &["get-resources", "a", "b"],
        &["resources-v1alpha1"],
    ] {
        assert_eq!(ask(&node, words).unwrap(), initializing, "{words:?}");
    }
    let failed =
        "kubelet_pod_requests_total{server_api_version=\"v1alpha1\",status_code=\"FailedPrecondition\"}";
    all_counted(&node, &[(failed.to_owned(), 3)]);
    node.kill9();
}

/// R21.
#[test]
fn one_who_asks_too_often_takes_nothing_from_others() {
    let world = World::start(Flavor::Debian16).unwrap();
    world.put("agent", json!({"terminationGracePeriodSeconds": 1, "containers": [idle("c")]})).unwrap();
    let agent = world.running("agent").unwrap();
    // The client is put into the cgroup of the pod, and so is the pod's.
    let pid = world.crictl(&["inspect", agent.id("c")]).unwrap()["info"]["pid"].as_u64().unwrap();
    let procs: Vec<String> = cgroups_of(pid).iter().map(|dir| format!("{dir}/cgroup.procs")).collect();
    assert!(!procs.is_empty());
    let client = node_api(&world.node, &["flood", "10"]).unwrap();
    let mut flood = Command::new("/bin/sh");
    let script = format!("for f in {}; do echo $$ > $f || exit 7; done; exec \"$@\"", procs.join(" "));
    flood.args(["-c", &script, "sh"]).arg(client.get_program()).args(client.get_args());
    let begun = Instant::now();
    let flood = Listening::start(flood).unwrap();
    let asked = "kubelet_pod_requests_list_total{server_api_version=\"v1alpha1\",status_code=\"OK\"}";
    wait_until(SOON, "the flood", || match counted(&world.node, asked) {
        0 => Err("nobody asked".to_owned()),
        _ => Ok(()),
    })
    .unwrap();
    for _ in 0..5 {
        assert!(ask(&world.node, &["list"]).unwrap().is_array(), "root has a budget of its own");
    }
    let said = flood.ended(SOON).unwrap();
    let codes = &said[0];
    let count = |name: &str| codes[name].as_u64().unwrap_or_default();
    assert!(count("OK") >= 10 && count("RESOURCE_EXHAUSTED") > 0, "{codes}");
    assert_eq!(codes.as_object().unwrap().len(), 2, "{codes}");
    // 100 a second and 10 at once, in the time that the client had at most.
    let most = 10 + 100 * (begun.elapsed().as_secs() + 1);
    assert!(count("OK") <= most, "{most}: {codes}");
}

/// A list has no place to say which source is missing in it.
#[test]
fn nothing_is_told_while_a_source_has_never_answered() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let nowhere = "{staticPodURL: \"http://127.0.0.1:9/pods\"}";
    let node = Node::builder().containerd(&containerd).config(nowhere).spawn().unwrap();
    // `/pods` is served after some time, and `/mainstay/v1/` says whom it lacks.
    wait_until(SOON, "the list of pods", || match node.http().get("/pods") {
        Ok(answer) if answer.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    let message =
        "Kubelet is initializing: its pods are not known yet from staticPodURL http://127.0.0.1:9/pods";
    for words in [
        &["list"][..],
        &["watch"],
        &["conditions"],
        &["watch-conditions"],
        &["resources"],
        &["resources-v1alpha1"],
        &["watch-resources"],
    ] {
        assert_eq!(ask(&node, words).unwrap(), failure("FAILED_PRECONDITION", message), "{words:?}");
    }
}

/// The directories of a process's cgroups.
fn cgroups_of(pid: u64) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let dirs = text.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let mount = if controllers.is_empty() {
            "/sys/fs/cgroup".to_owned()
        } else {
            format!("/sys/fs/cgroup/{controllers}")
        };
        let dir = format!("{mount}{path}");
        // One hierarchy is enough for the kernel to say whose the process is. In systemd's slices the name of a pod's ends with it.
        let is_pods = path.contains("/pod") || path.contains("-pod");
        (is_pods && Path::new(&dir).is_dir() && !controllers.contains("cpuset")).then_some(dir)
    });
    dirs.take(1).collect()
}

#[test]
fn members_of_a_group_may_ask() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let args = ["--local-api-group=54321", "--local-api-mode=0710"];
    let node = Node::builder().containerd(&containerd).args(args).start().unwrap();
    for socket in SOCKETS {
        let path = node.root().join(socket);
        let (directory, socket) =
            (fs::metadata(path.parent().unwrap()).unwrap(), fs::metadata(&path).unwrap());
        assert_eq!((directory.gid(), directory.mode() & 0o777), (54321, 0o710));
        assert_eq!((socket.gid(), socket.mode() & 0o777), (54321, 0o660));
    }
    assert_eq!(fs::metadata(node.root()).unwrap().mode() & 0o001, 0o001, "they get through");
    // Who connects is this thread's business alone.
    let connects = |group: u32| {
        let path = node.root().join(SOCKETS[1]);
        let member = std::thread::spawn(move || {
            let (user, group) = (Uid::from_raw(54322), Gid::from_raw(group));
            set_thread_groups(&[]).unwrap();
            set_thread_res_gid(group, group, group).unwrap();
            set_thread_res_uid(user, user, user).unwrap();
            UnixStream::connect(path).map(drop).map_err(|error| error.kind())
        });
        member.join().unwrap()
    };
    assert_eq!(connects(54321), Ok(()));
    assert_eq!(connects(54323), Err(std::io::ErrorKind::PermissionDenied));
}
