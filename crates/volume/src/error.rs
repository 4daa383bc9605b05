//! What can go wrong.

use std::{io, path::PathBuf};

use mainstay_host::{HostError, RemoveError};

/// Why a volume is not as it should be. Upstream's words where it has some.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The system refused.
    #[error("cannot {action} {path}: {source}", path = path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something else is at a host path than the pod says.
    #[error("hostPath type check failed: {path} is not {expected}, it's {actual}; correct the path or its type", path = path.display())]
    HostPathType {
        /// The path.
        path: PathBuf,
        /// `a directory` …
        expected: &'static str,
        /// `a file` …
        actual: &'static str,
    },
    /// What is at a host path cannot be seen.
    #[error("hostPath type check failed, {path} is not {expected}, unable to determine its type: {source}; make it, or correct the path", path = path.display())]
    HostPathUnknown {
        /// The path.
        path: PathBuf,
        /// `a directory` …
        expected: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// What is at a local volume's path cannot be mounted.
    #[error(
        "the local volume's path {path} is {actual}, and mainstay mounts only directories: mount the file system that is on it \
         yourself and name its directory in the PersistentVolume", path = path.display()
    )]
    LocalPath {
        /// The path.
        path: PathBuf,
        /// `a block device` …
        actual: &'static str,
    },
    /// The pod is to go, so nobody waits any longer.
    #[error("{path} is no longer wanted", path = path.display())]
    Abandoned {
        /// The volume.
        path: PathBuf,
    },
    /// The mount command failed.
    #[error(
        "mount failed: {status}\nMounting command: mount\nMounting arguments: {arguments}\nOutput: {output}"
    )]
    MountCommand {
        /// `exit status: 32`.
        status: String,
        /// What it was given.
        arguments: String,
        /// What it said.
        output: String,
    },
    /// The mount command did not end in time, or is no longer wanted, and was killed.
    #[error("mount -t {arguments} was ended after {seconds} s; is the server reachable from this node?")]
    MountCommandSlow {
        /// What it was given.
        arguments: String,
        /// How long it was given.
        seconds: u64,
    },
    /// A part of a volume that leads out of it.
    #[error(
        "subPath {sub_path:?} of {root} leads out of the volume, or changes while it is looked at; it was not mounted", root = root.display()
    )]
    Escapes {
        /// The part.
        sub_path: String,
        /// The volume's root.
        root: PathBuf,
    },
    /// A part of a volume that is a link, or lies behind one, to what does not exist.
    #[error(
        "subPath {sub_path:?} of {root} is or goes through a symbolic link to what does not exist; make its target, or remove the link", root = root.display()
    )]
    Dangling {
        /// The part.
        sub_path: String,
        /// The volume's root.
        root: PathBuf,
    },
    /// The volume has no directory in which a part could be.
    #[error("subPath {sub_path:?}: {root} is not a directory; mount it without subPath", root = root.display())]
    NoDirectory {
        /// The part.
        sub_path: String,
        /// The volume's root.
        root: PathBuf,
    },
    /// A file that is to be read from a volume is none, or too large.
    #[error("{path} {why}", path = path.display())]
    NotReadable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: &'static str,
    },
    /// Something is still mounted after everything was unmounted.
    #[error("{mount_point} is still mounted; what uses it must end first", mount_point = mount_point.display())]
    StillMounted {
        /// Where.
        mount_point: PathBuf,
    },
    /// What is mounted cannot be known.
    #[error("cannot tell what is mounted: {0}")]
    Mounts(#[from] HostError),
    /// Something could not be removed.
    #[error(transparent)]
    Remove(#[from] RemoveError),
}

impl VolumeError {
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(rustix::io::Errno) -> Self {
        let path = path.into();
        move |errno| Self::Io { action, path, source: errno.into() }
    }
}
