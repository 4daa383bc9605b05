//! Paths, methods, `Accept`, and the answers that do not stream.

use super::*;
use mainstay_types::{Event, EventKind, EventTarget, Ruling};

#[tokio::test]
async fn before_the_first_snapshot_there_is_no_list() {
    let fixture = Fixture::start();
    for path in ["/pods", "/pods?watch=true", "/runningpods/", "/mainstay/v1/node", "/mainstay/v1/manifests"]
    {
        let reply = fixture.get(path).await;
        assert_eq!(reply.status, 503, "{path}");
        assert!(reply.body.starts_with("the node's state is not complete yet"), "{reply:?}");
        assert_eq!(reply.header("retry-after"), Some("1"));
    }
    assert_eq!(fixture.get("/containerLogs/a/b/c").await.status, 503);
    assert_eq!(fixture.get("/mainstay/v1/events").await.status, 200);
    assert_eq!(fixture.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn pods_are_the_bytes_of_the_snapshot() {
    let fixture = Fixture::start();
    fixture.publish(snapshot(1, vec![], vec![]));
    for path in ["/pods", "/pods/", "/%70ods"] {
        let reply = fixture.get(path).await;
        assert_eq!(reply.status, 200);
        assert_eq!(
            reply.body,
            "{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{},\"items\":null}\n"
        );
        assert_eq!(reply.header("content-type"), Some("application/json"));
    }
    let newer = snapshot(2, vec![simple_pod("web", "a<b>&c"), simple_pod("db", "")], vec![]);
    let expected = newer.pod_list_json();
    fixture.publish(newer);
    let reply = fixture.get("/pods").await;
    assert_eq!(reply.body.as_bytes(), expected);
    assert!(reply.body.contains(r"a\u003cb\u003e\u0026c"), "{}", reply.body);
    assert_eq!(reply.json()["items"][0]["metadata"]["name"], "db");
    assert_eq!(tcp(fixture.read_only, "GET", "/pods").await.body.as_bytes(), expected);
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let fixture = Fixture::start();
    fixture.publish(snapshot(1, vec![simple_pod("web", "")], vec![]));
    let mut stream = UnixStream::connect(&fixture.socket).await.unwrap();
    for _ in 0..3 {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut answer = vec![0; 4096];
        let read = stream.read(&mut answer).await.unwrap();
        assert_eq!(parse_reply(&answer[..read]).body, "ok");
    }
}

#[tokio::test]
async fn running_pods_are_those_of_the_runtime() {
    let fixture = Fixture::start();
    let running = container("id-a", "a", ContainerPhase::Running, "");
    let setup = container("id-s", "setup", ContainerPhase::Exited, "");
    fixture.publish(snapshot(
        1,
        vec![],
        vec![
            observed_pod("multi", true, vec![running, setup.clone()]),
            observed_pod("crash", true, vec![setup.clone()]),
            observed_pod("finished", false, vec![setup]),
        ],
    ));
    let reply = fixture.get("/runningpods/").await;
    assert_eq!(
        reply.body,
        "{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{},\"items\":[\
         {\"metadata\":{\"name\":\"crash\",\"namespace\":\"default\",\"uid\":\"uid-crash\"},\"spec\":{\"containers\":null},\"status\":{}},\
         {\"metadata\":{\"name\":\"multi\",\"namespace\":\"default\",\"uid\":\"uid-multi\"},\"spec\":{\"containers\":[{\"name\":\"a\",\"image\":\"sha256:9833733a\",\"resources\":{}}]},\"status\":{}}]}\n"
    );
    assert_eq!(reply.header("content-type"), Some("application/json"));
    fixture.publish(snapshot(2, vec![], vec![]));
    let empty = "{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{},\"items\":null}\n";
    assert_eq!(fixture.get("/runningpods/").await.body, empty);
}

#[tokio::test]
async fn unknown_paths_methods_and_types() {
    let fixture = Fixture::start();
    fixture.publish(snapshot(1, vec![simple_pod("web", "")], vec![]));
    for path in ["/", "/pod", "/podsx", "/healthz/", "/healthz/nope", "/healthzx", "/debug"] {
        fixture.get(path).await.is_error(404, "404 page not found\n");
    }
    for path in [
        "/pods/web",
        "/runningpods/x",
        "/containerLogs",
        "/containerLogs/",
        "/containerLogs/a/b",
        "/containerLogs/a/b/c/d",
        "/mainstay/",
        "/mainstay/v1/",
        "/mainstay/v1/nothing",
        "/mainstay/v2/node",
    ] {
        fixture.get(path).await.is_plain(404, "404: Page Not Found");
    }
    for (method, path) in [
        ("POST", "/pods"),
        ("OPTIONS", "/pods"),
        ("INVENTED", "/pods"),
        ("DELETE", "/runningpods/"),
        ("PUT", "/containerLogs/a/b/c"),
        ("POST", "/mainstay/v1/events"),
    ] {
        let reply = fixture.request(method, path, &[]).await;
        reply.is_plain(405, "405: Method Not Allowed");
        assert_eq!(reply.header("allow"), Some("GET"));
    }
    let head = fixture.request("HEAD", "/pods", &[]).await;
    assert_eq!((head.status, head.body.as_str()), (405, ""));
    let head = fixture.request("HEAD", "/healthz", &[]).await;
    assert_eq!((head.status, head.body.as_str(), head.header("content-length")), (200, "", Some("2")));
    let all = fixture.request("OPTIONS", "*", &[]).await;
    assert_eq!((all.status, all.body.as_str()), (200, ""));

    for accept in ["text/html", "application/*", "*", "text/*"] {
        let reply = fixture.request("GET", "/pods", &[("Accept", accept)]).await;
        reply.is_plain(406, "406: Not Acceptable\n\nAvailable representations: application/json");
        let reply = fixture.request("GET", "/containerLogs/a/b/c", &[("Accept", accept)]).await;
        reply.is_plain(406, "406: Not Acceptable\n\nAvailable representations: ");
        assert_eq!(fixture.request("GET", "/healthz", &[("Accept", accept)]).await.status, 200);
    }
    for accept in ["", "*/*", "application/json", "text/html;q=1, application/json;q=0.1"] {
        assert_eq!(fixture.request("GET", "/pods", &[("Accept", accept)]).await.status, 200);
    }
    // Method before type, path before method.
    assert_eq!(fixture.request("POST", "/pods", &[("Accept", "text/html")]).await.status, 405);
    assert_eq!(fixture.request("POST", "/pods/x", &[]).await.status, 404);
    fixture.get("/pods%zz").await.is_plain(400, "400 Bad Request");
}

#[tokio::test]
async fn redirects() {
    let fixture = Fixture::start();
    for (path, location) in [
        ("/runningpods", "/runningpods/"),
        ("/runningpods?a=b&c=%3C", "/runningpods/?a=b&c=%3C"),
        ("//pods", "/pods"),
        ("/a/../pods/?x", "/pods/?x"),
        ("/unknown/./path", "/unknown/path"),
        ("/mainstay", "/mainstay/"),
    ] {
        let reply = fixture.get(path).await;
        assert_eq!((reply.status, reply.header("location")), (307, Some(location)), "{path}");
        assert_eq!(reply.header("content-type"), Some("text/html; charset=utf-8"));
        let shown = location.replace('&', "&amp;");
        assert_eq!(reply.body, format!("<a href=\"{shown}\">Temporary Redirect</a>.\n\n"));
    }
    let reply = fixture.request("POST", "/runningpods", &[]).await;
    assert_eq!((reply.status, reply.body.as_str(), reply.header("content-length")), (307, "", Some("0")));
    assert_eq!(reply.header("content-type"), None);
    let reply = fixture.request("HEAD", "/runningpods", &[]).await;
    assert_eq!((reply.status, reply.body.as_str()), (307, ""));
}

#[tokio::test]
async fn the_read_only_port_serves_the_common_set() {
    let fixture = Fixture::start();
    fixture.publish(snapshot(1, vec![simple_pod("web", "")], vec![]));
    for path in ["/pods", "/pods/", "/healthz", "/healthz/ping", "/healthz/log", "/healthz/syncloop"] {
        assert_eq!(tcp(fixture.read_only, "GET", path).await.status, 200, "{path}");
    }
    for path in [
        "/run/",
        "/exec/a/b/c",
        "/attach/",
        "/portForward/a",
        "/containerLogs/a/b/c",
        "/runningpods/",
        "/debug/pprof/heap",
        "/logs/x",
    ] {
        for method in ["GET", "POST"] {
            tcp(fixture.read_only, method, path).await.is_error(405, "Debug endpoints are disabled.\n");
        }
    }
    for path in ["/run", "/containerLogs", "/runningpods", "/debug/pprof", "/logs"] {
        let reply = tcp(fixture.read_only, "GET", path).await;
        assert_eq!((reply.status, reply.header("location")), (307, Some(format!("{path}/").as_str())));
    }
    for path in ["/configz", "/debug/flags/v", "/checkpoint/", "/mainstay/v1/node", "/mainstay/", "/mainstay"]
    {
        tcp(fixture.read_only, "GET", path).await.is_error(404, "404 page not found\n");
    }
    let reply = tcp(fixture.read_only, "POST", "/pods").await;
    reply.is_plain(405, "405: Method Not Allowed");
}

#[tokio::test]
async fn the_healthz_port_serves_two_paths() {
    let fixture = Fixture::start();
    let reply = tcp(fixture.healthz, "GET", "/healthz?verbose").await;
    assert_eq!(reply.body, "[+]ping ok\nhealthz check passed\n");
    tcp(fixture.healthz, "POST", "/healthz/ping").await.is_plain(200, "ok");
    for path in ["/healthz/log", "/healthz/syncloop", "/pods", "/run", "/"] {
        tcp(fixture.healthz, "GET", path).await.is_error(404, "404 page not found\n");
    }
}

#[tokio::test]
async fn health() {
    let fixture = Fixture::start();
    let reply = fixture.get("/healthz").await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "ok"));
    assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    for (query, body) in [
        ("verbose", "[+]ping ok\n[+]log ok\n[+]syncloop ok\n[+]device-plugin ok\nhealthz check passed\n"),
        (
            "verbose=false&exclude=log",
            "[+]ping ok\n[+]log excluded: ok\n[+]syncloop ok\n[+]device-plugin ok\nhealthz check passed\n",
        ),
        (
            "verbose&exclude=zzz&exclude=log,ping&exclude=ping",
            "[+]ping excluded: ok\n[+]log ok\n[+]syncloop ok\n[+]device-plugin ok\n\
             warn: some health checks cannot be excluded: no matches for \"log,ping\",\"zzz\"\nhealthz check passed\n",
        ),
        ("exclude=zzz", "ok"),
    ] {
        let reply = fixture.get(&format!("/healthz?{query}")).await;
        assert_eq!((reply.status, reply.body.as_str()), (200, body), "{query}");
    }
    for check in ["ping", "log", "syncloop", "device-plugin"] {
        fixture.get(&format!("/healthz/{check}")).await.is_plain(200, "ok");
    }
}

