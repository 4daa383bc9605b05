use std::{fs, os::unix::fs::symlink};

use super::*;

/// A log directory with something beside it.
fn world() -> (tempfile::TempDir, LogDirectory) {
    let top = tempfile::tempdir().unwrap();
    let log = top.path().join("log");
    fs::create_dir_all(log.join("pods/web")).unwrap();
    fs::create_dir(log.join("containers")).unwrap();
    fs::create_dir(top.path().join("elsewhere")).unwrap();
    fs::create_dir(top.path().join("log-of-another")).unwrap();
    fs::write(log.join("syslog"), "hello\n").unwrap();
    fs::write(log.join("pods/web/0.log"), "web\n").unwrap();
    fs::write(top.path().join("secret"), "secret\n").unwrap();
    fs::write(top.path().join("elsewhere/pod.log"), "pod\n").unwrap();
    fs::write(top.path().join("log-of-another/x"), "x\n").unwrap();
    // As the kubelet makes them: absolute.
    symlink(log.join("pods/web/0.log"), log.join("containers/web.log")).unwrap();
    symlink("../pods/web/0.log", log.join("containers/relative.log")).unwrap();
    symlink(top.path().join("secret"), log.join("out")).unwrap();
    symlink("../secret", log.join("out-relative")).unwrap();
    symlink(top.path(), log.join("up")).unwrap();
    symlink(top.path().join("log-of-another"), log.join("another")).unwrap();
    symlink(top.path().join("elsewhere"), log.join("allowed")).unwrap();
    symlink("/proc/self/root", log.join("magic")).unwrap();
    symlink("loop", log.join("loop")).unwrap();
    rustix::fs::mknodat(CWD, log.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let links = Links::Inside(vec![top.path().join("elsewhere"), top.path().join("missing")]);
    let directory = LogDirectory::new(log, links);
    (top, directory)
}

fn read(found: Result<Found, OpenError>) -> String {
    match found {
        Ok(Found::File(log)) => {
            let text = io::read_to_string(log.file).unwrap();
            assert_eq!(log.len, text.len() as u64);
            assert!(log.modified.is_some());
            text
        }
        Ok(Found::Directory { entries, .. }) => {
            let name = |entry: &Entry| {
                entry.name.to_string_lossy().into_owned() + if entry.is_directory { "/" } else { "" }
            };
            entries.iter().map(name).collect::<Vec<_>>().join(" ")
        }
        Err(OpenError::Missing { .. }) => "missing".into(),
        Err(OpenError::Outside { .. }) => "outside".into(),
        Err(OpenError::NotAFile { .. }) => "not a file".into(),
        Err(error) => format!("{error}"),
    }
}

#[test]
fn names_lead_to_what_lies_inside() {
    let (_top, directory) = world();
    for (name, expected) in [
        ("syslog", "hello\n"),
        ("pods/web/0.log", "web\n"),
        ("containers/web.log", "web\n"),
        ("containers/relative.log", "web\n"),
        ("pods", "web/"),
        ("pods/", "web/"),
        ("allowed/pod.log", "pod\n"),
        ("out", "outside"),
        ("out-relative", "outside"),
        ("up", "outside"),
        ("up/secret", "outside"),
        // Through a link that leaves and back in: it is the end that counts.
        ("up/log/syslog", "hello\n"),
        // A name that only begins like the directory's.
        ("another/x", "outside"),
        ("../secret", "outside"),
        ("nothing", "missing"),
        ("syslog/x", "missing"),
        ("fifo", "not a file"),
    ] {
        assert_eq!(read(directory.open(name)), expected, "{name}");
    }
    for name in ["magic", "magic/etc/passwd", "loop"] {
        assert!(matches!(directory.open(name), Err(OpenError::System { .. })), "{name}");
    }
    let all = read(directory.open(""));
    assert!(all.starts_with("allowed another containers/ fifo loop magic out"), "{all}");
    let bad = directory.open("a\0b").unwrap_err();
    assert!(matches!(bad, OpenError::System { .. }));
}

#[test]
fn links_may_be_let_out() {
    let (_top, mut directory) = world();
    directory.links = Links::Anywhere;
    assert_eq!(read(directory.open("out")), "secret\n");
    assert_eq!(read(directory.open("up/secret")), "secret\n");
    assert!(directory.open("magic/etc/passwd").is_err());
    assert_eq!(read(directory.open("fifo")), "not a file");
}

#[test]
fn typed_names_stay_beneath() {
    let (_top, directory) = world();
    for (name, expected) in [
        ("syslog", "hello\n"),
        ("./syslog", "hello\n"),
        ("containers/../syslog", "hello\n"),
        ("containers/relative.log", "web\n"),
        ("containers/web.log", "outside"),
        ("/syslog", "outside"),
        ("out", "outside"),
        ("../log/syslog", "outside"),
        ("allowed/pod.log", "outside"),
        ("nothing", "missing"),
    ] {
        assert_eq!(read(directory.open_beneath(name)), expected, "{name}");
        assert_eq!(
            directory.check_beneath(name).is_ok(),
            !["outside", "missing"].contains(&expected),
            "{name}"
        );
    }
    let says = |name| directory.check_beneath(name).unwrap_err().as_go_says("statat");
    assert_eq!(says("/syslog"), "statat /syslog: path escapes from parent");
    assert_eq!(says("no/x"), "statat no/x: no such file or directory");
    assert_eq!(says("syslog/x"), "statat syslog/x: not a directory");
    assert_eq!(says("loop"), "statat loop: too many levels of symbolic links");
}

#[test]
fn a_directory_that_is_not_there() {
    let directory = LogDirectory::new("/nonexistent/log".into(), Links::Anywhere);
    assert_eq!(read(directory.open("")), "missing");
    assert_eq!(read(directory.open("x")), "missing");
}
