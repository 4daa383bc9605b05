//! `mainstay manifests`.

use jiff::Timestamp;
use mainstay_types::{FileVerdict, Ruling};
use serde::{Deserialize, Serialize};

use crate::{
    age::age, args::ManifestsArgs, connection::Connection, error::ClientError, output::Output, text::Table,
};

/// What became of each file, and which pod came from where.
#[derive(Deserialize, Serialize)]
pub(crate) struct Manifests {
    pub(crate) synced: bool,
    #[serde(default)]
    pub(crate) awaited: Vec<Awaited>,
    pub(crate) items: Vec<FileVerdict>,
    pub(crate) pods: Vec<Origin>,
}

/// A source that has not delivered.
#[derive(Deserialize, Serialize)]
pub(crate) struct Awaited {
    pub(crate) source: String,
    pub(crate) name: String,
}

/// Where a pod came from.
#[derive(Deserialize, Serialize)]
pub(crate) struct Origin {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) origin: String,
}

pub(crate) async fn fetch(connection: &Connection) -> Result<Manifests, ClientError> {
    connection.json("/mainstay/v1/manifests").await
}

pub(crate) async fn run(args: ManifestsArgs, output: &mut Output) -> Result<(), ClientError> {
    let manifests = fetch(&Connection::new(&args.connect)?).await?;
    if let Some(format) = args.output {
        return output.data(&manifests, format);
    }
    for awaited in &manifests.awaited {
        output.note(&format!("{} has not delivered; this list is not complete", awaited.name));
    }
    if !manifests.synced && manifests.awaited.is_empty() {
        output.note("not every source has delivered yet; this list is not complete");
    }
    if manifests.items.is_empty() {
        output.note("No manifests found");
        return Ok(());
    }
    let now = Timestamp::now();
    let mut rows = Vec::new();
    for verdict in &manifests.items {
        let mut details = details(&verdict.ruling).into_iter();
        rows.push(vec![
            verdict.path.display().to_string(),
            verdict.object.clone().unwrap_or_else(|| "<unknown>".to_owned()),
            word(&verdict.ruling).to_owned(),
            age(Some(verdict.since), now),
            details.next().unwrap_or_default(),
        ]);
        rows.extend(
            details.map(|detail| vec![String::new(), String::new(), String::new(), String::new(), detail]),
        );
    }
    let mut table = Table::new(vec!["FILE", "OBJECT", "VERDICT", "SINCE", "DETAILS"]);
    output.text(&table.render(&rows, !args.no_headers))
}

/// The ruling in a word.
pub(crate) fn word(ruling: &Ruling) -> &'static str {
    match ruling {
        Ruling::Accepted { .. } => "accepted",
        Ruling::Rejected { previous_kept: true, .. } => "rejected, last good one kept",
        Ruling::Rejected { previous_kept: false, .. } => "rejected",
        Ruling::Ignored { .. } => "ignored",
    }
}

/// What is to be said about it, a line each.
pub(crate) fn details(ruling: &Ruling) -> Vec<String> {
    let texts: Vec<&String> = match ruling {
        Ruling::Accepted { warnings } => warnings.iter().collect(),
        Ruling::Rejected { problems, .. } => problems.iter().collect(),
        Ruling::Ignored { why } => vec![why],
    };
    texts.into_iter().flat_map(|text| text.trim().lines()).map(|line| line.trim_end().to_owned()).collect()
}
