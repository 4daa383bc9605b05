//! Pods whose users are not the node's (`hostUsers: false`), on a runc that can map the users of mounts.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use mainstay_e2e::{PodSeen, SOON, World, config_map, secret, sh, with};
use mainstay_testkit::{Containerd, Flavor, Image, wait_until};
use serde_json::{Value, json};

/// The IDs of one pod.
const LENGTH: u64 = 65536;

fn world(images: &[Image]) -> World {
    let mut containerd = Containerd::builder(Flavor::Built24).built_runc();
    for image in images {
        containerd = containerd.image(image.clone());
    }
    World::on(containerd.start().unwrap(), "{}").unwrap()
}

/// A container that prints something and stays.
fn printing(name: &str, script: &str, more: Value) -> Value {
    with(sh(name, &format!("{script}; echo printed; sleep 1000")), more)
}

/// A pod with users of its own.
fn apart(containers: &[Value], more: Value) -> Value {
    let spec = json!({ "hostUsers": false, "terminationGracePeriodSeconds": 1, "containers": containers });
    with(spec, more)
}

/// Whether this machine cannot have such pods: on a tmpfs, where the test machine has its files, users can be mapped since
/// Linux 6.3. Then the pod has to say so, and nothing else can be looked at.
fn is_refused_here(world: &World, pod: &str, container: &str) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let kernel = (numbers.next().unwrap(), numbers.next().unwrap());
    // TMPFS_MAGIC of statfs(2).
    let file_system = rustix::fs::statfs(world.containerd.dir()).unwrap();
    if file_system.f_type != 0x0102_1994 || kernel >= (6, 3) {
        return false;
    }
    let seen = world
        .wait(pod, "saying what cannot be", |pod| pod.waiting_message(container).contains("idmapped mount"))
        .unwrap();
    assert_eq!((seen.phase(), seen.waits(container)), ("Pending", "ContainerCreating"));
    world.event(pod, "FailedCreatePodSandBox", "idmapped mount").unwrap();
    true
}

/// The first user of a pod as the node sees it, from `uid_map` and `gid_map` at the start of a container's log.
fn first_id(world: &World, pod: &str, container: &str) -> u64 {
    let log = world.logged(pod, container, "printed").unwrap();
    let maps: Vec<Vec<u64>> = log
        .lines()
        .take(2)
        .map(|line| line.split_whitespace().map(|number| number.parse().unwrap()).collect())
        .collect();
    assert_eq!(maps[0], maps[1], "{log}");
    assert_eq!((maps[0][0], maps[0][2]), (0, LENGTH), "{log}");
    maps[0][1]
}

const MAPS: &str = "cat /proc/self/uid_map /proc/self/gid_map";

fn file(world: &World, pod: &PodSeen) -> PathBuf {
    world.node.root().join("pods").join(pod.uid()).join("userns")
}

