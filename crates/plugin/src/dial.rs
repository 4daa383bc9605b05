//! Sockets at paths of any length.

use std::{
    io,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags};
use tokio::net::UnixStream;

/// What the address of a socket has room for.
const MAX_ADDRESS: usize = 107;

/// Connects to a socket. A path that is too long for an address is gone through by its directory's descriptor.
///
/// # Errors
/// When nobody listens there.
pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    if path.as_os_str().len() <= MAX_ADDRESS {
        return UnixStream::connect(path).await;
    }
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let handle =
        rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd())).join(name);
    UnixStream::connect(short).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn long_paths_are_reached() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let handle = rustix::fs::open(&deep, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let short = format!("/proc/self/fd/{}/a.sock", handle.as_raw_fd());
        let _listener = std::os::unix::net::UnixListener::bind(short).unwrap();
        connect(&deep.join("a.sock")).await.unwrap();
        assert_eq!(connect(&deep.join("b.sock")).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
