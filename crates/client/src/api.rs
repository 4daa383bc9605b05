//! `mainstay api` and `mainstay config`.

use serde_json::Value;

use crate::{
    args::{ApiArgs, ConfigArgs, StructuredFormat},
    connection::Connection,
    error::ClientError,
    output::Output,
};

const CONFIG: &str = "/configz";
const MANUAL: &str = "/openapi/v3";

/// The effective configuration, as a file for `--config` would have it.
pub(crate) async fn config(args: ConfigArgs, output: &mut Output) -> Result<(), ClientError> {
    let page: Value = Connection::new(&args.connect)?.json(CONFIG).await?;
    output.data(&page["kubeletconfig"], args.output.unwrap_or(StructuredFormat::Yaml))
}

/// Whatever the API answers to a path, as it comes; without a path, what there is.
pub(crate) async fn api(args: ApiArgs, output: &mut Output) -> Result<(), ClientError> {
    let connection = Connection::new(&args.connect)?;
    let Some(path) = args.path else { return paths(&connection, output).await };
    let path = if path.starts_with('/') { path } else { format!("/{path}") };
    let mut stream = connection.stream(&path).await?;
    while let Some(piece) = stream.piece().await? {
        output.bytes(&piece)?;
        // A watch is shown as it happens.
        output.flush()?;
    }
    Ok(())
}

async fn paths(connection: &Connection, output: &mut Output) -> Result<(), ClientError> {
    let manual: Value = connection.json(MANUAL).await?;
    let mut rows = Vec::new();
    for (path, methods) in manual["paths"].as_object().into_iter().flatten() {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            let summary = operation["summary"].as_str().unwrap_or_default();
            rows.push((method.to_uppercase(), path.clone(), summary.to_owned()));
        }
    }
    let width = rows.iter().map(|(_, path, _)| path.len()).max().unwrap_or(0);
    for (method, path, summary) in rows {
        output.text(&format!("{method:<6} {path:<width$}  {summary}\n"))?;
    }
    Ok(())
}
