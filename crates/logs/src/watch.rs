//! Being told that something in a directory changed.

use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use tokio::io::unix::AsyncFd;

/// An inotify watch on one directory. It says that something happened, not what: the reader looks anyway. Only that a file
/// was closed by who wrote to it cannot be looked at, so that is told.
#[derive(Debug)]
pub(crate) struct DirectoryWatch {
    inotify: AsyncFd<OwnedFd>,
}

impl DirectoryWatch {
    pub(crate) fn new(directory: &Path) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let changes = WatchFlags::MODIFY
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ONLYDIR;
        inotify::add_watch(&inotify, directory, changes)?;
        #[expect(
            deprecated,
            reason = "the replacement is unsafe, for types that may change their descriptor; an OwnedFd cannot"
        )]
        let inotify = AsyncFd::new(inotify)?;
        Ok(Self { inotify })
    }

    /// Waits until something happened since the last call; the names of files that a writer has closed. Cancel safe.
    pub(crate) async fn changed(&self) -> io::Result<Vec<OsString>> {
        let mut guard = self.inotify.readable().await?;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(self.inotify.get_ref(), &mut buffer);
        let mut closed = Vec::new();
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::CLOSE_WRITE) => {
                    closed.extend(event.file_name().map(|name| OsString::from_vec(name.to_bytes().to_vec())));
                }
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        guard.clear_ready();
        Ok(closed)
    }
}
