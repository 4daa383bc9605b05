//! The connections of a server that can be made to lose them all.

use std::{
    io,
    net::{Shutdown, TcpStream},
    sync::{Mutex, PoisonError},
};

/// Those that are open, as copies.
#[derive(Debug, Default)]
pub(crate) struct OpenStreams(Mutex<Vec<TcpStream>>);

impl OpenStreams {
    pub(crate) fn keep(&self, stream: &TcpStream) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(stream.try_clone()?);
        Ok(())
    }

    pub(crate) fn close_all(&self) {
        for stream in self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // One that is closed already is what is wanted.
            stream.shutdown(Shutdown::Both).ok();
        }
    }
}
