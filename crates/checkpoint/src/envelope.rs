//! The form of a state file, as bytes.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::BadFile;

/// Reads every version up to `version`: a type whose form changes must keep reading the older ones.
pub(crate) fn decode<T: DeserializeOwned>(
    bytes: &[u8],
    kind: &'static str,
    version: u32,
) -> Result<T, BadFile> {
    let envelope: Envelope<'_> = serde_json::from_slice(bytes).map_err(BadFile::Malformed)?;
    if envelope.mainstay != kind {
        return Err(BadFile::WrongKind { found: envelope.mainstay, expected: kind });
    }
    if envelope.version > version {
        return Err(BadFile::NewerVersion { found: envelope.version, known: version });
    }
    if envelope.checksum != checksum(envelope.data.get()) {
        return Err(BadFile::WrongChecksum);
    }
    // From bytes, as everything else is read: the code that reads a pod is large, and there once.
    serde_json::from_slice(envelope.data.get().as_bytes()).map_err(BadFile::WrongData)
}

pub(crate) fn encode<T: Serialize>(
    value: &T,
    kind: &str,
    version: u32,
) -> Result<Vec<u8>, serde_json::Error> {
    let data = serde_json::value::to_raw_value(value)?;
    let envelope =
        Envelope { mainstay: kind.to_owned(), version, checksum: checksum(data.get()), data: data.as_ref() };
    let mut bytes = serde_json::to_vec(&envelope)?;
    bytes.push(b'\n');
    Ok(bytes)
}

#[derive(Serialize, Deserialize)]
struct Envelope<'a> {
    mainstay: String,
    version: u32,
    checksum: String,
    #[serde(borrow)]
    data: &'a RawValue,
}

fn checksum(data: &str) -> String {
    format!("sha256:{:x}", Sha256::digest(data.as_bytes()))
}
