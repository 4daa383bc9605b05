//! `/mainstay/v1/resources`: which devices there are, and who holds them.

use std::collections::{BTreeMap, HashMap};

use mainstay_types::{Assignments, HeldDevice, NodeSnapshot};
use serde::Serialize;

use crate::{
    answer::{self, Answer},
    local_api::json,
    route::App,
};

pub(crate) fn resources(app: &App) -> Answer {
    let Some(snapshot) = app.snapshot() else { return answer::not_ready() };
    let assignments = app.state.assignments.borrow().clone();
    json(&Resources { devices: devices(&snapshot, &assignments) })
}

#[derive(Serialize)]
struct Resources {
    devices: Vec<Device>,
}

/// A device: a healthy one, or one that is held. One that two containers of a pod hold one after the other is there twice.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    resource: String,
    id: String,
    numa_nodes: Vec<u32>,
    healthy: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<Holder>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Holder {
    namespace: String,
    pod: String,
    uid: String,
    container: String,
}

/// By resource and ID.
fn devices(snapshot: &NodeSnapshot, assignments: &Assignments) -> Vec<Device> {
    type Key<'a> = (&'a str, &'a str);
    fn key(device: &HeldDevice) -> Key<'_> {
        (&device.resource, &device.id)
    }
    let healthy: HashMap<Key<'_>, &HeldDevice> =
        assignments.allocatable.devices.iter().map(|device| (key(device), device)).collect();
    let entry = |device: &HeldDevice, holder| Device {
        resource: device.resource.to_string(),
        id: device.id.to_string(),
        numa_nodes: device.nodes.clone(),
        healthy: healthy.contains_key(&key(device)),
        holder,
    };
    let mut all: BTreeMap<(Key<'_>, String), Device> = BTreeMap::new();
    let mut held = Vec::new();
    for (uid, pod) in &assignments.pods {
        let view = snapshot.by_uid(uid.as_str());
        for (container, assignment) in &pod.containers {
            for device in &assignment.devices {
                let holder = Holder {
                    namespace: view.map(|view| view.full_name.namespace.to_string()).unwrap_or_default(),
                    pod: view.map(|view| view.full_name.name.to_string()).unwrap_or_default(),
                    uid: uid.as_str().to_owned(),
                    container: container.to_string(),
                };
                held.push(key(device));
                let place = format!("{uid}/{container}");
                all.insert((key(device), place), entry(device, Some(holder)));
            }
        }
    }
    held.sort_unstable();
    for (key, device) in &healthy {
        if held.binary_search(key).is_err() {
            all.insert((*key, String::new()), entry(device, None));
        }
    }
    all.into_values().collect()
}
