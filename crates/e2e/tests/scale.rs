//! Many pods at once, and many or rude clients.

use anyhow::{Context, Result, ensure};
use mainstay_e2e::seen::{
    OBEDIENT, PATIENCE, Seen, cgroups, in_runtime, manifest, parse, persisted, pod, quick, running, same,
    server, shell, start,
};
use mainstay_e2e::{Listening, ask, node_api};
use mainstay_testkit::{Containerd, Flavor, Http, Node, wait_until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const COUNT: usize = 100;

/// Reads `/pods` until told to stop; every answer after the first must be a whole list with each pod once.
fn keep_asking(http: &Http, stop: &AtomicBool) -> Result<usize> {
    let mut answers = 0;
    while !stop.load(Ordering::Relaxed) {
        let answer = http.get("/pods")?;
        if answer.status == 503 && answers == 0 {
            continue;
        }
        ensure!(answer.status == 200, "{} {}", answer.status, answer.text());
        let pods = parse(&answer.text())?;
        let names: BTreeSet<&str> = pods.iter().map(Seen::name).collect();
        ensure!(names.len() == pods.len(), "a pod is listed twice");
        answers += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(answers)
}

/// Two hundred pods at once would be another test.
static ONE_HUNDRED_AT_A_TIME: Mutex<()> = Mutex::new(());

fn a_hundred_pods(flavor: Flavor) -> Result<()> {
    let _alone = ONE_HUNDRED_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let containerd = Containerd::start(flavor)?;
    let mut node = quick(&containerd).start()?;
    let stop = AtomicBool::new(false);
    let names: Vec<String> = (0..COUNT).map(|i| format!("many-{i:03}")).collect();
    let http = node.http();
    let before = std::thread::scope(|scope| -> Result<Vec<Seen>> {
        let asking = scope.spawn(|| keep_asking(&http, &stop));
        let work = || -> Result<Vec<Seen>> {
            for name in &names {
                node.write_manifest(&format!("{name}.yaml"), &server(name))?;
            }
            node.wait_for(PATIENCE * 5, "a hundred running pods", |_| {
                let pods = mainstay_e2e::seen::pods(&node).map_err(|error| format!("{error:#}"))?;
                let ready = pods.iter().filter(|pod| pod.phase() == "Running" && pod.ready()).count();
                if ready == COUNT { Ok(pods) } else { Err(format!("{ready} of {}", pods.len())) }
            })
        };
        let result = work();
        stop.store(true, Ordering::Relaxed);
        let answers = asking.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
        ensure!(answers > 5, "only {answers} answers meanwhile");
        result
    })?;
    let ips: BTreeSet<&str> = before.iter().filter_map(|pod| pod.0["status"]["podIP"].as_str()).collect();
    ensure!(ips.len() == COUNT, "{} addresses", ips.len());

    // Killed with a hundred pods: complete at once, nothing touched. Nor is anybody told otherwise who asks by gRPC, in another language.
    persisted(&node)?;
    let asked = Listening::start(node_api(&node, &["poll-conditions", "3600"])?)?;
    let name = |pod: &Seen| pod.0["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let ready: serde_json::Map<_, _> = before.iter().map(|pod| (name(pod), json!(true))).collect();
    let ready = serde_json::Value::Object(ready);
    let watched = Listening::start(node_api(&node, &["poll-watch", "3600"])?)?;
    for client in [&asked, &watched] {
        client.wait("all pods ready", |said| said.contains(&ready).then_some(()))?;
    }
    node.kill9();
    asked.wait("that nobody answers", |said| said.contains(&json!("UNAVAILABLE")).then_some(()))?;
    node.spawn_again()?;
    // How soon it comes is measured by the bench.
    let after = wait_until(PATIENCE, "a list", || match node.http().get("/pods") {
        Ok(answer) if answer.status == 200 => Ok(answer.text()),
        other => Err(format!("{:?}", other.map(|answer| answer.status))),
    })?;
    let after = parse(&after)?;
    ensure!(after.len() == COUNT, "{} pods in the first list", after.len());
    before.iter().zip(&after).try_for_each(|(before, after)| same(before, after))?;
    ensure!(in_runtime(&containerd, None)?.sandboxes.len() == COUNT);
    wait_until(PATIENCE, "an answer by gRPC", || match ask(&node, &["conditions"]) {
        Ok(list) if list["Pods"].as_array().is_some_and(|pods| pods.len() == COUNT) => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    // It goes on asking for a while after everything is known again.
    wait_until(PATIENCE, "more answers", || {
        let text = node.get("/metrics").map_err(|error| format!("{error:#}"))?;
        let series = "kubelet_pod_info_endpoint_requests_list{server_api_version=\"v1alpha1\"} ";
        let count = text.lines().find_map(|line| line.strip_prefix(series)?.parse::<u64>().ok());
        if count.is_some_and(|count| count >= 50) { Ok(()) } else { Err(format!("{count:?} answers")) }
    })?;
    let refusals = ["UNAVAILABLE", "FAILED_PRECONDITION", "DEADLINE_EXCEEDED"];
    // The watch began before every pod was ready for those who ask it: only what it told after that counts.
    for client in [asked, watched] {
        let said = client.said();
        let whole = said.iter().position(|answer| *answer == ready).unwrap_or(said.len());
        let rest = said.get(whole..).unwrap_or_default();
        let fine = rest.iter().all(|answer| *answer == ready || refusals.iter().any(|code| answer == code));
        ensure!(fine && !rest.is_empty(), "{said:?}");
    }

    for name in &names {
        node.remove_manifest(&format!("{name}.yaml"))?;
    }
    node.wait_for(PATIENCE * 4, "no pods", |pods| {
        if pods.items.is_empty() { Ok(()) } else { Err(format!("{} pods", pods.items.len())) }
    })?;
    wait_until(PATIENCE * 2, "no leftovers", || {
        let left = leftovers(&containerd, &node).map_err(|error| format!("{error:#}"))?;
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{} things: {:?}", left.len(), left.iter().take(5).collect::<Vec<_>>()))
        }
    })?;
    let log = node.log();
    ensure!(!log.contains("panicked") && !log.contains("ERROR"), "{log}");
    Ok(())
}

#[test]
fn a_hundred_pods_at_once_run_survive_a_kill_and_leave_nothing_behind() -> Result<()> {
    a_hundred_pods(Flavor::Debian16)
}

#[test]
fn a_hundred_pods_at_once_run_survive_a_kill_and_leave_nothing_behind_on_containerd_2() -> Result<()> {
    a_hundred_pods(Flavor::Built24)
}

/// Everything that a hundred pods could have left.
fn leftovers(containerd: &Containerd, node: &Node) -> Result<Vec<String>> {
    let mut left = Vec::new();
    let runtime = in_runtime(containerd, None)?;
    left.extend(runtime.sandboxes);
    left.extend(runtime.containers.into_iter().map(|(name, ..)| name));
    for dir in ["pods", "mainstay/pods", "mainstay/status", "mainstay/manifests", "container-logs"] {
        let entries = fs::read_dir(node.root().join(dir)).into_iter().flatten().flatten();
        left.extend(entries.map(|entry| entry.path().display().to_string()));
    }
    let logs = fs::read_dir(node.pod_logs()).into_iter().flatten().flatten();
    left.extend(logs.map(|entry| entry.path().display().to_string()));
    left.extend(cgroups(node).into_iter().filter(|path| path.contains("/pod") || path.contains("-pod")));
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let own = [node.root().join("pods"), containerd.dir().join("state")].map(|dir| dir.display().to_string());
    let mounts = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    left.extend(
        mounts.filter(|point| own.iter().any(|own| point.starts_with(own.as_str()))).map(str::to_owned),
    );
    // Addresses are given back when the network of a sandbox is taken down, its namespace and its links with it.
    let leases = containerd.dir().join("ipam").join(containerd.instance().network());
    let leases = fs::read_dir(leases).into_iter().flatten().flatten().map(|entry| entry.file_name());
    left.extend(
        leases.map(|name| name.to_string_lossy().into_owned()).filter(|name| name.starts_with("10.")),
    );
    Ok(left)
}

#[test]
fn rude_clients_get_an_error_or_nothing_and_others_are_still_served() -> Result<()> {
    let (_containerd, node) = start(Flavor::Debian16)?;
    node.write_manifest("web.yaml", &server("web"))?;
    let web = running(&node, "web")?;
    let garbage: [&[u8]; 7] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GARBAGE\r\n\r\n",
        b"GET /pods HTTP/9.9\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"GET /containerLogs/default/../../../etc/passwd/x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"POST /pods HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999\r\n\r\n",
        b"GET /%ff%00%zz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    ];
    let endless = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(4 << 20));
    for request in garbage.into_iter().chain([endless.as_bytes()]) {
        for answer in [unix(&node, request)?, tcp(&node, request)?] {
            let status = String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned();
            ensure!(
                !status.contains(" 200"),
                "{:?}: {status}",
                String::from_utf8_lossy(request).chars().take(40).collect::<String>()
            );
            ensure!(!String::from_utf8_lossy(&answer).contains("root:"), "a file of the machine was served");
        }
    }
    same(&web, &pod(&node, "web")?)?;

    // A thousand connections that say nothing, on both doors, and one that says a byte at a time.
    make_room_for_files()?;
    let mut silent: Vec<Box<dyn Read>> = Vec::new();
    for _ in 0..500 {
        // The kernel refuses some when the queue is full; those that come through must do no harm.
        if let Ok(stream) = UnixStream::connect(node.root().join("mainstay.sock")) {
            silent.push(Box::new(stream));
        }
        if let Ok(stream) = TcpStream::connect_timeout(&node.read_only(), Duration::from_millis(100)) {
            silent.push(Box::new(stream));
        }
    }
    ensure!(silent.len() > 600, "only {} connections", silent.len());
    let mut slow = UnixStream::connect(node.root().join("mainstay.sock"))?;
    for byte in b"GET /pods HT" {
        slow.write_all(&[*byte])?;
    }
    // The local socket is for the owner of the machine and must not starve, whatever the other door sees.
    wait_until(PATIENCE, "an answer beside a thousand connections", || {
        node.http().get("/pods").map(drop).map_err(|error| format!("{error:#}"))
    })?;
    node.write_manifest("late.yaml", &server("late"))?;
    wait_until(PATIENCE, "a pod beside a thousand connections", || {
        let pod = pod(&node, "late").map_err(|error| format!("{error:#}"))?;
        if pod.ready() { Ok(()) } else { Err(pod.0["status"].to_string()) }
    })?;
    drop(silent);
    for http in [node.http(), Http::Tcp(node.read_only())] {
        wait_until(PATIENCE, "an answer afterwards", || match http.get("/pods") {
            Ok(answer) if answer.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        })?;
    }
    let log = node.log();
    ensure!(!log.contains("panicked"), "{log}");
    Ok(())
}

/// Lets this process have enough files open for a thousand connections and for the tests beside this one.
fn make_room_for_files() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(8192, |maximum| maximum.min(8192));
    if limit.current.is_some_and(|current| current < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit })?;
    }
    Ok(())
}

