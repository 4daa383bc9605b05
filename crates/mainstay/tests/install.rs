//! `make install`, with the binary of these tests, so that no release has to be built.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// Every file below a directory with its mode, relative to it.
fn files(below: &Path) -> Vec<(PathBuf, u32)> {
    let mut found = Vec::new();
    let mut directories = vec![below.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() {
                directories.push(entry.path());
            } else {
                let name = entry.path().strip_prefix(below).unwrap().to_owned();
                found.push((name, metadata.permissions().mode() & 0o777));
            }
        }
    }
    found
}

#[test]
fn make_install_puts_everything_below_the_prefix_and_nothing_elsewhere() {
    let image = tempfile::tempdir().unwrap();
    // Twice: the second goes over the first.
    for _ in 0..2 {
        let made = Command::new("make")
            .current_dir(workspace())
            .args(["install", "PREFIX=/opt/mainstay-9", "CARGO=false"])
            .arg(format!("DESTDIR={}", image.path().display()))
            .arg(concat!("BINARY=", env!("CARGO_BIN_EXE_mainstay")))
            // A make around the tests has its own ideas.
            .env_remove("MAKEFLAGS")
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    let prefix = image.path().join("opt/mainstay-9");
    let found = files(image.path());
    assert!(found.iter().all(|(name, _)| name.starts_with("opt/mainstay-9")), "{found:?}");
    let mode = |name: &str| {
        let name = Path::new("opt/mainstay-9").join(name);
        found.iter().find(|(found, _)| *found == name).map(|(_, mode)| *mode)
    };
    for (name, expected) in [
        ("bin/mainstay", 0o755),
        ("lib/systemd/system/mainstay.service", 0o644),
        ("share/bash-completion/completions/mainstay", 0o644),
        ("share/zsh/site-functions/_mainstay", 0o644),
        ("share/fish/vendor_completions.d/mainstay.fish", 0o644),
        ("share/doc/mainstay/README.md", 0o644),
        ("share/doc/mainstay/LICENSE", 0o644),
        ("share/doc/mainstay/docs/pod-spec.md", 0o644),
        ("share/doc/mainstay/examples/web.yaml", 0o644),
    ] {
        assert_eq!(mode(name), Some(expected), "{name}");
    }

    let version = Command::new(prefix.join("bin/mainstay")).arg("--version").output().unwrap();
    assert!(version.stdout.starts_with(b"Kubernetes v1.37."), "{version:?}");
    let read = |name: &str| fs::read_to_string(prefix.join(name)).unwrap();
    let unit = read("lib/systemd/system/mainstay.service");
    assert!(unit.contains("/opt/mainstay-9/bin/mainstay run "), "{unit}");
    assert!(!unit.contains("/usr/local"), "{unit}");
    for (name, expected) in [
        ("share/bash-completion/completions/mainstay", "complete -F _mainstay"),
        ("share/zsh/site-functions/_mainstay", "#compdef mainstay"),
        ("share/fish/vendor_completions.d/mainstay.fish", "complete -c mainstay"),
    ] {
        let script = read(name);
        assert!(script.contains(expected) && script.contains("doctor"), "{name}");
    }
}
