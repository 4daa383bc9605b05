//! What a pod asks for: CPUs of its containers' own, memory on NUMA nodes of their own, devices.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use mainstay_alloc::{Ask, Bytes, Part, Use, asks};
use mainstay_podspec::runtime::{exclusive_cpus, has_pod_level_resources, pinned_memory, pooled};
use mainstay_types::{ContainerKind, PodExt as _};

/// What a pod asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodAsk {
    pub(crate) uid: String,
    /// In the order in which they start; ephemeral containers ask for nothing.
    pub(crate) containers: Vec<ContainerAsk>,
    /// What it is to have as a whole, to share out among its containers.
    pub(crate) pool: Option<PoolAsk>,
    /// It says itself what it needs, and that counts.
    pub(crate) pod_level: bool,
}

/// What a pod asks for as a whole.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolAsk {
    pub(crate) cpus: usize,
    pub(crate) memory: Bytes,
}

/// What one of its containers asks for.
#[derive(Clone, Debug)]
pub(crate) struct ContainerAsk {
    pub(crate) name: String,
    pub(crate) kind: ContainerKind,
    pub(crate) cpus: usize,
    pub(crate) memory: Bytes,
    pub(crate) devices: Vec<Ask>,
}

impl ContainerAsk {
    pub(crate) fn lasts(&self) -> Use {
        if self.kind == ContainerKind::Init { Use::Passing } else { Use::Lasting }
    }
}

/// Which of it somebody gives out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Given {
    pub(crate) cpus: bool,
    pub(crate) memory: bool,
    /// Gate `PodLevelResourceManagers`.
    pub(crate) pod_level: bool,
    /// Pods may have something as a whole: it is judged for whole pods where they lie.
    pub(crate) pools: bool,
}

impl PodAsk {
    pub(crate) fn of(pod: &Pod, given: Given) -> Self {
        let mut devices: BTreeMap<String, Vec<Ask>> = BTreeMap::new();
        for ask in asks(pod) {
            devices.entry(ask.container.clone()).or_default().push(ask);
        }
        let containers = pod.all_containers().filter(|(kind, _)| *kind != ContainerKind::Ephemeral);
        let containers = containers.map(|(kind, container)| ContainerAsk {
            name: container.name.clone(),
            kind,
            cpus: if given.cpus { exclusive_cpus(pod, container, given.pod_level) } else { 0 },
            memory: if given.memory { pinned_memory(pod, container, given.pod_level) } else { Bytes::new() },
            devices: devices.remove(&container.name).unwrap_or_default(),
        });
        let mut containers: Vec<ContainerAsk> = containers.collect();
        let pod_level = given.pod_level && has_pod_level_resources(pod);
        let pool = if given.pools && pod_level { pooled(pod) } else { None };
        let pool = pool.map(|(cpus, memory)| PoolAsk {
            cpus: if given.cpus { cpus } else { 0 },
            memory: if given.memory { memory } else { Bytes::new() },
        });
        if let Some(pool) = &pool {
            for container in &mut containers {
                // Of nothing nobody has a part.
                container.cpus = if pool.cpus > 0 { container.cpus } else { 0 };
                container.memory.retain(|kind, _| pool.memory.contains_key(kind));
            }
        }
        Self { uid: pod.uid_ref().to_owned(), containers, pool, pod_level }
    }

    /// What of a pod's whole its containers have to themselves.
    pub(crate) fn parts<T>(&self, own: impl Fn(&ContainerAsk) -> T) -> Vec<Part<T>> {
        let part = |container: &ContainerAsk| Part {
            name: container.name.clone(),
            passes: container.kind == ContainerKind::Init,
            own: own(container),
        };
        self.containers.iter().map(part).collect()
    }

    /// CPUs of their own that the containers need at one time.
    pub(crate) fn cpus(&self) -> usize {
        usize::try_from(self.demand(|container| u64::try_from(container.cpus).unwrap_or(0)))
            .unwrap_or(usize::MAX)
    }

