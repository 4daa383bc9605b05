//! Which sockets there are.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Directories within one another.
const MAX_DEPTH: usize = 8;
/// Entries that are looked at; a registry has a few.
const MAX_ENTRIES: usize = 4096;

/// Tells one socket from the next at the same place: device, inode, and when it was made, where the file system knows that. Not when it was
/// changed: who makes a socket sets its mode afterwards.
pub(crate) type Identity = (u64, u64, Option<SystemTime>);

/// The sockets below a directory, but for those whose own or directory's name begins with a dot. Links are not followed. Blocks.
///
/// # Errors
/// When a directory cannot be read: what is missing then is not gone.
pub(crate) fn sockets(directory: &Path) -> io::Result<BTreeMap<PathBuf, Identity>> {
    let mut found = BTreeMap::new();
    let mut left = MAX_ENTRIES;
    let mut waiting = vec![(directory.to_owned(), 0)];
    while let Some((directory, depth)) = waiting.pop() {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            // One below went while this was looking.
            Err(error) if depth > 0 && error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            left = left.checked_sub(1).ok_or_else(|| {
                io::Error::other(format!("there are more than {MAX_ENTRIES} files and directories"))
            })?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.file_type().is_socket() {
                let identity = (metadata.dev(), metadata.ino(), metadata.created().ok());
                found.insert(entry.path(), identity);
            } else if metadata.is_dir() && depth < MAX_DEPTH {
                waiting.push((entry.path(), depth + 1));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::PermissionsExt as _, net::UnixListener};

    use super::*;

    #[test]
    fn only_sockets_count_at_any_depth() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir_all(path("a/b")).unwrap();
        fs::create_dir_all(path(".hidden")).unwrap();
        fs::write(path("file"), "").unwrap();
        let _listeners = ["one.sock", "a/b/two.sock", ".three.sock", ".hidden/four.sock"]
            .map(|name| UnixListener::bind(path(name)).unwrap());
        std::os::unix::fs::symlink(path("one.sock"), path("link.sock")).unwrap();
        let found = sockets(root.path()).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), [&path("a/b/two.sock"), &path("one.sock")]);
        assert!(sockets(&path("nothing")).is_err());
        // Another mode is no other socket; another one at the same place is.
        fs::set_permissions(path("one.sock"), fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(sockets(root.path()).unwrap(), found);
        fs::remove_file(path("one.sock")).unwrap();
        let _again = UnixListener::bind(path("one.sock")).unwrap();
        assert_ne!(sockets(root.path()).unwrap(), found);
    }

    #[test]
    fn a_flood_of_entries_is_an_error_and_not_a_wait() {
        let root = tempfile::tempdir().unwrap();
        for number in 0..=MAX_ENTRIES {
            fs::create_dir(root.path().join(number.to_string())).unwrap();
        }
        assert!(sockets(root.path()).unwrap_err().to_string().contains("more than"));
    }
}
