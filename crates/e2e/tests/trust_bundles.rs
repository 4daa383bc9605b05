//! ClusterTrustBundles of a real API server in pods' projected volumes.

use anyhow::{Context, Result, ensure};
use mainstay_e2e::{
    idle,
    member::{Member, PODS, container_id},
    seen::{PATIENCE, persisted},
    sh, with,
};
use mainstay_testkit::{Authority, wait_until};
use serde_json::{Value, json};

const BUNDLES: &str = "/apis/certificates.k8s.io/v1/clustertrustbundles";
const SIGNER: &str = "example.com/mesh";

fn bundle(name: &str, signer: Option<&str>, version: &str, authorities: &[&Authority]) -> Value {
    let pem: String = authorities.iter().map(|it| format!("which one this is\n{}", it.pem)).collect();
    let mut spec = json!({ "trustBundle": pem });
    if let Some(signer) = signer {
        spec["signerName"] = json!(signer);
    }
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle",
        "metadata": { "name": name, "labels": { "version": version } }, "spec": spec,
    })
}

/// A container's file system, by a command in it.
fn run(member: &Member, id: &str, script: &str) -> Result<String, String> {
    let id = id.trim_start_matches("containerd://");
    let said = member.containerd.crictl(&["exec", "--sync", id, "/bin/sh", "-c", script]);
    said.map_err(|error| format!("{error:#}"))
}

/// The certificates in a text, without their order.
fn certificates(text: &str) -> Vec<String> {
    let blocks = text.split("-----END CERTIFICATE-----");
    let bodies = blocks.filter_map(|block| block.split_once("-----BEGIN CERTIFICATE-----"));
    let mut found: Vec<String> = bodies.map(|(_, body)| body.split_whitespace().collect()).collect();
    found.sort_unstable();
    found
}

/// Waits until a file holds the certificates of these, each once.
fn shows(member: &Member, id: &str, file: &str, wanted: &[&Authority]) -> Result<()> {
    let all: String = wanted.iter().map(|it| it.pem.as_str()).collect();
    let wanted = certificates(&all);
    wait_until(3 * PATIENCE, &format!("{} certificates in {file}", wanted.len()), || {
        let seen = run(member, id, &format!("cat {file}"))?;
        if certificates(&seen) == wanted { Ok(()) } else { Err(seen) }
    })
}

fn mount() -> Value {
    json!({ "volumeMounts": [{ "name": "trust", "mountPath": "/trust" }] })
}

fn volumes(sources: Vec<Value>) -> Value {
    let sources: Vec<_> = sources.into_iter().map(|it| json!({ "clusterTrustBundle": it })).collect();
    json!([{ "name": "trust", "projected": { "sources": sources } }])
}

