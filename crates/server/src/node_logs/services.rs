//! Log queries for services: from the journal, or from the files where a service's log usually lies. As upstream
//! (`nodeLogQuery.Copy`, 1.37): whatever goes wrong after the answer has begun is text in it.

use std::{io::Write, sync::Arc, time::Duration};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderValue, StatusCode, header};
use mainstay_nodelogs::{Found, LogDirectory, OpenError};
use tokio::{sync::mpsc, time::Instant};

use super::{NodeLogs, on_disk, query::NodeLogQuery, read_piece};
use crate::{
    answer::{self, Answer},
    body::Body,
    call::Call,
    route::App,
};

/// For all of it.
const DEADLINE: Duration = Duration::from_secs(30);
/// How much of a file is read at once.
const PIECE: usize = 64 << 10;

/// Begins an answer.
pub(super) fn serve(app: &Arc<App>, call: &Call<'_>, query: NodeLogQuery) -> Answer {
    // Literally, as upstream; lists of encodings get none.
    let zipped = call.headers.get(header::ACCEPT_ENCODING).is_some_and(|value| value == "gzip");
    let (logs, shutdown) = (app.node_logs.clone(), app.shutdown.clone());
    let mut answer = answer::untyped(
        StatusCode::OK,
        Body::produced(move |sink| async move {
            let (plain, pieces) = mpsc::channel(1);
            let copy = async {
                shutdown.run_until_signalled(copy(&logs, &query, &plain)).await;
                drop(plain);
            };
            tokio::join!(copy, forward(pieces, sink, zipped));
        }),
    );
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain;charset=UTF-8"));
    if zipped {
        answer.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    answer
}

/// Hands pieces on, compressed or not, until they end or nobody takes them.
async fn forward(mut pieces: mpsc::Receiver<Bytes>, sink: mpsc::Sender<Bytes>, zipped: bool) {
    if !zipped {
        while let Some(piece) = pieces.recv().await {
            if sink.send(piece).await.is_err() {
                return;
            }
        }
        return;
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    while let Some(piece) = pieces.recv().await {
        // Writing to memory does not fail.
        drop(encoder.write_all(&piece));
        let ready = std::mem::take(encoder.get_mut());
        if !ready.is_empty() && sink.send(ready.into()).await.is_err() {
            return;
        }
    }
    if let Ok(rest) = encoder.finish() {
        // The client being gone is all that can go wrong.
        drop(sink.send(rest.into()).await);
    }
}

async fn copy(logs: &NodeLogs, query: &NodeLogQuery, sink: &mpsc::Sender<Bytes>) {
    let deadline = Instant::now() + DEADLINE;
    let units = tokio::time::timeout_at(deadline, logs.journal.units()).await.unwrap_or_default();
    let is_unit =
        |service: &&String| units.iter().any(|unit| unit.strip_suffix(".service") == Some(service.as_str()));
    let (journal, files): (Vec<&String>, Vec<&String>) = query.services.iter().partition(is_unit);
    if !journal.is_empty() {
        let asked = query.for_journal(journal.into_iter().cloned().collect());
        // At the deadline the program is killed; what it said until then was sent.
        if let Ok(Err(error)) = tokio::time::timeout_at(deadline, logs.journal.read(&asked, sink)).await {
            tracing::debug!(%error, "no journal");
            say(sink, "\nerror: journal output not available\n".into()).await;
        }
    }
    if !files.is_empty() && query.has_options() {
        let files: Vec<&str> = files.into_iter().map(String::as_str).collect();
        let text = format!(
            "\noptions present and query resolved to log files for [{}]\ntry without specifying options\n",
            files.join(" ")
        );
        return say(sink, text).await;
    }
    if !files.is_empty() && Instant::now() >= deadline {
        return say(sink, "\ncontext error: context deadline exceeded\n".into()).await;
    }
    for service in files {
        let copied = tokio::time::timeout_at(deadline, copy_file(&logs.directory, service, sink)).await;
        let why = match copied {
            Ok(Ok(())) => continue,
            Ok(Err(Failure::NotFound)) => {
                say(sink, format!("\nlog not found for {service}\n")).await;
                continue;
            }
            Ok(Err(Failure::Other(why))) => why,
            Err(_) => "context deadline exceeded".to_owned(),
        };
        say(sink, format!("\nerror getting log for {service}: {why}\n")).await;
    }
}

enum Failure {
    NotFound,
    Other(String),
}

/// The first of the usual places where there is a file.
async fn copy_file(
    directory: &LogDirectory,
    service: &str,
    sink: &mpsc::Sender<Bytes>,
) -> Result<(), Failure> {
    for name in [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")] {
        let directory = directory.clone();
        let opened = on_disk(move || directory.open_beneath(&name)).await;
        let file = match opened {
            Some(Ok(Found::File(log))) => log.file,
            Some(Ok(Found::Directory { .. }) | Err(OpenError::Missing { .. })) => continue,
            Some(Err(error)) => return Err(Failure::Other(error.as_go_says("openat"))),
            None => return Err(Failure::Other("the disk does not answer".into())),
        };
        let mut file = file;
        loop {
            match read_piece(file, PIECE).await {
                Some((back, Ok(piece))) => {
                    if piece.is_empty() || sink.send(piece).await.is_err() {
                        return Ok(());
                    }
                    file = back;
                }
                Some((_, Err(error))) => return Err(Failure::Other(format!("read {service}: {error}"))),
                None => return Err(Failure::Other("the disk does not answer".into())),
            }
        }
    }
    Err(Failure::NotFound)
}

async fn say(sink: &mpsc::Sender<Bytes>, text: String) {
    // The client being gone is all that can go wrong.
    drop(sink.send(text.into()).await);
}
