//! A directory of state files, one per key.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::file::remove_leftovers;
use crate::{BadFile, Durability, File, Loaded, SetAside, WriteError, ensure_directory};

const SUFFIX: &str = ".json";

/// Values of one type by key, each in a file `<key>.json` of its own. It is read before it is written, not meanwhile.
#[derive(Debug)]
pub struct Store<T> {
    directory: PathBuf,
    /// The files that were replaced, to be written again. A file system searches long for a place for a new file where many
    /// have just been removed (ext4 passes over each of them for minutes), and state is replaced all the time. Each is kept
    /// for its own key: should the power fail before its new contents are on the disk, it has those of an earlier time, and
    /// they must not be another's.
    spares: Mutex<HashMap<String, PathBuf>>,
    kind: &'static str,
    version: u32,
    durability: Durability,
    values: PhantomData<fn(T) -> T>,
}

/// Everything in a [`Store`].
#[derive(Debug)]
pub struct Contents<T> {
    /// The values that were read, by key.
    pub good: BTreeMap<String, T>,
    /// The files that could not be used.
    pub set_aside: Vec<SetAside>,
}

impl<T: Serialize + DeserializeOwned> Store<T> {
    /// Opens the store in `directory`, which is made with `mode` if it is missing.
    ///
    /// # Errors
    /// [`WriteError::Io`] if the directory cannot be made.
    pub fn open(
        directory: impl Into<PathBuf>,
        mode: u32,
        kind: &'static str,
        version: u32,
        durability: Durability,
    ) -> Result<Self, WriteError> {
        let directory = directory.into();
        ensure_directory(&directory, mode)?;
        Ok(Self { directory, spares: Mutex::default(), kind, version, durability, values: PhantomData })
    }

    /// Writes `value` under `key`, replacing what was there in one step.
    ///
    /// # Errors
    /// [`WriteError`]; the old value is then still there.
    pub fn put(&self, key: &str, value: &T) -> Result<(), WriteError> {
        self.write(key, value, self.durability)
    }

    /// As [`Self::put`], and it is on the disk when this returns, whatever the store does otherwise.
    ///
    /// # Errors
    /// [`WriteError`]; the old value is then still there, unless only the flush failed.
    pub fn put_flushed(&self, key: &str, value: &T) -> Result<(), WriteError> {
        self.write(key, value, Durability::PowerFailure)
    }

    fn write(&self, key: &str, value: &T, durability: Durability) -> Result<(), WriteError> {
        let file = self.file(key, durability)?;
        if let Some(spare) = file.exchange(value, self.take_spare(key))? {
            let surplus = self.spares().insert(key.to_owned(), spare);
            surplus.into_iter().for_each(|surplus| drop(fs::remove_file(surplus)));
        }
        Ok(())
    }

    /// It is nobody else's from then on.
    fn take_spare(&self, key: &str) -> Option<PathBuf> {
        self.spares().remove(key)
    }

    fn spares(&self) -> MutexGuard<'_, HashMap<String, PathBuf>> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes what is under `key`; returns whether there was something.
    ///
    /// # Errors
    /// [`WriteError`] if the key is invalid or the file cannot be removed.
    pub fn remove(&self, key: &str) -> Result<bool, WriteError> {
        if let Some(spare) = self.take_spare(key) {
            // It may be gone; if not, the next start removes it.
            drop(fs::remove_file(spare));
        }
        self.file(key, self.durability)?.remove()
    }

    /// Whether there is a file for `key`, good or bad.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.file(key, self.durability).is_ok_and(|file| file.path().exists())
    }

    /// Reads the value under `key`.
    ///
    /// # Errors
    /// [`WriteError::InvalidKey`] only; a bad file is set aside.
    pub fn load(&self, key: &str) -> Result<Loaded<T>, WriteError> {
        Ok(self.file(key, self.durability)?.load_only())
    }

    /// Reads everything; bad files are set aside and the rest is returned. Files that the store did not name are left
    /// alone. An unreadable directory is reported as one bad file.
    pub fn load_all(&self) -> Contents<T> {
        let mut contents = Contents { good: BTreeMap::new(), set_aside: Vec::new() };
        remove_leftovers(&self.directory, ".");
        match self.keys() {
            Ok(keys) => {
                for key in keys {
                    match self.load(&key) {
                        Ok(Loaded::Good(value)) => {
                            contents.good.insert(key, value);
                        }
                        Ok(Loaded::SetAside(bad)) => contents.set_aside.push(bad),
                        // Absent: removed since it was listed. An invalid key is not one of ours.
                        Ok(Loaded::Absent) | Err(_) => {}
                    }
                }
            }
            Err(error) => contents.set_aside.push(SetAside {
                path: self.directory.clone(),
                moved_to: None,
                why: BadFile::Unreadable(error),
            }),
        }
        contents
    }

    fn keys(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        let mut keys = Vec::new();
        for entry in entries {
            if let Some(key) = entry?.file_name().to_str().and_then(|name| name.strip_suffix(SUFFIX)) {
                keys.push(key.to_owned());
            }
        }
        keys.sort_unstable();
        Ok(keys)
    }

    fn file(&self, key: &str, durability: Durability) -> Result<File, WriteError> {
        if !is_valid_key(key) {
            return Err(WriteError::InvalidKey { key: key.to_owned(), directory: self.directory.clone() });
        }
        let path = self.directory.join(format!("{key}{SUFFIX}"));
        Ok(File::new(path, self.kind, self.version, durability))
    }
}

