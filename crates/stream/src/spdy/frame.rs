//! SPDY/3.1 frames as bytes: what they look like, nothing about when they are sent.

use super::headers::{HeaderDecoder, HeaderEncoder, Headers};

/// Every frame begins with so many bytes: what it is, flags, length.
pub(crate) const FRAME_HEADER_BYTES: usize = 8;
/// The highest stream id, and the mask of the bit above it.
pub(crate) const MAX_STREAM_ID: u32 = 0x7fff_ffff;
/// The setting that changes every stream's first window.
pub(crate) const SETTINGS_INITIAL_WINDOW_SIZE: u32 = 7;
/// What a window is before anybody says otherwise.
pub(crate) const DEFAULT_WINDOW: u32 = 64 * 1024;

const VERSION: u16 = 3;
const FLAG_FIN: u8 = 0x01;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const SETTINGS: u16 = 4;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const WINDOW_UPDATE: u16 = 9;

/// Why the peer's bytes are not SPDY, or more than is taken. The connection cannot go on after any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another version than 3.
    #[error("the peer speaks SPDY version {0}, not 3; is it a SPDY/3.1 peer at all?")]
    Version(u16),
    /// A control frame that is longer than the limit.
    #[error("a control frame of {length} bytes is longer than the limit of {limit}")]
    ControlTooLong {
        /// Its length.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// A control frame that is shorter than its kind needs, or has a field that may not be so.
    #[error("a malformed control frame of type {0}")]
    BadControl(u16),
    /// A frame for stream 0, which does not exist.
    #[error("a frame for stream 0")]
    StreamZero,
    /// A header block that is not what zlib makes with SPDY's dictionary.
    #[error("a header block that cannot be decompressed")]
    BadCompression,
    /// A header block that is too long when unpacked.
    #[error("a header block longer than the limit of {limit} bytes")]
    HeadersTooLong {
        /// The limit.
        limit: usize,
    },
    /// More headers than anybody needs.
    #[error("a header block with more than 1000 headers")]
    TooManyHeaders,
    /// A header block that does not hold what it says, or names twice the same or in capitals.
    #[error("a malformed header block")]
    BadHeaders,
}

/// Why a stream ends at once (RST_STREAM).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetStatus(pub u32);

impl ResetStatus {
    /// The peer broke the rules on this stream.
    pub const PROTOCOL_ERROR: Self = Self(1);
    /// A frame for a stream that is not open.
    pub const INVALID_STREAM: Self = Self(2);
    /// The stream is refused before anything was done with it.
    pub const REFUSED_STREAM: Self = Self(3);
    /// The one who sends it has no more use for the stream.
    pub const CANCEL: Self = Self(5);
}

/// Why a connection ends (GOAWAY).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GoAwayStatus {
    Ok = 0,
    ProtocolError = 1,
}

/// The first eight bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameHeader {
    Data { stream: u32, fin: bool, length: usize },
    Control { kind: u16, flags: u8, length: usize },
}

impl FrameHeader {
    /// Reads the first eight bytes.
    pub(crate) fn parse(bytes: [u8; FRAME_HEADER_BYTES]) -> Result<Self, FrameError> {
        let [a, b, c, d, flags, x, y, z] = bytes;
        // 24 bits always fit.
        let length = usize::try_from(u32::from_be_bytes([0, x, y, z])).unwrap_or(usize::MAX);
        if a & 0x80 == 0 {
            let stream = u32::from_be_bytes([a, b, c, d]);
            if stream == 0 {
                return Err(FrameError::StreamZero);
            }
            return Ok(Self::Data { stream, fin: flags & FLAG_FIN != 0, length });
        }
        let version = u16::from_be_bytes([a & 0x7f, b]);
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        Ok(Self::Control { kind: u16::from_be_bytes([c, d]), flags, length })
    }
}

/// A control frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    SynStream {
        stream: u32,
        fin: bool,
        headers: Headers,
    },
    SynReply {
        stream: u32,
        fin: bool,
        headers: Headers,
    },
    RstStream {
        stream: u32,
        status: ResetStatus,
    },
    /// Ids and values, without their flags.
    Settings(Vec<(u32, u32)>),
    Ping(u32),
    GoAway {
        last_good_stream: u32,
        status: u32,
    },
    Headers {
        stream: u32,
        fin: bool,
    },
    /// `stream` 0 means the whole connection.
    WindowUpdate {
        stream: u32,
        delta: u32,
    },
    /// A kind that SPDY/3.1 does not know, to be ignored.
    Unknown,
}

