//! Reading a log file, once or as it grows.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::future::Future;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use mainstay_task::Lane;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::decode::Decoder;
use crate::tail::seek_to_last_lines;
use crate::watch::DirectoryWatch;

/// How much of the file is read at a time; a chunk that is sent is at most a few times this.
const BLOCK_BYTES: usize = 64 << 10;

/// How many blocks one blocking job reads at most when nothing in them is wanted.
const BLOCKS_PER_JOB: usize = 16;

/// How often a follower looks at the file where it is not told of changes (no inotify left, or a file system without it).
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long a rotated file has to be quiet before the new one is begun, once there is something in that and nobody was seen
/// closing the old one. A runtime makes the new file first and then moves its writers over, so that the last lines, or the
/// first part of one, still go into the old file: on a busy machine long after the new one has been begun.
const ROTATION_SETTLE: Duration = Duration::from_secs(if cfg!(test) { 10 } else { 1 });

/// Limits of a termination message taken from the log (upstream: `pkg/kubelet/container/runtime.go`).
const TERMINATION_LINES: u64 = 80;
const TERMINATION_BYTES: usize = 2048;

/// What a reader asks for. The default is the whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Go on with what is written later, until the container has stopped.
    pub follow: bool,
    /// Begin with the last so many lines of the file; the pieces of a partial line count singly, as upstream.
    pub tail_lines: Option<u64>,
    /// Leave out entries from before this time.
    pub since: Option<jiff::Timestamp>,
    /// End after so many bytes of output, within a line if need be.
    pub limit_bytes: Option<u64>,
    /// Put the time in front of each line, with nine fraction digits.
    pub timestamps: bool,
    /// Which outputs of the container.
    pub streams: Streams,
}

/// Which outputs of the container are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streams {
    /// Both, in the order they were written.
    #[default]
    All,
    /// Standard output only.
    Stdout,
    /// Standard error only.
    Stderr,
}

/// Why a log cannot be read. The texts are what upstream appends to the response, so they include their cause.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The path or something on the way to it does not exist.
    #[error("failed to try resolving symlinks in path {path:?}: lstat {at}: {cause}", at = at.display())]
    Resolve {
        /// The log's path.
        path: PathBuf,
        /// The first part of it that is missing.
        at: PathBuf,
        /// What the system said.
        cause: String,
    },
    /// The file cannot be opened.
    #[error("failed to open log file {path:?}: open {path}: {cause}", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: String,
    },
    /// The file cannot be read.
    #[error("failed to read log file {path:?}: read {path}: {cause}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: String,
    },
    /// No line of the file is in a known format.
    #[error("failed to get parse function: unsupported log format: {first_line:?}")]
    UnsupportedFormat {
        /// The first line, shortened.
        first_line: String,
    },
}

