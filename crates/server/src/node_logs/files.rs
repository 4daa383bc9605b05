//! Files and directories, as Go's `http.FileServer` answers for them.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    time::SystemTime,
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode, header};
use mainstay_nodelogs::{Entry, Found, LogDirectory, LogFile, OpenError};
use tokio::sync::mpsc;

use super::{
    NodeLogs,
    conditional::{self, Part, Verdict},
    media_type, on_disk, read_piece, relative,
};
use crate::{
    answer::{self, Answer, html_escaped},
    body::Body,
    call::Call,
};

/// How much is read at once.
const PIECE: u64 = 64 << 10;
/// Between the parts of an answer with several. Logs that contain it line by line are not worth a random one: clients go
/// by the lengths that stand in the parts' headers.
const BOUNDARY: &str = "mainstay-6d5a1c0f3b9e4e7c8a2f-part";

/// What was opened, and how it will be sent.
enum Opened {
    File(LogFile, String),
    Listing(Option<SystemTime>, Vec<Entry>),
}

/// Answers for the name below the log directory.
pub(super) async fn serve(logs: &NodeLogs, call: &Call<'_>, path: &str) -> Answer {
    let url = format!("/{path}");
    let redirect = |to: &str| moved(call, to);
    if url.ends_with("/index.html") {
        return redirect("./");
    }
    let (directory, name) = (logs.directory.clone(), relative(path));
    let wanted = name.clone();
    let opened = match on_disk(move || open(&directory, &wanted)).await {
        Some(Ok(opened)) => opened,
        Some(Err(error)) => return refusal(&error),
        None => return failure(),
    };
    let last = name.rsplit('/').next().unwrap_or_default();
    match opened {
        Opened::Listing(..) if !url.ends_with('/') => redirect(&format!("{last}/")),
        Opened::File(_, ref served) if url.ends_with('/') == (*served == name) => {
            // A slash behind a file, or none behind a directory whose index this is.
            redirect(&if *served == name { format!("../{last}") } else { format!("{last}/") })
        }
        Opened::Listing(modified, entries) => {
            let verdict = conditional::verdict(call.headers, modified);
            let mut answer = match verdict {
                Verdict::NotModified => answer::empty(StatusCode::NOT_MODIFIED),
                Verdict::Failed | Verdict::Send(_) => listing(&entries),
            };
            set_modified(&mut answer, modified);
            answer
        }
        Opened::File(file, served) => send(call, file, &served).await,
    }
}

/// Opens it, and takes a directory's index for the directory. Blocks on the disk.
fn open(directory: &LogDirectory, name: &str) -> Result<Opened, OpenError> {
    match directory.open(name)? {
        Found::File(file) => Ok(Opened::File(file, name.to_owned())),
        Found::Directory { modified, entries } => {
            if entries.iter().any(|entry| entry.name == "index.html") {
                let index = format!("{name}/index.html").trim_start_matches('/').to_owned();
                if let Ok(Found::File(file)) = directory.open(&index) {
                    return Ok(Opened::File(file, index));
                }
            }
            Ok(Opened::Listing(modified, entries))
        }
    }
}

fn refusal(error: &OpenError) -> Answer {
    let denied = |source: &io::Error| source.kind() == io::ErrorKind::PermissionDenied;
    match error {
        OpenError::Missing { .. } => answer::unknown_path(),
        OpenError::Outside { .. } | OpenError::NotAFile { .. } => {
            tracing::info!("not served: {error}");
            answer::error(StatusCode::FORBIDDEN, "403 Forbidden")
        }
        OpenError::System { source, .. } if denied(source) => {
            answer::error(StatusCode::FORBIDDEN, "403 Forbidden")
        }
        OpenError::System { source, .. } => {
            tracing::debug!(%source, "{error}");
            failure()
        }
        OpenError::TooMany { .. } => {
            tracing::info!("not served: {error}");
            failure()
        }
    }
}

