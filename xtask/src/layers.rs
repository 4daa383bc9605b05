//! Checks the arrows between crates and the rules every manifest keeps.

#[cfg(test)]
mod tests;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Layers from the lowest up, as in ARCHITECTURE.md. A crate may use only what stands in a row above its own.
const LAYERS: [(&str, &[&str]); 7] = [
    ("words", &["types", "config", "task", "proto", "trace"]),
    ("brains", &["podspec", "lifecycle", "policy", "alloc"]),
    (
        "mechanisms",
        &[
            "cri",
            "cgroup",
            "host",
            "logs",
            "checkpoint",
            "http",
            "probe",
            "dbus",
            "sample",
            "nodelogs",
            "profile",
            "devices",
            "resources",
            "volume",
            "plugin",
            "apiserver",
            "stream",
            "engine",
            "shim",
        ],
    ),
    ("managers", &["desired", "observe", "reconcile", "upkeep", "snapshot"]),
    ("edges", &["uplink", "auth", "server", "grpc", "client"]),
    ("binary", &["mainstay"]),
    ("support", &["testkit", "e2e", "bench", "fuzz", "node-api", "xtask"]),
];

/// The arrows that stay within a layer, each with its reason.
const SIDEWAYS: &[(&str, &[&str])] = &[
    // Both speak of ids and quantities.
    ("config", &["types"]),
    ("task", &["types"]),
    // Spans are sent by a task, in OpenTelemetry's words.
    ("trace", &["task", "proto"]),
    // What a pod asks for is read from its spec in one place.
    ("policy", &["podspec"]),
    // The embedded runtime is made of its neighbours.
    ("engine", &["cgroup", "logs", "shim"]),
    ("shim", &["cgroup", "logs"]),
    // What is mounted, and careful removal.
    ("volume", &["host"]),
    // A probe is a command in a container or a request to it.
    ("probe", &["cri", "http"]),
    // Names are resolved, and roots loaded, in one place.
    ("apiserver", &["http"]),
    // Clients in other languages name a socket in ways of their own; device plugins register in two ways; state files are written in one place.
    ("devices", &["http", "plugin", "checkpoint"]),
    // CPUs, memory and devices are given out together, by what the machine has; their files are written as all are.
    ("resources", &["devices", "host", "checkpoint"]),
    // Readings are of cgroups.
    ("sample", &["cgroup"]),
    // Slices are made by systemd.
    ("cgroup", &["dbus"]),
    // A server asks who is calling before it answers.
    ("server", &["auth"]),
    // Tests and automation are built on the kit.
    ("e2e", &["testkit"]),
    ("xtask", &["testkit"]),
    ("bench", &["testkit"]),
    // Only its tests: the client is tested against the real server.
    ("client", &["server"]),
];

/// Decisions are functions of data: what gives a clock, a socket or a file is out of place in a brain.
const IMPURE: [&str; 8] = ["tokio", "rustix", "hyper", "hyper-util", "tonic", "axum", "notify", "tempfile"];

/// `cargo xtask layers`.
pub(crate) fn run() -> Result<()> {
    let crates = read(&metadata()?)?;
    let problems = check(&crates);
    if problems.is_empty() {
        println!("{} crates depend only downwards", crates.len());
        return crate::borrows::run(mainstay_testkit::workspace_root());
    }
    bail!("{} problems\n  {}", problems.len(), problems.join("\n  "))
}

/// What cargo knows of the workspace.
pub(crate) fn metadata() -> Result<Value> {
    let output = crate::cargo()
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked"])
        .current_dir(mainstay_testkit::workspace_root())
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")
}

/// One crate of the workspace.
#[derive(Debug)]
struct Crate {
    /// Without the `mainstay-` prefix.
    name: String,
    /// The text of its Cargo.toml.
    manifest: String,
    dependencies: Vec<Dependency>,
}

#[derive(Debug)]
struct Dependency {
    name: String,
    /// Whether only its tests need it.
    dev: bool,
    /// Whether it is a crate of this workspace.
    ours: bool,
}

