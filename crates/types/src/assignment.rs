//! Who holds which CPUs, memory and devices, and what there is to be held.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use crate::PodUid;

/// What the managers of CPUs, memory and devices have given out, as one immutable value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignments {
    /// What may be given out at all, taken or not.
    pub allocatable: Allocatable,
    /// No device plugin can make itself known right now: its socket cannot be listened on.
    pub deaf: bool,
    /// Pods that hold something, by UID.
    pub pods: HashMap<PodUid, Arc<PodAssignment>>,
    /// How the machine's CPUs and memory lie, and what of them nobody may have or all share.
    pub placement: Arc<Placement>,
    /// What of it is not known: what is missing among `pods` may be held all the same.
    pub unknown: Unknown,
}

/// What is not known of who holds what. Nothing, but after a file that said so was lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unknown {
    /// Who holds CPUs has yet to be looked up from what runs.
    pub cpus: bool,
    /// Who holds memory has.
    pub memory: bool,
    /// Who may hold devices has.
    pub devices: bool,
    /// Containers that hold devices which nobody can name until they have ended.
    pub unnamed: Vec<UnnamedDevices>,
}

/// Devices that a container holds, and nobody knows which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnnamedDevices {
    /// The container's pod.
    pub pod: PodUid,
    /// Its name.
    pub container: Box<str>,
    /// What they are of.
    pub resource: Arc<str>,
}

/// Where one CPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuPlace {
    /// The lowest CPU of its core, which is unique over sockets.
    pub core: u32,
    /// Socket.
    pub socket: u32,
    /// NUMA node.
    pub node: u32,
    /// The last cache that some cores share; the socket where there is none.
    pub cache: u32,
}

/// A machine's CPUs and memory, and what becomes of them beside what pods hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// CPUs that are online.
    pub cpus: BTreeMap<u32, CpuPlace>,
    /// CPUs are given out (`cpuManagerPolicy: static`).
    pub pins_cpus: bool,
    /// CPUs that are kept for the system; empty where none are given out.
    pub reserved: BTreeSet<u32>,
    /// CPUs that containers without CPUs of their own share; empty where none are given out.
    pub shared: BTreeSet<u32>,
    /// Memory by NUMA node and type.
    pub memory: BTreeMap<u32, BTreeMap<Box<str>, MemoryAmounts>>,
    /// Memory is given out (`memoryManagerPolicy: Static`).
    pub pins_memory: bool,
}

/// Memory of one type on one NUMA node, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryAmounts {
    /// All of it.
    pub total: u64,
    /// Kept for the system.
    pub system_reserved: u64,
    /// What pods may have.
    pub allocatable: u64,
    /// What they hold.
    pub held: u64,
}

impl Assignments {
    /// The same with other devices; what is held beside devices stays.
    pub fn set_devices(
        &mut self,
        allocatable: Vec<HeldDevice>,
        held: impl IntoIterator<Item = (PodUid, Box<str>, Vec<HeldDevice>)>,
    ) {
        self.allocatable.devices = allocatable;
        self.each(|container| container.devices.clear());
        for (uid, name, devices) in held {
            self.container(uid, name).devices = devices;
        }
        self.drop_empty();
    }

    /// The same with other exclusive CPUs, of containers and of pods as a whole; what is held beside CPUs stays.
    pub fn set_cpus(
        &mut self,
        allocatable: BTreeSet<u32>,
        held: impl IntoIterator<Item = (PodUid, Box<str>, BTreeSet<u32>)>,
        pods: impl IntoIterator<Item = (PodUid, BTreeSet<u32>)>,
    ) {
        self.allocatable.cpus = allocatable;
        self.each(|container| container.cpus.clear());
        self.pods.values_mut().for_each(|pod| Arc::make_mut(pod).cpus.clear());
        for (uid, name, cpus) in held {
            self.container(uid, name).cpus = cpus;
        }
        for (uid, cpus) in pods {
            Arc::make_mut(self.pods.entry(uid).or_default()).cpus = cpus;
        }
        self.drop_empty();
    }

    /// The same with other memory, of containers and of pods as a whole; what is held beside memory stays.
    pub fn set_memory(
        &mut self,
        allocatable: Vec<MemoryBlock>,
        held: impl IntoIterator<Item = (PodUid, Box<str>, Vec<MemoryBlock>)>,
        pods: impl IntoIterator<Item = (PodUid, Vec<MemoryBlock>)>,
    ) {
        self.allocatable.memory = allocatable;
        self.each(|container| container.memory.clear());
        self.pods.values_mut().for_each(|pod| Arc::make_mut(pod).memory.clear());
        for (uid, name, memory) in held {
            self.container(uid, name).memory = memory;
        }
        for (uid, memory) in pods {
            Arc::make_mut(self.pods.entry(uid).or_default()).memory = memory;
        }
        self.drop_empty();
    }

