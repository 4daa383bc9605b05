//! Answers that are made once for everybody who asks before the next change.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::stream;
use mainstay_task::Shutdown;

use crate::wire::{Code, Messages, Status};

/// The newest answer, and what it was made from.
#[derive(Debug)]
pub(crate) struct Made<K> {
    newest: Mutex<Option<(K, Bytes)>>,
}

impl<K> Default for Made<K> {
    fn default() -> Self {
        Self { newest: Mutex::default() }
    }
}

impl<K: PartialEq> Made<K> {
    /// The answer for this, made now if it is not there. One that comes out the same as the last is the same bytes.
    pub(crate) fn get(&self, from: K, make: impl FnOnce() -> Bytes) -> Bytes {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        match newest.as_mut() {
            Some((last, bytes)) if *last == from => bytes.clone(),
            Some((last, bytes)) => {
                let made = make();
                *last = from;
                if *bytes != made {
                    *bytes = made;
                }
                bytes.clone()
            }
            None => newest.insert((from, make())).1.clone(),
        }
    }
}

/// A watch whose every message is the whole: who reads slowly is told only the newest.
pub(crate) trait Newest: Send + 'static {
    /// What there is to tell now.
    fn now(&mut self) -> Result<Bytes, Status>;

    /// Ends when there may be something new; an error when there never will be. Cancel safe.
    fn changed(&mut self) -> impl Future<Output = Result<(), Status>> + Send;
}

/// Tells the newest, and again whenever it has changed.
pub(crate) fn watch(source: impl Newest, shutdown: &Shutdown) -> Messages {
    let state = (source, None::<Bytes>, shutdown.clone());
    Box::pin(stream::unfold(state, |(mut source, mut told, shutdown)| async move {
        loop {
            let now = match source.now() {
                Ok(now) => now,
                Err(status) => return Some((Err(status), (source, told, shutdown))),
            };
            if told.as_ref() != Some(&now) {
                told = Some(now.clone());
                return Some((Ok(now), (source, told, shutdown)));
            }
            let changed = shutdown.run_until_signalled(source.changed()).await;
            if let Err(status) = changed.unwrap_or_else(|| Err(ending())) {
                return Some((Err(status), (source, told, shutdown)));
            }
        }
    }))
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
