//! Weather that comes and goes: an API server that flaps, etcd restarted under it, clocks that disagree, and mainstay killed
//! during a rolling update while nobody can be asked. Nothing is restarted without cause, and everything is told in the end.

use std::{collections::BTreeMap, fs, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use mainstay_e2e::{
    idle,
    member::{Member, NODE, PODS, condition, container_id},
    seen::{PATIENCE, persisted},
    sh, with,
};
use mainstay_testkit::{Containerd, ControlPlane, FlakyProxy, Flavor, Mood, ThinWire, wait_until};
use serde_json::{Value, json};

/// Who was refused for a while tries ever more seldom.
const RECOVERY: Duration = Duration::from_secs(300);

fn since(object: &Value, kind: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    let found = conditions.filter(|it| it["type"] == kind).map(|it| it["lastTransitionTime"].clone()).next();
    found.unwrap_or_default()
}

/// What must not change: the container, how often it was started, and since when it is ready.
fn face(pod: &Value) -> Value {
    let container = &pod["status"]["containerStatuses"][0];
    json!([container_id(pod), container["restartCount"], condition(pod, "Ready"), since(pod, "Ready")])
}

fn probed() -> Value {
    let probe = json!({ "exec": { "command": ["test", "-f", "/tmp/ready"] }, "periodSeconds": 1 });
    json!({ "containers": [with(idle("c"), json!({ "readinessProbe": probe }))] })
}

fn switch(member: &Member, pod: &Value, on: bool) -> Result<()> {
    let id = container_id(pod).trim_start_matches("containerd://").to_owned();
    let script = if on { "touch /tmp/ready" } else { "rm -f /tmp/ready" };
    member.containerd.crictl(&["exec", "--sync", &id, "/bin/sh", "-c", script]).map(drop)
}

fn heard(member: &Member, name: &str, word: &str) -> Result<()> {
    wait_until(RECOVERY, &format!("the API server to hear that {name} is {word}"), || {
        let pod = member.get(&format!("{PODS}/{name}"))?;
        if condition(&pod, "Ready") == word { Ok(()) } else { Err(pod["status"].to_string()) }
    })
}

/// A steady pod and one that can be switched, and since when the node is Ready.
fn two_pods(member: &Member) -> Result<(Value, Value, Value)> {
    member.bind("steady", json!({ "containers": [idle("c")] }))?;
    member.bind("switched", probed())?;
    let switched = member.until(&format!("{PODS}/switched"), "its container to run", |pod| {
        pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
    })?;
    let steady = face(&member.ready("steady")?);
    let node: Value = serde_json::from_str(&member.node.get("/node")?)?;
    ensure!(condition(&node, "Ready") == "True", "{node}");
    Ok((steady, switched, since(&node, "Ready")))
}

fn unmoved(member: &Member, steady: &Value, node_since: &Value) -> Result<()> {
    let own = member.own("steady").map_err(anyhow::Error::msg)?;
    ensure!(face(&own) == *steady, "{own}");
    let node: Value = serde_json::from_str(&member.node.get("/node")?)?;
    ensure!(condition(&node, "Ready") == "True" && since(&node, "Ready") == *node_since, "{node}");
    Ok(())
}

#[test]
fn an_api_server_that_flaps_stalls_nothing() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let plane = ControlPlane::start(containerd.dir().join("cluster"))?;
    let proxy = FlakyProxy::start(&plane, "node")?;
    let kubeconfig = Some(proxy.kubeconfig().clone());
    let mut member = Member::on(containerd, plane, kubeconfig, |_, builder| Ok(builder))?;
    let (steady, switched, node_since) = two_pods(&member)?;
    let mut on = false;
    for (round, bad) in [Mood::Cut, Mood::Broken, Mood::TooMany, Mood::Cut].into_iter().enumerate() {
        let name = format!("meanwhile-{round}");
        for flap in 0..12 {
            proxy.set(if flap % 2 == 0 { bad } else { Mood::Fair });
            if flap == 4 {
                on = !on;
                switch(&member, &switched, on)?;
                member
                    .bind(&name, json!({ "terminationGracePeriodSeconds": 1, "containers": [idle("c")] }))?;
            }
            std::thread::sleep(Duration::from_millis(400));
        }
        if round == 1 {
            member.node.kill9();
            member.node.start_again()?;
            wait_until(PATIENCE, "the list after a restart", || member.own("steady"))?;
        }
        // What happens on the node is seen there at once, whatever the weather.
        let word = if on { "True" } else { "False" };
        wait_until(PATIENCE, "the node itself to see it", || {
            let pod = member.own("switched")?;
            if condition(&pod, "Ready") == word { Ok(()) } else { Err(pod["status"].to_string()) }
        })?;
        unmoved(&member, &steady, &node_since)?;
        proxy.set(Mood::Fair);
        heard(&member, "switched", word)?;
        heard(&member, &name, "True")?;
    }
    let after = member.get(&format!("{PODS}/steady")).map_err(anyhow::Error::msg)?;
    ensure!(face(&after) == steady, "{after}");
    // The proxy goes after who uses it.
    drop(member);
    drop(proxy);
    Ok(())
}