fn failure() -> Answer {
    answer::error(StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error")
}

/// A redirect to a neighbour, without a body.
fn moved(call: &Call<'_>, to: &str) -> Answer {
    let escaped = escape_path(to.as_bytes());
    let location = match call.uri.query() {
        Some(query) => format!("{escaped}?{query}"),
        None => escaped,
    };
    let mut answer = answer::empty(StatusCode::MOVED_PERMANENTLY);
    match HeaderValue::from_str(&location) {
        Ok(value) => set(&mut answer, header::LOCATION, value),
        Err(_) => return failure(),
    }
    answer
}

fn listing(entries: &[Entry]) -> Answer {
    use std::os::unix::ffi::OsStrExt;
    let mut html =
        String::from("<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n");
    for entry in entries {
        let slash = if entry.is_directory { "/" } else { "" };
        // The ampersand is the one character that may stand in a path and means something in HTML.
        let mut href = escape_path(entry.name.as_bytes()).replace('&', "&amp;");
        // What stands before a colon would be taken for a scheme.
        if href.contains(':') {
            href.insert_str(0, "./");
        }
        let shown = html_escaped(&entry.name.to_string_lossy());
        html.push_str(&format!("<a href=\"{href}{slash}\">{shown}{slash}</a>\n"));
    }
    html.push_str("</pre>\n");
    let mut answer = answer::untyped(StatusCode::OK, Body::Whole(html.into()));
    set(&mut answer, header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    answer
}

/// Bytes that may stand in a path stay, all others become escapes.
fn escape_path(name: &[u8]) -> String {
    let mut escaped = String::with_capacity(name.len());
    for byte in name {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => escaped.push(char::from(*byte)),
            b'-' | b'_' | b'.' | b'~' | b'$' | b'&' | b'+' | b',' | b'/' | b':' | b';' | b'=' | b'@' => {
                escaped.push(char::from(*byte));
            }
            byte => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// Sends a file, or what of it is asked for.
async fn send(call: &Call<'_>, log: LogFile, name: &str) -> Answer {
    let LogFile { file, len, modified } = log;
    let range = match conditional::verdict(call.headers, modified) {
        Verdict::Send(range) => range,
        other => {
            let mut answer = answer::empty(match other {
                Verdict::NotModified => StatusCode::NOT_MODIFIED,
                _ => StatusCode::PRECONDITION_FAILED,
            });
            set_modified(&mut answer, modified);
            return answer;
        }
    };
    let parts = match range.map(|range| conditional::parts(&range, len)).transpose() {
        Ok(parts) => parts.unwrap_or_default(),
        Err(bad) => {
            let mut answer = answer::error(StatusCode::RANGE_NOT_SATISFIABLE, bad.text());
            if bad == conditional::BadRange::NoOverlap {
                set_text(&mut answer, header::CONTENT_RANGE, &format!("bytes */{len}"));
            }
            return answer;
        }
    };
    let kind = name.to_owned();
    let Some(Ok((file, kind))) = on_disk(move || typed(file, &kind)).await else { return failure() };
    let (status, content_type, total, pieces) = plan(parts, len, &kind);
    let mut answer = answer::untyped(status, Body::produced(|sink| produce(file, pieces.pieces, sink)));
    set_modified(&mut answer, modified);
    set(&mut answer, header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    set_text(&mut answer, header::CONTENT_TYPE, &content_type);
    set_text(&mut answer, header::CONTENT_LENGTH, &total.to_string());
    if let Some(range) = pieces.content_range {
        set_text(&mut answer, header::CONTENT_RANGE, &range);
    }
    answer
}

/// The file, at its start again, and its type. Blocks on the disk.
fn typed(mut file: File, name: &str) -> io::Result<(File, String)> {
    let kind = match media_type::by_name(name) {
        Some(kind) => kind,
        None => {
            let mut start = Vec::with_capacity(media_type::SNIFFED);
            (&mut file).take(media_type::SNIFFED as u64).read_to_end(&mut start)?;
            file.seek(SeekFrom::Start(0))?;
            media_type::by_content(&start).to_owned()
        }
    };
    Ok((file, kind))
}

/// What a body is made of, one after the other.
enum Piece {
    Text(String),
    Of(Part),
}

struct Pieces {
    pieces: Vec<Piece>,
    /// For an answer that is a single part.
    content_range: Option<String>,
}

/// Status, type, length and pieces of the answer.
fn plan(parts: Vec<Part>, len: u64, kind: &str) -> (StatusCode, String, u64, Pieces) {
    let range =
        |part: &Part| format!("bytes {}-{}/{len}", part.start, (part.start + part.len).saturating_sub(1));
    match parts.as_slice() {
        [] => {
            let pieces = Pieces { pieces: vec![Piece::Of(Part { start: 0, len })], content_range: None };
            (StatusCode::OK, kind.to_owned(), len, pieces)
        }
        [part] => {
            let pieces = Pieces { pieces: vec![Piece::Of(*part)], content_range: Some(range(part)) };
            (StatusCode::PARTIAL_CONTENT, kind.to_owned(), part.len, pieces)
        }
        parts => {
            let mut pieces = Vec::with_capacity(parts.len() * 2 + 1);
            let mut total = 0;
            for (at, part) in parts.iter().enumerate() {
                let before = if at == 0 { "" } else { "\r\n" };
                let head = format!(
                    "{before}--{BOUNDARY}\r\nContent-Range: {}\r\nContent-Type: {kind}\r\n\r\n",
                    range(part)
                );
                total += head.len() as u64 + part.len;
                pieces.extend([Piece::Text(head), Piece::Of(*part)]);
            }
            let end = format!("\r\n--{BOUNDARY}--\r\n");
            total += end.len() as u64;
            pieces.push(Piece::Text(end));
            let kind = format!("multipart/byteranges; boundary={BOUNDARY}");
            (StatusCode::PARTIAL_CONTENT, kind, total, Pieces { pieces, content_range: None })
        }
    }
}

/// Reads as the client takes. A file that has become shorter ends the connection before the length that was promised.
async fn produce(mut file: File, pieces: Vec<Piece>, sink: mpsc::Sender<Bytes>) {
    for piece in pieces {
        let part = match piece {
            Piece::Text(text) => {
                if sink.send(text.into()).await.is_err() {
                    return;
                }
                continue;
            }
            Piece::Of(part) => part,
        };
        // No disk is asked for this.
        if file.seek(SeekFrom::Start(part.start)).is_err() {
            return;
        }
        let mut left = part.len;
        while left > 0 {
            let size = usize::try_from(left.min(PIECE)).unwrap_or(usize::MAX);
            let Some((back, Ok(bytes))) = read_piece(file, size).await else { return };
            file = back;
            left = left.saturating_sub(bytes.len() as u64);
            if bytes.is_empty() || sink.send(bytes).await.is_err() {
                return;
            }
        }
    }
}

fn set_modified(answer: &mut Answer, modified: Option<SystemTime>) {
    if let Some(date) = modified.and_then(conditional::http_date) {
        set_text(answer, header::LAST_MODIFIED, &date);
    }
}

/// A header of our own making, or of a type from the machine's tables; one that is no header is left out.
fn set_text(answer: &mut Answer, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        set(answer, name, value);
    }
}

fn set(answer: &mut Answer, name: HeaderName, value: HeaderValue) {
    answer.headers_mut().insert(name, value);
}
