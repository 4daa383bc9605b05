//! Who has a place: connections are counted, and those who have not shown who they are make room for those who may.
//!
//! Strangers can open connections faster than any deadline closes them, so a listener that is full does not wait: it closes the
//! oldest connection of the address that has most of them, among those on which nobody has been let in yet. Whoever has been
//! let in keeps the place. What strangers send and has not been answered yet is bounded over all of them together.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tokio::sync::Notify;

/// So much of what a stranger sends does not count: handshakes and ordinary requests are shorter.
const FREE_BYTES: usize = 16 << 10;
/// So much may all strangers together have sent beyond that, without an answer yet.
const STRANGERS_BYTES: usize = 32 << 20;

/// How many places a listener has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// In all.
    pub(crate) all: usize,
    /// Of these, as many are kept by those who have been let in; others who are let in may have to make room.
    pub(crate) kept: usize,
}

/// The places of one listener.
#[derive(Debug)]
pub(crate) struct Door {
    places: Places,
    state: Mutex<State>,
    /// Told when a place becomes free.
    free: Notify,
    strangers_bytes: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Connections that may be closed to make room, the oldest first.
    strangers: BTreeMap<u64, Arc<Seat>>,
    /// The same by where they come from.
    by_address: HashMap<Option<IpAddr>, BTreeSet<u64>>,
    kept: usize,
}

impl State {
    fn add(&mut self, seat: Arc<Seat>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.by_address.entry(seat.address).or_default().insert(number);
        self.strangers.insert(number, seat);
        number
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Seat>> {
        let seat = self.strangers.remove(&number)?;
        if let Some(numbers) = self.by_address.get_mut(&seat.address) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_address.remove(&seat.address);
            }
        }
        Some(seat)
    }

    /// The oldest connection of the address that has most of them; of equal ones, whose oldest is oldest.
    fn greediest(&self) -> Option<u64> {
        let heaps = self.by_address.values().filter_map(|numbers| Some((numbers.len(), *numbers.first()?)));
        heaps.max_by_key(|(count, oldest)| (*count, std::cmp::Reverse(*oldest))).map(|(_, oldest)| oldest)
    }
}

#[derive(Debug)]
struct Seat {
    address: Option<IpAddr>,
    leave: Notify,
}

/// One connection's place; given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    door: Arc<Door>,
    number: u64,
    seat: Arc<Seat>,
    /// Somebody has been let in on it.
    known: AtomicBool,
    /// It is one of those that are kept.
    kept: AtomicBool,
    /// Bytes that were sent since the last answer.
    sent: AtomicUsize,
    /// Requests that are being answered.
    open: AtomicUsize,
}

impl Door {
    pub(crate) fn new(places: Places) -> Arc<Self> {
        let (state, free) = (Mutex::default(), Notify::new());
        Arc::new(Self { places, state, free, strangers_bytes: AtomicUsize::new(0) })
    }

    /// A place for a connection, as soon as there is one: at once, unless all are kept. Cancel safe.
    pub(crate) async fn enter(self: &Arc<Self>, address: Option<IpAddr>) -> Place {
        loop {
            // Before looking: a place that becomes free in between is not missed.
            let free = self.free.notified();
            if let Some(place) = self.try_enter(address) {
                return place;
            }
            free.await;
        }
    }

