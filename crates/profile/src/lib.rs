//! What this process spends its time and memory on, in the format that `go tool pprof` reads.
//!
//! [`record_cpu`] samples the stacks of running threads a hundred times per second of their CPU time; [`SampledHeap`] is the
//! allocator that notes one allocation in half a megabyte, always, so that [`heap`] can tell what is held and by whom;
//! [`counted`] makes a profile of anything that has names. [`Profile`] is what they give, [`Profile::encoded`] what a client
//! wants, and [`symbols`] gives addresses their names.
//!
//! What it does not do: it serves nothing, it unwinds no thread that does not run, and it has no profile of waiting (locks,
//! tasks). Inlined functions are part of those that they were inlined into: names come from the symbol table, not from
//! debug information.
//!
//! It starts no tasks and no threads. While a CPU profile is recorded, timers of the kernel send `SIGPROF`; between profiles
//! nothing of it runs but the allocator's count.

mod cpu;
mod elf;
mod heap;
mod maps;
mod pprof;
mod stack;
mod symbols;

pub use cpu::{CpuError, record as record_cpu};
pub use heap::{SampledHeap, profile as heap, sample_heap};
pub use pprof::{Profile, Sample, Unit, counted};
pub use symbols::symbols;

/// The parsers without files, for fuzzing.
#[doc(hidden)]
pub mod fuzz {
    /// How many lines of a text are mappings of code, as in `/proc/PID/maps`.
    #[must_use]
    pub fn mappings(text: &str) -> usize {
        text.lines().filter_map(crate::maps::parse).count()
    }
}
