//! With the API server away mainstay may be killed and started, and containers that end start again whole: with their
//! ConfigMaps, Secrets, tokens and service variables. None of these is readable on the node's disk.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

use anyhow::{Context, Result, ensure};
use mainstay_e2e::{
    config_map,
    member::{Member, PODS, condition, container_id},
    secret,
    seen::{PATIENCE, persisted},
    sh, with,
};
use mainstay_testkit::wait_until;
use serde_json::{Value, json};

const SECRET: &str = "entrusted-7f3a";

fn own(member: &Member, name: &str) -> Result<Value, String> {
    let pods = member.node.get("/pods").map_err(|error| format!("{error:#}"))?;
    let pods: Value = serde_json::from_str(&pods).map_err(|error| error.to_string())?;
    let found = pods["items"].as_array().into_iter().flatten().find(|pod| pod["metadata"]["name"] == name);
    found.cloned().ok_or_else(|| format!("no {name}: {pods}"))
}

/// Every file below a directory whose bytes contain one of the texts; other file systems (pods' volumes) are not entered.
fn mentions(dir: &Path, texts: &[&str]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            found.extend(mentions(&entry.path(), texts)?);
        } else if kind.is_file() {
            let bytes = fs::read(entry.path()).unwrap_or_default();
            let holds = |text: &&&str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
            if texts.iter().any(|text| holds(&text)) {
                found.push(entry.path().display().to_string());
            }
        }
    }
    Ok(found)
}

