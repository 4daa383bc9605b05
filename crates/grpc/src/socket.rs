//! Unix sockets in directories of their own: made whole, then shown; removed when nobody listens any more.

use std::{
    fs, io,
    os::{
        fd::AsRawFd,
        unix::{
            fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
    process,
};

use rustix::fs::{AtFlags, Gid, Mode, OFlags};

/// Who may connect: access to a socket is access to its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Mode of the directories. Whoever may enter may connect.
    pub mode: u32,
    /// Group of directories and sockets; `None` leaves it as it comes.
    pub group: Option<u32>,
}

impl Default for Access {
    /// Upstream's.
    fn default() -> Self {
        Self { mode: 0o750, group: None }
    }
}

impl Access {
    /// Who may enter the directory may also write to the socket, which is what connecting needs.
    fn socket_mode(self) -> u32 {
        [0o100, 0o010, 0o001].into_iter().filter(|enter| self.mode & enter != 0).map(|enter| enter * 6).sum()
    }
}

/// Why a socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The directory.
    #[error("cannot make the directory {path} of a gRPC socket; is something else there, and may this user write above it?", path = path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The group.
    #[error("cannot give {path} to group {group}; may this user, and does the file system know groups?", path = path.display())]
    Group {
        /// Directory or socket.
        path: PathBuf,
        /// The group's number.
        group: u32,
        /// What the system said.
        source: io::Error,
    },
    /// The socket.
    #[error("cannot listen on {path}; may this user write to its directory?", path = path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something else has the socket's name.
    #[error("{path} is in the way: it is not a socket; move it elsewhere", path = path.display())]
    NotASocket {
        /// What is in the way.
        path: PathBuf,
    },
}

/// A socket on which it is listened. Its file is removed when dropped, unless another has taken its place.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    identity: (u64, u64),
    listener: UnixListener,
}

impl Socket {
    /// Makes the directory, binds under a name that nobody looks for, and renames: there is no moment without a socket, and
    /// none in which it has the wrong owner.
    pub(crate) fn bind(directory: &Path, name: &str, access: &Access) -> Result<Self, SocketError> {
        let failed = |source| SocketError::Directory { path: directory.to_owned(), source };
        fs::DirBuilder::new().recursive(true).mode(access.mode).create(directory).map_err(failed)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(access.mode)).map_err(failed)?;
        own(directory, access)?;
        let path = directory.join(name);
        if let Ok(found) = fs::symlink_metadata(&path)
            && !found.file_type().is_socket()
        {
            return Err(SocketError::NotASocket { path });
        }
        let failed = |source: io::Error| SocketError::Socket { path: path.clone(), source };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle =
            rustix::fs::open(directory, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        let hidden = format!(".{name}.{}", process::id());
        match rustix::fs::unlinkat(&handle, &hidden, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
        // An address holds 107 bytes; through the descriptor the directory's own length does not count.
        let address = format!("/proc/self/fd/{}/{hidden}", handle.as_raw_fd());
        let listener = UnixListener::bind(&address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let temporary = directory.join(&hidden);
        fs::set_permissions(&temporary, fs::Permissions::from_mode(access.socket_mode())).map_err(failed)?;
        own(&temporary, access)?;
        let identity = identity(&temporary).map_err(failed)?;
        rustix::fs::renameat(&handle, &hidden, &handle, name).map_err(|errno| failed(errno.into()))?;
        Ok(Self { path, identity, listener })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// For the async runtime; the file stays this value's.
    pub(crate) fn listener(&self) -> io::Result<tokio::net::UnixListener> {
        tokio::net::UnixListener::from_std(self.listener.try_clone()?)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket; the next start will");
        }
    }
}

/// Removes what an earlier mainstay left, so that nobody waits for an answer there.
pub(crate) fn remove_stale(path: &Path) -> Result<(), SocketError> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        _ => return Ok(()),
    }
    fs::remove_file(path).map_err(|source| SocketError::Socket { path: path.to_owned(), source })
}

fn own(path: &Path, access: &Access) -> Result<(), SocketError> {
    let Some(group) = access.group else { return Ok(()) };
    rustix::fs::chown(path, None, Some(Gid::from_raw(group))).map_err(|errno| SocketError::Group {
        path: path.to_owned(),
        group,
        source: errno.into(),
    })
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_socket_is_there_whole_and_goes_with_its_listener() {
        let root = tempfile::tempdir().unwrap();
        // Longer than an address.
        let directory = root.path().join("a".repeat(120)).join("api");
        let access = Access { mode: 0o755, group: None };
        let first = Socket::bind(&directory, "x.sock", &access).unwrap();
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((mode(&directory), mode(first.path())), (0o755, 0o666));
        let second = Socket::bind(&directory, "x.sock", &Access::default()).unwrap();
        assert_eq!((mode(&directory), mode(second.path())), (0o750, 0o660));
        drop(first);
        assert!(second.path().exists(), "another's");
        let names: Vec<_> = fs::read_dir(&directory).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(names, ["x.sock"]);
        let path = second.path().to_owned();
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn what_is_stale_is_removed_and_what_is_no_socket_is_not() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x.sock");
        remove_stale(&path).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let again = Socket::bind(root.path(), "x.sock", &Access::default()).unwrap();
        drop(UnixStream::connect(again.path()).unwrap());
        std::mem::forget(again);
        remove_stale(&path).unwrap();
        assert!(!path.exists());
        fs::write(&path, "mine").unwrap();
        remove_stale(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        let error = Socket::bind(root.path(), "x.sock", &Access::default()).unwrap_err();
        assert!(error.to_string().contains("is in the way"), "{error}");
    }
}
