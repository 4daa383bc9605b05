//! What containers may do, and what is said when they ask for what cannot be.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs;

use mainstay_e2e::{World, idle, sh, with};
use mainstay_testkit::{Containerd, Flavor, Image};
use serde_json::{Value, json};

/// A container that prints something and stays.
fn printing(name: &str, script: &str, more: Value) -> Value {
    with(sh(name, &format!("{script}; echo printed; sleep 1000")), more)
}

/// A pod of such containers.
fn of(containers: &[Value], more: Value) -> Value {
    with(json!({ "terminationGracePeriodSeconds": 1, "containers": containers }), more)
}

fn log(world: &World, pod: &str, container: &str) -> String {
    world.logged(pod, container, "printed").unwrap()
}

/// The value behind a line's `key:` in `/proc/self/status`.
fn status<'a>(log: &'a str, key: &str) -> &'a str {
    let line = log.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {key} in\n{log}")).trim()
}

const STATUS: &str = "cat /proc/self/status";

#[test]
fn processes_have_the_users_and_groups_that_were_asked_for() {
    for flavor in Flavor::ALL {
        let users = Image::named("docker.io/local/users:1")
            .file("/etc/passwd", "root:x:0:0::/:/bin/sh\nalice:x:1234:1235::/:/bin/sh\n")
            .file("/etc/group", "root:x:0:\nalice:x:1235:\nteam:x:4000:alice\n");
        let numeric = Image::named("docker.io/local/numeric:1").user("1300");
        let by_name = Image::named("docker.io/local/by-name:1")
            .user("alice")
            .file("/etc/passwd", "root:x:0:0::/:/bin/sh\nalice:x:1234:1235::/:/bin/sh\n");
        let (users_name, numeric_name, by_name_name) =
            (users.name().to_owned(), numeric.name().to_owned(), by_name.name().to_owned());
        let containerd =
            Containerd::builder(flavor).image(users).image(numeric).image(by_name).start().unwrap();
        let world = World::on(containerd, "{}").unwrap();
        let id = "echo user=$(id -u) group=$(id -g) groups=$(id -G)";
        let image = |name: &str| json!({ "image": name, "imagePullPolicy": "Never" });
        let containers = [
            printing("pods", id, json!({})),
            printing("own", id, json!({ "securityContext": { "runAsUser": 2000, "runAsGroup": 2001 } })),
        ];
        let context = json!({ "runAsUser": 1500, "runAsGroup": 1501, "fsGroup": 5000, "supplementalGroups": [6000, 6001], "runAsNonRoot": true });
        world.put("pod", of(&containers, json!({ "securityContext": context }))).unwrap();
        let merged = [printing("c", id, image(&users_name))];
        let context = json!({ "runAsUser": 1234, "supplementalGroups": [6000] });
        world.put("merge", of(&merged, json!({ "securityContext": context }))).unwrap();
        world
            .put(
                "image",
                of(
                    &[printing("c", id, image(&numeric_name))],
                    json!({ "securityContext": { "runAsNonRoot": true } }),
                ),
            )
            .unwrap();
        world.put("named", of(&[printing("c", id, image(&by_name_name))], json!({}))).unwrap();
        let not_root = json!({ "securityContext": { "runAsNonRoot": true } });
        world
            .put("named-not-root", of(&[printing("c", id, image(&by_name_name))], not_root.clone()))
            .unwrap();
        world
            .put("root", of(&[with(idle("c"), json!({ "securityContext": { "runAsUser": 0 } }))], not_root))
            .unwrap();

        let has = |pod: &str, container: &str, wanted: &str| {
            let log = log(&world, pod, container);
            assert!(log.lines().any(|line| line == wanted), "{pod}/{container}: {wanted:?} is not in {log}");
        };
        has("pod", "pods", "user=1500 group=1501 groups=1501 5000 6000 6001");
        has("pod", "own", "user=2000 group=2001 groups=2001 5000 6000 6001");
        has("image", "c", "user=1300 group=0 groups=0");
        has("named", "c", "user=1234 group=1235 groups=1235");
        // The image's own memberships are added to those of the spec.
        let log = log(&world, "merge", "c");
        let groups = log.lines().find_map(|line| line.split_once("groups=")).unwrap().1;
        assert!(
            groups.split(' ').any(|group| group == "6000") && groups.split(' ').any(|group| group == "4000"),
            "{log}"
        );
        for (pod, message) in [
            (
                "named-not-root",
                "container has runAsNonRoot and image has non-numeric user (alice), cannot verify user is non-root",
            ),
            ("root", "container's runAsUser breaks non-root policy"),
        ] {
            let seen =
                world.wait(pod, "its refusal", |pod| pod.waits("c") == "CreateContainerConfigError").unwrap();
            assert!(seen.waiting_message("c").starts_with(message), "{}", seen.waiting_message("c"));
            world.event(pod, "Failed", message).unwrap();
        }
        // Only newer runtimes can leave the image's memberships out; they also tell who a container runs as.
        if flavor == Flavor::Built24 {
            let strict = json!({ "runAsUser": 1234, "supplementalGroups": [6000], "supplementalGroupsPolicy": "Strict" });
            world
                .put(
                    "strict",
                    of(&[printing("c", id, image(&users_name))], json!({ "securityContext": strict })),
                )
                .unwrap();
            let log = world.logged("strict", "c", "printed").unwrap();
            assert!(log.contains("groups=1235 6000\n"), "{log}");
            let seen = world.running("strict").unwrap();
            assert_eq!(
                seen.container("c")["user"],
                json!({ "linux": { "uid": 1234, "gid": 1235, "supplementalGroups": [1235, 6000] } })
            );
        }
    }
}

