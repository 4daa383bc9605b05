//! Volumes: what is in them, whose it is, how it changes, what happens when it cannot be had, and that nothing stays behind.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use mainstay_e2e::seen::{cgroups, persisted};
use mainstay_e2e::{PodSeen, SOON, World, config_map, idle, idle_with, one_volume, pod, secret, sh, with};
use mainstay_testkit::{BUSYBOX, Flavor, Image, Registry, mainstay_binary, wait_until};
use serde_json::{Value, json};

#[test]
fn files_modes_and_owners_are_as_the_pod_wants_them() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        let mut settings = config_map("settings", json!({ "a": "one", "b.conf": "two" }));
        settings["binaryData"] = json!({ "raw": "AAEC/w==" });
        world.put_manifest("settings", &settings).unwrap();
        world
            .put_manifest("login", &secret("login", json!({ "user": "admin", "password": "geheim" })))
            .unwrap();
        let mut manifest = pod(
            "files",
            json!({
                "securityContext": { "fsGroup": 2000, "runAsUser": 1000, "runAsGroup": 1000 },
                "containers": [with(idle_with(json!([
                    { "name": "all", "mountPath": "/all" }, { "name": "some", "mountPath": "/some" },
                    { "name": "secret", "mountPath": "/secret" }, { "name": "down", "mountPath": "/down" },
                    { "name": "mixed", "mountPath": "/mixed" }, { "name": "none", "mountPath": "/none" },
                    { "name": "scratch", "mountPath": "/scratch" },
                ])), json!({ "resources": { "limits": { "memory": "64Mi" } } }))],
                "volumes": [
                    { "name": "all", "configMap": { "name": "settings" } },
                    { "name": "some", "configMap": { "name": "settings", "items": [{ "key": "a", "path": "deep/er/a" }, { "key": "b.conf", "path": "b", "mode": 0o600 }] } },
                    { "name": "secret", "secret": { "secretName": "login", "defaultMode": 0o400 } },
                    { "name": "down", "downwardAPI": { "items": [
                        { "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } },
                        { "path": "memory", "resourceFieldRef": { "containerName": "c", "resource": "limits.memory", "divisor": "1Mi" } },
                    ] } },
                    { "name": "mixed", "projected": { "sources": [
                        { "configMap": { "name": "settings", "items": [{ "key": "a", "path": "a" }] } },
                        { "secret": { "name": "login", "items": [{ "key": "user", "path": "login/user" }] } },
                        { "downwardAPI": { "items": [
                            { "path": "name", "fieldRef": { "fieldPath": "metadata.name" } },
                            { "path": "memory", "resourceFieldRef": { "containerName": "c", "resource": "limits.memory", "divisor": "1Ki" } },
                        ] } },
                    ] } },
                    { "name": "none", "configMap": { "name": "absent", "optional": true } },
                    { "name": "scratch", "emptyDir": {} },
                ],
            }),
        );
        manifest["metadata"]["labels"] = json!({ "app": "files", "tier": "x" });
        world.put_manifest("files", &manifest).unwrap();
        let seen = world.running("files").unwrap();
        let says = |script: &str| world.exec(&seen, "c", script).unwrap();

        assert_eq!(says("cd /all; cat a b.conf; od -An -tx1 raw; ls"), "onetwo 00 01 02 ff\na\nb.conf\nraw");
        assert_eq!(says("cat /some/deep/er/a /some/b; ls /some"), "onetwob\ndeep");
        assert_eq!(says("cat /secret/user /secret/password"), "admingeheim");
        assert_eq!(says("cat /down/labels; echo; cat /down/memory"), "app=\"files\"\ntier=\"x\"\n64");
        assert_eq!(
            says("cat /mixed/a /mixed/login/user /mixed/name /mixed/memory"),
            "oneadminfiles-node65536"
        );
        assert_eq!(says("ls -A /none | grep -v '^[.][.]' | wc -l"), "0");
        // The group may read what belongs to it, and write where it may write; nothing of the contents can be written.
        let stat = "stat -L -c '%a %g'";
        assert_eq!(
            says(&format!("{stat} /all/a /some/b /secret/user /scratch /all")),
            "644 2000\n640 2000\n440 2000\n2777 2000\n2777 2000"
        );
        assert_eq!(says("touch /scratch/x && stat -c '%u %g' /scratch/x"), "1000 2000");
        assert_eq!(says("touch /all/x 2>&1 | grep -o 'Read-only file system'"), "Read-only file system");
        // Upstream's layout, on the host as well.
        assert_eq!(says("readlink /all/a"), "..data/a");
        let generation = fs::read_link(world.volume(&seen, "configmap", "all").join("..data")).unwrap();
        assert!(generation.to_str().unwrap().starts_with("..20"), "{generation:?}");
        let mounts = world.mounts_of(seen.uid()).unwrap();
        let tmpfs = |plugin: &str, name: &str| {
            let path = world.volume(&seen, plugin, name).display().to_string();
            mounts.iter().any(|(point, fs_type)| *point == path && fs_type == "tmpfs")
        };
        assert!(
            tmpfs("secret", "secret") && tmpfs("downward-api", "down") && tmpfs("projected", "mixed"),
            "{mounts:?}"
        );
        assert!(!tmpfs("configmap", "all"));
        let marker = world.node.root().join("pods").join(seen.uid()).join("plugins/kubernetes.io~empty-dir");
        assert!(marker.join("scratch/ready").is_file() && marker.join("wrapped_secret/ready").is_file());
        let status = &seen.container("c")["volumeMounts"];
        assert_eq!(status[0], json!({ "name": "all", "mountPath": "/all" }), "{status}");
    }
}

