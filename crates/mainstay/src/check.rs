//! `mainstay check`: a configuration, manifests, or the meaning of a field. Every problem at once.

use std::{collections::BTreeMap, fmt::Write as _, path::PathBuf, process::ExitCode};

use mainstay_config::{explain, load, parse_kubelet_flags};
use mainstay_podspec::{MAX_MANIFEST_BYTES, PodGates, StaticPodPlace, decode_manifest};
use mainstay_types::PodSource;

use crate::{cli, node, secure};

/// The flags of `mainstay check`.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct CheckArgs {
    /// A KubeletConfiguration to check
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Drop-ins (`*.conf`) that are merged over --config
    #[arg(long, value_name = "DIR")]
    config_dir: Option<PathBuf>,
    /// A manifest to check, or a directory of them: pods, config maps, secrets, runtime classes; may be given several times
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR")]
    files: Vec<PathBuf>,
    /// Local users and rules to check (`access.yaml`)
    #[arg(long, value_name = "FILE")]
    access: Option<PathBuf>,
    /// Fail on warnings and on what is not acted upon yet, too
    #[arg(long)]
    strict: bool,
    /// Explain a field (`containerLogMaxSize`) or a flag
    #[arg(long, value_name = "FIELD")]
    explain: Option<String>,
}

/// Checks what was asked for. Exit code 0 when all is well, 1 when there are problems (with `--strict`: or warnings).
pub(crate) fn main(args: &CheckArgs) -> ExitCode {
    let mut good = true;
    let mut text = String::new();
    // Manifests are read with the gates of the configuration they are checked with.
    let mut gates = PodGates::DEFAULT;
    if let Some(field) = &args.explain {
        match explain(field) {
            Ok(explanation) => text.push_str(&explanation),
            Err(error) => {
                cli::complain(&error.to_string());
                good = false;
            }
        }
    }
    if args.config.is_some() || args.config_dir.is_some() {
        let (valid, of_config) = check_config(args, &mut text);
        good &= valid;
        gates = of_config;
    }
    if let Some(file) = &args.access {
        good &= check_access(file, args.strict, &mut text);
    }
    let mut seen = BTreeMap::new();
    for file in &args.files {
        match manifests_in(file) {
            Ok(files) if files.is_empty() => {
                line(&mut text, &format!("{}: holds no .yaml, .yml or .json file", file.display()));
                good = false;
            }
            Ok(files) => files
                .iter()
                .for_each(|file| good &= check_manifest(file, (gates, args.strict), &mut seen, &mut text)),
            Err(error) => {
                line(&mut text, &format!("{}: cannot be read: {error}", file.display()));
                good = false;
            }
        }
    }
    let printed = cli::print(&text);
    if good { printed } else { ExitCode::FAILURE }
}

fn check_access(file: &PathBuf, strict: bool, text: &mut String) -> bool {
    let shown = file.display();
    let mode = std::fs::metadata(file).map_err(|error| error.to_string());
    let mode = mode.and_then(|found| secure::check_access_mode(file, &found));
    let content = read_bounded(file)
        .map_err(|error| format!("cannot be read: {error}"))
        .and_then(|bytes| secure::parse_access(&bytes));
    let mut good = true;
    match mode {
        Ok(remark) => {
            remark.iter().for_each(|remark| line(text, &format!("{shown}: warning: {remark}")));
            good &= !strict || remark.is_none();
        }
        Err(problem) => {
            line(text, &format!("{shown}: {problem}"));
            good = false;
        }
    }
    match content {
        Ok(access) => {
            let (users, rules) = access.counts();
            line(text, &format!("{shown}: {users} user(s) and {rules} rule(s)"));
        }
        Err(problem) => {
            line(text, &format!("{shown}: {problem}"));
            good = false;
        }
    }
    good
}

