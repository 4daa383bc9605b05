//! The disks of the test machine: a root that is made once and kept, and two that are made for every run.

use anyhow::{Context, Result, bail};
use mainstay_testkit::{build_dir, mainstay_binary, tool, workspace_root};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Room on the second disk for what failing tests leave there.
const SPARE: u64 = 256 << 20;
const SWAP: u64 = 512 << 20;
/// The version of Python in the machine (`scripts/vm/rootfs.sh`).
const PYTHON: &str = "3.11";
/// Peers that tests run; `cargo xtask tools` builds them.
const PEERS: [&str; 14] = [
    "containerd",
    "containerd-shim-runc-v2",
    "crictl",
    "ctr",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "probe-target",
    "runc",
    "sample-device-plugin",
    "streamclient",
];

/// Files for the emulator.
#[derive(Debug)]
pub(super) struct Disks {
    system: PathBuf,
    payload: PathBuf,
    swap: PathBuf,
}

impl Disks {
    /// Makes what is missing: in `shared` what every run has in common, in `dir` what is this run's.
    pub(super) fn make(
        shared: &Path,
        dir: &Path,
        programs: &[(String, PathBuf)],
        plan: &str,
        environment: &str,
    ) -> Result<Self> {
        let system = root_file_system(shared)?;
        let staging = dir.join("payload");
        fs::remove_dir_all(&staging).ok();
        for sub in ["tests", "tools", "images"] {
            fs::create_dir_all(staging.join(sub)).with_context(|| format!("cannot make {sub}"))?;
        }
        let write = |name: &str, text: &str| {
            fs::write(staging.join(name), text).with_context(|| format!("cannot write {name}"))
        };
        write("plan", plan)?;
        write("environment", environment)?;
        copy(&workspace_root().join("scripts/vm/guest.sh"), &staging.join("guest.sh"))?;
        // Line tables are most of a debug binary and of no use in there.
        strip(&mainstay_binary()?, &staging.join("mainstay"))?;
        // What the tests run beside it; built with them.
        for beside in ["device-plugin", "load", "node-api"] {
            strip(&mainstay_binary()?.with_file_name(beside), &staging.join(beside))?;
        }
        for (name, path) in programs {
            strip(path, &staging.join("tests").join(name))?;
        }
        for peer in PEERS {
            copy(&tool(peer)?, &staging.join("tools").join(peer))?;
        }
        // What tests read from the workspace, which is where it was compiled for them too.
        for part in ["contrib", "docs", "examples", "proto"] {
            copy_tree(&workspace_root().join(part), &staging.join("workspace").join(part))?;
        }
        copy_tree(&python_packages(shared)?, &staging.join("python/packages"))?;
        // Images that were made before are as good there; others are made when they are needed.
        for image in fs::read_dir(build_dir().join("images")).into_iter().flatten().flatten() {
            copy(&image.path(), &staging.join("images").join(image.file_name()))?;
        }
        let payload = dir.join("payload.img");
        let size = size_of(&staging)? + SPARE;
        file_system("payload", &staging, &payload, size)?;
        fs::remove_dir_all(&staging).context("cannot remove what is on the disk now")?;
        let swap = dir.join("swap.img");
        File::create(&swap).and_then(|file| file.set_len(SWAP)).context("cannot make the swap disk")?;
        Ok(Self { system, payload, swap })
    }

    pub(super) fn kernel(&self) -> PathBuf {
        self.system.join("vmlinuz")
    }

    pub(super) fn initrd(&self) -> PathBuf {
        self.system.join("initrd")
    }

    pub(super) fn root(&self) -> PathBuf {
        self.system.join("root.img")
    }

    pub(super) fn payload(&self) -> &Path {
        &self.payload
    }

    pub(super) fn swap(&self) -> &Path {
        &self.swap
    }

