//! WebSocket frames as bytes.

use crate::Role;

/// The longest payload of a control frame.
pub(crate) const MAX_CONTROL_BYTES: usize = 125;
/// The longest frame header: two bytes, eight of length, four of mask.
const MAX_HEADER_BYTES: usize = 14;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;

const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;

/// Why the peer's bytes are not WebSocket, or more than is taken. The connection cannot go on after any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WsError {
    /// Reserved bits are set, but no extension was agreed upon.
    #[error("a frame with reserved bits")]
    Reserved,
    /// An opcode that does not exist.
    #[error("a frame with opcode {0}")]
    Opcode(u8),
    /// A control frame that is too long or in parts.
    #[error("a control frame that is too long or fragmented")]
    BadControl,
    /// A length that is not written in its shortest form, or does not fit 63 bits.
    #[error("a frame with a malformed length")]
    BadLength,
    /// Clients must mask, servers must not.
    #[error("a frame that is masked and should not be, or the other way round")]
    Mask,
    /// A message began inside another, or went on where none was.
    #[error("a fragment out of order")]
    Fragment,
    /// A text that is not UTF-8.
    #[error("a text message that is not UTF-8")]
    NotUtf8,
    /// A close frame with a code that may not be sent.
    #[error("a close frame with a wrong code")]
    BadClose,
    /// A base64 message that is longer than is collected.
    #[error("a base64 message longer than the limit of {limit} bytes")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// A close signal (255) that does not name one channel.
    #[error("a stream close signal that does not name one of the channels")]
    BadCloseSignal,
    /// Text where only bytes belong.
    #[error("a text message in a tunnel")]
    TextInTunnel,
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseCode(pub u16);

impl CloseCode {
    /// All is done.
    pub const NORMAL: Self = Self(1000);
    /// The peer broke the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1002);
    /// A text was not UTF-8.
    pub const INVALID_DATA: Self = Self(1007);
    /// A message was too long.
    pub const TOO_BIG: Self = Self(1009);

    /// Whether it may stand in a close frame (RFC 6455, section 7.4).
    pub(crate) fn is_sendable(self) -> bool {
        matches!(self.0, 1000..=1003 | 1007..=1014 | 3000..=4999)
    }
}

impl WsError {
    /// The code that the peer is told. Upstream ends a connection over a wrong message of its own protocols with the ordinary code.
    pub(crate) fn close_code(self) -> CloseCode {
        match self {
            Self::NotUtf8 => CloseCode::INVALID_DATA,
            Self::TooLong { .. } => CloseCode::TOO_BIG,
            Self::BadCloseSignal | Self::TextInTunnel => CloseCode::NORMAL,
            _ => CloseCode::PROTOCOL_ERROR,
        }
    }
}

/// A control frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    /// None: a close frame without a code.
    Close(Option<CloseCode>),
    /// Not a control frame but sent like one: a message with nothing but its channel, which tells that the connection stands.
    Hello(Opcode, u8),
}

impl Control {
    /// Reads a control frame's payload.
    pub(crate) fn parse(opcode: Opcode, payload: &[u8]) -> Result<Self, WsError> {
        match opcode {
            Opcode::Ping => Ok(Self::Ping(payload.to_vec())),
            Opcode::Pong => Ok(Self::Pong(payload.to_vec())),
            Opcode::Close => match payload {
                [] => Ok(Self::Close(None)),
                [high, low, reason @ ..] => {
                    let code = CloseCode(u16::from_be_bytes([*high, *low]));
                    if !code.is_sendable() {
                        return Err(WsError::BadClose);
                    }
                    std::str::from_utf8(reason).map_err(|_| WsError::NotUtf8)?;
                    Ok(Self::Close(Some(code)))
                }
                [_] => Err(WsError::BadClose),
            },
            Opcode::Continuation | Opcode::Text | Opcode::Binary => Err(WsError::BadControl),
        }
    }

    /// Appends the whole frame.
    pub(crate) fn encode(&self, mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
        let code;
        let (opcode, payload) = match self {
            Self::Ping(payload) => (Opcode::Ping, payload.as_slice()),
            Self::Pong(payload) => (Opcode::Pong, payload.as_slice()),
            Self::Close(None) => (Opcode::Close, [].as_slice()),
            Self::Close(Some(why)) => {
                code = why.0.to_be_bytes();
                (Opcode::Close, code.as_slice())
            }
            Self::Hello(opcode, channel) => (*opcode, std::slice::from_ref(channel)),
        };
        let start = begin(opcode, payload.len(), mask, out);
        out.extend_from_slice(payload);
        finish(start, mask, out);
    }
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opcode {
    Continuation,
    Text,
    Binary,
    Close,
    Ping,
    Pong,
}

impl Opcode {
    pub(crate) fn is_control(self) -> bool {
        matches!(self, Self::Close | Self::Ping | Self::Pong)
    }

