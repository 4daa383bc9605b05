//! What the run as a whole decides, by environment variables: where the peers are, how patient waits are, which cgroup driver
//! nodes and runtimes use, and what the machine lends. `cargo xtask vm` sets all of them; elsewhere the defaults hold.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

/// `.build` of another place than the workspace this was compiled in.
const BUILD_DIR: &str = "MAINSTAY_TEST_BUILD_DIR";
/// A factor for every deadline, for machines that are several times slower, such as emulated ones.
const PATIENCE: &str = "MAINSTAY_TEST_PATIENCE";
/// What the machine's NFS server lends to tests.
const NFS: &str = "MAINSTAY_TEST_NFS";
/// `systemd` or `cgroupfs`.
const DRIVER: &str = "MAINSTAY_TEST_CGROUP_DRIVER";

pub(crate) fn build_dir() -> Option<PathBuf> {
    std::env::var_os(BUILD_DIR).map(PathBuf::from)
}

/// `deadline` as this machine needs it: times `MAINSTAY_TEST_PATIENCE`, or as it is. The kit's own waits have it in already;
/// a test that asserts that something was quick asks for it.
pub fn patient(deadline: Duration) -> Duration {
    static FACTOR: LazyLock<f64> = LazyLock::new(|| {
        let text = std::env::var(PATIENCE).unwrap_or_default();
        text.parse().ok().filter(|factor| (1.0..=100.0).contains(factor)).unwrap_or(1.0)
    });
    deadline.mul_f64(*FACTOR)
}

/// The directory that an NFS server on 127.0.0.1 offers for writing as `/`, where there is one for tests.
pub fn nfs_export() -> Option<PathBuf> {
    std::env::var_os(NFS).map(PathBuf::from)
}

/// Who makes the cgroups of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupDriver {
    /// The runtime, by making directories.
    Cgroupfs,
    /// systemd, as slices and scopes.
    Systemd,
}

impl CgroupDriver {
    /// `MAINSTAY_TEST_CGROUP_DRIVER`, or cgroupfs, which works with and without systemd.
    pub fn of_this_run() -> Self {
        if std::env::var_os(DRIVER).is_some_and(|word| word == "systemd") {
            Self::Systemd
        } else {
            Self::Cgroupfs
        }
    }

    /// `cgroupDriver` in a KubeletConfiguration.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cgroupfs => "cgroupfs",
            Self::Systemd => "systemd",
        }
    }

    /// The directory of a cgroup whose name has these parts, below a hierarchy's mount point. A slice carries the names of
    /// those it is in, and a dash within a part is an underscore there.
    pub fn path(self, parts: &[&str]) -> PathBuf {
        match self {
            Self::Cgroupfs => parts.iter().collect(),
            Self::Systemd => {
                let mut name = String::new();
                let mut path = PathBuf::new();
                for part in parts {
                    if !name.is_empty() {
                        name.push('-');
                    }
                    name.push_str(&part.replace('-', "_"));
                    path.push(format!("{name}.slice"));
                }
                path
            }
        }
    }

    /// The same cgroup as a kubelet tells a runtime of it, as the parent of a sandbox.
    pub fn parent(self, parts: &[&str]) -> String {
        format!("/{}", self.path(parts).display())
    }

    /// The name of containerd's cgroup for a container, in that of its pod.
    pub fn container(self, id: &str) -> String {
        match self {
            Self::Cgroupfs => id.to_owned(),
            Self::Systemd => format!("cri-containerd-{id}.scope"),
        }
    }
}

/// Whether this is a test, whose output the harness shows if it fails, and not the bench or `make run`, whose output
/// people read. cargo puts the programs of tests, and only those, into `deps`.
pub(crate) fn in_test() -> bool {
    let program = std::env::current_exe().unwrap_or_default();
    program.parent().is_some_and(|directory| directory.ends_with("deps"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn slices_carry_the_names_of_those_they_are_in() {
        let parts = ["mainstay-test-a", "kubepods", "burstable", "pod12-34"];
        assert_eq!(
            CgroupDriver::Cgroupfs.path(&parts),
            Path::new("mainstay-test-a/kubepods/burstable/pod12-34")
        );
        assert_eq!(
            CgroupDriver::Systemd.path(&parts),
            Path::new(
                "mainstay_test_a.slice/mainstay_test_a-kubepods.slice/mainstay_test_a-kubepods-burstable.slice/\
                 mainstay_test_a-kubepods-burstable-pod12_34.slice"
            )
        );
        assert_eq!(CgroupDriver::Cgroupfs.parent(&["a-b", "c"]), "/a-b/c");
        assert_eq!(CgroupDriver::Systemd.parent(&["a-b", "c"]), "/a_b.slice/a_b-c.slice");
        assert_eq!(CgroupDriver::Systemd.container("ab"), "cri-containerd-ab.scope");
    }
}
