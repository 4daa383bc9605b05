//! `/node`.

use mainstay_types::NodeView;

use super::*;

fn with_node(generation: u64, version: u64, ready: &str) -> NodeSnapshot {
    let json = format!(
        "{{\"kind\":\"Node\",\"apiVersion\":\"v1\",\"metadata\":{{\"name\":\"node1\"}},\"status\":{{\"conditions\":[{{\"type\":\"Ready\",\"status\":\"{ready}\"}}]}}}}\n"
    );
    let node = serde_json::from_str(&json).unwrap();
    snapshot(generation, vec![], vec![]).with_node(Some(Arc::new(NodeView {
        version,
        node: Arc::new(node),
        json: json.into(),
        others: mainstay_types::OthersWord::default(),
    })))
}

#[tokio::test]
async fn the_node_is_served_kept_and_watched() {
    let fixture = Fixture::start();
    assert_eq!(fixture.get("/node").await.status, 503);
    fixture.publish(with_node(1, 1, "True"));
    let reply = fixture.get("/node").await;
    assert_eq!(reply.json()["metadata"]["name"], "node1");
    assert!(reply.body.ends_with("}\n"));
    assert_eq!(tcp(fixture.read_only, "GET", "/node").await.body, reply.body);
    let etag = reply.header("etag").unwrap().to_owned();
    let mut stream = fixture.open("/node?watch=1").await;
    let (kind, node) = stream.event().await;
    assert_eq!((kind.as_str(), &node["kind"]), ("ADDED", &json!("Node")));
    // Another snapshot, the same node.
    fixture.publish(with_node(2, 1, "True"));
    assert_eq!(fixture.request("GET", "/node", &[("If-None-Match", etag.as_str())]).await.status, 304);
    fixture.publish(with_node(3, 3, "False"));
    let (kind, node) = stream.event().await;
    assert_eq!((kind.as_str(), &node["status"]["conditions"][0]["status"]), ("MODIFIED", &json!("False")));
    assert_eq!(fixture.request("GET", "/node", &[("If-None-Match", etag.as_str())]).await.status, 200);
    assert_eq!(fixture.request("POST", "/node", &[]).await.status, 405);
    fixture.get("/node/x").await.is_plain(404, "404: Page Not Found");
}
