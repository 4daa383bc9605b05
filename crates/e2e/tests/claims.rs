//! PersistentVolumeClaims that are bound to volumes on the node: by the real controllers for a StatefulSet, waited for while
//! they are not bound, refused where they cannot be mounted, and there without the API server.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use anyhow::{Context, Result, ensure};
use mainstay_e2e::{
    idle,
    member::{Member, PODS, condition, container_id},
    seen::{PATIENCE, persisted},
    sh, with,
};
use mainstay_testkit::{Containerd, ControlPlane, Flavor, HungFilesystem, own_mounts, wait_until};
use serde_json::{Value, json};

const VOLUMES: &str = "/api/v1/persistentvolumes";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";

fn volume(name: &str, source: Value) -> Value {
    let spec = json!({
        "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "here",
        "persistentVolumeReclaimPolicy": "Retain",
    });
    json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name }, "spec": with(spec, source) })
}

fn local(name: &str, path: &str, node: &str) -> Value {
    let term = json!({ "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] }] });
    let affinity = json!({ "required": { "nodeSelectorTerms": [term] } });
    volume(name, json!({ "local": { "path": path }, "nodeAffinity": affinity }))
}

/// What a claim asks for.
fn wish() -> Value {
    json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": "here", "resources": { "requests": { "storage": "1Gi" } } })
}

fn claim(name: &str, volume: &str) -> Value {
    let spec = with(wish(), json!({ "volumeName": volume }));
    json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name }, "spec": spec })
}

fn mounted(container: Value) -> Value {
    with(container, json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] }))
}

fn of_claim(container: Value, claim: &str) -> Value {
    json!({
        "terminationGracePeriodSeconds": 1, "containers": [mounted(container)],
        "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }],
    })
}

