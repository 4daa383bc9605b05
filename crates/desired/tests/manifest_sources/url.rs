//! Pods from a URL.

use std::{path::Path, sync::Arc, time::Duration};

use mainstay_desired::UrlSource;
use mainstay_task::TaskGroup;
use mainstay_types::{PodExt as _, PodSource};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::watch,
};

use crate::common::{Node, find, is_rejected, pod};

/// An HTTP server that answers with whatever it holds, and what it was asked.
struct Server {
    url: String,
    answer: watch::Sender<(u16, String)>,
    asked: watch::Receiver<String>,
}

async fn server(tasks: &TaskGroup, status: u16, body: &str) -> Server {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/pods", listener.local_addr().unwrap());
    let (answer, receiver) = watch::channel((status, body.to_owned()));
    let (asked_sender, asked) = watch::channel(String::new());
    let shutdown = tasks.shutdown();
    tasks.spawn("server", async move {
        while let Some(Ok((mut stream, _))) = shutdown.run_until_signalled(listener.accept()).await {
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap_or_default();
            asked_sender.send_replace(String::from_utf8_lossy(&request[..length]).into_owned());
            let (status, body) = receiver.borrow().clone();
            let answer = format!(
                "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            drop(stream.write_all(answer.as_bytes()).await);
        }
    });
    Server { url, answer, asked }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_from_a_url() {
    let servers = TaskGroup::new();
    let server = server(&servers, 500, "").await;
    let node = Node {
        url: Some(UrlSource {
            url: server.url.clone(),
            headers: vec![("X-Token".into(), "hunter2".into())],
            check_frequency: Duration::from_secs(1),
        }),
        ..Node::new()
    };
    assert!(!format!("{:?}", node.config()).contains("hunter2"));
    node.write("f.yaml", &pod("file", "b:1"));
    let running = node.start();
    // Files are not held up, but nothing counts as complete before the URL has answered.
    let state = running
        .wait("the file", |state| find(state, "file-node-1").is_some() && state.verdicts.len() == 2)
        .await;
    assert!(!state.synced);

    server.answer.send_replace((200, format!("{}---\n{}", pod("one", "b:1"), pod("two", "b:1"))));
    let state = running.synced().await;
    assert!(server.asked.borrow().to_lowercase().contains("x-token: hunter2"));
    let one = find(&state, "one-node-1").unwrap();
    assert_eq!((one.source, &*one.origin), (PodSource::Http, server.url.as_str()));
    assert_eq!(one.pod.spec_ref().tolerations, None);

    // An error keeps what was there, across a restart too.
    server.answer.send_replace((404, String::new()));
    running.wait("the error", |state| is_rejected(state, Path::new(&server.url), true)).await;
    running.stop().await;
    let running = node.start();
    // What it said last counts until it says something else: nothing waits for it.
    let state = running.synced().await;
    assert!(state.is_whole());
    let again = find(&state, "one-node-1").unwrap();
    assert_eq!(again, one);
    assert!(find(&state, "two-node-1").is_some());

    server.answer.send_replace((200, pod("one", "b:1")));
    let state = running.wait("the removal", |state| find(state, "two-node-1").is_none()).await;
    assert!(Arc::ptr_eq(&again, &state.pods[&again.uid]));

    // An empty list is a deletion.
    server.answer.send_replace((200, r#"{"apiVersion":"v1","kind":"PodList","items":[]}"#.into()));
    running.wait("the deletion", |state| find(state, "one-node-1").is_none()).await;
    running.stop().await;
    servers.drain(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_url_that_never_answers_is_not_waited_for_without_end() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/pods", listener.local_addr().unwrap());
    let source = UrlSource { url: url.clone(), headers: Vec::new(), check_frequency: Duration::from_secs(1) };
    let node = Node { url: Some(source), ..Node::new() };
    node.write("f.yaml", &pod("file", "b:1"));
    let mut running = node.start();
    running.pod("file-node-1").await;
    assert!(!running.desired.borrow().synced);
    let mut desired = running.desired.clone();
    let waited = desired.wait_for(|state| state.synced);
    let state = Arc::clone(&tokio::time::timeout(crate::common::PATIENCE, waited).await.unwrap().unwrap());
    assert!(!state.is_whole() && state.awaits(PodSource::Http) && !state.awaits(PodSource::File));
    assert_eq!(state.awaited[0].name, format!("staticPodURL {url}"));
    let told = running.told();
    let event = told.iter().find(|event| event.reason == "SourceNotDelivered").unwrap();
    assert!(
        event.message.starts_with(&format!("staticPodURL {url} has not delivered within 15 s")),
        "{event:?}"
    );
    running.stop().await;
}