#[tokio::test]
async fn events_manifests_and_node() {
    let fixture = Fixture::start();
    let since = Timestamp::from_second(1_700_000_000).unwrap();
    let verdicts = vec![
        FileVerdict {
            path: "/manifests/web.yaml".into(),
            object: Some("Pod default/web".into()),
            ruling: Ruling::Accepted { warnings: vec![] },
            since,
        },
        FileVerdict {
            path: "/manifests/bad.yaml".into(),
            object: None,
            ruling: Ruling::Rejected {
                problems: vec!["spec.containers: Required <value>".into()],
                previous_kept: true,
            },
            since,
        },
    ];
    let running = observed_pod("web", true, vec![container("1", "c", ContainerPhase::Running, "")]);
    let pod = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "uid-web"},
        "spec": {"containers": [{"name": "c"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    let web = view(pod, Some(running.clone()));
    fixture.publish(snapshot_with(7, vec![web, simple_pod("db", "")], vec![running], verdicts));

    let node = fixture.get("/mainstay/v1/node").await.json();
    assert_eq!(node["nodeName"], "node1");
    assert_eq!(node["generation"], 7);
    assert_eq!(node["version"], mainstay_types::VERSION);
    assert_eq!(node["runtime"]["name"], "containerd");
    assert_eq!(node["pods"]["total"], 2);
    assert_eq!(node["pods"]["ready"], 1);
    assert_eq!(node["containersRunning"], 1);
    assert_eq!(node["manifests"]["rejected"], 1);

    let reply = fixture.get("/mainstay/v1/manifests").await;
    assert!(reply.body.contains(r"\u003cvalue\u003e"), "{}", reply.body);
    let manifests = reply.json();
    assert_eq!(manifests["synced"], true);
    assert_eq!(manifests["items"][1]["verdict"], "rejected");
    assert_eq!(manifests["items"][1]["previousKept"], true);
    assert_eq!(
        manifests["pods"][1],
        json!({"namespace": "default", "name": "web", "uid": "uid-web", "origin": "/manifests/web.yaml"})
    );

    for (pod, message) in [("web", "one"), ("web", "one"), ("db", "two")] {
        let target = EventTarget::Pod {
            uid: PodUid::from(format!("uid-{pod}")),
            full_name: FullName::new("default", pod),
            field_path: None,
        };
        let event = Event {
            target,
            kind: EventKind::Normal,
            reason: "Started".into(),
            message: message.into(),
            time: since,
        };
        assert!(fixture.events.send(event));
    }
    let mut stream = fixture.open("/mainstay/v1/events?watch=true").await;
    while stream.event().await.1["name"] != "db" {}
    let events = fixture.get("/mainstay/v1/events").await.json();
    assert_eq!(events["newest"], 3);
    assert_eq!(events["items"][0]["count"], 2);
    assert_eq!(events["items"][1]["reason"], "Started");
    let events = fixture.get("/mainstay/v1/events?pod=default/web").await.json();
    assert_eq!(events["items"].as_array().unwrap().len(), 1);
    assert_eq!(fixture.get("/mainstay/v1/events?after=2").await.json()["items"].as_array().unwrap().len(), 1);
    assert_eq!(fixture.get("/mainstay/v1/events?after=3").await.json()["items"], json!([]));
    // A number from before a restart.
    assert_eq!(
        fixture.get("/mainstay/v1/events?after=500").await.json()["items"].as_array().unwrap().len(),
        2
    );
    assert_eq!(fixture.get("/mainstay/v1/events?after=x").await.status, 400);
    assert_eq!(fixture.get("/mainstay/v1/events?pod=web").await.status, 400);
}