#[test]
fn claims_are_resolved_waited_for_and_kept() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let plane = ControlPlane::start_whole(containerd.dir().join("cluster"))?;
    let mut member = Member::on(containerd, plane, None, |_, builder| {
        Ok(builder.config("crashLoopBackOff: {maxContainerRestartPeriod: 1s}\nvolumeStatsAggPeriod: 1s"))
    })?;
    let base = member.containerd.dir().join("volumes");
    let dir = |name: &str| -> Result<String> {
        let dir = base.join(name);
        fs::create_dir_all(&dir)?;
        Ok(dir.display().to_string())
    };
    let create = |member: &Member, path: &str, object: &Value| member.plane.create(path, object).map(drop);
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": "here" },
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
    });
    create(&member, "/apis/storage.k8s.io/v1/storageclasses", &class)?;

    // A StatefulSet finds the volume that was made for it, and what it wrote is there for its successor.
    create(&member, VOLUMES, &local("disk", &dir("disk")?, "node"))?;
    let script = "echo written by $HOSTNAME >> /data/diary; trap 'exit 0' TERM; while :; do sleep 0.2; done";
    let labels = json!({ "app": "db" });
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "db" },
        "spec": {
            "replicas": 1, "serviceName": "db", "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": { "terminationGracePeriodSeconds": 2, "containers": [mounted(sh("c", script))] },
            },
            "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": wish() }],
        },
    });
    create(&member, "/apis/apps/v1/namespaces/default/statefulsets", &set)?;
    let first = member.ready("db-0")?;
    let diary = || fs::read_to_string(base.join("disk/diary")).unwrap_or_default();
    let lines = |count: usize| {
        wait_until(PATIENCE, &format!("{count} lines in the diary"), || {
            let text = diary();
            if text.lines().count() == count { Ok(()) } else { Err(text) }
        })
    };
    lines(1)?;
    member.delete(&format!("{PODS}/db-0"), "")?;
    member.until(&format!("{PODS}/db-0"), "its successor", |pod| {
        pod["metadata"]["uid"] != first["metadata"]["uid"] && condition(pod, "Ready") == "True"
    })?;
    lines(2)?;
    // How full its disk is is told, by the claim's name.
    wait_until(PATIENCE, "the claim's volume to be measured", || {
        let get = |path: &str| member.node.http().get(path).map(|it| it.text()).unwrap_or_default();
        // Disks are looked at more often while somebody wants to know.
        let summary = get("/stats/summary");
        let metrics = get("/metrics");
        let value = |family: &str| {
            let labels = "{namespace=\"default\",persistentvolumeclaim=\"data-db-0\"} ";
            let line = metrics.lines().find_map(|line| line.strip_prefix(family)?.strip_prefix(labels));
            line.and_then(|number| number.parse::<f64>().ok()).unwrap_or(0.0)
        };
        let kinds =
            ["available_bytes", "capacity_bytes", "inodes", "inodes_free", "inodes_used", "used_bytes"];
        let told = kinds.iter().all(|kind| value(&format!("kubelet_volume_stats_{kind}")) > 0.0);
        let read: Value = serde_json::from_str(&summary).unwrap_or_default();
        let pods = read["pods"].as_array().into_iter().flatten();
        let mut volumes = pods.flat_map(|pod| pod["volume"].as_array().into_iter().flatten());
        let claim = json!({ "name": "data-db-0", "namespace": "default" });
        let named = volumes.any(|volume| volume["pvcRef"] == claim);
        if told && named { Ok(()) } else { Err(format!("{summary}\n{metrics}")) }
    })?;

    // A hostPath, read-only by the pod's word.
    create(&member, VOLUMES, &volume("shelf", json!({ "hostPath": { "path": dir("shelf")? } })))?;
    fs::write(base.join("shelf/book"), "once")?;
    create(&member, CLAIMS, &claim("shelf", "shelf"))?;
    let mut spec =
        of_claim(sh("c", "cat /data/book; echo; touch /data/x || echo refused; sleep 10000"), "shelf");
    spec["volumes"][0]["persistentVolumeClaim"]["readOnly"] = json!(true);
    member.bind("reader", spec)?;
    member.ready("reader")?;
    wait_until(PATIENCE, "the reader's words", || {
        let log = member.node.logs("default", "reader", "c", "").map_err(|error| format!("{error:#}"))?;
        if log.contains("once") && log.contains("refused") { Ok(()) } else { Err(log) }
    })?;
    ensure!(!base.join("shelf/x").exists(), "a read-only volume was written to");

    // One that is not bound yet is waited for with a clear word.
    member.bind("early", of_claim(idle("c"), "late"))?;
    member.told("early", "FailedMount", "persistentvolumeclaim \"late\" not found")?;
    create(&member, CLAIMS, &claim("late", "late"))?;
    member.told("early", "FailedMount", "persistentvolumeclaim \"late\" is not bound yet")?;
    create(&member, VOLUMES, &local("late", &dir("late")?, "node"))?;
    member.ready("early")?;

    // An ephemeral volume is claimed by a controller, and goes with the pod.
    create(&member, VOLUMES, &local("scratch", &dir("scratch")?, "node"))?;
    let template = json!({ "spec": with(wish(), json!({ "volumeName": "scratch" })) });
    member.bind(
        "fleeting",
        json!({
            "containers": [mounted(sh("c", "echo here > /data/was; sleep 10000"))],
            "volumes": [{ "name": "data", "ephemeral": { "volumeClaimTemplate": template } }],
        }),
    )?;
    member.ready("fleeting")?;
    wait_until(PATIENCE, "what it wrote", || {
        let text = fs::read_to_string(base.join("scratch/was")).map_err(|error| error.to_string())?;
        if text == "here\n" { Ok(()) } else { Err(text) }
    })?;

    // Another pod of that name is given a claim of its own, not what its predecessor left for a moment.
    create(&member, VOLUMES, &local("scratch-2", &dir("scratch-2")?, "node"))?;
    member.delete(&format!("{PODS}/fleeting"), "?gracePeriodSeconds=1")?;
    member.gone(&format!("{PODS}/fleeting"))?;
    let template = json!({ "spec": with(wish(), json!({ "volumeName": "scratch-2" })) });
    member.bind(
        "fleeting",
        json!({
            "terminationGracePeriodSeconds": 1, "containers": [mounted(idle("c"))],
            "volumes": [{ "name": "data", "ephemeral": { "volumeClaimTemplate": template } }],
        }),
    )?;
    let again = member.ready("fleeting")?;
    let id = container_id(&again).trim_start_matches("containerd://").to_owned();
    let seen = member.containerd.crictl(&["exec", "--sync", &id, "/bin/sh", "-c", "ls /data | wc -l"])?;
    ensure!(seen.trim() == "0", "it sees what its predecessor wrote: {seen}");

    // What cannot be mounted says why; nobody else notices.
    let refused = [
        ("elsewhere", local("elsewhere", &dir("elsewhere")?, "another"), "is not for this node"),
        (
            "driven",
            volume("driven", json!({ "csi": { "driver": "example.com", "volumeHandle": "h" } })),
            "is of type csi, which this version does not mount",
        ),
        ("gone", local("gone", "/nowhere/to/be/found", "node"), "/nowhere/to/be/found"),
    ];
    for (name, object, why) in &refused {
        create(&member, VOLUMES, object)?;
        create(&member, CLAIMS, &claim(name, name))?;
        member.until(&format!("{CLAIMS}/{name}"), "the claim to be bound", |claim| {
            claim["status"]["phase"] == "Bound"
        })?;
        member.bind(name, of_claim(idle("c"), name))?;
        member.told(name, "FailedMount", why)?;
    }

    // Who was given a volume keeps it: when the node has no longer the label that the volume is for, and when the volume's object is
    // gone. Nobody else is given it then.
    let label = |value: Value| {
        member
            .patch("/api/v1/nodes/node", &json!({ "metadata": { "labels": { "example.com/disk": value } } }))
    };
    label(json!("fast"))?;
    let term =
        json!({ "matchExpressions": [{ "key": "example.com/disk", "operator": "In", "values": ["fast"] }] });
    let affinity = json!({ "required": { "nodeSelectorTerms": [term] } });
    let source = json!({ "local": { "path": dir("fast")? }, "nodeAffinity": affinity });
    create(&member, VOLUMES, &volume("fast", source))?;
    create(&member, CLAIMS, &claim("fast", "fast"))?;
    let mortal = "echo $HOSTNAME >> /data/starts; while ! test -e /tmp/go; do sleep 0.2; done; exit 1";
    member.bind("fast", of_claim(sh("c", mortal), "fast"))?;
    let mut fast = member.ready("fast")?;
    label(Value::Null)?;
    member.bind("late-for-label", of_claim(idle("c"), "fast"))?;
    member.told("late-for-label", "FailedMount", "is not for this node")?;
    let next = |fast: &Value| -> Result<Value> {
        member.containerd.touch(container_id(fast).trim_start_matches("containerd://"), "/tmp/go")?;
        wait_until(2 * PATIENCE, "the container to start again", || {
            let pod = member.own("fast")?;
            let other = container_id(&pod) != container_id(fast) && condition(&pod, "Ready") == "True";
            if other { Ok(pod) } else { Err(pod["status"].to_string()) }
        })
    };
    fast = next(&fast)?;
    let gone = format!("{VOLUMES}/fast");
    member.delete(&gone, "")?;
    member.patch(&gone, &json!({ "metadata": { "finalizers": null } }))?;
    member.gone(&gone)?;
    label(json!("fast"))?;
    member.delete(&format!("{PODS}/late-for-label"), "?gracePeriodSeconds=0")?;
    member.bind("late-for-volume", of_claim(idle("c"), "fast"))?;
    member.told("late-for-volume", "FailedMount", "persistentvolumeclaim \"fast\" is")?;
    next(&fast)?;
    let starts = fs::read_to_string(base.join("fast/starts"))?;
    ensure!(starts == "fast\n".repeat(3), "{starts}");
    for name in ["late-for-volume", "fast"] {
        member.delete(&format!("{PODS}/{name}"), "?gracePeriodSeconds=0")?;
    }
    member.delete(&format!("{CLAIMS}/fast"), "")?;
    member.gone(&format!("{CLAIMS}/fast"))?;

    // Without the API server: a container that ends starts again, with its volume, also after a restart of mainstay.
    member
        .bind("steady", of_claim(sh("c", "while ! test -e /tmp/go; do sleep 0.2; done; exit 1"), "shelf"))?;
    let steady = member.ready("steady")?;
    persisted(&member.node)?;
    let kept = member.node.root().join("mainstay/api/objects");
    wait_until(PATIENCE, "the claims on disk", || {
        let names = fs::read_dir(&kept).map_err(|error| error.to_string())?.flatten();
        let count = names.filter(|entry| entry.file_name().to_string_lossy().starts_with("claim-")).count();
        // db-0's, shelf, late, the ephemeral one, and the three that are refused.
        if count == 7 { Ok(()) } else { Err(count.to_string()) }
    })?;
    member.plane.stop_server();
    member.node.kill9();
    member.node.start_again()?;
    member.containerd.touch(container_id(&steady).trim_start_matches("containerd://"), "/tmp/go")?;
    let again = wait_until(2 * PATIENCE, "the container to start again", || {
        let pod = member.own("steady")?;
        let other = container_id(&pod) != container_id(&steady) && condition(&pod, "Ready") == "True";
        if other { Ok(pod) } else { Err(pod["status"].to_string()) }
    })?;
    let id = container_id(&again).trim_start_matches("containerd://").to_owned();
    let seen = member.containerd.crictl(&["exec", "--sync", &id, "/bin/sh", "-c", "cat /data/book"])?;
    ensure!(seen.contains("once"), "{seen}");
    member.plane.start_server()?;
    member.ready("steady").context("after the API server has come back")?;
    Ok(())
}

