//! The kit on the real machine: private containerds of both kinds, and that nothing of them stays.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use mainstay_testkit::{
    BUSYBOX, CgroupDriver, Containerd, Flavor, Http, Image, Instance, Registry, free_address, wait_until,
};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const CHILD: &str = "MAINSTAY_TESTKIT_CHILD";

/// Long enough for anything on a busy machine; waiting ends as soon as the condition holds.
const PATIENCE: Duration = Duration::from_secs(60);

/// A pod with one busybox httpd, made by crictl.
struct Pod {
    sandbox: String,
    container: String,
    address: String,
    pid: u64,
}

fn run_pod(containerd: &Containerd, name: &str) -> Pod {
    run_pod_on(containerd, name, &[])
}

/// The same with its port 8080 on some ports of the host.
fn run_pod_on(containerd: &Containerd, name: &str, host_ports: &[u16]) -> Pod {
    let mappings: Vec<Value> = host_ports
        .iter()
        .map(|port| json!({ "container_port": 8080, "host_port": port, "host_ip": "", "protocol": 0 }))
        .collect();
    let parts = [containerd.instance().cgroup_name(), format!("pod-{name}")];
    let parent = CgroupDriver::of_this_run().parent(&[&parts[0], &parts[1]]);
    let file = |suffix: &str, value: &Value| {
        let path = containerd.dir().join(format!("{name}-{suffix}.json"));
        fs::write(&path, value.to_string()).unwrap();
        path.to_string_lossy().into_owned()
    };
    let sandbox_file = file(
        "sandbox",
        &json!({
            "metadata": { "name": name, "namespace": "default", "uid": name, "attempt": 0 },
            "port_mappings": mappings,
            "log_directory": containerd.dir().join("logs"),
            "linux": { "cgroup_parent": parent },
        }),
    );
    let container_file = file(
        "container",
        &json!({
            "metadata": { "name": "web" },
            "image": { "image": BUSYBOX },
            "command": ["httpd", "-f", "-p", "8080", "-h", "/etc"],
            "log_path": "web.log",
        }),
    );
    let sandbox = containerd.crictl(&["runp", &sandbox_file]).unwrap().trim().to_owned();
    let created =
        containerd.crictl(&["create", "--no-pull", &sandbox, &container_file, &sandbox_file]).unwrap();
    let container = created.trim().to_owned();
    containerd.crictl(&["start", &container]).unwrap();
    let inspect = |verb: &str, id: &str| -> Value {
        serde_json::from_str(&containerd.crictl(&[verb, id]).unwrap()).unwrap()
    };
    let address = inspect("inspectp", &sandbox)["status"]["network"]["ip"].as_str().unwrap().to_owned();
    let pid = inspect("inspect", &container)["info"]["pid"].as_u64().unwrap();
    Pod { sandbox, container, address, pid }
}

impl Pod {
    fn answers(&self) {
        let http = Http::Tcp(format!("{}:8080", self.address).parse().unwrap());
        let text = wait_until(PATIENCE, "httpd", || {
            http.get("/passwd").map(|answer| answer.text()).map_err(|error| format!("{error:#}"))
        });
        assert!(text.unwrap().starts_with("root:"));
    }

    fn is_alive(&self) -> bool {
        // One that nobody has reaped yet has no command line any more.
        fs::read(format!("/proc/{}/cmdline", self.pid)).is_ok_and(|words| !words.is_empty())
    }

    fn state(&self, containerd: &Containerd) -> String {
        let text = containerd.crictl(&["inspect", &self.container]).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["status"]["state"].as_str().unwrap().to_owned()
    }
}

/// Links of the machine that are ports of the instance's bridge.
fn ports(instance: &Instance) -> Vec<PathBuf> {
    let dir = format!("/sys/class/net/{}/brif", instance.bridge());
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| Path::new("/sys/class/net").join(name)).collect()
}

fn lives_and_leaves_nothing(flavor: Flavor) {
    let containerd = Containerd::start(flavor).unwrap();
    let instance = containerd.instance().clone();
    let pods = [run_pod(&containerd, "one"), run_pod(&containerd, "two")];
    pods.iter().for_each(Pod::answers);
    let subnet = containerd.subnet();
    let network: Vec<&str> = subnet.split('.').take(2).collect();
    assert!(pods[0].address.starts_with(&network.join(".")), "{} in {subnet}", pods[0].address);
    assert!(containerd.crictl(&["exec", "--sync", &pods[0].container, "id", "-u"]).unwrap().starts_with('0'));

    let first = containerd.pid();
    containerd.restart().unwrap();
    assert_ne!(containerd.pid(), first);
    assert_eq!(pods[0].state(&containerd), "CONTAINER_RUNNING");
    containerd.kill9();
    assert!(pods[0].is_alive(), "a killed containerd does not take its containers along");
    containerd.start_again().unwrap();
    assert_eq!(pods[0].state(&containerd), "CONTAINER_RUNNING");

    // What is there now must be what is gone afterwards, or the check below would prove nothing.
    let before = instance.leftovers();
    for kind in ["process", "mount", "cgroup", "socket", "link", "file", "directory"] {
        assert!(before.iter().any(|found| found.starts_with(kind)), "no {kind} in {before:#?}");
    }
    let links = ports(&instance);
    assert_eq!(links.len(), 2);
    drop(containerd);
    assert_eq!(instance.leftovers(), Vec::<String>::new());
    assert!(pods.iter().all(|pod| !pod.is_alive()));
    assert!(links.iter().all(|link| !link.exists()), "{links:?}");
}

