//! Images: why a container waits for one, and what becomes of it.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use mainstay_e2e::{PodSeen, SOON, World, idle, with};
use mainstay_testkit::{Containerd, Flavor, Image, Node, Registry, wait_until};
use serde_json::{Value, json};

fn of_image(image: &str, policy: &str) -> Value {
    json!({ "containers": [with(idle("c"), json!({ "image": image, "imagePullPolicy": policy }))] })
}

#[test]
fn an_image_that_cannot_be_had_says_why() {
    let world = World::start(Flavor::Debian16).unwrap();
    world.put("never", of_image("docker.io/local/absent:1", "Never")).unwrap();
    world.put("invalid", of_image("Not/A@Valid:::name", "IfNotPresent")).unwrap();

    let seen = world
        .wait("never", "ErrImageNeverPull", |pod| {
            pod.waits("c") == "ErrImageNeverPull" && pod.is_true("PodReadyToStartContainers")
        })
        .unwrap();
    let text = r#"Container image "docker.io/local/absent:1" is not present with pull policy of Never"#;
    assert_eq!((seen.waiting_message("c"), seen.phase()), (text, "Pending"));
    let event = world.event("never", "ErrImageNeverPull", "").unwrap();
    assert_eq!((event.kind.as_str(), event.message.as_str()), ("Warning", text));
    assert_eq!(world.event("never", "Failed", "").unwrap().message, "Error: ErrImageNeverPull");
    let answer = world.node.http().get("/containerLogs/default/never-node/c").unwrap();
    assert_eq!(answer.status, 400);
    assert_eq!(answer.text(), r#"container "c" in pod "never-node" is waiting to start: ErrImageNeverPull"#);

    let seen = world.wait("invalid", "InvalidImageName", |pod| pod.waits("c") == "InvalidImageName").unwrap();
    assert!(seen.waiting_message("c").contains("Not/A@Valid:::name"), "{}", seen.waiting_message("c"));
    assert_eq!(world.event("invalid", "InspectFailed", "").unwrap().kind, "Warning");
    assert_eq!(world.event("invalid", "Failed", "").unwrap().message, "Error: InvalidImageName");

    // It needs no new file: an image that is brought in by hand is found.
    world.containerd.import(&Image::named("docker.io/local/absent:1")).unwrap();
    let now = world.running("never").unwrap();
    assert_eq!(now.restarts("c"), 0);
    let event = world.event("never", "Pulled", "").unwrap();
    let text = r#"Container image "docker.io/local/absent:1" already present on machine and can be accessed by the pod"#;
    assert_eq!(event.message, text);
}

#[test]
fn a_pull_that_fails_backs_off_and_succeeds_when_the_registry_appears() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        let registry = Registry::start().unwrap();
        registry.serve_as("registry.test", &world.containerd).unwrap();
        let image = "registry.test/team/app:1";
        world.put("app", of_image(image, "IfNotPresent")).unwrap();
        let first = world.wait("app", "ErrImagePull", |pod| pod.waits("c") == "ErrImagePull").unwrap();
        assert!(first.waiting_message("c").contains("not found"), "{}", first.waiting_message("c"));
        assert_eq!(first.phase(), "Pending");
        assert_eq!(first.condition("Ready")["reason"], "ContainersNotReady");
        if flavor == Flavor::Debian16 {
            check_back_off(&world, image);
        }
        registry.push(&world.containerd, &Image::named("docker.io/local/pushed:1"), "team/app:1").unwrap();
        // The next try is up to two back-offs away.
        let is_up = |pod: &PodSeen| pod.phase() == "Running" && pod.is_true("Ready");
        let now = world.wait_long(SOON * 3, "app", "Running and Ready", is_up).unwrap();
        assert_eq!((now.restarts("c"), now.uid()), (0, first.uid()));
        let image_id = now.container("c")["imageID"].as_str().unwrap();
        assert!(image_id.starts_with("registry.test/team/app@sha256:"), "{image_id}");
        let event = world.event("app", "Pulled", "Successfully pulled image").unwrap();
        assert!(event.message.contains("including waiting). Image size: "), "{}", event.message);
    }
}

