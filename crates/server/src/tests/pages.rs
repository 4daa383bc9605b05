//! What the process tells about itself.

use super::*;

#[tokio::test]
async fn flags_and_status_are_text_or_named_objects() {
    let fixture = Fixture::start();
    for (path, title) in [("/flagz", "kubelet flagz"), ("/statusz", "kubelet statusz")] {
        let reply = fixture.get(path).await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
        assert!(
            reply.body.starts_with(&format!("\n{title}\nWarning: This endpoint is not meant")),
            "{reply:?}"
        );
        assert_eq!(fixture.request("DELETE", path, &[("Accept", "text/plain")]).await.status, 200);
        for (accept, indented) in [("application/json", false), ("application/xml", true)] {
            let reply = fixture.request("GET", path, &[("Accept", accept)]).await;
            assert_eq!(reply.status, 406);
            assert_eq!(reply.body.contains("\n  \"kind\": \"Status\""), indented, "{reply:?}");
            assert_eq!(
                reply.json()["message"],
                "only the following media types are accepted: application/json, application/yaml, text/plain"
            );
        }
    }
    let accept = "application/json;v=v1beta1;g=config.k8s.io;as=Statusz";
    let reply = fixture.request("GET", "/statusz", &[("Accept", accept)]).await;
    assert_eq!(reply.header("content-type"), Some("application/json;g=config.k8s.io;v=v1beta1;as=Statusz"));
    let object: Value = serde_json::from_str(&reply.body).unwrap();
    assert_eq!(object["startTime"], "1970-01-01T00:00:00Z");
    assert_eq!(object["paths"], json!(["/configz", "/debug", "/flagz", "/healthz", "/metrics"]));
    assert_eq!(object["emulationVersion"], "1.37");
    let accept = "application/yaml;v=v1alpha1;g=config.k8s.io;as=Flagz";
    let reply = fixture.request("GET", "/flagz", &[("Accept", accept)]).await;
    assert!(reply.body.starts_with("kind: Flagz\napiVersion: config.k8s.io/v1alpha1\n"), "{reply:?}");
    assert_eq!(
        reply.header("warning"),
        Some("299 - \"This version of the flagz endpoint is deprecated. Please use a newer version.\"")
    );
    let status = fixture.get("/statusz").await.body;
    assert!(status.contains("\n\nStarted:  Thu Jan  1 00:00:00 UTC 1970\nUp:  "), "{status}");
    assert!(status.ends_with("\nPaths:  /configz /debug /flagz /healthz /metrics\n"), "{status}");
}

#[tokio::test]
async fn the_verbosity_is_put() {
    let fixture = Fixture::start();
    for (method, body, status, text) in [
        ("PUT", "5", 200, "successfully set klog.logging.verbosity to 5\n"),
        ("PUT", "abc", 400, "strconv.ParseUint: parsing \"abc\": invalid syntax\n"),
        ("PUT", "99999999999", 400, "strconv.ParseUint: parsing \"99999999999\": value out of range\n"),
        ("GET", "", 406, "unsupported http method\n"),
        ("POST", "5", 406, "unsupported http method\n"),
    ] {
        let reply = fixture.send(method, "/debug/flags/v", body).await;
        assert_eq!((reply.status, reply.body.as_str()), (status, text), "{method} {body}");
        assert_eq!(reply.header("content-type"), Some("text/plain"));
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    }
    let long = "1".repeat(5000);
    assert_eq!(fixture.send("PUT", "/debug/flags/v", &long).await.status, 400);
}