fn content(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The user and group of a container's process, as the node sees them.
fn on_the_node(world: &World, pod: &PodSeen, container: &str) -> (u64, u64) {
    let seen = world.crictl(&["inspect", pod.id(container)]).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", seen["info"]["pid"])).unwrap();
    let id = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    (id("Uid:"), id("Gid:"))
}

#[test]
fn pods_apart_have_ranges_of_ids_that_outlive_a_restart_and_are_given_back() {
    let mut world = world(&[]);
    let script = format!("{MAPS}; echo user=$(id -u); touch /made && echo wrote; head -n 1 /etc/hosts");
    let plain = || apart(&[printing("c", &script, json!({}))], json!({}));
    // Its second container ends when it is told to.
    let again =
        sh("again", &format!("{MAPS}; echo printed; until [ -e /e/go ]; do sleep 0.1; done; rm /e/go"));
    let again = with(again, json!({ "volumeMounts": [{ "name": "e", "mountPath": "/e" }] }));
    let volumes = json!({ "volumes": [{ "name": "e", "emptyDir": {} }] });
    world.put("one", apart(&[printing("c", &script, json!({})), again], volumes)).unwrap();
    if is_refused_here(&world, "one", "c") {
        return;
    }
    world.put("two", plain()).unwrap();
    let (one, two) = (first_id(&world, "one", "c"), first_id(&world, "two", "c"));
    assert_eq!(first_id(&world, "one", "again"), one);
    assert_ne!(one, two);
    assert!(one >= LENGTH && one.is_multiple_of(LENGTH) && two >= LENGTH, "{one} {two}");
    let log = world.logged("one", "c", "printed").unwrap();
    assert!(log.contains("\nuser=0\nwrote\n# Kubernetes-managed hosts file.\n"), "{log}");
    let seen = world.running("one").unwrap();
    assert_eq!(on_the_node(&world, &seen, "c"), (one, one));
    let record = file(&world, &seen);
    let ids = json!([{ "hostId": one, "containerId": 0, "length": LENGTH }]);
    let wanted = json!({ "uidMappings": ids, "gidMappings": ids });
    assert_eq!(content(&record), wanted);

    // A restart changes nothing, and files that were damaged or lost on the way are made again from what the runtime knows.
    let gone = file(&world, &world.running("two").unwrap());
    let ids = json!([{ "hostId": two, "containerId": 0, "length": LENGTH }]);
    let wanted_again = json!({ "uidMappings": ids, "gidMappings": ids });
    world.node.kill9();
    fs::write(&record, "{").unwrap();
    fs::remove_file(&gone).unwrap();
    world.node.start_again().unwrap();
    world.put("three", plain()).unwrap();
    let three = first_id(&world, "three", "c");
    assert!(three != one && three != two, "{one} {two} {three}");
    for (path, wanted) in [(&record, &wanted), (&gone, &wanted_again)] {
        wait_until(SOON, "the file as it was", || match fs::read_to_string(path) {
            Ok(text) if serde_json::from_str::<Value>(&text).is_ok_and(|found| found == *wanted) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .unwrap();
    }
    let after = world.running("one").unwrap();
    assert_eq!((after.id("c"), after.restarts("c")), (seen.id("c"), 0));
    // A container that is made now has the users of its pod.
    world.touch(&after, "again", "/e/go").unwrap();
    let restarted = world
        .wait("one", "its next container", |pod| {
            pod.restarts("again") == 1 && pod.runs("again") && pod.is_true("Ready")
        })
        .unwrap();
    assert_eq!(first_id(&world, "one", "again"), one);
    assert_eq!(on_the_node(&world, &restarted, "again"), (one, one));

    // What a pod leaves is given to the next.
    world.take_away("one").unwrap();
    world.gone("one").unwrap();
    wait_until(SOON, "its IDs to be given back", || {
        if record.exists() { Err("kept".to_owned()) } else { Ok(()) }
    })
    .unwrap();
    world.put("four", plain()).unwrap();
    assert_eq!(first_id(&world, "four", "c"), one);
}

#[test]
fn volumes_of_pods_apart_belong_to_those_whom_the_pod_names() {
    let data = Image::named("docker.io/local/data:1").file("/part/hello", "from an image");
    let name = data.name().to_owned();
    let world = world(&[data]);
    world.put_manifest("settings", &config_map("settings", json!({ "a": "one" }))).unwrap();
    world.put_manifest("login", &secret("login", json!({ "user": "admin" }))).unwrap();
    let mounts = json!([
        { "name": "disk", "mountPath": "/disk" }, { "name": "memory", "mountPath": "/memory" },
        { "name": "map", "mountPath": "/map" }, { "name": "secret", "mountPath": "/secret" },
        { "name": "down", "mountPath": "/down" }, { "name": "disk", "mountPath": "/part", "subPath": "part" },
        { "name": "image", "mountPath": "/image", "subPath": "part" },
    ]);
    let volumes = json!([
        { "name": "disk", "emptyDir": {} }, { "name": "memory", "emptyDir": { "medium": "Memory" } },
        { "name": "map", "configMap": { "name": "settings" } },
        { "name": "secret", "secret": { "secretName": "login", "defaultMode": 288 } },
        { "name": "down", "downwardAPI": { "items": [{ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } }] } },
        { "name": "image", "image": { "reference": name, "pullPolicy": "Never" } },
    ]);
    let user = json!({ "runAsUser": 1000, "runAsGroup": 1001 });
    let containers = [
        printing("root", MAPS, json!({ "volumeMounts": mounts })),
        printing("user", MAPS, json!({ "volumeMounts": mounts, "securityContext": user })),
    ];
    let more = json!({ "volumes": volumes, "securityContext": { "fsGroup": 2000 } });
    world.put("pod", apart(&containers, more)).unwrap();
    if is_refused_here(&world, "pod", "root") {
        return;
    }
    let seen = world.running("pod").unwrap();
    let first = first_id(&world, "pod", "root");
    assert_eq!(on_the_node(&world, &seen, "root"), (first, first));
    assert_eq!(on_the_node(&world, &seen, "user"), (first + 1000, first + 1001));

    let owners = "stat -L -c '%n %u:%g' /disk /memory /part /map/a /secret/user /down/name /image/hello";
    let text = "cat /map/a /secret/user /down/name /image/hello";
    let full = world.full_name("pod");
    for container in ["root", "user"] {
        assert_eq!(
            world.exec(&seen, container, owners).unwrap(),
            "/disk 0:2000\n/memory 0:2000\n/part 0:2000\n/map/a 0:2000\n\
             /secret/user 0:2000\n/down/name 0:2000\n/image/hello 0:0",
            "{container}"
        );
        assert_eq!(
            world.exec(&seen, container, text).unwrap(),
            format!("oneadmin{full}from an image"),
            "{container}"
        );
        let write = format!("for dir in /disk /memory; do echo x > $dir/{container}; done");
        world.exec(&seen, container, &write).unwrap();
    }
    // On the node's disk stands what stands in the pod: the next pod with the volume has other IDs, and the same users.
    let disk = world.volume(&seen, "empty-dir", "disk");
    let owner = |name: &str| {
        let meta = fs::metadata(disk.join(name)).unwrap();
        (meta.uid(), meta.gid())
    };
    assert_eq!((owner("root"), owner("user")), ((0, 2000), (1000, 2000)));
    world.take_away("pod").unwrap();
    world.gone("pod").unwrap();
    world.unmounted(seen.uid()).unwrap();
}

#[test]
fn only_a_pod_apart_may_see_the_whole_of_proc() {
    let world = world(&[]);
    // The runtime hides parts of it by mounting something over them.
    let script = format!("{MAPS}; echo hidden=$(grep -c ' /proc/' /proc/mounts)");
    let context = |kind: &str| json!({ "securityContext": { "procMount": kind } });
    let containers = [
        printing("whole", &script, context("Unmasked")),
        printing("said", &script, context("Default")),
        printing("unsaid", &script, json!({})),
    ];
    world.put("pod", apart(&containers, json!({}))).unwrap();
    if is_refused_here(&world, "pod", "whole") {
        return;
    }
    let hidden = |container: &str| -> u32 {
        let log = world.logged("pod", container, "printed").unwrap();
        log.lines().find_map(|line| line.strip_prefix("hidden=")).unwrap().parse().unwrap()
    };
    assert_eq!(hidden("whole"), 0);
    assert!(hidden("said") > 3);
    assert_eq!(hidden("said"), hidden("unsaid"));
    assert_ne!(first_id(&world, "pod", "whole"), 0);
    // With the node's users it would be the node's /proc.
    world
        .put("node", apart(&[printing("c", &script, context("Unmasked"))], json!({ "hostUsers": true })))
        .unwrap();
    let problems = mainstay_e2e::seen::rejected(&world.node, "node.json").unwrap();
    assert!(problems.contains("`hostUsers` must be false to use `Unmasked`"), "{problems}");
}
