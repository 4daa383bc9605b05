//! Values that nobody reads who has only the state files: sealed with a key that lies elsewhere.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Fewer bytes are no key.
const LEAST: usize = 16;
/// What is made where there is none.
const MADE: usize = 32;
/// More than a key file ever is.
const MOST: u64 = 64 << 10;

/// A key. Its bytes are shown to nobody.
pub struct SealKey {
    key: LessSafeKey,
    random: SystemRandom,
}

impl std::fmt::Debug for SealKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealKey")
    }
}

/// A value that was sealed: base64 of nonce, ciphertext and tag (AES-256-GCM).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sealed(String);

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or made.
    #[error("cannot {action} the key file {path}; give a path that root can write, or a file that is there", path = path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Others may read it.
    #[error("the key file {path} can be read by others (mode {mode:o}); chmod 0600 it", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It holds too little.
    #[error("the key file {path} has fewer than {LEAST} bytes; remove it, or put random bytes there", path = path.display())]
    Short {
        /// The file.
        path: PathBuf,
    },
}

impl SealKey {
    /// Reads the key from `path`; makes one there, for root alone, if there is none. An empty file is none: it was left by
    /// whoever was killed while making it, and nothing was ever sealed with it. Blocks.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn open(path: &Path) -> Result<Self, KeyError> {
        let failed = |action, source| KeyError::Io { action, path: path.to_owned(), source };
        let mut bytes = Vec::new();
        match fs::File::open(path) {
            Ok(file) => {
                let about = file.metadata().map_err(|error| failed("look at", error))?;
                let mode = about.permissions().mode();
                if mode & 0o077 != 0 && !(about.is_file() && about.len() == 0) {
                    return Err(KeyError::Open { path: path.to_owned(), mode: mode & 0o777 });
                }
                file.take(MOST).read_to_end(&mut bytes).map_err(|error| failed("read", error))?;
                if bytes.is_empty() {
                    tracing::warn!(
                        path = %path.display(),
                        "the key file is empty: a new key is made; what was sealed with another one cannot be opened"
                    );
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("open", error)),
        }
        if bytes.is_empty() {
            bytes = make(path)?;
        }
        if bytes.len() < LEAST {
            return Err(KeyError::Short { path: path.to_owned() });
        }
        Self::new(&bytes).ok_or_else(|| KeyError::Short { path: path.to_owned() })
    }

    /// A key made of any bytes.
    fn new(bytes: &[u8]) -> Option<Self> {
        let digest = Sha256::digest(bytes);
        let key = UnboundKey::new(&AES_256_GCM, &digest).ok()?;
        Some(Self { key: LessSafeKey::new(key), random: SystemRandom::new() })
    }

    /// Seals a value for one place: under another name it cannot be opened. `None` for a value without JSON form, or when
    /// the system gives no random bytes.
    #[must_use]
    pub fn seal<T: Serialize>(&self, place: &str, value: &T) -> Option<Sealed> {
        let mut data = serde_json::to_vec(value).ok()?;
        // Random nonces are good for 2^32 values of one key, and a key lives until the next boot.
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).ok()?;
        let aad = Aad::from(place.as_bytes());
        self.key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut data).ok()?;
        let mut all = nonce.to_vec();
        all.append(&mut data);
        Some(Sealed(STANDARD.encode(all)))
    }

    /// Opens what was sealed for this place; `None` if it was sealed with another key, for another place, or changed since.
    #[must_use]
    pub fn unseal<T: DeserializeOwned>(&self, place: &str, sealed: &Sealed) -> Option<T> {
        let mut all = STANDARD.decode(&sealed.0).ok()?;
        let (nonce, data) = all.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let plain = self.key.open_in_place(nonce, Aad::from(place.as_bytes()), data).ok()?;
        serde_json::from_slice(plain).ok()
    }
}

/// Writes a new key, whole or not at all: who is killed meanwhile leaves a file of another name.
fn make(path: &Path) -> Result<Vec<u8>, KeyError> {
    let failed = |action, source| KeyError::Io { action, path: path.to_owned(), source };
    let mut bytes = vec![0; MADE];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| failed("fill", io::Error::other("the system gives no random bytes")))?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| failed("make a directory for", error))?;
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let unfinished = PathBuf::from(unfinished);
    let write = || {
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    write().map_err(|error| failed("write", error))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_is_opened_only_with_its_key_at_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/key");
        let key = SealKey::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let sealed = key.seal("here", &vec!["secret"]).unwrap();
        assert!(!format!("{sealed:?}").contains("secret"));
        assert_ne!(key.seal("here", &vec!["secret"]).unwrap(), sealed, "never twice the same");
        let again = SealKey::open(&path).unwrap();
        let open = |key: &SealKey, place, sealed: &Sealed| key.unseal::<Vec<String>>(place, sealed);
        assert_eq!(open(&again, "here", &sealed), Some(vec!["secret".to_owned()]));
        assert_eq!(open(&again, "there", &sealed), None);
        let mut changed = STANDARD.decode(&sealed.0).unwrap();
        *changed.last_mut().unwrap() ^= 1;
        assert_eq!(open(&again, "here", &Sealed(STANDARD.encode(changed))), None);
        assert_eq!(open(&again, "here", &Sealed("AAAA".into())), None);
        assert_eq!(open(&again, "here", &Sealed("no base64".into())), None);
        let other = SealKey::open(&dir.path().join("run/other")).unwrap();
        assert_eq!(open(&other, "here", &sealed), None);
    }

    #[test]
    fn a_key_that_was_never_finished_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(&path, "").unwrap();
        fs::write(dir.path().join("key.new"), "unfinished").unwrap();
        let sealed = SealKey::open(&path).unwrap().seal("here", &"secret").unwrap();
        assert_eq!(fs::read(&path).unwrap().len(), MADE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left over");
        let again = SealKey::open(&path).unwrap();
        assert_eq!(again.unseal::<String>("here", &sealed).as_deref(), Some("secret"));
    }

    #[test]
    fn a_key_that_is_none_or_not_secret_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(&path, "short").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(SealKey::open(&path), Err(KeyError::Short { .. })));
        fs::write(&path, [7; 32]).unwrap();
        SealKey::open(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = SealKey::open(&path).unwrap_err().to_string();
        assert!(error.contains("chmod 0600"), "{error}");
    }
}
