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
    /// Build tags of one that is partly C, and so links with the machine's libraries. `None`: Go alone.
    cgo: Option<&'static str>,
}

/// Kubernetes' release. Without it its binaries panic at their start.
const KUBERNETES: &[&str] = &[
    "k8s.io/component-base/version.gitVersion=v1.37.1",
    "k8s.io/component-base/version.gitMajor=1",
    "k8s.io/component-base/version.gitMinor=37",
    "k8s.io/client-go/pkg/version.gitVersion=v1.37.1",
];

const PEERS: [Peer; 12] = [
    Peer {
        name: "containerd",
        packages: &[
            "github.com/containerd/containerd/v2/cmd/containerd",
            "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
            "github.com/containerd/containerd/v2/cmd/ctr",
        ],
        variables: &["github.com/containerd/containerd/v2/version.Version=v2.4.2"],
        cgo: None,
    },
    Peer {
        name: "crictl",
        packages: &["sigs.k8s.io/cri-tools/cmd/crictl"],
        variables: &["sigs.k8s.io/cri-tools/pkg/version.Version=v1.36.0"],
        cgo: None,
    },
    Peer { name: "kubelet", packages: &["k8s.io/kubernetes/cmd/kubelet"], variables: KUBERNETES, cgo: None },
    Peer { name: "etcd", packages: &["go.etcd.io/etcd/server/v3"], variables: &[], cgo: None },
    Peer {
        name: "kube-apiserver",
        packages: &["k8s.io/kubernetes/cmd/kube-apiserver"],
        variables: KUBERNETES,
        cgo: None,
    },
    // The rest of a control plane, and what people speak to it with. One module: they are of one release.
    Peer {
        name: "kubernetes",
        packages: &[
            "k8s.io/kubernetes/cmd/kube-controller-manager",
            "k8s.io/kubernetes/cmd/kube-scheduler",
            "k8s.io/kubernetes/cmd/kubectl",
        ],
        variables: KUBERNETES,
        cgo: None,
    },
    // Who reads /metrics/resource for `kubectl top` and autoscalers.
    Peer {
        name: "metrics-server",
        packages: &["sigs.k8s.io/metrics-server/cmd/metrics-server"],
        variables: &[
            "k8s.io/client-go/pkg/version.gitVersion=v0.9.0",
            "k8s.io/component-base/version.gitVersion=v0.9.0",
        ],
        cgo: None,
    },
    // Who takes traces: OpenTelemetry's collector, of the parts that tests need.
    Peer {
        name: "otel-collector",
        packages: &["mainstay.local/tools/otel-collector"],
        variables: &[],
        cgo: None,
    },
    // Our own, with no dependencies: what probes are tried on.
    Peer { name: "probe-target", packages: &["probe-target"], variables: &[], cgo: None },
    // Debian's cannot map the users of a mount, which user namespaces need. Its first stage is C, and containerd's
    // default seccomp profile needs libseccomp.
    Peer {
        name: "runc",
        packages: &["github.com/opencontainers/runc"],
        variables: &[],
        cgo: Some("seccomp"),
    },
    // Upstream's own example of a device plugin.
    Peer {
        name: "sample-device-plugin",
        packages: &["k8s.io/kubernetes/test/images/sample-device-plugin"],
        variables: &[],
        cgo: None,
    },
    // Upstream's streaming clients and server with a command line of ours.
    Peer {
        name: "streamclient",
        packages: &["mainstay.local/tools/streamclient"],
        variables: &[],
        cgo: None,
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
    let binaries: Vec<_> = peer.packages.iter().map(|package| out.join(binary(peer, package))).collect();
    let all_there = binaries.iter().all(|binary| binary.is_file());
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
        .args(["build", "-mod=readonly", "-buildvcs=false", "-tags", peer.cgo.unwrap_or_default()])
        .args(["-ldflags", &linker, "-o"])
        // One is named; many go into a directory under names of Go's choice.
        .arg(if let [one] = binaries.as_slice() { one } else { &out })
        .args(peer.packages)
        .env("CGO_ENABLED", if peer.cgo.is_some() { "1" } else { "0" })
        .current_dir(&source)
        .status()
        .context("cannot run go; install Go 1.26 or newer (https://go.dev/dl) and put it on PATH")?;
    if !status.success() {
        let needs = match peer.cgo {
            Some(_) => {
                "; it needs a C compiler and Debian's libseccomp-dev and pkg-config (`make setup-test`)"
            }
            None => "",
        };
        bail!("go could not build {} ({status}){needs}", peer.name);
    }
    fs::write(&stamp_path, stamp).with_context(|| format!("cannot write {}", stamp_path.display()))?;
    println!("{}: built in {:.0} s", peer.name, start.elapsed().as_secs_f32());
    Ok(())
}

/// The name of what a package becomes. The root of a module that ends in its version takes the peer's.
fn binary<'a>(peer: &'a Peer, package: &'a str) -> &'a str {
    match package.rsplit('/').next() {
        Some(last) if last.strip_prefix('v').is_none_or(|rest| rest.parse::<u32>().is_err()) => last,
        _ => peer.name,
    }
}

/// Changes whenever the result would.
fn stamp(peer: &Peer, source: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    let unreadable = || format!("cannot read {}", source.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(source).with_context(unreadable)? {
        files.push(entry.with_context(unreadable)?.path());
    }
    files.sort();
    for path in files {
        hash.update(fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
    }
    hash.update(peer.packages.join(" "));
    hash.update(peer.variables.join(" "));
    hash.update(peer.cgo.unwrap_or_default());
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_is_pinned() {
        for peer in &PEERS {
            let source = workspace_root().join("tools").join(peer.name);
            let module = fs::read_to_string(source.join("go.mod")).unwrap();
            for package in peer.packages {
                assert!(
                    module.contains(package),
                    "{package} is neither a tool nor the module of {}",
                    source.display()
                );
            }
            assert!(source.join("go.sum").is_file());
        }
    }

    #[test]
    fn a_stamp_follows_the_lock_file_and_the_source() {
        let dir = tempfile_dir("stamp");
        fs::write(dir.join("go.mod"), "module x").unwrap();
        fs::write(dir.join("go.sum"), "one").unwrap();
        let before = stamp(&PEERS[0], &dir).unwrap();
        assert_eq!(stamp(&PEERS[0], &dir).unwrap(), before);
        fs::write(dir.join("go.sum"), "two").unwrap();
        let with_other_lock = stamp(&PEERS[0], &dir).unwrap();
        assert_ne!(with_other_lock, before);
        fs::write(dir.join("main.go"), "package main").unwrap();
        assert_ne!(stamp(&PEERS[0], &dir).unwrap(), with_other_lock);
        fs::remove_dir_all(dir).unwrap();
    }

    fn tempfile_dir(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }
}
