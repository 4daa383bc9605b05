//! Being told that something in a directory changed.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::unix::AsyncFd;

/// An inotify watch on one directory. It says that something happened, not what: the reader looks anyway.
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
            | WatchFlags::ONLYDIR;
        inotify::add_watch(&inotify, directory, changes)?;
        #[expect(
            deprecated,
            reason = "the replacement is unsafe, for types that may change their descriptor; an OwnedFd cannot"
        )]
        let inotify = AsyncFd::new(inotify)?;
        Ok(Self { inotify })
    }

    /// Waits until something happened since the last call; the events themselves are thrown away. Cancel safe.
    pub(crate) async fn changed(&self) -> io::Result<()> {
        let mut guard = self.inotify.readable().await?;
        let mut buffer = [0_u8; 4096];
        loop {
            match rustix::io::read(self.inotify.get_ref(), &mut buffer) {
                Ok(length) if length > 0 => {}
                Ok(_) | Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        guard.clear_ready();
        Ok(())
    }
}