#[test]
fn a_local_volume_is_given_to_the_group_of_its_pod() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let plane = ControlPlane::start_whole(containerd.dir().join("cluster"))?;
    let member = Member::on(containerd, plane, None, |_, builder| Ok(builder))?;
    let disk = member.containerd.dir().join("volumes/disk");
    fs::create_dir_all(disk.join("deep"))?;
    fs::write(disk.join("deep/file"), "before\n")?;
    fs::set_permissions(disk.join("deep/file"), fs::Permissions::from_mode(0o600))?;
    // By a link, as administrators do; and it says which group it belongs to.
    let link = member.containerd.dir().join("volumes/link");
    std::os::unix::fs::symlink(&disk, &link)?;
    let groups =
        json!({ "metadata": { "name": "disk", "annotations": { "pv.beta.kubernetes.io/gid": "5555" } } });
    member.plane.create(VOLUMES, &with(local("disk", &link.display().to_string(), "node"), groups))?;
    member.plane.create(CLAIMS, &claim("disk", "disk"))?;
    let writes = |group: u32, policy: &str| {
        let script = "echo after >> /data/deep/file; exec sleep 10000";
        let security =
            json!({ "runAsUser": 1234, "runAsGroup": 1234, "fsGroup": group, "fsGroupChangePolicy": policy });
        with(of_claim(sh("c", script), "disk"), json!({ "securityContext": security }))
    };
    let seen = || -> Result<(u32, u32, String)> {
        let found = fs::metadata(disk.join("deep/file"))?;
        Ok((found.gid(), found.mode() & 0o7777, fs::read_to_string(disk.join("deep/file"))?))
    };
    // Until its directory is gone the volume is still the pod's.
    let ends = |name: &str| -> Result<()> {
        let uid = member.ready(name)?["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        member.delete(&format!("{PODS}/{name}"), "?gracePeriodSeconds=0")?;
        let dir = member.node.root().join("pods").join(uid);
        wait_until(PATIENCE, "the end of the pod's directory", || match dir.exists() {
            true => Err(format!("{} is there", dir.display())),
            false => Ok(()),
        })
    };
    member.bind("first", writes(4711, "OnRootMismatch"))?;
    member.ready("first")?;
    wait_until(PATIENCE, "the first one's line", || {
        let seen = seen().map_err(|error| format!("{error:#}"))?;
        if seen == (4711, 0o660, "before\nafter\n".to_owned()) { Ok(()) } else { Err(format!("{seen:?}")) }
    })?;
    ends("first")?;
    // Only its root is looked at, and that is the group's: what somebody has changed below it stays.
    chown(disk.join("deep/file"), None, Some(0))?;
    member.bind("second", writes(4711, "OnRootMismatch"))?;
    member.ready("second")?;
    ensure!(seen()?.0 == 0, "nothing was to be changed: {:?}", seen()?);
    ends("second")?;
    member.bind("third", writes(4711, "Always"))?;
    member.ready("third")?;
    ensure!(seen()?.0 == 4711, "everything was to be given: {:?}", seen()?);

    // One of another group beside it takes nothing away, and is told so; both are in the volume's own group.
    member.bind("guest", writes(1000, "Always"))?;
    let guest = member.ready("guest")?;
    member.told(
        "guest",
        "AlreadyMountedVolume",
        "The requested fsGroup is 1000, but the volume data has GID 4711.",
    )?;
    ensure!(seen()?.0 == 4711, "the volume was another pod's: {:?}", seen()?);
    let id = container_id(&guest).trim_start_matches("containerd://").to_owned();
    let groups = member.containerd.crictl(&["exec", "--sync", &id, "/bin/sh", "-c", "id -G"])?;
    ensure!(groups.split_whitespace().any(|group| group == "5555"), "{groups}");
    Ok(())
}