#[test]
fn trust_bundles_reach_the_pods_and_follow_their_sources() -> Result<()> {
    let mut member = Member::start("crashLoopBackOff: {maxContainerRestartPeriod: 1s}")?;
    let (a, b, c) = (Authority::new("a")?, Authority::new("b")?, Authority::new("c")?);
    let create = |member: &Member, object: &Value| member.plane.create(BUNDLES, object);
    create(&member, &bundle("plain", None, "one", &[&a, &b]))?;
    create(&member, &bundle("example.com:mesh:live", Some(SIGNER), "live", &[&a]))?;
    create(&member, &bundle("example.com:mesh:next", Some(SIGNER), "next", &[&a, &b]))?;
    create(&member, &bundle("example.com:other:live", Some("example.com/other"), "live", &[&c]))?;
    let sources = vec![
        json!({ "name": "plain", "path": "plain.pem" }),
        json!({ "signerName": SIGNER, "labelSelector": {}, "path": "all.pem" }),
        json!({ "signerName": SIGNER, "labelSelector": { "matchLabels": { "version": "live" } }, "path": "deep/live.pem" }),
        json!({ "signerName": SIGNER, "labelSelector": { "matchExpressions": [
            { "key": "version", "operator": "In", "values": ["live"] },
        ] }, "path": "by-expression.pem" }),
        json!({ "signerName": SIGNER, "optional": true, "path": "no-selector.pem" }),
        json!({ "name": "missing", "optional": true, "path": "missing.pem" }),
    ];
    let script = "while ! test -e /tmp/go; do sleep 0.2; done; exit 1";
    let spec = json!({ "containers": [with(sh("c", script), mount())], "volumes": volumes(sources) });
    member.bind("trusting", spec)?;
    let first = member.ready("trusting")?;
    let id = container_id(&first).to_owned();
    shows(&member, &id, "/trust/plain.pem", &[&a, &b])?;
    shows(&member, &id, "/trust/all.pem", &[&a, &b])?;
    shows(&member, &id, "/trust/deep/live.pem", &[&a])?;
    shows(&member, &id, "/trust/by-expression.pem", &[&a])?;
    for file in ["no-selector", "missing"] {
        let seen = run(&member, &id, &format!("wc -c < /trust/{file}.pem")).map_err(anyhow::Error::msg)?;
        ensure!(seen.trim() == "0", "{file}: {seen}");
    }

    // A container of another user still reads it, and it is nobody else's.
    let user = json!({ "securityContext": { "runAsUser": 1234 } });
    let spec = json!({
        "containers": [with(with(idle("c"), mount()), user)],
        "volumes": volumes(vec![json!({ "name": "plain", "path": "plain.pem" })]),
    });
    member.bind("somebody", spec)?;
    let somebody = member.ready("somebody")?;
    let seen =
        run(&member, container_id(&somebody), "stat -L -c '%u %a' /trust/plain.pem && cat /trust/plain.pem");
    let seen = seen.map_err(anyhow::Error::msg)?;
    ensure!(seen.starts_with("1234 600") && certificates(&seen).len() == 2, "{seen}");

    // What must be there is waited for, with a clear word; the others are unaffected.
    let spec = json!({
        "containers": [with(idle("c"), mount())],
        "volumes": volumes(vec![
            json!({ "name": "late", "path": "late.pem" }),
            json!({ "signerName": "example.com/late", "labelSelector": {}, "path": "signer.pem" }),
        ]),
    });
    member.bind("waiting", spec)?;
    let told = |text: &str| member.told("waiting", "FailedMount", text);
    told("clustertrustbundle \"late\" not found")?;
    create(&member, &bundle("late", None, "one", &[&c]))?;
    told("matched zero ClusterTrustBundles")?;
    create(&member, &bundle("example.com:late:x", Some("example.com/late"), "one", &[&b]))?;
    let waited = member.ready("waiting")?;
    shows(&member, container_id(&waited), "/trust/late.pem", &[&c])?;
    shows(&member, container_id(&waited), "/trust/signer.pem", &[&b])?;

    // Contents follow: a change, another label, one more, one gone.
    let changed = bundle("plain", None, "one", &[&c]);
    member.patch(&format!("{BUNDLES}/plain"), &json!({ "spec": changed["spec"] }))?;
    shows(&member, &id, "/trust/plain.pem", &[&c])?;
    let relabel = json!({ "metadata": { "labels": { "version": "live" } } });
    member.patch(&format!("{BUNDLES}/example.com:mesh:next"), &relabel)?;
    shows(&member, &id, "/trust/deep/live.pem", &[&a, &b])?;
    create(&member, &bundle("example.com:mesh:third", Some(SIGNER), "x", &[&c]))?;
    shows(&member, &id, "/trust/all.pem", &[&a, &b, &c])?;
    member.delete(&format!("{BUNDLES}/example.com:mesh:next"), "")?;
    shows(&member, &id, "/trust/all.pem", &[&a, &c])?;
    create(&member, &bundle("missing", None, "x", &[&b]))?;
    shows(&member, &id, "/trust/missing.pem", &[&b])?;

    // Without the API server, through a restart of mainstay and of the container.
    persisted(&member.node)?;
    let kept = member.node.root().join("mainstay/api/objects");
    wait_until(PATIENCE, "the bundles on disk", || {
        let names = std::fs::read_dir(&kept).map_err(|error| error.to_string())?.flatten();
        let names: Vec<_> = names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        let count = |kind: &str| names.iter().filter(|name| name.starts_with(kind)).count();
        if count("trustbundle-") == 3 && count("trustsigner-") == 2 {
            Ok(())
        } else {
            Err(format!("{names:?}"))
        }
    })?;
    member.plane.stop_server();
    member.node.kill9();
    member.node.start_again()?;
    member.containerd.touch(id.trim_start_matches("containerd://"), "/tmp/go")?;
    let again = wait_until(2 * PATIENCE, "the container to start again", || {
        let pod = member.own("trusting")?;
        let runs = pod["status"]["containerStatuses"][0]["state"]["running"].is_object();
        if runs && container_id(&pod) != id { Ok(pod) } else { Err(pod["status"].to_string()) }
    })?;
    shows(&member, container_id(&again), "/trust/all.pem", &[&a, &c])?;

    // What nobody refers to is not kept.
    member.plane.start_server()?;
    for name in ["trusting", "somebody", "waiting"] {
        member.delete(&format!("{PODS}/{name}"), "gracePeriodSeconds=1")?;
        member.gone(&format!("{PODS}/{name}"))?;
    }
    wait_until(2 * PATIENCE, "the bundles to be forgotten", || {
        let names = std::fs::read_dir(&kept).map_err(|error| error.to_string())?.flatten();
        let left: Vec<_> = names
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.contains("trust"))
            .collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .context("after the pods have gone")
}
