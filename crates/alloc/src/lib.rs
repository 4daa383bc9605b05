//! Which CPUs and devices a container is given: pure functions over a description of the machine.
//!
//! [`Machine`] says which CPU is on which core, socket, NUMA node and cache; [`take`] picks so many of the free ones as
//! upstream's static CPU manager of 1.37 picks them (`pkg/kubelet/cm/cpumanager/cpu_assignment.go`: packed, spread over cores,
//! or distributed over NUMA nodes), so that a machine looks the same under either agent.
//!
//! [`Static`] keeps who holds what, and [`CpuState`] is upstream's `cpu_manager_state` file as text, in both directions.
//!
//! [`Ledger`] keeps who holds which devices of what plugins offer, and is upstream's `kubelet_internal_checkpoint` as text likewise.
//!
//! [`MemoryStatic`] keeps on which NUMA nodes containers' memory is counted, and [`MemoryState`] is upstream's `memory_manager_state`. [`Topology`] puts what
//! would suit each of them together to one set of nodes.
//!
//! What it does not do: it reads no file and no clock.

#![forbid(unsafe_code)]

mod cpu;
mod device_file;
mod devices;
mod machine;
mod memory;
mod memory_state;
mod nodes;
mod set;
mod state;
mod static_policy;
#[cfg(test)]
mod together;
mod topology;

pub use cpu::{NotEnough, Packing, take};
pub use device_file::DeviceFileError;
pub use devices::{
    Ask, AskError, Choice, ContainerHeld, Device, Devices, Held, Ledger, Standing, Unsure, asks,
};
pub use machine::{Cpu, Machine};
pub use memory::{
    Block, Bytes, MemoryError, MemoryMachine, MemoryNode, MemoryStatic, MemoryTable, PodMemory,
};
pub use memory_state::MemoryState;
pub use nodes::NodeMask;
pub use set::{CpuSet, CpuSetError};
pub use state::{CpuState, StateError};
pub use static_policy::{AssignError, Options, Part, PodCpus, Static, Use};
pub use topology::{Hint, Hints, Topology, TopologyPolicy};