    fn each(&mut self, mut change: impl FnMut(&mut ContainerAssignment)) {
        for pod in self.pods.values_mut() {
            Arc::make_mut(pod).containers.values_mut().for_each(&mut change);
        }
    }

    fn container(&mut self, uid: PodUid, name: Box<str>) -> &mut ContainerAssignment {
        let pod = Arc::make_mut(self.pods.entry(uid).or_default());
        pod.containers.entry(name).or_default()
    }

    fn drop_empty(&mut self) {
        let nothing = ContainerAssignment::default();
        for pod in self.pods.values_mut() {
            Arc::make_mut(pod).containers.retain(|_, container| *container != nothing);
        }
        self.pods.retain(|_, pod| **pod != PodAssignment::default());
    }
}

/// What may be given out at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocatable {
    /// CPUs that a container may have to itself; empty where CPUs are not given out.
    pub cpus: BTreeSet<u32>,
    /// One block for each NUMA node and type; empty where memory is not given out.
    pub memory: Vec<MemoryBlock>,
    /// Healthy devices.
    pub devices: Vec<HeldDevice>,
}

/// What one pod holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodAssignment {
    /// Of containers that hold something, by name.
    pub containers: BTreeMap<Box<str>, ContainerAssignment>,
    /// CPUs that the pod holds as a whole.
    pub cpus: BTreeSet<u32>,
    /// Memory that the pod holds as a whole.
    pub memory: Vec<MemoryBlock>,
}

/// What one container holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerAssignment {
    /// CPUs that are its alone.
    pub cpus: BTreeSet<u32>,
    /// Memory that is kept for it.
    pub memory: Vec<MemoryBlock>,
    /// Its devices.
    pub devices: Vec<HeldDevice>,
}

/// Memory of one type on some NUMA nodes together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBlock {
    /// `memory` or `hugepages-2Mi` and the like.
    pub kind: Box<str>,
    /// How much, on all nodes together.
    pub bytes: u64,
    /// The NUMA nodes, ascending.
    pub nodes: Vec<u32>,
}

/// A device of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldDevice {
    /// `vendor.com/thing`.
    pub resource: Arc<str>,
    /// Unique among the resource's devices.
    pub id: Arc<str>,
    /// The NUMA nodes it belongs to, ascending; none for one that belongs nowhere.
    pub nodes: Vec<u32>,
    /// What its plugin says of it.
    pub health: DeviceHealth,
}

/// How a device is, as far as its plugin told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceHealth {
    /// It works.
    #[default]
    Healthy,
    /// Its plugin says that it does not.
    Unhealthy,
    /// Its plugin has gone, or tells of it no longer.
    Unknown,
    /// Nothing was heard since mainstay was started: what was said before stands.
    Awaited,
}

/// How much there is of what device plugins offer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtendedResources {
    /// By resource name; a resource whose plugin has gone for good stays, with nothing.
    pub amounts: BTreeMap<Arc<str>, ExtendedAmount>,
    /// Of those the ones whose plugin is known from before a restart and has not come back yet: how many there are is not known,
    /// and nobody is turned away for want of them.
    pub awaited: BTreeSet<Arc<str>>,
    /// Of those the ones of which somebody holds devices that nobody can name: nobody else is given any. Who asks for them is told so, rather than
    /// that there are too few.
    pub unsure: BTreeSet<Arc<str>>,
}

/// How much there is of one such resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtendedAmount {
    /// All devices.
    pub capacity: usize,
    /// Healthy ones; where nobody can be given any, those that somebody is known to hold.
    pub allocatable: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_cpus_come_and_go_apart() {
        let mut all = Assignments::default();
        let device = HeldDevice {
            resource: "a.com/x".into(),
            id: "0".into(),
            nodes: Vec::new(),
            health: DeviceHealth::Healthy,
        };
        all.set_cpus([1, 2].into(), [(PodUid::from("p"), "c".into(), [1].into())], []);
        all.set_devices(
            vec![device.clone()],
            [
                (PodUid::from("p"), "c".into(), vec![device.clone()]),
                (PodUid::from("q"), "c".into(), vec![device.clone()]),
            ],
        );
        assert_eq!(all.pods.len(), 2);
        assert_eq!(all.pods[&PodUid::from("p")].containers["c"].cpus, [1].into());
        all.set_devices(Vec::new(), []);
        assert_eq!(all.pods.len(), 1);
        assert_eq!(all.allocatable.cpus, [1, 2].into());
        all.set_cpus(BTreeSet::new(), [], []);
        assert_eq!(all, Assignments::default());
    }
}
