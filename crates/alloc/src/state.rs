//! `cpu_manager_state` as text, such that upstream's kubelet and this one read each other's.
//!
//! The file says everything twice: once for older kubelets (`entries`, `checksum`), once as a text of JSON (`data`, `dataChecksum`) that
//! newer ones believe. Checksums are FNV-1a over Go's dump of the value.

use std::collections::BTreeMap;

use mainstay_types::fnv1a_32;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

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
    /// CPUs that pods hold as a whole; what their containers have is among them.
    pub pods: BTreeMap<String, CpuSet>,
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

#[derive(Clone, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    policy_name: String,
    // Go reads keys whatever their case.
    #[serde(alias = "defaultCPUSet")]
    default_cpu_set: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: Texts,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pod_entries: BTreeMap<String, PodEntry>,
}

#[derive(Clone, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodEntry {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    cpu_set: String,
}

impl CpuState {
    /// The file's text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let data = self.data();
        // Older kubelets know of no pods that hold CPUs as a whole.
        let plain = Data { pod_entries: BTreeMap::new(), ..data.clone() };
        let sum = checksum(&plain, "CPUManagerCheckpoint", None);
        twice(&data, &plain, sum)
    }

    fn data(&self) -> Data {
        let texts = |sets: &BTreeMap<String, CpuSet>| -> BTreeMap<String, String> {
            sets.iter().map(|(name, set)| (name.clone(), set.to_string())).collect()
        };
        let pod = |(uid, set): (&String, &CpuSet)| (uid.clone(), PodEntry { cpu_set: set.to_string() });
        Data {
            policy_name: self.policy.clone(),
            default_cpu_set: self.default.to_string(),
            entries: self.entries.iter().map(|(uid, sets)| (uid.clone(), texts(sets))).collect(),
            pod_entries: self.pods.iter().map(pod).collect(),
        }
    }

    /// Reads a file's text: `data`, or the rest where an older kubelet wrote none.
    ///
    /// # Errors
    /// When it is something else, or not whole.
    pub fn from_text(text: &str) -> Result<Self, StateError> {
        let data: Data = once(text, sums)?;
        let mut entries = Entries::new();
        for (uid, sets) in data.entries {
            let sets = sets.into_iter().map(|(name, text)| text.parse().map(|set| (name, set)));
            entries.insert(uid, sets.collect::<Result<_, _>>()?);
        }
        let pods = data.pod_entries.into_iter().map(|(uid, pod)| pod.cpu_set.parse().map(|set| (uid, set)));
        let pods = pods.collect::<Result<_, _>>()?;
        Ok(Self { policy: data.policy_name, default: data.default_cpu_set.parse()?, entries, pods })
    }
}

/// A file that says everything twice: `plain` for older kubelets, `data` for newer ones.
pub(crate) fn twice<T: Serialize>(data: &T, plain: &T, checksum: u32) -> String {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct File<'a, T> {
        #[serde(flatten)]
        plain: &'a T,
        checksum: u32,
        data: &'a str,
        data_checksum: u32,
    }
    // Strings, numbers and maps of them always become JSON.
    let data = serde_json::to_string(data).unwrap_or_default();
    let file = File { plain, checksum, data: &data, data_checksum: data_checksum(&data) };
    serde_json::to_string(&file).unwrap_or_default()
}

/// What such a file says: `data`, or the rest where an older kubelet wrote none. That one has one of the checksums that `sums` gives, or, the
/// oldest of all, none.
pub(crate) fn once<T: DeserializeOwned>(
    text: &str,
    sums: impl FnOnce(&T) -> Result<Vec<u32>, StateError>,
) -> Result<T, StateError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Sums {
        #[serde(default)]
        checksum: u64,
        data: Option<String>,
        data_checksum: Option<u64>,
    }
    let file: Sums = serde_json::from_str(text)?;
    match (file.data, file.data_checksum) {
        (None, None) => {
            let plain: T = serde_json::from_str(text)?;
            let sums = sums(&plain)?;
            let fits = file.checksum == 0 || sums.iter().any(|sum| file.checksum == u64::from(*sum));
            if !fits {
                let expected = sums.first().copied().unwrap_or_default();
                return Err(StateError::Checksum { field: "checksum", found: file.checksum, expected });
            }
            Ok(plain)
        }
        (data, sum) => {
            let (data, found) = (data.unwrap_or_default(), sum.unwrap_or_default());
            let expected = data_checksum(&data);
            if found != u64::from(expected) {
                return Err(StateError::Checksum { field: "dataChecksum", found, expected });
            }
            Ok(serde_json::from_str(&data)?)
        }
    }
}

