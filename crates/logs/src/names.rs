//! Names of log files and of the links to them.

use std::fs;
use std::io;
use std::path::Path;

/// File systems allow 255 bytes; upstream cuts the base so that the suffix always fits.
const MAX_NAME_BYTES: usize = 255;
const SUFFIX: &str = ".log";

/// The name of a container's link in the container log directory (`/var/log/containers`):
/// `<pod>_<namespace>_<container>-<id>`, cut to 251 bytes, and `.log`. Log collectors parse it.
#[must_use]
pub fn container_log_symlink_name(pod: &str, namespace: &str, container: &str, container_id: &str) -> String {
    let mut name = format!("{pod}_{namespace}_{container}-{container_id}");
    let mut end = name.len().min(MAX_NAME_BYTES - SUFFIX.len());
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    name.push_str(SUFFIX);
    name
}

/// The highest `N` of the files `<N>.log*` in a container's log directory, that is the restart count of the newest
/// container it knows; `None` if there is none, or no such directory. Blocks.
///
/// # Errors
/// If the directory exists and cannot be read.
pub fn highest_log_number(directory: &Path) -> io::Result<Option<u32>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut highest = None;
    for entry in entries {
        highest = highest.max(entry?.file_name().to_str().and_then(log_number));
    }
    Ok(highest)
}

/// Removes a container's log with what was rotated out of it. What is gone already is no error. Blocks.
///
/// # Errors
/// If a file or the list of files cannot be removed or read; the others are removed all the same.
pub fn remove_container_log(log: &Path) -> io::Result<()> {
    let (Some(directory), Some(name)) = (log.parent(), log.file_name().and_then(|name| name.to_str())) else {
        return Ok(());
    };
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    let mut result = Ok(());
    for entry in entries {
        let entry = entry?;
        let file_name = entry.file_name();
        let rest = file_name.to_str().and_then(|file| file.strip_prefix(name));
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.')) {
            match fs::remove_file(entry.path()) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => result = Err(e),
                _ => {}
            }
        }
    }
    result
}

/// `N` of `<N>.log` or `<N>.log.<anything>`.
fn log_number(name: &str) -> Option<u32> {
    let (number, rest) = name.split_once(SUFFIX)?;
    if !(rest.is_empty() || rest.starts_with('.')) || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_names() {
        assert_eq!(container_log_symlink_name("web-0", "shop", "app", "abc"), "web-0_shop_app-abc.log");
        let long = container_log_symlink_name(&"p".repeat(253), "ns", "c", "id");
        assert_eq!(long, format!("{}.log", "p".repeat(251)));
        let long = container_log_symlink_name(&"p".repeat(200), &"n".repeat(63), "c", "id");
        assert_eq!(long.len(), 255);
    }

    #[test]
    fn a_log_goes_with_its_rotated_files_and_no_others() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("1.log");
        for name in
            ["1.log", "1.log.20260101-000000", "1.log.20260101-000001.gz", "11.log", "1.logs", "2.log"]
        {
            fs::write(directory.path().join(name), b"").unwrap();
        }
        remove_container_log(&log).unwrap();
        remove_container_log(&log).unwrap();
        remove_container_log(&directory.path().join("none/0.log")).unwrap();
        let mut left: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["1.logs", "11.log", "2.log"]);
    }

    #[test]
    fn the_highest_number_wins_whatever_follows() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(highest_log_number(&directory.path().join("none")).unwrap(), None);
        assert_eq!(highest_log_number(directory.path()).unwrap(), None);
        for name in [
            "0.log",
            "2.log",
            "10.log.20260101-000000",
            "9.log.20260101-000000.gz",
            "99.logs",
            "x7.log",
            "7.txt",
        ] {
            fs::write(directory.path().join(name), b"").unwrap();
        }
        assert_eq!(highest_log_number(directory.path()).unwrap(), Some(10));
        fs::write(directory.path().join("99999999999999.log"), b"").unwrap();
        assert_eq!(highest_log_number(directory.path()).unwrap(), Some(10));
    }
}
