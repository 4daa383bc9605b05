//! `mainstay events`.

use std::{
    collections::HashSet,
    convert::Infallible,
    hash::{DefaultHasher, Hash, Hasher},
};

use jiff::Timestamp;
use mainstay_types::{EventRecord, to_seconds};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    age::age,
    args::{EventsArgs, StructuredFormat},
    connection::{Connection, Stream, escaped},
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
    let connection = Connection::new(&args.connect)?;
    let mut parts = Vec::new();
    if let Some(pod) = &args.pod {
        let name = pod_name(&connection, pod, args.namespace.as_deref()).await?;
        parts.push(format!("pod={}", escaped(&name)));
    }
    // Ages in lines that stay on the screen would soon be wrong.
    let mut headers =
        vec![if args.watch { "TIME" } else { "LAST SEEN" }, "TYPE", "REASON", "OBJECT", "MESSAGE"];
    if args.namespace.is_none() {
        headers.insert(0, "NAMESPACE");
    }
    let room: &[_] = if args.watch { &[("TYPE", 7), ("REASON", 22), ("OBJECT", 24)] } else { &[] };
    let mut table = Table::new(headers).with_room(room);
    if !args.watch {
        let list: EventList = connection.json(&request(&parts)).await?;
        let records: Vec<&EventRecord> = list.items.iter().filter(|record| shows(&args, record)).collect();
        if let Some(format) = args.output {
            return output.data(&json!({"items": records}), format);
        }
        if records.is_empty() {
            output.note("No events found");
            return Ok(());
        }
        let now = Timestamp::now();
        let rows: Vec<Vec<String>> =
            records.iter().map(|record| row(record, &args, last_seen(record, now))).collect();
        return output.text(&table.render(&rows, !args.no_headers));
    }

    parts.push("watch=true".to_owned());
    let request = request(&parts);
    let mut stream = connection.watch(&request, output).await?;
    let mut watch = Watch { args: &args, table, is_begun: false, shown: HashSet::new() };
    loop {
        let Err(error) = watch.follow(&mut stream, &request, output).await;
        stream = connection.again(&request, error, output).await?;
    }
}

/// A watch, which may go over several lives of mainstay.
struct Watch<'a> {
    args: &'a EventsArgs,
    table: Table,
    is_begun: bool,
    /// What was shown. Numbers say nothing here: mainstay may have lost its last events, and given theirs to others.
    shown: HashSet<u64>,
}

impl Watch<'_> {
    /// Shows events until the stream ends.
    async fn follow(
        &mut self,
        stream: &mut Stream,
        request: &str,
        output: &mut Output,
    ) -> Result<Infallible, ClientError> {
        let mut initial = Vec::new();
        let mut is_initial = true;
        loop {
            let event: WatchEvent = stream.line().await?.ok_or(ClientError::WatchEnded)?;
            if event.r#type == "BOOKMARK" {
                if std::mem::take(&mut is_initial) && self.args.output.is_none() {
                    let with_headers = !self.args.no_headers && !std::mem::replace(&mut self.is_begun, true);
                    output.text(&self.table.render(&std::mem::take(&mut initial), with_headers))?;
                    output.flush()?;
                }
                continue;
            }
            let record: EventRecord = serde_json::from_value(event.object)
                .map_err(|source| ClientError::Unreadable { request: request.to_owned(), source })?;
            if !shows(self.args, &record) || !self.is_news(&record) {
                continue;
            }
            match self.args.output {
                Some(StructuredFormat::Json) => output.text(&format!("{}\n", json!(record)))?,
                Some(StructuredFormat::Yaml) => {
                    output.text("---\n")?;
                    output.data(&record, StructuredFormat::Yaml)?;
                }
                None if is_initial => initial.push(row(&record, self.args, seen_at(&record))),
                None => output.text(&self.table.row(&row(&record, self.args, seen_at(&record))))?,
            }
            output.flush()?;
        }
    }

    fn is_news(&mut self, record: &EventRecord) -> bool {
        // Far more than mainstay keeps; an old event that comes again is better than a list that only grows.
        if self.shown.len() > 16 * 1024 {
            self.shown.clear();
        }
        let mut hasher = DefaultHasher::new();
        let what = (&record.uid, &record.name, &record.reason, &record.message, record.count);
        (what, record.last_timestamp).hash(&mut hasher);
        self.shown.insert(hasher.finish())
    }
}

fn shows(args: &EventsArgs, record: &EventRecord) -> bool {
    args.namespace.as_deref().is_none_or(|namespace| namespace == record.namespace)
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

fn row(record: &EventRecord, args: &EventsArgs, time: String) -> Vec<String> {
    let mut row = Vec::with_capacity(6);
    if args.namespace.is_none() {
        row.push(if record.namespace.is_empty() { "<none>".to_owned() } else { record.namespace.clone() });
    }
    row.extend([time, record.kind.clone(), record.reason.clone(), object(record), one_line(&record.message)]);
    row
}

/// `pod/web-node1`, or `pod/web-node1{main}` where it is about one container.
fn object(record: &EventRecord) -> String {
    let of = container(record).map(|name| format!("{{{name}}}")).unwrap_or_default();
    format!("{}/{}{of}", record.object_kind.to_lowercase(), record.name)
}

/// The container that an event is about: `main` of `spec.containers{main}`.
pub(crate) fn container(record: &EventRecord) -> Option<&str> {
    record.field_path.as_deref()?.split_once('{')?.1.strip_suffix('}')
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

/// `2026-11-15T09:57:24Z (x3)`.
fn seen_at(record: &EventRecord) -> String {
    let time = to_seconds(record.last_timestamp);
    if record.count > 1 { format!("{time} (x{})", record.count) } else { time.to_string() }
}

/// A message without its line breaks, which would break the table.
pub(crate) fn one_line(message: &str) -> String {
    message.trim().replace(['\n', '\r'], " ")
}
