//! From flags and files to one configuration: defaults, then `--config`, then drop-ins, then flags.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value};

use crate::catalog;
use crate::decode::{self, Decoded};
use crate::definition::FlagStyle;
use crate::files::{self, Files, TextFile};
use crate::flags::{COMMAND_LINE, FlagSet};
use crate::gates::FeatureGates;
use crate::kubelet::KubeletConfiguration;
use crate::layers;
use crate::problem::Problem;
use crate::settings::Settings;
use crate::validate;

/// The hard eviction thresholds of a node whose `--config` file sets none (`pkg/kubelet/eviction/defaults_linux.go`).
const DEFAULT_EVICTION_HARD: &[(&str, &str)] = &[
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

/// Where upstream's start without `--config` opens what mainstay keeps closed (`applyLegacyDefaults` in
/// `cmd/kubelet/app/options/options.go`): the field and upstream's value.
const LEGACY_DEFAULTS: &[(&str, &str)] = &[
    ("authentication.anonymous.enabled", "true"),
    ("authentication.webhook.enabled", "false"),
    ("authorization.mode", "AlwaysAllow"),
    ("readOnlyPort", "10255"),
];

/// A complete and valid configuration.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The fields of `KubeletConfiguration`, defaulted and validated.
    pub config: KubeletConfiguration,
    /// The options that only flags set.
    pub settings: Settings,
    /// The feature gates.
    pub gates: FeatureGates,
    /// What the operator should know of the configuration, a sentence each: graduated gates, paths, files that are not read.
    pub notices: Vec<String>,
    /// The same of a start by upstream's flags: deprecated ones, and defaults that are closed here.
    pub flag_notices: Vec<String>,
    /// The options that were set and are not acted upon yet.
    pub not_yet: Vec<NotYet>,
    /// The fields that a file or a flag sets, whatever to: the rest are defaults.
    pub set: BTreeSet<String>,
    /// Every flag with its value as the command line has it.
    pub flags: BTreeMap<String, String>,
}

/// An option that was set and is not acted upon yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotYet {
    /// Its path, or its flag with the dashes.
    pub path: String,
    /// The file, or `command line`, that set it.
    pub set_by: String,
}

/// Reads the files that the flags name and puts everything together.
///
/// Reads local files and blocks while it does. What depends on the host is not checked here; see [`crate::check_host`].
///
/// # Errors
/// Every problem of every layer at once.
pub fn load(flags: &FlagSet) -> Result<Loaded, Vec<Problem>> {
    let settings = flags.settings();
    let (files, problems) = files::read(&settings.config, &settings.config_dir);
    assemble(flags, settings, &files, problems)
}

/// Checks one file as `--config` would read it; `name` is what problems call it. Pure.
///
/// # Errors
/// Every problem of the file.
pub fn load_text(name: &str, text: &str) -> Result<Loaded, Vec<Problem>> {
    let directory = Path::new(name).parent().map(Path::to_owned).unwrap_or_default();
    let file = TextFile { name: name.to_owned(), directory, text: text.to_owned() };
    let flags = FlagSet::with_config(name);
    let files = Files { config: Some(file), ..Files::default() };
    assemble(&flags, flags.settings(), &files, Vec::new())
}

/// The layers of configuration while they are being put together.
#[derive(Default)]
struct Layers {
    /// The values so far.
    values: Map<String, Value>,
    /// Which file or flag set each option.
    set_by: BTreeMap<String, String>,
    problems: Vec<Problem>,
    notices: Vec<String>,
    flag_notices: Vec<String>,
}