/// The real controllers give a node up that nobody hears of, and say so of its pods. When it is heard of again all that is taken back, and
/// on the node nothing has happened.
#[test]
fn a_partition_is_healed_before_anything_is_sent_away() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let plane = ControlPlane::start_whole(containerd.dir().join("cluster"))?;
    let proxy = FlakyProxy::start(&plane, "node")?;
    let kubeconfig = Some(proxy.kubeconfig().clone());
    let member = Member::on(containerd, plane, kubeconfig, |_, builder| Ok(builder))?;
    let set = |silent| proxy.set(if silent { Mood::Silent } else { Mood::Fair });
    is_healed(&member, set)?;
    drop(member);
    drop(proxy);
    Ok(())
}

/// The same where the node speaks HTTP/2 with the API server itself: one connection, on which everything waits.
#[test]
fn a_partition_of_one_connection_is_healed_as_well() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let plane = ControlPlane::start_whole(containerd.dir().join("cluster"))?;
    let wire = ThinWire::start(&plane, "node")?;
    let kubeconfig = Some(wire.kubeconfig().clone());
    let member = Member::on(containerd, plane, kubeconfig, |_, builder| Ok(builder))?;
    // HTTP/2 was agreed on: with HTTP/1.1 the watches of its Node, its pods and the Services have a connection each.
    let one_connection = || {
        wait_until(PATIENCE, "one connection for everything", || match wire.connections() {
            1 => Ok(()),
            other => Err(format!("{other} connections")),
        })
    };
    member.bind("heard", json!({ "containers": [idle("c")] }))?;
    member.ready("heard")?;
    one_connection()?;
    is_healed(&member, |silent| wire.silence(silent))?;
    one_connection()?;
    drop(member);
    drop(wire);
    Ok(())
}

fn is_healed(member: &Member, silence: impl Fn(bool)) -> Result<()> {
    let (steady, switched, node_since) = two_pods(member)?;
    switch(member, &switched, true)?;
    heard(member, "switched", "True")?;
    let steady_path = format!("{PODS}/steady");
    silence(true);
    // After its Lease is fifty seconds old.
    let taints = |node: &Value| node["spec"]["taints"].to_string();
    wait_until(RECOVERY, "the node to be given up", || {
        let node = member.get(NODE)?;
        let pod = member.get(&steady_path)?;
        let given_up = condition(&node, "Ready") == "Unknown"
            && taints(&node).contains("node.kubernetes.io/unreachable")
            && condition(&pod, "Ready") == "False";
        if given_up { Ok(()) } else { Err(format!("{} {}", node["status"]["conditions"], pod["status"])) }
    })?;
    unmoved(member, &steady, &node_since)?;
    switch(member, &switched, false)?;
    silence(false);
    wait_until(RECOVERY, "all of it to be taken back", || {
        let (node, pod) = (member.get(NODE)?, member.get(&steady_path)?);
        let is_well = condition(&node, "Ready") == "True"
            && !taints(&node).contains("unreachable")
            && condition(&pod, "Ready") == "True";
        if is_well { Ok(()) } else { Err(format!("{node} {}", pod["status"])) }
    })?;
    // What happened meanwhile is told as well.
    heard(member, "switched", "False")?;
    unmoved(member, &steady, &node_since)?;
    let after = member.get(&steady_path).map_err(anyhow::Error::msg)?;
    ensure!(
        container_id(&after) == container_id(&member.own("steady").map_err(anyhow::Error::msg)?),
        "{after}"
    );
    Ok(())
}

