//! What the handles of a connection share with its driver: the buffers of every stream, and what is to be sent.
//!
//! Both protocols have the same shape: many byte streams on one connection. [`Mux`] knows no frames. Handles put bytes
//! in and take bytes out; the driver's reader delivers, its writer takes what is ready. All buffers are bounded: a writer
//! whose buffer is full waits, and a reader that finds a stream's buffer full stops reading the connection, which is how
//! SPDY peers that know no windows (all of them in practice) are slowed down.

mod stream;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::Limits;
use crate::spdy::{Control, Headers};
use crate::ws;

pub use stream::Stream;

/// How many frames other than data may wait to be written before the reader waits with them.
const MAX_NOTES: usize = 64;
/// How long the reader waits for a full stream before it asks whether the peer is still there.
const STALL_PROBE: Duration = Duration::from_secs(5);
/// The most data in one frame: a stream does not hold up its neighbours for longer than this takes.
const MAX_FRAME_BYTES: usize = 32 * 1024;
/// After how many bytes a peer that keeps windows is given new ones; half of what it is given at first. Seldom, because a frame that
/// reaches a closed socket makes the kernel throw away what the other side has not sent yet, and spdystream closes at once.
const CREDIT_BYTES: usize = 1 << 30;

/// The shared state of one connection.
#[derive(Debug)]
pub(crate) struct Mux {
    state: Mutex<State>,
    /// The writer should look again.
    outgoing: Notify,
    /// The reader may go on.
    space: Notify,
    /// There is a new stream, or never will be one again.
    incoming: Notify,
}

/// A frame that is not data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    Spdy(Control),
    Ws(ws::Control),
}

/// Something to be written.
#[derive(Debug)]
pub(crate) enum Item<'a> {
    Note(Note),
    /// So many bytes were taken out of a stream's buffer (0: of all) since the last time this was said.
    Credit {
        stream: u32,
        bytes: u32,
    },
    Data {
        stream: u32,
        data: &'a [u8],
        fin: bool,
    },
    /// The stream's handle is gone before both directions ended.
    Cancel {
        stream: u32,
    },
}

/// What the writer found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// There may be more.
    Some,
    /// Nothing is waiting; [`Mux::work`] tells when there is.
    Nothing,
    /// Nothing is waiting and nothing will come: the connection is to be closed.
    Done,
}

#[derive(Debug)]
struct State {
    stream_bytes: usize,
    session_bytes: usize,
    streams: HashMap<u32, Buffers>,
    /// Streams that have something for the writer.
    ready: VecDeque<u32>,
    notes: VecDeque<Note>,
    /// Streams whose credit is worth telling.
    credits: VecDeque<u32>,
    session_credit: usize,
    /// Streams that wait because of the connection's bound, not their own.
    starved: Vec<u32>,
    received_bytes: usize,
    unsent_bytes: usize,
    incoming: VecDeque<(u32, Headers)>,
    next_id: u32,
    /// Whether the peer has shown that it keeps windows, see [`Mux::obey_windows`].
    obey_windows: bool,
    session_window: i64,
    initial_window: i64,
    reader_waits: bool,
    closing: bool,
    farewell: Option<Note>,
    ended: bool,
    last_activity: Instant,
}

