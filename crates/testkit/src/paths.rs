//! Where the workspace, the built peers and the binary under test are.

use crate::environment;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// The root of the workspace this kit was compiled in.
pub fn workspace_root() -> &'static Path {
    // Two levels above crates/testkit; the manifest directory always has them.
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().and_then(Path::parent).unwrap_or(manifest)
}

/// `.build`: peers, images and private instances; never committed. `MAINSTAY_TEST_BUILD_DIR`, where that is set.
pub fn build_dir() -> PathBuf {
    environment::build_dir().unwrap_or_else(|| workspace_root().join(".build"))
}

/// A peer that `cargo xtask tools` built.
///
/// # Errors
/// When it is not there; the message names the command that builds it.
pub fn tool(name: &str) -> Result<PathBuf> {
    let path = build_dir().join("tools").join(name);
    if path.is_file() {
        return Ok(path);
    }
    let peer = match name {
        "ctr" | "containerd-shim-runc-v2" => "containerd",
        other => other,
    };
    bail!("{} is missing; build it with `cargo xtask tools {peer}`", path.display())
}

/// A program of the machine, looked up where Debian puts daemons and tools, whatever `PATH` says.
pub(crate) fn system_program(name: &str, package: &str) -> Result<PathBuf> {
    let path_variable = std::env::var_os("PATH").unwrap_or_default();
    let known = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from);
    known
        .into_iter()
        .chain(std::env::split_paths(&path_variable))
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
        .with_context(|| format!("{name} is missing; install Debian's {package} (`make setup-test`)"))
}

/// The mainstay binary under test: `MAINSTAY_BIN`, or the one built beside the running test.
///
/// # Errors
/// When there is none; the message says how to get one.
pub fn mainstay_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("MAINSTAY_BIN") {
        let path = PathBuf::from(path);
        if path.is_file() {
            return Ok(path);
        }
        bail!("MAINSTAY_BIN is {}, which is not a file", path.display());
    }
    // A test runs as target/<profile>/deps/<name>, other programs as target/<profile>/<name>.
    let exe = std::env::current_exe().context("cannot find the running executable")?;
    let mut profile = exe.parent().context("the running executable has no directory")?;
    if profile.ends_with("deps") {
        profile = profile.parent().unwrap_or(profile);
    }
    let target = profile.parent().unwrap_or(profile);
    let candidates = [profile.to_path_buf(), target.join("debug"), target.join("release")];
    candidates
        .iter()
        .map(|dir| dir.join("mainstay"))
        .find(|path| path.is_file())
        .with_context(|| format!("no mainstay below {}; run `cargo build -p mainstay`", target.display()))
}
