//! The kernel settings that a node needs (upstream's `pkg/kubelet/cm/container_manager_linux.go`).

use std::{fs, io};

use crate::Host;

/// A setting and the value it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelTunable {
    /// Its name, `vm.overcommit_memory`.
    pub name: &'static str,
    /// The value.
    pub wanted: i64,
}

/// All of them: memory may be promised more than once, running out of it kills a process and not the machine, an oops
/// reboots the machine after ten seconds, and root may have a key for each container.
pub const KERNEL_TUNABLES: &[KernelTunable] = &[
    KernelTunable { name: "vm.overcommit_memory", wanted: 1 },
    KernelTunable { name: "vm.panic_on_oom", wanted: 0 },
    KernelTunable { name: "kernel.panic", wanted: 10 },
    KernelTunable { name: "kernel.panic_on_oops", wanted: 1 },
    KernelTunable { name: "kernel.keys.root_maxkeys", wanted: 1_000_000 },
    KernelTunable { name: "kernel.keys.root_maxbytes", wanted: 25_000_000 },
];

/// How a setting stands.
#[derive(Debug)]
pub enum TunableState {
    /// As it should.
    Right,
    /// Otherwise.
    Wrong {
        /// What it is.
        actual: i64,
    },
    /// It cannot be read.
    Unknown(io::Error),
}

impl Host {
    /// Looks at a setting.
    #[must_use]
    pub fn tunable(&self, tunable: KernelTunable) -> TunableState {
        let text = match fs::read_to_string(self.tunable_path(tunable)) {
            Ok(text) => text,
            Err(error) => return TunableState::Unknown(error),
        };
        match text.trim().parse() {
            Ok(actual) if actual == tunable.wanted => TunableState::Right,
            Ok(actual) => TunableState::Wrong { actual },
            Err(_) => TunableState::Unknown(io::Error::new(io::ErrorKind::InvalidData, "not a number")),
        }
    }

    /// Gives a setting its value, for the whole machine.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_tunable(&self, tunable: KernelTunable) -> io::Result<()> {
        fs::write(self.tunable_path(tunable), tunable.wanted.to_string())
    }

    /// Tells the kernel how gladly it may kill this process when memory runs out (`oomScoreAdj`).
    ///
    /// # Errors
    /// What the kernel says; lowering it takes CAP_SYS_RESOURCE.
    pub fn set_oom_score_adj(&self, score: i32) -> io::Result<()> {
        fs::write(self.proc.join("self/oom_score_adj"), score.to_string())
    }

    fn tunable_path(&self, tunable: KernelTunable) -> std::path::PathBuf {
        self.proc.join("sys").join(tunable.name.replace('.', "/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_written() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::below(root.path());
        let [overcommit, panic, ..] = KERNEL_TUNABLES else { panic!("there are more") };
        assert!(matches!(host.tunable(*overcommit), TunableState::Unknown(_)));
        fs::create_dir_all(root.path().join("proc/sys/vm")).unwrap();
        fs::write(root.path().join("proc/sys/vm/overcommit_memory"), "0\n").unwrap();
        fs::write(root.path().join("proc/sys/vm/panic_on_oom"), "0\n").unwrap();
        assert!(matches!(host.tunable(*overcommit), TunableState::Wrong { actual: 0 }));
        assert!(matches!(host.tunable(*panic), TunableState::Right));
        host.set_tunable(*overcommit).unwrap();
        assert_eq!(fs::read_to_string(root.path().join("proc/sys/vm/overcommit_memory")).unwrap(), "1");
        assert!(matches!(host.tunable(*overcommit), TunableState::Right));
    }

    #[test]
    fn our_own_score() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        Host::below(root.path()).set_oom_score_adj(-999).unwrap();
        assert_eq!(fs::read_to_string(root.path().join("proc/self/oom_score_adj")).unwrap(), "-999");
    }
}