fn read(metadata: &Value) -> Result<Vec<Crate>> {
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    packages
        .iter()
        .map(|package| {
            let text = |key: &str| package[key].as_str().with_context(|| format!("a package without {key}"));
            let path = text("manifest_path")?;
            let manifest = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
            Ok(Crate { name: short(text("name")?).to_owned(), manifest, dependencies: dependencies(package) })
        })
        .collect()
}

fn dependencies(package: &Value) -> Vec<Dependency> {
    let list = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter()
        .filter_map(|dependency| {
            let ours = dependency["path"].is_string();
            let name = dependency["name"].as_str()?;
            Some(Dependency {
                name: if ours { short(name) } else { name }.to_owned(),
                dev: dependency["kind"].as_str() == Some("dev"),
                ours,
            })
        })
        .collect()
}

fn short(name: &str) -> &str {
    name.strip_prefix("mainstay-").unwrap_or(name)
}

fn layer_of(name: &str) -> Option<usize> {
    LAYERS.iter().position(|(_, crates)| crates.contains(&name))
}

fn layer_name(layer: usize) -> &'static str {
    LAYERS.get(layer).map_or("no layer", |(name, _)| name)
}

/// All problems, in the order of the crates.
fn check(crates: &[Crate]) -> Vec<String> {
    let mut problems = Vec::new();
    for krate in crates {
        let name = &krate.name;
        match layer_of(name) {
            None => problems.push(format!("{name}: in no layer; add it to LAYERS in xtask/src/layers.rs")),
            Some(layer) => {
                problems.extend(krate.dependencies.iter().filter_map(|to| arrow_problem(name, layer, to)));
            }
        }
        problems.extend(manifest_problems(&krate.manifest).into_iter().map(|what| format!("{name}: {what}")));
    }
    problems
}

fn arrow_problem(from: &str, layer: usize, to: &Dependency) -> Option<String> {
    let own = layer_name(layer);
    if !to.ours {
        let impure = own == "brains" && !to.dev && IMPURE.contains(&to.name.as_str());
        return impure.then(|| {
            format!("{from}: brains are pure and cannot use {}; give it the data instead", to.name)
        });
    }
    if to.dev && to.name == "testkit" {
        return None;
    }
    // A target without a layer is reported where it is defined.
    let target = layer_of(&to.name)?;
    let allowed = SIDEWAYS.iter().any(|(name, targets)| *name == from && targets.contains(&to.name.as_str()));
    if target < layer || (target == layer && allowed) {
        return None;
    }
    let direction = if target == layer { "sideways" } else { "upwards" };
    Some(format!("{from} ({own}) depends {direction} on {} ({})", to.name, layer_name(target)))
}

/// What a Cargo.toml itself must say: metadata shows only the result of inheritance.
fn manifest_problems(manifest: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let mut lints = false;
    let mut section = String::new();
    // The name of a `[dependencies.NAME]` table, until its `workspace = true` is seen.
    let mut table: Option<String> = None;
    let not_inherited = |name: &str| {
        format!(
            "{name} is not inherited; declare it in the root Cargo.toml and write {name}.workspace = true"
        )
    };
    for line in manifest.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
        if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            problems.extend(table.take().map(|name| not_inherited(&name)));
            header.clone_into(&mut section);
            table = section.rsplit_once("dependencies.").map(|(_, name)| name.to_owned());
            continue;
        }
        let Some((key, value)) = line.split_once('=').map(|(key, value)| (key.trim(), value.trim())) else {
            continue;
        };
        let inherits = key == "workspace" && value == "true";
        if section == "lints" {
            lints |= inherits;
        } else if table.is_some() {
            if inherits {
                table = None;
            }
        } else if section.ends_with("dependencies") {
            let inline = value.replace(' ', "").contains("workspace=true");
            let dotted = key.strip_suffix(".workspace").is_some() && value == "true";
            if !inline && !dotted {
                problems.push(not_inherited(key.split('.').next().unwrap_or(key)));
            }
        }
    }
    problems.extend(table.map(|name| not_inherited(&name)));
    if !lints {
        problems.push("no workspace lints; add [lints] with workspace = true".to_owned());
    }
    problems
}
