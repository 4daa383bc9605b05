//! Where pods come from besides files: a URL, one that is away, and a pod whose name changes under its UID. And what the
//! service manager is told meanwhile.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mainstay_e2e::{SOON, World, idle, pod, seen::persisted};
use mainstay_testkit::{Containerd, Flavor, Node, wait_until};
use serde_json::{Value, json};

/// A web server that answers with what it was last given; 503 when that is nothing.
struct Web {
    address: SocketAddr,
    answer: Arc<Mutex<Option<String>>>,
}

impl Web {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, answer) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(None::<String>)));
        let shared = Arc::clone(&answer);
        // It ends with the test's process; nothing waits for it.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut request = [0; 4096];
                if stream.read(&mut request).is_err() {
                    continue;
                }
                let (status, body) = match shared.lock().unwrap().clone() {
                    Some(body) => ("200 OK", body),
                    None => ("503 Service Unavailable", String::new()),
                };
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                stream.write_all(format!("{head}{body}").as_bytes()).ok();
            }
        });
        Self { address, answer }
    }

    fn say(&self, pods: &[Value]) {
        let list = json!({ "apiVersion": "v1", "kind": "PodList", "items": pods });
        *self.answer.lock().unwrap() = Some(list.to_string());
    }

    fn away(&self) {
        *self.answer.lock().unwrap() = None;
    }

    fn config(&self) -> String {
        format!("staticPodURL: http://{}/pods\nhttpCheckFrequency: 1s", self.address)
    }
}

fn from_url(name: &str) -> Value {
    pod(name, json!({ "terminationGracePeriodSeconds": 1, "containers": [idle("c")] }))
}

fn quick() -> Value {
    json!({ "terminationGracePeriodSeconds": 1, "containers": [idle("c")] })
}

#[test]
fn pods_from_a_url_that_goes_away_and_comes_back() {
    let web = Web::start();
    web.say(&[from_url("one"), from_url("two")]);
    let mut world = World::with_config(Flavor::Debian16, &web.config()).unwrap();
    world.put("file", quick()).unwrap();
    let one = world.running("one").unwrap();
    assert_eq!(one.text("/metadata/annotations/kubernetes.io~1config.source"), "http");
    world.running("two").unwrap();
    world.running("file").unwrap();

    // Away, and mainstay starts anew: its last word counts, and is there at once.
    persisted(&world.node).unwrap();
    web.away();
    world.node.kill9();
    world.node.start_again().unwrap();
    let again = world.wait("one", "listed", |_| true).unwrap();
    assert_eq!((again.id("c"), again.uid()), (one.id("c"), one.uid()));
    // Nobody waits for it: a file that goes takes its pod with it.
    world.take_away("file").unwrap();
    world.gone("file").unwrap();
    assert!(world.running("two").is_ok());

    web.say(&[from_url("one")]);
    world.gone("two").unwrap();
    assert_eq!(world.running("one").unwrap().id("c"), one.id("c"));
    web.say(&[]);
    world.gone("one").unwrap();
}

/// That there are no pods is a word too, and holds after a restart, also after a second one.
#[test]
fn a_url_that_said_that_there_are_none_is_not_waited_for() {
    let web = Web::start();
    web.say(&[]);
    let mut world = World::with_config(Flavor::Debian16, &web.config()).unwrap();
    world.put("file", quick()).unwrap();
    let before = world.running("file").unwrap();
    let ready = |world: &World| {
        let node: Value = serde_json::from_str(&world.node.get("/node").unwrap()).unwrap();
        let conditions = node["status"]["conditions"].as_array().unwrap().clone();
        let ready = conditions.into_iter().find(|it| it["type"] == "Ready").unwrap();
        (ready["status"].clone(), ready["message"].clone(), ready["lastTransitionTime"].clone())
    };
    let first = ready(&world);
    assert_eq!(first.0, "True", "{first:?}");
    persisted(&world.node).unwrap();
    web.away();
    for turn in 1..=2 {
        world.node.kill9();
        let begun = Instant::now();
        world.node.start_again().unwrap();
        let again = world.wait("file", "listed", |_| true).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10), "{turn}: {:?}", begun.elapsed());
        assert_eq!((again.id("c"), again.uid()), (before.id("c"), before.uid()), "{turn}");
        assert_eq!(ready(&world), first, "{turn}");
    }
    web.say(&[from_url("late")]);
    world.running("late").unwrap();
}

