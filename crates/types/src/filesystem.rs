//! What lies on disks: how full file systems are, and what pods have put there.

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;

use crate::{ContainerId, ContainerName, PodUid};

/// What was found on the node's disks, as one immutable value. What could not be found out is not there; what could not be
/// found out again stays as it was, with its time.
#[derive(Clone, Debug, Default)]
pub struct Filesystems {
    /// Counts up with every change.
    pub generation: u64,
    /// The one with the root directory.
    pub node: Option<FsReading>,
    /// The one with images: its size, and what images use of it.
    pub images: Option<FsReading>,
    /// The one with containers' writable layers, likewise.
    pub layers: Option<FsReading>,
    /// The machine's file systems on devices, by device.
    pub devices: Arc<[DeviceReading]>,
    /// Pods, by UID.
    pub pods: HashMap<PodUid, Arc<PodDisk>>,
    /// What walking through pods' volumes has cost so far.
    pub walks: WalkCost,
}

/// What all walks through volumes that came to their end took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkCost {
    /// By the clock, in microseconds.
    pub micros: u64,
    /// Of a processor, in microseconds.
    pub cpu_micros: u64,
}

/// Bytes and inodes at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsReading {
    /// When they were read.
    pub at: Timestamp,
    /// The file system itself; `None` where it could not be asked.
    pub size: Option<FsSize>,
    /// What it is about uses so many bytes of it.
    pub used_bytes: Option<u64>,
    /// And so many inodes.
    pub inodes_used: Option<u64>,
}

/// How large a file system is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsSize {
    /// Bytes in all.
    pub capacity_bytes: u64,
    /// Bytes that can still be written.
    pub available_bytes: u64,
    /// Inodes in all; 0 where they are not limited.
    pub inodes: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
}

/// A file system of the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceReading {
    /// The device as it is mounted.
    pub device: String,
    /// When it was read.
    pub at: Timestamp,
    /// Its size.
    pub size: FsSize,
    /// Bytes in use.
    pub used_bytes: u64,
    /// What the disk has done; `None` where the kernel does not count it.
    pub disk: Option<DiskWork>,
}

/// A line of `/proc/diskstats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskWork {
    /// Reads.
    pub reads: u64,
    /// Reads that were merged with others.
    pub reads_merged: u64,
    /// Sectors of 512 bytes read.
    pub sectors_read: u64,
    /// Milliseconds spent reading.
    pub read_ms: u64,
    /// Writes.
    pub writes: u64,
    /// Writes that were merged with others.
    pub writes_merged: u64,
    /// Sectors of 512 bytes written.
    pub sectors_written: u64,
    /// Milliseconds spent writing.
    pub write_ms: u64,
    /// What is on its way.
    pub in_flight: u64,
    /// Milliseconds with something on its way.
    pub busy_ms: u64,
    /// The same, times how much was.
    pub weighted_ms: u64,
}

/// What a pod has on the node's disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDisk {
    /// Its running containers.
    pub containers: Vec<ContainerDisk>,
    /// Its volumes, those that count for the pod's sum first.
    pub volumes: Arc<[VolumeReading]>,
    /// All that counts for the pod: layers, logs, volumes of its own, its hosts file.
    pub total: FsReading,
}

/// What a container has on the node's disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerDisk {
    /// Its name.
    pub name: ContainerName,
    /// The runtime's ID.
    pub id: ContainerId,
    /// Its writable layer, by the runtime's word.
    pub layer: Option<FsReading>,
    /// Its logs, rotated ones and those of earlier instances too.
    pub logs: Option<FsReading>,
}

/// What lies in a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeReading {
    /// Its name in the pod.
    pub name: Arc<str>,
    /// The claim it is from, if it is from one.
    pub claim: Option<Arc<str>>,
    /// Whether it counts for the pod's sum.
    pub counts: bool,
    /// What was found.
    pub reading: FsReading,
}