fn data_checksum(data: &str) -> u32 {
    fnv1a_32(format!("(string){data}").as_bytes())
}

/// Sums that a file of an older kubelet may have: of the second version, which knows of no pods, and of the third, each under two names.
fn sums(data: &Data) -> Result<Vec<u32>, StateError> {
    let mut sums = Vec::new();
    if data.pod_entries.is_empty() {
        sums.extend(["", "V2"].map(|of| checksum(data, &format!("CPUManagerCheckpoint{of}"), None)));
    }
    let mut pods = Vec::new();
    for (uid, pod) in &data.pod_entries {
        let set: CpuSet = pod.cpu_set.parse()?;
        let cpus: Vec<String> = set.iter().map(|cpu| format!("{cpu}:{{}}")).collect();
        let cpus = format!("{{elems:(map[int]struct {{}})map[{}]}}", cpus.join(" "));
        pods.push(format!("{uid}:{{CPUSet:(cpuset.CPUSet){cpus}}}"));
    }
    let pods = format!("map[{}]", pods.join(" "));
    sums.extend(["", "V3"].map(|of| checksum(data, &format!("CPUManagerCheckpoint{of}"), Some(&pods))));
    Ok(sums)
}

/// Over Go's dump of the value.
fn checksum(data: &Data, name: &str, pods: Option<&str>) -> u32 {
    let map = |parts: Vec<String>| format!("map[{}]", parts.join(" "));
    let containers = data.entries.iter().map(|(uid, sets)| {
        format!("{uid}:{}", map(sets.iter().map(|(name, set)| format!("{name}:{set}")).collect()))
    });
    let entries = map(containers.collect());
    let pods = pods.map(|pods| format!(" PodEntries:(state.PodCPUAssignments){pods}")).unwrap_or_default();
    let dump = format!(
        "(*state.{name}){{PolicyName:(string){} DefaultCPUSet:(string){} Entries:(map[string]map[string]string){entries}{pods} Checksum:(checksum.Checksum)0}}",
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
            let (policy_name, default_cpu_set) = ("static".to_owned(), default.to_owned());
            let data = Data { policy_name, default_cpu_set, entries, pod_entries: BTreeMap::new() };
            checksum(&data, "CPUManagerCheckpoint", None)
        };
        assert_eq!(sum("0-27", &[]), 273_146_150);
        assert_eq!(sum("7-9", &[("container1", "4-6"), ("container2", "1-3")]), 964_019_483);
    }

    /// The third version, flat, with pods: the sum is one of upstream's own.
    #[test]
    fn an_older_file_with_pods_is_read() {
        let text = r#"{"policyName":"static","defaultCPUSet":"1-2","entries":{"pod1":{"container1":"5-6","container2":"3-4"}},"podEntries":{"pod2":{"cpuSet":"7-9"}},"checksum":766259872}"#;
        let state = CpuState::from_text(text).unwrap();
        assert_eq!(state.pods["pod2"].to_string(), "7-9");
        assert_eq!(state.entries["pod1"]["container1"].to_string(), "5-6");
        assert!(CpuState::from_text(&text.replace("7-9", "7-8")).is_err());
        // As this release writes it: pods stand in what newer kubelets believe only.
        let written = state.to_text();
        assert!(written.contains(r#"\"podEntries\":{\"pod2\":{\"cpuSet\":\"7-9\"}}"#), "{written}");
        assert!(!written.contains(r#""podEntries":{"pod2""#), "{written}");
        assert_eq!(CpuState::from_text(&written).unwrap(), state);
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
