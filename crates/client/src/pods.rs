//! `mainstay pods`.

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use mainstay_types::{LabelSelector, PodExt, annotations};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    age::age,
    args::{ListFormat, PodsArgs, StructuredFormat},
    connection::{Connection, Stream},
    error::ClientError,
    node,
    output::Output,
    select::{Item, Named, all_pods, label_selector},
    status::summary,
    text::Table,
};

/// Which pods are shown, and how.
struct Listing {
    names: Vec<Named>,
    namespace: Option<String>,
    selector: LabelSelector,
    format: ListFormat,
    with_headers: bool,
    table: Table,
    /// The pods of a watch as they were last shown, by UID.
    known: HashMap<String, Item>,
}

/// Rows of a watch come one by one: what a pod may get into keeps its column, such as `Init:CrashLoopBackOff`.
const WATCH_ROOM: &[(&str, usize)] =
    &[("NAME", 24), ("STATUS", 21), ("RESTARTS", 15), ("AGE", 5), ("IP", 15)];
const WATCH: &str = "/pods?watch=true";

#[derive(Deserialize)]
struct WatchEvent {
    r#type: String,
    object: Value,
}

pub(crate) async fn run(args: PodsArgs, output: &mut Output) -> Result<(), ClientError> {
    let connection = Connection::new(&args.connect)?;
    let mut listing = Listing::new(&args)?;
    node::note_runtime_away(&connection, output).await;
    if args.watch {
        return listing.watch(&connection, output).await;
    }
    let pods = all_pods(&connection).await?;
    if listing.names.is_empty() {
        let shown: Vec<&Item> = pods.iter().filter(|item| listing.shows(item)).collect();
        return listing.list(&shown, output);
    }
    let mut shown = Vec::new();
    for name in &listing.names {
        shown.push(name.find(&pods)?);
    }
    shown.retain(|item| listing.selector.matches(item.pod.metadata.labels.as_ref()));
    if let ([one], Some(format)) = (shown.as_slice(), listing.structured()) {
        return output.data(&one.whole_object(), format);
    }
    listing.list(&shown, output)
}

impl Listing {
    fn new(args: &PodsArgs) -> Result<Self, ClientError> {
        let names = args.names.iter().map(|name| Named::parse(name, args.namespace.as_deref()));
        let mut headers = vec!["NAME", "READY", "STATUS", "RESTARTS", "AGE"];
        if args.namespace.is_none() {
            headers.insert(0, "NAMESPACE");
        }
        if args.output == ListFormat::Wide {
            headers.extend(["IP", "NODE", "NOMINATED NODE", "READINESS GATES"]);
        }
        Ok(Self {
            names: names.collect(),
            namespace: args.namespace.clone(),
            selector: args.selector.as_deref().map(label_selector).transpose()?.unwrap_or_default(),
            format: args.output,
            with_headers: !args.no_headers,
            table: Table::new(headers).with_room(if args.watch { WATCH_ROOM } else { &[] }),
            known: HashMap::new(),
        })
    }

    fn structured(&self) -> Option<StructuredFormat> {
        match self.format {
            ListFormat::Json => Some(StructuredFormat::Json),
            ListFormat::Yaml => Some(StructuredFormat::Yaml),
            ListFormat::Table | ListFormat::Wide | ListFormat::Name => None,
        }
    }

    fn shows(&self, item: &Item) -> bool {
        self.namespace.as_deref().is_none_or(|namespace| namespace == item.pod.namespace_ref())
            && (self.names.is_empty() || self.names.iter().any(|name| name.matches(item)))
            && self.selector.matches(item.pod.metadata.labels.as_ref())
    }

