//! Parts of volumes: found, made, and never anything else than a part of the volume.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use mainstay_e2e::{SOON, World, config_map, idle, sh, with};
use mainstay_testkit::{Flavor, wait_until};
use serde_json::{Value, json};

fn mounts(container: Value, mounts: Value) -> Value {
    with(container, json!({ "volumeMounts": mounts }))
}

#[test]
fn files_directories_and_expressions() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        world.put_manifest("cm", &config_map("cm", json!({ "app.conf": "one line", "other": "x" }))).unwrap();
        let dir = world.containerd.dir().join("data");
        fs::create_dir_all(dir.join("there")).unwrap();
        fs::write(dir.join("there/file"), "on the host").unwrap();
        world
            .put("parts", json!({
                "securityContext": { "fsGroup": 2000 },
                "terminationGracePeriodSeconds": 1,
                "containers": [with(mounts(idle("c"), json!([
                    { "name": "cm", "mountPath": "/etc/app.conf", "subPath": "app.conf" },
                    { "name": "host", "mountPath": "/dir", "subPath": "there" },
                    { "name": "host", "mountPath": "/file", "subPath": "there/file", "readOnly": true },
                    { "name": "e", "mountPath": "/made", "subPath": "not/yet/there" },
                    { "name": "e", "mountPath": "/named", "subPathExpr": "$(WHO)/$(NODE)" },
                    { "name": "e", "mountPath": "/whole" },
                ])), json!({ "env": [
                    { "name": "WHO", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }, { "name": "NODE", "value": "n-$(WHO)" },
                ] }))],
                "volumes": [
                    { "name": "cm", "configMap": { "name": "cm" } }, { "name": "host", "hostPath": { "path": dir.display().to_string() } },
                    { "name": "e", "emptyDir": {} },
                ],
            }))
            .unwrap();
        let seen = world.running("parts").unwrap();
        let says = |script: &str| world.exec(&seen, "c", script).unwrap();
        assert_eq!(
            says("cat /etc/app.conf; echo; cat /dir/file; echo; cat /file"),
            "one line\non the host\non the host"
        );
        assert_eq!(
            says("touch /made/x /named/y; cd /whole; find . -type f | sort"),
            "./not/yet/there/x\n./parts-node/n-parts-node/y"
        );
        assert_eq!(says("stat -c '%a %g' /made /named /whole"), "2777 2000\n2777 2000\n2777 2000");
        assert_eq!(says("echo x 2>/dev/null > /file || echo refused"), "refused");
        let places = world.node.root().join("pods").join(seen.uid()).join("volume-subpaths");
        assert_eq!(
            fs::metadata(places.join("host/c/1")).unwrap().ino(),
            fs::metadata(dir.join("there")).unwrap().ino()
        );
        assert!(places.join("cm/c/0").is_file() && places.join("e/c/4").is_dir());
        world.take_away("parts").unwrap();
        world.gone("parts").unwrap();
        world.unmounted(seen.uid()).unwrap();
        assert_eq!(
            fs::read_to_string(dir.join("there/file")).unwrap(),
            "on the host",
            "the host's files stay"
        );
    }
}

