//! The directory that plugins and mainstay find one another in.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{
            fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _},
            net::UnixListener,
        },
    },
    path::{Component, Path, PathBuf},
};

use rustix::fs::{Mode, OFlags};

use crate::DevicesError;

/// Upstream's.
const NAME: &str = "kubelet.sock";
/// Upstream's; who may enter may register.
const MODE: u32 = 0o750;

/// The directory, held open: the address of a socket has room for 107 bytes, and through the descriptor the directory's own name does
/// not count.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    handle: OwnedFd,
}

impl Directory {
    /// Makes the directory, and removes sockets of an earlier life: plugins know by it that they have to register again. Files and
    /// directories in it are left alone.
    pub(crate) fn open(path: &Path) -> Result<Self, DevicesError> {
        let failed = |source| DevicesError::Directory { path: path.to_owned(), source };
        fs::DirBuilder::new().recursive(true).mode(MODE).create(path).map_err(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(MODE)).map_err(failed)?;
        for entry in fs::read_dir(path).map_err(failed)?.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_socket())
                && let Err(error) = fs::remove_file(entry.path())
            {
                tracing::warn!(path = %entry.path().display(), %error, "cannot remove a socket of before");
            }
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        Ok(Self { path: path.to_owned(), handle })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn listen(&self) -> Result<UnixListener, DevicesError> {
        let failed = |source: io::Error| DevicesError::Socket { path: self.path.join(NAME), source };
        let listener = UnixListener::bind(self.within(NAME)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(listener)
    }

    /// Where a plugin is to be called back; `None` if that would be outside the directory.
    pub(crate) fn endpoint(&self, name: &str) -> Option<PathBuf> {
        let mut parts = Path::new(name).components().peekable();
        parts.peek()?;
        parts.all(|part| matches!(part, Component::Normal(_))).then(|| self.within(name))
    }

    fn within(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.handle.as_raw_fd()).into()
    }
}