    fn bits(self) -> u8 {
        match self {
            Self::Continuation => CONTINUATION,
            Self::Text => TEXT,
            Self::Binary => BINARY,
            Self::Close => CLOSE,
            Self::Ping => PING,
            Self::Pong => PONG,
        }
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) opcode: Opcode,
    /// Whether it is the last frame of its message.
    pub(crate) fin: bool,
    pub(crate) length: u64,
    pub(crate) mask: Option<[u8; 4]>,
}

impl FrameHeader {
    /// Reads a header as `us` would get it, and how long it is; none if more bytes are needed.
    pub(crate) fn parse(bytes: &[u8], us: Role) -> Result<Option<(Self, usize)>, WsError> {
        let Some(([first, second], rest)) = bytes.split_first_chunk() else { return Ok(None) };
        if first & RESERVED != 0 {
            return Err(WsError::Reserved);
        }
        let fin = first & FIN != 0;
        let opcode = match first & 0x0f {
            CONTINUATION => Opcode::Continuation,
            TEXT => Opcode::Text,
            BINARY => Opcode::Binary,
            CLOSE => Opcode::Close,
            PING => Opcode::Ping,
            PONG => Opcode::Pong,
            other => return Err(WsError::Opcode(other)),
        };
        let masked = second & MASKED != 0;
        if masked != (us == Role::Server) {
            return Err(WsError::Mask);
        }
        let short = second & !MASKED;
        if opcode.is_control() && (!fin || usize::from(short) > MAX_CONTROL_BYTES) {
            return Err(WsError::BadControl);
        }
        let (length, rest) = match short {
            126 => {
                let Some((length, rest)) = rest.split_first_chunk() else { return Ok(None) };
                (u64::from(u16::from_be_bytes(*length)), rest)
            }
            127 => {
                let Some((length, rest)) = rest.split_first_chunk() else { return Ok(None) };
                (u64::from_be_bytes(*length), rest)
            }
            short => (u64::from(short), rest),
        };
        let shortest = match short {
            126 => length > 125,
            127 => length > 0xffff && length >> 63 == 0,
            _ => true,
        };
        if !shortest {
            return Err(WsError::BadLength);
        }
        let (mask, rest) = match masked {
            true => {
                let Some((mask, rest)) = rest.split_first_chunk() else { return Ok(None) };
                (Some(*mask), rest)
            }
            false => (None, rest),
        };
        Ok(Some((Self { opcode, fin, length, mask }, bytes.len() - rest.len())))
    }
}

/// Appends the header of an unfragmented frame; where its payload begins, for [`finish`].
pub(crate) fn begin(opcode: Opcode, length: usize, mask: Option<[u8; 4]>, out: &mut Vec<u8>) -> usize {
    out.reserve(MAX_HEADER_BYTES + length);
    out.push(FIN | opcode.bits());
    let masked = if mask.is_some() { MASKED } else { 0 };
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ 0..=125), _) => out.push(masked | short),
        (_, Ok(medium)) => {
            out.push(masked | 126);
            out.extend_from_slice(&medium.to_be_bytes());
        }
        _ => {
            out.push(masked | 127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(mask.as_ref().map_or(&[][..], |mask| mask));
    out.len()
}

/// Masks the payload that begins at `start` and ends the buffer.
pub(crate) fn finish(start: usize, mask: Option<[u8; 4]>, out: &mut [u8]) {
    if let (Some(mask), Some(payload)) = (mask, out.get_mut(start..)) {
        apply_mask(payload, mask, 0);
    }
}

/// Masks or unmasks bytes that stand at `offset` in their frame.
pub(crate) fn apply_mask(bytes: &mut [u8], mask: [u8; 4], offset: u64) {
    let [a, b, c, d] = mask;
    let turned = match offset % 4 {
        0 => [a, b, c, d],
        1 => [b, c, d, a],
        2 => [c, d, a, b],
        _ => [d, a, b, c],
    };
    let word = u32::from_ne_bytes(turned);
    let mut words = bytes.chunks_exact_mut(4);
    for chunk in &mut words {
        if let Ok(four) = <[u8; 4]>::try_from(&*chunk) {
            chunk.copy_from_slice(&(u32::from_ne_bytes(four) ^ word).to_ne_bytes());
        }
    }
    for (byte, mask) in words.into_remainder().iter_mut().zip(turned) {
        *byte ^= mask;
    }
}

/// Reads frames one after another until the bytes end or are wrong; how many there were.
#[doc(hidden)]
pub fn fuzz_frames(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while let Ok(Some((header, used))) = FrameHeader::parse(bytes, Role::Server) {
        let rest = bytes.get(used..).unwrap_or_default();
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        let Some((payload, rest)) = rest.split_at_checked(length) else { return count };
        let mut payload = payload.to_vec();
        apply_mask(&mut payload, header.mask.unwrap_or_default(), 0);
        if header.opcode.is_control() && Control::parse(header.opcode, &payload).is_err() {
            return count;
        }
        count += 1;
        bytes = rest;
    }
    count
}

#[cfg(test)]
mod tests;