    /// Copies the logs that failed tests kept out of the machine's disk.
    pub(super) fn keep_failed(&self, into: &Path) -> Result<()> {
        let request = format!("rdump /failed {}", into.display());
        run(Command::new("debugfs").args(["-R", &request]).arg(&self.payload))
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for image in [&self.payload, &self.swap] {
            fs::remove_file(image).ok();
        }
    }
}

/// The directory of the root file system that the script as it is makes.
fn root_file_system(dir: &Path) -> Result<PathBuf> {
    let script = workspace_root().join("scripts/vm/rootfs.sh");
    let text = fs::read(&script).with_context(|| format!("cannot read {}", script.display()))?;
    let system = dir.join(format!("system-{}", key_of(&text)));
    let marker = system.join("root.img");
    if marker.is_file() {
        return Ok(system);
    }
    println!("making the root file system (two minutes, once)");
    fs::create_dir_all(&system).with_context(|| format!("cannot make {}", system.display()))?;
    let done = run(Command::new(&script).arg(&system));
    if done.is_err() {
        fs::remove_dir_all(&system).ok();
    }
    done?;
    for old in fs::read_dir(dir).into_iter().flatten().flatten() {
        if old.file_name().to_string_lossy().starts_with("system-") && old.path() != system {
            fs::remove_dir_all(old.path()).ok();
        }
    }
    Ok(system)
}

/// The foreign gRPC client's packages for the machine's own Python, which need not be of the version of this one.
fn python_packages(dir: &Path) -> Result<PathBuf> {
    let wanted = workspace_root().join("examples/grpc/requirements.txt");
    let text = fs::read(&wanted).with_context(|| format!("cannot read {}", wanted.display()))?;
    let packages = dir.join(format!("python-{}", key_of(&text)));
    if !packages.is_dir() {
        let unfinished = dir.join("python-unfinished");
        fs::remove_dir_all(&unfinished).ok();
        run(Command::new(build_dir().join("python/bin/python"))
            .args(["-m", "pip", "install", "--quiet", "--no-compile", "--only-binary=:all:"])
            .args(["--implementation", "cp", "--python-version", PYTHON, "--requirement"])
            .arg(&wanted)
            .arg("--target")
            .arg(&unfinished))?;
        fs::rename(&unfinished, &packages).context("cannot keep Python's packages")?;
    }
    Ok(packages)
}

fn key_of(text: &[u8]) -> String {
    Sha256::digest(text).iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

fn file_system(label: &str, from: &Path, image: &Path, size: u64) -> Result<()> {
    fs::remove_file(image).ok();
    let blocks = size.div_ceil(1024);
    run(Command::new("mke2fs")
        .args(["-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-L", label, "-d"])
        .arg(from)
        .arg(image)
        .arg(format!("{blocks}k")))
}

/// The files and what the file system needs beside them.
fn size_of(dir: &Path) -> Result<u64> {
    let mut size = 0;
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let entry = entry.context("cannot read an entry")?;
        let meta = entry.metadata().context("cannot read an entry")?;
        size += if meta.is_dir() { size_of(&entry.path())? } else { meta.len() * 21 / 20 + 4096 };
    }
    Ok(size)
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry.context("cannot read an entry")?;
        let target = to.join(entry.file_name());
        if entry.file_type().context("cannot read an entry")?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            copy(&entry.path(), &target)?;
        }
    }
    Ok(())
}

/// A link where that can be had for the content's sake, else a copy.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::hard_link(from, to)
        .or_else(|_| fs::copy(from, to).map(drop))
        .with_context(|| format!("cannot copy {}", from.display()))
}

fn strip(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("strip").arg("--strip-debug").arg("-o").arg(to).arg(from))
}

fn run(command: &mut Command) -> Result<()> {
    let path = std::env::var("PATH").unwrap_or_default();
    // Debian keeps tools for file systems where users other than root do not look.
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot run {name}; `make setup-test` installs what is missing"))?;
    if !output.status.success() {
        bail!("{name} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
