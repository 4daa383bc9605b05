//! Answers that are made once for everybody who asks before the next change.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use futures_util::stream;
use mainstay_task::Shutdown;

use crate::{
    piece::PIECE,
    wire::{Code, Messages, Status},
};

/// Whoever is in the middle of a message while so many newer ones are made is let go. So no more than these are kept, however many there are who
/// do not read.
const KEPT: u64 = 16;

/// The newest answer, what it was made from, and who reads answers.
#[derive(Debug)]
pub(crate) struct Made<K> {
    newest: Mutex<Option<(K, Version)>>,
    readers: Readers,
}

/// An answer, and how many others were made before it.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) number: u64,
    pub(crate) bytes: Bytes,
}

impl<K> Default for Made<K> {
    fn default() -> Self {
        Self { newest: Mutex::default(), readers: Readers::default() }
    }
}

impl<K: PartialEq> Made<K> {
    /// The answer for this, made now if it is not there. One that comes out the same as the last is the same version.
    pub(crate) fn get(&self, from: K, make: impl FnOnce() -> Bytes) -> Version {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        match newest.as_mut() {
            Some((last, version)) if *last == from => version.clone(),
            Some((last, version)) => {
                let bytes = make();
                *last = from;
                if version.bytes != bytes {
                    *version = Version { number: version.number + 1, bytes };
                    self.readers.let_go(version.number);
                }
                version.clone()
            }
            None => newest.insert((from, Version { number: 0, bytes: make() })).1.clone(),
        }
    }

    /// Tells the newest, and again whenever it has changed.
    pub(crate) fn watch(&self, source: impl Newest, shutdown: &Shutdown) -> Messages {
        let watcher = Watcher { source, slot: self.readers.enter(), told: None, shutdown: shutdown.clone() };
        Box::pin(stream::unfold(watcher, |mut watcher| async move {
            let piece = watcher.next().await;
            Some((piece, watcher))
        }))
    }
}

/// A watch whose every message is the whole: who reads slowly is told only the newest.
pub(crate) trait Newest: Send + 'static {
    /// What there is to tell now.
    fn now(&mut self) -> Result<Version, Status>;

    /// Ends when there may be something new; an error when there never will be. Cancel safe.
    fn changed(&mut self) -> impl Future<Output = Result<(), Status>> + Send;
}

/// Everybody's slots.
#[derive(Debug, Default)]
struct Readers(Mutex<Vec<Weak<Slot>>>);

impl Readers {
    fn enter(&self) -> Arc<Slot> {
        let slot = Arc::<Slot>::default();
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|slot| slot.strong_count() > 0);
        slots.push(Arc::downgrade(&slot));
        slot
    }

    /// Takes what is too old from those who do not read it.
    fn let_go(&self, newest: u64) {
        let slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for slot in slots.iter().filter_map(Weak::upgrade) {
            let mut telling = slot.telling();
            if matches!(&*telling, Telling::Message(version) if version.number + KEPT <= newest) {
                *telling = Telling::LetGo;
            }
        }
    }
}

/// What is being told to one. Beside the watcher, and not in it, because whoever does not read is not asked for more.
#[derive(Debug, Default)]
struct Slot(Mutex<Telling>);

#[derive(Debug, Default)]
enum Telling {
    #[default]
    Nothing,
    /// What is left of it.
    Message(Version),
    /// It was taken away.
    LetGo,
}

impl Slot {
    fn telling(&self) -> MutexGuard<'_, Telling> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, version: Version) {
        *self.telling() = Telling::Message(version);
    }

    /// The next piece of the message, if it has not been told yet: a copy.
    fn piece(&self) -> Option<Result<Bytes, Status>> {
        let mut telling = self.telling();
        match &mut *telling {
            Telling::Nothing => None,
            Telling::LetGo => Some(Err(Status::new(
                Code::ResourceExhausted,
                format!("the watch was not read while {KEPT} newer messages were made; begin anew"),
            ))),
            Telling::Message(version) => {
                let count = version.bytes.len().min(PIECE);
                let piece = Bytes::copy_from_slice(&version.bytes.split_to(count));
                if version.bytes.is_empty() {
                    *telling = Telling::Nothing;
                }
                Some(Ok(piece))
            }
        }
    }
}

/// A watch.
struct Watcher<S> {
    source: S,
    slot: Arc<Slot>,
    /// Which version was told last.
    told: Option<u64>,
    shutdown: Shutdown,
}

impl<S: Newest> Watcher<S> {
    /// The next piece of the stream. Cancel safe: only the wait for a change is waited for.
    async fn next(&mut self) -> Result<Bytes, Status> {
        loop {
            if let Some(piece) = self.slot.piece() {
                return piece;
            }
            let now = self.source.now()?;
            if self.told != Some(now.number) {
                self.told = Some(now.number);
                self.slot.tell(now);
                continue;
            }
            let changed = self.shutdown.run_until_signalled(self.source.changed()).await;
            changed.unwrap_or_else(|| Err(ending()))?;
        }
    }
}

pub(crate) fn ending() -> Status {
    Status::new(Code::Unavailable, "the agent is ending; connect again")
}

/// Two of the same, by where they are.
#[derive(Clone, Debug)]
pub(crate) struct Same<T>(pub(crate) Arc<T>);

impl<T> PartialEq for Same<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_read_keeps_only_what_is_new() {
        let made = Made::<u64>::default();
        let size = 3 * PIECE;
        let version =
            |number: u64| made.get(number, || Bytes::from(vec![u8::try_from(number).unwrap(); size]));
        // Each begins with another version and reads one piece of it.
        let slots: Vec<_> = (0..40)
            .map(|number| {
                let slot = made.readers.enter();
                slot.tell(version(number));
                assert_eq!(slot.piece().unwrap().unwrap().len(), PIECE);
                slot
            })
            .collect();
        let kept = |slot: &Arc<Slot>| matches!(*slot.telling(), Telling::Message(_));
        let which: Vec<_> = (0..40).filter(|at| kept(&slots[*at])).collect();
        assert_eq!(which, (24..40).collect::<Vec<_>>());
        let ended = slots[0].piece().unwrap().unwrap_err();
        assert_eq!(ended.code, Code::ResourceExhausted);
        let rest: Vec<u8> = (0..2).flat_map(|_| slots[30].piece().unwrap().unwrap()).collect();
        assert_eq!(rest, vec![30; 2 * PIECE]);
        assert!(slots[30].piece().is_none(), "all is told");
        // One that comes out the same is none that is newer.
        for from in 1000..1100 {
            assert_eq!(made.get(from, || Bytes::from(vec![39; size])).number, 39);
        }
        assert!(kept(&slots[25]));
    }
}