#[test]
fn capabilities_and_privileges_are_as_asked() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        let context = |context: Value| json!({ "securityContext": context });
        let containers = [
            printing("plain", STATUS, json!({})),
            printing("none", STATUS, context(json!({ "capabilities": { "drop": ["ALL"] } }))),
            printing(
                "two",
                STATUS,
                context(json!({ "capabilities": { "drop": ["ALL"], "add": ["NET_ADMIN", "CHOWN"] } })),
            ),
            printing("more", STATUS, context(json!({ "capabilities": { "add": ["SYS_TIME"] } }))),
            printing("limited", STATUS, context(json!({ "allowPrivilegeEscalation": false }))),
            printing("all", &format!("{STATUS}; ls /dev | wc -l"), context(json!({ "privileged": true }))),
        ];
        world.put("pod", of(&containers, json!({}))).unwrap();
        let bits = |name: &str| u64::from_str_radix(status(&log(&world, "pod", name), "CapEff"), 16).unwrap();
        let (chown, net_admin, sys_admin, sys_time) = (1 << 0, 1 << 12, 1 << 21, 1 << 25);
        assert_eq!(bits("none"), 0);
        assert_eq!(bits("two"), chown | net_admin);
        assert_eq!(bits("more"), bits("plain") | sys_time);
        assert_eq!(bits("plain") & (sys_admin | sys_time), 0);
        assert_ne!(bits("all") & sys_admin, 0);
        assert_eq!(status(&log(&world, "pod", "limited"), "NoNewPrivs"), "1");
        assert_eq!(status(&log(&world, "pod", "plain"), "NoNewPrivs"), "0");
        // The sandbox is as privileged as the most privileged container.
        let seen = world.running("pod").unwrap();
        let sandbox = world.sandboxes_of(seen.uid()).unwrap()[0]["id"].as_str().unwrap().to_owned();
        let config = world.crictl(&["inspectp", &sandbox]).unwrap()["info"]["config"].clone();
        assert_eq!(config["linux"]["security_context"]["privileged"], true);
    }
}

#[test]
fn parts_of_proc_and_the_root_file_system_are_closed() {
    let world = World::start(Flavor::Debian16).unwrap();
    let script = "echo kcore=$(head -c 1 /proc/kcore | wc -c); echo keys=$(wc -c < /proc/keys); \
                  (echo 1 > /proc/sys/kernel/domainname) 2>/dev/null && echo sys=open || echo sys=closed; \
                  touch /x 2>/dev/null && echo root=open || echo root=closed";
    let closed = json!({ "securityContext": { "readOnlyRootFilesystem": true, "procMount": "Default" } });
    let containers = [printing("plain", script, json!({})), printing("closed", script, closed)];
    world.put("pod", of(&containers, json!({}))).unwrap();
    for (name, root) in [("plain", "root=open"), ("closed", "root=closed")] {
        let log = log(&world, "pod", name);
        for line in ["kcore=0", "keys=0", "sys=closed", root] {
            assert!(log.lines().any(|have| have == line), "{name}: no {line} in {log}");
        }
    }
}

