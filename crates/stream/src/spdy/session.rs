//! A SPDY connection: its handle, and the driver's two halves.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadHalf};

use super::frame::{
    Control, DEFAULT_WINDOW, FRAME_HEADER_BYTES, FrameError, FrameHeader, GoAwayStatus, ResetStatus,
    SETTINGS_INITIAL_WINDOW_SIZE, encode_data,
};
use super::headers::{HeaderDecoder, HeaderEncoder, Headers};
use crate::driver::{Encoder, ReadEnd, Source, drive};
use crate::mux::{Item, Mux, Note};
use crate::{Limits, Role, Stream, StreamError};

/// The longest control frame.
const MAX_CONTROL_BYTES: usize = 64 * 1024;
/// The widest window there is.
const MAX_WINDOW: u32 = 0x7fff_ffff;
/// How long a peer may take to accept a stream, as upstream's client has it.
const REPLY_DEADLINE: Duration = Duration::from_secs(30);

/// A handle to a SPDY connection.
///
/// Flow control: the peer's windows are obeyed as soon as it has shown that it keeps any, by a setting or an update. spdystream, which
/// all of Kubernetes uses, does neither and reads the connection at the pace of its slowest stream. We do the same: peers
/// get the widest windows, and a stream whose buffer is full stops the reading of the connection until somebody has read from it.
#[derive(Clone, Debug)]
pub struct Session {
    mux: Arc<Mux>,
    max_streams: usize,
}

/// A stream that the peer has opened and that is neither accepted nor refused. Dropping it refuses it.
#[derive(Debug)]
pub struct Incoming {
    stream: Stream,
    headers: Headers,
}

impl Session {
    /// Takes a connection on which the upgrade is done. The future drives it and must be polled for anything to happen;
    /// it ends when the connection does, and dropping it ends the connection and all streams.
    pub fn new<I>(
        io: I,
        role: Role,
        limits: Limits,
    ) -> (Self, impl Future<Output = Result<(), StreamError>> + Send)
    where
        I: AsyncRead + AsyncWrite + Send + 'static,
    {
        let first_id = match role {
            Role::Server => 2,
            Role::Client => 1,
        };
        let mux = Mux::new(&limits, first_id, go_away(0, GoAwayStatus::Ok));
        let session = Self { mux: Arc::clone(&mux), max_streams: limits.max_streams };
        let driver = async move {
            let (reader, writer) = tokio::io::split(io);
            let reader = Reader {
                source: Source::new(reader),
                mux: Arc::clone(&mux),
                role,
                decoder: HeaderDecoder::new(limits.header_bytes),
                max_streams: limits.max_streams,
                last_stream: 0,
                gone_away: false,
            };
            greet(&mux).await;
            let keepalive = limits.keepalive.map(|period| (period, Note::Spdy(Control::Ping(first_id))));
            drive(mux, &limits, keepalive, reader.run(), writer, Writer::default(), role).await
        };
        (session, driver)
    }

    /// The next stream that the peer opens; none when the connection has ended or is closing. Cancel safe.
    pub async fn accept(&self) -> Option<Incoming> {
        let (stream, headers) = self.mux.accept().await?;
        Some(Incoming { stream, headers })
    }

    /// Opens a stream and waits until the peer has accepted it.
    ///
    /// # Errors
    ///
    /// If the peer refuses it or does not answer in 30 s, or the connection has ended or has too many streams.
    pub async fn open(&self, headers: Headers) -> Result<Stream, StreamError> {
        let stream = self.mux.open(headers, self.max_streams).ok_or(StreamError::NotOpened)?;
        match tokio::time::timeout(REPLY_DEADLINE, stream.replied()).await {
            Ok(true) => Ok(stream),
            Ok(false) | Err(_) => Err(StreamError::NotOpened),
        }
    }

    /// Ends the connection once everything that streams were given is written.
    pub fn close(&self) {
        self.mux.close(None);
    }

    #[cfg(test)]
    pub(crate) fn mux(&self) -> &Mux {
        &self.mux
    }
}

impl Incoming {
    /// The headers it was opened with.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Its number on the connection.
    pub fn id(&self) -> u32 {
        self.stream.id()
    }

    /// Accepts it.
    pub fn accept(self) -> (Stream, Headers) {
        self.stream.accept();
        (self.stream, self.headers)
    }
}

/// Gives peers that keep windows the widest ones: what slows senders down is the full buffer of a stream, whoever they are.
async fn greet(mux: &Mux) {
    mux.send(Note::Spdy(Control::Settings(vec![(SETTINGS_INITIAL_WINDOW_SIZE, MAX_WINDOW)]))).await;
    mux.send(Note::Spdy(Control::WindowUpdate { stream: 0, delta: MAX_WINDOW - DEFAULT_WINDOW })).await;
}

fn go_away(last_good_stream: u32, status: GoAwayStatus) -> Note {
    Note::Spdy(Control::GoAway { last_good_stream, status: status as u32 })
}

#[derive(Debug, Default)]
struct Writer {
    headers: HeaderEncoder,
}

impl Encoder for Writer {
    fn encode(&mut self, item: Item<'_>, out: &mut Vec<u8>) {
        let control = match item {
            Item::Note(Note::Spdy(control)) => control,
            // The mux of a SPDY connection is given no others.
            Item::Note(Note::Ws(_)) => return,
            Item::Credit { stream, bytes } => Control::WindowUpdate { stream, delta: bytes },
            Item::Cancel { stream } => Control::RstStream { stream, status: ResetStatus::CANCEL },
            Item::Data { stream, data, fin } => return encode_data(stream, fin, data, out),
        };
        control.encode(&mut self.headers, out);
    }
}

