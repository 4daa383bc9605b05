use std::{os::unix::fs::MetadataExt as _, path::PathBuf};

use mainstay_podspec::volumes::PayloadFile;

use super::*;
use crate::tear_down;

/// A pod's directory whose mounts are gone when the test ends, however it ends.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn setup(&self, kind: SetupKind, fs_group: Option<u32>) -> VolumeSetup {
        VolumeSetup {
            name: "v".into(),
            path: self.0.path().join("volumes/kubernetes.io~x/v"),
            ready_marker: Some(self.0.path().join("plugins/kubernetes.io~x/v/ready")),
            kind,
            fs_group,
            group_change: mainstay_podspec::volumes::GroupChange::Always,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        tear_down(self.0.path(), &Progress::default()).ok();
    }
}

fn make(setup: &VolumeSetup) {
    set_up(setup, &Progress::default()).unwrap();
    assert!(is_set_up(setup));
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn options(path: &Path) -> (String, String) {
    let table = mainstay_host::Host::default().mounts().unwrap();
    let mount = table.iter().rfind(|mount| mount.mount_point == path).unwrap();
    (mount.fs_type.clone(), mount.super_options.clone())
}

fn mounts_at(path: &Path) -> usize {
    mainstay_host::Host::default().mounts().unwrap().iter().filter(|m| m.mount_point == path).count()
}

#[test]
fn a_directory_on_disk() {
    let place = Place::new();
    let setup = place.setup(SetupKind::Directory { mode: 0o777 }, None);
    make(&setup);
    assert_eq!(mode(&setup.path), 0o777, "whatever the umask is");
    fs::write(setup.path.join("kept"), "x").unwrap();
    fs::set_permissions(&setup.path, fs::Permissions::from_mode(0o700)).unwrap();
    make(&setup);
    assert!(setup.path.join("kept").exists());
    assert_eq!(mode(&setup.path), 0o700, "what the pod did to it stays");

    let place = Place::new();
    let setup = place.setup(SetupKind::Directory { mode: 0o700 }, Some(2000));
    make(&setup);
    let found = fs::metadata(&setup.path).unwrap();
    assert_eq!((found.gid(), found.mode() & 0o7777), (2000, 0o2770));
}

#[test]
fn memory_is_a_tmpfs_of_its_size_and_mounted_once() {
    let place = Place::new();
    let setup = place.setup(SetupKind::Memory { mode: 0o777, size: Some(1 << 20) }, Some(2000));
    make(&setup);
    let (fs_type, options) = options(&setup.path);
    assert_eq!(fs_type, "tmpfs");
    assert!(options.split(',').any(|option| option == "size=1024k"), "{options}");
    assert_eq!(mode(&setup.path) & 0o777, 0o777);
    assert_eq!(fs::metadata(&setup.path).unwrap().gid(), 2000);
    fs::write(setup.path.join("kept"), "x").unwrap();
    make(&setup);
    fs::remove_file(setup.ready_marker.as_ref().unwrap()).unwrap();
    make(&setup);
    assert_eq!(mounts_at(&setup.path), 1);
    assert!(setup.path.join("kept").exists());
    assert!(fs::write(setup.path.join("large"), vec![0; 2 << 20]).is_err(), "it is full");
}

#[test]
fn huge_pages_are_a_hugetlbfs() {
    let place = Place::new();
    let setup = place.setup(SetupKind::HugePages { mode: 0o777, page_size: "2Mi".into() }, None);
    make(&setup);
    let (fs_type, options) = options(&setup.path);
    assert_eq!(fs_type, "hugetlbfs");
    assert!(options.contains("pagesize=2M"), "{options}");
    assert_eq!(mode(&setup.path) & 0o777, 0o777);
}

#[test]
fn files_in_memory_and_on_disk() {
    for in_memory in [true, false] {
        let place = Place::new();
        let files = |text: &str| {
            let file = PayloadFile { contents: text.as_bytes().to_vec().into(), mode: 0o644, owner: None };
            [("key".to_owned(), file)].into()
        };
        let setup = |text| place.setup(SetupKind::Files { in_memory, size: None, files: files(text) }, None);
        make(&setup("one"));
        let path = setup("one").path;
        assert_eq!(is_mount_point(&path).unwrap(), in_memory);
        assert_eq!(fs::read_to_string(path.join("key")).unwrap(), "one");
        make(&setup("two"));
        assert_eq!(fs::read_to_string(path.join("key")).unwrap(), "two");
        assert_eq!(mounts_at(&path), usize::from(in_memory));
    }
}

#[test]
fn a_server_that_does_not_answer_is_given_up_when_nobody_waits() {
    let place = Place::new();
    let target: PathBuf = place.0.path().join("volumes/kubernetes.io~nfs/v");
    let error =
        command::mount("mainstay-no-such-fs", "x:/y", &target, &["ro"], &Progress::default()).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("mount failed: exit status: 32\nMounting command: mount\n"), "{text}");
    assert!(text.contains(&format!("-t mainstay-no-such-fs -o ro x:/y {}", target.display())), "{text}");
    assert!(text.contains("Output: mount: "), "{text}");
}
