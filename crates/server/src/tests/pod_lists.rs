//! `/pods` by selector, with `ETag` and gzip, and watches that choose and come back.

use std::io::Read as _;

use super::*;

fn labelled(name: &str, app: &str, phase: &str) -> Arc<PodView> {
    view(
        json!({
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "labels": {"app": app}},
            "spec": {"nodeName": "node1", "containers": [{"name": "c", "image": "busybox"}]},
            "status": {"phase": phase, "message": "x".repeat(600)},
        }),
        None,
    )
}

fn names(reply: &Reply) -> Vec<String> {
    let list = reply.json();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn selectors_choose_and_bad_ones_are_told() {
    let fixture = Fixture::start();
    let pods = vec![
        labelled("a", "web", "Running"),
        labelled("b", "web", "Pending"),
        labelled("c", "db", "Running"),
    ];
    fixture.publish(snapshot(1, pods, vec![]));
    for (query, expected) in [
        ("labelSelector=app%3Dweb", vec!["a", "b"]),
        ("labelSelector=app+notin+(web)", vec!["c"]),
        ("fieldSelector=status.phase%3DRunning", vec!["a", "c"]),
        ("labelSelector=app=web&fieldSelector=status.phase!=Pending", vec!["a"]),
        ("labelSelector=", vec!["a", "b", "c"]),
    ] {
        assert_eq!(names(&fixture.get(&format!("/pods?{query}")).await), expected, "{query}");
    }
    let none = fixture.get("/pods?labelSelector=app=nobody").await;
    assert_eq!(none.body, "{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{},\"items\":null}\n");
    let etag = none.header("etag").unwrap().to_owned();
    let again =
        fixture.request("GET", "/pods?labelSelector=app=nobody", &[("If-None-Match", etag.as_str())]).await;
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    for (query, text) in [
        ("labelSelector=app%20in", "labelSelector \"app in\" cannot be read"),
        ("fieldSelector=spec.image=x", "field label not supported: spec.image"),
        ("watch=1&labelSelector=,", "labelSelector \",\" cannot be read"),
        ("watch=1&resourceVersion=x", "resourceVersion must be one that a BOOKMARK"),
    ] {
        let reply = fixture.get(&format!("/pods?{query}")).await;
        assert_eq!(reply.status, 400, "{reply:?}");
        assert!(reply.body.starts_with(text), "{reply:?}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    }
}

#[tokio::test]
async fn what_the_client_has_is_not_sent_again_and_the_rest_can_be_compressed() {
    let fixture = Fixture::start();
    let pods = || vec![labelled("a", "web", "Running"), labelled("b", "web", "Pending")];
    fixture.publish(snapshot(1, pods(), vec![]));
    let plain = fixture.get("/pods").await;
    let etag = plain.header("etag").unwrap().to_owned();
    assert_eq!(plain.header("vary"), Some("Accept-Encoding"));
    assert_eq!(plain.header("content-encoding"), None);

    let zipped = fixture.request("GET", "/pods", &[("Accept-Encoding", "deflate, gzip;q=0.5")]).await;
    assert_eq!(zipped.header("content-encoding"), Some("gzip"));
    assert_eq!(zipped.header("content-type"), Some("application/json"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(&zipped.raw[..]).read_to_string(&mut text).unwrap();
    assert_eq!(text, plain.body);
    let zipped_etag = zipped.header("etag").unwrap().to_owned();
    assert_ne!(zipped_etag, etag, "other bytes, another tag");
    for refused in ["gzip;q=0", "identity", "br"] {
        let reply = fixture.request("GET", "/pods", &[("Accept-Encoding", refused)]).await;
        assert_eq!(reply.header("content-encoding"), None, "{refused}");
    }

    // A new snapshot in which nothing of the pods changed has the same tag.
    fixture.publish(snapshot(2, pods(), vec![]));
    let weak = format!("\"other\", W/{etag}");
    for known in [etag.as_str(), zipped_etag.as_str(), weak.as_str(), "*"] {
        for headers in
            [&[("If-None-Match", known)][..], &[("If-None-Match", known), ("Accept-Encoding", "gzip")][..]]
        {
            let reply = fixture.request("GET", "/pods", headers).await;
            assert_eq!((reply.status, reply.body.as_str()), (304, ""), "{headers:?}");
            assert!(reply.header("etag").is_some());
        }
    }
    assert_eq!(fixture.request("GET", "/pods", &[("If-None-Match", "\"other\"")]).await.status, 200);
    fixture.publish(snapshot(3, vec![labelled("a", "web", "Failed")], vec![]));
    let newer = fixture.request("GET", "/pods", &[("If-None-Match", etag.as_str())]).await;
    assert_eq!(newer.status, 200);
    assert_ne!(newer.header("etag"), Some(etag.as_str()));
}

#[tokio::test]
async fn a_watch_of_some_pods_tells_of_those_that_come_and_go() {
    let fixture = Fixture::start();
    fixture.publish(snapshot(
        1,
        vec![labelled("a", "web", "Pending"), labelled("b", "db", "Pending")],
        vec![],
    ));
    let mut stream =
        fixture.open("/pods?watch=1&labelSelector=app=web&fieldSelector=status.phase!=Failed").await;
    let next = async |stream: &mut Stream| {
        let (kind, pod) = stream.event().await;
        (kind, pod["metadata"]["name"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(next(&mut stream).await, ("ADDED".into(), "a".into()));
    assert_eq!(next(&mut stream).await.0, "BOOKMARK");
    // b comes into the selection, a changes within it.
    fixture.publish(snapshot(
        2,
        vec![labelled("a", "web", "Running"), labelled("b", "web", "Pending")],
        vec![],
    ));
    assert_eq!(next(&mut stream).await, ("MODIFIED".into(), "a".into()));
    assert_eq!(next(&mut stream).await, ("ADDED".into(), "b".into()));
    // a leaves it without being gone, b is gone, c was never in it.
    fixture.publish(snapshot(
        3,
        vec![labelled("a", "web", "Failed"), labelled("c", "db", "Running")],
        vec![],
    ));
    let mut last = [next(&mut stream).await, next(&mut stream).await];
    last.sort();
    assert_eq!(last, [("DELETED".into(), "a".into()), ("DELETED".into(), "b".into())]);
}

#[tokio::test]
async fn a_watcher_that_comes_back_is_told_what_it_missed() {
    let fixture = Fixture::start();
    let old = vec![
        labelled("a", "web", "Running"),
        labelled("b", "web", "Running"),
        labelled("c", "web", "Running"),
    ];
    fixture.publish(snapshot(7, old, vec![]));
    let mut stream = fixture.open("/pods?watch=1").await;
    let mut bookmark = stream.event().await;
    while bookmark.0 != "BOOKMARK" {
        bookmark = stream.event().await;
    }
    let version = bookmark.1["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    drop(stream);
    let new = vec![
        labelled("a", "web", "Running"),
        labelled("b", "web", "Failed"),
        labelled("d", "web", "Running"),
    ];
    fixture.publish(snapshot(9, new, vec![]));
    let mut stream = fixture.open(&format!("/pods?watch=1&resourceVersion={version}")).await;
    let mut told = Vec::new();
    loop {
        let (kind, pod) = stream.event().await;
        if kind == "BOOKMARK" {
            assert_eq!(pod["metadata"]["resourceVersion"], "9");
            assert_eq!(pod["metadata"]["annotations"], Value::Null, "not a beginning");
            break;
        }
        assert_eq!(pod["kind"], "Pod");
        told.push(format!("{kind} {}", pod["metadata"]["name"].as_str().unwrap()));
    }
    told.sort();
    assert_eq!(told, ["ADDED d", "DELETED c", "MODIFIED b"]);
    // From another process, or too long ago.
    let gone = fixture.get("/pods?watch=1&resourceVersion=8").await;
    assert_eq!(gone.status, 410);
    assert_eq!((&gone.json()["kind"], &gone.json()["reason"]), (&json!("Status"), &json!("Expired")));
}

#[tokio::test]
async fn allocated_pods_have_no_status() {
    let off = Fixture::start();
    off.publish(snapshot(1, vec![], vec![]));
    off.get("/allocatedPods").await.is_error(404, "404 page not found\n");
    let fixture = Fixture::with_switches(crate::Switches { allocated_pods: true, ..Default::default() });
    fixture.publish(snapshot(1, vec![], vec![]));
    let empty = "{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{},\"items\":null}\n";
    assert_eq!(fixture.get("/allocatedPods").await.body, empty);
    fixture.publish(snapshot(
        2,
        vec![labelled("a", "web", "Running"), labelled("b", "web", "Failed")],
        vec![],
    ));
    let list = fixture.get("/allocatedPods/").await.json();
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert_eq!(list["items"][0]["status"], json!({}));
    let one = fixture.get("/allocatedPods/default/a").await.json();
    assert_eq!((&one["kind"], &one["apiVersion"], &one["status"]), (&json!("Pod"), &json!("v1"), &json!({})));
    assert_eq!(one["spec"]["nodeName"], "node1");
    assert_eq!(fixture.get("/allocatedPods/default/a/uid-a").await.status, 200);
    for path in ["default/a/uid-x", "default/b", "default/nope", "other/a"] {
        fixture.get(&format!("/allocatedPods/{path}")).await.is_plain(404, "pod not found");
    }
    fixture.get("/allocatedPods/default").await.is_plain(404, "404: Page Not Found");
}
