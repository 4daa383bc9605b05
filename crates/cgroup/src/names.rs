//! What the cgroups of pods are called.
//!
//! `<cgroupRoot>/kubepods`, in it guaranteed pods and the classes `burstable` and `besteffort`, in these the other pods; a
//! pod's is `pod<uid>`. With the systemd driver each of them is a slice that carries the names of those above it. Upstream:
//! `pkg/kubelet/cm/cgroup_manager_linux.go`.

use std::fmt;
use std::path::Path;

use mainstay_podspec::runtime::QosClass;
use mainstay_types::PodUid;

const TOP: &str = "kubepods";
const POD_PREFIX: &str = "pod";
const SLICE: &str = ".slice";
/// `_` as systemd escapes it.
const UNDERSCORE: &str = "\\x5f";

/// Who makes cgroups, and therefore how they are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// mainstay and the runtime, as directories.
    Cgroupfs,
    /// systemd, as slices.
    Systemd,
}

impl Driver {
    /// As the configuration calls it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Cgroupfs => "cgroupfs",
            Self::Systemd => "systemd",
        }
    }
}

/// The absolute path of a cgroup within its hierarchy, such as `/kubepods/burstable`; never with `.` or `..` in it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupPath(String);

/// A text that cannot be the path of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not the path of a cgroup; it has to be absolute, without '.' or '..' (cgroupRoot?)")]
pub struct PathError {
    text: String,
}

/// The names of all pod cgroups of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupNames {
    driver: Driver,
    /// The parts of `cgroupRoot`.
    root: Vec<String>,
}

impl CgroupPath {
    /// Takes a path such as a CRI `cgroup_parent`. Repeated and trailing slashes are dropped.
    ///
    /// # Errors
    /// [`PathError`] if it is not absolute or has parts that lead elsewhere.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let invalid = || PathError { text: text.to_owned() };
        let rest = text.strip_prefix('/').ok_or_else(invalid)?;
        let parts: Vec<&str> = rest.split('/').filter(|part| !part.is_empty()).collect();
        if parts.iter().any(|part| matches!(*part, "." | "..") || part.contains(['\0', '\n'])) {
            return Err(invalid());
        }
        Ok(Self::from_parts(&parts))
    }

    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path as it continues a mount point: without the leading slash.
    pub(crate) fn relative(&self) -> &Path {
        Path::new(self.0.trim_start_matches('/'))
    }

    /// Whether systemd made it: only its slices are called so.
    pub(crate) fn is_slice(&self) -> bool {
        self.0.ends_with(SLICE)
    }

    pub(crate) fn is_root(&self) -> bool {
        self.0 == "/"
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').filter(|part| !part.is_empty())
    }

    /// The one below it with that name, as a directory that was found there is called.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        Self::from_parts(&self.parts().chain([name]).collect::<Vec<_>>())
    }

    fn from_parts<S: AsRef<str>>(parts: &[S]) -> Self {
        let mut path = String::new();
        for part in parts {
            path.push('/');
            path.push_str(part.as_ref());
        }
        if path.is_empty() {
            path.push('/');
        }
        Self(path)
    }
}

impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl CgroupNames {
    /// Names below `cgroup_root` (the configuration's `cgroupRoot`; empty means `/`).
    ///
    /// # Errors
    /// [`PathError`] if that is no path of a cgroup.
    pub fn new(driver: Driver, cgroup_root: &str) -> Result<Self, PathError> {
        let root = if cgroup_root.is_empty() { "/" } else { cgroup_root };
        let root = CgroupPath::parse(root)?.parts().map(str::to_owned).collect();
        Ok(Self { driver, root })
    }

    /// The driver that the names are for.
    #[must_use]
    pub const fn driver(&self) -> Driver {
        self.driver
    }

    /// The cgroup of all pods: `/kubepods`.
    #[must_use]
    pub fn top(&self) -> CgroupPath {
        self.path(&[])
    }

    /// The cgroup that pods of a class are in; for guaranteed pods that is [`CgroupNames::top`].
    #[must_use]
    pub fn class(&self, class: QosClass) -> CgroupPath {
        self.path(class_part(class))
    }

    /// A pod's cgroup, which is the CRI's `cgroup_parent` of its sandbox. No two pods share one: the dashes of a UID become
    /// underscores in a slice's name, as upstream has it, so that underscores, which no UID of an API server has, are
    /// written as systemd escapes them.
    #[must_use]
    pub fn pod(&self, class: QosClass, uid: &PodUid) -> CgroupPath {
        let pod = match self.driver {
            Driver::Cgroupfs => format!("{POD_PREFIX}{uid}"),
            Driver::Systemd => format!("{POD_PREFIX}{}", uid.as_str().replace('_', UNDERSCORE)),
        };
        self.path(&[class_part(class), &[&pod]].concat())
    }

    /// Every cgroup that a pod can have, one in each class.
    #[must_use]
    pub fn pods(&self, uid: &PodUid) -> [CgroupPath; 3] {
        [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort].map(|class| self.pod(class, uid))
    }

    /// Whether that is the last part of a pod cgroup's path. Of which pod is not told: others may name them otherwise.
    pub(crate) fn is_pod(&self, class: QosClass, last_part: &str) -> bool {
        let uid = match self.driver {
            Driver::Cgroupfs => last_part.strip_prefix(POD_PREFIX),
            Driver::Systemd => self.class(class).parts().last().and_then(|class| {
                let rest = last_part.strip_prefix(class.strip_suffix(SLICE)?)?.strip_prefix('-')?;
                rest.strip_prefix(POD_PREFIX)?.strip_suffix(SLICE)
            }),
        };
        uid.is_some_and(|uid| !uid.is_empty())
    }

    /// The path of a cgroup that the configuration names (`systemReservedCgroup` …). With the systemd driver only the last
    /// part counts, and says by its dashes which slices it is in, as upstream has it.
    ///
    /// # Errors
    /// [`PathError`] if it is none.
    pub fn given(&self, text: &str) -> Result<CgroupPath, PathError> {
        let path = CgroupPath::parse(text)?;
        if self.driver == Driver::Cgroupfs {
            return Ok(path);
        }
        let last = path.parts().last().unwrap_or_default();
        let parts: Vec<_> = last.strip_suffix(SLICE).unwrap_or(last).split('-').collect();
        if parts.iter().any(|part| part.is_empty()) {
            return Err(PathError { text: text.to_owned() });
        }
        Ok(slices(parts.into_iter()))
    }

    fn path(&self, below_top: &[&str]) -> CgroupPath {
        let parts = self.root.iter().map(String::as_str).chain([TOP]).chain(below_top.iter().copied());
        match self.driver {
            Driver::Cgroupfs => CgroupPath::from_parts(&parts.collect::<Vec<_>>()),
            Driver::Systemd => slices(parts),
        }
    }
}

/// Each slice carries the names of those above it.
fn slices<'a>(parts: impl Iterator<Item = &'a str>) -> CgroupPath {
    let mut name = String::new();
    let mut slices = Vec::new();
    for part in parts {
        if !name.is_empty() {
            name.push('-');
        }
        // A dash in a slice's name means "below".
        name.push_str(&part.replace('-', "_"));
        slices.push(format!("{name}{SLICE}"));
    }
    CgroupPath::from_parts(&slices)
}

