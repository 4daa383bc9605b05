//! Local volumes: directories of this machine that were there before their pods and may be several pods' at a time.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

use mainstay_podspec::volumes::VolumeSetup;
use rustix::fs::{Mode, OFlags};

use crate::{
    Notice, Progress, VolumeError, host_path, ownership,
    setup::{is_set_up, mark_ready},
};

/// Volumes that are being given to a pod's group. Whoever comes next must see who uses it already.
static BUSY: (Mutex<Option<HashSet<PathBuf>>>, Condvar) = (Mutex::new(None), Condvar::new());

/// How often those who wait look whether they still want to.
const LOOK: Duration = Duration::from_secs(1);

/// Makes a local volume a pod's: it is given to the pod's group, unless another pod has it, whose it would no longer be (upstream:
/// `localVolumeMounter.SetUpAt`).
pub(crate) fn set_up(setup: &VolumeSetup, progress: &Progress) -> Result<Option<Notice>, VolumeError> {
    let path = &setup.path;
    host_path::check_local(path)?;
    let mut notice = None;
    // Once for a pod: what it puts there is its own affair.
    if let Some(group) = setup.fs_group.filter(|_| !is_set_up(setup)) {
        progress.doing(format!("waiting for others who change the group of volume {:?}", setup.name));
        let _turn = Turn::take(path, progress)?;
        if is_anothers(setup) {
            let has = owner_of(path)?;
            notice = (has != group).then_some(Notice::OtherGroup { asked: group, has });
        } else {
            progress.doing(format!("giving what is in volume {:?} to group {group}", setup.name));
            ownership::give(path, group, setup.group_change, progress)?;
        }
        // Before the next one looks who uses it.
        mark_ready(setup)?;
    }
    mark_ready(setup)?;
    Ok(notice)
}

/// Whether another pod's directory says that it uses the volume: `pods/<uid>/plugins/<plugin>/<volume>/ready`.
fn is_anothers(setup: &VolumeSetup) -> bool {
    let Some(marker) = setup.ready_marker.as_deref() else { return false };
    let mut above = marker.ancestors();
    let (Some(own), Some(pods)) = (above.nth(4), above.next()) else { return false };
    let Ok(place) = marker.strip_prefix(own) else { return false };
    let others = fs::read_dir(pods).into_iter().flatten().flatten().map(|entry| entry.path());
    others.filter(|other| other != own).any(|other| other.join(place).is_file())
}

fn owner_of(path: &Path) -> Result<u32, VolumeError> {
    let failed = |errno| VolumeError::io("look at", path)(errno);
    let root = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    Ok(rustix::fs::fstat(&root).map_err(failed)?.st_gid)
}

/// The right to look at a volume's users and change its group.
struct Turn<'a>(&'a Path);

impl<'a> Turn<'a> {
    /// Waits for it, unless the volume is no longer wanted.
    fn take(path: &'a Path, progress: &Progress) -> Result<Self, VolumeError> {
        let (busy, freed) = &BUSY;
        let mut busy = busy.lock().unwrap_or_else(PoisonError::into_inner);
        while !busy.get_or_insert_default().insert(path.to_owned()) {
            if progress.is_abandoned() {
                return Err(VolumeError::Abandoned { path: path.to_owned() });
            }
            busy = freed.wait_timeout(busy, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(Self(path))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let (busy, freed) = &BUSY;
        busy.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().remove(self.0);
        freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use mainstay_podspec::volumes::{GroupChange, SetupKind};

    use super::*;

    fn setup(root: &Path, uid: &str, volume: &Path, group: u32) -> VolumeSetup {
        let marker = root.join(format!("pods/{uid}/plugins/kubernetes.io~local-volume/pv/ready"));
        VolumeSetup {
            name: "v".into(),
            path: volume.to_owned(),
            ready_marker: Some(marker),
            kind: SetupKind::Local,
            fs_group: Some(group),
            group_change: GroupChange::Always,
        }
    }

    #[test]
    fn a_volume_that_another_pod_has_stays_that_pods() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, link) = (dir.path().join("volume"), dir.path().join("link"));
        fs::create_dir(&volume).unwrap();
        fs::write(volume.join("file"), "").unwrap();
        // An administrator may name it by a link.
        symlink(&volume, &link).unwrap();
        let group = || fs::metadata(volume.join("file")).unwrap().gid();
        let up = |uid: &str, wanted: u32| {
            crate::set_up(&setup(dir.path(), uid, &link, wanted), &Progress::default()).unwrap()
        };
        assert_eq!((up("first", 1000), group()), (None, 1000));
        assert_eq!((up("same", 1000), group()), (None, 1000));
        assert_eq!((up("other", 2000), group()), (Some(Notice::OtherGroup { asked: 2000, has: 1000 }), 1000));
        assert_eq!((up("other", 2000), group()), (None, 1000), "told of once");
        fs::remove_dir_all(dir.path().join("pods")).unwrap();
        assert_eq!((up("later", 2000), group()), (None, 2000));
    }

    #[test]
    fn what_is_no_directory_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let error = crate::set_up(&setup(dir.path(), "u", Path::new("/dev/null"), 1), &Progress::default());
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("the local volume's path /dev/null is a character device"), "{error}");
        let missing = setup(dir.path(), "u", &dir.path().join("missing"), 1);
        let error = crate::set_up(&missing, &Progress::default()).unwrap_err().to_string();
        assert!(error.starts_with("cannot look at the local volume's path"), "{error}");
    }
}