#[test]
fn etcd_is_restarted_under_the_api_server() -> Result<()> {
    let mut member = Member::start("{}")?;
    let (steady, switched, node_since) = two_pods(&member)?;
    member.bind("doomed", json!({ "terminationGracePeriodSeconds": 1, "containers": [idle("c")] }))?;
    member.ready("doomed")?;
    let mut on = false;
    for round in 0..2 {
        member.plane.stop_etcd();
        on = !on;
        let word = if on { "True" } else { "False" };
        switch(&member, &switched, on)?;
        wait_until(PATIENCE, "the node itself to see it", || {
            let pod = member.own("switched")?;
            if condition(&pod, "Ready") == word { Ok(()) } else { Err(pod["status"].to_string()) }
        })?;
        if round == 1 {
            member.node.kill9();
            member.node.start_again()?;
            wait_until(PATIENCE, "the list after a restart", || member.own("steady"))?;
        }
        // Long enough for writes to fail, and for the API server to notice.
        std::thread::sleep(Duration::from_secs(5));
        unmoved(&member, &steady, &node_since)?;
        member.plane.start_etcd()?;
        heard(&member, "switched", word)?;
    }
    wait_until(RECOVERY, "a deletion to be taken", || {
        member.delete(&format!("{PODS}/doomed"), "").map_err(|error| format!("{error:#}"))
    })?;
    member.gone(&format!("{PODS}/doomed"))?;
    member.bind("newcomer", json!({ "containers": [idle("c")] }))?;
    heard(&member, "newcomer", "True")?;
    unmoved(&member, &steady, &node_since)
}