    /// Memory of their own that they need at one time.
    pub(crate) fn memory(&self) -> Bytes {
        let kinds = self.containers.iter().flat_map(|container| container.memory.keys());
        let of = |kind: &String| self.demand(|container| container.memory.get(kind).copied().unwrap_or(0));
        kinds.map(|kind| (kind.clone(), of(kind))).collect()
    }

    /// Devices that they need at one time, as if one container asked for them.
    pub(crate) fn devices(&self) -> Vec<Ask> {
        let mut all: BTreeMap<_, Ask> = BTreeMap::new();
        for ask in self.containers.iter().flat_map(|container| &container.devices) {
            let count = self.demand(|container| {
                let same = container.devices.iter().filter(|it| it.resource == ask.resource);
                same.map(|it| u64::try_from(it.count).unwrap_or(0)).sum()
            });
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            // No container has this name: nothing is held by it yet.
            let mut whole = ask.clone();
            (whole.container, whole.count) = (String::new(), count);
            all.entry(ask.resource.clone()).or_insert(whole);
        }
        all.into_values().collect()
    }

    /// The most that is needed at one time: an init container beside the sidecars before it, or all that stay.
    fn demand(&self, of: impl Fn(&ContainerAsk) -> u64) -> u64 {
        let (mut most, mut lasting) = (0_u64, 0_u64);
        for container in &self.containers {
            match container.lasts() {
                Use::Passing => most = most.max(lasting.saturating_add(of(container))),
                Use::Lasting => lasting = lasting.saturating_add(of(container)),
            }
        }
        most.max(lasting)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ask(init: &[(&str, bool, u32)], apps: &[u32]) -> PodAsk {
        let resources = |cpus: &u32| {
            let list = json!({ "cpu": cpus.to_string(), "memory": "1Gi" });
            json!({ "requests": list, "limits": list })
        };
        let init: Vec<_> = init
            .iter()
            .map(|(name, sidecar, cpus)| {
                let mut it = json!({ "name": name, "resources": resources(cpus) });
                if *sidecar {
                    it["restartPolicy"] = json!("Always");
                }
                it
            })
            .collect();
        let apps: Vec<_> = apps
            .iter()
            .enumerate()
            .map(|(at, cpus)| json!({ "name": format!("a{at}"), "resources": resources(cpus) }))
            .collect();
        let pod = serde_json::from_value(
            json!({ "metadata": { "uid": "u" }, "spec": { "initContainers": init, "containers": apps } }),
        )
        .unwrap();
        PodAsk::of(&pod, Given { cpus: true, memory: true, ..Given::default() })
    }

    #[test]
    fn c28_what_a_pod_needs_at_one_time() {
        assert_eq!(ask(&[("s", true, 10), ("i", false, 200)], &[100]).cpus(), 210);
        let many = ask(&[("i", false, 5), ("s1", true, 1), ("s2", true, 2), ("s3", true, 3)], &[1]);
        assert_eq!(many.cpus(), 7);
        assert_eq!(many.memory()["memory"], 4 << 30);
    }

    #[test]
    fn c19_who_is_given_cpus() {
        let of = |requests: serde_json::Value, limits: serde_json::Value| {
            let pod = serde_json::from_value(json!({
                "metadata": { "uid": "u" },
                "spec": { "containers": [{ "name": "c", "resources": { "requests": requests, "limits": limits } }] },
            }))
            .unwrap();
            PodAsk::of(&pod, Given { cpus: true, ..Given::default() }).cpus()
        };
        let list = |cpu: &str| json!({ "cpu": cpu, "memory": "1Gi" });
        assert_eq!(of(list("2"), list("2")), 2);
        assert_eq!(of(list("2000m"), list("2")), 2);
        assert_eq!(of(list("977m"), list("977m")), 0);
        assert_eq!(of(list("1"), list("2")), 0);
        assert_eq!(of(json!({ "cpu": "1" }), json!({ "cpu": "1" })), 0, "not guaranteed");
    }
}