impl Control {
    /// Reads a control frame's payload. Header blocks go through the decoder even where nobody wants them, because all
    /// blocks of a direction are one zlib stream.
    pub(crate) fn parse(
        kind: u16,
        flags: u8,
        payload: &[u8],
        decoder: &mut HeaderDecoder,
    ) -> Result<Self, FrameError> {
        let fin = flags & FLAG_FIN != 0;
        let mut fields = Fields { kind, rest: payload };
        let control = match kind {
            SYN_STREAM => {
                let stream = fields.stream()?;
                let _associated_to = fields.word()?;
                let _priority_and_slot = fields.half()?;
                Self::SynStream { stream, fin, headers: decoder.decode(fields.rest)? }
            }
            SYN_REPLY => {
                Self::SynReply { stream: fields.stream()?, fin, headers: decoder.decode(fields.rest)? }
            }
            HEADERS => {
                let stream = fields.stream()?;
                decoder.decode(fields.rest)?;
                Self::Headers { stream, fin }
            }
            RST_STREAM => Self::RstStream { stream: fields.stream()?, status: ResetStatus(fields.word()?) },
            SETTINGS => {
                let count = fields.word()?;
                let mut settings = Vec::new();
                for _ in 0..count {
                    let id = fields.word()? & 0x00ff_ffff;
                    settings.push((id, fields.word()?));
                }
                Self::Settings(settings)
            }
            PING => Self::Ping(fields.word()?),
            GOAWAY => {
                Self::GoAway { last_good_stream: fields.word()? & MAX_STREAM_ID, status: fields.word()? }
            }
            WINDOW_UPDATE => Self::WindowUpdate {
                stream: fields.word()? & MAX_STREAM_ID,
                delta: fields.word()? & MAX_STREAM_ID,
            },
            _ => Self::Unknown,
        };
        Ok(control)
    }

    /// Appends the whole frame.
    pub(crate) fn encode(&self, encoder: &mut HeaderEncoder, out: &mut Vec<u8>) {
        match self {
            Self::SynStream { stream, fin, headers } => {
                let block = encoder.encode(headers);
                push_control(out, SYN_STREAM, *fin, 10 + block.len());
                push_word(out, *stream);
                push_word(out, 0);
                out.extend_from_slice(&[0, 0]);
                out.extend_from_slice(&block);
            }
            Self::SynReply { stream, fin, headers } => {
                let block = encoder.encode(headers);
                push_control(out, SYN_REPLY, *fin, 4 + block.len());
                push_word(out, *stream);
                out.extend_from_slice(&block);
            }
            Self::Headers { stream, fin } => {
                let block = encoder.encode(&Headers::default());
                push_control(out, HEADERS, *fin, 4 + block.len());
                push_word(out, *stream);
                out.extend_from_slice(&block);
            }
            Self::RstStream { stream, status } => push_words(out, RST_STREAM, &[*stream, status.0]),
            Self::Settings(settings) => {
                push_control(out, SETTINGS, false, 4 + 8 * settings.len());
                push_word(out, u32::try_from(settings.len()).unwrap_or(u32::MAX));
                for (id, value) in settings {
                    push_word(out, *id);
                    push_word(out, *value);
                }
            }
            Self::Ping(id) => push_words(out, PING, &[*id]),
            Self::GoAway { last_good_stream, status } => {
                push_words(out, GOAWAY, &[*last_good_stream, *status])
            }
            Self::WindowUpdate { stream, delta } => push_words(out, WINDOW_UPDATE, &[*stream, *delta]),
            Self::Unknown => {}
        }
    }
}

/// Appends a data frame.
pub(crate) fn encode_data(stream: u32, fin: bool, data: &[u8], out: &mut Vec<u8>) {
    push_word(out, stream);
    push_flags_and_length(out, fin, data.len());
    out.extend_from_slice(data);
}

fn push_control(out: &mut Vec<u8>, kind: u16, fin: bool, length: usize) {
    out.extend_from_slice(&(VERSION | 0x8000).to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    push_flags_and_length(out, fin, length);
}

fn push_words(out: &mut Vec<u8>, kind: u16, words: &[u32]) {
    push_control(out, kind, false, 4 * words.len());
    for word in words {
        push_word(out, *word);
    }
}

fn push_word(out: &mut Vec<u8>, word: u32) {
    out.extend_from_slice(&word.to_be_bytes());
}

fn push_flags_and_length(out: &mut Vec<u8>, fin: bool, length: usize) {
    let [_, x, y, z] = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    out.extend_from_slice(&[if fin { FLAG_FIN } else { 0 }, x, y, z]);
}

/// A payload that is read field by field.
struct Fields<'a> {
    kind: u16,
    rest: &'a [u8],
}

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(FrameError::BadControl(self.kind))?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn word(&mut self) -> Result<u32, FrameError> {
        self.take().map(u32::from_be_bytes)
    }

    fn half(&mut self) -> Result<u16, FrameError> {
        self.take().map(u16::from_be_bytes)
    }

    fn stream(&mut self) -> Result<u32, FrameError> {
        match self.word()? & MAX_STREAM_ID {
            0 => Err(FrameError::StreamZero),
            stream => Ok(stream),
        }
    }
}

#[cfg(test)]
mod tests;
