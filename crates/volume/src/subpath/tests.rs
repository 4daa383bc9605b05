use std::{
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

use super::*;
use crate::tear_down;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("volumes/v/sub/deep")).unwrap();
        fs::write(dir.path().join("volumes/v/file"), "in the volume").unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        fs::write(dir.path().join("outside/file"), "outside").unwrap();
        Self(dir)
    }

    fn volume(&self) -> PathBuf {
        self.0.path().join("volumes/v")
    }

    fn target(&self) -> PathBuf {
        self.0.path().join("volume-subpaths/v/c/0")
    }

    fn bind(&self, sub_path: &str) -> Result<(), String> {
        bind_sub_path(&self.volume(), sub_path, &self.target(), &Progress::default())
            .map_err(|error| error.to_string())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        tear_down(self.0.path(), &Progress::default()).ok();
    }
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

fn mounts_at(path: &Path) -> usize {
    mainstay_host::Host::default().mounts().unwrap().iter().filter(|m| m.mount_point == path).count()
}

#[test]
fn files_and_directories() {
    let place = Place::new();
    place.bind("sub/deep").unwrap();
    assert_eq!(inode(&place.target()), inode(&place.volume().join("sub/deep")));
    place.bind("sub/deep").unwrap();
    assert_eq!(mounts_at(&place.target()), 1, "what is mounted already stays");
    place.bind("file").unwrap();
    assert_eq!(fs::read_to_string(place.target()).unwrap(), "in the volume");
    assert_eq!(mounts_at(&place.target()), 1, "another takes its place");
}

#[test]
fn what_is_missing_is_made_as_the_root_is() {
    let place = Place::new();
    fs::set_permissions(place.volume(), fs::Permissions::from_mode(0o2770)).unwrap();
    symlink("sub", place.volume().join("link")).unwrap();
    place.bind("link/new/er").unwrap();
    let made = place.volume().join("sub/new/er");
    assert_eq!(inode(&place.target()), inode(&made));
    for path in [made.clone(), made.parent().unwrap().to_owned()] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o7777, 0o2770);
    }
}

#[test]
fn links_are_followed_only_within_the_volume() {
    let place = Place::new();
    let volume = place.volume();
    symlink("sub/deep", volume.join("inside")).unwrap();
    symlink("../../outside", volume.join("up")).unwrap();
    symlink(place.0.path().join("outside"), volume.join("absolute")).unwrap();
    // As deploy scripts leave them.
    symlink(volume.join("sub/deep"), volume.join("absolute-inside")).unwrap();
    symlink("/proc/self/root", volume.join("magic")).unwrap();
    symlink("nowhere", volume.join("dangling")).unwrap();
    symlink("../../outside/new", volume.join("dangling-out")).unwrap();
    for sub_path in ["inside", "absolute-inside"] {
        place.bind(sub_path).unwrap();
        assert_eq!(inode(&place.target()), inode(&volume.join("sub/deep")), "{sub_path}");
        unmount(&place.target(), UnmountFlags::DETACH).unwrap();
    }
    symlink(volume.join("releases/7"), volume.join("current")).unwrap();
    let refused = ["up", "up/file", "absolute", "magic", "magic/etc", "dangling-out", "../v"];
    let dangling = ["dangling", "dangling/x", "current", "current/x"];
    let out = refused.map(|sub_path| (sub_path, "leads out of the volume"));
    let nowhere = dangling.map(|sub_path| (sub_path, "symbolic link to what does not exist"));
    for (sub_path, why) in out.into_iter().chain(nowhere) {
        let error = place.bind(sub_path).unwrap_err();
        assert!(error.contains(why), "{sub_path}: {error}");
        assert_eq!(mounts_at(&place.target()), 0, "{sub_path}");
    }
    assert!(!place.0.path().join("outside/new").exists());
    assert!(place.bind("file/x").unwrap_err().contains("Not a directory"));
    let root_is_file = bind_sub_path(&volume.join("file"), "x", &place.target(), &Progress::default());
    assert!(root_is_file.unwrap_err().to_string().contains("is not a directory; mount it without subPath"));
}

/// The attack of CVE-2017-1002101 and CVE-2021-25741: a directory is swapped for a link while it is looked at.
#[test]
fn a_link_that_is_swapped_in_never_gets_mounted() {
    let place = Place::new();
    let volume = place.volume();
    let (attacked, link) = (volume.join("attacked"), volume.join("link"));
    fs::create_dir(&attacked).unwrap();
    symlink("../../outside", &link).unwrap();
    let outside = inode(&place.0.path().join("outside"));
    let done = AtomicBool::new(false);
    let (mut mounted, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(CWD, &attacked, CWD, &link, exchange).unwrap();
            }
        });
        for round in 0..100_000 {
            // On a busy machine one of the two may be alone for a while.
            if round >= 2000 && mounted > 0 && refused > 0 {
                break;
            }
            let sub_path = if round % 2 == 0 { "attacked" } else { "attacked/made/here" };
            match place.bind(sub_path) {
                Ok(()) => {
                    mounted += 1;
                    assert_ne!(inode(&place.target()), outside);
                    assert!(!place.target().join("file").exists(), "never what is outside");
                }
                Err(error) => {
                    refused += 1;
                    assert!(error.contains("leads out of the volume"), "{error}");
                }
            }
            unmount(&place.target(), UnmountFlags::DETACH).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(!place.0.path().join("outside/made").exists(), "nor was anything made there");
    assert!(mounted > 0 && refused > 0, "the race took place: {mounted} mounted, {refused} refused");
}
