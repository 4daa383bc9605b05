//! Builds the real peers that tests and the bench talk to, from pinned Go modules under `tools/`.

use anyhow::{Context, Result, bail};
use mainstay_testkit::{build_dir, workspace_root};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// A Go module of its own, because the peers' dependencies disagree.
struct Peer {
    name: &'static str,
    packages: &'static [&'static str],
    /// `-X` settings of the linker.
    variables: &'static [&'static str],
}

const PEERS: [Peer; 3] = [
    Peer {
        name: "containerd",
        packages: &[
            "github.com/containerd/containerd/v2/cmd/containerd",
            "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
            "github.com/containerd/containerd/v2/cmd/ctr",
        ],
        variables: &["github.com/containerd/containerd/v2/version.Version=v2.4.2"],
    },
    Peer {
        name: "crictl",
        packages: &["sigs.k8s.io/cri-tools/cmd/crictl"],
        variables: &["sigs.k8s.io/cri-tools/pkg/version.Version=v1.36.0"],
    },
    Peer {
        name: "kubelet",
        packages: &["k8s.io/kubernetes/cmd/kubelet"],
        // Without a version upstream's binaries panic at their start.
        variables: &[
            "k8s.io/component-base/version.gitVersion=v1.37.1",
            "k8s.io/component-base/version.gitMajor=1",
            "k8s.io/component-base/version.gitMinor=37",
            "k8s.io/client-go/pkg/version.gitVersion=v1.37.1",
        ],
    },
];

/// `cargo xtask tools PEER…`.
pub(crate) fn run(names: &[&str]) -> Result<()> {
    let known: Vec<&str> = PEERS.iter().map(|peer| peer.name).collect();
    if names.is_empty() {
        bail!("which peers? There are {}", known.join(", "));
    }
    for name in names {
        let peer = PEERS.iter().find(|peer| peer.name == *name);
        let peer = peer.with_context(|| format!("no peer {name}; there are {}", known.join(", ")))?;
        build(peer)?;
    }
    Ok(())
}

fn build(peer: &Peer) -> Result<()> {
    let source = workspace_root().join("tools").join(peer.name);
    let out = build_dir().join("tools");
    let stamp_path = out.join(format!(".{}.stamp", peer.name));
    let stamp = stamp(peer, &source)?;
    let binaries = peer.packages.iter().filter_map(|package| package.rsplit('/').next());
    let all_there = binaries.into_iter().all(|binary| out.join(binary).is_file());
    if all_there && fs::read_to_string(&stamp_path).is_ok_and(|old| old == stamp) {
        println!("{}: built already", peer.name);
        return Ok(());
    }
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    println!("{}: building (minutes on the first time)", peer.name);
    let start = Instant::now();
    let mut linker = String::from("-s -w");
    for variable in peer.variables {
        linker.push_str(&format!(" -X {variable}"));
    }
    let status = Command::new("go")
        .args(["build", "-mod=readonly", "-buildvcs=false", "-ldflags", &linker, "-o"])
        .arg(&out)
        .args(peer.packages)
        .env("CGO_ENABLED", "0")
        .current_dir(&source)
        .status()
        .context("cannot run go; install Go 1.26 or newer (https://go.dev/dl) and put it on PATH")?;
    if !status.success() {
        bail!("go could not build {} ({status})", peer.name);
    }
    fs::write(&stamp_path, stamp).with_context(|| format!("cannot write {}", stamp_path.display()))?;
    println!("{}: built in {:.0} s", peer.name, start.elapsed().as_secs_f32());
    Ok(())
}

/// Changes whenever the result would.
fn stamp(peer: &Peer, source: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    for file in ["go.mod", "go.sum"] {
        let path = source.join(file);
        hash.update(fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
    }
    hash.update(peer.packages.join(" "));
    hash.update(peer.variables.join(" "));
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_is_pinned_with_tool_lines() {
        for peer in &PEERS {
            let source = workspace_root().join("tools").join(peer.name);
            let module = fs::read_to_string(source.join("go.mod")).unwrap();
            for package in peer.packages {
                assert!(module.contains(package), "{package} is no tool of {}", source.display());
            }
            assert!(source.join("go.sum").is_file());
        }
    }

    #[test]
    fn a_stamp_follows_the_lock_file() {
        let dir = tempfile_dir("stamp");
        fs::write(dir.join("go.mod"), "module x").unwrap();
        fs::write(dir.join("go.sum"), "one").unwrap();
        let before = stamp(&PEERS[0], &dir).unwrap();
        assert_eq!(stamp(&PEERS[0], &dir).unwrap(), before);
        fs::write(dir.join("go.sum"), "two").unwrap();
        assert_ne!(stamp(&PEERS[0], &dir).unwrap(), before);
        fs::remove_dir_all(dir).unwrap();
    }

    fn tempfile_dir(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }
}
