//! A WebSocket connection: its streams, and the driver's two halves.

use std::future::Future;
use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite, ReadHalf};

use super::channels::{Channels, Codec, Message, Mode, encode, encode_close_signal};
use super::frame::{CloseCode, Control, FrameHeader, Opcode, WsError, apply_mask};
use crate::driver::{Encoder, ReadEnd, Source, drive};
use crate::mux::{Item, Mux, Note};
use crate::{Limits, Role, Stream, StreamError};

/// Ends a connection in good order.
#[derive(Clone, Debug)]
pub struct Closer {
    mux: Arc<Mux>,
}

impl Closer {
    /// Closes the connection, with code 1000, once everything that streams were given is written.
    pub fn close(&self) {
        self.mux.close(None);
    }

    /// Tells that the connection stands, by an empty message on a channel.
    pub(crate) async fn hello(&self, channel: u8, codec: Codec) {
        let hello = match codec {
            Codec::Binary => Control::Hello(Opcode::Binary, channel),
            Codec::Base64 => Control::Hello(Opcode::Text, b'0'.wrapping_add(channel)),
        };
        self.mux.send(Note::Ws(hello)).await;
    }
}

/// Takes a connection on which the handshake is done, with one stream for each channel. The future drives it and must be polled for
/// anything to happen; it ends when the connection does, and dropping it ends the connection and all streams.
/// What arrives for a channel whose stream was dropped is dropped.
pub fn connect<I>(
    io: I,
    role: Role,
    channels: Channels,
    limits: Limits,
) -> (Vec<Stream>, Closer, impl Future<Output = Result<(), StreamError>> + Send)
where
    I: AsyncRead + AsyncWrite + Send + 'static,
{
    let mux = new_mux(&limits);
    let streams = (0..channels.count).map(|channel| mux.add(u32::from(channel))).collect();
    let closer = Closer { mux: Arc::clone(&mux) };
    (streams, closer, run(io, role, Mode::Channels(channels), limits, mux))
}

/// Takes a connection whose binary messages are one byte stream, as in `SPDY/3.1+portforward.k8s.io`. The peer's closing of it is the
/// end of the stream.
pub fn tunnel<I>(
    io: I,
    role: Role,
    limits: Limits,
) -> (Stream, Closer, impl Future<Output = Result<(), StreamError>> + Send)
where
    I: AsyncRead + AsyncWrite + Send + 'static,
{
    let mux = new_mux(&limits);
    let stream = mux.add(0);
    let closer = Closer { mux: Arc::clone(&mux) };
    (stream, closer, run(io, role, Mode::Tunnel, limits, mux))
}

fn new_mux(limits: &Limits) -> Arc<Mux> {
    Mux::new(limits, 0, Note::Ws(Control::Close(Some(CloseCode::NORMAL))))
}

async fn run<I: AsyncRead + AsyncWrite>(
    io: I,
    role: Role,
    mode: Mode,
    limits: Limits,
    mux: Arc<Mux>,
) -> Result<(), StreamError> {
    let (reader, writer) = tokio::io::split(io);
    let reader = Reader { source: Source::new(reader), mux: Arc::clone(&mux), role, mode, message: None };
    let keepalive = limits.keepalive.map(|period| (period, probe()));
    drive(mux, &limits, keepalive, reader.run(), writer, Writer { role, mode, closed: false }, role).await
}

fn probe() -> Note {
    Note::Ws(Control::Ping(Vec::new()))
}

struct Writer {
    role: Role,
    mode: Mode,
    /// Nothing may follow a close frame.
    closed: bool,
}

impl Encoder for Writer {
    fn encode(&mut self, item: Item<'_>, out: &mut Vec<u8>) {
        if self.closed {
            return;
        }
        match item {
            Item::Note(Note::Ws(control)) => {
                self.closed = matches!(control, Control::Close(_));
                control.encode(self.role.mask(), out);
            }
            Item::Data { stream, data, fin } => {
                if !data.is_empty() {
                    encode(self.mode, self.role, stream, data, out);
                }
                match self.mode {
                    Mode::Tunnel if fin => {
                        self.closed = true;
                        Control::Close(Some(CloseCode::NORMAL)).encode(self.role.mask(), out);
                    }
                    // Servers do not send the signal: upstream's client takes it for an unknown channel.
                    Mode::Channels(channels) if fin && channels.close_signal && self.role == Role::Client => {
                        encode_close_signal(self.role, stream, out);
                    }
                    Mode::Tunnel | Mode::Channels(_) => {}
                }
            }
            // WebSocket has no windows, channels cannot be cancelled, and there are no SPDY frames here.
            Item::Credit { .. } | Item::Cancel { .. } | Item::Note(Note::Spdy(_)) => {}
        }
    }
}