fn unix(node: &Node, request: &[u8]) -> Result<Vec<u8>> {
    let mut stream = UnixStream::connect(node.root().join("mainstay.sock"))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    // It may hang up while it is still being shouted at.
    stream.write_all(request).ok();
    stream.shutdown(std::net::Shutdown::Write).ok();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok();
    Ok(answer)
}

fn tcp(node: &Node, request: &[u8]) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(node.read_only())?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(request).ok();
    stream.shutdown(std::net::Shutdown::Write).ok();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok();
    Ok(answer)
}

#[test]
fn sigterm_ends_open_requests_and_mainstay_within_seconds() -> Result<()> {
    let (_containerd, mut node) = start(Flavor::Debian16)?;
    let spec = json!({ "containers": [shell("main", &format!("echo hello; {OBEDIENT}"))] });
    node.write_manifest("web.yaml", &manifest("web", spec))?;
    let web = running(&node, "web")?;
    let mut follow = node.follow_logs("default", "web-node", "main", "", PATIENCE)?;
    let mut first = [0; 6];
    follow.read_exact(&mut first)?;
    ensure!(&first == b"hello\n", "{first:?}");
    let mut watch = node.http().stream("/pods?watch=true", PATIENCE)?;
    // A client that has asked and reads nothing, and one that has not asked yet.
    let mut deaf = UnixStream::connect(node.root().join("mainstay.sock"))?;
    deaf.write_all(b"GET /pods HTTP/1.1\r\nhost: x\r\n\r\n")?;
    let silent = TcpStream::connect(node.read_only())?;
    let status = node.sigterm()?;
    ensure!(status.code() == Some(0), "{status}");
    let mut rest = Vec::new();
    follow.read_to_end(&mut rest).ok();
    watch.read_to_end(&mut rest).ok();
    drop(silent);
    node.start_again()?;
    running(&node, "web")?;
    same(&web, &pod(&node, "web")?)
}

#[test]
fn the_read_only_port_shows_pods_health_and_metrics_and_nothing_else() -> Result<()> {
    let (_containerd, node) = start(Flavor::Debian16)?;
    node.write_manifest("web.yaml", &server("web"))?;
    running(&node, "web")?;
    let http = Http::Tcp(node.read_only());
    for path in ["/pods", "/healthz", "/metrics", "/metrics/resource"] {
        wait_until(PATIENCE, path, || match http.get(path) {
            Ok(answer) if answer.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        })?;
    }
    for path in [
        "/containerLogs/default/web-node/main",
        "/exec/default/web-node/main",
        "/mainstay/v1/events",
        "/mainstay/v1/manifests",
        "/configz",
    ] {
        let answer = http.get(path)?;
        ensure!(answer.status >= 400, "{path}: {} {}", answer.status, answer.text());
    }
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(node.root().join("mainstay.sock"))?.permissions(),
    );
    ensure!(mode & 0o077 == 0, "the socket is open to others: {mode:o}");
    node.get("/mainstay/v1/node").context("on the socket")?;
    Ok(())
}
