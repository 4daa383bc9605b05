use std::os::unix::fs::MetadataExt;

use serde::Deserialize;

use super::*;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct State {
    name: String,
    count: u32,
    #[serde(default)]
    added_later: Option<String>,
}

fn state(count: u32) -> State {
    State { name: "naïve \u{1F980}".to_owned(), count, added_later: None }
}

fn file_in(directory: &Path) -> File {
    File::new(directory.join("state"), "test", 2, Durability::PowerFailure)
}

fn names_in(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn written_and_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let file = file_in(directory.path());
    assert!(matches!(file.load::<State>(), Loaded::Absent));
    file.write(&state(1)).unwrap();
    file.write(&state(2)).unwrap();
    let Loaded::Good(loaded) = file.load::<State>() else { panic!("not good") };
    assert_eq!(loaded, state(2));
    assert_eq!(fs::metadata(file.path()).unwrap().mode() & 0o777, 0o600);
    assert_eq!(names_in(directory.path()), ["state"]);
    assert!(file.remove().unwrap());
    assert!(!file.remove().unwrap());
}

#[test]
fn the_form_on_disk_is_fixed() {
    let directory = tempfile::tempdir().unwrap();
    let file = File::new(directory.path().join("f"), "boot", 1, Durability::ProcessDeath);
    file.write(&serde_json::json!({"id": "x"})).unwrap();
    let text = fs::read_to_string(file.path()).unwrap();
    assert_eq!(
        text,
        "{\"mainstay\":\"boot\",\"version\":1,\
         \"checksum\":\"sha256:5e2b92cc57ce618dfbb54844a31775e4b95c6fb552ee6bf5a068133c12d2ad90\",\
         \"data\":{\"id\":\"x\"}}\n"
    );
}

/// Each way a file can be bad: it is set aside, named, and the next write works.
#[test]
fn bad_files_are_set_aside() {
    type Spoil = fn(&Path);
    fn edit(path: &Path, from: &str, to: &str) {
        let text = fs::read_to_string(path).unwrap();
        assert!(text.contains(from));
        fs::write(path, text.replacen(from, to, 1)).unwrap();
    }
    let rows: &[(&str, Spoil, &str)] = &[
        ("empty", |p| fs::write(p, b"").unwrap(), "truncated or altered"),
        (
            "truncated",
            |p| {
                let bytes = fs::read(p).unwrap();
                fs::write(p, bytes.get(..bytes.len() - 5).unwrap()).unwrap();
            },
            "truncated or altered",
        ),
        ("zeroes, as after a crash", |p| fs::write(p, [0; 300]).unwrap(), "truncated or altered"),
        (
            "two writes in one file",
            |p| {
                let bytes = fs::read(p).unwrap();
                fs::write(p, [bytes.clone(), bytes].concat()).unwrap();
            },
            "truncated or altered",
        ),
        ("not UTF-8", |p| fs::write(p, b"{\"mainstay\":\"\xff\xfe\"}").unwrap(), "truncated or altered"),
        ("other JSON", |p| fs::write(p, b"[1,2]").unwrap(), "truncated or altered"),
        ("altered data", |p| edit(p, "\"count\":7", "\"count\":8"), "checksum"),
        ("wrong kind", |p| edit(p, "\"test\"", "\"tent\""), "\"tent\", not a \"test\""),
        ("newer version", |p| edit(p, "\"version\":2", "\"version\":3"), "version 3"),
        (
            "a directory",
            |p| {
                fs::remove_file(p).unwrap();
                fs::create_dir_all(p.join("inside")).unwrap();
            },
            "not a regular file",
        ),
        (
            "a link",
            |p| {
                fs::remove_file(p).unwrap();
                std::os::unix::fs::symlink("/etc/passwd", p).unwrap();
            },
            "not a regular file",
        ),
        (
            "huge",
            |p| fs::File::options().write(true).open(p).unwrap().set_len(1 << 40).unwrap(),
            "bytes long",
        ),
    ];
    for (row, spoil, why) in rows {
        let directory = tempfile::tempdir().unwrap();
        let file = file_in(directory.path());
        file.write(&state(7)).unwrap();
        spoil(file.path());
        let Loaded::SetAside(bad) = file.load::<State>() else { panic!("{row}: not set aside") };
        assert!(bad.why.to_string().contains(why), "{row}: {}", bad.why);
        let moved_to = bad.moved_to.unwrap();
        assert!(moved_to.file_name().unwrap().to_str().unwrap().starts_with("state.bad-"), "{row}");
        assert!(fs::symlink_metadata(moved_to).is_ok(), "{row}");
        assert!(matches!(file.load::<State>(), Loaded::Absent), "{row}");
        file.write(&state(8)).unwrap();
        assert!(matches!(file.load::<State>(), Loaded::Good(s) if s == state(8)), "{row}");
    }
}

#[test]
fn data_of_another_form_are_set_aside() {
    let directory = tempfile::tempdir().unwrap();
    let file = file_in(directory.path());
    file.write(&vec![1, 2]).unwrap();
    let Loaded::SetAside(bad) = file.load::<State>() else { panic!("not set aside") };
    assert!(matches!(bad.why, BadFile::WrongData(_)));
}