/// The error is shown for ten seconds, and the first back-off takes no longer: so it is the second that shows.
fn check_back_off(world: &World, image: &str) {
    let backing = world
        .wait_long(SOON * 3, "app", "ImagePullBackOff", |pod| {
            assert!(
                !pod.waits("c").contains("Creating"),
                "what is known stays known while it is tried again"
            );
            pod.waits("c") == "ImagePullBackOff"
        })
        .unwrap();
    let message = backing.waiting_message("c");
    assert!(message.starts_with(&format!("Back-off pulling image {image:?}: ErrImagePull: ")), "{message}");
    let event = world.event("app", "BackOff", "").unwrap();
    assert_eq!(event.kind, "Normal");
    assert!(event.message.starts_with(&format!("Back-off pulling image {image:?}")), "{}", event.message);
    assert_eq!(world.event("app", "Pulling", "").unwrap().message, format!("Pulling image {image:?}"));
    let failed = world.event("app", "Failed", "Failed to pull image").unwrap();
    assert!(failed.message.starts_with(&format!("Failed to pull image {image:?}: ")), "{}", failed.message);
    world.event("app", "Failed", "Error: ErrImagePull").unwrap();
    world.event("app", "Failed", "Error: ImagePullBackOff").unwrap();
}

#[test]
fn a_pull_secret_document_opens_a_closed_registry() {
    let world = World::start(Flavor::Debian16).unwrap();
    let registry = Registry::with_login("puller", "s3cret").unwrap();
    registry.serve_as("closed.test", &world.containerd).unwrap();
    registry.push(&world.containerd, &Image::named("docker.io/local/private:1"), "team/private:1").unwrap();
    let image = "closed.test/team/private:1";
    let secret = |name: &str, password: &str| {
        let config = json!({ "auths": { "closed.test": { "username": "puller", "password": password } } });
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
            "type": "kubernetes.io/dockerconfigjson",
            "stringData": { ".dockerconfigjson": config.to_string() },
        })
    };
    world.put_manifest("good", &secret("good", "s3cret")).unwrap();
    world.put_manifest("wrong", &secret("wrong", "guess")).unwrap();
    let with_secret = |names: &[&str]| {
        let references: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
        with(of_image(image, "IfNotPresent"), json!({ "imagePullSecrets": references }))
    };
    world.put("none", with_secret(&[])).unwrap();
    world.put("refused", with_secret(&["wrong"])).unwrap();
    world.put("missing", with_secret(&["nowhere"])).unwrap();
    for name in ["none", "refused", "missing"] {
        // The refusal is in the message of the back-off as well.
        let is_refused = |pod: &PodSeen| ["ErrImagePull", "ImagePullBackOff"].contains(&pod.waits("c"));
        let seen = world.wait(name, "a refusal", is_refused).unwrap();
        let said = seen.waiting_message("c");
        assert!(
            said.contains("401") || said.contains("authorization") || said.contains("denied"),
            "{name}: {said}"
        );
        assert!(!said.contains("guess"), "a password is never shown: {said}");
    }
    let event = world.event("missing", "FailedToRetrieveImagePullSecret", "").unwrap();
    let text =
        "Unable to retrieve some image pull secrets (nowhere); attempting to pull the image may not succeed.";
    assert_eq!((event.kind.as_str(), event.message.as_str()), ("Warning", text));
    world.put("opened", with_secret(&["wrong", "good"])).unwrap();
    world.running("opened").unwrap();
    assert!(!world.node.log().contains("s3cret"), "nor is it logged");
}

