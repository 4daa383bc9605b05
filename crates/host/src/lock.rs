//! A file that one process at a time can hold.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The lock; it is given up when this is dropped or the process ends, however it ends. The file itself stays, because
/// removing it would let two processes each lock a file of that name.
#[derive(Debug)]
pub struct LockFile {
    path: PathBuf,
    _file: File,
}

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Someone else has it.
    #[error("another mainstay ({holder}) holds {path}; stop it, or use another --root-dir", path = path.display())]
    Held {
        /// The lock file.
        path: PathBuf,
        /// `pid N, cmd …`, as the holder wrote it.
        holder: String,
    },
    /// The file cannot be opened, locked or written.
    #[error("cannot use the lock file {path}; check that its directory exists and is writable", path = path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl LockFile {
    /// Takes the lock at `path` without waiting, and writes our pid and command into the file for others to see.
    ///
    /// # Errors
    /// [`LockError::Held`] if another process (or another `LockFile` of this one) has it.
    pub fn acquire(path: &Path) -> Result<Self, LockError> {
        let failed = |source| LockError::Io { path: path.to_owned(), source };
        // Not truncated when opened: the holder's words are needed if there is one.
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(LockError::Held { path: path.to_owned(), holder: holder(&mut file) });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        // The lock holds without them; a full disk only costs the next one our name.
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "pid {}, cmd {}", std::process::id(), own_command()));
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error, "cannot write pid and command into the lock file");
        }
        Ok(Self { path: path.to_owned(), _file: file })
    }

    /// Where the lock file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn holder(file: &mut File) -> String {
    let mut text = Vec::new();
    // The holder may just be writing, then there is nothing to tell.
    drop(file.take(4096).read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    match text.trim() {
        "" => "pid unknown".to_owned(),
        text => text.to_owned(),
    }
}

fn own_command() -> String {
    let arguments = fs::read("/proc/self/cmdline").unwrap_or_default();
    let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
    arguments.chars().filter(|c| !c.is_control()).take(1000).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child of this process that another test is just starting holds every lock between its fork and its exec.
    fn acquire_soon(path: &Path) {
        let started = std::time::Instant::now();
        while let Err(error) = LockFile::acquire(path) {
            assert!(started.elapsed().as_secs() < 60, "{error}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    #[test]
    fn the_second_is_told_who_the_first_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mainstay.lock");
        fs::write(&path, "pid 1, cmd of a dead holder with a very long command line ".repeat(20)).unwrap();
        let lock = LockFile::acquire(&path).unwrap();
        assert_eq!(lock.path(), path);
        let error = LockFile::acquire(&path).unwrap_err().to_string();
        let expected = format!("another mainstay (pid {}, cmd ", std::process::id());
        assert!(error.starts_with(&expected) && error.contains(path.to_str().unwrap()), "{error}");
        assert!(!error.contains("dead holder"), "{error}");
        drop(lock);
        acquire_soon(&path);
    }

    #[test]
    fn another_process_is_kept_out_and_a_killed_one_lets_go() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        // flock(1) of util-linux takes the same lock.
        let mut child = std::process::Command::new("flock")
            .args(["--no-fork", "-x"])
            .arg(&path)
            .args(["sleep", "60"])
            .spawn()
            .unwrap();
        let started = std::time::Instant::now();
        while LockFile::acquire(&path).is_ok() {
            assert!(started.elapsed().as_secs() < 60, "flock did not take the lock");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(LockFile::acquire(&path).unwrap_err().to_string().contains("another mainstay"));
        child.kill().unwrap();
        child.wait().unwrap();
        acquire_soon(&path);
    }

    #[test]
    fn a_missing_directory_is_named() {
        let error = LockFile::acquire(Path::new("/no/such/directory/lock")).unwrap_err().to_string();
        assert!(error.contains("/no/such/directory/lock"), "{error}");
    }
}