#[test]
fn an_expression_with_a_missing_variable_is_an_error() {
    let world = World::start(Flavor::Debian16).unwrap();
    let part = |expression: &str| {
        json!({
            "containers": [mounts(idle("c"), json!([{ "name": "e", "mountPath": "/e", "subPathExpr": expression }]))],
            "volumes": [{ "name": "e", "emptyDir": {} }],
        })
    };
    world.put("missing", part("a/$(NOBODY)")).unwrap();
    let seen =
        world.wait("missing", "an error", |pod| pod.waits("c") == "CreateContainerConfigError").unwrap();
    assert!(
        seen.waiting_message("c").contains(r#"variable "NOBODY" is missing or empty"#),
        "{}",
        seen.waiting_message("c")
    );
}

#[test]
fn a_part_survives_restarts_of_its_container() {
    let world =
        World::with_config(Flavor::Debian16, "crashLoopBackOff: {maxContainerRestartPeriod: 1s}").unwrap();
    let script =
        "echo x >> /p/count; wc -l < /p/count; [ $(wc -l < /p/count) -ge 3 ] && exec sleep 100000; exit 1";
    world
        .put("p", json!({
            "containers": [mounts(sh("c", script), json!([{ "name": "e", "mountPath": "/p", "subPath": "part" }]))],
            "volumes": [{ "name": "e", "emptyDir": { "medium": "Memory" } }],
        }))
        .unwrap();
    let seen = world.wait("p", "two restarts", |pod| pod.runs("c") && pod.restarts("c") == 2).unwrap();
    wait_until(SOON, "the third line", || match world.exec(&seen, "c", "wc -l < /p/count") {
        Ok(count) if count == "3" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    assert_eq!(world.mounts_of(seen.uid()).unwrap().len(), 2, "mounted once, not once per start");
}

/// The attack of CVE-2017-1002101 and CVE-2021-25741, by links that stand there and by links that are swapped in.
#[test]
fn links_out_of_the_volume_are_refused_however_they_get_there() {
    let world =
        World::with_config(Flavor::Debian16, "crashLoopBackOff: {maxContainerRestartPeriod: 1s}").unwrap();
    let base = world.containerd.dir().join("attack");
    let (volume, outside) = (base.join("volume"), base.join("outside"));
    fs::create_dir_all(&volume).unwrap();
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("SECRET"), "of the host").unwrap();
    symlink("../outside", volume.join("up")).unwrap();
    symlink("/", volume.join("root")).unwrap();
    symlink("../outside/made", volume.join("dangling")).unwrap();
    let victim = |sub_path: &str| {
        json!({
            "terminationGracePeriodSeconds": 1,
            // Each start is another try for the attacker; one that succeeds stays, with its log.
            "containers": [mounts(sh("c", "ls /v | grep -q SECRET && { echo ESCAPED; exec sleep 100000; }; sleep 0.2; exit 1"), json!([{ "name": "v", "mountPath": "/v", "subPath": sub_path }]))],
            "volumes": [{ "name": "v", "hostPath": { "path": volume.display().to_string() } }],
        })
    };
    for (name, sub_path) in [("up", "up"), ("root", "root/etc"), ("dangling", "dangling")] {
        world.put(name, victim(sub_path)).unwrap();
        let seen =
            world.wait(name, "a refusal", |pod| pod.waits("c") == "CreateContainerConfigError").unwrap();
        let message = seen.waiting_message("c");
        assert!(
            message.contains("failed to prepare subPath for volumeMount \"v\" of container \"c\""),
            "{message}"
        );
        assert!(message.contains("leads out of the volume"), "{message}");
        world.event(name, "Failed", "leads out of the volume").unwrap();
        assert!(world.containers_of(seen.uid()).unwrap().is_empty(), "nothing was made");
        assert_eq!(world.mounts_of(seen.uid()).unwrap(), []);
    }
    assert!(!outside.join("made").exists());

    // By a pod in its own emptyDir.
    let attacker =
        "cd /e; while :; do ln -s / x 2>/dev/null; rm -f x; mkdir x 2>/dev/null; rmdir x 2>/dev/null; done";
    world
        .put("inside", json!({
            "terminationGracePeriodSeconds": 1,
            "containers": [
                mounts(sh("attacker", attacker), json!([{ "name": "e", "mountPath": "/e" }])),
                mounts(sh("c", "ls /v | grep -q var && { echo ESCAPED; exec sleep 100000; }; sleep 0.2; exit 1"), json!([{ "name": "e", "mountPath": "/v", "subPath": "x" }])),
            ],
            "volumes": [{ "name": "e", "emptyDir": {} }],
        }))
        .unwrap();
    // And by somebody faster on the host.
    let (attacked, link) = (volume.join("attacked"), volume.join("link"));
    fs::create_dir(&attacked).unwrap();
    symlink("../outside", &link).unwrap();
    let done = AtomicBool::new(false);
    let victims: Vec<String> = (0..12).map(|index| format!("victim-{index}")).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let spare = volume.join("spare");
                fs::rename(&attacked, &spare).ok();
                fs::rename(&link, &attacked).ok();
                fs::rename(&attacked, &link).ok();
                fs::rename(&spare, &attacked).ok();
            }
        });
        for name in &victims {
            world.put(name, victim("attacked")).unwrap();
        }
        let count = |name: &str, reason: &str| {
            let events = world.events(name).unwrap_or_default();
            let of_victim = events.iter().filter(|event| event.field_path == "spec.containers{c}");
            of_victim.filter(|event| event.reason == reason).map(|event| event.count).sum::<u64>()
        };
        // Some found a directory and some a link: otherwise there was no race.
        let tried = wait_until(SOON * 4, "fifty tries, won and lost", || {
            let all = |reason: &str| victims.iter().map(|name| count(name, reason)).sum::<u64>();
            let (started, failed) = (all("Started"), all("Failed"));
            let inside = count("inside", "Started") + count("inside", "Failed");
            let enough = started + failed >= 50 && started > 0 && failed > 0 && inside >= 3;
            if enough { Ok(()) } else { Err(format!("{started} started, {failed} failed, {inside} inside")) }
        });
        // Before anything can panic, or the other thread would never end.
        done.store(true, Ordering::Relaxed);
        tried.unwrap();
    });
    let inside = "inside".to_owned();
    for name in victims.iter().chain([&inside]) {
        let pods = Command::new("sh")
            .arg("-c")
            .arg(format!("cat {}/*_{name}-node_*/c/*.log", world.node.pod_logs().display()))
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&pods.stdout).into_owned();
        assert!(!log.contains("ESCAPED"), "{name}: {log}");
        // One that had escaped would still be there.
        let now = world.named(name).unwrap();
        assert_eq!(now.len(), 1, "{name}");
        let containers = world.containers_of(now[0].uid()).unwrap();
        for container in containers.iter().filter(|it| it["metadata"]["name"] == "c") {
            let log =
                world.containerd.crictl(&["logs", container["id"].as_str().unwrap()]).unwrap_or_default();
            assert!(!log.contains("ESCAPED"), "{name}: {log}");
        }
    }
}