/// A disk on which that takes long: here a part of it never answers.
#[test]
fn a_group_that_is_given_its_volume_slowly_is_told_of_it() -> Result<()> {
    own_mounts()?;
    let containerd = Containerd::start(Flavor::Debian16)?;
    let plane = ControlPlane::start_whole(containerd.dir().join("cluster"))?;
    let disk = containerd.dir().join("volumes/disk");
    let slow = disk.join("slow");
    fs::create_dir_all(&slow)?;
    fs::write(disk.join("quick"), "")?;
    // What hangs ends first: a process that asks it cannot be ended before.
    let member;
    let hung = HungFilesystem::mount(&slow)?;
    member = Member::on(containerd, plane, None, |_, builder| Ok(builder))?;
    member.plane.create(VOLUMES, &local("disk", &disk.display().to_string(), "node"))?;
    member.plane.create(CLAIMS, &claim("disk", "disk"))?;
    let group = json!({ "securityContext": { "fsGroup": 4711 }, "terminationGracePeriodSeconds": 1 });
    member.bind("patient", with(of_claim(idle("c"), "disk"), group))?;
    member.told(
        "patient",
        "VolumePermissionChangeInProgress",
        "Setting volume ownership for data is taking longer than expected",
    )?;
    // The rest of the node is not held up.
    member.bind("other", json!({ "containers": [idle("c")] }))?;
    member.ready("other")?;
    // Who comes meanwhile with another group waits for longer than its worker does, and hears of it all the same.
    let others = json!({ "securityContext": { "fsGroup": 1000 }, "terminationGracePeriodSeconds": 1 });
    member.bind("guest", with(of_claim(idle("c"), "disk"), others))?;
    let waits = "waiting for others who change the group of volume \"data\" has not ended";
    member.told("guest", "FailedMount", waits)?;
    drop(hung);
    member.ready("patient")?;
    member.ready("guest")?;
    member.told(
        "guest",
        "AlreadyMountedVolume",
        "The requested fsGroup is 1000, but the volume data has GID 4711.",
    )?;
    for path in [&disk, &disk.join("quick")] {
        ensure!(fs::metadata(path)?.gid() == 4711, "{} is not the group's", path.display());
    }
    Ok(())
}