#[test]
fn a_credential_provider_opens_a_closed_registry() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let registry = Registry::with_login("puller", "s3cret").unwrap();
    registry.serve_as("closed.test", &containerd).unwrap();
    registry.push(&containerd, &Image::named("docker.io/local/provided:1"), "team/provided:1").unwrap();
    let (bin, file) = (containerd.dir().join("providers"), containerd.dir().join("providers.json"));
    fs::create_dir(&bin).unwrap();
    let version = "credentialprovider.kubelet.k8s.io/v1";
    let answer = json!({
        "kind": "CredentialProviderResponse", "apiVersion": version, "cacheKeyType": "Registry",
        "auth": { "closed.test": { "username": "puller", "password": "s3cret" } },
    });
    // It knows only the image that it is asked about, by its argument and environment.
    let script = format!(
        "#!/bin/sh\n[ \"$1-$MODE\" = get-good ] && grep -q '\"image\":\"closed.test/team/provided\"' && echo '{answer}'\n"
    );
    fs::write(bin.join("provider"), script).unwrap();
    fs::set_permissions(bin.join("provider"), fs::Permissions::from_mode(0o755)).unwrap();
    let provider = json!({
        "name": "provider", "matchImages": ["*.test"], "defaultCacheDuration": "10m", "apiVersion": version,
        "args": ["get"], "env": [{ "name": "MODE", "value": "good" }],
    });
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [provider],
    });
    fs::write(&file, config.to_string()).unwrap();
    let node = Node::builder()
        .containerd(&containerd)
        .args([
            format!("--image-credential-provider-config={}", file.display()),
            format!("--image-credential-provider-bin-dir={}", bin.display()),
        ])
        .start()
        .unwrap();
    let world = World { node, containerd };
    world.put("provided", of_image("closed.test/team/provided:1", "IfNotPresent")).unwrap();
    world.running("provided").unwrap();
    assert!(!world.node.log().contains("s3cret"), "a password is not logged");
}

#[test]
fn an_always_policy_pulls_at_each_start() {
    let world =
        World::with_config(Flavor::Debian16, "crashLoopBackOff: {maxContainerRestartPeriod: 1s}").unwrap();
    let mut registry = Registry::start().unwrap();
    registry.serve_as("registry.test", &world.containerd).unwrap();
    registry.push(&world.containerd, &Image::named("docker.io/local/pushed:1"), "team/app:1").unwrap();
    let image = "registry.test/team/app:1";
    world.put("always", of_image(image, "Always")).unwrap();
    world.put("present", of_image(image, "IfNotPresent")).unwrap();
    let first = world.running("always").unwrap();
    let present = world.running("present").unwrap();
    let pulled = |name: &str, wanted: u64| {
        let pulls = wait_until(SOON, "the pulls to be told of", || {
            let events = world.events(name).map_err(|error| format!("{error:#}"))?;
            let pulling = events.iter().filter(|event| event.reason == "Pulling");
            let pulls: u64 = pulling.map(|event| event.count).sum();
            if pulls >= wanted { Ok(pulls) } else { Err(format!("{events:?}")) }
        });
        assert_eq!(pulls.unwrap(), wanted);
    };
    pulled("always", 1);
    world.containerd.crictl(&["stop", "--timeout", "0", first.id("c")]).unwrap();
    world.wait("always", "its restart", |pod| pod.restarts("c") == 1 && pod.runs("c")).unwrap();
    pulled("always", 2);

    // Without the registry only the one that has its image starts again.
    registry.kill9();
    world.containerd.crictl(&["stop", "--timeout", "0", present.id("c")]).unwrap();
    world.wait("present", "its restart", |pod| pod.restarts("c") == 1 && pod.runs("c")).unwrap();
    let second = world.wait("always", "running", |pod| pod.runs("c")).unwrap();
    world.containerd.crictl(&["stop", "--timeout", "0", second.id("c")]).unwrap();
    let last = json!(format!("containerd://{}", second.id("c")));
    let seen = world
        .wait("always", "ErrImagePull", |pod| {
            let ended = &pod.container("c")["lastState"]["terminated"];
            pod.waits("c").contains("Pull") && ended["containerID"] == last
        })
        .unwrap();
    assert_eq!(seen.restarts("c"), 1);
    assert_eq!(seen.phase(), "Running", "it ran before");
}

