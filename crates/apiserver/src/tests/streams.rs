//! A server that allows 100 streams on a connection and never ends a watch.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, Pod};
use rcgen::ExtendedKeyUsagePurpose;
use serde_json::json;
use tokio::{net::TcpListener, net::TcpStream, task::JoinSet};

use super::server::{Options, Seen, Server, json as answer, kubeconfig, pem, pieces, text};
use crate::{ApiError, Client, Query, Rate, Scope, client::Watch};

const CA: &str = "certificate-authority: ca.crt";
const LONG: Duration = Duration::from_secs(600);
/// Far below the deadline of a request, after which a new connection would be made anyway.
const SOON: Duration = Duration::from_secs(10);

/// Watches without end; other requests are answered with the connection they came on.
fn serve(seen: &Seen) -> http::Response<super::server::Body> {
    if seen.request.uri().query().is_some_and(|query| query.contains("watch=true")) {
        return pieces(Vec::new(), LONG);
    }
    if seen.request.uri().path().ends_with("/slow") {
        return pieces(vec!["{".into()], LONG);
    }
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": seen.connection.to_string(), "resourceVersion": "1" } });
    answer(200, &node)
}

/// Opens so many watches at once.
async fn watches(client: &Client, count: usize) -> Vec<Watch<Pod>> {
    let mut all = JoinSet::new();
    for _ in 0..count {
        let client = client.clone();
        all.spawn(async move { client.watch::<Pod>(Scope::Cluster, &Query::default(), LONG).await.unwrap() });
    }
    tokio::time::timeout(SOON, all.join_all()).await.expect("none waits for another")
}

/// The connection on which a request is answered.
async fn connection(client: &Client) -> String {
    let asked = client.get::<Node>(Scope::Cluster, "n");
    let node = tokio::time::timeout(SOON, asked).await.expect("answered at once").unwrap();
    node.metadata.name.unwrap()
}

async fn until_open(server: &Server, count: usize) {
    let (made, ended) = (&server.connections, &server.ended);
    let wait = async {
        while made.load(Ordering::SeqCst) - ended.load(Ordering::SeqCst) != count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.expect("so many connections are left");
}

#[tokio::test]
async fn requests_wait_for_no_watch_and_connections_go_with_their_watches() {
    let server = Server::start(Options::default(), serve).await;
    let client = server.client(CA, "token: t");
    let mut open = watches(&client, 150).await;
    assert_eq!(connection(&client).await, "2");
    open.extend(watches(&client, 10).await);
    // Both are full, and still have room for what is soon over.
    assert!(["1", "2"].contains(&connection(&client).await.as_str()));
    until_open(&server, 2).await;
    open.extend(watches(&client, 1).await);
    assert_eq!(connection(&client).await, "3");
    until_open(&server, 3).await;

    drop(open);
    assert_eq!(connection(&client).await, "1");
    until_open(&server, 1).await;
    // None is made anew for the next few.
    let open = watches(&client, 70).await;
    assert_eq!(connection(&client).await, "1");
    assert_eq!(server.connections.load(Ordering::SeqCst), 3);
    drop(open);
}

#[tokio::test]
async fn a_burst_of_requests_is_no_more_than_the_server_allows() {
    let server = Server::start(Options::default(), serve).await;
    let client = server.client(CA, "token: t");
    let mut slow = JoinSet::new();
    for _ in 0..150 {
        let client = client.clone();
        slow.spawn(async move { client.get::<Node>(Scope::Cluster, "slow").await });
    }
    // Those that wait for their answer hold streams, too.
    while server.connections.load(Ordering::SeqCst) < 2 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(connection(&client).await, "2");
    slow.shutdown().await;
    connection(&client).await;
    until_open(&server, 1).await;
}

#[tokio::test]
async fn requests_do_not_need_the_connection_that_a_watch_waits_for() {
    let server = Server::start(Options::default(), serve).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (relay, target) = (listener.local_addr().unwrap(), server.address);
    let came = Arc::new(AtomicUsize::new(0));
    let count = came.clone();
    server.tasks.spawn("relay", async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut out = TcpStream::connect(target).await.unwrap();
        // All but the first are taken and never answered.
        let silent = async {
            let mut held = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                held.push(stream);
                count.fetch_add(1, Ordering::SeqCst);
            }
        };
        tokio::join!(tokio::io::copy_bidirectional(&mut stream, &mut out), silent).0.ok();
    });
    let path = kubeconfig(server.dir.path(), &format!("https://{relay}"), CA, "token: t");
    let rate = Rate { per_second: 1000, burst: 1000 };
    let client = Client::open(path, rate, "test", &server.tasks).unwrap();
    let open = watches(&client, 80).await;
    let another = {
        let client = client.clone();
        async move { client.watch::<Pod>(Scope::Cluster, &Query::default(), LONG).await }
    };
    let mut all = JoinSet::new();
    all.spawn(another);
    while came.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for _ in 0..20 {
        assert_eq!(connection(&client).await, "1");
    }
    assert!(all.try_join_next().is_none(), "they were answered while it waits");
    let error = all.join_next().await.unwrap().unwrap().unwrap_err();
    assert!(matches!(error, ApiError::Connect { .. }) && error.is_transient(), "{error}");
    assert_eq!(connection(&client).await, "1");
    drop(open);
}

#[tokio::test]
async fn a_request_that_takes_too_long_makes_all_connections_suspect() {
    let server = Server::start(Options::default(), serve).await;
    let client = server.client(CA, "token: t");
    let mut open = watches(&client, 150).await;
    // On the first there is room again, and this is sent on it.
    open.retain({
        let mut left = 75;
        move |_| {
            left -= i32::from(left > 0);
            left == 0
        }
    });
    let hasty = client.with_deadline(Duration::from_millis(300));
    let error = hasty.get::<Node>(Scope::Cluster, "slow").await.unwrap_err();
    assert!(matches!(error, ApiError::Timeout { .. }), "{error}");
    assert_eq!(connection(&client).await, "3");
    until_open(&server, 3).await;
    drop(open);
    until_open(&server, 1).await;
}

#[tokio::test]
async fn another_certificate_is_another_connection_for_all() {
    let wanted: Arc<Mutex<Vec<u8>>> = Arc::default();
    let shared = wanted.clone();
    let server = Server::start(Options::default(), move |seen| {
        if seen.certificate.as_ref() == Some(&*shared.lock().unwrap()) { serve(seen) } else { text(401, "") }
    })
    .await;
    let give = |(certificate, key): (Vec<u8>, Vec<u8>)| {
        for (name, label, der) in [("key", "PRIVATE KEY", &key), ("crt", "CERTIFICATE", &certificate)] {
            let new = server.file("new");
            std::fs::write(&new, pem(label, der)).unwrap();
            std::fs::rename(&new, server.file(name)).unwrap();
        }
        *wanted.lock().unwrap() = certificate;
    };
    let issue = || server.authority.issue("node", ExtendedKeyUsagePurpose::ClientAuth, false);
    give(issue());
    let client = server.client(CA, "client-certificate: crt, client-key: key");
    let open = watches(&client, 90).await;
    until_open(&server, 2).await;
    give(issue());
    assert_eq!(connection(&client).await, "3");
    until_open(&server, 3).await;
    drop(open);
    until_open(&server, 1).await;
    assert_eq!(connection(&client).await, "3");
}