    fn try_enter(self: &Arc<Self>, address: Option<IpAddr>) -> Option<Place> {
        let mut state = self.lock();
        if state.strangers.len() + state.kept >= self.places.all {
            let number = state.greediest()?;
            let seat = state.remove(number)?;
            tracing::debug!(address = ?seat.address, "a connection on which nobody was let in makes room for another");
            seat.leave.notify_one();
        }
        let seat = Arc::new(Seat { address, leave: Notify::new() });
        let number = state.add(Arc::clone(&seat));
        let (known, kept) = (AtomicBool::new(false), AtomicBool::new(false));
        let (sent, open) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Some(Place { door: Arc::clone(self), number, seat, known, kept, sent, open })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Resolves when the connection has to make room. Cancel safe.
    pub(crate) async fn leave(&self) {
        self.seat.leave.notified().await;
    }

    /// Somebody has been let in on this connection: it keeps its place, if not too many do.
    pub(crate) fn keep(&self) {
        if self.kept.load(Ordering::Acquire) {
            return;
        }
        self.known.store(true, Ordering::Release);
        let mut state = self.door.lock();
        if state.kept < self.door.places.kept && state.remove(self.number).is_some() {
            state.kept += 1;
            self.kept.store(true, Ordering::Release);
            drop(state);
            self.forget_sent();
        }
    }

    /// Whether somebody has been let in on this connection, kept or not.
    pub(crate) fn is_known(&self) -> bool {
        self.known.load(Ordering::Acquire)
    }

    /// Counts what was sent.
    ///
    /// # Errors
    /// When strangers have sent too much: the connection must end.
    pub(crate) fn sent(&self, bytes: usize) -> io::Result<()> {
        if bytes == 0 || self.kept.load(Ordering::Acquire) {
            return Ok(());
        }
        let before = self.sent.fetch_add(bytes, Ordering::AcqRel);
        let counted = beyond(before + bytes) - beyond(before);
        if counted == 0 {
            return Ok(());
        }
        let all = self.door.strangers_bytes.fetch_add(counted, Ordering::AcqRel) + counted;
        if all > STRANGERS_BYTES {
            return Err(io::Error::other("those who have not been let in have sent too much"));
        }
        Ok(())
    }

    /// A request that is being answered; when it is dropped, what it was made of is gone.
    pub(crate) fn request(self: &Arc<Self>) -> OpenRequest {
        self.open.fetch_add(1, Ordering::AcqRel);
        OpenRequest(Arc::clone(self))
    }

    fn forget_sent(&self) {
        let counted = beyond(self.sent.swap(0, Ordering::AcqRel));
        self.door.strangers_bytes.fetch_sub(counted, Ordering::AcqRel);
    }
}

fn beyond(bytes: usize) -> usize {
    bytes.saturating_sub(FREE_BYTES)
}

impl Drop for Place {
    fn drop(&mut self) {
        self.forget_sent();
        let mut state = self.door.lock();
        if self.kept.load(Ordering::Acquire) {
            state.kept -= 1;
        } else {
            // One that had to make room has been taken out already.
            state.remove(self.number);
        }
        drop(state);
        self.door.free.notify_one();
    }
}

/// See [`Place::request`].
#[derive(Debug)]
pub(crate) struct OpenRequest(Arc<Place>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.forget_sent();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_now::now;

    use super::*;

    mod futures_now {
        use std::{
            future::Future,
            pin::pin,
            task::{Context, Poll, Waker},
        };

        /// What a future says without waiting.
        pub(super) fn now<T>(future: impl Future<Output = T>) -> Option<T> {
            match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(value) => Some(value),
                Poll::Pending => None,
            }
        }
    }

    fn address(last: u8) -> Option<IpAddr> {
        Some([10, 0, 0, last].into())
    }

    #[test]
    fn strangers_make_room_and_those_let_in_do_not() {
        let door = Door::new(Places { all: 4, kept: 3 });
        let enter = |last| now(door.enter(address(last)));
        let friend = enter(1).unwrap();
        friend.keep();
        let quiet = enter(2).unwrap();
        let greedy: Vec<Place> = (0..2).map(|_| enter(3).unwrap()).collect();
        assert!(now(quiet.leave()).is_none());
        let next = enter(4).unwrap();
        assert!(now(greedy[0].leave()).is_some(), "the oldest of the address that has most");
        assert!(now(greedy[1].leave()).is_none() && now(friend.leave()).is_none());
        let last = enter(5).unwrap();
        assert!(now(quiet.leave()).is_some(), "of equals the oldest");

        next.keep();
        last.keep();
        greedy[1].keep();
        assert!(!greedy[1].kept.load(Ordering::Relaxed), "one place is always for newcomers");
        let newcomer = enter(6).unwrap();
        assert!(now(greedy[1].leave()).is_some());
        drop((greedy, quiet));
        let taken = || {
            let state = door.lock();
            state.strangers.len() + state.kept
        };
        assert_eq!(taken(), 4);
        drop((newcomer, friend, next, last));
        assert_eq!(taken(), 0);
    }

    #[test]
    fn when_all_are_kept_newcomers_wait() {
        let door = Door::new(Places { all: 1, kept: 1 });
        let first = now(door.enter(None)).unwrap();
        first.keep();
        let mut second = std::pin::pin!(door.enter(None));
        assert!(now(second.as_mut()).is_none());
        drop(first);
        assert!(now(second.as_mut()).is_some());
    }

    #[test]
    fn what_strangers_send_is_bounded_until_it_is_answered() {
        let door = Door::new(Places { all: 100, kept: 50 });
        let enter = || Arc::new(now(door.enter(None)).unwrap());
        let places: Vec<_> = (0..40).map(|_| enter()).collect();
        let fitting = places.iter().take_while(|place| place.sent(1 << 20).is_ok()).count();
        assert_eq!(fitting, 32);
        places.iter().for_each(|place| place.sent(0).unwrap());
        let friend = enter();
        friend.keep();
        friend.sent(1 << 30).unwrap();
        friend.sent(1 << 30).unwrap();
        // Answered: the memory is free again.
        let (one, two) = (places[0].request(), places[0].request());
        drop(one);
        let full = door.strangers_bytes.load(Ordering::Relaxed);
        assert!(full > STRANGERS_BYTES);
        drop(two);
        assert_eq!(full - door.strangers_bytes.load(Ordering::Relaxed), (1 << 20) - FREE_BYTES);
        drop(places);
        assert_eq!(door.strangers_bytes.load(Ordering::Relaxed), 0);
    }
}
