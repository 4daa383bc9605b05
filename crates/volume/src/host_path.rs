//! Host paths: nothing is mounted, but what is there must be what the pod says.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _},
    path::Path,
};

use mainstay_podspec::volumes::HostPathType;

use crate::VolumeError;

/// Checks a host path, and makes what the pod wants to be made.
pub(crate) fn check(path: &Path, kind: HostPathType) -> Result<(), VolumeError> {
    let io = |action, source| VolumeError::Io { action, path: path.to_owned(), source };
    let exists = || match fs::metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io("look at", error)),
    };
    match kind {
        HostPathType::Unset => return Ok(()),
        HostPathType::DirectoryOrCreate if !exists()? => {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(path)
                .map_err(|error| io("make the directory", error))?;
        }
        HostPathType::FileOrCreate if !exists()? => {
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o644)
                .open(path)
                .map_err(|error| io("make the file", error))?;
        }
        _ => {}
    }
    let expected = match kind {
        HostPathType::Unset | HostPathType::DirectoryOrCreate | HostPathType::Directory => "a directory",
        HostPathType::FileOrCreate | HostPathType::File => "a file",
        HostPathType::Socket => "a socket file",
        HostPathType::CharDevice => "a character device",
        HostPathType::BlockDevice => "a block device",
    };
    let found = fs::metadata(path).map_err(|source| VolumeError::HostPathUnknown {
        path: path.to_owned(),
        expected,
        source,
    })?;
    let actual = name(found.file_type());
    if actual == expected {
        Ok(())
    } else {
        Err(VolumeError::HostPathType { path: path.to_owned(), expected, actual })
    }
}

/// Checks that a directory is at a local volume's path.
pub(crate) fn check_local(path: &Path) -> Result<(), VolumeError> {
    let found = fs::metadata(path).map_err(|source| VolumeError::Io {
        action: "look at the local volume's path",
        path: path.to_owned(),
        source,
    })?;
    if found.is_dir() {
        return Ok(());
    }
    Err(VolumeError::LocalPath { path: path.to_owned(), actual: name(found.file_type()) })
}

fn name(kind: fs::FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else if kind.is_file() {
        "a file"
    } else if kind.is_socket() {
        "a socket file"
    } else if kind.is_char_device() {
        "a character device"
    } else if kind.is_block_device() {
        "a block device"
    } else if kind.is_fifo() {
        "a named pipe"
    } else {
        "something else"
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn each_type_takes_its_own_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("dir")).unwrap();
        fs::write(at("file"), "x").unwrap();
        let _listener = UnixListener::bind(at("socket")).unwrap();
        let null = Path::new("/dev/null").to_owned();
        let places = [
            ("a directory", at("dir")),
            ("a file", at("file")),
            ("a socket file", at("socket")),
            ("a character device", null),
        ];
        let kinds = [
            (HostPathType::Directory, "a directory"),
            (HostPathType::DirectoryOrCreate, "a directory"),
            (HostPathType::File, "a file"),
            (HostPathType::FileOrCreate, "a file"),
            (HostPathType::Socket, "a socket file"),
            (HostPathType::CharDevice, "a character device"),
            (HostPathType::BlockDevice, "a block device"),
        ];
        for (kind, expected) in kinds {
            for (actual, path) in &places {
                let result = check(path, kind).map_err(|error| error.to_string());
                if *actual == expected {
                    assert_eq!(result, Ok(()), "{kind:?} {path:?}");
                } else {
                    let text = format!(
                        "hostPath type check failed: {} is not {expected}, it's {actual}; correct the path or its type",
                        path.display()
                    );
                    assert_eq!(result, Err(text));
                }
            }
            assert_eq!(check(&places[0].1, HostPathType::Unset).map_err(|error| error.to_string()), Ok(()));
        }
    }

    #[test]
    fn what_is_missing_is_made_only_when_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let error = check(&at("none"), HostPathType::Directory).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!(
                "hostPath type check failed, {} is not a directory, unable to determine its type: No such file",
                at("none").display()
            )),
            "{error}"
        );
        check(&at("none"), HostPathType::Unset).unwrap();
        assert!(!at("none").exists());
        check(&at("a/b/c"), HostPathType::DirectoryOrCreate).unwrap();
        assert!(at("a/b/c").is_dir());
        check(&at("a/file"), HostPathType::FileOrCreate).unwrap();
        assert!(at("a/file").is_file());
        fs::write(at("a/file"), "kept").unwrap();
        check(&at("a/file"), HostPathType::FileOrCreate).unwrap();
        assert_eq!(fs::read_to_string(at("a/file")).unwrap(), "kept");
        assert!(
            check(&at("no/parent/file"), HostPathType::FileOrCreate).is_err(),
            "its directory must exist"
        );
    }
}
