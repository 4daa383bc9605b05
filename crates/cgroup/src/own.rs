//! The cgroup that a process is in.

use crate::CgroupPath;

impl CgroupPath {
    /// The cgroup of a process, from its `/proc/PID/cgroup`, in the unified hierarchy or in those of time and memory; `None` if it is in the
    /// root, where nothing is its own, or in different ones.
    #[must_use]
    pub fn of_process(text: &str, unified: bool) -> Option<Self> {
        let of = |wanted: &str| {
            text.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':');
                let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
                controllers.split(',').any(|controller| controller == wanted).then_some(path)
            })
        };
        let path = if unified {
            of("")?
        } else {
            let (time, memory) = (of("cpuacct")?, of("memory")?);
            if time != memory {
                return None;
            }
            time
        };
        Self::parse(path).ok().filter(|path| !path.is_root())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_cgroup() {
        let own = |text, unified| CgroupPath::of_process(text, unified).map(|path| path.as_str().to_owned());
        assert_eq!(
            own("0::/system.slice/kubelet.service\n", true).as_deref(),
            Some("/system.slice/kubelet.service")
        );
        assert_eq!(own("0::/\n", true), None);
        let v1 = "5:memory:/kubelet\n4:cpu,cpuacct:/kubelet\n1:name=systemd:/other\n0::/\n";
        assert_eq!(own(v1, false).as_deref(), Some("/kubelet"));
        assert_eq!(own("5:memory:/a\n4:cpu,cpuacct:/b\n", false), None);
        assert_eq!(own("nonsense", false), None);
        // Of another cgroup namespace: what lies above ours has no path here.
        assert_eq!(own("0::/../other\n", true), None);
    }
}
