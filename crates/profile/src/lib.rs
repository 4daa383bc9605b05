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
    use std::{io, os::unix::fs::FileExt};

    use crate::elf::Elf;

    struct Bytes<'a>(&'a [u8]);

    impl FileExt for Bytes<'_> {
        fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
            let rest = usize::try_from(at).ok().and_then(|at| self.0.get(at..)).unwrap_or_default();
            let (from, len) = (rest.iter(), into.len().min(rest.len()));
            into.iter_mut().zip(from).for_each(|(into, from)| *into = *from);
            Ok(len)
        }

        fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// The functions in an ELF file that what stands at these places of it belongs to.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn functions(file: &[u8], places: &[u64]) -> io::Result<Vec<Option<String>>> {
        let elf = Elf::open(Bytes(file))?;
        let mut addresses: Vec<u64> = places.iter().filter_map(|place| elf.address(*place)).collect();
        addresses.sort_unstable();
        addresses.dedup();
        elf.names(&addresses)
    }

    /// How many lines of a text are mappings of code, as in `/proc/PID/maps`.
    #[must_use]
    pub fn mappings(text: &str) -> usize {
        text.lines().filter_map(crate::maps::parse).count()
    }
}