/// A library that, loaded before others, shifts the clock of the day by as many seconds as a file says when the process starts; times that
/// only pass are left alone.
const SKEW: &str = r"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static long skew;
__attribute__((constructor)) static void begin(void) {
    const char *name = getenv(`SKEW_FILE`);
    FILE *file = name ? fopen(name, `r`) : NULL;
    if (!file) return;
    if (fscanf(file, `%ld`, &skew) != 1) skew = 0;
    fclose(file);
}
int clock_gettime(clockid_t id, struct timespec *at) {
    long done = syscall(SYS_clock_gettime, id, at);
    if (done == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += skew;
    return done;
}
";

#[test]
fn clocks_that_disagree_harm_nobody() -> Result<()> {
    for skew in [-3600, 3600] {
        skewed(skew).with_context(|| format!("a clock that is {skew} s off"))?;
    }
    Ok(())
}

fn skewed(skew: i64) -> Result<()> {
    let set = |member: &Containerd, skew: i64| fs::write(member.dir().join("skew"), skew.to_string());
    let mut member = Member::start_with(|containerd, builder| {
        let (source, library) = (containerd.dir().join("skew.c"), containerd.dir().join("skew.so"));
        set(containerd, skew)?;
        fs::write(&source, SKEW.replace('`', "\""))?;
        let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status()?;
        ensure!(made.success(), "the library that shifts the clock cannot be made");
        let library = library.display().to_string();
        Ok(builder
            .env("LD_PRELOAD", library)
            .env("SKEW_FILE", containerd.dir().join("skew").display().to_string())
            .config("{syncFrequency: 2s, nodeLeaseDurationSeconds: 4, nodeStatusUpdateFrequency: 2s}"))
    })?;
    // The clock is another, or this shows nothing.
    let node = member.get(NODE).map_err(anyhow::Error::msg)?;
    let heartbeat = |node: &Value| -> Result<i64> {
        let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        let ready = conditions.find(|it| it["type"] == "Ready").context("no Ready")?;
        let time: jiff::Timestamp = ready["lastHeartbeatTime"].as_str().unwrap_or_default().parse()?;
        Ok(time.as_second() - jiff::Timestamp::now().as_second())
    };
    let off = heartbeat(&node)?;
    ensure!((off - skew).abs() < 600, "the node's clock is {off} s off");
    let (steady, _, node_since) = two_pods(&member)?;

    // A token is good for as long as it was asked for, by the clock of whoever counts.
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "robot" } });
    member.plane.create("/api/v1/namespaces/default/serviceaccounts", &account)?;
    let mount = json!({ "volumeMounts": [{ "name": "o", "mountPath": "/o" }] });
    let token = json!({ "serviceAccountToken": { "path": "token", "expirationSeconds": 600 } });
    let pod = member.bind(
        "teller",
        json!({
            "serviceAccountName": "robot", "containers": [with(idle("c"), mount)],
            "volumes": [{ "name": "o", "projected": { "sources": [token] } }],
        }),
    )?;
    ensure!(pod["metadata"]["uid"].is_string(), "{pod}");
    let teller = member.ready("teller")?;
    let teller_face = face(&teller);
    let id = container_id(&teller).trim_start_matches("containerd://").to_owned();
    let read = || member.containerd.crictl(&["exec", "--sync", &id, "cat", "/o/token"]);
    let first = read()?;
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": { "token": first.trim() } });
    let review = member.plane.create("/apis/authentication.k8s.io/v1/tokenreviews", &review)?;
    ensure!(review["status"]["authenticated"] == true, "{review}");

    // A lease is renewed, and the grace of a deletion is given: neither at once nor by the other's clock.
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node";
    let renewed = member.get(lease).map_err(anyhow::Error::msg)?["spec"]["renewTime"].clone();
    member.until(lease, "the lease to be renewed", |lease| lease["spec"]["renewTime"] != renewed)?;
    let script = "trap 'sleep 2; exit 7' TERM; echo up; while :; do sleep 0.1; done";
    let slow = with(
        mainstay_e2e::pod("slow", json!({ "nodeName": "node", "containers": [sh("c", script)] })),
        json!({ "metadata": { "name": "slow", "finalizers": ["example.com/reader"] } }),
    );
    member.plane.create(PODS, &slow)?;
    member.ready("slow")?;
    wait_until(PATIENCE, "it to listen", || {
        let log = member.node.logs("default", "slow", "c", "").map_err(|error| format!("{error:#}"))?;
        if log.contains("up") { Ok(()) } else { Err(log) }
    })?;
    member.delete(&format!("{PODS}/slow"), "gracePeriodSeconds=120")?;
    let ended = member.until(&format!("{PODS}/slow"), "its end", |pod| {
        pod["metadata"]["deletionGracePeriodSeconds"] == 0
    })?;
    let state = &ended["status"]["containerStatuses"][0]["state"]["terminated"];
    ensure!(state["exitCode"] == 7, "it was not given its grace: {ended}");
    member.patch(&format!("{PODS}/slow"), &json!({ "metadata": { "finalizers": null } }))?;
    member.gone(&format!("{PODS}/slow"))?;
    // Nor was the token asked for again and again meanwhile.
    ensure!(read()? == first, "a token that is good for ten minutes was replaced within seconds");
    unmoved(&member, &steady, &node_since)?;

    // Killed, and started with a clock that is off the other way: what was written down is from the future, or from long ago. Nobody is
    // restarted for that, and nothing seems to have turned.
    persisted(&member.node)?;
    member.node.kill9();
    set(&member.containerd, -skew)?;
    member.node.start_again()?;
    wait_until(PATIENCE, "the list after a restart", || member.own("steady"))?;
    unmoved(&member, &steady, &node_since)?;
    member.until(NODE, "a heartbeat by the other clock", |node| {
        heartbeat(node).is_ok_and(|off| (off + skew).abs() < 600)
    })?;
    let renewed = member.get(lease).map_err(anyhow::Error::msg)?["spec"]["renewTime"].clone();
    member.until(lease, "the lease to be renewed", |lease| lease["spec"]["renewTime"] != renewed)?;
    member.bind("newcomer", json!({ "containers": [idle("c")] }))?;
    member.ready("newcomer")?;
    unmoved(&member, &steady, &node_since)?;
    for (name, before) in [("steady", &steady), ("teller", &teller_face)] {
        let pod = member.get(&format!("{PODS}/{name}")).map_err(anyhow::Error::msg)?;
        ensure!(face(&pod) == *before, "{name}: {before} became {pod}");
        ensure!(pod["status"]["containerStatuses"][0]["restartCount"] == 0, "{pod}");
    }
    Ok(())
}