#[test]
fn modes_are_kept_and_what_is_optional_may_be_missing() {
    let world = World::start(Flavor::Debian16).unwrap();
    world.put_manifest("cm", &config_map("cm", json!({ "a": "1" }))).unwrap();
    world.put_manifest("s", &secret("s", json!({ "k": "2" }))).unwrap();
    let key = |key: &str, more: Value| with(json!({ "key": key, "path": key }), more);
    let name = |path: &str, more: Value| {
        with(json!({ "path": path, "fieldRef": { "fieldPath": "metadata.name" } }), more)
    };
    let sources = json!([
        { "configMap": { "name": "cm", "items": [key("a", json!({ "mode": 0o640 })), key("no", json!({}))], "optional": true } },
        { "secret": { "name": "s", "items": [key("k", json!({ "mode": 0o400 })), key("nor", json!({}))], "optional": true } },
        { "secret": { "name": "absent", "optional": true } },
        { "configMap": { "name": "absent", "optional": true } },
        { "downwardAPI": { "items": [name("n", json!({ "mode": 0o604 })), name("m", json!({}))] } },
    ]);
    let volumes = json!([
        { "name": "p", "projected": { "defaultMode": 0o440, "sources": sources } },
        { "name": "d", "downwardAPI": { "defaultMode": 0o444, "items": [name("n", json!({ "mode": 0o600 })), name("m", json!({}))] } },
        { "name": "cm", "configMap": { "name": "cm", "defaultMode": 0o500, "items": [key("a", json!({})), key("no", json!({}))], "optional": true } },
        { "name": "s", "secret": { "secretName": "s", "items": [key("k", json!({ "mode": 0o404 })), key("no", json!({}))], "optional": true } },
        { "name": "none", "secret": { "secretName": "absent", "optional": true } },
    ]);
    let mounts: Vec<Value> = ["p", "d", "cm", "s", "none"]
        .map(|name| json!({ "name": name, "mountPath": format!("/v/{name}") }))
        .to_vec();
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [idle_with(json!(mounts))], "volumes": volumes });
    world.put("modes", spec).unwrap();
    let seen = world.running("modes").unwrap();
    // Nothing is in the volume whose source is missing.
    let listed = "cd /v; for f in */*; do echo \"$f $(stat -L -c '%a %u %g' $f)\"; done";
    assert_eq!(
        world.exec(&seen, "c", listed).unwrap().lines().collect::<Vec<_>>(),
        [
            "cm/a 500 0 0",
            "d/m 444 0 0",
            "d/n 600 0 0",
            "p/a 640 0 0",
            "p/k 400 0 0",
            "p/m 440 0 0",
            "p/n 604 0 0",
            "s/k 404 0 0",
        ]
    );
}