#[derive(Debug)]
struct Buffers {
    received: BytesMut,
    receive_end: ReceiveEnd,
    reader: Option<Waker>,
    unsent: BytesMut,
    send_end: SendEnd,
    writer: Option<Waker>,
    window: i64,
    credit: usize,
    queued: bool,
    replied: bool,
    /// The peer opened it and has had no answer yet.
    unanswered: bool,
    /// The peer has ended both directions; it takes nothing more.
    cancelled: bool,
    /// Whether somebody still holds the handle.
    held: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiveEnd {
    Open,
    Finished,
    Reset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendEnd {
    Open,
    /// After what is in the buffer.
    Asked,
    Sent,
}

impl Buffers {
    fn new(window: i64, replied: bool) -> Self {
        Self {
            received: BytesMut::new(),
            receive_end: ReceiveEnd::Open,
            reader: None,
            unsent: BytesMut::new(),
            send_end: SendEnd::Open,
            writer: None,
            window,
            credit: 0,
            queued: false,
            replied,
            unanswered: false,
            cancelled: false,
            held: true,
        }
    }

    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }
}

impl Mux {
    /// `first_id` is the first stream that this side would open; `farewell` the last frame of a connection that ends well.
    pub(crate) fn new(limits: &Limits, first_id: u32, farewell: Note) -> Arc<Self> {
        let initial_window = i64::from(crate::spdy::DEFAULT_WINDOW);
        Arc::new(Self {
            state: Mutex::new(State {
                stream_bytes: limits.stream_bytes,
                session_bytes: limits.session_bytes,
                streams: HashMap::new(),
                ready: VecDeque::new(),
                notes: VecDeque::new(),
                credits: VecDeque::new(),
                session_credit: 0,
                starved: Vec::new(),
                received_bytes: 0,
                unsent_bytes: 0,
                incoming: VecDeque::new(),
                next_id: first_id,
                obey_windows: false,
                session_window: initial_window,
                initial_window,
                reader_waits: false,
                closing: false,
                farewell: Some(farewell),
                ended: false,
                last_activity: Instant::now(),
            }),
            outgoing: Notify::new(),
            space: Notify::new(),
            incoming: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // For the driver's reader.

    /// Adds a stream that the peer opened, to be accepted or refused by whoever waits for it. False if there are as many already.
    pub(crate) fn add_incoming(&self, id: u32, headers: Headers, max_streams: usize) -> bool {
        let mut state = self.lock();
        if state.streams.len() >= max_streams || state.closing || state.ended {
            return false;
        }
        let window = state.initial_window;
        state.streams.insert(id, Buffers { unanswered: true, ..Buffers::new(window, true) });
        state.incoming.push_back((id, headers));
        self.incoming.notify_one();
        true
    }

    /// Adds a stream that needs no opening and gives its handle.
    pub(crate) fn add(self: &Arc<Self>, id: u32) -> Stream {
        let mut state = self.lock();
        let window = state.initial_window;
        state.streams.insert(id, Buffers::new(window, true));
        Stream::new(self, id)
    }

    /// Hands data to a stream, waiting until its buffer takes them. Data for a stream that nobody reads are dropped.
    pub(crate) async fn deliver(&self, id: u32, mut data: &[u8], probe: impl Fn() -> Note) {
        loop {
            let taken = self.lock().deliver(id, data);
            self.tell_writer();
            data = data.get(taken..).unwrap_or_default();
            if data.is_empty() {
                return;
            }
            // Whoever reads nothing hears nothing: a write shows whether the peer is still there.
            if tokio::time::timeout(STALL_PROBE, self.space.notified()).await.is_err() {
                let mut state = self.lock();
                if state.notes.len() < MAX_NOTES {
                    state.notes.push_back(probe());
                    self.outgoing.notify_one();
                }
            }
        }
    }

    /// The peer sends no more on this stream.
    pub(crate) fn finish_receiving(&self, id: u32) {
        if let Some(stream) = self.lock().streams.get_mut(&id)
            && stream.receive_end == ReceiveEnd::Open
        {
            stream.receive_end = ReceiveEnd::Finished;
            stream.wake();
        }
    }

    /// The peer sends no more on any stream.
    pub(crate) fn finish_all_receiving(&self) {
        for stream in self.lock().streams.values_mut() {
            if stream.receive_end == ReceiveEnd::Open {
                stream.receive_end = ReceiveEnd::Finished;
                stream.wake();
            }
        }
    }

    /// The peer ended the stream at once.
    pub(crate) fn reset_by_peer(&self, id: u32) {
        let mut state = self.lock();
        if let Some(place) = state.incoming.iter().position(|(waiting, _)| *waiting == id) {
            state.incoming.remove(place);
            state.forget(id);
            return;
        }
        let Some(stream) = state.streams.get_mut(&id) else { return };
        stream.cancelled = true;
        // What had ended in good order before stays so.
        if stream.receive_end == ReceiveEnd::Open {
            stream.receive_end = ReceiveEnd::Reset;
        }
        let unsent = std::mem::take(&mut stream.unsent).len();
        stream.wake();
        let held = stream.held;
        state.unsent_bytes -= unsent;
        if !held {
            state.forget(id);
        }
    }

    /// The peer has accepted a stream of ours.
    pub(crate) fn replied(&self, id: u32) {
        if let Some(stream) = self.lock().streams.get_mut(&id) {
            stream.replied = true;
            stream.wake();
        }
    }

    /// Queues a frame, waiting while too many are queued.
    pub(crate) async fn send(&self, note: Note) {
        self.room().await;
        self.lock().notes.push_back(note);
        self.outgoing.notify_one();
    }

    /// Waits while too many frames are queued, for what makes handles queue more of them.
    pub(crate) async fn room(&self) {
        loop {
            {
                let mut state = self.lock();
                if state.notes.len() < MAX_NOTES || state.ended {
                    return;
                }
                state.reader_waits = true;
            }
            self.space.notified().await;
        }
    }

    /// From now on nothing is sent beyond the peer's windows.
    ///
    /// Nothing in SPDY says whether a peer keeps windows. spdystream, on which every Kubernetes component is built, neither sends nor reads
    /// window updates, so keeping to the default of 64 KiB would stop for ever. Whoever sends a setting or an update
    /// of windows has shown that it does; what was sent till then is counted.
    pub(crate) fn obey_windows(&self) {
        self.lock().obey_windows = true;
    }

    /// The peer takes more on a stream, or on the whole connection (0).
    pub(crate) fn widen(&self, id: u32, bytes: i64) {
        let mut state = self.lock();
        if id == 0 {
            state.session_window = state.session_window.saturating_add(bytes);
            let waiting: Vec<u32> =
                state.streams.iter().filter(|(_, s)| !s.unsent.is_empty()).map(|(id, _)| *id).collect();
            for id in waiting {
                state.queue(id);
            }
        } else if let Some(stream) = state.streams.get_mut(&id) {
            stream.window = stream.window.saturating_add(bytes);
            state.queue(id);
        }
        drop(state);
        self.outgoing.notify_one();
    }

    /// The peer's streams begin with this window; those that are open change by the difference.
    pub(crate) fn set_initial_window(&self, window: u32) {
        let mut state = self.lock();
        let difference = i64::from(window) - state.initial_window;
        state.initial_window = i64::from(window);
        let ids: Vec<u32> = state.streams.keys().copied().collect();
        for id in ids {
            if let Some(stream) = state.streams.get_mut(&id) {
                stream.window = stream.window.saturating_add(difference);
            }
            state.queue(id);
        }
        drop(state);
        self.outgoing.notify_one();
    }

    // For the driver's writer.

    /// Hands out what is ready, until `sink` has had enough (it returns whether it takes more).
    pub(crate) fn fill(&self, sink: &mut dyn FnMut(Item<'_>) -> bool) -> Filled {
        let mut state = self.lock();
        let state = &mut *state;
        let filled = state.fill(sink);
        if filled == Filled::Some {
            state.last_activity = Instant::now();
            for id in std::mem::take(&mut state.starved) {
                if let Some(writer) = state.streams.get_mut(&id).and_then(|stream| stream.writer.take()) {
                    writer.wake();
                }
            }
            if state.reader_waits && state.notes.len() < MAX_NOTES {
                state.reader_waits = false;
                self.space.notify_one();
            }
        }
        filled
    }

    /// Waits until there may be something to write.
    pub(crate) async fn work(&self) {
        self.outgoing.notified().await;
    }

    /// Replaces the last frame of a connection that ends well.
    pub(crate) fn set_farewell(&self, farewell: Note) {
        let mut state = self.lock();
        if !state.closing {
            state.farewell = Some(farewell);
        }
    }

    /// The last frame, once.
    pub(crate) fn farewell(&self) -> Option<Note> {
        self.lock().farewell.take()
    }

    // For the driver.

    /// Ends the connection after everything is written that streams hold, then with the farewell (or another one).
    pub(crate) fn close(&self, farewell: Option<Note>) {
        let mut state = self.lock();
        state.closing = true;
        if farewell.is_some() {
            state.farewell = farewell;
        }
        drop(state);
        self.outgoing.notify_one();
        self.space.notify_one();
        self.incoming.notify_one();
    }

    /// Every handle fails from now on (what was received can still be read), and nothing more is written but the farewell.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        state.closing = true;
        state.ready.clear();
        state.unsent_bytes = 0;
        for stream in state.streams.values_mut() {
            stream.unsent = BytesMut::new();
            stream.wake();
        }
        drop(state);
        self.outgoing.notify_one();
        self.space.notify_one();
        self.incoming.notify_one();
    }

    /// When something was last sent or received.
    pub(crate) fn last_activity(&self) -> Instant {
        self.lock().last_activity
    }

    // For the session's handle.

    /// The next stream that the peer opened; none when there will be no more.
    pub(crate) async fn accept(self: &Arc<Self>) -> Option<(Stream, Headers)> {
        loop {
            {
                let mut state = self.lock();
                if let Some((id, headers)) = state.incoming.pop_front() {
                    return Some((Stream::new(self, id), headers));
                }
                if state.closing || state.ended {
                    // The next one who asks must not wait either.
                    self.incoming.notify_one();
                    return None;
                }
            }
            self.incoming.notified().await;
        }
    }

    /// Begins a stream of our own; [`Stream::replied`] tells when the peer has accepted it.
    pub(crate) fn open(self: &Arc<Self>, headers: Headers, max_streams: usize) -> Option<Stream> {
        let mut state = self.lock();
        let id = state.next_id;
        if state.closing
            || state.ended
            || state.streams.len() >= max_streams
            || id > crate::spdy::MAX_STREAM_ID
        {
            return None;
        }
        state.next_id += 2;
        let window = state.initial_window;
        state.streams.insert(id, Buffers::new(window, false));
        state.notes.push_back(Note::Spdy(Control::SynStream { stream: id, fin: false, headers }));
        drop(state);
        self.outgoing.notify_one();
        Some(Stream::new(self, id))
    }

    fn tell_writer(&self) {
        if !self.lock().credits.is_empty() {
            self.outgoing.notify_one();
        }
    }

    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> (usize, usize, usize) {
        let state = self.lock();
        (state.streams.len(), state.received_bytes, state.unsent_bytes)
    }
}

impl State {
    fn deliver(&mut self, id: u32, data: &[u8]) -> usize {
        self.last_activity = Instant::now();
        let Some(stream) = self.streams.get_mut(&id) else {
            self.give_session_credit(data.len());
            return data.len();
        };
        if !stream.held || stream.receive_end != ReceiveEnd::Open || self.closing {
            self.give_session_credit(data.len());
            return data.len();
        }
        let room = self.stream_bytes.saturating_sub(stream.received.len());
        let room = room.min(self.session_bytes.saturating_sub(self.received_bytes));
        let taken = room.min(data.len());
        stream.received.extend_from_slice(&data[..taken]);
        self.received_bytes += taken;
        if let Some(reader) = stream.reader.take() {
            reader.wake();
        }
        if taken < data.len() {
            self.reader_waits = true;
        }
        taken
    }

    fn give_session_credit(&mut self, bytes: usize) {
        self.session_credit += bytes;
        if self.session_credit >= CREDIT_BYTES && !self.credits.contains(&0) {
            self.credits.push_back(0);
        }
    }

    fn queue(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !stream.queued
        {
            stream.queued = true;
            self.ready.push_back(id);
        }
    }

    fn forget(&mut self, id: u32) {
        if let Some(stream) = self.streams.remove(&id) {
            self.received_bytes = self.received_bytes.saturating_sub(stream.received.len());
            self.unsent_bytes = self.unsent_bytes.saturating_sub(stream.unsent.len());
        }
    }

    fn fill(&mut self, sink: &mut dyn FnMut(Item<'_>) -> bool) -> Filled {
        let mut found = false;
        while let Some(note) = self.notes.pop_front() {
            found = true;
            if !sink(Item::Note(note)) {
                return Filled::Some;
            }
        }
        while let Some(id) = self.credits.pop_front() {
            let credit = match id {
                0 => std::mem::take(&mut self.session_credit),
                _ => self.streams.get_mut(&id).map_or(0, |stream| std::mem::take(&mut stream.credit)),
            };
            let Ok(bytes) = u32::try_from(credit) else { continue };
            if bytes == 0 {
                continue;
            }
            found = true;
            if !sink(Item::Credit { stream: id, bytes }) {
                return Filled::Some;
            }
        }
        while let Some(id) = self.ready.pop_front() {
            let (said, more) = self.fill_from(id, sink);
            found |= said;
            if !more {
                return Filled::Some;
            }
        }
        match (found, self.closing && self.unsent_bytes == 0) {
            (true, _) => Filled::Some,
            (false, true) => Filled::Done,
            (false, false) => Filled::Nothing,
        }
    }

    /// Takes one step for a stream: whether something was said, and whether the sink takes more.
    fn fill_from(&mut self, id: u32, sink: &mut dyn FnMut(Item<'_>) -> bool) -> (bool, bool) {
        let Some(stream) = self.streams.get_mut(&id) else { return (false, true) };
        stream.queued = false;
        if stream.cancelled {
            if !stream.held {
                self.forget(id);
            }
            return (false, true);
        }
        if !stream.unsent.is_empty() {
            let mut length = stream.unsent.len().min(MAX_FRAME_BYTES);
            if self.obey_windows {
                let window = stream.window.min(self.session_window).max(0);
                length = length.min(usize::try_from(window).unwrap_or(usize::MAX));
                if length == 0 {
                    // Put back when the window widens.
                    return (false, true);
                }
            }
            let fin = stream.send_end == SendEnd::Asked && length == stream.unsent.len();
            if fin {
                stream.send_end = SendEnd::Sent;
            }
            let more = sink(Item::Data { stream: id, data: &stream.unsent[..length], fin });
            stream.unsent.advance(length);
            let sent = i64::try_from(length).unwrap_or(i64::MAX);
            stream.window -= sent;
            self.session_window -= sent;
            self.unsent_bytes -= length;
            if stream.unsent.is_empty() {
                stream.unsent = BytesMut::new();
            }
            if let Some(writer) = stream.writer.take() {
                writer.wake();
            }
            if !stream.unsent.is_empty() || !stream.held {
                self.queue(id);
            }
            return (true, more);
        }
        if stream.send_end == SendEnd::Asked {
            stream.send_end = SendEnd::Sent;
            let held = stream.held;
            let more = sink(Item::Data { stream: id, data: &[], fin: true });
            if !held {
                self.queue(id);
            }
            return (true, more);
        }
        if !stream.held {
            let both_ended = stream.send_end == SendEnd::Sent && stream.receive_end == ReceiveEnd::Finished;
            self.forget(id);
            if !both_ended {
                return (true, sink(Item::Cancel { stream: id }));
            }
        }
        (false, true)
    }
}