impl<T> Drop for Store<T> {
    /// A killed agent leaves its spares to the next start.
    fn drop(&mut self) {
        let spares = self.spares.get_mut().unwrap_or_else(PoisonError::into_inner);
        spares.drain().for_each(|(_, spare)| drop(fs::remove_file(spare)));
    }
}

/// Names that are one path component, visible, and leave room for the suffixes of temporary and bad files.
fn is_valid_key(key: &str) -> bool {
    (1..=200).contains(&key.len())
        && !key.starts_with('.')
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(directory: &std::path::Path) -> Store<u32> {
        Store::open(directory.join("pods"), 0o700, "pod", 1, Durability::ProcessDeath).unwrap()
    }

    #[test]
    fn put_load_remove() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        store.put("a", &1).unwrap();
        store.put("b-0_c.d", &2).unwrap();
        store.put("a", &3).unwrap();
        let all = store.load_all();
        assert_eq!(
            all.good.into_iter().collect::<Vec<_>>(),
            [("a".to_owned(), 3), ("b-0_c.d".to_owned(), 2)]
        );
        assert!(all.set_aside.is_empty());
        assert!(matches!(store.load("a").unwrap(), Loaded::Good(3)));
        assert!(store.remove("a").unwrap());
        assert!(!store.remove("a").unwrap());
        assert!(matches!(store.load("a").unwrap(), Loaded::Absent));
    }

    #[test]
    fn two_files_take_turns_and_both_go() {
        let names = |directory: &std::path::Path| -> Vec<String> {
            let entries = fs::read_dir(directory.join("pods")).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        let inode = |directory: &std::path::Path| {
            std::os::unix::fs::MetadataExt::ino(&fs::metadata(directory.join("pods/a.json")).unwrap())
        };
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        let mut inodes = std::collections::BTreeSet::new();
        for value in [1_000_000_000, 2, 3_000_000, 4, 5] {
            store.put("a", &value).unwrap();
            inodes.insert(inode(directory.path()));
            assert!(matches!(store.load("a").unwrap(), Loaded::Good(found) if found == value), "{value}");
        }
        assert_eq!((inodes.len(), names(directory.path()).len()), (2, 2));
        // Somebody tidied up.
        let spare = names(directory.path()).into_iter().find(|name| name.starts_with('.')).unwrap();
        fs::remove_file(directory.path().join("pods").join(spare)).unwrap();
        store.put("a", &6).unwrap();
        // What a killed agent leaves is a spare or a half-written one: the next start removes either.
        let next = self::store(directory.path());
        let left = names(directory.path()).into_iter().find(|name| name.starts_with('.')).unwrap();
        let of_another = format!(".a.json.0123456789abcdef-{}.tmp", left.len());
        fs::rename(directory.path().join("pods").join(left), directory.path().join("pods").join(of_another))
            .unwrap();
        assert_eq!(next.load_all().good["a"], 6);
        assert_eq!(names(directory.path()), ["a.json"]);
        store.put("a", &7).unwrap();
        assert!(matches!(next.load("a").unwrap(), Loaded::Good(7)));
        assert!(store.remove("a").unwrap());
        assert_eq!(names(directory.path()), [""; 0]);
        store.put("b", &1).unwrap();
        store.put("b", &2).unwrap();
        assert_eq!(names(directory.path()).len(), 2);
        drop(store);
        assert_eq!(names(directory.path()), ["b.json"]);
    }

    #[test]
    fn one_bad_file_does_not_hide_the_others() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        store.put("good", &1).unwrap();
        store.put("bad", &2).unwrap();
        fs::write(directory.path().join("pods/bad.json"), b"{\"mainstay\":\"pod\",\"ver").unwrap();
        fs::create_dir(directory.path().join("pods/worse.json")).unwrap();
        fs::write(directory.path().join("pods/README"), b"not ours").unwrap();
        fs::write(directory.path().join("pods/.good.json.0123456789abcdef-0.tmp"), b"left by a killed agent")
            .unwrap();
        let all = store.load_all();
        assert_eq!(all.good.into_iter().collect::<Vec<_>>(), [("good".to_owned(), 1)]);
        assert_eq!(all.set_aside.len(), 2);
        let mut names: Vec<_> = fs::read_dir(directory.path().join("pods"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .map(|name| name.split(".bad-").next().unwrap().to_owned())
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["README", "bad.json", "good.json", "worse.json"]);
        assert_eq!(store.load_all().set_aside.len(), 0, "what was set aside is not found again");
    }

    #[test]
    fn keys_cannot_leave_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        for key in ["", ".", "..", "../x", "a/b", ".hidden", "a\0b", "ä", "a b", "x".repeat(201).as_str()] {
            let error = store.put(key, &1).unwrap_err();
            assert!(matches!(error, WriteError::InvalidKey { .. }), "{key:?}");
            assert!(!error.is_transient());
        }
        store.put(&"x".repeat(200), &1).unwrap();
    }
}