pub(crate) fn assemble(
    flags: &FlagSet,
    settings: Settings,
    files: &Files,
    problems: Vec<Problem>,
) -> Result<Loaded, Vec<Problem>> {
    let mut layers = Layers { problems, ..Layers::default() };
    if let Some(file) = &files.config {
        layers.add_file(file, true);
        layers.default_eviction();
    }
    for file in &files.drop_ins {
        layers.add_file(file, false);
    }
    for name in &files.skipped {
        layers.notices.push(format!("{name} is not read: drop-in files end in .conf"));
    }
    layers::drop_unset(&mut layers.values, KubeletConfiguration::SECTIONS);
    // Defaults that follow from other fields look at files only: flags come after defaulting, as upstream.
    let from_files = layers.values.clone();
    layers.add_flags(flags);

    let broken: Vec<String> = layers
        .problems
        .iter()
        .map(|problem| problem.path.clone())
        .filter(|path| catalog::find(path).is_some())
        .collect();
    let config = serde_json::from_value(Value::Object(std::mem::take(&mut layers.values)));
    let mut config: KubeletConfiguration = match config {
        Ok(config) => config,
        Err(error) => {
            // Every value was checked against its kind, so only a table that contradicts its type gets here.
            layers.problems.push(Problem::new("", format!("cannot be used: {error}"), "please report this"));
            return Err(layers.problems);
        }
    };
    let gates = match FeatureGates::resolve(&config.feature_gates) {
        Ok((gates, notices)) => {
            layers.notices.extend(notices);
            gates
        }
        Err(problems) => {
            layers.found(problems, &broken);
            FeatureGates::default()
        }
    };
    derive_defaults(&mut config, &from_files, &gates, &layers.set_by);
    layers.found(validate::validate(&config, &gates), &broken);
    layers.found(validate::validate_settings(&settings), &broken);
    if !layers.problems.is_empty() {
        return Err(layers.problems);
    }
    layers.notices.extend(validate::remarks(&config));
    if files.config.is_none() {
        layers.closed_notices();
    }
    let not_yet = layers.not_yet(flags, &from_files);
    let set = layers.set_by.into_keys().collect();
    let (notices, flag_notices, flags) = (layers.notices, layers.flag_notices, flags.shown());
    Ok(Loaded { config, settings, gates, notices, flag_notices, not_yet, set, flags })
}

impl Layers {
    fn add_file(&mut self, file: &TextFile, is_main: bool) {
        let (Decoded { mut values, set, reset }, problems) = decode::decode(&file.name, &file.text);
        self.problems.extend(problems);
        if is_main {
            let notices = resolve_paths(&mut values, &file.directory);
            self.notices.extend(notices);
        }
        layers::merge(&mut self.values, values);
        for path in reset {
            self.set_by.remove(&path);
        }
        for path in set {
            self.set_by.insert(path, file.name.clone());
        }
    }

    /// Upstream gives the thresholds their defaults before drop-ins, which therefore merge into them.
    fn default_eviction(&mut self) {
        let merge = layers::get(&self.values, "mergeDefaultEvictionSettings") == Some(&Value::Bool(true));
        let was_set = self.values.get("evictionHard").is_some_and(|value| !value.is_null());
        if was_set && !merge {
            return;
        }
        let thresholds = self.values.entry("evictionHard").or_insert(Value::Null);
        if thresholds.is_null() {
            *thresholds = Value::Object(Map::new());
        }
        if let Value::Object(thresholds) = thresholds {
            for (signal, value) in DEFAULT_EVICTION_HARD {
                thresholds.entry(*signal).or_insert_with(|| (*value).into());
            }
        }
    }

    fn add_flags(&mut self, flags: &FlagSet) {
        for (entry, value) in flags.fields() {
            let Some(flag) = &entry.definition.flag else { continue };
            if flag.style == FlagStyle::OnlyTrue && value == &Value::Bool(false) {
                continue;
            }
            // Gates of the file that no flag names stay; everything else is replaced as a whole.
            match (entry.path.as_str(), value, self.values.get_mut("featureGates")) {
                ("featureGates", Value::Object(given), Some(Value::Object(gates))) => {
                    gates.extend(given.clone());
                }
                (path, value, _) => layers::set(&mut self.values, path, value.clone()),
            }
            self.set_by.insert(entry.path.clone(), COMMAND_LINE.to_owned());
        }
        for entry in flags.given() {
            let Some(flag) = entry.definition.flag.filter(|flag| flag.deprecated) else { continue };
            self.flag_notices.push(if entry.is_setting() {
                format!("--{} is deprecated and will be removed by upstream", flag.name)
            } else {
                format!("--{} is deprecated; set {} in the --config file", flag.name, entry.path)
            });
        }
    }

    /// Adds problems with the source of their field; leaves out those that only follow from a field that could not be read.
    fn found(&mut self, problems: Vec<Problem>, broken: &[String]) {
        for problem in problems {
            let last = |path: &String| path.rsplit('.').next().unwrap_or_default().to_owned();
            let follows = |path: &String| problem.path == *path || problem.message.contains(&last(path));
            if broken.iter().any(follows) {
                continue;
            }
            let source = self.source_of(&problem.path);
            self.problems.push(problem.at(&source));
        }
    }

