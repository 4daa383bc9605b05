use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use super::*;

fn payload(files: &[(&str, &str, u32)]) -> Payload {
    files
        .iter()
        .map(|(path, text, mode)| {
            let contents = text.as_bytes().to_vec().into();
            ((*path).to_owned(), PayloadFile { contents, mode: *mode, owner: None })
        })
        .collect()
}

fn names(root: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with("..2"))
        .collect();
    names.sort();
    names
}

fn generations(root: &Path) -> usize {
    let entries = fs::read_dir(root).unwrap().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("..2")).count()
}

#[tokio::test]
async fn a_deep_tree_needs_no_deep_stack() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = crate::Jobs::default();
    let write = || {
        let (root, path) = (dir.path().to_owned(), vec!["d"; MAX_PATH_PARTS].join("/"));
        let work = move |_: &crate::Progress| write(&root, &payload(&[(&path, "x", 0o644)]), None);
        jobs.run("pod", std::time::Duration::from_secs(60), work)
    };
    assert!(write().await.unwrap().unwrap(), "written");
    assert!(!write().await.unwrap().unwrap(), "as it is");
    // What somebody else has put there is deeper than anything that is written.
    let foreign = dir.path().join("..data").join(vec!["e"; 1000].join("/"));
    fs::create_dir_all(foreign).unwrap();
    assert!(write().await.unwrap().unwrap(), "written anew");
    assert_eq!((names(dir.path()), generations(dir.path())), (vec!["..data".to_owned(), "d".to_owned()], 1));
}

#[test]
fn the_layout_is_upstreams() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    assert!(write(root, &payload(&[("a", "1", 0o644), ("d/e/f", "2", 0o400)]), None).unwrap());
    assert_eq!(names(root), ["..data", "a", "d"]);
    let generation = fs::read_link(root.join("..data")).unwrap();
    let name = generation.to_str().unwrap();
    let (time, random) = name.strip_prefix("..").unwrap().split_once('.').unwrap();
    assert_eq!(time.len(), "2026_01_31_15_04_05".len(), "{name}");
    assert!(time.bytes().all(|b| b.is_ascii_digit() || b == b'_') && random.parse::<u32>().is_ok(), "{name}");
    assert_eq!(fs::read_link(root.join("a")).unwrap(), Path::new("..data/a"));
    assert_eq!(fs::read_link(root.join("d")).unwrap(), Path::new("..data/d"));
    assert_eq!(fs::read_to_string(root.join("d/e/f")).unwrap(), "2");
    let mode = |path: &str| fs::metadata(root.join(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("a"), mode("d/e/f"), mode("..data"), mode("d/e")), (0o644, 0o400, 0o755, 0o755));
}

#[test]
fn nothing_is_written_when_nothing_differs() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let files = payload(&[("a", "1", 0o644), ("d/f", "2", 0o644)]);
    write(root, &files, None).unwrap();
    let generation = fs::read_link(root.join("..data")).unwrap();
    assert!(!write(root, &files, None).unwrap());
    fs::remove_file(root.join("a")).unwrap();
    assert!(!write(root, &files, None).unwrap(), "a lost link is only made again");
    assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "1");
    assert_eq!(fs::read_link(root.join("..data")).unwrap(), generation);
    for changed in [
        payload(&[("a", "x", 0o644), ("d/f", "2", 0o644)]),
        payload(&[("a", "x", 0o600), ("d/f", "2", 0o644)]),
        payload(&[("a", "x", 0o600)]),
        payload(&[]),
        payload(&[("b", "", 0o644)]),
    ] {
        assert!(write(root, &changed, None).unwrap(), "{changed:?}");
        assert!(!write(root, &changed, None).unwrap(), "{changed:?}");
        assert_eq!(generations(root), 1, "the old ones are gone");
    }
    assert_eq!(names(root), ["..data", "b"]);
}

#[test]
fn what_somebody_changed_is_put_right() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let files = payload(&[("a", "1", 0o644)]);
    write(root, &files, None).unwrap();
    fs::write(root.join("..data/a"), "2").unwrap();
    assert!(write(root, &files, None).unwrap());
    assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "1");
    fs::write(root.join("..data/more"), "x").unwrap();
    assert!(write(root, &files, None).unwrap());
    assert!(!root.join("..data/more").exists());
    // Leftovers of a writer that was killed halfway.
    symlink("..nowhere", root.join("..data_tmp")).unwrap();
    fs::create_dir(root.join("..2020_01_01_00_00_00.1")).unwrap();
    assert!(write(root, &payload(&[("b", "1", 0o644)]), None).unwrap());
    assert_eq!((names(root), generations(root)), (vec!["..data".to_owned(), "b".to_owned()], 1));
}

#[test]
fn a_group_gets_what_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let files = payload(&[("a", "1", 0o600), ("d/x", "1", 0o644)]);
    assert!(write(root, &files, Some(2000)).unwrap());
    assert!(!write(root, &files, Some(2000)).unwrap());
    for (path, mode) in [("a", 0o640), ("d/x", 0o644), ("d", 0o2755), ("..data", 0o2755)] {
        let found = fs::metadata(root.join(path)).unwrap();
        assert_eq!((found.gid(), found.mode() & 0o7777), (2000, mode), "{path}");
    }
    assert!(write(root, &files, Some(2001)).unwrap(), "another group is a change");
}

#[test]
fn a_file_belongs_to_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let mut files = payload(&[("a", "1", 0o600), ("b", "1", 0o644)]);
    write(root, &files, None).unwrap();
    files.get_mut("a").unwrap().owner = Some(1000);
    assert!(write(root, &files, None).unwrap(), "another owner is a change");
    assert!(!write(root, &files, None).unwrap());
    let owner = |path: &str| fs::metadata(root.join(path)).unwrap().uid();
    assert_eq!((owner("a"), owner("b")), (1000, owner("..data")));
    files.get_mut("a").unwrap().owner = None;
    assert!(write(root, &files, None).unwrap(), "and so is none");
    assert_eq!(owner("a"), owner("b"));
}

#[test]
fn readers_never_see_a_mixture() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let generation = |n: usize| {
        let text = n.to_string();
        payload(&[("a", &text, 0o644), ("b", &text, 0o644)])
    };
    write(root, &generation(0), None).unwrap();
    let (done, seen) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // For as long as it takes the reader to come to it.
            for n in (1..100_000).take_while(|n| *n < 300 || seen.load(Ordering::Relaxed) == 0) {
                write(root, &generation(n), None).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            // One generation, held by its directory, is whole.
            let Ok(held) = fs::canonicalize(root.join("..data")) else { continue };
            let read = |name: &str| fs::read_to_string(held.join(name));
            let (Ok(a), Ok(b)) = (read("a"), read("b")) else { continue };
            assert_eq!(a, b);
            seen.fetch_add(1, Ordering::Relaxed);
        }
        assert!(seen.load(Ordering::Relaxed) > 0);
    });
}

#[test]
fn contents_are_compared_to_their_end() {
    let long: Vec<u8> = (0..20_000_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let mut other = long.clone();
    other[19_999] ^= 1;
    for (row, found, expected, same) in [
        ("equal over several reads", &long[..], &long[..], true),
        ("the last byte differs", &other, &long, false),
        ("shorter", &long[..19_999], &long, false),
        ("longer", &long, &long[..19_999], false),
        ("empty", &[], &[], true),
        ("empty instead of something", &[], &long[..1], false),
    ] {
        assert_eq!(reads_as(&mut &found[..], expected).unwrap(), same, "{row}");
    }
}