/// Whatever below a directory, itself included, others than root may use.
fn open_to_others(path: &Path) -> Result<Vec<String>> {
    let about = fs::symlink_metadata(path).with_context(|| path.display().to_string())?;
    let mode = about.permissions().mode() & 0o7777;
    let wanted = if about.is_dir() { 0o700 } else { 0o600 };
    let mut found = Vec::new();
    if mode != wanted || about.uid() != 0 || about.file_type().is_symlink() {
        found.push(format!("{} {mode:o} of user {}", path.display(), about.uid()));
    }
    if about.is_dir() {
        for entry in fs::read_dir(path)?.flatten() {
            match open_to_others(&entry.path()) {
                Ok(more) => found.extend(more),
                // Files are replaced all the time.
                Err(_) if !entry.path().exists() => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(found)
}

#[test]
fn containers_start_again_whole_without_the_api_server() -> Result<()> {
    let mut member = Member::start("crashLoopBackOff: {maxContainerRestartPeriod: 1s}")?;
    let objects = "/api/v1/namespaces/default";
    let of = |kind: &str| format!("{objects}/{kind}");
    member.plane.create(&of("secrets"), &secret("trust", json!({ "word": SECRET })))?;
    member.plane.create(&of("configmaps"), &config_map("colours", json!({ "sky": "blue" })))?;
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "teller" } });
    member.plane.create(&of("serviceaccounts"), &account)?;
    // A container is told of those services that the node has heard of when it is made, and nobody waits for a new one. The
    // node has heard of it when it has written its list once more; `kubernetes` is in it from the start.
    let kept = member.node.root().join("mainstay/api/objects");
    let services = || -> Result<Vec<u8>, String> {
        let mut files = fs::read_dir(&kept).map_err(|error| error.to_string())?.flatten();
        let file = files.find(|entry| entry.file_name().to_string_lossy().starts_with("services-"));
        fs::read(file.ok_or("no services")?.path()).map_err(|error| error.to_string())
    };
    let before = wait_until(PATIENCE, "the first service on disk", services)?;
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "bank" }, "spec": { "ports": [{ "port": 80 }] } });
    member.plane.create(&of("services"), &service)?;
    wait_until(PATIENCE, "the new service on disk", || {
        if services()? == before { Err("nothing new".to_owned()) } else { Ok(()) }
    })?;
    // It says what it was given, and ends when it is told to.
    let script = "echo word=$WORD sky=$(cat /colours/sky) bank=$BANK_SERVICE_PORT token=$(test -s /token/token && echo there) ; \
                  while ! test -e /tmp/go; do sleep 0.2; done; exit 1";
    let container = json!({
        "env": [{ "name": "WORD", "valueFrom": { "secretKeyRef": { "name": "trust", "key": "word" } } }],
        "volumeMounts": [{ "name": "colours", "mountPath": "/colours" }, { "name": "token", "mountPath": "/token" }],
    });
    let spec = json!({
        "serviceAccountName": "teller",
        "containers": [with(sh("c", script), container)],
        "volumes": [
            { "name": "colours", "configMap": { "name": "colours" } },
            { "name": "token", "projected": { "sources": [{ "serviceAccountToken": { "path": "token" } }] } },
        ],
    });
    member.bind("whole", spec)?;
    let first = member.ready("whole")?;
    let told = format!("word={SECRET} sky=blue bank=80 token=there");
    let says = |member: &Member, what: &str| {
        wait_until(PATIENCE, what, || {
            let log = member.node.logs("default", "whole", "c", "").map_err(|error| format!("{error:#}"))?;
            if log.contains(&told) { Ok(()) } else { Err(log) }
        })
    };
    says(&member, "the first word")?;
    // Objects are written a moment after they came, and so is the pod itself.
    let pods = member.node.root().join("mainstay/api/pods");
    let uid = first["metadata"]["uid"].as_str().context("no UID")?;
    wait_until(PATIENCE, "the pod and four kinds of objects on disk", || {
        let names = |dir: &Path| fs::read_dir(dir).map_err(|error| error.to_string());
        let names = names(&kept)?.chain(names(&pods)?).flatten();
        let names: Vec<_> = names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        let all = ["secret-", "configmap-", "token-", "services-", uid];
        let there = all.iter().all(|kind| names.iter().any(|name| name.starts_with(kind)));
        if there { Ok(()) } else { Err(format!("{names:?}")) }
    })?;
    // base64 of the word, as the API has it, is as good as the word.
    let readable = mentions(&member.node.root().join("mainstay"), &[SECRET, "ZW50cnVzdGVkLTdmM2"])?;
    ensure!(readable.is_empty(), "the Secret can be read in {readable:?}");
    let open = open_to_others(&member.node.root().join("mainstay"))?;
    ensure!(open.is_empty(), "others than root may use {open:#?}");

    persisted(&member.node)?;
    member.plane.stop_server();
    member.node.kill9();
    member.node.start_again()?;
    wait_until(PATIENCE, "the pod as it was", || {
        let pod = own(&member, "whole")?;
        let same = container_id(&pod) == container_id(&first) && condition(&pod, "Ready") == "True";
        if same { Ok(()) } else { Err(pod["status"].to_string()) }
    })?;
    let id = container_id(&first).trim_start_matches("containerd://").to_owned();
    member.containerd.touch(&id, "/tmp/go")?;
    let again = wait_until(PATIENCE, "the container to start again", || {
        let pod = own(&member, "whole")?;
        let other = container_id(&pod) != container_id(&first) && condition(&pod, "Ready") == "True";
        if other { Ok(pod) } else { Err(pod["status"].to_string()) }
    })?;
    ensure!(again["status"]["containerStatuses"][0]["restartCount"] == 1, "{}", again["status"]);
    says(&member, "the second word")?;

    // The API server's word wins when it is back.
    member.plane.start_server()?;
    member.until(&format!("{PODS}/whole"), "the API server to hear of it", |pod| {
        pod["status"]["containerStatuses"][0]["restartCount"] == 1 && condition(pod, "Ready") == "True"
    })?;
    member.patch(&of("configmaps/colours"), &json!({ "data": { "sky": "grey" } }))?;
    let id = container_id(&again).trim_start_matches("containerd://").to_owned();
    // Who listened to ConfigMaps while the API server was away comes back after up to a minute.
    wait_until(3 * PATIENCE, "the new colour", || {
        let seen = member.containerd.crictl(&["exec", "--sync", &id, "/bin/sh", "-c", "cat /colours/sky"]);
        let seen = seen.map_err(|error| format!("{error:#}"))?;
        if seen.contains("grey") { Ok(()) } else { Err(seen) }
    })?;

    // What nobody refers to is not kept.
    member.delete(&format!("{PODS}/whole"), "gracePeriodSeconds=1")?;
    member.gone(&format!("{PODS}/whole"))?;
    wait_until(PATIENCE, "the objects to be forgotten", || {
        let names = fs::read_dir(&kept).map_err(|error| error.to_string())?.flatten();
        let names: Vec<_> = names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        let left: Vec<_> =
            names.iter().filter(|name| !name.trim_start_matches('.').starts_with("services-")).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
}
