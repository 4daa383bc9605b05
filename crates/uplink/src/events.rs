//! Events: what happened on this node, told to the API server. Equal ones are counted there too.

mod correlate;

use std::{sync::Arc, time::Duration};

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

use self::correlate::{Correlator, Telling};
use crate::{RegisteredNode, UplinkConfig, registered};

/// What the name of an object may have of characters.
const LONGEST_NAME: usize = 253;
const COMPONENT: &str = "kubelet";
const RETRY: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(30)).with_jitter(0.5);
/// How often one event is tried while the API server is away: news that is so old is no news.
const TRIES: u32 = 12;

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
    let teller = Teller {
        client,
        node_name: Arc::clone(&config.node_name),
        node_uid: node.metadata.uid.clone().unwrap_or_default(),
    };
    let mut correlator = Correlator::default();
    loop {
        for record in events.since(after, &EventFilter::default()) {
            after = after.max(record.sequence);
            let Some(telling) = correlator.judge(&record, Instant::now()) else { continue };
            if let Some(name) = teller.tell(&record, &telling).await {
                correlator.told(telling, name);
            }
        }
        events.wait_past(after).await;
    }
}

struct Teller {
    client: Client,
    node_name: Arc<str>,
    node_uid: String,
}

impl Teller {
    /// The name that it has in the API server, if that takes it.
    async fn tell(&self, record: &EventRecord, telling: &Telling) -> Option<String> {
        let mut attempts = RETRY.attempts();
        loop {
            match self.send(record, telling).await {
                Ok(name) => return Some(name),
                Err(error) if error.is_transient() && attempts.failures() < TRIES => {
                    tokio::time::sleep(attempts.failed()).await;
                }
                Err(error) => {
                    debug!(%error, reason = record.reason, "an event is not taken");
                    return None;
                }
            }
        }
    }

    async fn send(&self, record: &EventRecord, telling: &Telling) -> Result<String, ApiError> {
        let namespace = if record.namespace.is_empty() { "default" } else { &record.namespace };
        let scope = Scope::Namespace(namespace);
        if let Some(known) = &telling.known {
            let mut patch = json!({
                "count": telling.count,
                "lastTimestamp": Time(to_seconds(record.last_timestamp)),
            });
            if telling.combined {
                patch["message"] = json!(telling.message);
            }
            match self.client.patch::<Event>(scope, (known, None), &Patch::Merge(patch)).await {
                Ok(_) => return Ok(known.clone()),
                // They live for an hour only.
                Err(error) if error.status() == Some(404) => {}
                Err(error) => return Err(error),
            }
        }
        let name = event_name(&record.name, Timestamp::now());
        self.client.create(scope, &self.event(record, telling, &name, namespace)).await?;
        Ok(name)
    }

    fn event(&self, record: &EventRecord, telling: &Telling, name: &str, namespace: &str) -> Event {
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
            message: Some(telling.message.clone()),
            count: i32::try_from(telling.count).ok(),
            // Combined ones begin with the first of those that are told within others.
            first_timestamp: time(if telling.combined {
                record.last_timestamp
            } else {
                record.first_timestamp
            }),
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

/// The object's name and the time, as client-go has it; of a long name as much as there is room for. Where client-go would take a UUID
/// instead, one still sees whose it is.
fn event_name(object: &str, time: Timestamp) -> String {
    let time = format!(".{:x}", time.as_nanosecond());
    let short: String = object.chars().take(LONGEST_NAME - time.len()).collect();
    // Parts of a name end with a letter or a digit.
    format!("{}{time}", short.trim_end_matches(['.', '-']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_objects_with_long_names_have_names_that_are_taken() {
        let time: Timestamp = "2026-11-19T12:00:00Z".parse().unwrap();
        let suffix = format!(".{:x}", time.as_nanosecond());
        let long = "a".repeat(235);
        for (name, expected) in [
            ("web-0".to_owned(), "web-0".to_owned()),
            ("a".repeat(236), "a".repeat(236)),
            ("a".repeat(253), "a".repeat(236)),
            (format!("{long}.{long}"), long.clone()),
            (format!("{long}--b"), long.clone()),
        ] {
            let found = event_name(&name, time);
            assert_eq!(found, format!("{expected}{suffix}"), "{name}");
            assert!(found.len() <= LONGEST_NAME, "{found}");
        }
    }
}
