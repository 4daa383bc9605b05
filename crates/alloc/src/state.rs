//! `cpu_manager_state` as text, such that upstream's kubelet and this one read each other's.
//!
//! The file says everything twice: once for older kubelets (`entries`, `checksum`), once as a text of JSON (`data`, `dataChecksum`) that
//! newer ones believe. Checksums are FNV-1a over Go's dump of the value.

use std::collections::BTreeMap;

use mainstay_types::fnv1a_32;
use serde::{Deserialize, Serialize};

use crate::CpuSet;

/// By pod's UID and container's name.
pub(crate) type Entries = BTreeMap<String, BTreeMap<String, CpuSet>>;

/// Who holds which CPUs, as the file has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuState {
    /// `none` or `static`.
    pub policy: String,
    /// CPUs that are nobody's own.
    pub default: CpuSet,
    /// By pod's UID and container's name.
    pub entries: Entries,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It is no JSON of that shape.
    #[error("it is not the state of a CPU or memory manager")]
    Shape(#[from] serde_json::Error),
    /// It was changed, or cut off.
    #[error("its {field} is {found}, and {expected} by its contents: it was changed, or cut off")]
    Checksum {
        /// Which.
        field: &'static str,
        /// As in the file.
        found: u64,
        /// As computed.
        expected: u32,
    },
    /// A set of CPUs is none.
    #[error(transparent)]
    Set(#[from] crate::CpuSetError),
}

type Texts = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    policy_name: String,
    default_cpu_set: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: Texts,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(flatten)]
    plain: Data,
    #[serde(default)]
    checksum: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data_checksum: Option<u64>,
}

impl CpuState {
    /// The file's text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let plain = self.data();
        let checksum = checksum(&plain).into();
        // Strings and maps of them always become JSON.
        let data = serde_json::to_string(&plain).unwrap_or_default();
        let data_checksum = Some(data_checksum(&data).into());
        serde_json::to_string(&File { plain, checksum, data: Some(data), data_checksum }).unwrap_or_default()
    }

    fn data(&self) -> Data {
        let texts = |sets: &BTreeMap<String, CpuSet>| -> BTreeMap<String, String> {
            sets.iter().map(|(name, set)| (name.clone(), set.to_string())).collect()
        };
        Data {
            policy_name: self.policy.clone(),
            default_cpu_set: self.default.to_string(),
            entries: self.entries.iter().map(|(uid, sets)| (uid.clone(), texts(sets))).collect(),
        }
    }

    /// Reads a file's text: `data`, or the rest where an older kubelet wrote none.
    ///
    /// # Errors
    /// When it is something else, or not whole.
    pub fn from_text(text: &str) -> Result<Self, StateError> {
        let file: File = serde_json::from_str(text)?;
        let data = match (file.data, file.data_checksum) {
            (None, None) => {
                // The oldest format has none.
                if file.checksum != 0 {
                    check("checksum", file.checksum, checksum(&file.plain))?;
                }
                file.plain
            }
            (data, sum) => {
                let data = data.unwrap_or_default();
                check("dataChecksum", sum.unwrap_or_default(), data_checksum(&data))?;
                serde_json::from_str(&data)?
            }
        };
        let mut entries = Entries::new();
        for (uid, sets) in data.entries {
            let sets = sets.into_iter().map(|(name, text)| text.parse().map(|set| (name, set)));
            entries.insert(uid, sets.collect::<Result<_, _>>()?);
        }
        Ok(Self { policy: data.policy_name, default: data.default_cpu_set.parse()?, entries })
    }
}

/// Whether a sum is what it has to be.
pub(crate) fn check(field: &'static str, found: u64, expected: u32) -> Result<(), StateError> {
    if found == u64::from(expected) { Ok(()) } else { Err(StateError::Checksum { field, found, expected }) }
}

pub(crate) fn data_checksum(data: &str) -> u32 {
    fnv1a_32(format!("(string){data}").as_bytes())
}

fn checksum(data: &Data) -> u32 {
    let map = |parts: Vec<String>| format!("map[{}]", parts.join(" "));
    let pods = data.entries.iter().map(|(uid, sets)| {
        format!("{uid}:{}", map(sets.iter().map(|(name, set)| format!("{name}:{set}")).collect()))
    });
    let entries = map(pods.collect());
    let dump = format!(
        "(*state.CPUManagerCheckpoint){{PolicyName:(string){} DefaultCPUSet:(string){} Entries:(map[string]map[string]string){entries} Checksum:(checksum.Checksum)0}}",
        data.policy_name, data.default_cpu_set
    );
    fnv1a_32(dump.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What upstream's 1.37 wrote.
    const STATIC: &str = r#"{"policyName":"static","defaultCpuSet":"0","entries":{"eb8fb727cc315a8f12cd138a5a7f5ddb":{"c":"1"}},"checksum":1496812518,"data":"{\"policyName\":\"static\",\"defaultCpuSet\":\"0\",\"entries\":{\"eb8fb727cc315a8f12cd138a5a7f5ddb\":{\"c\":\"1\"}}}","dataChecksum":1811579785}"#;
    const NONE: &str = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690,"data":"{\"policyName\":\"none\",\"defaultCpuSet\":\"\"}","dataChecksum":3028111495}"#;

    #[test]
    fn upstreams_files_are_read_and_written() {
        for text in [STATIC, NONE] {
            let state = CpuState::from_text(text).unwrap();
            assert_eq!(state.to_text(), text);
        }
        let state = CpuState::from_text(STATIC).unwrap();
        assert_eq!(state.entries["eb8fb727cc315a8f12cd138a5a7f5ddb"]["c"].to_string(), "1");
    }

    #[test]
    fn upstreams_checksums() {
        let sum = |default: &str, entries: &[(&str, &str)]| {
            let sets = entries.iter().map(|(name, set)| ((*name).to_owned(), (*set).to_owned())).collect();
            let entries = if entries.is_empty() { Texts::new() } else { [("pod".to_owned(), sets)].into() };
            checksum(&Data { policy_name: "static".to_owned(), default_cpu_set: default.to_owned(), entries })
        };
        assert_eq!(sum("0-27", &[]), 273_146_150);
        assert_eq!(sum("7-9", &[("container1", "4-6"), ("container2", "1-3")]), 964_019_483);
    }

    #[test]
    fn older_files_and_broken_ones() {
        let old = r#"{"policyName":"static","defaultCpuSet":"0-27","checksum":273146150}"#;
        assert_eq!(CpuState::from_text(old).unwrap().default.len(), 28);
        assert!(CpuState::from_text(&old.replace("150", "0")).is_err());
        assert!(CpuState::from_text(&old.replace("273146150", "0")).is_ok(), "the oldest had none");
        for broken in [
            "",
            "{}",
            "[]",
            "null",
            &STATIC.replace("1811579785", "1"),
            &STATIC.replace(r#"\"c\":\"1\""#, r#"\"c\":\"2\""#),
            &STATIC.replace(r#","dataChecksum":1811579785"#, ""),
            STATIC.trim_end_matches("85}"),
        ] {
            assert!(CpuState::from_text(broken).is_err(), "{broken}");
        }
        let error = CpuState::from_text(&STATIC.replace("1811579785", "1")).unwrap_err().to_string();
        assert!(error.starts_with("its dataChecksum is 1, and 1811579785"), "{error}");
    }
}
