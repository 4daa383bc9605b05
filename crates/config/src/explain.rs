//! The table of options as text: one option, the documentation page, the not-yet list.

use std::fmt::Write as _;

use crate::catalog::{self, Entry};
use crate::definition::{Check, Definition, Kind};
use crate::duration::GoDuration;
use crate::gates::{self, Gate};
use crate::nearest::{nearest, suggestion};

/// Nothing is called that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no option {name:?}; {remedy}")]
pub struct UnknownOption {
    /// What was asked for.
    pub name: String,
    /// The nearest name, or where to look.
    pub remedy: String,
}

/// Everything about one option: a field by its path, a flag with or without dashes, a group such as `authentication`,
/// or a feature gate.
///
/// # Errors
/// Nothing is called that; the error proposes the nearest name.
pub fn explain(name: &str) -> Result<String, UnknownOption> {
    if let Some(entry) = catalog::find(name) {
        return Ok(explain_entry(entry));
    }
    let bare = name.trim_start_matches('-').replace('_', "-");
    if let Some(entry) = catalog::flags().get(bare.as_str()) {
        return Ok(explain_entry(entry));
    }
    let inside = |entry: &&Entry| entry.path.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
    let members: Vec<&Entry> = catalog::fields().iter().filter(inside).collect();
    if !members.is_empty() {
        let texts: Vec<String> = members.into_iter().map(explain_entry).collect();
        return Ok(texts.join("\n"));
    }
    let gate = name.strip_prefix("featureGates.").unwrap_or(name);
    if let Some(gate) = gates::find_gate(gate) {
        return Ok(explain_gate(gate));
    }
    let names = catalog::fields().iter().chain(catalog::settings()).map(|entry| entry.path.as_str());
    let names = names.chain(gates::known_gates().map(|gate| gate.name));
    let remedy = suggestion(nearest(name, names), "the documentation page lists all");
    Err(UnknownOption { name: name.to_owned(), remedy })
}

fn explain_entry(entry: &Entry) -> String {
    let definition = entry.definition;
    let mut out = format!("{}\n  {}\n", entry.path, definition.doc.trim());
    let mut line = |label: &str, text: &str| {
        out.push_str(&format!("  {label:<9}{text}\n"));
    };
    line("type:", definition.kind.words());
    line("default:", &default_words(definition));
    if let Some(note) = definition.note {
        line("note:", note);
    }
    if let Some(flag) = definition.flag {
        let short = flag.short.map(|letter| format!(", -{letter}")).unwrap_or_default();
        let state = if flag.deprecated { " (deprecated)" } else { "" };
        line("flag:", &format!("--{}{short}{state}", flag.name));
    }
    if let Some(gate) = definition.gate {
        line("gate:", gate);
    }
    if let Some(rule) = check_words(definition) {
        line("check:", &rule);
    }
    line("status:", if definition.acted { "acted upon" } else { "accepted, not yet acted upon" });
    out
}

fn explain_gate(gate: &Gate) -> String {
    let stage = if gate.stage.label().is_empty() { "GA" } else { gate.stage.label() };
    let locked = if gate.locked { ", locked" } else { "" };
    let mut out =
        format!("featureGates.{}\n  stage:   {stage}\n  default: {}{locked}\n", gate.name, gate.default);
    if !gate.needs.is_empty() {
        out.push_str(&format!("  needs:   {}\n", gate.needs.join(", ")));
    }
    if !gates::concerns_node(gate) {
        out.push_str("  note:    has no effect on a node\n");
    }
    out
}

fn default_words(definition: &Definition) -> String {
    match (definition.default, definition.kind) {
        (Some(default), _) => default.to_owned(),
        (None, Kind::Bool) => "false".to_owned(),
        (None, Kind::Int32 | Kind::Int64 | Kind::Uint32) => "0".to_owned(),
        (None, Kind::Text) => "empty".to_owned(),
        (None, _) => "none".to_owned(),
    }
}

