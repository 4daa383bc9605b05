//! `kubelet_internal_checkpoint` as text, such that upstream's kubelet and this one read each other's.

use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use mainstay_types::fnv1a_32;
use serde::{Deserialize, Serialize};

use crate::{Held, Ledger};

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceFileError {
    /// It is no JSON of that shape.
    #[error("it is not the checkpoint of a device manager")]
    Shape(#[from] serde_json::Error),
    /// It was changed, or cut off.
    #[error("its Checksum is {found}, and {expected} by its contents: it was changed, or cut off")]
    Checksum {
        /// As in the file.
        found: u64,
        /// As computed.
        expected: u32,
    },
    /// What a plugin answered is no base64.
    #[error("the AllocResp of container {container} of pod {uid} is not base64")]
    Response {
        /// The pod's.
        uid: String,
        /// Its name.
        container: String,
    },
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    data: Data,
    checksum: u64,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    pod_device_entries: Option<Vec<Entry>>,
    registered_devices: Option<BTreeMap<String, Option<Vec<String>>>>,
}

#[derive(Deserialize, Serialize)]
struct Entry {
    #[serde(rename = "PodUID")]
    uid: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    /// By NUMA node; -1 is none. A device of two nodes is there twice.
    #[serde(rename = "DeviceIDs")]
    devices: Option<BTreeMap<i64, Option<Vec<String>>>>,
    /// Base64.
    #[serde(rename = "AllocResp")]
    response: Option<String>,
}

impl Ledger {
    /// The file's text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let entries: Vec<Entry> = self
            .held()
            .map(|(uid, container, resource, held)| {
                let mut devices: BTreeMap<i64, Option<Vec<String>>> = BTreeMap::new();
                let mut add = |node: i64, id: &Arc<str>| {
                    devices.entry(node).or_default().get_or_insert_default().push(id.to_string());
                };
                for (id, nodes) in &held.devices {
                    nodes.iter().for_each(|node| add(i64::from(*node), id));
                    if nodes.is_empty() {
                        add(-1, id);
                    }
                }
                Entry {
                    uid: uid.to_owned(),
                    container: container.to_owned(),
                    resource: resource.to_string(),
                    devices: Some(devices),
                    response: Some(STANDARD.encode(held.response.as_deref().unwrap_or_default())),
                }
            })
            .collect();
        let registered = self
            .registered()
            .map(|(name, ids)| (name.to_string(), Some(ids.map(|id| id.to_string()).collect())));
        let data = Data {
            pod_device_entries: (!entries.is_empty()).then_some(entries),
            registered_devices: Some(registered.collect()),
        };
        let checksum = checksum(&data).into();
        // Strings and maps of them always become JSON.
        serde_json::to_string(&File { data, checksum }).unwrap_or_default()
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// When it is something else, or not whole.
    pub fn from_text(text: &str) -> Result<Self, DeviceFileError> {
        let File { data, checksum: found } = serde_json::from_str(text)?;
        let expected = checksum(&data);
        if found != u64::from(expected) {
            return Err(DeviceFileError::Checksum { found, expected });
        }
        let mut held = Vec::new();
        for entry in data.pod_device_entries.into_iter().flatten() {
            let Entry { uid, container, resource, devices, response } = entry;
            let mut by_id: BTreeMap<Arc<str>, Vec<u32>> = BTreeMap::new();
            for (node, ids) in devices.into_iter().flatten() {
                for id in ids.into_iter().flatten() {
                    by_id.entry(id.into()).or_default().extend(u32::try_from(node).ok());
                }
            }
            let Ok(response) = STANDARD.decode(response.unwrap_or_default()) else {
                return Err(DeviceFileError::Response { uid, container });
            };
            held.push((uid, container, resource.into(), Held { devices: by_id, response: Some(response) }));
        }
        let resources = data.registered_devices.into_iter().flatten().map(|(name, _)| name.into());
        Ok(Self::restored(held, resources))
    }
}

/// FNV-1a over Go's dump of the value.
fn checksum(data: &Data) -> u32 {
    fn list(items: Option<&[String]>) -> String {
        items.map_or("<nil>".to_owned(), |items| format!("[{}]", items.join(" ")))
    }
    fn map<K: std::fmt::Display>(items: Option<&BTreeMap<K, Option<Vec<String>>>>) -> String {
        let entry = |(key, value): (&K, &Option<Vec<String>>)| format!("{key}:{}", list(value.as_deref()));
        items.map_or("<nil>".to_owned(), |items| {
            format!("map[{}]", items.iter().map(entry).collect::<Vec<_>>().join(" "))
        })
    }
    let entry = |entry: &Entry| {
        let bytes = entry.response.as_ref().map(|text| STANDARD.decode(text).unwrap_or_default());
        let bytes: Option<Vec<String>> = bytes.map(|bytes| bytes.iter().map(ToString::to_string).collect());
        format!(
            "{{PodUID:(string){} ContainerName:(string){} ResourceName:(string){} DeviceIDs:(checkpoint.DevicesPerNUMA){} AllocResp:([]uint8){}}}",
            entry.uid,
            entry.container,
            entry.resource,
            map(entry.devices.as_ref()),
            list(bytes.as_deref()),
        )
    };
    let entries =
        data.pod_device_entries.as_ref().map(|entries| entries.iter().map(entry).collect::<Vec<_>>());
    let dump = format!(
        "(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){} RegisteredDevices:(map[string][]string){}}}",
        list(entries.as_deref()),
        map(data.registered_devices.as_ref()),
    );
    fnv1a_32(dump.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Devices};

    #[test]
    fn upstreams_checksums() {
        let empty = r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":3467439661}"#;
        assert_eq!(Ledger::from_text(empty).unwrap().to_text(), empty);
        let one = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"c1","ResourceName":"example.com/dev","DeviceIDs":{"-1":["d1"]},"AllocResp":""}],"RegisteredDevices":{"example.com/dev":["d1","d2"]}},"Checksum":874092558}"#;
        let mut ledger = Ledger::from_text(one).unwrap();
        let device = Device { healthy: true, nodes: Vec::new() };
        let devices: Devices = ["d1", "d2"].map(|id| (id.into(), device.clone())).into();
        ledger.list(&"example.com/dev".into(), devices);
        assert_eq!(ledger.to_text(), one);
        for broken in ["", "{}", "[]", "null", one.trim_end_matches("8}"), &one.replace("d2", "d3")] {
            assert!(Ledger::from_text(broken).is_err(), "{broken}");
        }
    }
}
