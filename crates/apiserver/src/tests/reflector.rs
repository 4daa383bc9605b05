use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::server::{Options, Server, json as answer, pieces, text};
use crate::{ApiError, Change, Reflected, reflect};

const PATIENCE: Duration = Duration::from_secs(40);

fn pod(name: &str, version: u32) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "resourceVersion": version.to_string() } })
}

fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({ "type": kind, "object": object }))
}

fn list(version: u32, pods: &[Value]) -> http::Response<super::server::Body> {
    answer(
        200,
        &json!({ "kind": "PodList", "apiVersion": "v1", "metadata": { "resourceVersion": version.to_string() }, "items": pods }),
    )
}

fn words(change: Change<Pod>) -> String {
    let name = |pod: &Pod| pod.metadata.name.clone().unwrap_or_default();
    match change {
        Change::Listed(list) => {
            format!("listed {}", list.items.iter().map(name).collect::<Vec<_>>().join(","))
        }
        Change::Unreadable(pod) => format!("unreadable {}", pod.name),
        Change::Applied(pod) => format!("applied {}", name(&pod)),
        Change::Deleted(pod) => format!("deleted {}", name(&pod)),
        Change::Interrupted(error) => format!("interrupted {}", error.status().unwrap_or(0)),
    }
}

/// The server fails at first, is watched, breaks off within an event, forgets old versions, and is listed again.
#[tokio::test]
async fn everything_is_told_once_and_in_order() {
    let (lists, watches) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (seen_lists, seen_watches) = (lists.clone(), watches.clone());
    let server = Server::start(Options::default(), move |seen| {
        let query = seen.request.uri().query().unwrap_or_default().to_owned();
        assert!(query.contains("fieldSelector=spec.nodeName%3Dn"), "{query}");
        if !query.contains("watch=true") {
            return match seen_lists.fetch_add(1, Ordering::SeqCst) {
                0 => text(503, "starting"),
                1 => {
                    assert!(query.contains("resourceVersion=4"), "never older than what was known: {query}");
                    list(10, &[pod("a", 5)])
                }
                _ => list(30, &[pod("b", 12), pod("d", 29)]),
            };
        }
        assert!(query.contains("allowWatchBookmarks=true") && query.contains("timeoutSeconds="), "{query}");
        match seen_watches.fetch_add(1, Ordering::SeqCst) {
            0 => {
                assert!(query.contains("resourceVersion=10"), "{query}");
                let added = event("ADDED", &pod("b", 11));
                let (half, rest) = added.split_at(20);
                let bookmark = event("BOOKMARK", &json!({ "kind": "Pod", "apiVersion": "v1", "metadata": { "resourceVersion": "15", "creationTimestamp": null } }));
                let all = vec![half.into(), rest.into(), event("MODIFIED", &pod("b", 12)) + &event("DELETED", &pod("a", 13)), bookmark];
                pieces(all, Duration::from_millis(50))
            }
            1 => {
                assert!(query.contains("resourceVersion=15"), "the bookmark counts: {query}");
                let gone = json!({ "kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired", "message": "too old" });
                pieces(vec![event("ADDED", &pod("c", 16)), event("ERROR", &gone)], Duration::ZERO)
            }
            2 => {
                assert!(query.contains("resourceVersion=30"), "{query}");
                // Broken off in the middle: what was not whole is not told.
                pieces(vec![event("DELETED", &pod("d", 31)), "{\"type\":\"ADD".into()], Duration::from_millis(50))
            }
            _ => {
                assert!(query.contains("resourceVersion=31"), "{query}");
                let mut strange = pod("s", 32);
                strange["spec"] = json!(7);
                pieces(vec![event("ADDED", &strange) + &event("ADDED", &pod("e", 33))], Duration::from_secs(600))
            }
        }
    })
    .await;
    let client = server.client("certificate-authority: ca.crt", "token: t");
    let (sender, mut receiver) = mpsc::channel(64);
    server.tasks.spawn("reflector", async move {
        let what = Reflected {
            namespace: None,
            fields: Some("spec.nodeName=n".into()),
            labels: None,
            since: Some("4".into()),
        };
        reflect::<Pod>(&client, &what, |change| sender.try_send(words(change)).unwrap()).await;
    });
    for expected in [
        "interrupted 503",
        "listed a",
        "applied b",
        "applied b",
        "deleted a",
        "applied c",
        "listed b,d",
        "deleted d",
        "unreadable s",
        "applied e",
    ] {
        let told = tokio::time::timeout(PATIENCE, receiver.recv()).await.unwrap().unwrap();
        assert_eq!(told, expected);
    }
    assert_eq!(lists.load(Ordering::SeqCst), 3);
}

type Answer = fn() -> http::Response<super::server::Body>;

/// Lists work, and watches do not, each in its way: what changes is heard of all the same.
#[tokio::test]
async fn who_cannot_watch_lists() {
    let rows: [(&str, Answer); 5] = [
        ("500", || text(500, "no")),
        ("400 to this version", || text(400, "no such version")),
        ("an error within the watch", || {
            let said =
                json!({ "kind": "Status", "apiVersion": "v1", "code": 500, "reason": "InternalError" });
            pieces(vec![event("ERROR", &said)], Duration::ZERO)
        }),
        ("an event that is none", || pieces(vec!["{\"type\":\"ADDED\"}\n".into()], Duration::ZERO)),
        ("watches that end at once", || pieces(Vec::new(), Duration::ZERO)),
    ];
    // Side by side: most of it is waiting.
    let mut all = tokio::task::JoinSet::new();
    for (name, refusal) in rows {
        all.spawn(hears_by_lists(name, refusal));
    }
    while let Some(done) = all.join_next().await {
        done.unwrap();
    }
}