#[test]
fn older_versions_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let old = File::new(directory.path().join("state"), "test", 1, Durability::ProcessDeath);
    old.write(&serde_json::json!({"name": "n", "count": 3})).unwrap();
    let Loaded::Good(loaded) = file_in(directory.path()).load::<State>() else { panic!("not good") };
    assert_eq!(loaded, State { name: "n".to_owned(), count: 3, added_later: None });
}

#[test]
fn three_bad_files_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let file = file_in(directory.path());
    for n in 0..6 {
        fs::write(file.path(), format!("bad {n}")).unwrap();
        assert!(matches!(file.load::<State>(), Loaded::SetAside(_)));
    }
    let kept: Vec<String> = names_in(directory.path())
        .into_iter()
        .map(|name| fs::read_to_string(directory.path().join(name)).unwrap())
        .collect();
    assert_eq!(kept, ["bad 3", "bad 4", "bad 5"]);
}

#[test]
fn leftovers_of_a_killed_agent_go_and_our_own_stay() {
    let directory = tempfile::tempdir().unwrap();
    let file = file_in(directory.path());
    let ours = file.temporary_path();
    fs::write(&ours, b"being written").unwrap();
    fs::write(directory.path().join(".state.00000000deadbeef-3.tmp"), b"half").unwrap();
    fs::write(directory.path().join(".other.00000000deadbeef-3.tmp"), b"not ours").unwrap();
    assert!(matches!(file.load::<State>(), Loaded::Absent));
    let ours = ours.file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(names_in(directory.path()), [".other.00000000deadbeef-3.tmp".to_owned(), ours]);
}

#[test]
fn a_failed_write_keeps_the_old_file_and_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let gone = File::new(directory.path().join("no/such/state"), "test", 2, Durability::PowerFailure);
    let error = gone.write(&state(1)).unwrap_err();
    assert!(error.to_string().contains("no/such/state; its directory is gone"), "{error}");
    assert!(error.is_transient());

    let file = file_in(directory.path());
    file.write(&state(1)).unwrap();
    let unfit = std::collections::BTreeMap::from([((1, 2), 3)]);
    let error = file.write(&unfit).unwrap_err();
    assert!(matches!(error, WriteError::Encode { .. }) && !error.is_transient());
    assert!(matches!(file.load::<State>(), Loaded::Good(s) if s == state(1)));
}

/// A real full and a real read-only file system. Needs root, as mounting does.
#[test]
fn full_and_read_only_disks() {
    struct Mount(tempfile::TempDir);
    impl Drop for Mount {
        fn drop(&mut self) {
            rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH).ok();
        }
    }
    let mount = Mount(tempfile::tempdir().unwrap());
    let at = mount.0.path();
    let options = std::ffi::CString::new("size=64k,mode=0700").unwrap();
    rustix::mount::mount("tmpfs", at, "tmpfs", rustix::mount::MountFlags::empty(), options.as_c_str())
        .expect("this test mounts a tmpfs and has to run as root");
    let file = file_in(at);
    file.write(&state(1)).unwrap();
    fs::File::create(at.join("ballast")).unwrap().write_all(&[0; 1 << 17]).unwrap_err();

    let error = file.write(&state(2)).unwrap_err();
    assert!(error.to_string().contains("the file system is full"), "{error}");
    assert!(matches!(file.load::<State>(), Loaded::Good(s) if s == state(1)));
    assert_eq!(names_in(at), ["ballast", "state"], "no temporary file is left on the full disk");

    let flags = rustix::mount::MountFlags::RDONLY;
    rustix::mount::mount_remount(at, flags, options.as_c_str()).unwrap();
    let error = file.write(&state(3)).unwrap_err();
    assert!(error.to_string().contains("read-only: mount it writable"), "{error}");
    let wrong = File::new(file.path(), "other", 1, Durability::ProcessDeath);
    let Loaded::SetAside(bad) = wrong.load::<State>() else { panic!("not set aside") };
    assert!(bad.moved_to.is_none(), "a bad file on a read-only disk stays and stops nothing");
}

#[test]
fn directories_get_the_mode_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let deep = directory.path().join("a/b");
    ensure_directory(&deep, 0o750).unwrap();
    for path in [directory.path().join("a"), deep.clone()] {
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o750);
    }
    ensure_directory(&deep, 0o700).unwrap();
    assert_eq!(fs::metadata(&deep).unwrap().mode() & 0o777, 0o750, "existing ones are left alone");
    fs::write(directory.path().join("file"), b"").unwrap();
    let error = ensure_directory(&directory.path().join("file/x"), 0o700).unwrap_err();
    assert!(error.to_string().contains("something else is in its place"), "{error}");
}

#[test]
fn concurrent_writers_never_show_a_torn_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = File::new(directory.path().join("state"), "test", 2, Durability::ProcessDeath);
    file.write(&state(0)).unwrap();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let file = &file;
            scope.spawn(move || {
                for _ in 0..100 {
                    file.write(&state(n)).unwrap();
                    assert!(matches!(file.load::<State>(), Loaded::Good(_)));
                }
            });
        }
    });
    assert_eq!(names_in(directory.path()), ["state"]);
}
