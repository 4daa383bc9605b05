//! Probes: every kind in every way, what they change, what they leave alone, and what survives a restart of mainstay.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use mainstay_e2e::{PodSeen, SOON, World, idle, sh, target as server, with};
use mainstay_testkit::{Flavor, free_address, patient, wait_until};
use serde_json::{Value, json};

/// A node whose runtime has the server of `tools/probe-target`.
fn world(flavor: Flavor) -> World {
    World::with_target(flavor, "{}").unwrap()
}

/// A probe that asks every second. It waits long for an answer unless the handler says otherwise: machines may be slow.
fn every_second(handler: Value, more: Value) -> Value {
    with(with(json!({ "periodSeconds": 1, "timeoutSeconds": 20 }), handler), more)
}

fn exec(script: &str) -> Value {
    json!({ "exec": { "command": ["/bin/sh", "-c", script] } })
}

fn http(path: &str) -> Value {
    json!({ "httpGet": { "port": 8080, "path": path } })
}

/// Runs a command in a container that goes on.
fn inside(world: &World, pod: &PodSeen, container: &str, script: &str) {
    world.exec(pod, container, script).unwrap();
}

/// A number of `/metrics/probes`.
fn counted(world: &World, pod: &str, container: &str, kind: &str, result: &str) -> u64 {
    let text = world.node.get("/metrics/probes").unwrap();
    let start = format!(
        "prober_probe_total{{container=\"{container}\",namespace=\"default\",pod=\"{}\",pod_uid=\"",
        world.full_name(pod)
    );
    let end = format!("\",probe_type=\"{kind}\",result=\"{result}\"}} ");
    text.lines()
        .filter(|line| line.starts_with(&start))
        .find_map(|line| line.split_once(&end))
        .map_or(0, |(_, number)| number.parse().unwrap())
}

/// How many answers of a pod's container have a duration.
fn timed(world: &World, pod: &str, container: &str, kind: &str) -> u64 {
    let text = world.node.get("/metrics/probes").unwrap();
    let start = format!(
        "prober_probe_duration_seconds_count{{container=\"{container}\",namespace=\"default\",pod=\"{}\",probe_type=\"{kind}\"}} ",
        world.full_name(pod)
    );
    text.lines().find_map(|line| line.strip_prefix(&start)).map_or(0, |number| number.parse().unwrap())
}

#[test]
fn commands_have_their_variables_and_one_that_never_ends_has_failed() {
    // So much beyond the probe's own limit the runtime is waited for.
    let world = World::with_config(Flavor::Debian16, "runtimeRequestTimeout: 30s\n").unwrap();
    let told = exec("test '$(WORD)' = up && test $$(echo 1) = 1");
    let told = json!({
        "env": [{ "name": "WORD", "value": "up" }],
        "readinessProbe": every_second(told, json!({})),
    });
    // Somebody holds its output open, so that the runtime waits on, whatever limit it was given.
    let held =
        every_second(exec("sleep 1000000 & exit 0"), json!({ "timeoutSeconds": 1, "failureThreshold": 1 }));
    let held = with(idle("held"), json!({ "livenessProbe": held }));
    world
        .put(
            "pod",
            json!({ "terminationGracePeriodSeconds": 1, "containers": [with(idle("told"), told), held] }),
        )
        .unwrap();
    let seen = world
        .wait_long(4 * SOON, "pod", "an answer and a restart", |pod| {
            pod.container("told")["ready"] == true && pod.restarts("held") > 0
        })
        .unwrap();
    assert_eq!(seen.restarts("told"), 0);
    world.event("pod", "Unhealthy", "Liveness probe failed: command timed out").unwrap();
}

