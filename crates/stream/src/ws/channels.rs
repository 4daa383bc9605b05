//! The messages of `channel.k8s.io`: a byte that names the channel, then its data.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::frame::{Opcode, WsError, begin, finish};
use super::handshake::random;
use super::utf8::Utf8Check;
use crate::Role;
use crate::mux::{Mux, Note};

/// The channel number that closes another one (v5).
const CLOSE_SIGNAL: u8 = 255;
/// The longest base64 message. It has to be collected, because a message that is not base64 is dropped whole.
const MAX_BASE64_BYTES: usize = 1024 * 1024;

/// How data stand in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// As they are, in binary messages; the channel is a byte.
    Binary,
    /// In base64, in text messages; the channel is a digit.
    Base64,
}

/// Which channels a connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// How many, from 0 on.
    pub count: u8,
    /// How data stand in messages.
    pub codec: Codec,
    /// Whether the peers can close single channels (v5).
    pub close_signal: bool,
}

/// What messages mean on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// All messages are one byte stream.
    Tunnel,
    Channels(Channels),
}

/// A message of which the beginning has arrived.
#[derive(Debug)]
pub(super) struct Message {
    mode: Mode,
    text: Option<Utf8Check>,
    part: Part,
}

#[derive(Debug)]
enum Part {
    /// Nothing has come yet.
    Start,
    /// The rest goes to this channel.
    Data(u32),
    /// The rest is collected and then goes to this channel.
    Base64(u32, Vec<u8>),
    /// Which channel to close, and whether more bytes came than there may be.
    Close(Option<u8>, bool),
    /// The rest is nobody's.
    Dropped,
}

impl Message {
    pub(super) fn new(mode: Mode, opcode: Opcode) -> Result<Self, WsError> {
        let text = (opcode == Opcode::Text).then(Utf8Check::default);
        if mode == Mode::Tunnel && text.is_some() {
            return Err(WsError::TextInTunnel);
        }
        let part = if mode == Mode::Tunnel { Part::Data(0) } else { Part::Start };
        Ok(Self { mode, text, part })
    }

    /// Takes the next bytes of the message.
    pub(super) async fn push(
        &mut self,
        mut bytes: &[u8],
        mux: &Mux,
        probe: impl Fn() -> Note,
    ) -> Result<(), WsError> {
        if self.text.as_mut().is_some_and(|text| !text.push(bytes)) {
            return Err(WsError::NotUtf8);
        }
        if let (Part::Start, Mode::Channels(channels)) = (&self.part, self.mode) {
            let Some((first, rest)) = bytes.split_first() else { return Ok(()) };
            self.part = start(*first, channels);
            bytes = rest;
        }
        match &mut self.part {
            Part::Data(channel) => mux.deliver(*channel, bytes, probe).await,
            Part::Base64(_, collected) => {
                if collected.len() + bytes.len() > MAX_BASE64_BYTES {
                    return Err(WsError::TooLong { limit: MAX_BASE64_BYTES });
                }
                collected.extend_from_slice(bytes);
            }
            Part::Close(channel, more) => {
                for byte in bytes {
                    *more |= channel.is_some();
                    *channel = Some(*byte);
                }
            }
            Part::Start | Part::Dropped => {}
        }
        Ok(())
    }

    /// The message is whole.
    pub(super) async fn finish(self, mux: &Mux, probe: impl Fn() -> Note) -> Result<(), WsError> {
        if self.text.is_some_and(|text| !text.is_whole()) {
            return Err(WsError::NotUtf8);
        }
        match (self.part, self.mode) {
            (Part::Base64(channel, collected), _) => {
                // Upstream drops what is not base64 and goes on.
                if let Ok(data) = STANDARD.decode(collected) {
                    mux.deliver(channel, &data, probe).await;
                }
            }
            (Part::Close(Some(channel), false), Mode::Channels(channels)) if channel < channels.count => {
                mux.finish_receiving(u32::from(channel));
            }
            (Part::Close(..), _) => return Err(WsError::BadCloseSignal),
            (Part::Start | Part::Data(_) | Part::Dropped, _) => {}
        }
        Ok(())
    }
}

fn start(first: u8, channels: Channels) -> Part {
    if channels.close_signal && first == CLOSE_SIGNAL {
        return Part::Close(None, false);
    }
    let channel = match channels.codec {
        Codec::Binary => first,
        Codec::Base64 => first.wrapping_sub(b'0'),
    };
    match channels.codec {
        _ if channel >= channels.count => Part::Dropped,
        Codec::Binary => Part::Data(u32::from(channel)),
        Codec::Base64 => Part::Base64(u32::from(channel), Vec::new()),
    }
}

/// Appends data as a message.
pub(super) fn encode(mode: Mode, role: Role, stream: u32, data: &[u8], out: &mut Vec<u8>) {
    let mask = role.mask();
    let channel = u8::try_from(stream).unwrap_or(u8::MAX);
    let start = match mode {
        Mode::Tunnel => {
            let start = begin(Opcode::Binary, data.len(), mask, out);
            out.extend_from_slice(data);
            start
        }
        Mode::Channels(Channels { codec: Codec::Binary, .. }) => {
            let start = begin(Opcode::Binary, data.len() + 1, mask, out);
            out.push(channel);
            out.extend_from_slice(data);
            start
        }
        Mode::Channels(Channels { codec: Codec::Base64, .. }) => {
            let text = STANDARD.encode(data);
            let start = begin(Opcode::Text, text.len() + 1, mask, out);
            out.push(b'0'.wrapping_add(channel));
            out.extend_from_slice(text.as_bytes());
            start
        }
    };
    finish(start, mask, out);
}

/// Appends the message that closes a channel.
pub(super) fn encode_close_signal(role: Role, stream: u32, out: &mut Vec<u8>) {
    let mask = role.mask();
    let start = begin(Opcode::Binary, 2, mask, out);
    out.extend_from_slice(&[CLOSE_SIGNAL, u8::try_from(stream).unwrap_or(u8::MAX)]);
    finish(start, mask, out);
}

impl Role {
    /// Clients mask every frame with bytes of its own.
    pub(super) fn mask(self) -> Option<[u8; 4]> {
        match self {
            Self::Server => None,
            Self::Client => Some(random()),
        }
    }
}