const fn class_part(class: QosClass) -> &'static [&'static str] {
    match class {
        QosClass::Guaranteed => &[],
        QosClass::Burstable => &["burstable"],
        QosClass::BestEffort => &["besteffort"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0c1d2e3f-4a5b-6c7d-8e9f-0a1b2c3d4e5f";

    #[test]
    fn pod_cgroups_by_driver_root_and_class() {
        use Driver::{Cgroupfs, Systemd};
        use QosClass::{BestEffort, Burstable, Guaranteed};
        let rows = [
            (Cgroupfs, "", Guaranteed, "/kubepods/pod0c1d2e3f-4a5b-6c7d-8e9f-0a1b2c3d4e5f"),
            (Cgroupfs, "/", Burstable, "/kubepods/burstable/pod0c1d2e3f-4a5b-6c7d-8e9f-0a1b2c3d4e5f"),
            (Cgroupfs, "/", BestEffort, "/kubepods/besteffort/pod0c1d2e3f-4a5b-6c7d-8e9f-0a1b2c3d4e5f"),
            (
                Cgroupfs,
                "/a-b//c/",
                Burstable,
                "/a-b/c/kubepods/burstable/pod0c1d2e3f-4a5b-6c7d-8e9f-0a1b2c3d4e5f",
            ),
            (
                Systemd,
                "/",
                Guaranteed,
                "/kubepods.slice/kubepods-pod0c1d2e3f_4a5b_6c7d_8e9f_0a1b2c3d4e5f.slice",
            ),
            (
                Systemd,
                "",
                Burstable,
                "/kubepods.slice/kubepods-burstable.slice/\
                 kubepods-burstable-pod0c1d2e3f_4a5b_6c7d_8e9f_0a1b2c3d4e5f.slice",
            ),
            (
                Systemd,
                "/kubelet",
                BestEffort,
                "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/\
                 kubelet-kubepods-besteffort-pod0c1d2e3f_4a5b_6c7d_8e9f_0a1b2c3d4e5f.slice",
            ),
            (
                Systemd,
                "/a/b-c",
                Guaranteed,
                "/a.slice/a-b_c.slice/a-b_c-kubepods.slice/\
                 a-b_c-kubepods-pod0c1d2e3f_4a5b_6c7d_8e9f_0a1b2c3d4e5f.slice",
            ),
        ];
        for (driver, root, class, expected) in rows {
            let names = CgroupNames::new(driver, root).unwrap();
            let pod = names.pod(class, &PodUid::from(UID));
            assert_eq!(pod.as_str(), expected);
            let last = pod.parts().last().unwrap();
            assert!(names.is_pod(class, last), "{last}");
            assert!(names.pods(&PodUid::from(UID)).contains(&pod), "{pod}");
        }
    }

    #[test]
    fn no_two_pods_share_a_cgroup() {
        for driver in [Driver::Cgroupfs, Driver::Systemd] {
            let names = CgroupNames::new(driver, "/").unwrap();
            let uids = ["a-b", "a_b", "a-b_c", "a_b-c", "ab", "a.b"];
            let mut paths: Vec<_> =
                uids.iter().map(|uid| names.pod(QosClass::BestEffort, &PodUid::from(*uid))).collect();
            assert!(
                paths.iter().all(|path| names.is_pod(QosClass::BestEffort, path.parts().last().unwrap()))
            );
            paths.sort();
            paths.dedup();
            assert_eq!(paths.len(), uids.len(), "{paths:?}");
        }
        let names = CgroupNames::new(Driver::Systemd, "/").unwrap();
        let path = names.pod(QosClass::Guaranteed, &PodUid::from("a_b"));
        assert_eq!(path.as_str(), r"/kubepods.slice/kubepods-poda\x5fb.slice");
    }

    #[test]
    fn cgroups_of_classes() {
        let names = CgroupNames::new(Driver::Cgroupfs, "/").unwrap();
        assert_eq!(names.top().as_str(), "/kubepods");
        assert_eq!(names.class(QosClass::Guaranteed).as_str(), "/kubepods");
        assert_eq!(names.class(QosClass::BestEffort).as_str(), "/kubepods/besteffort");
        let names = CgroupNames::new(Driver::Systemd, "/kubelet").unwrap();
        assert_eq!(names.top().as_str(), "/kubelet.slice/kubelet-kubepods.slice");
        assert_eq!(
            names.class(QosClass::Burstable).as_str(),
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"
        );
    }

    #[test]
    fn cgroups_that_the_configuration_names() {
        for (driver, text, expected) in [
            (Driver::Cgroupfs, "/system", "/system"),
            (Driver::Cgroupfs, "/a/b-c/", "/a/b-c"),
            (Driver::Systemd, "/system.slice", "/system.slice"),
            (Driver::Systemd, "/system", "/system.slice"),
            (Driver::Systemd, "/kube.slice/kube-reserved.slice", "/kube.slice/kube-reserved.slice"),
            (Driver::Systemd, "/kube-reserved.slice", "/kube.slice/kube-reserved.slice"),
        ] {
            let names = CgroupNames::new(driver, "/elsewhere").unwrap();
            assert_eq!(names.given(text).unwrap().as_str(), expected);
        }
        let names = CgroupNames::new(Driver::Systemd, "/").unwrap();
        for bad in ["system.slice", "/", "/-.slice", "/a--b.slice"] {
            names.given(bad).unwrap_err();
        }
    }

    #[test]
    fn other_cgroups_are_no_pods() {
        let names = CgroupNames::new(Driver::Cgroupfs, "/").unwrap();
        for part in ["burstable", "pod", "xpod1", ""] {
            assert!(!names.is_pod(QosClass::Guaranteed, part), "{part}");
        }
        let names = CgroupNames::new(Driver::Systemd, "/").unwrap();
        for part in ["kubepods-burstable.slice", "kubepods-pod.slice", "kubepods-pod1.scope", "pod1"] {
            assert!(!names.is_pod(QosClass::Guaranteed, part), "{part}");
        }
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for text in ["", "kubepods", "/a/../b", "/./a", "/..", "/a\0b"] {
            assert!(CgroupPath::parse(text).is_err(), "{text:?}");
        }
        assert_eq!(CgroupPath::parse("//a//b/").unwrap().as_str(), "/a/b");
        assert!(CgroupPath::parse("/").unwrap().is_root());
        CgroupNames::new(Driver::Cgroupfs, "relative").unwrap_err();
    }
}
