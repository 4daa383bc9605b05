//! Events: what happened on this node, told to the API server. Equal ones are counted there too.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use mainstay_apiserver::{ApiError, Client, Patch, Rate, Scope};
use mainstay_snapshot::{EventFilter, EventReader};
use mainstay_task::Backoff;
use mainstay_types::{EventRecord, to_seconds};
use serde_json::json;
use tokio::time::Instant;
use tracing::debug;

use crate::{RegisteredNode, UplinkConfig, registered};

const COMPONENT: &str = "kubelet";
const RETRY: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(30)).with_jitter(0.5);
/// How often one event is tried while the API server is away: news that is so old is no news.
const TRIES: u32 = 12;
/// One object's events: so many at once, and one more each five minutes (client-go's spam filter).
const OBJECT_BURST: f64 = 25.0;
const OBJECT_REFILL: Duration = Duration::from_secs(300);
/// How many events are remembered by the name they have in the API server, and how many objects are counted.
const REMEMBERED: usize = 1024;

/// An event in the API server.
#[derive(Clone, Debug)]
struct Known {
    name: String,
    count: u32,
}

/// What makes two records the same event.
type Key = (String, String, String, String, Option<String>);

/// Tells of everything above a sequence, for ever.
pub(crate) async fn run(
    config: Arc<UplinkConfig>,
    events: EventReader,
    mut after: u64,
    mut node: RegisteredNode,
) {
    // Whom they are about, and where they go, must be there first.
    let node = registered(&mut node).await;
    let client =
        config.client.with_rate(config.event_rate.unwrap_or(Rate { per_second: 100_000, burst: 100_000 }));
    let mut teller = Teller {
        client,
        node_name: Arc::clone(&config.node_name),
        node_uid: node.metadata.uid.clone().unwrap_or_default(),
        known: HashMap::new(),
        order: VecDeque::new(),
        buckets: HashMap::new(),
    };
    loop {
        for record in events.since(after, &EventFilter::default()) {
            after = after.max(record.sequence);
            teller.tell(&record).await;
        }
        events.wait_past(after).await;
    }
}

struct Teller {
    client: Client,
    node_name: Arc<str>,
    node_uid: String,
    known: HashMap<Key, Known>,
    order: VecDeque<Key>,
    /// What each object may still say, and when that was so.
    buckets: HashMap<String, (f64, Instant)>,
}

impl Teller {
    async fn tell(&mut self, record: &EventRecord) {
        if !self.may_say(&record.uid, Instant::now()) {
            return;
        }
        let mut attempts = RETRY.attempts();
        loop {
            match self.send(record).await {
                Ok(()) => return,
                Err(error) if error.is_transient() && attempts.failures() < TRIES => {
                    tokio::time::sleep(attempts.failed()).await;
                }
                Err(error) => {
                    debug!(%error, reason = record.reason, "an event is not taken");
                    return;
                }
            }
        }
    }

    /// Whether one more event of this object is to be told.
    fn may_say(&mut self, uid: &str, now: Instant) -> bool {
        if self.buckets.len() > REMEMBERED {
            let full = |(left, at): &(f64, Instant)| *left + refill(now - *at) >= OBJECT_BURST;
            self.buckets.retain(|_, bucket| !full(bucket));
        }
        let (left, at) = self.buckets.get(uid).copied().unwrap_or((OBJECT_BURST, now));
        let left = (left + refill(now - at)).min(OBJECT_BURST);
        let may = left >= 1.0;
        self.buckets.insert(uid.to_owned(), (if may { left - 1.0 } else { left }, now));
        may
    }

    async fn send(&mut self, record: &EventRecord) -> Result<(), ApiError> {
        let namespace = if record.namespace.is_empty() { "default" } else { &record.namespace };
        let scope = Scope::Namespace(namespace);
        let key = (
            record.namespace.clone(),
            format!("{}/{}", record.name, record.uid),
            format!("{}/{}", record.kind, record.reason),
            record.message.clone(),
            record.field_path.clone(),
        );
        if let Some(known) = self.known.get(&key).filter(|known| known.count < record.count) {
            let patch = json!({
                "count": record.count,
                "lastTimestamp": Time(to_seconds(record.last_timestamp)),
            });
            let patched = self.client.patch::<Event>(scope, (&known.name, None), &Patch::Merge(patch)).await;
            match patched {
                Ok(_) => {
                    if let Some(known) = self.known.get_mut(&key) {
                        known.count = record.count;
                    }
                    return Ok(());
                }
                // They live for an hour only.
                Err(error) if error.status() == Some(404) => {}
                Err(error) => return Err(error),
            }
        }
        let name = format!("{}.{:x}", record.name, Timestamp::now().as_nanosecond());
        self.client.create(scope, &self.event(record, &name, namespace)).await?;
        if self.known.insert(key.clone(), Known { name, count: record.count }).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.known.remove(&oldest);
            }
        }
        Ok(())
    }

    fn event(&self, record: &EventRecord, name: &str, namespace: &str) -> Event {
        let is_node = record.object_kind == "Node";
        let time = |time: Timestamp| Some(Time(to_seconds(time)));
        Event {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some(record.object_kind.clone()),
                namespace: (!is_node).then(|| record.namespace.clone()),
                name: Some(record.name.clone()),
                uid: Some(if is_node { self.node_uid.clone() } else { record.uid.clone() }),
                field_path: record.field_path.clone(),
                ..ObjectReference::default()
            },
            type_: Some(record.kind.clone()),
            reason: Some(record.reason.clone()),
            message: Some(record.message.chars().take(1024).collect()),
            count: i32::try_from(record.count).ok(),
            first_timestamp: time(record.first_timestamp),
            last_timestamp: time(record.last_timestamp),
            source: Some(EventSource {
                component: Some(COMPONENT.to_owned()),
                host: Some(self.node_name.to_string()),
            }),
            reporting_component: Some(COMPONENT.to_owned()),
            reporting_instance: Some(self.node_name.to_string()),
            ..Event::default()
        }
    }
}

fn refill(time: Duration) -> f64 {
    time.as_secs_f64() / OBJECT_REFILL.as_secs_f64()
}