#[test]
fn every_kind_of_probe_asks_in_every_way() {
    for flavor in Flavor::ALL {
        let world = world(flavor);
        let handlers = [
            ("exec", exec("true")),
            ("http", http("/code/204")),
            ("https", json!({ "httpGet": { "port": 8443, "path": "/code/200", "scheme": "HTTPS" } })),
            ("tcp", json!({ "tcpSocket": { "port": "web" } })),
            ("grpc", json!({ "grpc": { "port": 9090 } })),
            // A service that the target knows: a file of its own.
            ("grpc-service", json!({ "grpc": { "port": 9090, "service": "/bin/probe-target" } })),
        ];
        for (name, handler) in &handlers {
            let probe = every_second(handler.clone(), json!({}));
            let startup = every_second(handler.clone(), json!({ "failureThreshold": 100 }));
            let probes = json!({ "startupProbe": startup, "livenessProbe": probe, "readinessProbe": probe });
            world
                .put(
                    name,
                    json!({ "terminationGracePeriodSeconds": 1, "containers": [with(server("c"), probes)] }),
                )
                .unwrap();
        }
        for (name, _) in &handlers {
            let seen = world.running(name).unwrap();
            assert_eq!(seen.container("c")["started"], true, "{name}");
            wait_until(SOON, &format!("{name} asked by all its probes"), || {
                let counts = ["Startup", "Liveness", "Readiness"]
                    .map(|kind| counted(&world, name, "c", kind, "successful"));
                if counts.iter().all(|count| *count > 0) { Ok(()) } else { Err(format!("{counts:?}")) }
            })
            .unwrap();
            assert_eq!(counted(&world, name, "c", "Startup", "successful"), 1, "{name}: it came up once");
            for kind in ["Startup", "Liveness", "Readiness"] {
                let counted = counted(&world, name, "c", kind, "successful");
                assert!(
                    timed(&world, name, "c", kind) >= counted,
                    "{name}: each {kind} success has a duration"
                );
            }
            assert_eq!(seen.restarts("c"), 0, "{name}");
        }
        world.take_away("http").unwrap();
        world.gone("http").unwrap();
        wait_until(SOON, "the end of the pod's series", || {
            let text = world.node.get("/metrics/probes").unwrap();
            if text.contains("pod=\"http-node\"") { Err(text) } else { Ok(()) }
        })
        .unwrap();
    }
}

#[test]
fn failures_are_told_in_upstreams_words_and_only_keep_work_away() {
    let world = world(Flavor::Debian16);
    let long = "a".repeat(2000);
    let failing = [
        ("exec", exec("echo no good; exit 3"), "no good\n".to_owned()),
        ("http", http("/code/404"), "HTTP probe failed with statuscode: 404".to_owned()),
        ("refused", json!({ "httpGet": { "port": 1, "path": "/x" } }), "Get \"http://IP:1/x\": dial tcp IP:1: connect: connection refused".to_owned()),
        ("tcp", json!({ "tcpSocket": { "port": 1 } }), "dial tcp IP:1: connect: connection refused".to_owned()),
        ("grpc", json!({ "grpc": { "port": 9090, "service": "nobody" } }), "service unhealthy (responded with \"NOT_SERVING\")".to_owned()),
        ("nogrpc", json!({ "grpc": { "port": 1 }, "timeoutSeconds": 1 }), "timeout: failed to connect service \"IP:1\" within 1s: ".to_owned()),
        ("slow", with(exec("sleep 30"), json!({ "timeoutSeconds": 1 })), "command timed out: \"/bin/sh -c sleep 30\" timed out after 1s".to_owned()),
        ("hang", with(http("/hang"), json!({ "timeoutSeconds": 1 })), "Get \"http://IP:8080/hang\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)".to_owned()),
        ("noisy", exec(&format!("echo {long}; exit 1")), "a".repeat(900)),
    ];
    // One that is well among all these must not notice them.
    let well = every_second(http("/code/200"), json!({ "failureThreshold": 30 }));
    world.put("well", json!({ "containers": [with(server("c"), json!({ "readinessProbe": well, "livenessProbe": well }))] })).unwrap();
    for (name, handler, _) in &failing {
        let probe = every_second(handler.clone(), json!({ "failureThreshold": 1 }));
        world.put(name, json!({ "terminationGracePeriodSeconds": 1, "containers": [with(server("c"), json!({ "readinessProbe": probe }))] })).unwrap();
    }
    for (name, _, text) in &failing {
        let runs = |pod: &PodSeen| pod.runs("c") && !pod.text("/status/podIP").is_empty();
        let seen = world.wait_long(3 * SOON, name, "runs", runs).unwrap();
        // The first answer may be that the server does not listen yet.
        let expected = format!("Readiness probe failed: {}", text.replace("IP", seen.text("/status/podIP")));
        let event = world.event(name, "Unhealthy", &expected).unwrap();
        assert!(event.message.starts_with(&expected), "{name}: {:?} is not {expected:?}", event.message);
        assert!(event.message.chars().count() <= 1024, "{name}");
        assert_eq!(
            (event.kind.as_str(), event.field_path.as_str()),
            ("Warning", "spec.containers{c}"),
            "{name}"
        );
        assert!(!seen.is_true("Ready") && !seen.is_true("ContainersReady"), "{name}");
        assert_eq!(seen.condition("Ready")["reason"], "ContainersNotReady", "{name}");
        assert_eq!(seen.condition("Ready")["message"], "containers with unready status: [c]", "{name}");
        assert_eq!((&seen.container("c")["started"], seen.restarts("c")), (&json!(true), 0), "{name}");
    }
    world.running("well").unwrap();
    let before = counted(&world, "well", "c", "Readiness", "successful");
    // Its server may not have listened when it was asked first.
    let failed = counted(&world, "well", "c", "Readiness", "failed");
    // Held up by one of the others, it would wait for a command's thirty seconds or a probe's twenty with each of them.
    wait_until(SOON, "ten more answers", || {
        let now = counted(&world, "well", "c", "Readiness", "successful") - before;
        if now >= 10 { Ok(()) } else { Err(now.to_string()) }
    })
    .unwrap();
    let seen = world.running("well").unwrap();
    assert_eq!(seen.restarts("c"), 0);
    assert_eq!(counted(&world, "well", "c", "Readiness", "failed"), failed);
    let text = world.node.get("/metrics/probes").unwrap();
    assert!(
        !text.contains("duration_seconds_count{container=\"c\",namespace=\"default\",pod=\"tcp-node\""),
        "a failure has no duration"
    );
    assert!(timed(&world, "well", "c", "Readiness") >= before + 10, "{text}");
    assert_eq!(timed(&world, "tcp", "c", "Readiness"), 0);
    assert!(text.contains("# TYPE prober_probe_total counter"), "{text}");
}