/// The check in words; nothing if there is none.
fn check_words(definition: &Definition) -> Option<String> {
    Some(match definition.check {
        Check::Any => return None,
        Check::AtLeast(least) => format!("at least {least}"),
        Check::Between(low, high) => format!("{low} to {high}"),
        Check::Port => "1 to 65535".to_owned(),
        Check::PortOrOff => "1 to 65535, or 0 for off".to_owned(),
        Check::OneOf(known) => {
            let quoted = |word: &&str| if word.is_empty() { "empty".to_owned() } else { (*word).to_owned() };
            format!("one of {}", known.iter().map(quoted).collect::<Vec<_>>().join(", "))
        }
        Check::Address => "an IP address".to_owned(),
        Check::QuantityAtLeast(least) => format!("a quantity of at least {least}"),
        Check::DurationAtLeast(least) => format!("at least {}", GoDuration::from_milliseconds(least)),
        Check::NotNegative => "not negative".to_owned(),
        Check::Rule(words) => words.to_owned(),
    })
}

/// The documentation page of all options, as `docs/configuration/kubelet-configuration.md` holds it.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Configuration\n\n\
         <!-- Generated from the table of options in crates/config; UPDATE_DOCS=1 cargo test -p mainstay-config writes it. -->\n\n\
         `mainstay kubelet` reads upstream's `KubeletConfiguration` (`kubelet.config.k8s.io/v1beta1`, Kubernetes 1.37) and\n\
         upstream's flags. Later layers go over earlier ones: defaults, the `--config` file, the `*.conf` files below\n\
         `--config-dir` in lexical order (JSON merge patch), flags. Feature gates of all layers are merged. Unknown and\n\
         duplicated fields are errors, and every problem is reported at once. `mainstay check --explain NAME` shows what\n\
         is written here about one option.\n\n\
         Differences from upstream: the node is closed unless it is configured otherwise, also without `--config`\n\
         (`authentication.anonymous.enabled: false`, `authentication.webhook.enabled: true`, `authorization.mode: Webhook`,\n\
         `readOnlyPort: 0`), and unknown fields are refused where upstream only warns.\n\n\
         Options marked \u{25cb} are accepted and checked but not acted upon yet; at start those that are set are listed.\n",
    );
    table(&mut page, "Fields", catalog::fields());
    table(&mut page, "Options that only a flag sets", catalog::settings());
    gate_table(&mut page);
    page
}

fn table(page: &mut String, title: &str, entries: &[Entry]) {
    page.push_str(&format!("\n## {title}\n"));
    let mut section = "";
    for entry in entries {
        if entry.section != section {
            section = entry.section;
            page.push_str(&format!("\n### {section}\n\n| option | type and default | flag | what it does |\n| --- | --- | --- | --- |\n"));
        }
        let definition = entry.definition;
        let mark = if definition.acted { "" } else { " \u{25cb}" };
        let flag = match definition.flag {
            Some(flag) if !entry.is_setting() => format!("`--{}`", flag.name),
            _ => String::new(),
        };
        let mut what = definition.doc.trim().to_owned();
        let mut sentence = |label: &str, text: &str| {
            what.push_str(&format!(" {label}: {text}."));
        };
        if let Some(rule) = check_words(definition) {
            sentence("Check", &rule);
        }
        if let Some(note) = definition.note {
            sentence("Note", note);
        }
        if let Some(gate) = definition.gate {
            sentence("Gate", &format!("`{gate}`"));
        }
        let kind = definition.kind.words();
        let default = default_words(definition);
        page.push_str(&format!(
            "| `{}`{mark} | {kind}; {} | {flag} | {} |\n",
            entry.path,
            escape(&default),
            escape(&what)
        ));
    }
}

fn gate_table(page: &mut String) {
    page.push_str(
        "\n## Feature gates of a node\n\n\
         All gates of Kubernetes 1.37 are known; these say something about a node. `AllAlpha` and `AllBeta` set every\n\
         gate of their stage that is not set by name.\n\n| gate | stage | default | needs |\n| --- | --- | --- | --- |\n",
    );
    for gate in gates::known_gates().filter(|gate| gates::concerns_node(gate)) {
        let stage = if gate.stage.label().is_empty() { "GA" } else { gate.stage.label() };
        let locked = if gate.locked { ", locked" } else { "" };
        // Writing to a String cannot fail.
        let _infallible = writeln!(
            page,
            "| `{}` | {stage} | {}{locked} | {} |",
            gate.name,
            gate.default,
            gate.needs.join(", ")
        );
    }
}

/// A cell must not end early.
fn escape(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

/// The content of `not-yet.txt`: a line for each option that is accepted and not acted upon.
pub fn not_yet_text() -> String {
    let mut text = catalog::not_yet().join("\n");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests;