struct Reader<R> {
    source: Source<R>,
    mux: Arc<Mux>,
    role: Role,
    mode: Mode,
    message: Option<Message>,
}

impl<I: AsyncRead + AsyncWrite> Reader<ReadHalf<I>> {
    async fn run(mut self) -> io::Result<ReadEnd> {
        loop {
            match self.frame().await? {
                Ok(None) => {}
                Ok(Some(end)) => return Ok(end),
                Err(error) => {
                    let farewell = Note::Ws(Control::Close(Some(error.close_code())));
                    return Ok(ReadEnd::Broken(StreamError::WebSocket(error), farewell));
                }
            }
        }
    }

    async fn frame(&mut self) -> io::Result<Result<Option<ReadEnd>, WsError>> {
        let header = loop {
            match FrameHeader::parse(self.source.bytes(), self.role) {
                Ok(Some((header, used))) => {
                    self.source.used(used);
                    break header;
                }
                Ok(None) => {
                    let length = self.source.bytes().len() + 1;
                    if !self.source.need(length).await? {
                        return Ok(Ok(Some(ReadEnd::Closed(None))));
                    }
                }
                Err(error) => return Ok(Err(error)),
            }
        };
        match header.opcode.is_control() {
            true => self.control(header).await,
            false => Ok(self.data(header).await?.map(|()| None)),
        }
    }

    async fn control(&mut self, header: FrameHeader) -> io::Result<Result<Option<ReadEnd>, WsError>> {
        // At most 125 bytes, which parsing the header has made sure of.
        let length = usize::try_from(header.length).unwrap_or_default();
        if length > 0 && !self.source.need(length).await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut payload = self.source.bytes().get(..length).unwrap_or_default().to_vec();
        self.source.used(length);
        apply_mask(&mut payload, header.mask.unwrap_or_default(), 0);
        match Control::parse(header.opcode, &payload) {
            Ok(Control::Ping(payload)) => {
                self.mux.send(Note::Ws(Control::Pong(payload))).await;
                Ok(Ok(None))
            }
            Ok(Control::Close(code)) => {
                // A server that is done has said all. A client that goes leaves a command without the end of its input.
                let all_said = self.mode == Mode::Tunnel || self.role == Role::Client;
                if all_said && code.is_none_or(|code| code == CloseCode::NORMAL) {
                    self.mux.finish_all_receiving();
                }
                Ok(Ok(Some(ReadEnd::Closed(Some(Note::Ws(Control::Close(code)))))))
            }
            Ok(Control::Pong(_) | Control::Hello(..)) => Ok(Ok(None)),
            Err(error) => Ok(Err(error)),
        }
    }

    /// A frame may be longer than anything we would keep: its bytes are handed on as they come.
    async fn data(&mut self, header: FrameHeader) -> io::Result<Result<(), WsError>> {
        let message = match (&mut self.message, header.opcode) {
            (Some(message), Opcode::Continuation) => message,
            (None, Opcode::Text | Opcode::Binary) => match Message::new(self.mode, header.opcode) {
                Ok(message) => self.message.insert(message),
                Err(error) => return Ok(Err(error)),
            },
            _ => return Ok(Err(WsError::Fragment)),
        };
        let mut offset = 0;
        while offset < header.length {
            let left = usize::try_from(header.length - offset).unwrap_or(usize::MAX);
            let part = self.source.some(left).await?;
            if let Some(mask) = header.mask {
                apply_mask(part, mask, offset);
            }
            let length = part.len();
            if let Err(error) = message.push(part, &self.mux, probe).await {
                return Ok(Err(error));
            }
            self.source.used(length);
            offset += length as u64;
        }
        match (header.fin, self.message.take()) {
            (true, Some(message)) => Ok(message.finish(&self.mux, probe).await),
            (_, message) => {
                self.message = message;
                Ok(Ok(()))
            }
        }
    }
}

#[cfg(test)]
mod tests;