/// What a slow registry has seen.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    /// How many are waiting for an answer now, and how many were at most.
    now: usize,
    most: usize,
    answered: usize,
}

/// A registry that has nothing, and takes its time to say so: it waits until so many have asked at the same time, which on a
/// slow machine may need a while, and then whether there are more.
fn slow_registry(expected: usize) -> (String, Arc<Mutex<Asked>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked: Arc<Mutex<Asked>> = Arc::default();
    let noted = Arc::clone(&asked);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), noted) = (stream, Arc::clone(&noted)) else { return };
            thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap());
                let mut request = String::new();
                while lines.read_line(&mut request).is_ok_and(|read| read > 2) {}
                if request.starts_with("HEAD") && request.contains("/manifests/") {
                    let most = {
                        let mut asked = noted.lock().unwrap();
                        asked.now += 1;
                        asked.most = asked.most.max(asked.now);
                        asked.most
                    };
                    if most < expected {
                        // One who waits in vain is answered all the same; the test then says what is missing.
                        wait_until(SOON / 2, "others", || match noted.lock().unwrap().most {
                            most if most >= expected => Ok(()),
                            most => Err(most.to_string()),
                        })
                        .ok();
                    }
                    thread::sleep(Duration::from_secs(2));
                    let mut asked = noted.lock().unwrap();
                    asked.now -= 1;
                    asked.answered += 1;
                }
                // The client being gone is nothing to this server.
                stream
                    .write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    .ok();
            });
        }
    });
    (url, asked)
}

#[test]
fn pulls_go_one_by_one_or_as_many_at_once_as_allowed() {
    for (config, expected) in [
        ("{}", 1),
        ("{serializeImagePulls: false, maxParallelImagePulls: 2}", 2),
        ("{serializeImagePulls: false}", 4),
    ] {
        let world = World::with_config(Flavor::Debian16, config).unwrap();
        let (url, asked) = slow_registry(expected);
        world.containerd.redirect_registry("slow.test", &url).unwrap();
        for number in 0..4 {
            world
                .put(&format!("app-{number}"), of_image(&format!("slow.test/app:{number}"), "IfNotPresent"))
                .unwrap();
        }
        let asked = wait_until(SOON * 2, "four pulls", || {
            let asked = *asked.lock().unwrap();
            if asked.answered >= 4 { Ok(asked) } else { Err(format!("{asked:?}")) }
        })
        .unwrap();
        assert_eq!(asked.most, expected, "{config}");
        for number in 0..4 {
            let name = format!("app-{number}");
            world.wait(&name, "its failure", |pod| pod.waits("c").contains("Pull")).unwrap();
        }
    }
}

#[test]
fn a_pod_whose_image_is_being_pulled_goes_at_once_with_its_file() {
    let world = World::start(Flavor::Debian16).unwrap();
    // It takes connections and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    world.containerd.redirect_registry("silent.test", &url).unwrap();
    world.put("pulling", of_image("silent.test/app:1", "IfNotPresent")).unwrap();
    world.event("pulling", "Pulling", "silent.test/app:1").unwrap();
    // The address is known before the image is.
    world
        .wait("pulling", "its sandbox", |pod| {
            pod.is_true("PodReadyToStartContainers")
                && (pod.waits("c"), pod.phase()) == ("ContainerCreating", "Pending")
                && !pod.text("/status/podIP").is_empty()
        })
        .unwrap();
    // Pulls are serial here, and still nobody else is held up who has an image.
    world.put("other", json!({ "containers": [idle("c")] })).unwrap();
    world.running("other").unwrap();
    // The pull itself would go on for minutes.
    world.take_away("pulling").unwrap();
    world.gone("pulling").unwrap();
}