    /// Who set the option at `path`, or the option that a path into a map or list belongs to.
    fn source_of(&self, path: &str) -> String {
        if path.starts_with('-') {
            return COMMAND_LINE.to_owned();
        }
        let owns = |owner: &str| {
            path.strip_prefix(owner).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        self.set_by
            .iter()
            .find(|(owner, _)| owns(owner))
            .map(|(_, source)| source.clone())
            .unwrap_or_default()
    }

    /// Says where a start without `--config` is closed and upstream's would be open.
    fn closed_notices(&mut self) {
        for (path, upstream) in LEGACY_DEFAULTS {
            let Some(entry) = catalog::find(path).filter(|_| !self.set_by.contains_key(*path)) else {
                continue;
            };
            let ours = entry.definition.default.unwrap_or(match entry.definition.kind {
                crate::definition::Kind::Bool => "false",
                _ => "0",
            });
            let flag = entry.definition.flag.map(|flag| flag.name).unwrap_or_default();
            self.flag_notices.push(format!(
                "{path} is {ours}: without --config upstream's kubelet would use {upstream}; set --{flag}={upstream} if you want that"
            ));
        }
    }

    /// Zeros that mean "unset" do not count: kubeadm writes them for every duration.
    fn not_yet(&self, flags: &FlagSet, from_files: &Map<String, Value>) -> Vec<NotYet> {
        let is_set =
            |path: &str, source: &str| source == COMMAND_LINE || layers::get(from_files, path).is_some();
        let settings = flags
            .given()
            .filter(|entry| entry.is_setting())
            .map(|entry| (entry.path.clone(), COMMAND_LINE.to_owned()));
        let fields = self
            .set_by
            .iter()
            .filter(|(path, source)| is_set(path, source))
            .map(|(path, source)| (path.clone(), source.clone()));
        settings
            .chain(fields)
            .filter(|(path, _)| catalog::find(path).is_some_and(|entry| !entry.definition.acted))
            .map(|(path, set_by)| NotYet { path, set_by })
            .collect()
    }
}

/// Makes the file paths of the `--config` file absolute: they are relative to it, not to where the agent was started. Which
/// were not, in a sentence each.
fn resolve_paths(values: &mut Map<String, Value>, directory: &Path) -> Vec<String> {
    let mut notices = Vec::new();
    for entry in catalog::fields().iter().filter(|entry| entry.definition.is_path) {
        let Some(Value::String(path)) = layers::get(values, &entry.path) else { continue };
        if !path.is_empty() && !path.starts_with('/') {
            let absolute = clean(&directory.join(path).to_string_lossy());
            notices.push(format!(
                "{} is relative: {path:?} is taken from the directory of its file, {absolute}",
                entry.path
            ));
            layers::set(values, &entry.path, absolute.into());
        }
    }
    notices
}

/// The shortest form of a path by its text alone, as Go's `filepath.Clean`.
pub(crate) fn clean(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if rooted => {}
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    match (rooted, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".to_owned(),
        (false, false) => joined,
    }
}

/// Defaults that depend on other fields or on gates.
fn derive_defaults(
    config: &mut KubeletConfiguration,
    from_files: &Map<String, Value>,
    gates: &FeatureGates,
    set_by: &BTreeMap<String, String>,
) {
    let in_file = |path: &str| layers::get(from_files, path).is_some();
    let is_set = |path: &str| set_by.contains_key(path);
    if in_file("nodeStatusUpdateFrequency") && !in_file("nodeStatusReportFrequency") {
        // The file's value, even if a flag has since replaced it.
        let frequency = layers::get(from_files, "nodeStatusUpdateFrequency").and_then(Value::as_str);
        if let Some(frequency) = frequency.and_then(|text| text.parse().ok()) {
            config.node_status_report_frequency = frequency;
        }
    }
    if !is_set("serializeImagePulls") && config.max_parallel_image_pulls.is_some_and(|pulls| pulls >= 2) {
        config.serialize_image_pulls = false;
    }
    if config.pod_pids_limit < 0 {
        config.pod_pids_limit = -1;
    }
    if !gates.enabled("KubeletCrashLoopBackOffMax") && !is_set("crashLoopBackOff.maxContainerRestartPeriod") {
        config.crash_loop_back_off.max_container_restart_period = None;
    }
    if !gates.enabled("KubeletEnsureSecretPulledImages") && !is_set("imagePullCredentialsVerificationPolicy")
    {
        config.image_pull_credentials_verification_policy.clear();
    }
}

#[cfg(test)]
mod tests;
