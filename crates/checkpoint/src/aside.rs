//! Finding what was set aside, now or in an earlier life.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A bad state file that still lies where it was set aside.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AsideFile {
    /// When that was, in seconds since 1970; from its name.
    pub unix_seconds: u64,
    /// Where it lies.
    pub path: PathBuf,
}

/// The files that were set aside in `directory` and in the directories directly in it (where [`Store`](crate::Store)s
/// are), oldest first. None if there is no such directory. Blocks.
///
/// # Errors
/// When a directory cannot be read.
pub fn files_set_aside(directory: &Path) -> io::Result<Vec<AsideFile>> {
    let mut found = Vec::new();
    for below in look(directory, &mut found)? {
        look(&below, &mut found)?;
    }
    found.sort();
    Ok(found)
}

/// The same of the directory alone.
///
/// # Errors
/// When it cannot be read.
pub fn files_set_aside_in(directory: &Path) -> io::Result<Vec<AsideFile>> {
    let mut found = Vec::new();
    look(directory, &mut found)?;
    found.sort();
    Ok(found)
}

/// Adds what was set aside in one directory; the directories in it.
fn look(directory: &Path, found: &mut Vec<AsideFile>) -> io::Result<Vec<PathBuf>> {
    let mut directories = Vec::new();
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(directories),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let seconds = name.to_str().and_then(|name| name.rsplit_once(".bad-")?.1.parse().ok());
        match seconds {
            Some(unix_seconds) => found.push(AsideFile { unix_seconds, path: entry.path() }),
            None if entry.file_type()?.is_dir() => directories.push(entry.path()),
            None => {}
        }
    }
    Ok(directories)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_all_stores_are_found_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        assert_eq!(files_set_aside(&at("absent")).unwrap(), []);
        assert_eq!(files_set_aside_in(&at("absent")).unwrap(), []);
        fs::create_dir_all(at("pods/deeper")).unwrap();
        for name in ["events.json", "events.json.bad-20", "pods/a.json", "pods/a.json.bad-7", "pods/x.bad-y"]
        {
            fs::write(at(name), "").unwrap();
        }
        fs::write(at("pods/deeper/b.json.bad-1"), "").unwrap();
        assert_eq!(
            files_set_aside(root.path()).unwrap(),
            [
                AsideFile { unix_seconds: 7, path: at("pods/a.json.bad-7") },
                AsideFile { unix_seconds: 20, path: at("events.json.bad-20") },
            ]
        );
        let here = AsideFile { unix_seconds: 20, path: at("events.json.bad-20") };
        assert_eq!(files_set_aside_in(root.path()).unwrap(), [here]);
    }
}