#[test]
fn a_rolling_update_survives_a_kill_without_an_api_server() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let plane = ControlPlane::start_whole(containerd.dir().join("cluster"))?;
    let mut member = Member::on(containerd, plane, None, |_, builder| Ok(builder))?;
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let deployment = |version: &str| {
        let labels = json!({ "app": "web" });
        let container = with(idle("c"), json!({ "env": [{ "name": "VERSION", "value": version }] }));
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
            "spec": {
                "replicas": 4, "selector": { "matchLabels": labels },
                "strategy": { "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 1 } },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": { "terminationGracePeriodSeconds": 3, "containers": [container] },
                },
            },
        })
    };
    let version =
        |pod: &Value| pod["spec"]["containers"][0]["env"][0]["value"].as_str().unwrap_or_default().to_owned();
    let list = |member: &Member| -> Result<Vec<Value>, String> {
        let pods = member.get(&format!("{PODS}?labelSelector=app%3Dweb"))?;
        Ok(pods["items"].as_array().cloned().unwrap_or_default())
    };
    let all_ready = |member: &Member, wanted: &str| {
        wait_until(RECOVERY, &format!("four Ready pods of version {wanted}"), || {
            let pods = list(member)?;
            let fit = |pod: &&Value| condition(pod, "Ready") == "True" && version(pod) == wanted;
            if pods.len() == 4 && pods.iter().filter(fit).count() == 4 {
                return Ok(pods);
            }
            let seen: Vec<_> = pods
                .iter()
                .map(|it| format!("{} {} {}", it["metadata"]["name"], version(it), it["status"]))
                .collect();
            Err(format!("{seen:#?}"))
        })
    };
    member.plane.create(deployments, &deployment("1"))?;
    all_ready(&member, "1")?;
    persisted(&member.node)?;
    // It rolls; once something of it is Ready, the API server is away and mainstay is killed.
    member.patch(&format!("{deployments}/web"), &deployment("2"))?;
    wait_until(RECOVERY, "the first of the new version", || {
        let pods = list(&member)?;
        let rolled = pods.iter().any(|pod| version(pod) == "2" && condition(pod, "Ready") == "True");
        if rolled { Ok(()) } else { Err(format!("{pods:?}")) }
    })?;
    member.plane.stop_server();
    let own = |member: &Member| -> Result<BTreeMap<String, Value>, String> {
        let pods = member.node.get("/pods").map_err(|error| format!("{error:#}"))?;
        let pods: Value = serde_json::from_str(&pods).map_err(|error| error.to_string())?;
        let all = pods["items"].as_array().into_iter().flatten();
        Ok(all
            .map(|it| (it["metadata"]["uid"].as_str().unwrap_or_default().to_owned(), it.clone()))
            .collect())
    };
    // Those that are neither on their way in nor out.
    let settled = |pods: &BTreeMap<String, Value>| -> BTreeMap<String, Value> {
        let stays =
            |pod: &Value| pod["metadata"]["deletionTimestamp"].is_null() && condition(pod, "Ready") == "True";
        pods.iter().filter(|(_, pod)| stays(pod)).map(|(uid, pod)| (uid.clone(), face(pod))).collect()
    };
    let before = settled(&own(&member).map_err(anyhow::Error::msg)?);
    ensure!(!before.is_empty());
    for _ in 0..2 {
        member.node.kill9();
        member.node.start_again()?;
        // The first list that there is, is whole.
        let now = wait_until(PATIENCE, "the first list", || own(&member))?;
        let now = settled(&now);
        for (uid, face) in &before {
            ensure!(now.get(uid) == Some(face), "{uid}: {face} became {:?}", now.get(uid));
        }
    }
    member.plane.start_server()?;
    let rolled = all_ready(&member, "2")?;
    // Nothing that had settled was started again.
    for pod in &rolled {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        if let Some(was) = before.get(uid) {
            ensure!(face(pod) == *was, "{was} became {}", face(pod));
        }
    }
    let restarts: u64 =
        rolled.iter().filter_map(|pod| pod["status"]["containerStatuses"][0]["restartCount"].as_u64()).sum();
    // The instance that was being started when mainstay was killed may be lost, each time.
    ensure!(restarts <= 2, "{rolled:#?}");
    Ok(())
}
