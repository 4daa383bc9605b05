use std::{fs, os::unix::fs::symlink};

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};

use super::*;

const KI: u64 = 1024;

fn tree() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn nothing_hides_behind_many_names() {
    let tree = tree();
    for number in 0..2 * MAX_LINKED {
        let first = tree.path().join(format!("{number}"));
        fs::write(&first, "").unwrap();
        fs::hard_link(&first, tree.path().join(format!("{number}-again"))).unwrap();
    }
    let base = DiskUsage::of(tree.path()).unwrap();
    assert!(base.partial, "{base:?}");
    // In directories of their own, so that one of them at least is read when no more can be remembered.
    for number in 0..4 {
        let dir = tree.path().join(format!("dir-{number}"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("big"), vec![1_u8; 1024 * 1024]).unwrap();
        fs::hard_link(dir.join("big"), dir.join("big-again")).unwrap();
        fs::File::open(dir.join("big")).unwrap().sync_all().unwrap();
    }
    let grown = DiskUsage::of(tree.path()).unwrap().bytes - base.bytes;
    assert!((4096 * KI..4300 * KI).contains(&grown), "{grown}");
}

#[test]
fn counts_blocks_once() {
    let tree = tree();
    let base = DiskUsage::of(tree.path()).unwrap();
    assert_eq!(base.inodes, 1);
    fs::write(tree.path().join("a"), vec![1_u8; 100 * 1024]).unwrap();
    fs::hard_link(tree.path().join("a"), tree.path().join("b")).unwrap();
    let sparse = fs::File::create(tree.path().join("sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    sparse.sync_all().unwrap();
    fs::File::open(tree.path().join("a")).unwrap().sync_all().unwrap();
    let usage = DiskUsage::of(tree.path()).unwrap();
    assert_eq!((usage.inodes, usage.partial), (3, false));
    let grown = usage.bytes - base.bytes;
    assert!((100 * KI..120 * KI).contains(&grown), "{grown}");
}

#[test]
fn nothing_is_no_error_and_a_file_counts_itself() {
    let tree = tree();
    assert_eq!(DiskUsage::of(&tree.path().join("absent")).unwrap(), DiskUsage::default());
    let file = tree.path().join("file");
    fs::write(&file, vec![1_u8; 8192]).unwrap();
    fs::File::open(&file).unwrap().sync_all().unwrap();
    assert_eq!(DiskUsage::of(&file).unwrap(), DiskUsage { bytes: 8192, inodes: 1, partial: false });
}

#[test]
fn follows_no_link_and_enters_no_mount() {
    let tree = tree();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("large"), vec![1_u8; 1 << 20]).unwrap();
    fs::File::open(outside.path().join("large")).unwrap().sync_all().unwrap();
    for dir in ["link", "bind", "tmpfs"] {
        fs::create_dir(tree.path().join(dir)).unwrap();
    }
    symlink(outside.path(), tree.path().join("link/dir")).unwrap();
    symlink(outside.path().join("large"), tree.path().join("link/file")).unwrap();
    let before = DiskUsage::of(tree.path()).unwrap();
    assert!(before.bytes < 100 * KI, "{before:?}");

    let (bind, tmpfs) = (tree.path().join("bind"), tree.path().join("tmpfs"));
    mount_bind(outside.path(), &bind).unwrap();
    mount("tmpfs", &tmpfs, "tmpfs", MountFlags::empty(), None).unwrap();
    fs::write(tmpfs.join("large"), vec![1_u8; 1 << 20]).unwrap();
    let usage = DiskUsage::of(tree.path()).unwrap();
    unmount(&bind, UnmountFlags::DETACH).unwrap();
    unmount(&tmpfs, UnmountFlags::DETACH).unwrap();
    assert_eq!(usage.inodes, before.inodes - 2, "neither what is mounted nor what lies below it");
    assert!(usage.bytes < 100 * KI && !usage.partial, "{usage:?}");
}

#[test]
fn a_tree_deeper_than_any_path() {
    let tree = tree();
    let mut current = rustix::fs::open(tree.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
    let name = "d".repeat(60);
    for _ in 0..300 {
        rustix::fs::mkdirat(&current, &name, Mode::RWXU).unwrap();
        current = rustix::fs::openat(&current, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let usage = DiskUsage::of(tree.path()).unwrap();
    crate::remove_dir_all_one_fs(&tree.path().join(&name)).unwrap();
    assert_eq!((usage.inodes, usage.partial), (301, false));
}

#[test]
fn more_siblings_than_are_ever_remembered() {
    let tree = tree();
    let count = 2 * MAX_AHEAD;
    for number in 0..count {
        fs::create_dir(tree.path().join(number.to_string())).unwrap();
    }
    let usage = DiskUsage::of(tree.path()).unwrap();
    assert_eq!((usage.inodes, usage.partial), (1 + count as u64, false));

    // Very deep down there is a bound, and it is told.
    let below = tree.path().join("d/".repeat(MAX_OPEN));
    fs::create_dir_all(&below).unwrap();
    for number in 0..count {
        fs::create_dir(below.join(number.to_string())).unwrap();
    }
    let deep = DiskUsage::of(tree.path()).unwrap();
    assert_eq!((deep.inodes, deep.partial), (usage.inodes + (MAX_OPEN + MAX_AHEAD) as u64, true));
}

#[test]
fn looks_no_further_than_it_matters() {
    let tree = tree();
    for number in 0..100 {
        let file = tree.path().join(number.to_string());
        fs::write(&file, vec![1_u8; 64 * 1024]).unwrap();
        fs::File::open(&file).unwrap().sync_all().unwrap();
    }
    let all = DiskUsage::of(tree.path()).unwrap();
    let enough = DiskUsage::up_to(tree.path(), 1 << 20).unwrap();
    assert!(enough.bytes > 1 << 20 && enough.partial && enough.inodes < 30, "{enough:?}");
    assert_eq!(DiskUsage::up_to(tree.path(), all.bytes).unwrap(), all);
}
