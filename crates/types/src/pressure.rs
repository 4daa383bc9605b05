//! Whether the node runs short of something that all its pods share.

use serde::{Deserialize, Serialize};

/// What a node can run short of: the three pressure conditions of a Node object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PressureKind {
    /// Memory.
    Memory,
    /// Space or inodes on the node's own file system or that of images.
    Disk,
    /// Process IDs.
    Pid,
}

impl PressureKind {
    /// All of them, in the order in which a Node object shows them.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Disk, Self::Pid];

    /// The type of the condition.
    #[must_use]
    pub const fn condition(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Disk => "DiskPressure",
            Self::Pid => "PIDPressure",
        }
    }
}

/// What the node was found to be short of; `None` for what could not be measured yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodePressure {
    /// Of memory.
    pub memory: Option<bool>,
    /// Of disk.
    pub disk: Option<bool>,
    /// Of process IDs.
    pub pid: Option<bool>,
}

impl NodePressure {
    /// The finding of one kind.
    #[must_use]
    pub const fn of(&self, kind: PressureKind) -> Option<bool> {
        match kind {
            PressureKind::Memory => self.memory,
            PressureKind::Disk => self.disk,
            PressureKind::Pid => self.pid,
        }
    }

    /// The kinds of which there is too little.
    pub fn kinds(self) -> impl Iterator<Item = PressureKind> {
        PressureKind::ALL.into_iter().filter(move |kind| self.of(*kind) == Some(true))
    }
}
