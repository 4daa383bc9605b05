//! From the bytes of a log file to the bytes a reader asked for; no I/O.

use crate::line::{Entry, Stream};
use crate::read::{Options, Streams};

/// A line longer than this is not held in memory until it ends. Runtimes cut lines at 16 KiB; Docker's JSON escapes can
/// make that six times as long.
const MAX_HELD_BYTES: usize = 256 << 10;

/// Keeps what has to be known from one piece of the file to the next.
#[derive(Debug)]
pub(crate) struct Decoder {
    since: Option<(i64, u32)>,
    timestamps: bool,
    streams: Streams,
    bytes_left: Option<u64>,
    lines_left: Option<u64>,
    /// The beginning of a line whose end has not been read.
    held: Vec<u8>,
    /// The line that is passed on while its end has not been read, because it is too long to be held.
    long_line: Option<LongLine>,
    /// Per stream: whether the next text begins a line, so that joined pieces are stamped once.
    stdout_at_start: bool,
    stderr_at_start: bool,
    parsed_any: bool,
    first_unparsed: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug)]
enum LongLine {
    Passed { stream: Stream, partial: bool },
    Skipped,
}

impl Decoder {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            since: options
                .since
                .map(|since| (since.as_second(), u32::try_from(since.subsec_nanosecond()).unwrap_or(0))),
            timestamps: options.timestamps,
            streams: options.streams,
            bytes_left: options.limit_bytes,
            // A follower is given what comes later too; others exactly what was asked for, even if the file grows.
            lines_left: if options.follow { None } else { options.tail_lines },
            held: Vec::new(),
            long_line: None,
            stdout_at_start: true,
            stderr_at_start: true,
            parsed_any: false,
            first_unparsed: None,
        }
    }

    /// Whether everything that was asked for has been delivered.
    pub(crate) fn is_done(&self) -> bool {
        self.bytes_left == Some(0) || self.lines_left == Some(0)
    }

    /// Takes the next bytes of the file and appends what they yield to `out`.
    pub(crate) fn feed(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !self.is_done() && !input.is_empty() {
            let Some(newline) = input.iter().position(|byte| *byte == b'\n') else {
                self.hold(input, out);
                return;
            };
            let (line, rest) = input.split_at(newline + 1);
            input = rest;
            if self.long_line.is_some() {
                self.continue_long_line(line, out);
                self.long_line = None;
                self.count_line();
            } else if self.held.is_empty() {
                self.whole_line(line, out);
            } else {
                self.held.extend_from_slice(line);
                let mut whole = std::mem::take(&mut self.held);
                self.whole_line(&whole, out);
                whole.clear();
                self.held = whole;
            }
        }
    }

    /// The file ends here: a line without its newline is taken as it is.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        let held = std::mem::take(&mut self.held);
        self.long_line = None;
        // What does not parse is the beginning of a line that is just being written, not a line in an unknown format.
        if !held.is_empty() && !self.is_done() && Entry::parse(&held).is_some() {
            self.whole_line(&held, out);
        }
    }

    /// Forgets the unfinished line: the file was truncated and begins anew.
    pub(crate) fn restart(&mut self) {
        self.held.clear();
        self.long_line = None;
    }

    /// The first line in an unknown format, if no line at all could be parsed.
    pub(crate) fn unsupported(&self) -> Option<&[u8]> {
        if self.parsed_any { None } else { self.first_unparsed.as_deref() }
    }

    fn hold(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        if self.long_line.is_some() {
            self.continue_long_line(piece, out);
            return;
        }
        self.held.extend_from_slice(piece);
        if self.held.len() <= MAX_HELD_BYTES {
            return;
        }
        let held = std::mem::take(&mut self.held);
        // Only the CRI format can be understood before the line ends.
        self.long_line = Some(match Entry::parse(&held) {
            Some(entry) => {
                self.parsed_any = true;
                let (stream, partial) = (entry.stream, entry.partial);
                if self.is_wanted(&entry) {
                    self.emit(&entry, out);
                    LongLine::Passed { stream, partial }
                } else {
                    LongLine::Skipped
                }
            }
            None => {
                self.reject(&held);
                LongLine::Skipped
            }
        });
    }

    fn continue_long_line(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        let Some(LongLine::Passed { stream, partial }) = self.long_line else { return };
        let text = if partial { piece.strip_suffix(b"\n").unwrap_or(piece) } else { piece };
        self.emit_bytes(text, out);
        self.ended_with(stream, text);
    }

    fn whole_line(&mut self, line: &[u8], out: &mut Vec<u8>) {
        match Entry::parse(line) {
            Some(entry) => {
                self.parsed_any = true;
                if self.is_wanted(&entry) {
                    self.emit(&entry, out);
                } else {
                    self.ended_with(entry.stream, &entry.text);
                }
            }
            None => self.reject(line),
        }
        self.count_line();
    }

    fn count_line(&mut self) {
        if let Some(left) = &mut self.lines_left {
            *left = left.saturating_sub(1);
        }
    }

    fn is_wanted(&self, entry: &Entry<'_>) -> bool {
        let stream_wanted = match self.streams {
            Streams::All => true,
            Streams::Stdout => entry.stream == Stream::Stdout,
            Streams::Stderr => entry.stream == Stream::Stderr,
        };
        stream_wanted && self.since.is_none_or(|since| (entry.time.seconds, entry.time.nanoseconds) >= since)
    }

    fn emit(&mut self, entry: &Entry<'_>, out: &mut Vec<u8>) {
        let at_start = match entry.stream {
            Stream::Stdout => self.stdout_at_start,
            Stream::Stderr => self.stderr_at_start,
        };
        if self.timestamps && at_start {
            let mut prefix = Vec::with_capacity(40);
            entry.time.write_prefix(&mut prefix);
            self.emit_bytes(&prefix, out);
        }
        self.emit_bytes(&entry.text, out);
        self.ended_with(entry.stream, &entry.text);
    }

    fn emit_bytes(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let Some(left) = &mut self.bytes_left else {
            out.extend_from_slice(bytes);
            return;
        };
        // A hard cut, within a line or a character if need be, as upstream.
        let take = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
        out.extend(bytes.iter().take(take));
        *left -= take as u64;
    }

    /// Remembers whether the stream's next text begins a line. An empty text counts as a finished line, as upstream.
    fn ended_with(&mut self, stream: Stream, text: &[u8]) {
        let at_start = text.last().is_none_or(|byte| *byte == b'\n');
        match stream {
            Stream::Stdout => self.stdout_at_start = at_start,
            Stream::Stderr => self.stderr_at_start = at_start,
        }
    }

    fn reject(&mut self, line: &[u8]) {
        tracing::debug!(length = line.len(), "a log line is in no known format; it is skipped");
        if self.first_unparsed.is_none() {
            self.first_unparsed = Some(line.iter().take(120).copied().collect());
        }
    }
}

#[cfg(test)]
mod tests;
