//! `mainstay check`: a configuration, manifests, or the meaning of a field. Every problem at once.

use std::{fmt::Write as _, path::PathBuf, process::ExitCode};

use mainstay_config::{explain, load, parse_kubelet_flags};
use mainstay_podspec::{
    Content, MAX_MANIFEST_BYTES, StaticPodPlace, decode_manifest, prepare_static_pod, validate_config_map,
    validate_secret,
};
use mainstay_types::PodSource;

use crate::cli;

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
    /// A manifest to check: pods, config maps, secrets; may be given several times
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Explain a field (`containerLogMaxSize`) or a flag
    #[arg(long, value_name = "FIELD")]
    explain: Option<String>,
}

/// Checks what was asked for. Exit code 0 when all is well, 1 when there are problems.
pub(crate) fn main(args: &CheckArgs) -> ExitCode {
    let mut good = true;
    let mut text = String::new();
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
        good &= check_config(args, &mut text);
    }
    for file in &args.files {
        good &= check_manifest(file, &mut text);
    }
    let printed = cli::print(&text);
    if good { printed } else { ExitCode::FAILURE }
}

fn check_config(args: &CheckArgs, text: &mut String) -> bool {
    let flag =
        |name: &str, path: &Option<PathBuf>| path.as_ref().map(|path| format!("--{name}={}", path.display()));
    let flags: Vec<String> =
        [flag("config", &args.config), flag("config-dir", &args.config_dir)].into_iter().flatten().collect();
    match parse_kubelet_flags(flags).and_then(|flags| load(&flags)) {
        Ok(loaded) => {
            line(text, "the configuration is valid");
            for notice in &loaded.notices {
                line(text, &format!("note: {notice}"));
            }
            for field in &loaded.not_yet {
                line(text, &format!("not yet acted upon: {} (set in {})", field.path, field.set_by));
            }
            true
        }
        Err(problems) => {
            for problem in &problems {
                line(text, &problem.to_string());
            }
            line(text, &format!("{} problem(s)", problems.len()));
            false
        }
    }
}

fn check_manifest(file: &PathBuf, text: &mut String) -> bool {
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
    let mut good = true;
    for document in documents {
        let name = document.identity.as_ref().map_or_else(|| document.place.clone(), ToString::to_string);
        let mut warnings = document.warnings;
        let problems = match document.content {
            Err(problems) => problems,
            Ok(Content::ConfigMap(object)) => validate_config_map(&object),
            Ok(Content::Secret(object)) => validate_secret(&object),
            Ok(Content::Pod(pod)) => {
                let place = StaticPodPlace {
                    node_name: "node",
                    source: PodSource::File,
                    origin: "",
                    api_server: false,
                };
                match prepare_static_pod(pod, &place) {
                    Ok((_, more)) => {
                        warnings.extend(more);
                        Vec::new()
                    }
                    Err(problems) => problems,
                }
            }
        };
        line(text, &format!("{shown}: {name}: {}", if problems.is_empty() { "valid" } else { "rejected" }));
        problems.iter().for_each(|problem| line(text, &format!("  {problem}")));
        warnings.iter().for_each(|warning| line(text, &format!("  warning: {warning}")));
        good &= problems.is_empty();
    }
    good
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