#[test]
fn headers_redirects_ports_and_the_hosts_network() {
    let world = world(Flavor::Debian16);
    let header = |name: &str, value: &str| json!({ "name": name, "value": value });
    let headers = json!({ "httpGet": {
        "port": "web", "path": "/headers?X-Test=yes&Host=web.test&User-Agent=kube-probe/1.37&Accept=",
        "httpHeaders": [header("X-Test", "yes"), header("Host", "web.test"), header("Accept", "")],
    } });
    let own_agent = json!({ "httpGet": {
        "port": 8080, "path": "/headers?User-Agent=mine&Accept=*/*", "httpHeaders": [header("User-Agent", "mine")],
    } });
    let inside_host = http("/redirect?to=/code/200");
    // As most pages that want a login first.
    let login = http("/redirect?to=/code/200?next=https://app.test/");
    let elsewhere = http("/redirect?to=http://elsewhere.test/");
    let to_failure = http("/redirect?to=/code/500");
    let ready = |handler: &Value| json!({ "containers": [with(server("c"), json!({ "readinessProbe": every_second(handler.clone(), json!({})) }))] });
    // By all three probes, which are asked in the same way: one that is not answered well never comes up, or is started again.
    let by_all = |container: Value, handler: &Value| {
        let later = json!({ "initialDelaySeconds": 1, "failureThreshold": 100 });
        let probe = every_second(handler.clone(), later);
        let probes = json!({ "startupProbe": probe, "livenessProbe": probe, "readinessProbe": probe });
        json!({ "terminationGracePeriodSeconds": 1, "containers": [with(container, probes)] })
    };
    let asked_by_all = |name: &str| {
        world.running(name).unwrap();
        wait_until(SOON, &format!("{name} asked by all its probes"), || {
            let counts = ["Startup", "Liveness", "Readiness"]
                .map(|kind| counted(&world, name, "c", kind, "successful"));
            if counts.iter().all(|count| *count > 0) { Ok(()) } else { Err(format!("{counts:?}")) }
        })
        .unwrap();
    };
    let redirected =
        [("inside", &inside_host), ("login", &login), ("elsewhere", &elsewhere), ("bad", &to_failure)];
    for (name, handler) in redirected {
        world.put(name, with(ready(handler), json!({ "terminationGracePeriodSeconds": 1 }))).unwrap();
    }
    for (name, handler) in [("headers", &headers), ("agent", &own_agent)] {
        world.put(name, by_all(server("c"), handler)).unwrap();
    }
    let port = free_address().unwrap().port();
    let host = sh(
        "c",
        &format!(
            "trap 'exit 0' TERM; mkdir /tmp/www; touch /tmp/www/ok; httpd -p {port} -h /tmp/www; while :; do sleep 0.1; done"
        ),
    );
    let on_host = json!({ "httpGet": { "port": port, "path": "/ok" } });
    world
        .put("host", json!({ "hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [with(host, json!({ "readinessProbe": every_second(on_host, json!({})) }))] }))
        .unwrap();
    for name in ["inside", "login", "elsewhere", "host"] {
        world.running(name).unwrap();
    }
    asked_by_all("headers");
    asked_by_all("agent");
    // Others are asked as well: nothing listens in these pods themselves.
    let ip = world.running("inside").unwrap().text("/status/podIP").to_owned();
    let of_other = [
        ("http-host", json!({ "httpGet": { "port": 8080, "path": "/code/200", "host": ip } })),
        ("tcp-host", json!({ "tcpSocket": { "port": 8080, "host": ip } })),
    ];
    for (name, handler) in &of_other {
        world.put(name, by_all(idle("c"), handler)).unwrap();
    }
    for (name, _) in &of_other {
        asked_by_all(name);
    }
    let warning = world
        .event(
            "elsewhere",
            "ProbeWarning",
            "Readiness probe warning: Probe terminated redirects, Response body: ",
        )
        .unwrap();
    assert!(warning.message.contains("elsewhere.test"), "{}", warning.message);
    world
        .event("bad", "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 500")
        .unwrap();
    let described = world.node.cli(&["describe", "pod", &world.full_name("bad")]).unwrap();
    let described = String::from_utf8(described.stdout).unwrap();
    let line =
        "http-get http://:8080/redirect?to=/code/500 delay=0s timeout=20s period=1s #success=1 #failure=3";
    assert!(
        described.lines().any(|it| it.trim_start().starts_with("Readiness:") && it.ends_with(line)),
        "{described}"
    );
}

#[test]
fn thresholds_and_delays_are_kept() {
    let world = World::start(Flavor::Debian16).unwrap();
    let delay = patient(Duration::from_secs(30)).as_secs();
    let probe = every_second(
        exec("test -e /tmp/ok"),
        json!({ "initialDelaySeconds": delay, "successThreshold": 3, "failureThreshold": 4 }),
    );
    world.put("p", json!({ "terminationGracePeriodSeconds": 1, "containers": [with(idle("c"), json!({ "readinessProbe": probe }))] })).unwrap();
    let seen = world.wait("p", "runs", |pod| pod.runs("c")).unwrap();
    inside(&world, &seen, "c", "touch /tmp/ok");
    let ready = |pod: &PodSeen| pod.phase() == "Running" && pod.is_true("Ready");
    let ready = world.wait_long(3 * SOON, "p", "ready", ready).unwrap();
    let time = |value: &Value| value.as_str().unwrap().parse::<Timestamp>().unwrap();
    let begun = time(&ready.container("c")["state"]["running"]["startedAt"]);
    let took = time(&ready.condition("Ready")["lastTransitionTime"]).duration_since(begun);
    // Times are told in seconds, so that one may be missing; two more periods until the third success.
    assert!(took.as_secs() >= i64::try_from(delay).unwrap(), "{took:?}");
    let passed = counted(&world, "p", "c", "Readiness", "successful");
    assert!(passed >= 3, "{passed}");
    assert_eq!(counted(&world, "p", "c", "Readiness", "failed"), 0, "nothing was asked before its time");

    inside(&world, &seen, "c", "rm /tmp/ok");
    let seen = world
        .wait("p", "not ready", |pod| {
            let failed = counted(&world, "p", "c", "Readiness", "failed");
            assert!(pod.is_true("Ready") || failed >= 4, "not ready after {failed} failures");
            !pod.is_true("Ready")
        })
        .unwrap();
    assert_eq!((&seen.container("c")["started"], seen.restarts("c")), (&json!(true), 0));
}

#[test]
fn a_failed_liveness_probe_restarts_the_container_with_the_probes_own_grace() {
    let world = world(Flavor::Debian16);
    // By every way of asking.
    let by_network = [
        ("http", http("/code/500"), "HTTP probe failed with statuscode: 500"),
        ("grpc", json!({ "grpc": { "port": 9090, "service": "nobody" } }), "service unhealthy"),
        ("tcp", json!({ "tcpSocket": { "port": 1 } }), "connection refused"),
    ];
    for (name, handler, _) in &by_network {
        let container =
            with(server("c"), json!({ "livenessProbe": every_second(handler.clone(), json!({})) }));
        world.put(name, json!({ "terminationGracePeriodSeconds": 1, "containers": [container] })).unwrap();
    }
    // It does not end by itself when told to, and the pod would give it ten minutes.
    let stubborn = sh("c", "trap '' TERM; while :; do sleep 0.1; done");
    let probe = every_second(
        exec("test ! -e /tmp/dead"),
        json!({ "failureThreshold": 2, "terminationGracePeriodSeconds": 1 }),
    );
    let spec = |policy: &str| {
        json!({
            "restartPolicy": policy, "terminationGracePeriodSeconds": 600,
            "containers": [with(stubborn.clone(), json!({ "livenessProbe": probe })), idle("other")],
        })
    };
    world.put("again", spec("OnFailure")).unwrap();
    world.put("once", spec("Never")).unwrap();
    for name in ["again", "once"] {
        let seen = world.running(name).unwrap();
        wait_until(SOON, "a first answer", || {
            if counted(&world, name, "c", "Liveness", "successful") > 0 { Ok(()) } else { Err(String::new()) }
        })
        .unwrap();
        world.touch(&seen, "c", "/tmp/dead").unwrap();
    }
    let seen = world.wait("again", "restarted", |pod| pod.restarts("c") == 1 && pod.runs("c")).unwrap();
    assert_eq!(seen.container("c")["lastState"]["terminated"]["exitCode"], 137);
    assert_eq!(seen.restarts("other"), 0);
    let killing = world.event("again", "Killing", "failed liveness probe").unwrap();
    assert_eq!(killing.message, "Container c failed liveness probe, will be restarted");
    let told = world.event("again", "Unhealthy", "Liveness probe failed: ").unwrap();
    assert_eq!(told.count, 2, "it was left alone after its second failure");

    let seen = world.wait("once", "ended", |pod| pod.exit_code("c").is_some()).unwrap();
    assert_eq!((seen.exit_code("c"), seen.restarts("c")), (Some(137), 0));
    let killing = world.event("once", "Killing", "failed liveness probe").unwrap();
    assert_eq!(killing.message, "Container c failed liveness probe");
    assert!(world.named("once").unwrap()[0].runs("other"));
    for (name, _, text) in by_network {
        world.wait(name, "restarted", |pod| pod.restarts("c") > 0).unwrap();
        let told = world.event(name, "Unhealthy", text).unwrap();
        assert!(told.message.starts_with("Liveness probe failed: "), "{}", told.message);
        world.event(name, "Killing", "Container c failed liveness probe, will be restarted").unwrap();
    }
}

/// As [`thresholds_and_delays_are_kept`] shows it of readiness probes.
#[test]
fn delays_and_limits_of_liveness_and_startup_probes_are_kept() {
    let world = World::start(Flavor::Debian16).unwrap();
    let delay = patient(Duration::from_secs(15)).as_secs();
    let kinds = [("liveness", "livenessProbe", "Liveness"), ("startup", "startupProbe", "Startup")];
    for (name, field, _) in kinds {
        let limits = json!({
            "initialDelaySeconds": delay, "timeoutSeconds": 2, "failureThreshold": 1, "terminationGracePeriodSeconds": 1,
        });
        let container = with(idle("c"), json!({ field: every_second(exec("sleep 1000"), limits) }));
        world.put(name, json!({ "terminationGracePeriodSeconds": 1, "containers": [container] })).unwrap();
    }
    for (name, _, kind) in kinds {
        let seen = world.wait_long(3 * SOON, name, "restarted", |pod| pod.restarts("c") > 0).unwrap();
        let words =
            format!("{kind} probe failed: command timed out: \"/bin/sh -c sleep 1000\" timed out after 2s");
        let told = world.event(name, "Unhealthy", &words).unwrap();
        assert_eq!(told.message, words);
        let last = &seen.container("c")["lastState"]["terminated"];
        let time = |key: &str| last[key].as_str().unwrap().parse::<Timestamp>().unwrap();
        let lived = time("finishedAt").duration_since(time("startedAt"));
        // Times are told in seconds, so that one may be missing; the command was waited for as well.
        assert!(lived.as_secs() > i64::try_from(delay).unwrap(), "{name}: {lived:?}");
    }
}

#[test]
fn nothing_else_is_asked_before_a_container_has_come_up() {
    let world = World::start(Flavor::Debian16).unwrap();
    let up = exec("test -e /tmp/up");
    let slow = with(
        idle("c"),
        json!({
            "startupProbe": every_second(up.clone(), json!({ "failureThreshold": 100 })),
            "livenessProbe": every_second(up.clone(), json!({ "failureThreshold": 1 })),
            "readinessProbe": { "exec": up["exec"], "periodSeconds": 100, "timeoutSeconds": 20 },
        }),
    );
    // It does not end by itself when told to, and the pod would give it ten minutes.
    let grace = json!({ "failureThreshold": 2, "terminationGracePeriodSeconds": 1 });
    let never = with(
        sh("c", "trap '' TERM; while :; do sleep 0.1; done"),
        json!({ "startupProbe": every_second(exec("false"), grace) }),
    );
    world.put("slow", json!({ "terminationGracePeriodSeconds": 1, "containers": [slow] })).unwrap();
    world.put("never", json!({ "terminationGracePeriodSeconds": 600, "containers": [never] })).unwrap();
    wait_until(SOON, "three failures to start", || {
        let failed = counted(&world, "slow", "c", "Startup", "failed");
        if failed >= 3 { Ok(()) } else { Err(failed.to_string()) }
    })
    .unwrap();
    let seen = world.wait("slow", "Running", |pod| pod.phase() == "Running" && pod.runs("c")).unwrap();
    assert_eq!(
        (&seen.container("c")["started"], &seen.container("c")["ready"]),
        (&json!(false), &json!(false))
    );
    assert_eq!(seen.restarts("c"), 0);
    for kind in ["Liveness", "Readiness"] {
        assert_eq!(counted(&world, "slow", "c", kind, "failed"), 0, "{kind} waits");
    }
    inside(&world, &seen, "c", "touch /tmp/up");
    // Readiness has a period of 100 s, and is asked all the same as soon as it makes sense.
    let seen = world.running("slow").unwrap();
    assert_eq!((&seen.container("c")["started"], seen.restarts("c")), (&json!(true), 0));

    let seen = world.wait("never", "restarted", |pod| pod.restarts("c") > 0).unwrap();
    assert_eq!(seen.container("c")["started"], false);
    assert_eq!(seen.container("c")["lastState"]["terminated"]["exitCode"], 137, "it had its second");
    let killing = world.event("never", "Killing", "failed startup probe").unwrap();
    assert_eq!(killing.message, "Container c failed startup probe, will be restarted");
}

#[test]
fn a_pod_that_ends_is_unready_first_and_not_restarted() {
    let world = World::start(Flavor::Debian16).unwrap();
    let ok = exec("test -e /tmp/ok");
    let container = with(
        sh("c", "trap 'exit 0' TERM; touch /tmp/ok; while :; do sleep 0.1; done"),
        json!({
            "readinessProbe": every_second(ok.clone(), json!({ "failureThreshold": 1 })),
            "livenessProbe": every_second(ok, json!({ "failureThreshold": 1 })),
            "lifecycle": { "preStop": exec("rm /tmp/ok; while [ ! -e /tmp/end ]; do sleep 0.1; done") },
        }),
    );
    world.put("p", json!({ "terminationGracePeriodSeconds": 600, "containers": [container] })).unwrap();
    world.running("p").unwrap();
    world.take_away("p").unwrap();
    let seen = world
        .wait("p", "unready while it still runs", |pod| {
            !pod.text("/metadata/deletionTimestamp").is_empty() && !pod.is_true("Ready")
        })
        .unwrap();
    assert!(seen.runs("c"), "{:#}", seen.0["status"]);
    assert_eq!(
        (&seen.container("c")["started"], &seen.container("c")["ready"]),
        (&json!(true), &json!(false))
    );
    // Its series goes when it begins to end.
    wait_until(SOON, "the end of its series", || match counted(&world, "p", "c", "Liveness", "successful") {
        0 => Ok(()),
        count => Err(count.to_string()),
    })
    .unwrap();
    world.touch(&seen, "c", "/tmp/end").unwrap();
    world.gone("p").unwrap();
    let events = world.events("p").unwrap();
    // One that was asked before the pod began to end may be answered after.
    let failed = events.iter().filter(|event| event.message.starts_with("Liveness probe"));
    let late: u64 = failed.map(|event| event.count).sum();
    assert!(late <= 1 && !events.iter().any(|event| event.message.contains("liveness")), "{events:#?}");
}

#[test]
fn sidecars_are_probed_too() {
    let world = World::start(Flavor::Debian16).unwrap();
    let sidecar = with(
        idle("side"),
        json!({
            "restartPolicy": "Always",
            "startupProbe": every_second(exec("test -e /tmp/up"), json!({ "failureThreshold": 100 })),
            "livenessProbe": every_second(exec("test ! -e /tmp/stuck"), json!({ "failureThreshold": 1 })),
            "readinessProbe": every_second(exec("test -e /tmp/ready"), json!({ "failureThreshold": 1 })),
        }),
    );
    world
        .put("p", json!({ "terminationGracePeriodSeconds": 1, "initContainers": [sidecar, sh("init", "echo done")], "containers": [idle("c")] }))
        .unwrap();
    wait_until(SOON, "two failures to start", || {
        let failed = counted(&world, "p", "side", "Startup", "failed");
        if failed >= 2 { Ok(()) } else { Err(failed.to_string()) }
    })
    .unwrap();
    let seen = world.wait("p", "its sidecar", |pod| pod.runs("side")).unwrap();
    assert_eq!(
        (seen.phase(), seen.waits("init"), seen.waits("c")),
        ("Pending", "PodInitializing", "PodInitializing")
    );
    assert_eq!(seen.condition("Initialized")["message"], "containers with incomplete status: [side init]");
    inside(&world, &seen, "side", "touch /tmp/up");
    let seen = world.wait("p", "initialized", |pod| pod.runs("c")).unwrap();
    assert_eq!(seen.exit_code("init"), Some(0));
    assert_eq!(seen.condition("Ready")["message"], "containers with unready status: [side]");
    inside(&world, &seen, "side", "touch /tmp/ready");
    world.running("p").unwrap();
    world.touch(&seen, "side", "/tmp/stuck").unwrap();
    let seen = world
        .wait("p", "the sidecar restarted", |pod| pod.restarts("side") == 1 && pod.runs("side"))
        .unwrap();
    assert_eq!(seen.restarts("c"), 0);
    assert!(seen.is_true("Initialized"));
}

#[test]
fn what_probes_have_shown_survives_a_restart_of_mainstay() {
    let mut world = world(Flavor::Debian16);
    let probe = |path: &str, period: u32| {
        let more = json!({ "periodSeconds": period, "timeoutSeconds": 20, "failureThreshold": 1 });
        with(http(&format!("/file?path={path}")), more)
    };
    let pod = |ready: Value| {
        // By the server itself: who is asked only once must be listening by then.
        let startup = every_second(http("/file?path=/tmp/up"), json!({ "failureThreshold": 1000 }));
        let container = with(server("c"), json!({ "startupProbe": startup, "readinessProbe": ready }));
        json!({ "terminationGracePeriodSeconds": 1, "containers": [container] })
    };
    // One is asked all the time, one not again before the test has ended, one is not ready.
    let specs = [
        ("often", pod(probe("/tmp", 1))),
        ("rarely", pod(probe("/tmp", 600))),
        ("unready", pod(probe("/none", 600))),
    ];
    for (name, spec) in &specs {
        world.put(name, spec.clone()).unwrap();
        let seen = world.wait(name, "runs", |pod| pod.runs("c")).unwrap();
        inside(&world, &seen, "c", "touch /tmp/up");
    }
    let expected: Vec<(&str, PodSeen)> = specs
        .iter()
        .map(|(name, _)| {
            let seen = match *name {
                "unready" => {
                    world.event("unready", "Unhealthy", "Readiness probe failed").unwrap();
                    world.wait(name, "started", |pod| pod.container("c")["started"] == true).unwrap()
                }
                _ => world.running(name).unwrap(),
            };
            (*name, seen)
        })
        .collect();
    mainstay_e2e::seen::persisted(&world.node).unwrap();
    world.node.kill9();
    world.node.spawn_again().unwrap();
    // Not answering yet is no answer; a wrong one is.
    let (mut looks, mut first) = (0, None);
    wait_until(SOON, "looks for six seconds", || {
        if let Err(error) = world.pods() {
            return Err(format!("{error:#}"));
        }
        let begun = *first.get_or_insert_with(Instant::now);
        looks += 1;
        for (name, before) in &expected {
            let after = world.named(name).unwrap().remove(0);
            assert_eq!(after.0["status"], before.0["status"], "{name} after {:?}", begun.elapsed());
        }
        let enough = looks >= 10 && begun.elapsed() > Duration::from_secs(6);
        if enough { Ok(()) } else { Err(format!("{looks} looks")) }
    })
    .unwrap();
    wait_until(SOON, "another question", || match counted(&world, "often", "c", "Readiness", "successful") {
        0 => Err("it is not asked again".to_owned()),
        _ => Ok(()),
    })
    .unwrap();
    assert_eq!(counted(&world, "often", "c", "Startup", "successful"), 0, "it has come up already");
    let (_, before) = &expected[0];
    inside(&world, before, "c", "rm /tmp/up");
    let files_become = |wanted: usize| {
        wait_until(SOON, &format!("{wanted} files of verdicts"), || {
            let names = world.node.root().join("mainstay/probes").read_dir().unwrap().flatten();
            let names: Vec<_> = names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            // One that was rewritten has a hidden one beside it.
            let files = names.iter().filter(|name| !name.starts_with('.')).count();
            if files == wanted { Ok(()) } else { Err(format!("{names:?}")) }
        })
        .unwrap();
    };
    files_become(3);
    world.take_away("often").unwrap();
    world.gone("often").unwrap();
    files_become(2);
}

#[test]
fn a_container_that_has_come_up_is_not_asked_again_though_the_record_of_it_is_lost() {
    let mut world = world(Flavor::Debian16);
    let startup = every_second(http("/file?path=/tmp/up"), json!({ "failureThreshold": 1000 }));
    let ready = with(http("/file?path=/tmp"), json!({ "periodSeconds": 600, "timeoutSeconds": 20 }));
    let container = with(server("c"), json!({ "startupProbe": startup, "readinessProbe": ready }));
    world.put("p", json!({ "terminationGracePeriodSeconds": 1, "containers": [container] })).unwrap();
    let seen = world.wait("p", "runs", |pod| pod.runs("c")).unwrap();
    inside(&world, &seen, "c", "touch /tmp/up");
    let before = world.running("p").unwrap();
    mainstay_e2e::seen::persisted(&world.node).unwrap();
    world.node.kill9();
    std::fs::remove_dir_all(world.node.root().join("mainstay/probes")).unwrap();
    inside(&world, &before, "c", "rm /tmp/up");
    world.node.start_again().unwrap();
    wait_until(SOON, "a whole list of pods", || world.pods().map_err(|error| format!("{error:#}"))).unwrap();
    // Asked again it would not have come up; three turns go by.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        let after = world.named("p").unwrap().remove(0);
        assert_eq!(after.0["status"], before.0["status"], "after {:?}", begun.elapsed());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(counted(&world, "p", "c", "Startup", "failed"), 0);
}

#[test]
fn an_edit_under_the_same_uid_is_what_is_asked_from_then_on() {
    let world = world(Flavor::Debian16);
    let manifest = |path: &str| {
        let ready = every_second(http(&format!("/file?path={path}")), json!({ "failureThreshold": 1 }));
        let container = with(server("c"), json!({ "readinessProbe": ready }));
        let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [container] });
        let mut manifest = mainstay_e2e::pod("p", spec);
        manifest["metadata"]["uid"] = json!("one-and-the-same");
        manifest
    };
    world.put_manifest("p", &manifest("/none")).unwrap();
    world.event("p", "Unhealthy", "Readiness probe failed").unwrap();
    let before = world.wait("p", "runs", |pod| pod.runs("c")).unwrap();
    assert!(!before.is_true("Ready"));
    world.put_manifest("p", &manifest("/tmp")).unwrap();
    let after = world.wait("p", "ready by the new probe", |pod| pod.is_true("Ready")).unwrap();
    assert_eq!((after.uid(), after.id("c"), after.restarts("c")), (before.uid(), before.id("c"), 0));
    world.put_manifest("p", &manifest("/none")).unwrap();
    world.wait("p", "unready by the newest", |pod| !pod.is_true("Ready")).unwrap();
}
