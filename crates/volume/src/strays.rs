//! Mount commands that outlived the agent that began them.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt as _, path::Path};

use rustix::process::{Pid, Signal};

/// Ends `mount` and its helpers that work below `root`'s pods, as this process sees them: whoever begun them was killed, and what they
/// would still mount nobody would know of. Those of another view of the file systems (a node in a container) mean other pods. Only for the one agent on that root, before it mounts anything itself. Blocks; how many there were.
///
/// One that hangs in the kernel goes when the kernel lets go of it; what it mounts by then is found when the pod is taken
/// down, as every mount is.
pub fn end_stray_mounts(root: &Path) -> usize {
    let pods = root.join("pods");
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
    let strays = pids.filter(|pid| {
        let words = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        is_mount_below(&words, &pods) && sees_what_we_see(*pid)
    });
    strays.filter(|pid| end(*pid)).count()
}

/// Whether a process has the mounts and processes that this one has.
fn sees_what_we_see(pid: Pid) -> bool {
    ["mnt", "pid"].iter().all(|kind| {
        let of = |who: &str| fs::read_link(format!("/proc/{who}/ns/{kind}")).ok();
        of("self").is_some_and(|own| of(&pid.as_raw_nonzero().to_string()) == Some(own))
    })
}

/// Kills a process, with its helpers if it leads them. Whether it was there.
fn end(pid: Pid) -> bool {
    let leads = rustix::process::getpgid(Some(pid)).is_ok_and(|group| group == pid);
    let killed = if leads {
        rustix::process::kill_process_group(pid, Signal::KILL)
    } else {
        rustix::process::kill_process(pid, Signal::KILL)
    };
    killed.is_ok()
}

/// Whether a command line is that of `mount`, or of one of its helpers, with something below `dir`.
fn is_mount_below(words: &[u8], dir: &Path) -> bool {
    let mut words = words.split(|byte| *byte == 0).map(|word| Path::new(OsStr::from_bytes(word)));
    let named = |word: &Path| {
        let name = word.file_name();
        name.is_some_and(|name| name == "mount" || name.as_bytes().starts_with(b"mount."))
    };
    // Some helpers are scripts, and come second.
    let is_mount = words.clone().take(2).any(named);
    is_mount && words.any(|word| word.starts_with(dir))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn mounts_below_the_root_are_ended_and_nothing_else() {
        let (ours, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let spawn = |program: &str, root: &Path| {
            let target = root.join("pods/u/volumes/kubernetes.io~nfs/v");
            let args = ["-c", "read nothing", "-t", "nfs"];
            Command::new("sh").arg0(program).args(args).arg(target).stdin(Stdio::piped()).spawn().unwrap()
        };
        let mut strays = [spawn("mount", ours.path()), spawn("/sbin/mount.nfs", ours.path())];
        // As a node in a container would.
        let apart = {
            let target = ours.path().join("pods/u/volumes/kubernetes.io~nfs/v");
            let mut command = Command::new("unshare");
            command.args(["--mount", "bash", "-c", "exec -a mount sh -c 'read nothing' \"$@\"", "mount"]);
            command.args(["-t", "nfs"]).arg(target).stdin(Stdio::piped()).spawn().unwrap()
        };
        let name = format!("/proc/{}/cmdline", apart.id());
        while !fs::read(&name).unwrap().starts_with(b"mount\0-c\0read") {
            std::thread::yield_now();
        }
        let mut others = [spawn("mount", other.path()), spawn("umount", ours.path()), apart];
        // A program that has just been started has no words yet for a moment.
        for child in strays.iter().chain(&others) {
            while fs::read(format!("/proc/{}/cmdline", child.id())).unwrap().is_empty() {
                std::thread::yield_now();
            }
        }
        assert_eq!(end_stray_mounts(ours.path()), 2);
        for stray in &mut strays {
            assert_eq!(stray.wait().unwrap().signal(), Some(9));
        }
        for child in &mut others {
            assert!(child.try_wait().unwrap().is_none());
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