fn check_config(args: &CheckArgs, text: &mut String) -> (bool, PodGates) {
    let flag =
        |name: &str, path: &Option<PathBuf>| path.as_ref().map(|path| format!("--{name}={}", path.display()));
    let flags: Vec<String> =
        [flag("config", &args.config), flag("config-dir", &args.config_dir)].into_iter().flatten().collect();
    match parse_kubelet_flags(flags).and_then(|flags| load(&flags)) {
        Ok(loaded) => {
            // Whose meaning only the exporter knows.
            let endpoint = loaded.config.tracing.as_ref().map(|tracing| tracing.endpoint.as_deref());
            if let Some(Err(problem)) = endpoint.map(mainstay_trace::Target::parse) {
                line(text, &problem.to_string());
                line(text, "1 problem(s)");
                return (false, node::pod_gates(&loaded));
            }
            line(text, "the configuration is valid");
            for notice in loaded.notices.iter().chain(&loaded.flag_notices) {
                line(text, &format!("note: {notice}"));
            }
            for field in &loaded.not_yet {
                line(text, &format!("not yet acted upon: {} (set in {})", field.path, field.set_by));
            }
            (!args.strict || loaded.not_yet.is_empty(), node::pod_gates(&loaded))
        }
        Err(problems) => {
            for problem in &problems {
                line(text, &problem.to_string());
            }
            line(text, &format!("{} problem(s)", problems.len()));
            (false, PodGates::DEFAULT)
        }
    }
}

/// `seen` has what was found in the files before, each with its file.
fn check_manifest(
    file: &PathBuf,
    (gates, strict): (PodGates, bool),
    seen: &mut BTreeMap<String, PathBuf>,
    text: &mut String,
) -> bool {
    let shown = file.display();
    let bytes = match read_bounded(file) {
        Ok(bytes) => bytes,
        Err(error) => {
            line(text, &format!("{shown}: cannot be read: {error}"));
            return false;
        }
    };
    let documents = match decode_manifest(&bytes) {
        Ok(documents) => documents,
        Err(error) => {
            line(text, &format!("{shown}: {error}"));
            return false;
        }
    };
    let place =
        StaticPodPlace { node_name: "node", source: PodSource::File, origin: "", api_server: false, gates };
    let of_a_cluster = StaticPodPlace { api_server: true, ..place };
    let mut good = true;
    for document in documents {
        let name = document.identity.as_ref().map_or_else(|| document.place.clone(), ToString::to_string);
        let mut warnings = document.warnings;
        let in_a_cluster = document.content.clone().and_then(|content| content.prepare(&of_a_cluster));
        let mut problems: Vec<String> = match document.content.and_then(|content| content.prepare(&place)) {
            Ok((_, more)) => {
                warnings.extend(more);
                let refused = in_a_cluster.err().unwrap_or_default();
                warnings.extend(
                    refused.iter().map(|problem| format!("a node with --kubeconfig refuses it: {problem}")),
                );
                Vec::new()
            }
            Err(problems) => problems.iter().map(ToString::to_string).collect(),
        };
        if document.identity.is_some() {
            match seen.get(&name) {
                Some(other) => problems.push(format!(
                    "is in {} already; a node runs one of them: remove the other",
                    other.display()
                )),
                None => {
                    seen.insert(name.clone(), file.clone());
                }
            }
        }
        line(text, &format!("{shown}: {name}: {}", if problems.is_empty() { "valid" } else { "rejected" }));
        problems.iter().for_each(|problem| line(text, &format!("  {problem}")));
        warnings.iter().for_each(|warning| line(text, &format!("  warning: {warning}")));
        good &= problems.is_empty() && (!strict || warnings.is_empty());
    }
    good
}

/// The file itself, or those of a directory that a node would read.
fn manifests_in(path: &PathBuf) -> std::io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.clone()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        let fits =
            path.extension().is_some_and(|it| ["yaml", "yml", "json"].iter().any(|known| it == *known));
        // A link that leads nowhere is a file that cannot be read.
        if fits && !hidden && (path.is_file() || !path.exists()) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Reads no more than a manifest may have, plus one byte by which it is seen to be too large.
fn read_bounded(file: &PathBuf) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_MANIFEST_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    std::fs::File::open(file)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn line(text: &mut String, words: &str) {
    // Writing to a String cannot fail.
    writeln!(text, "{words}").ok();
}