#[test]
fn system_calls_are_filtered_by_the_profile_asked_for() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        let profiles = world.node.root().join("seccomp/team");
        fs::create_dir_all(&profiles).unwrap();
        let no_mkdir = json!({
            "defaultAction": "SCMP_ACT_ALLOW",
            "architectures": ["SCMP_ARCH_X86_64"],
            "syscalls": [{ "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO" }],
        });
        fs::write(profiles.join("no-mkdir.json"), no_mkdir.to_string()).unwrap();
        fs::write(profiles.join("broken.json"), "{").unwrap();
        let script = format!("{STATUS}; mkdir /tmp/x 2>/dev/null && echo mkdir=yes || echo mkdir=no");
        let profile = |kind: &str, file: Option<&str>| {
            let mut profile = json!({ "type": kind });
            if let Some(file) = file {
                profile["localhostProfile"] = json!(file);
            }
            json!({ "securityContext": { "seccompProfile": profile } })
        };
        let containers = [
            printing("inherits", &script, json!({})),
            printing("free", &script, profile("Unconfined", None)),
            printing("own", &script, profile("Localhost", Some("team/no-mkdir.json"))),
        ];
        world.put("pod", of(&containers, profile("RuntimeDefault", None))).unwrap();
        world.put("unsaid", of(&[printing("c", &script, json!({}))], json!({}))).unwrap();
        world
            .put(
                "missing",
                of(
                    &[with(idle("c"), profile("Localhost", Some("team/none.json"))), idle("other")],
                    json!({}),
                ),
            )
            .unwrap();
        world
            .put(
                "broken",
                of(
                    &[with(idle("c"), profile("Localhost", Some("team/broken.json"))), idle("other")],
                    json!({}),
                ),
            )
            .unwrap();
        for (pod, name, filter, mkdir) in [
            ("pod", "inherits", "2", "mkdir=yes"),
            ("pod", "free", "0", "mkdir=yes"),
            ("pod", "own", "2", "mkdir=no"),
            ("unsaid", "c", "0", "mkdir=yes"),
        ] {
            let log = log(&world, pod, name);
            assert_eq!(status(&log, "Seccomp"), filter, "{pod}/{name}");
            assert!(log.lines().any(|line| line == mkdir), "{pod}/{name}: {log}");
        }
        for (pod, file) in [("missing", "team/none.json"), ("broken", "team/broken.json")] {
            let seen = world
                .wait(pod, "its refusal", |pod| {
                    pod.waits("c").starts_with("CreateContainer") && pod.runs("other")
                })
                .unwrap();
            let message = seen.waiting_message("c").to_owned();
            assert!(message.contains(file), "the file is named: {message}");
            let told = format!("Error: {message}");
            assert_eq!(world.event(pod, "Failed", &told).unwrap().message, told);
        }
        // A profile that is put there helps without anybody touching the pod.
        fs::write(profiles.join("none.json"), no_mkdir.to_string()).unwrap();
        world.running("missing").unwrap();
    }
}

#[test]
fn with_seccomp_default_containers_are_filtered_unless_they_say_otherwise() {
    let world = World::with_config(Flavor::Debian16, "{seccompDefault: true}").unwrap();
    let free = json!({ "securityContext": { "seccompProfile": { "type": "Unconfined" } } });
    world
        .put("pod", of(&[printing("c", STATUS, json!({})), printing("free", STATUS, free)], json!({})))
        .unwrap();
    assert_eq!(status(&log(&world, "pod", "c"), "Seccomp"), "2");
    assert_eq!(status(&log(&world, "pod", "free"), "Seccomp"), "0");
}

#[test]
fn kernel_parameters_of_the_pod_are_set() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        let sysctls = json!([
            { "name": "net.ipv4.ip_local_port_range", "value": "20000 21000" },
            { "name": "net/ipv4/tcp_syncookies", "value": "0" },
            { "name": "kernel.shm_rmid_forced", "value": "1" },
        ]);
        let script = "cat /proc/sys/net/ipv4/ip_local_port_range /proc/sys/net/ipv4/tcp_syncookies /proc/sys/kernel/shm_rmid_forced";
        world
            .put(
                "pod",
                of(&[printing("c", script, json!({}))], json!({ "securityContext": { "sysctls": sysctls } })),
            )
            .unwrap();
        assert_eq!(
            log(&world, "pod", "c").split_whitespace().collect::<Vec<_>>(),
            ["20000", "21000", "0", "1", "printed"]
        );
    }
}

