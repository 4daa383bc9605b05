//! `/logs/`: the machine's log directory as Go's file server shows it, and log queries (`enableSystemLogQuery`).

mod conditional;
mod files;
mod media_type;
mod pattern;
mod query;
mod services;

use std::{
    fs::File,
    io::{self, Read as _},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::StatusCode;
use mainstay_nodelogs::{Journal, Links, LogDirectory};
use mainstay_task::Lane;
use query::NodeLogQuery;

use crate::{
    answer::{self, Answer},
    call::Call,
    request::clean,
    route::App,
};

/// How long the disk may take for one step; one that hangs must not hold a request for ever.
const DISK: Duration = Duration::from_secs(30);

/// What `/logs/` shows, and how.
#[derive(Clone, Debug)]
pub struct NodeLogs {
    /// The directory.
    pub directory: LogDirectory,
    /// The journal.
    pub journal: Journal,
    /// `enableSystemLogQuery`: whether `query` and its options are looked at.
    pub queries: bool,
}

impl Default for NodeLogs {
    /// Upstream's directory, no queries.
    fn default() -> Self {
        let directory = LogDirectory::new("/var/log".into(), Links::Inside(Vec::new()));
        Self { directory, journal: Journal::default(), queries: false }
    }
}

/// Answers one request.
pub(crate) async fn serve(app: &Arc<App>, call: &Call<'_>) -> Answer {
    let logs = &app.node_logs;
    let path = call.values.first().copied().unwrap_or_default();
    let query = match logs.queries.then(|| NodeLogQuery::parse(&call.query)) {
        None | Some(Ok(None)) => return files::serve(logs, call, path).await,
        Some(Ok(Some(query))) => query,
        Some(Err(text)) => return answer::error(StatusCode::BAD_REQUEST, &text),
    };
    if !path.is_empty() {
        return answer::error(StatusCode::NOT_ACCEPTABLE, "path not allowed in query mode");
    }
    let (asked, directory) = (query.clone(), logs.directory.clone());
    match on_disk(move || asked.validate(&directory)).await {
        Some(Ok(())) => {}
        Some(Err(text)) => return answer::error(StatusCode::NOT_ACCEPTABLE, &text),
        None => return answer::error(StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error"),
    }
    match query.files.first() {
        Some(file) => files::serve(logs, call, file).await,
        None => services::serve(app, call, query),
    }
}

/// A name below the directory: `..` leads nowhere.
fn relative(path: &str) -> String {
    clean(&format!("/{path}")).trim_matches('/').to_owned()
}

/// Threads that this may hold while the disk hangs.
static READERS: Lane = Lane::new(4);

/// Does something with files off the async workers; `None` if it takes too long or dies.
async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let done = READERS.run(DISK, work).await;
    if let Err(error) = &done {
        tracing::warn!(%error, seconds = DISK.as_secs(), "the log directory cannot be read");
    }
    done.ok()
}

/// Reads a piece of a file, up to so many bytes; none at its end.
async fn read_piece(mut file: File, most: usize) -> Option<(File, io::Result<Bytes>)> {
    on_disk(move || {
        let mut bytes = vec![0; most];
        let read = file.read(&mut bytes).map(|count| {
            bytes.truncate(count);
            Bytes::from(bytes)
        });
        (file, read)
    })
    .await
}
