//! The connections of a server that can be made to lose them all.

use std::{
    io,
    net::{Shutdown, TcpStream},
    sync::{Arc, Mutex, PoisonError, Weak},
};

/// Those that are open.
#[derive(Debug, Default)]
pub(crate) struct OpenStreams(Mutex<Vec<Weak<TcpStream>>>);

impl OpenStreams {
    /// A copy, through which the connection can be closed from elsewhere. It is held as long as the connection is served, and
    /// no longer: with it the connection would stay open.
    pub(crate) fn keep(&self, stream: &TcpStream) -> io::Result<Arc<TcpStream>> {
        let copy = Arc::new(stream.try_clone()?);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&copy));
        Ok(copy)
    }

    pub(crate) fn close_all(&self) {
        for stream in self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if let Some(stream) = stream.upgrade() {
                // One that is closed already is what is wanted.
                stream.shutdown(Shutdown::Both).ok();
            }
        }
    }
}