async fn hears_by_lists(name: &str, refusal: Answer) {
    let lists = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&lists);
    let server = Server::start(Options::default(), move |request| {
        let query = request.request.uri().query().unwrap_or_default();
        if query.contains("watch=true") {
            return refusal();
        }
        let number = u32::try_from(seen.fetch_add(1, Ordering::SeqCst)).unwrap();
        list(10 + number, &[pod(&format!("p{number}"), 5)])
    })
    .await;
    let client = server.client("certificate-authority: ca.crt", "token: t");
    let (sender, mut receiver) = mpsc::channel(64);
    server.tasks.spawn("reflector", async move {
        let what = Reflected { namespace: None, fields: None, labels: None, since: None };
        reflect::<Pod>(&client, &what, |change| sender.try_send(words(change)).unwrap()).await;
    });
    let mut told = Vec::new();
    while told.len() < 2 {
        let next = tokio::time::timeout(PATIENCE, receiver.recv()).await;
        let next = next.unwrap_or_else(|_| panic!("{name}: nothing after {told:?}")).unwrap();
        told.extend(Some(next).filter(|word| word.starts_with("listed")));
    }
    assert_eq!(told, ["listed p0", "listed p1"], "{name}");
}

/// A gateway in its place: whatever it says, nothing is gone, neither by a list nor by a watch, and what is there is told when
/// the server is back.
#[tokio::test]
async fn what_a_gateway_says_is_no_list_of_nothing() {
    fn lies() -> [(&'static str, Value); 5] {
        let empty = |kind: &str| json!({ "kind": kind, "apiVersion": "v1", "metadata": { "resourceVersion": "12" }, "items": [] });
        let mut no_version = empty("PodList");
        no_version["metadata"] = json!({});
        [
            ("an empty object", json!({})),
            ("its health", json!({ "status": "UP" })),
            (
                "a Status",
                json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" }),
            ),
            ("another list", empty("NodeList")),
            ("no version", no_version),
        ]
    }
    async fn row(name: &'static str, lie: Value) {
        let lists = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&lists);
        let server = Server::start(Options::default(), move |request| {
            let query = request.request.uri().query().unwrap_or_default();
            if query.contains("watch=true") {
                return pieces(vec![event("DELETED", &lie)], Duration::ZERO);
            }
            match seen.fetch_add(1, Ordering::SeqCst) {
                0 => list(10, &[pod("a", 5)]),
                1 => answer(200, &lie),
                _ => list(13, &[pod("a", 5), pod("b", 13)]),
            }
        })
        .await;
        let client = server.client("certificate-authority: ca.crt", "token: t");
        let (sender, mut receiver) = mpsc::channel(64);
        server.tasks.spawn("reflector", async move {
            let what = Reflected { namespace: None, fields: None, labels: None, since: None };
            reflect::<Pod>(&client, &what, |change| sender.try_send(words(change)).unwrap()).await;
        });
        // The watch, and then the list.
        for expected in ["listed a", "interrupted 0", "interrupted 0", "listed a,b"] {
            let told = tokio::time::timeout(PATIENCE, receiver.recv()).await;
            let told = told.unwrap_or_else(|_| panic!("{name}: no {expected}")).unwrap();
            assert_eq!(told, expected, "{name}");
        }
    }
    let mut all = tokio::task::JoinSet::new();
    for (name, lie) in lies() {
        all.spawn(row(name, lie));
    }
    while let Some(done) = all.join_next().await {
        done.unwrap();
    }
}

/// A server that refuses the version that is asked for, also for lists, is asked for the newest.
#[tokio::test]
async fn a_version_that_is_refused_is_given_up() {
    let server = Server::start(Options::default(), |seen| {
        let query = seen.request.uri().query().unwrap_or_default();
        match query.contains("resourceVersion=7") {
            true => text(400, "what version?"),
            false if query.contains("watch=true") => pieces(Vec::new(), Duration::from_secs(600)),
            false => list(10, &[pod("a", 5)]),
        }
    })
    .await;
    let client = server.client("certificate-authority: ca.crt", "token: t");
    let (sender, mut receiver) = mpsc::channel(64);
    server.tasks.spawn("reflector", async move {
        let what = Reflected { namespace: None, fields: None, labels: None, since: Some("7".into()) };
        reflect::<Pod>(&client, &what, |change| sender.try_send(words(change)).unwrap()).await;
    });
    loop {
        let told = tokio::time::timeout(PATIENCE, receiver.recv()).await.unwrap().unwrap();
        if told == "listed a" {
            return;
        }
        assert_eq!(told, "interrupted 400");
    }
}

/// Nobody is there, or too many are: that says nothing of the version, and lists would be more of a load.
#[test]
fn what_says_nothing_of_the_version_is_asked_for_again() {
    let server = || "s".to_owned();
    let status = |status| ApiError::Status {
        request: server(),
        status,
        reason: String::new(),
        message: String::new(),
        retry_after: None,
    };
    let mut watching = crate::reflect::Watching::default();
    for _ in 0..10 {
        assert!(!watching.failed(&ApiError::Connect { server: server(), problem: server() }, "pods"));
        assert!(!watching.failed(&status(429), "pods"));
    }
    let broken = || ApiError::Broken { server: server(), request: server(), problem: server() };
    assert!(!watching.failed(&broken(), "pods"), "a watch that breaks is taken up where it broke");
    assert!(watching.failed(&broken(), "pods"), "but not for ever");
    assert!(!watching.failed(&broken(), "pods"), "and then again");
    watching.works();
    assert!(!watching.failed(&broken(), "pods"));
    assert!(watching.failed(&status(503), "pods"));
}