#[test]
fn labels_of_other_security_modules_reach_the_runtime() {
    let world = World::start(Flavor::Built24).unwrap();
    let own = json!({
        "seLinuxOptions": { "type": "own_t", "level": "s0:c1,c2" },
        "appArmorProfile": { "type": "Unconfined" },
    });
    let of_pod = json!({ "seLinuxOptions": { "user": "user_u", "role": "role_r", "type": "pod_t" } });
    let containers = [with(idle("own"), json!({ "securityContext": own })), idle("pods")];
    world.put("pod", of(&containers, json!({ "securityContext": of_pod }))).unwrap();
    let seen = world.running("pod").unwrap();
    let context = |name: &str| {
        world.crictl(&["inspect", seen.id(name)]).unwrap()["info"]["config"]["linux"]["security_context"]
            .clone()
    };
    let (own, pods) = (context("own"), context("pods"));
    assert_eq!(own["selinux_options"], json!({ "type": "own_t", "level": "s0:c1,c2" }));
    assert_eq!(own["apparmor"]["profile_type"], 1, "{own}");
    assert_eq!(pods["selinux_options"], json!({ "user": "user_u", "role": "role_r", "type": "pod_t" }));
    assert!(pods["apparmor"].is_null(), "{pods}");
}

#[test]
fn what_cannot_be_given_is_said_and_the_rest_of_the_node_goes_on() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        world.put("bystander", json!({ "containers": [idle("c")] })).unwrap();
        let before = world.running("bystander").unwrap();
        let unknown = json!({ "securityContext": { "capabilities": { "add": ["FLY"] } } });
        world.put("capability", of(&[with(idle("c"), unknown), idle("other")], json!({}))).unwrap();
        let seen = world
            .wait("capability", "its refusal", |pod| {
                pod.waits("c") == "CreateContainerConfigError" && pod.runs("other")
            })
            .unwrap();
        let message = r#"unknown capability "FLY" in securityContext.capabilities; write a name of capabilities(7) without CAP_, such as NET_ADMIN"#;
        assert_eq!(seen.waiting_message("c"), message);
        let event = world.event("capability", "Failed", "FLY").unwrap();
        assert_eq!((event.kind.as_str(), event.message.as_str()), ("Warning", &*format!("Error: {message}")));
        // A quantity that no machine can hold is refused before anything is made.
        let huge =
            with(idle("c"), json!({ "resources": { "limits": { "memory": "99999999999999999999Ei" } } }));
        world.put("huge", of(&[huge], json!({}))).unwrap();
        let problems = mainstay_e2e::seen::rejected(&world.node, "huge.json").unwrap();
        assert!(problems.contains("spec.containers[0].resources.limits[memory]"), "{problems}");
        let field = "spec.containers[0].resources.limits[memory]";
        assert_eq!(world.node_event("FailedValidation", field).unwrap().kind, "Warning");
        // A page of variables that name one another would be gigabytes.
        let longer = |level: usize| format!("$(A{})", level - 1).repeat(100);
        let value = |level: usize| if level == 0 { "x".repeat(1000) } else { longer(level) };
        let env: Vec<_> =
            (0..5).map(|level| json!({ "name": format!("A{level}"), "value": value(level) })).collect();
        world.put("bomb", of(&[with(idle("c"), json!({ "env": env })), idle("other")], json!({}))).unwrap();
        let seen = world
            .wait("bomb", "its refusal", |pod| {
                pod.waits("c") == "CreateContainerConfigError" && pod.runs("other")
            })
            .unwrap();
        let message = seen.waiting_message("c");
        assert!(message.starts_with("the environment variable A2 becomes longer than"), "{message}");
        let after = world.running("bystander").unwrap();
        assert_eq!(before.0, after.0);
    }
}

#[test]
fn a_runtime_without_user_namespaces_is_said_so() {
    let world = World::start(Flavor::Debian16).unwrap();
    world.put("pod", of(&[idle("c")], json!({ "hostUsers": false }))).unwrap();
    let text = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
    let event = world.event("pod", "FailedCreatePodSandBox", text).unwrap();
    assert!(
        event.message.starts_with("Failed to generate sandbox config for pod \"pod-node_default("),
        "{}",
        event.message
    );
    let seen = world.wait("pod", "its refusal", |pod| pod.waits("c") == "ContainerCreating").unwrap();
    assert_eq!(seen.phase(), "Pending");
    assert!(world.sandboxes_of(seen.uid()).unwrap().is_empty());
}
