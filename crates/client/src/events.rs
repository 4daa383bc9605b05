//! `mainstay events`.

use jiff::Timestamp;
use mainstay_types::EventRecord;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    age::age,
    args::{EventsArgs, StructuredFormat},
    connection::{Connection, escaped},
    error::ClientError,
    output::Output,
    select::{Named, all_pods},
    text::Table,
};

/// The answer of the event store.
#[derive(Deserialize)]
pub(crate) struct EventList {
    pub(crate) items: Vec<EventRecord>,
}

#[derive(Deserialize)]
struct WatchEvent {
    r#type: String,
    object: Value,
}

pub(crate) async fn run(args: EventsArgs, output: &mut Output) -> Result<(), ClientError> {
    let connection = Connection::new(&args.connect);
    let mut parts = Vec::new();
    if let Some(pod) = &args.pod {
        let name = pod_name(&connection, pod, args.namespace.as_deref()).await?;
        parts.push(format!("pod={}", escaped(&name)));
    }
    let shows = |record: &EventRecord| {
        args.namespace.as_deref().is_none_or(|namespace| namespace == record.namespace)
    };
    let mut headers = vec!["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"];
    if args.namespace.is_none() {
        headers.insert(0, "NAMESPACE");
    }
    let mut table = Table::new(headers);
    if !args.watch {
        let list: EventList = connection.json(&request(&parts)).await?;
        let records: Vec<&EventRecord> = list.items.iter().filter(|record| shows(record)).collect();
        if let Some(format) = args.output {
            return output.data(&json!({"items": records}), format);
        }
        if records.is_empty() {
            output.note("No events found");
            return Ok(());
        }
        let now = Timestamp::now();
        let rows: Vec<Vec<String>> = records.iter().map(|record| row(record, &args, now)).collect();
        return output.text(&table.render(&rows, !args.no_headers));
    }

    parts.push("watch=true".to_owned());
    let mut stream = connection.stream(&request(&parts)).await?;
    let mut initial = Vec::new();
    let mut is_initial = true;
    while let Some(event) = stream.line::<WatchEvent>().await? {
        if event.r#type == "BOOKMARK" {
            if std::mem::take(&mut is_initial) && args.output.is_none() {
                output.text(&table.render(&initial, !args.no_headers))?;
                output.flush()?;
            }
            continue;
        }
        let record: EventRecord = serde_json::from_value(event.object)
            .map_err(|source| ClientError::Unreadable { request: request(&parts), source })?;
        if !shows(&record) {
            continue;
        }
        match args.output {
            Some(StructuredFormat::Json) => output.text(&format!("{}\n", json!(record)))?,
            Some(StructuredFormat::Yaml) => {
                output.text("---\n")?;
                output.data(&record, StructuredFormat::Yaml)?;
            }
            None if is_initial => initial.push(row(&record, &args, Timestamp::now())),
            None => output.text(&table.row(&row(&record, &args, Timestamp::now())))?,
        }
        output.flush()?;
    }
    Err(ClientError::WatchEnded)
}

/// The full name of the pod. One that is gone may still have events, so that a full name need not be of a pod that exists.
async fn pod_name(
    connection: &Connection,
    given: &str,
    namespace: Option<&str>,
) -> Result<String, ClientError> {
    let pods = all_pods(connection).await?;
    match (Named::parse(given, namespace).find(&pods), given.split_once('/'), namespace) {
        (Ok(item), _, _) => Ok(item.full_name()),
        (Err(ClientError::NoSuchPod { .. }), Some(_), _) => Ok(given.to_owned()),
        (Err(ClientError::NoSuchPod { .. }), None, Some(namespace)) => Ok(format!("{namespace}/{given}")),
        (Err(error), _, _) => Err(error),
    }
}

fn request(parts: &[String]) -> String {
    if parts.is_empty() {
        "/mainstay/v1/events".to_owned()
    } else {
        format!("/mainstay/v1/events?{}", parts.join("&"))
    }
}

fn row(record: &EventRecord, args: &EventsArgs, now: Timestamp) -> Vec<String> {
    let mut row = Vec::with_capacity(6);
    if args.namespace.is_none() {
        row.push(if record.namespace.is_empty() { "<none>".to_owned() } else { record.namespace.clone() });
    }
    row.extend([
        last_seen(record, now),
        record.kind.clone(),
        record.reason.clone(),
        format!("{}/{}", record.object_kind.to_lowercase(), record.name),
        one_line(&record.message),
    ]);
    row
}

/// `5s (x3 over 2m)`.
pub(crate) fn last_seen(record: &EventRecord, now: Timestamp) -> String {
    let last = age(Some(record.last_timestamp), now);
    if record.count > 1 {
        format!("{last} (x{} over {})", record.count, age(Some(record.first_timestamp), now))
    } else {
        last
    }
}

/// A message without its line breaks, which would break the table.
pub(crate) fn one_line(message: &str) -> String {
    message.trim().replace(['\n', '\r'], " ")
}