#[test]
fn debian_containerd_lives_and_leaves_nothing() {
    lives_and_leaves_nothing(Flavor::Debian16);
}

#[test]
fn built_containerd_lives_and_leaves_nothing() {
    lives_and_leaves_nothing(Flavor::Built24);
}

#[test]
fn host_ports_and_masquerading_leave_no_rules() {
    let containerd = Containerd::builder(Flavor::Debian16).masquerade().host_ports().start().unwrap();
    let instance = containerd.instance().clone();
    let port = free_address().unwrap().port();
    run_pod_on(&containerd, "mapped", &[port]).answers();
    // Not by 127.0.0.1, which would need route_localnet: by the host's address on the pods' bridge.
    let mapped = Http::Tcp((containerd.gateway(), port).into()).get("/passwd").unwrap();
    assert!(mapped.text().starts_with("root:"));
    let rules = instance.leftovers().into_iter().filter(|found| found.starts_with("rule "));
    assert!(rules.count() >= 2, "one for the host port and one for masquerading");
    containerd.remove().unwrap();
    assert_eq!(instance.leftovers(), Vec::<String>::new());
}

#[test]
fn a_reboot_ends_containers_and_keeps_images() {
    for flavor in Flavor::ALL {
        let containerd = Containerd::start(flavor).unwrap();
        let pod = run_pod(&containerd, "before");
        containerd.reboot().unwrap();
        assert!(!pod.is_alive());
        assert_eq!(pod.state(&containerd), "CONTAINER_EXITED", "{flavor:?}");
        let sandboxes = containerd.crictl(&["pods", "--state", "ready", "-q"]).unwrap();
        assert!(!sandboxes.contains(&pod.sandbox));
        run_pod(&containerd, "after").answers();
    }
}

#[test]
fn real_pulls_with_and_without_login() {
    let open = Registry::start().unwrap();
    let closed = Registry::with_login("kit", "s3cret").unwrap();
    let image = Image::named("docker.io/local/pulled:1").env("FROM", "registry");
    for flavor in Flavor::ALL {
        let containerd = Containerd::start(flavor).unwrap();
        open.push(&containerd, &image, "team/open:1").unwrap();
        closed.push(&containerd, &image, "team/closed:1").unwrap();
        open.serve_as("open.test", &containerd).unwrap();
        closed.serve_as("closed.test:5000", &containerd).unwrap();
        containerd.crictl(&["pull", "open.test/team/open:1"]).unwrap();
        let direct = format!("{}/team/open:1", open.address());
        containerd.crictl(&["pull", &direct]).unwrap();
        let refused = containerd.crictl(&["pull", "closed.test:5000/team/closed:1"]).unwrap_err().to_string();
        assert!(refused.contains("401") || refused.contains("authorization"), "{refused}");
        containerd.crictl(&["pull", "--creds", "kit:s3cret", "closed.test:5000/team/closed:1"]).unwrap();
        let missing = containerd.crictl(&["pull", "open.test/team/none:1"]).unwrap_err().to_string();
        assert!(missing.contains("not found"), "{missing}");
        let images = containerd.crictl(&["images"]).unwrap();
        assert!(images.contains("open.test/team/open") && images.contains("closed.test:5000/team/closed"));
    }
}

#[test]
fn what_a_killed_owner_left_is_removed_by_the_next_start() {
    if let Some(report) = std::env::var_os(CHILD) {
        // The owner: reports its directory and then waits to be killed.
        let containerd = Containerd::start(Flavor::Debian16).unwrap();
        run_pod(&containerd, "orphan").answers();
        fs::write(report, format!("{}\n", containerd.dir().display())).unwrap();
        std::thread::sleep(Duration::from_secs(1000));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("dir");
    let mut owner = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_a_killed_owner_left_is_removed_by_the_next_start"])
        .env(CHILD, &report)
        .spawn()
        .unwrap();
    let orphaned = wait_until(PATIENCE * 3, "the owner", || {
        let text = fs::read_to_string(&report).map_err(|error| error.to_string())?;
        let text = text.strip_suffix('\n').ok_or("not whole yet")?;
        Ok(PathBuf::from(text))
    });
    owner.kill().unwrap();
    owner.wait().unwrap();
    let orphaned = orphaned.unwrap();
    assert!(orphaned.join("config.toml").exists());
    // Any start of any test may be the one that sweeps.
    drop(Containerd::start(Flavor::Debian16).unwrap());
    wait_until(PATIENCE, "the orphan to be swept", || {
        if orphaned.exists() { Err(format!("{} exists", orphaned.display())) } else { Ok(()) }
    })
    .unwrap();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&*orphaned.to_string_lossy()), "{mounts}");
}
