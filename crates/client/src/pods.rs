//! `mainstay pods`.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use mainstay_types::{PodExt, annotations};
use serde::Deserialize;
use serde_json::json;

use crate::{
    age::age,
    args::{ListFormat, PodsArgs, StructuredFormat},
    connection::Connection,
    error::ClientError,
    output::Output,
    select::{Item, LabelSelector, Named, all_pods},
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
}

#[derive(Deserialize)]
struct WatchEvent {
    r#type: String,
    object: Item,
}

pub(crate) async fn run(args: PodsArgs, output: &mut Output) -> Result<(), ClientError> {
    let connection = Connection::new(&args.connect);
    let mut listing = Listing::new(&args)?;
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
    shown.retain(|item| listing.selector.matches(&item.pod));
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
            selector: args.selector.as_deref().map_or(Ok(LabelSelector::default()), LabelSelector::parse)?,
            format: args.output,
            with_headers: !args.no_headers,
            table: Table::new(headers),
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
            && self.selector.matches(&item.pod)
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
        let mut stream = connection.stream("/pods?watch=true").await?;
        let mut initial = Vec::new();
        let mut is_initial = true;
        while let Some(WatchEvent { r#type, object }) = stream.line().await? {
            if r#type == "BOOKMARK" {
                if is_initial {
                    is_initial = false;
                    self.begin_watch(&initial, output)?;
                }
                continue;
            }
            if !self.shows(&object) {
                continue;
            }
            if is_initial {
                initial.push(object);
            } else {
                self.change(&object, output)?;
            }
        }
        Err(ClientError::WatchEnded)
    }

    fn begin_watch(&mut self, initial: &[Item], output: &mut Output) -> Result<(), ClientError> {
        if self.structured().is_some() || self.format == ListFormat::Name {
            initial.iter().try_for_each(|item| self.change(item, output))?;
        } else {
            let now = Timestamp::now();
            let rows: Vec<Vec<String>> = initial.iter().map(|item| self.row(&item.pod, now)).collect();
            output.text(&self.table.render(&rows, self.with_headers))?;
        }
        output.flush()
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
