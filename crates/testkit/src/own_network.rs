//! A network namespace of an instance's own, joined to the machine's by a pair of links: as another machine on the same wire.

use crate::{capture, wait_until};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);
/// The link on the other side is called this, as on any machine.
const INSIDE: &str = "eth0";

/// The namespace is there as long as its file is a mount, or anything runs in it.
#[derive(Debug, Clone)]
pub struct OwnNetwork {
    file: PathBuf,
    inside: Ipv4Addr,
    outside: Ipv4Addr,
    id: u64,
}

impl OwnNetwork {
    /// Makes it, with its file in `dir`; `link` is called what leads there on this side. `outside` and `inside` lie in one /24. What is
    /// in it reaches this machine, and by its routes whatever else is joined to it in this way. Pods of `pods`, which live behind it,
    /// are reached through it.
    pub(crate) fn make(
        dir: &Path,
        link: &str,
        (outside, inside): (Ipv4Addr, Ipv4Addr),
        pods: &str,
    ) -> Result<Self> {
        let file = dir.join("netns");
        fs::write(&file, "").with_context(|| format!("cannot make {}", file.display()))?;
        let run = |command: &mut Command| capture(command, DEADLINE).map(drop);
        run(Command::new("unshare").arg(format!("--net={}", file.display())).arg("true"))
            .context("cannot make a network namespace")?;
        let id = fs::metadata(&file).context("no network namespace")?.ino();
        let made = Self { file, inside, outside, id };
        let here = |args: &[&str]| run(Command::new("ip").args(args));
        let there = |args: &[&str]| run(made.command("ip").args(args));
        let own = std::process::id().to_string();
        let (inside, outside) = (inside.to_string(), outside.to_string());
        let net = |address: &str| format!("{address}/24");
        there(&["link", "add", INSIDE, "type", "veth", "peer", "name", link, "netns", &own])
            .and_then(|()| here(&["address", "add", &net(&outside), "dev", link]))
            .and_then(|()| here(&["link", "set", link, "up"]))
            .and_then(|()| there(&["link", "set", "lo", "up"]))
            .and_then(|()| there(&["address", "add", &net(&inside), "dev", INSIDE]))
            .and_then(|()| there(&["link", "set", INSIDE, "up"]))
            .and_then(|()| there(&["route", "add", "default", "via", &outside]))
            .and_then(|()| here(&["route", "add", pods, "via", &inside]))
            .with_context(|| format!("cannot join {link} to a network namespace"))?;
        Ok(made)
    }

    /// A program in it. Only the network is another: `ip netns exec` would also mount another `/sys`, without the cgroups.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.file.display())).arg("--").arg(program);
        command
    }

    /// Its own address, by which this machine and its likes reach it.
    pub fn address(&self) -> Ipv4Addr {
        self.inside
    }

    /// This machine's address on the pair of links, by which what is inside reaches it.
    pub fn host(&self) -> Ipv4Addr {
        self.outside
    }

    /// Who is in it, and where it is mounted, in words. After its end that is nobody and nowhere.
    pub fn holders(&self) -> Vec<String> {
        let name = format!("net:[{}]", self.id);
        let tasks = fs::read_dir("/proc").into_iter().flat_map(|entries| entries.flatten());
        let inside = tasks.map(|entry| entry.path()).filter(|task| {
            fs::read_link(task.join("ns/net")).is_ok_and(|link| link.to_string_lossy() == name)
        });
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mounts = mounts.lines().filter(|line| line.contains(&name)).map(|line| format!("mount {line}"));
        inside.map(|task| format!("process {}", task.display())).chain(mounts).collect()
    }
}

/// Removes this machine's end of the pair, and with it the other, if they did not go with the namespace. That goes a little after the last
/// who was in it.
pub(crate) fn remove(link: &str) -> Result<()> {
    let there = || is_there(link);
    if !there() {
        return Ok(());
    }
    let deleted = capture(Command::new("ip").args(["link", "delete", link]), DEADLINE);
    wait_until(DEADLINE, "the end of a link", || if there() { Err(format!("{deleted:?}")) } else { Ok(()) })?;
    ensure!(!there(), "cannot delete the link {link}");
    Ok(())
}

pub(crate) fn is_there(link: &str) -> bool {
    Path::new("/sys/class/net").join(link).exists()
}