#[test]
fn a_pod_waits_for_what_is_missing_and_runs_once_it_appears() {
    let world = World::start(Flavor::Debian16).unwrap();
    world.put("waits", one_volume(json!({ "configMap": { "name": "later" } }))).unwrap();
    world
        .put(
            "key",
            one_volume(json!({ "secret": { "secretName": "keys", "items": [{ "key": "k", "path": "k" }] } })),
        )
        .unwrap();
    world.put("fine", one_volume(json!({ "emptyDir": {} }))).unwrap();
    let text = r#"configmap "later" not found in namespace "default"; create it (without an API server: put its manifest beside the pod's), or set optional: true"#;
    let message = format!("volume \"v\": {text}");
    let seen = world
        .wait("waits", &message, |pod| {
            let said = (pod.phase(), pod.waits("c"), pod.waiting_message("c"));
            said == ("Pending", "ContainerCreating", message.as_str())
        })
        .unwrap();
    assert!(!seen.is_true("PodReadyToStartContainers"), "nothing is made before the volumes are there");
    let message = format!("MountVolume.SetUp failed for volume \"v\" : {text}");
    let event = world.event("waits", "FailedMount", &message).unwrap();
    assert_eq!((event.kind.as_str(), event.message), ("Warning", message));
    assert!(world.sandboxes_of(seen.uid()).unwrap().is_empty());
    world.running("fine").unwrap();
    world.event("key", "FailedMount", r#"secret "keys" not found"#).unwrap();

    world.put_manifest("later", &config_map("later", json!({ "a": "here" }))).unwrap();
    let now = world.running("waits").unwrap();
    assert_eq!(world.exec(&now, "c", "cat /v/a").unwrap(), "here");
    assert_eq!(now.uid(), seen.uid());

    world.put_manifest("keys", &secret("keys", json!({ "other": "x" }))).unwrap();
    let seen = world.wait("key", "a key", |pod| pod.waiting_message("c").contains("non-existent")).unwrap();
    assert!(seen.waiting_message("c").contains(r#"secret "keys" references non-existent secret key: k"#));
    world.put_manifest("keys", &secret("keys", json!({ "other": "x", "k": "there" }))).unwrap();
    let now = world.running("key").unwrap();
    assert_eq!(world.exec(&now, "c", "cat /v/k; ls /v").unwrap(), "therek");
}

#[test]
fn contents_follow_their_sources_while_the_pod_runs() {
    // No sync comes while this looks: only the change itself can bring what is new.
    let world = World::with_config(Flavor::Debian16, "syncFrequency: 1h").unwrap();
    world.put_manifest("cm", &config_map("cm", json!({ "a": "1", "b": "1" }))).unwrap();
    world.put_manifest("s", &secret("s", json!({ "s": "1" }))).unwrap();
    world
        .put("live", json!({
            "containers": [idle_with(json!([
                { "name": "cm", "mountPath": "/cm" }, { "name": "p", "mountPath": "/p" },
                { "name": "cm", "mountPath": "/fixed", "subPath": "a" },
            ]))],
            "volumes": [
                { "name": "cm", "configMap": { "name": "cm" } },
                { "name": "p", "projected": { "sources": [{ "secret": { "name": "s" } }, { "configMap": { "name": "cm", "items": [{ "key": "a", "path": "a" }] } }] } },
            ],
        }))
        .unwrap();
    let seen = world.running("live").unwrap();
    let says = |script: &str| world.exec(&seen, "c", script).map_err(|error| format!("{error:#}"));
    assert_eq!(says("cat /cm/a /cm/b /p/s /p/a /fixed").unwrap(), "11111");
    world.put_manifest("cm", &config_map("cm", json!({ "a": "2", "c": "2" }))).unwrap();
    world.put_manifest("s", &secret("s", json!({ "s": "2" }))).unwrap();
    let becomes = |script: &str, wanted: &str| {
        wait_until(SOON, script, || match says(script)? {
            found if found == wanted => Ok(()),
            found => Err(found),
        })
        .unwrap();
    };
    becomes("cd /cm; cat a c; ls | tr '\\n' ' '; cat /p/s /p/a", "22a c 22");
    assert_eq!(says("cat /fixed").unwrap(), "1", "a subPath never changes");
    // What is gone is told of; what was there stays, and so does the pod.
    world.take_away("cm").unwrap();
    world.event("live", "FailedMount", r#"configmap "cm" not found"#).unwrap();
    assert_eq!(says("cat /cm/a /p/a").unwrap(), "22");
    let now = world.running("live").unwrap();
    assert_eq!((now.restarts("c"), now.uid()), (0, seen.uid()));
    world.put_manifest("cm", &config_map("cm", json!({ "a": "3" }))).unwrap();
    becomes("cat /cm/a /p/a", "33");
    // What a pod says of itself, too, as long as it is the same pod.
    let labelled = |tier: &str| {
        let item = json!({ "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } });
        let mut manifest = pod("labelled", one_volume(json!({ "downwardAPI": { "items": [item] } })));
        manifest["metadata"]["uid"] = json!("one-and-the-same");
        manifest["metadata"]["labels"] = json!({ "tier": tier });
        world.put_manifest("labelled", &manifest).unwrap();
    };
    labelled("gold");
    let first = world.running("labelled").unwrap();
    let labels = || world.exec(&first, "c", "cat /v/labels").map_err(|error| format!("{error:#}"));
    assert_eq!(labels().unwrap(), "tier=\"gold\"");
    labelled("lead");
    wait_until(SOON, "the new label in the file", || match labels()? {
        found if found == "tier=\"lead\"" => Ok(()),
        found => Err(found),
    })
    .unwrap();
    let now = world.running("labelled").unwrap();
    assert_eq!((now.id("c"), now.restarts("c"), now.uid()), (first.id("c"), 0, first.uid()));
    world.take_away("live").unwrap();
    world.gone("live").unwrap();
}

#[test]
fn contents_changed_by_hand_are_put_right_within_one_sync() {
    let world = World::with_config(Flavor::Debian16, "syncFrequency: 1s").unwrap();
    world.put_manifest("cm", &config_map("cm", json!({ "a": "right" }))).unwrap();
    world.put("p", one_volume(json!({ "configMap": { "name": "cm" } }))).unwrap();
    let seen = world.running("p").unwrap();
    let file = world.volume(&seen, "configmap", "v").join("a");
    fs::write(&file, "wrong").unwrap();
    // Far below the minute that is the default.
    wait_until(Duration::from_secs(20), "the right contents", || match fs::read_to_string(&file) {
        Ok(text) if text == "right" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
}

#[test]
fn empty_dirs_on_every_medium() {
    let world = World::with_config(Flavor::Debian16, "featureGates: { EmptyDirVolumeMode: true }\n").unwrap();
    let mounts = json!([
        { "name": "disk", "mountPath": "/disk" }, { "name": "memory", "mountPath": "/memory" },
        { "name": "mode", "mountPath": "/mode" }, { "name": "huge", "mountPath": "/huge" },
        { "name": "named", "mountPath": "/named" },
    ]);
    let dies_once = "cd /disk; if [ -e was-here ]; then exec sleep 100000; fi; touch was-here; exit 3";
    world
        .put("dirs", json!({
            "terminationGracePeriodSeconds": 1,
            "initContainers": [with(sh("first", "echo from-init > /disk/init; echo x > /memory/init"), json!({ "volumeMounts": mounts }))],
            "containers": [
                idle_with(mounts.clone()),
                with(sh("twice", dies_once), json!({ "volumeMounts": [{ "name": "disk", "mountPath": "/disk" }] })),
                // The size of the pages is told by the resource; of none, because the machine need not have any to spare.
                with(idle("huge"), json!({ "resources": { "limits": { "hugepages-2Mi": "0", "memory": "16Mi", "cpu": "100m" } } })),
            ],
            "volumes": [
                { "name": "disk", "emptyDir": {} },
                { "name": "memory", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } },
                { "name": "mode", "emptyDir": { "mode": 0o1755 } },
                { "name": "huge", "emptyDir": { "medium": "HugePages" } },
                { "name": "named", "emptyDir": { "medium": "HugePages-2Mi" } },
            ],
        }))
        .unwrap();
    let seen = world
        .wait("dirs", "a restart", |pod| pod.runs("twice") && pod.restarts("twice") == 1 && pod.runs("c"))
        .unwrap();
    let says = |script: &str| world.exec(&seen, "c", script).unwrap();
    assert_eq!(says("cat /disk/init; ls /disk; cat /memory/init"), "from-init\ninit\nwas-here\nx");
    assert_eq!(says("stat -c %a /disk /mode"), "777\n1755");
    assert_eq!(says("stat -c %a /memory | tail -c 4; stat -f -c %T /memory"), "777\ntmpfs");
    assert_eq!(says("df -k /memory | tail -1 | awk '{print $2}'"), "1024");
    assert_eq!(
        says("dd if=/dev/zero of=/memory/x bs=64k count=64 2>&1 | grep -o 'No space left on device'"),
        "No space left on device"
    );
    let mounts = world.mounts_of(seen.uid()).unwrap();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    for name in ["huge", "named"] {
        let huge = world.volume(&seen, "empty-dir", name).display().to_string();
        let line = table.lines().find(|line| line.contains(&format!(" {huge} "))).unwrap();
        assert!(line.contains("pagesize=2M"), "{line}");
        assert!(mounts.contains(&(huge, "hugetlbfs".to_owned())), "{mounts:?}");
    }
    let memory = world.volume(&seen, "empty-dir", "memory").display().to_string();
    let line = table.lines().find(|line| line.contains(&memory)).unwrap();
    assert!(line.contains("size=1024k"), "{line}");
    assert_eq!(line.contains("noswap"), kernel() >= (6, 4), "{line}");
    world.take_away("dirs").unwrap();
    world.gone("dirs").unwrap();
    world.unmounted(seen.uid()).unwrap();
}

/// The kernel's version; tmpfs can be kept out of swap since 6.4.
fn kernel() -> (u32, u32) {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = text.split(['.', '-']).map(|part| part.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn a_pod_that_has_ended_gives_its_volumes_back() {
    let world = World::start(Flavor::Debian16).unwrap();
    world
        .put("job", json!({
            "restartPolicy": "Never",
            "containers": [with(sh("c", "echo done > /v/x"), json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }))],
            "volumes": [{ "name": "v", "emptyDir": { "medium": "Memory" } }],
        }))
        .unwrap();
    let seen = world.wait("job", "the end", |pod| pod.phase() == "Succeeded").unwrap();
    wait_until(SOON, "no mounts", || match world.mounts_of(seen.uid()).unwrap() {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    })
    .unwrap();
    // The directory goes right after the mount.
    wait_until(SOON, "no directory", || match world.volume(&seen, "empty-dir", "v").exists() {
        false => Ok(()),
        true => Err("it is still there".into()),
    })
    .unwrap();
    assert_eq!(world.named("job").unwrap().len(), 1, "the pod itself is still shown");
}

/// Its record is lost and its sandbox gone, so that nobody knows of the Secret that is still mounted.
#[test]
fn a_secret_of_a_pod_that_nobody_knows_is_not_kept() {
    let mut world = World::start(Flavor::Debian16).unwrap();
    world.put_manifest("s", &secret("s", json!({ "key": "value" }))).unwrap();
    world.put("p", one_volume(json!({ "secret": { "secretName": "s" } }))).unwrap();
    let seen = world.running("p").unwrap();
    persisted(&world.node).unwrap();
    world.node.kill9();
    world.take_away("p").unwrap();
    fs::remove_dir_all(world.node.root().join("mainstay/pods")).unwrap();
    let sandbox = world.sandboxes_of(seen.uid()).unwrap()[0]["id"].as_str().unwrap().to_owned();
    world.containerd.crictl(&["rmp", "--force", &sandbox]).unwrap();
    assert!(!world.mounts_of(seen.uid()).unwrap().is_empty());
    // Another kubelet's, which nobody has marked.
    let pods = world.node.root().join("pods");
    fs::create_dir_all(pods.join("others/volumes/kubernetes.io~empty-dir/e")).unwrap();
    let old = SystemTime::now() - Duration::from_secs(600);
    for uid in [seen.uid(), "others"] {
        fs::File::open(pods.join(uid)).unwrap().set_modified(old).unwrap();
    }
    let mut run = Command::new(mainstay_binary().unwrap());
    run.args(["run", "--healthz-port=0", "--runtime-endpoint", &world.containerd.endpoint()])
        .arg(format!("--cgroup-root=/{}-run", world.containerd.instance().cgroup_name()))
        .args([Path::new("--root-dir"), world.node.root(), Path::new("--manifests")])
        .arg(world.node.manifests())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = run.spawn().unwrap();
    let swept = wait_until(2 * SOON, "the end of what it left", || {
        let mounts = world.mounts_of(seen.uid()).map_err(|error| format!("{error:#}"))?;
        match (mounts.is_empty(), pods.join(seen.uid()).exists()) {
            (true, false) => Ok(()),
            _ => Err(format!("{mounts:?}; {:?}", child.try_wait())),
        }
    });
    child.kill().unwrap();
    child.wait().unwrap();
    swept.unwrap();
    assert!(pods.join("others/volumes/kubernetes.io~empty-dir/e").is_dir());
}

#[test]
fn host_paths_of_every_type() {
    let world = World::start(Flavor::Debian16).unwrap();
    let dir = world.containerd.dir().join("host");
    fs::create_dir(&dir).unwrap();
    fs::create_dir(dir.join("dir")).unwrap();
    fs::write(dir.join("file"), "text").unwrap();
    let _listener = UnixListener::bind(dir.join("socket")).unwrap();
    let block = dir.join("block").display().to_string();
    // A device node without a device behind it is a block device all the same.
    assert!(Command::new("mknod").args([&block, "b", "42", "0"]).status().unwrap().success());
    let at = |name: &str| dir.join(name).display().to_string();
    let good = [
        ("unset", "", at("dir")),
        ("directory", "Directory", at("dir")),
        ("made-directory", "DirectoryOrCreate", at("new/dir")),
        ("file", "File", at("file")),
        ("made-file", "FileOrCreate", at("new-file")),
        ("socket", "Socket", at("socket")),
        ("char", "CharDevice", "/dev/null".to_owned()),
        ("block", "BlockDevice", block),
    ];
    let (mut mounts, mut volumes) = (Vec::new(), Vec::new());
    for (name, kind, path) in &good {
        mounts.push(json!({ "name": name, "mountPath": format!("/m/{name}") }));
        volumes.push(json!({ "name": name, "hostPath": { "path": path, "type": kind } }));
    }
    world.put("good", json!({ "containers": [idle_with(json!(mounts))], "volumes": volumes })).unwrap();
    let wrong = [
        (
            "file-as-directory",
            "Directory",
            at("file"),
            format!("hostPath type check failed: {} is not a directory, it's a file", at("file")),
        ),
        (
            "directory-as-file",
            "File",
            at("dir"),
            format!("hostPath type check failed: {} is not a file, it's a directory", at("dir")),
        ),
        (
            "file-as-socket",
            "Socket",
            at("file"),
            format!("hostPath type check failed: {} is not a socket file, it's a file", at("file")),
        ),
        (
            "null-as-block",
            "BlockDevice",
            "/dev/null".to_owned(),
            "hostPath type check failed: /dev/null is not a block device, it's a character device".to_owned(),
        ),
        (
            "missing",
            "Directory",
            at("none"),
            format!(
                "hostPath type check failed, {} is not a directory, unable to determine its type: No such file",
                at("none")
            ),
        ),
        ("no-parent", "FileOrCreate", at("none/x"), format!("cannot make the file {}", at("none/x"))),
    ];
    for (name, kind, path, _) in &wrong {
        world.put(name, one_volume(json!({ "hostPath": { "path": path, "type": kind } }))).unwrap();
    }
    let seen = world.running("good").unwrap();
    let says =
        world.exec(&seen, "c", "cd /m; stat -c '%n %F' *; cat file; touch directory/from-pod").unwrap();
    let expected = "block block special file\nchar character special file\ndirectory directory\nfile regular file\nmade-directory directory\nmade-file regular empty file\nsocket socket\nunset directory\ntext";
    assert_eq!(says, expected);
    assert!(dir.join("dir/from-pod").exists());
    assert_eq!(fs::metadata(dir.join("new/dir")).unwrap().permissions().mode() & 0o777, 0o755);
    for (name, _, _, text) in &wrong {
        let seen =
            world.wait(name, "a message", |pod| pod.waiting_message("c").contains(text.as_str())).unwrap();
        assert_eq!((seen.phase(), seen.waits("c")), ("Pending", "ContainerCreating"), "{name}");
        world
            .event(name, "FailedMount", &format!("MountVolume.SetUp failed for volume \"v\" : {text}"))
            .unwrap();
    }
    // What is put right on the host is found without a new file.
    fs::create_dir(dir.join("none")).unwrap();
    world.running("missing").unwrap();
}

#[test]
fn a_host_path_that_is_gone_is_no_affair_of_containers_without_it() {
    let world = World::start(Flavor::Debian16).unwrap();
    let socket = world.containerd.dir().join("daemon.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let with_it =
        with(idle("with"), json!({ "volumeMounts": [{ "name": "s", "mountPath": "/run/daemon.sock" }] }));
    // It ends when it is told to, and again whenever it finds the file.
    let without = sh("without", "rm -f /tmp/end; while [ ! -e /tmp/end ]; do sleep 0.2; done; exit 1");
    let volume = json!({ "name": "s", "hostPath": { "path": socket, "type": "Socket" } });
    let probe =
        json!({ "exec": { "command": ["/bin/sh", "-c", "test ! -e /tmp/sick"] }, "periodSeconds": 1 });
    let probe = with(probe, json!({ "timeoutSeconds": 20, "failureThreshold": 1 }));
    let unwell =
        with(idle("unwell"), json!({ "volumeMounts": with_it["volumeMounts"], "livenessProbe": probe }));
    let more = json!({ "terminationGracePeriodSeconds": 1, "volumes": [volume] });
    world.put("pair", with(more, json!({ "containers": [with_it, without, unwell] }))).unwrap();
    let before = world.running("pair").unwrap();

    drop(listener);
    fs::remove_file(&socket).unwrap();
    world.touch(&before, "without", "/tmp/end").unwrap();
    let again = |pod: &PodSeen| pod.restarts("without") == 1 && pod.runs("without");
    let after = world.wait("pair", "the other one again", again).unwrap();
    assert_eq!((after.restarts("with"), after.id("with")), (0, before.id("with")));

    // One that is unwell is stopped, although it cannot start again before what it mounts is back.
    world.touch(&before, "unwell", "/tmp/sick").unwrap();
    let stopped =
        |pod: &PodSeen| !pod.runs("unwell") && pod.waiting_message("unwell").contains("daemon.sock");
    world.wait("pair", "the unwell one stopped and waiting", stopped).unwrap();
    let killed = "Container unwell failed liveness probe, will be restarted";
    world.event("pair", "Killing", killed).unwrap();
    let _listener = UnixListener::bind(&socket).unwrap();
    let well = |pod: &PodSeen| pod.restarts("unwell") == 1 && pod.runs("unwell");
    let after = world.wait_long(2 * SOON, "pair", "the unwell one again", well).unwrap();
    assert_eq!((after.restarts("with"), after.id("with")), (0, before.id("with")));
}

#[test]
fn an_image_is_mounted_where_the_runtime_can() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        let image = "docker.io/local/data:1";
        let content = Image::named(image).file("/data/hello", "from an image").file("/other/x", "other");
        world.containerd.import(&content).unwrap();
        world
            .put("img", one_volume(json!({ "image": { "reference": image, "pullPolicy": "IfNotPresent" } })))
            .unwrap();
        world
            .put(
                "none",
                one_volume(
                    json!({ "image": { "reference": "docker.io/local/no:1", "pullPolicy": "Never" } }),
                ),
            )
            .unwrap();
        if flavor == Flavor::Debian16 {
            let seen =
                world.wait("img", "an error", |pod| pod.waits("c") == "CreateContainerConfigError").unwrap();
            assert!(
                seen.waiting_message("c").contains("cannot mount images; use containerd 2.1"),
                "{}",
                seen.waiting_message("c")
            );
            continue;
        }
        let seen = world.running("img").unwrap();
        assert_eq!(
            world.exec(&seen, "c", "cat /v/data/hello; touch /v/x 2>/dev/null || echo ' read-only'").unwrap(),
            "from an image read-only"
        );
        let waits = world.wait("none", "no image", |pod| pod.waits("c") == "ErrImageNeverPull").unwrap();
        assert!(waits.waiting_message("c").contains("docker.io/local/no:1"));

        pulled_image_volumes(&world);

        // Parts of it, one of them over a directory of the whole; and a part that is not there.
        let part = |path: &str, more: Value| with(json!({ "name": "v", "mountPath": path }), more);
        let of = |mounts: Value| {
            let container = with(idle_with(mounts), json!({ "env": [{ "name": "PART", "value": "other" }] }));
            let source = json!({ "image": { "reference": image, "pullPolicy": "IfNotPresent" } });
            with(one_volume(source), json!({ "containers": [container] }))
        };
        let mounts = json!([
            part("/part", json!({ "subPath": "data" })),
            part("/whole/data", json!({ "subPathExpr": "$(PART)" })),
            part("/whole", json!({})),
        ]);
        world.put("parts", of(mounts)).unwrap();
        world.put("no-part", of(json!([part("/v", json!({ "subPath": "missing" }))]))).unwrap();
        let seen = world.running("parts").unwrap();
        let script = "ls /part /whole/data; cat /part/hello /whole/data/x /whole/other/x; \
                      touch /part/y 2>/dev/null || echo ' read-only'";
        assert_eq!(
            world.exec(&seen, "c", script).unwrap(),
            "/part:\nhello\n\n/whole/data:\nx\nfrom an imageotherother read-only"
        );
        let waits =
            world.wait("no-part", "its error", |pod| pod.waits("c") == "CreateContainerError").unwrap();
        assert!(
            waits.waiting_message("c").contains("failed to ensure image subpath \"missing\""),
            "{}",
            waits.waiting_message("c")
        );
    }
}

/// Images that the machine does not have come from their registry, at the first start or at each.
fn pulled_image_volumes(world: &World) {
    let mut registry = Registry::start().unwrap();
    registry.serve_as("registry.test", &world.containerd).unwrap();
    let content = |text: &str| Image::named("docker.io/local/pushed:1").file("/data", text);
    registry.push(&world.containerd, &content("old"), "team/data:1").unwrap();
    let reference = "registry.test/team/data:1";
    for (name, policy) in [("once", "IfNotPresent"), ("always", "Always")] {
        world
            .put(name, one_volume(json!({ "image": { "reference": reference, "pullPolicy": policy } })))
            .unwrap();
        world.running(name).unwrap();
    }
    world.event("once", "Pulled", reference).unwrap();
    registry.push(&world.containerd, &content("new"), "team/data:1").unwrap();
    let again = |name: &str| {
        let before = world.running(name).unwrap();
        assert_eq!(world.exec(&before, "c", "cat /v/data").unwrap(), "old", "{name}");
        world.containerd.crictl(&["stop", "--timeout", "0", before.id("c")]).unwrap();
        let after = world.wait(name, "its restart", |pod| pod.restarts("c") == 1 && pod.runs("c")).unwrap();
        world.exec(&after, "c", "cat /v/data").unwrap()
    };
    assert_eq!(again("once"), "old");
    assert_eq!(again("always"), "new");
    // Without the registry only the one that has its image starts again.
    registry.kill9();
    for name in ["once", "always"] {
        let seen = world.running(name).unwrap();
        world.containerd.crictl(&["stop", "--timeout", "0", seen.id("c")]).unwrap();
    }
    world.wait("once", "its restart", |pod| pod.restarts("c") == 2 && pod.runs("c")).unwrap();
    let waits = world.wait("always", "its failure", |pod| pod.waits("c").contains("Pull")).unwrap();
    assert!(waits.waiting_message("c").contains(reference), "{}", waits.waiting_message("c"));
}

#[test]
fn bad_input_is_told_and_harms_nobody_else() {
    let world = World::start(Flavor::Debian16).unwrap();
    let evil = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "evil" }, "stringData": { "../../../../etc/cron.d/x": "* * * * *" } });
    world.put_manifest("evil", &evil).unwrap();
    world
        .put_manifest(
            "big",
            &config_map("big", json!({ "a": "x".repeat(700 << 10), "b": "x".repeat(700 << 10) })),
        )
        .unwrap();
    world.put("uses-evil", one_volume(json!({ "secret": { "secretName": "evil" } }))).unwrap();
    world.put("uses-big", one_volume(json!({ "configMap": { "name": "big" } }))).unwrap();
    world
        .put("token", one_volume(json!({ "projected": { "sources": [{ "downwardAPI": {} }, { "clusterTrustBundle": { "name": "x", "path": "x" } }] } })))
        .unwrap();
    world.put_manifest("good", &config_map("good", json!({ "a": "1" }))).unwrap();
    let deep = json!([{ "key": "a", "path": "d/".repeat(100) + "f" }]);
    world.put("deep", one_volume(json!({ "configMap": { "name": "good", "items": deep } }))).unwrap();
    world.put("fine", one_volume(json!({ "emptyDir": {} }))).unwrap();
    world.event("deep", "FailedValidation", "lies more than 64 directories deep").unwrap();
    for (name, object, why) in [
        ("uses-evil", r#"secret "evil""#, "a valid config key"),
        ("uses-big", r#"configmap "big""#, "1048576"),
    ] {
        let seen =
            world.wait(name, "a message", |pod| pod.waiting_message("c").contains("was refused")).unwrap();
        let message = seen.waiting_message("c");
        assert!(message.contains(object) && message.contains(why), "{message}");
        assert_eq!((seen.phase(), seen.waits("c")), ("Pending", "ContainerCreating"));
        world.event(name, "FailedMount", "was refused").unwrap();
    }
    let seen = world.running("fine").unwrap();
    assert!(!Path::new("/etc/cron.d/x").exists());
    assert_eq!(seen.restarts("c"), 0);
    // An object that becomes good is used, whatever it was before.
    world.put_manifest("big", &config_map("big", json!({ "a": "small" }))).unwrap();
    world.running("uses-big").unwrap();
}

#[test]
fn environment_from_a_file_that_an_init_container_wrote() {
    let world = World::start(Flavor::Debian16).unwrap();
    let from_file =
        |key: &str, path: &str| json!({ "fileKeyRef": { "volumeName": "v", "path": path, "key": key } });
    let spec = |script: &str, path: &str| {
        json!({
            "initContainers": [with(sh("init", script), json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }))],
            "containers": [with(sh("c", "echo \"got $A\"; exec sleep 100000"), json!({ "env": [{ "name": "A", "valueFrom": from_file("A", path) }] }))],
            "volumes": [{ "name": "v", "emptyDir": {} }],
        })
    };
    world.put("env", spec("mkdir /v/d; printf \"# comment\\nA='one two'\\n\" > /v/d/env", "d/env")).unwrap();
    world.put("link", spec("ln -s /etc/hostname /v/env", "env")).unwrap();
    // Of a key that the file lacks; the file itself must be there, as upstream has it.
    let mut without = spec("echo \"B='1'\" > /v/env", "env");
    without["containers"][0]["env"][0]["valueFrom"]["fileKeyRef"]["optional"] = json!(true);
    world.put("optional", without).unwrap();
    world.running("env").unwrap();
    assert!(world.logged("env", "c", "got").unwrap().contains("got one two"));
    world.running("optional").unwrap();
    assert_eq!(world.logged("optional", "c", "got").unwrap().trim_end(), "got");
    let seen = world.wait("link", "an error", |pod| pod.waits("c") == "CreateContainerConfigError").unwrap();
    assert!(seen.waiting_message("c").contains("leads out of its volume"), "{}", seen.waiting_message("c"));
}

#[test]
fn a_hundred_pods_with_five_volumes_each_leave_nothing_behind() {
    let world = World::start(Flavor::Debian16).unwrap();
    world.put_manifest("cm", &config_map("cm", json!({ "a": "1" }))).unwrap();
    world.put_manifest("s", &secret("s", json!({ "s": "1" }))).unwrap();
    let names: Vec<String> = (0..100).map(|index| format!("many-{index:03}")).collect();
    for name in &names {
        let mounts = json!([
            { "name": "e", "mountPath": "/e", "subPath": "part" }, { "name": "m", "mountPath": "/m" }, { "name": "cm", "mountPath": "/cm" },
            { "name": "s", "mountPath": "/s" }, { "name": "p", "mountPath": "/p" },
        ]);
        let container = json!({ "name": "c", "image": BUSYBOX, "command": ["/bin/sh", "-c", "cat /cm/a /s/s /p/n && trap 'exit 0' TERM; sleep 1000000 & wait"], "volumeMounts": mounts });
        let spec = json!({
            "terminationGracePeriodSeconds": 1, "hostNetwork": true, "containers": [container],
            "volumes": [
                { "name": "e", "emptyDir": {} }, { "name": "m", "emptyDir": { "medium": "Memory" } }, { "name": "cm", "configMap": { "name": "cm" } },
                { "name": "s", "secret": { "secretName": "s" } },
                { "name": "p", "projected": { "sources": [{ "downwardAPI": { "items": [{ "path": "n", "fieldRef": { "fieldPath": "metadata.name" } }] } }] } },
            ],
        });
        world.put(name, spec).unwrap();
    }
    let count =
        |phase: &str| world.pods().unwrap_or_default().iter().filter(|pod| pod.phase() == phase).count();
    wait_until(SOON * 4, "a hundred running pods", || match count("Running") {
        100 => Ok(()),
        some => Err(format!("{some}")),
    })
    .unwrap();
    // `pod<uid>`, or a slice whose name ends in it.
    let pod_cgroups = || {
        let all = cgroups(&world.node).into_iter();
        all.filter(|path| {
            let name = path.rsplit('/').next().unwrap_or_default();
            name.starts_with("pod") || (name.contains("-pod") && name.ends_with(".slice"))
        })
        .count()
    };
    let made = pod_cgroups();
    assert!(made >= 100, "{made} cgroups of pods are seen");
    let root = fs::canonicalize(world.node.root().join("pods")).unwrap().display().to_string();
    let mounted = || {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.lines().filter(|line| line.contains(&root)).count()
    };
    wait_until(SOON, "tmpfs for m, s and p, and a part of e, of each", || match mounted() {
        400 => Ok(()),
        other => Err(format!("{other} mounts")),
    })
    .unwrap();
    for name in &names {
        world.take_away(name).unwrap();
    }
    wait_until(SOON * 4, "no pods", || match world.pods().map(|pods| pods.len()) {
        Ok(0) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    wait_until(SOON, "no leftovers", || {
        let dirs = fs::read_dir(&root).unwrap().count();
        match (mounted(), dirs, pod_cgroups()) {
            (0, 0, 0) => Ok(()),
            left => Err(format!("{left:?} mounts, directories, cgroups")),
        }
    })
    .unwrap();
}
