//! How full a file system is.

use std::io;
use std::path::Path;

/// Bytes and inodes of the file system that a path lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesystemUsage {
    /// Its size.
    pub capacity_bytes: u64,
    /// What users other than root can still write.
    pub available_bytes: u64,
    /// What is in use (capacity minus all that is free).
    pub used_bytes: u64,
    /// How many inodes it can have; zero where they are not limited.
    pub inodes: u64,
    /// How many of them are free.
    pub inodes_free: u64,
    /// How many are in use.
    pub inodes_used: u64,
}

impl FilesystemUsage {
    /// Asks the file system mounted at `path`; `None` when `path` is not a mount point but a directory of another one.
    /// Hangs as long as that does: call it where that is bearable.
    ///
    /// # Errors
    /// What `statvfs` or `stat` say.
    pub fn of_mount(path: &Path) -> io::Result<Option<Self>> {
        let above = rustix::fs::stat(path.parent().unwrap_or(Path::new("/")))?;
        if rustix::fs::lstat(path)?.st_dev == above.st_dev {
            return Ok(None);
        }
        Self::of(path).map(Some)
    }

    /// Asks the file system of `path`. Hangs as long as that does: call it where that is bearable.
    ///
    /// # Errors
    /// What `statvfs` says.
    pub fn of(path: &Path) -> io::Result<Self> {
        let stat = rustix::fs::statvfs(path)?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(Self {
            capacity_bytes: bytes(stat.f_blocks),
            available_bytes: bytes(stat.f_bavail),
            used_bytes: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
            inodes: stat.f_files,
            inodes_free: stat.f_ffree,
            inodes_used: stat.f_files.saturating_sub(stat.f_ffree),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_file_system() {
        let usage = FilesystemUsage::of(Path::new("/")).unwrap();
        assert!(usage.capacity_bytes > 0 && usage.used_bytes > 0);
        assert!(usage.used_bytes + usage.available_bytes <= usage.capacity_bytes);
        FilesystemUsage::of(Path::new("/no/such/path")).unwrap_err();
    }
}