/// Reads the log at `path` and sends what `options` ask for to `sink`, in chunks of bounded size.
///
/// Returns when everything is sent, or the receiver is gone. With `follow` that is when `stopped` has resolved (the
/// container does not run any more) and the file has been read to its end. When the file is rotated meanwhile, the rest
/// of the old one is sent before the new one begins; a slow reader is also given the files between, as long as they are
/// not compressed or removed before it comes to them.
/// Cancel safe: dropping it ends the read. Waits while `sink` is full.
///
/// # Errors
/// [`ReadError`], possibly after some chunks were sent.
pub async fn read(
    path: &Path,
    options: &Options,
    stopped: impl Future<Output = ()>,
    sink: &mpsc::Sender<Bytes>,
) -> Result<(), ReadError> {
    let mut stopped = std::pin::pin!(stopped);
    let mut reader = {
        let (path, options) = (path.to_owned(), options.clone());
        blocking(path.clone(), move || LogReader::open(&path, &options)).await??
    };
    let mut has_stopped = false;
    let mut watch = None;
    let mut rotation_seen: Option<Instant> = None;
    // Whether the writer of a rotated file has closed it: what is read after that is all there is.
    let mut closed = false;
    loop {
        let (returned, step) = reader.run(LogReader::step).await?;
        reader = returned;
        let step = step?;
        if sink.is_closed() || !send(sink, step.out).await {
            return Ok(());
        }
        let next = match step.position {
            Position::Within => continue,
            Position::Done => return Ok(()),
            Position::End { next } => next,
        };

        let mut wait = POLL_INTERVAL;
        if let Some(next) = next {
            let seen = match rotation_seen {
                Some(seen) if !step.read_any => seen,
                _ => *rotation_seen.insert(Instant::now()),
            };
            if has_stopped || closed || seen.elapsed() >= ROTATION_SETTLE {
                rotation_seen = None;
                closed = false;
                let (returned, rest) = reader.run(move |reader| reader.advance(&next)).await?;
                reader = returned;
                if !send(sink, rest?).await {
                    return Ok(());
                }
                continue;
            }
            wait = ROTATION_SETTLE.saturating_sub(seen.elapsed());
        } else if !options.follow || has_stopped {
            send(sink, reader.finish()?).await;
            return Ok(());
        }

        if watch.is_none() {
            watch = Some(watch_directory_of(&reader.path));
            // What happened before the watch was there is not told: look once more.
            continue;
        }
        // Every branch is cancel safe, and whichever is first the file is looked at again.
        tokio::select! {
            () = sink.closed() => return Ok(()),
            () = &mut stopped, if !has_stopped => has_stopped = true,
            names = changed(watch.as_ref()) => closed |= names.iter().any(|name| crate::rotate::is_rotated(&reader.path, name)),
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// The end of a log as a termination message: the last 80 lines, of these the last 2048 bytes. Blocks.
///
/// # Errors
/// [`ReadError`].
pub fn termination_log_tail(path: &Path) -> Result<String, ReadError> {
    let mut reader =
        LogReader::open(path, &Options { tail_lines: Some(TERMINATION_LINES), ..Options::default() })?;
    let mut message: Vec<u8> = Vec::new();
    loop {
        let step = reader.step()?;
        message.extend_from_slice(&step.out);
        let at_end = matches!(step.position, Position::End { .. } | Position::Done);
        if at_end {
            message.extend_from_slice(&reader.finish()?);
        }
        let surplus = message.len().saturating_sub(TERMINATION_BYTES);
        message.drain(..surplus);
        if at_end {
            break;
        }
    }
    // The cut may have left the end of a character in front.
    let broken = message.iter().take(3).take_while(|byte| (0x80..0xc0).contains(*byte)).count();
    message.drain(..broken);
    Ok(String::from_utf8_lossy(&message).into_owned())
}

/// A log file being read.
#[derive(Debug)]
struct LogReader {
    /// With links resolved, so that rotation is seen where it happens.
    path: PathBuf,
    file: File,
    identity: Identity,
    offset: u64,
    follow: bool,
    decoder: Decoder,
    block: Vec<u8>,
}

/// Device and inode: whether a path still names the file that was opened.
type Identity = (u64, u64);

struct Step {
    out: Vec<u8>,
    read_any: bool,
    position: Position,
}

enum Position {
    /// There is more to read at once.
    Within,
    /// Everything that was asked for has been delivered.
    Done,
    /// At the end of the file; `next` is the file that took its place, if the log was rotated.
    End { next: Option<PathBuf> },
}

impl LogReader {
    fn open(path: &Path, options: &Options) -> Result<Self, ReadError> {
        let resolved = fs::canonicalize(path).map_err(|error| ReadError::Resolve {
            path: path.to_owned(),
            at: first_missing(path),
            cause: system_text(&error),
        })?;
        let (mut file, identity) = open_regular(&resolved)
            .map_err(|error| ReadError::Open { path: resolved.clone(), cause: system_text(&error) })?;
        let mut offset = 0;
        if let Some(lines) = options.tail_lines {
            offset = seek_to_last_lines(&mut file, lines)
                .map_err(|error| ReadError::Read { path: resolved.clone(), cause: system_text(&error) })?;
        }
        Ok(Self {
            path: resolved,
            file,
            identity,
            offset,
            follow: options.follow,
            decoder: Decoder::new(options),
            block: vec![0; BLOCK_BYTES],
        })
    }

    /// Runs `work` on a blocking thread.
    async fn run<T: Send + 'static>(
        mut self,
        work: impl FnOnce(&mut Self) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<(Self, Result<T, ReadError>), ReadError> {
        blocking(self.path.clone(), move || {
            let done = work(&mut self);
            (self, done)
        })
        .await
    }

    /// Reads on, up to a bounded amount of input and output.
    fn step(&mut self) -> Result<Step, ReadError> {
        let mut step = Step { out: Vec::new(), read_any: false, position: Position::Within };
        for _ in 0..BLOCKS_PER_JOB {
            if self.decoder.is_done() {
                step.position = Position::Done;
                break;
            }
            let length = match self.file.read(&mut self.block) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.read_error(&error)),
            };
            if length == 0 {
                if self.follow && self.restart_if_truncated()? {
                    continue;
                }
                step.position = Position::End { next: self.follow.then(|| self.successor()).flatten() };
                break;
            }
            step.read_any = true;
            self.offset += length as u64;
            self.decoder.feed(self.block.get(..length).unwrap_or_default(), &mut step.out);
            if step.out.len() >= BLOCK_BYTES {
                break;
            }
        }
        Ok(step)
    }

    /// The last, unfinished line; an error if the whole file was in no known format.
    fn finish(&mut self) -> Result<Vec<u8>, ReadError> {
        let mut out = Vec::new();
        self.decoder.finish(&mut out);
        match self.decoder.unsupported() {
            Some(line) => {
                Err(ReadError::UnsupportedFormat { first_line: String::from_utf8_lossy(line).into_owned() })
            }
            None => Ok(out),
        }
    }

    /// Leaves a rotated file for the one after it; returns the old one's unfinished line.
    fn advance(&mut self, next: &Path) -> Result<Vec<u8>, ReadError> {
        let mut out = Vec::new();
        match open_regular(next) {
            Ok((file, identity)) => {
                self.decoder.finish(&mut out);
                (self.file, self.identity, self.offset) = (file, identity, 0);
            }
            // Rotated again in this moment: the next look finds out what is there now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(ReadError::Open { path: next.to_owned(), cause: system_text(&error) }),
        }
        Ok(out)
    }

    /// Begins again when the file was cut short in place (`truncate`, `copytruncate`).
    fn restart_if_truncated(&mut self) -> Result<bool, ReadError> {
        let length = self.file.metadata().map_err(|error| self.read_error(&error))?.len();
        if length >= self.offset {
            return Ok(false);
        }
        self.file.seek(SeekFrom::Start(0)).map_err(|error| self.read_error(&error))?;
        self.offset = 0;
        self.decoder.restart();
        Ok(true)
    }

    /// The file that follows ours if the log was rotated: the next in the order of rotation, or the current one.
    fn successor(&self) -> Option<PathBuf> {
        // While nothing is at the path, or an empty file, the runtime may still write to the old one.
        let current = fs::metadata(&self.path).ok()?;
        if current.len() == 0 || identity(&current) == self.identity {
            return None;
        }
        // A slow reader may be several rotations behind. The oldest are compressed first: if ours is not among the plain ones
        // any more, those that are left come after it. One from before ours, had ours been removed by hand, is as old as that.
        let rotated = crate::rotate::rotated_logs(&self.path).unwrap_or_default();
        let mut plain = rotated.iter().filter(|path| path.extension() != Some(OsStr::new("gz")));
        let next = match plain.clone().position(|path| identity_of(path).ok() == Some(self.identity)) {
            Some(ours) => plain.nth(ours + 1),
            None => {
                let last_written = self.file.metadata().and_then(|ours| ours.modified()).ok()?;
                plain.find(|path| {
                    fs::metadata(path).and_then(|it| it.modified()).is_ok_and(|time| time >= last_written)
                })
            }
        };
        Some(next.unwrap_or(&self.path).clone())
    }

    fn read_error(&self, error: &io::Error) -> ReadError {
        ReadError::Read { path: self.path.clone(), cause: system_text(error) }
    }
}

/// Sends a chunk; false if the receiver is gone.
async fn send(sink: &mpsc::Sender<Bytes>, chunk: Vec<u8>) -> bool {
    chunk.is_empty() || sink.send(Bytes::from(chunk)).await.is_ok()
}

/// Threads that reading logs may hold: as many as anybody may wish, for each of them, while a disk hangs.
static READERS: Lane = Lane::new(5);
/// How long the disk may take for one step of it.
const DISK: Duration = Duration::from_secs(30);

async fn blocking<T: Send + 'static>(
    path: PathBuf,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ReadError> {
    READERS.run(DISK, work).await.map_err(|error| ReadError::Read { path, cause: error.to_string() })
}

fn watch_directory_of(path: &Path) -> Option<DirectoryWatch> {
    let watch = DirectoryWatch::new(path.parent().unwrap_or(Path::new("/")));
    if let Err(error) = &watch {
        tracing::debug!(path = %path.display(), %error, "no inotify watch for a log; looking at it every second");
    }
    watch.ok()
}

/// Waits for a change; for ever if there is no watch, or it is broken, and polling has to do.
async fn changed(watch: Option<&Option<DirectoryWatch>>) -> Vec<OsString> {
    if let Some(Some(watch)) = watch
        && let Ok(closed) = watch.changed().await
    {
        return closed;
    }
    std::future::pending().await
}

fn open_regular(path: &Path) -> io::Result<(File, Identity)> {
    // Looked at before it is opened: opening a FIFO would wait for its writer.
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    Ok((file, identity(&metadata)))
}

fn identity_of(path: &Path) -> io::Result<Identity> {
    fs::metadata(path).map(|metadata| identity(&metadata))
}

fn identity(metadata: &fs::Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

fn first_missing(path: &Path) -> PathBuf {
    let mut parts: Vec<&Path> = path.ancestors().filter(|part| !part.as_os_str().is_empty()).collect();
    parts.reverse();
    parts.into_iter().find(|part| fs::symlink_metadata(part).is_err()).unwrap_or(path).to_owned()
}

/// The system's words as Go prints them: `no such file or directory`.
fn system_text(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

#[cfg(test)]
mod tests;