struct Reader<R> {
    source: Source<R>,
    mux: Arc<Mux>,
    role: Role,
    decoder: HeaderDecoder,
    max_streams: usize,
    /// The highest stream that the peer has opened.
    last_stream: u32,
    gone_away: bool,
}

impl<I: AsyncRead + AsyncWrite> Reader<ReadHalf<I>> {
    async fn run(mut self) -> io::Result<ReadEnd> {
        loop {
            match self.frame().await? {
                Ok(true) => {}
                Ok(false) => return Ok(ReadEnd::Closed(None)),
                Err(error) => {
                    let farewell = go_away(self.last_stream, GoAwayStatus::ProtocolError);
                    return Ok(ReadEnd::Broken(StreamError::Frame(error), farewell));
                }
            }
        }
    }

    /// Reads one frame; false at the end.
    async fn frame(&mut self) -> io::Result<Result<bool, FrameError>> {
        if !self.source.need(FRAME_HEADER_BYTES).await? {
            return Ok(Ok(false));
        }
        let Some(header) = self.source.bytes().first_chunk() else { return Ok(Ok(false)) };
        let header = FrameHeader::parse(*header);
        self.source.used(FRAME_HEADER_BYTES);
        match header {
            Err(error) => Ok(Err(error)),
            Ok(FrameHeader::Data { stream, fin, length }) => {
                self.data(stream, fin, length).await?;
                Ok(Ok(true))
            }
            Ok(FrameHeader::Control { length, .. }) if length > MAX_CONTROL_BYTES => {
                Ok(Err(FrameError::ControlTooLong { length, limit: MAX_CONTROL_BYTES }))
            }
            Ok(FrameHeader::Control { kind, flags, length }) => {
                if length > 0 && !self.source.need(length).await? {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let payload = self.source.bytes().get(..length).unwrap_or_default();
                let control = Control::parse(kind, flags, payload, &mut self.decoder);
                self.source.used(length);
                match control {
                    Ok(control) => self.control(control).await,
                    Err(error) => return Ok(Err(error)),
                }
                Ok(Ok(true))
            }
        }
    }

    /// A frame may be longer than anything we would keep: its bytes are handed on as they come.
    async fn data(&mut self, stream: u32, fin: bool, length: usize) -> io::Result<()> {
        if self.is_theirs(stream) && stream > self.last_stream {
            self.reset(stream, ResetStatus::INVALID_STREAM).await;
        }
        let mut left = length;
        while left > 0 {
            let part = self.source.some(left).await?;
            let length = part.len();
            let probe = || Note::Spdy(Control::Ping(first_ping(self.role)));
            self.mux.deliver(stream, part, probe).await;
            self.source.used(length);
            left -= length;
        }
        if fin {
            self.mux.finish_receiving(stream);
        }
        Ok(())
    }

    async fn control(&mut self, control: Control) {
        match control {
            Control::SynStream { stream, fin, headers } => self.opened(stream, fin, headers).await,
            Control::SynReply { stream, fin, .. } => {
                self.mux.replied(stream);
                if fin {
                    self.mux.finish_receiving(stream);
                }
            }
            Control::Headers { stream, fin } if fin => self.mux.finish_receiving(stream),
            Control::RstStream { stream, .. } => self.mux.reset_by_peer(stream),
            Control::Settings(settings) => {
                for (id, value) in settings {
                    if id == SETTINGS_INITIAL_WINDOW_SIZE {
                        self.mux.obey_windows();
                        self.mux.set_initial_window(value & MAX_WINDOW);
                    }
                }
            }
            Control::WindowUpdate { stream, delta } => {
                self.mux.obey_windows();
                self.mux.widen(stream, i64::from(delta));
            }
            // Each side numbers its own pings: the others are to be answered.
            Control::Ping(id) if id % 2 != first_ping(self.role) % 2 => {
                self.mux.send(Note::Spdy(Control::Ping(id))).await;
            }
            Control::GoAway { .. } => self.gone_away = true,
            Control::Ping(_) | Control::Headers { .. } | Control::Unknown => {}
        }
    }

    async fn opened(&mut self, stream: u32, fin: bool, headers: Headers) {
        if self.gone_away {
            return;
        }
        if !self.is_theirs(stream) || stream <= self.last_stream {
            return self.reset(stream, ResetStatus::PROTOCOL_ERROR).await;
        }
        self.last_stream = stream;
        self.mux.room().await;
        if !self.mux.add_incoming(stream, headers, self.max_streams) {
            return self.reset(stream, ResetStatus::REFUSED_STREAM).await;
        }
        self.mux.set_farewell(go_away(stream, GoAwayStatus::Ok));
        if fin {
            self.mux.finish_receiving(stream);
        }
    }

    async fn reset(&mut self, stream: u32, status: ResetStatus) {
        self.mux.send(Note::Spdy(Control::RstStream { stream, status })).await;
    }

    fn is_theirs(&self, stream: u32) -> bool {
        stream % 2 != first_ping(self.role) % 2
    }
}

/// The parity of everything that this side numbers.
fn first_ping(role: Role) -> u32 {
    match role {
        Role::Server => 2,
        Role::Client => 1,
    }
}

#[cfg(test)]
mod tests;