    fn list(&mut self, pods: &[&Item], output: &mut Output) -> Result<(), ClientError> {
        if let Some(format) = self.structured() {
            let items: Vec<_> = pods.iter().map(|item| item.whole_object()).collect();
            let list = json!({"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}});
            return output.data(&list, format);
        }
        if pods.is_empty() {
            match &self.namespace {
                Some(namespace) => output.note(&format!("No resources found in {namespace} namespace.")),
                None => output.note("No resources found"),
            }
            return Ok(());
        }
        if self.format == ListFormat::Name {
            return pods.iter().try_for_each(|item| output.text(&format!("pod/{}\n", item.pod.name_ref())));
        }
        let now = Timestamp::now();
        let rows: Vec<Vec<String>> = pods.iter().map(|item| self.row(&item.pod, now)).collect();
        output.text(&self.table.render(&rows, self.with_headers))
    }

    async fn watch(&mut self, connection: &Connection, output: &mut Output) -> Result<(), ClientError> {
        let mut stream = connection.watch(WATCH, output).await?;
        self.begin_watch(&mut stream, true, output).await?;
        loop {
            let Err(error) = self.follow(&mut stream, output).await;
            stream = connection.again(WATCH, error, output).await?;
            match self.begin_watch(&mut stream, false, output).await {
                Err(error) if !error.is_passing() => return Err(error),
                // If it has gone again, the next line says so.
                _ => {}
            }
        }
    }

    /// Reads the pods that there are. After a break only those that are not as they were are shown.
    async fn begin_watch(
        &mut self,
        stream: &mut Stream,
        is_first: bool,
        output: &mut Output,
    ) -> Result<(), ClientError> {
        let mut initial = Vec::new();
        loop {
            let WatchEvent { r#type, object } = stream.line().await?.ok_or(ClientError::WatchEnded)?;
            if r#type == "BOOKMARK" {
                break;
            }
            let pod: Item = read(object)?;
            if self.shows(&pod) {
                initial.push(pod);
            }
        }
        if is_first && self.structured().is_none() && self.format != ListFormat::Name {
            let now = Timestamp::now();
            let rows: Vec<Vec<String>> = initial.iter().map(|item| self.row(&item.pod, now)).collect();
            output.text(&self.table.render(&rows, self.with_headers))?;
            self.known = initial.into_iter().map(|item| (item.pod.uid_ref().to_owned(), item)).collect();
            return output.flush();
        }
        let mut gone = std::mem::take(&mut self.known);
        for item in initial {
            let before = gone.remove(item.pod.uid_ref());
            if before.is_none_or(|before| before.value != item.value) {
                self.change(&item, output)?;
            }
            self.known.insert(item.pod.uid_ref().to_owned(), item);
        }
        gone.values().for_each(|item| output.note(&format!("pod {} is gone", item.full_name())));
        Ok(())
    }

    /// Shows each change until the stream ends.
    async fn follow(
        &mut self,
        stream: &mut Stream,
        output: &mut Output,
    ) -> Result<std::convert::Infallible, ClientError> {
        loop {
            let WatchEvent { r#type, object } = stream.line().await?.ok_or(ClientError::WatchEnded)?;
            if r#type == "BOOKMARK" {
                continue;
            }
            let pod: Item = read(object)?;
            if !self.shows(&pod) {
                continue;
            }
            self.change(&pod, output)?;
            let uid = pod.pod.uid_ref().to_owned();
            if r#type == "DELETED" {
                self.known.remove(&uid);
            } else {
                self.known.insert(uid, pod);
            }
        }
    }

    fn change(&mut self, item: &Item, output: &mut Output) -> Result<(), ClientError> {
        match self.format {
            ListFormat::Json => output.data(&item.whole_object(), StructuredFormat::Json)?,
            ListFormat::Yaml => {
                output.text("---\n")?;
                output.data(&item.whole_object(), StructuredFormat::Yaml)?;
            }
            ListFormat::Name => output.text(&format!("pod/{}\n", item.pod.name_ref()))?,
            ListFormat::Table | ListFormat::Wide => {
                let row = self.row(&item.pod, Timestamp::now());
                output.text(&self.table.row(&row))?;
            }
        }
        output.flush()
    }

    fn row(&self, pod: &Pod, now: Timestamp) -> Vec<String> {
        let summary = summary(pod);
        let mut row = Vec::with_capacity(10);
        if self.namespace.is_none() {
            row.push(pod.namespace_ref().to_owned());
        }
        row.extend([
            pod.name_ref().to_owned(),
            summary.ready(),
            summary.status.clone(),
            summary.restarts(now),
            age(begun(pod), now),
        ]);
        if self.format == ListFormat::Wide {
            row.extend(wide(pod));
        }
        row
    }
}

fn read(object: Value) -> Result<Item, ClientError> {
    // From bytes, as everything else is read: the code that reads a pod is large, and there once.
    serde_json::to_vec(&object)
        .and_then(|bytes| serde_json::from_slice(&bytes))
        .map_err(|source| ClientError::Unreadable { request: WATCH.to_owned(), source })
}

/// When the pod came to be. Static pods that no API server knows have no creation time: then since when it was seen.
pub(crate) fn begun(pod: &Pod) -> Option<Timestamp> {
    let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let started = || pod.status.as_ref()?.start_time.as_ref().map(|time| time.0);
    let seen = || pod.annotation(annotations::CONFIG_SEEN)?.parse().ok();
    created.or_else(started).or_else(seen)
}

fn wide(pod: &Pod) -> [String; 4] {
    let none = || "<none>".to_owned();
    let text = |value: Option<&String>| value.filter(|value| !value.is_empty()).cloned().unwrap_or_else(none);
    let status = pod.status.as_ref();
    let gates = pod.spec_ref().readiness_gates.as_deref().unwrap_or_default();
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let passed = gates.iter().filter(|gate| {
        conditions
            .iter()
            .any(|condition| condition.type_ == gate.condition_type && condition.status == "True")
    });
    let primary = status.and_then(|status| status.pod_ips.as_ref()?.first());
    let ip = primary.map(|ip| &ip.ip).or_else(|| status.and_then(|status| status.pod_ip.as_ref()));
    [
        text(ip),
        text(pod.spec_ref().node_name.as_ref()),
        text(status.and_then(|status| status.nominated_node_name.as_ref())),
        if gates.is_empty() { none() } else { format!("{}/{}", passed.count(), gates.len()) },
    ]
}