#[test]
fn a_url_that_never_answered_is_named_and_holds_up_nobody() {
    let web = Web::start();
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let begun = Instant::now();
    let world = World::on(containerd, &web.config()).unwrap();
    world.put("file", quick()).unwrap();
    // Complete or an error: until it is clear that the URL does not answer, the list is not there.
    let first = world.node.get("/pods");
    assert!(first.is_err() || begun.elapsed() > Duration::from_secs(15), "{first:?}");
    let pod = world.wait("file", "Running", |pod| pod.phase() == "Running").unwrap();
    let shows = |text: &str| {
        wait_until(SOON, text, || {
            let shown = world.node.cli(&["node"]).map_err(|error| format!("{error:#}"))?;
            let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
            if shown.contains(text) { Ok(()) } else { Err(shown) }
        })
        .unwrap();
    };
    let name = format!("staticPodURL http://{}/pods", web.address);
    shows(&format!("not delivered: {name}"));
    wait_until(SOON, "a note beside the manifests", || {
        let noted = world.node.cli(&["manifests"]).map_err(|error| format!("{error:#}"))?;
        let noted = String::from_utf8_lossy(&noted.stderr).into_owned();
        if noted.contains(&format!("{name} has not delivered")) { Ok(()) } else { Err(noted) }
    })
    .unwrap();
    world.node_event("SourceNotDelivered", "").unwrap();

    web.say(&[from_url("late")]);
    world.running("late").unwrap();
    shows("all have delivered");
    assert_eq!(world.running("file").unwrap().id("c"), pod.id("c"));
}

#[test]
fn another_name_under_the_same_uid_is_another_pod() {
    let mut world = World::start(Flavor::Debian16).unwrap();
    let manifest = |name: &str| {
        let mut manifest = pod(name, quick());
        manifest["metadata"]["uid"] = json!("11111111-2222-3333-4444-555555555555");
        manifest
    };
    world.put_manifest("file", &manifest("before")).unwrap();
    let before = world.running("before").unwrap();
    world.put_manifest("file", &manifest("after")).unwrap();
    let after = world.running("after").unwrap();
    assert_eq!(after.uid(), before.uid());
    assert_ne!(after.id("c"), before.id("c"));
    world.gone("before").unwrap();
    wait_until(SOON, "the end of the other sandbox", || {
        let sandboxes = world.sandboxes_of(after.uid()).map_err(|error| format!("{error:#}"))?;
        if sandboxes.len() == 1 { Ok(()) } else { Err(format!("{sandboxes:?}")) }
    })
    .unwrap();
    world.node.kill9();
    world.node.start_again().unwrap();
    assert_eq!(world.running("after").unwrap().id("c"), after.id("c"));
}

#[test]
fn the_service_manager_is_told() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify.sock");
    let socket = UnixDatagram::bind(&path).unwrap();
    // Read all the time, because the kernel keeps only some of what nobody reads.
    let told: Arc<Mutex<String>> = Arc::default();
    let noted = Arc::clone(&told);
    std::thread::spawn(move || {
        let mut message = [0; 1024];
        while let Ok(length) = socket.recv(&mut message) {
            let mut told = noted.lock().unwrap();
            told.push_str(&String::from_utf8_lossy(&message[..length]));
            told.push('\n');
        }
    });
    let mut node = Node::builder()
        .containerd(&containerd)
        .env("NOTIFY_SOCKET", path.to_str().unwrap())
        .env("WATCHDOG_USEC", "1000000")
        .start()
        .unwrap();
    let hears = |text: &str| {
        wait_until(SOON, &format!("{text} for the service manager"), || {
            let told = told.lock().unwrap();
            if told.contains(text) { Ok(()) } else { Err(told.clone()) }
        })
    };
    for text in ["READY=1", "STATUS=running pods", "WATCHDOG=1"] {
        hears(text).unwrap();
    }
    node.sigterm().unwrap();
    hears("STOPPING=1").unwrap();
}
