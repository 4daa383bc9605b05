//! Making and removing whole cgroup trees in every hierarchy the machine has, v1 or v2.

use crate::{CgroupDriver, capture, patient, process};
use rustix::process::Signal;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const SYSTEMD_DEADLINE: Duration = Duration::from_secs(60);

/// The mount points of all cgroup hierarchies.
pub(crate) fn hierarchies() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (point, kind) = (fields.next()?, fields.next()?);
            (kind == "cgroup" || kind == "cgroup2").then(|| PathBuf::from(point))
        })
        .collect()
}

/// Top-level cgroups called `name` or `name-…`, and slices called so.
pub(crate) fn find(name: &str) -> Vec<PathBuf> {
    let below = format!("{name}-");
    let slice = name.replace('-', "_");
    let ours = |found: &str| match found.strip_suffix(".slice") {
        Some(found) => {
            found.strip_prefix(&slice).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
        }
        None => found == name || found.starts_with(&below),
    };
    hierarchies()
        .iter()
        .filter_map(|root| fs::read_dir(root).ok())
        .flat_map(|entries| entries.flatten())
        .filter(|entry| {
            let found = entry.file_name();
            let found = found.to_string_lossy();
            ours(&found) && entry.path().is_dir()
        })
        .map(|entry| entry.path())
        .collect()
}

/// Makes the cgroup `name` in every hierarchy that the machine's controllers are in, ready for processes.
pub(crate) fn create(name: &str) -> anyhow::Result<()> {
    if CgroupDriver::of_this_run() == CgroupDriver::Systemd {
        let slice = CgroupDriver::Systemd.path(&[name.trim_start_matches('/')]);
        return capture(Command::new("systemctl").arg("start").arg(slice), SYSTEMD_DEADLINE).map(drop);
    }
    for root in hierarchies() {
        let dir = root.join(name.trim_start_matches('/'));
        fs::create_dir_all(&dir)?;
        // A new v1 cpuset is empty and refuses processes until it has its parent's CPUs and memory nodes.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let (from, to) = (root.join(file), dir.join(file));
            if from.exists() && fs::read_to_string(&to).is_ok_and(|own| own.trim().is_empty()) {
                fs::write(&to, fs::read_to_string(&from)?.trim())?;
            }
        }
    }
    Ok(())
}

/// Kills what runs in the tree and removes it.
///
/// # Errors
/// When it is not empty within half a minute.
pub(crate) fn remove_tree(dir: &Path) -> io::Result<()> {
    let start = Instant::now();
    if let Some(slice) =
        dir.file_name().filter(|name| Path::new(name).extension().is_some_and(|end| end == "slice"))
    {
        // systemd forgets the slice and what is in it; the processes are not its business to wait for.
        kill_members(dir);
        capture(Command::new("systemctl").arg("stop").arg(slice), SYSTEMD_DEADLINE).ok();
    }
    loop {
        kill_members(dir);
        match remove_dirs(dir) {
            Err(error) if start.elapsed() > patient(Duration::from_secs(30)) => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
            Ok(()) => return Ok(()),
        }
    }
}

fn children(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(dir).ok();
    entries.into_iter().flat_map(|entries| entries.flatten()).map(|entry| entry.path()).filter(|p| p.is_dir())
}

fn kill_members(dir: &Path) {
    // A frozen process cannot die. Only one of the two files exists, and only where the hierarchy can freeze.
    for (file, thaw) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
        let path = dir.join(file);
        if path.exists() {
            fs::write(path, thaw).ok();
        }
    }
    let members = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    for pid in members.lines().filter_map(|line| line.parse().ok()) {
        process::send(pid, Signal::KILL);
    }
    children(dir).for_each(|child| kill_members(&child));
}

fn remove_dirs(dir: &Path) -> io::Result<()> {
    for child in children(dir) {
        remove_dirs(&child)?;
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