#[tokio::test]
async fn the_server_counts_itself_and_its_health_checks() {
    let fixture = Fixture::start();
    fixture.get("/healthz").await;
    fixture.get("/nowhere").await;
    let text = fixture.get("/metrics").await.body;
    for line in [
        r#"kubelet_http_requests_total{long_running="false",method="GET",path="healthz",server_type="socket"} 1"#,
        r#"kubelet_http_requests_total{long_running="false",method="GET",path="other",server_type="socket"} 1"#,
        r#"kubelet_http_inflight_requests{long_running="false",method="GET",path="metrics",server_type="socket"} 1"#,
        "# TYPE kubelet_http_requests_duration_seconds histogram",
    ] {
        assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
    }
    let slis = fixture.get("/metrics/slis").await.body;
    assert!(slis.contains(r#"kubernetes_healthcheck{name="syncloop",type="healthz"} 1"#), "{slis}");
    assert!(
        slis.contains(r#"kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 1"#),
        "{slis}"
    );
    fixture.request("DELETE", "/metrics/slis", &[]).await.is_plain(200, "metrics reset\n");
    let slis = fixture.get("/metrics/slis").await.body;
    assert!(
        !slis.contains("kubernetes_healthcheck") && slis.contains("process_start_time_seconds"),
        "{slis}"
    );
    // A stream is being answered for as long as it lasts.
    fixture.publish(snapshot(1, vec![], vec![]));
    let stream = fixture.open("/pods?watch=1").await;
    let watching = r#"kubelet_http_inflight_requests{long_running="false",method="GET",path="pods",server_type="socket"}"#;
    assert!(fixture.get("/metrics").await.body.contains(&format!("{watching} 1\n")));
    drop(stream);
    let deadline = Instant::now() + PATIENCE;
    while !fixture.get("/metrics").await.body.contains(&format!("{watching} 0\n")) {
        assert!(Instant::now() < deadline, "the watcher is gone and still counted");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn the_manual_is_served() {
    let fixture = Fixture::start();
    let document = fixture.get("/openapi/v3").await.json();
    assert_eq!(document["openapi"], "3.1.0");
    assert!(document["paths"]["/pods"]["get"]["summary"].is_string());
    assert_eq!(fixture.get("/openapi").await.status, 307);
}

#[tokio::test]
async fn statistics_are_compressed_for_those_who_ask() {
    let fixture = Fixture::start();
    fixture.publish(snapshot(1, vec![], vec![]));
    let root = Some(Arc::new(mainstay_types::Sample::default()));
    fixture.samples.send_replace(Arc::new(mainstay_types::Samples {
        generation: 1,
        root,
        ..mainstay_types::Samples::default()
    }));
    for path in [
        "/metrics",
        "/metrics/cadvisor",
        "/metrics/probes",
        "/metrics/resource",
        "/metrics/resource?name[]=node_cpu_usage_seconds_total",
        "/metrics/resource/v1alpha1",
        "/metrics/slis",
        "/stats/summary",
        "/stats/summary?only_cpu_and_memory=true",
    ] {
        let plain = fixture.get(path).await;
        assert_eq!((plain.status, plain.header("content-encoding")), (200, None), "{path}");
        // The second has what was kept of the first.
        for _ in 0..2 {
            let zipped = fixture.request("GET", path, &[("Accept-Encoding", "gzip")]).await;
            assert_eq!((zipped.status, zipped.header("content-encoding")), (200, Some("gzip")), "{path}");
            assert_eq!(zipped.header("content-type"), plain.header("content-type"), "{path}");
            let mut text = String::new();
            std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&zipped.raw[..]), &mut text)
                .unwrap();
            if path != "/metrics" {
                assert_eq!(text, plain.body, "{path}");
            }
        }
    }
}

#[tokio::test]
async fn families_that_are_denied_are_on_no_page() {
    let families = |deny: &[&str]| {
        let deny = deny.iter().map(|it| (*it).to_owned()).collect();
        Fixture::configured(|config| config.families = crate::FamilyChoice { deny, ..Default::default() }).0
    };
    let paths = [
        "/metrics",
        "/metrics/cadvisor",
        "/metrics/probes",
        "/metrics/resource",
        "/metrics/resource/v1alpha1",
        "/metrics/slis",
    ];
    let all = families(&[]);
    let some = families(&[
        "process_*",
        "kubelet_http_requests_*",
        "container_scrape_error",
        "kubernetes_healthcheck",
    ]);
    let none = families(&["*"]);
    for fixture in [&all, &some, &none] {
        // Something to count.
        assert_eq!(fixture.get("/healthz").await.status, 200);
    }
    for path in paths {
        assert!(all.get(path).await.body.starts_with("# HELP "), "{path}");
        let reply = some.get(path).await;
        let named = |name: &str| reply.body.contains(&format!("# TYPE {name}"));
        assert!(!named("process_") && !named("kubelet_http_requests_"), "{path}: {reply:?}");
        assert!(!named("container_scrape_error") && !named("kubernetes_healthcheck "), "{path}: {reply:?}");
        let reply = none.get(path).await;
        assert_eq!((reply.status, reply.body.as_str()), (200, ""), "{path}");
    }
    assert!(some.get("/metrics").await.body.contains("kubelet_http_inflight_requests{"));
    assert!(some.get("/metrics/slis").await.body.contains("kubernetes_healthchecks_total{"));
}
