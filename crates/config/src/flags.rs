//! The command line of `kubelet`, read from the table of options with the grammar of Go's pflag.
//!
//! `--name=value`, `--name value`, `--bool`, `-v2`, `-v=2`, `-v 2`; `_` is the same as `-` in names; a scalar given twice
//! keeps the last value, lists and maps grow; `--` ends the flags. Every problem is reported, not just the first.

mod removed;
mod value;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;

use serde_json::{Map, Value};

use crate::catalog::{self, Entry};
use crate::definition::{FlagStyle, Kind};
use crate::nearest::{nearest, suggestion};
use crate::problem::Problem;
use crate::settings::Settings;

/// The source name of everything that a flag says.
pub(crate) const COMMAND_LINE: &str = "command line";

/// What `--version` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionRequest {
    /// `--version`: the version on one line.
    Short,
    /// `--version=raw`: all that is known about the build.
    Raw,
    /// `--version=vX.Y.Z`: go on, and report this version.
    Report(String),
}

/// The flags that were given, read and checked one by one.
#[derive(Clone, Default)]
pub struct FlagSet {
    /// `--help` or `-h` was given.
    pub help: bool,
    /// `--version` was given.
    pub version: Option<VersionRequest>,
    /// Values by the path of their option.
    values: BTreeMap<&'static str, Value>,
}

impl fmt::Debug for FlagSet {
    /// Names only: among the values may be secret headers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlagSet")
            .field("help", &self.help)
            .field("version", &self.version)
            .field("given", &self.values.keys())
            .finish()
    }
}

impl FlagSet {
    /// The flags of someone who gave only `--config`.
    pub fn with_config(path: &str) -> Self {
        Self { values: BTreeMap::from([("--config", path.into())]), ..Self::default() }
    }

    /// Whether the flag `name` (without dashes) was given.
    pub fn is_given(&self, name: &str) -> bool {
        catalog::flags().get(name).is_some_and(|entry| self.values.contains_key(entry.path.as_str()))
    }

    /// What the flags say about options that only flags set.
    pub fn settings(&self) -> Settings {
        let named = |(path, value): (&&str, &Value)| {
            path.strip_prefix("--").map(|name| (name.to_owned(), value.clone()))
        };
        let object: Map<String, Value> = self.values.iter().filter_map(named).collect();
        // Each value was made for the type of its option, so this cannot fail; the defaults are the honest fallback.
        serde_json::from_value(Value::Object(object)).unwrap_or_default()
    }

    /// Every flag with its value as the command line has it, for people to see: what the file sets is not in it, and the
    /// values of secret headers are not shown.
    pub fn shown(&self) -> BTreeMap<String, String> {
        let shown = |(name, entry): (&&'static str, &&'static Entry)| {
            let given = self.values.get(entry.path.as_str());
            let secret = matches!(entry.definition.kind, Kind::Headers);
            let text = match given {
                Some(_) if secret => "CLASSIFIED".to_owned(),
                Some(value) => text_of(value),
                None => match (entry.definition.default, entry.definition.kind) {
                    (Some(default), _) => default.to_owned(),
                    (None, Kind::Bool) => "false".to_owned(),
                    (None, Kind::Int32 | Kind::Int64 | Kind::Uint32 | Kind::Float) => "0".to_owned(),
                    (None, Kind::Duration | Kind::DurationOrNanoseconds) => "0s".to_owned(),
                    (None, Kind::TextList | Kind::Int32List) => "[]".to_owned(),
                    (None, _) => String::new(),
                },
            };
            ((*name).to_owned(), text)
        };
        catalog::flags().iter().map(shown).collect()
    }

    /// The given flags that set fields of the file: option and value, by path.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&'static Entry, &Value)> {
        self.values
            .iter()
            .filter_map(|(path, value)| catalog::find(path).map(|entry| (entry, value)))
            .filter(|(entry, _)| !entry.is_setting())
    }

    /// The options that were given, fields and settings.
    pub(crate) fn given(&self) -> impl Iterator<Item = &'static Entry> {
        self.values.keys().filter_map(|path| catalog::find(path))
    }
}

/// A value as Go's flags print it.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(text_of).collect::<Vec<_>>().join(",")),
        Value::Object(map) => {
            map.iter().map(|(key, value)| format!("{key}={}", text_of(value))).collect::<Vec<_>>().join(",")
        }
        other => other.to_string(),
    }
}

/// Reads the arguments of `kubelet` (without the program's name).
///
/// # Errors
/// Every unknown or removed flag, missing or wrong value and stray word; see [`Problem`].
pub fn parse_kubelet_flags<I>(arguments: I) -> Result<FlagSet, Vec<Problem>>
where
    I: IntoIterator,
    I::Item: Into<OsString>,
{
    let mut parser = Parser::default();
    let mut words = Vec::new();
    for argument in arguments {
        match argument.into().into_string() {
            Ok(word) => words.push(word),
            Err(raw) => parser.problem(
                "",
                format!("argument {:?} is not UTF-8", raw.to_string_lossy()),
                "write it in UTF-8",
            ),
        }
    }
    parser.run(words);
    if parser.problems.is_empty() { Ok(parser.flags) } else { Err(parser.problems) }
}

#[derive(Default)]
struct Parser {
    flags: FlagSet,
    problems: Vec<Problem>,
}

impl Parser {
    fn run(&mut self, words: Vec<String>) {
        let mut words = words.into_iter().peekable();
        while let Some(word) = words.next() {
            if word == "--" {
                words.by_ref().for_each(|word| self.stray(&word));
            } else if let Some(long) = word.strip_prefix("--") {
                self.long(&word, long, &mut words);
            } else if let Some(short) = word.strip_prefix('-').filter(|short| !short.is_empty()) {
                self.short(&word, short, &mut words);
            } else {
                self.stray(&word);
            }
        }
    }

    fn long(&mut self, word: &str, long: &str, words: &mut Words) {
        if long.starts_with(['-', '=']) {
            self.problem("", format!("bad flag syntax: {word}"), "write --name=value");
            return;
        }
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (long, None),
        };
        let name = name.replace('_', "-");
        let Some(known) = Known::of(&name) else {
            self.unknown(&name);
            // What follows was its value, most likely, and is not worth a problem of its own.
            if value.is_none() {
                words.next_if(|next| !next.starts_with('-'));
            }
            return;
        };
        match value.or_else(|| known.value_if_bare()).or_else(|| words.next()) {
            Some(value) => self.set(known, &format!("--{name}"), &value),
            None => self.problem(
                &format!("--{name}"),
                format!("flag needs an argument: --{name}"),
                format!("write --{name}=VALUE"),
            ),
        }
    }

    /// `-v2`, `-v=2`, `-v 2`, `-h`; letters that take no value may be run together.
    fn short(&mut self, word: &str, short: &str, words: &mut Words) {
        let mut letters = short.chars();
        while let Some(letter) = letters.next() {
            let known = match letter {
                'h' => Some(Known::Help),
                letter => catalog::find_short(letter).and_then(Known::of),
            };
            let Some(known) = known else {
                let remedy = match word.get(1..).map(|name| name.split('=').next().unwrap_or(name)) {
                    Some(name) if Known::of(name).is_some() => format!("did you mean \"--{name}\"?"),
                    _ => "long flags begin with two dashes".to_owned(),
                };
                self.problem("", format!("unknown shorthand flag: {letter:?} in {word}"), remedy);
                return;
            };
            let rest = letters.as_str();
            let value = match rest.strip_prefix('=') {
                Some(value) => Some(value.to_owned()),
                None => match known.value_if_bare() {
                    Some(value) => {
                        self.set(known, &format!("-{letter}"), &value);
                        continue;
                    }
                    None if rest.is_empty() => words.next(),
                    None => Some(rest.to_owned()),
                },
            };
            match value {
                Some(value) => self.set(known, &format!("-{letter}"), &value),
                None => self.problem(
                    &format!("-{letter}"),
                    format!("flag needs an argument: {letter:?} in {word}"),
                    format!("write -{letter}=VALUE"),
                ),
            }
            return;
        }
    }

    fn set(&mut self, known: Known, written: &str, text: &str) {
        let outcome = match known {
            Known::Help => value::parse_bool(text).map(|on| self.flags.help = on),
            Known::Version => value::parse_version(text).map(|request| self.flags.version = request),
            Known::Option(entry) => {
                let path = entry.path.as_str();
                value::convert(entry.definition, self.flags.values.get(path), text).map(|value| {
                    if let Some(value) = value {
                        self.flags.values.insert(path, value);
                    }
                })
            }
        };
        if let Err(reason) = outcome {
            let secret =
                matches!(known, Known::Option(entry) if matches!(entry.definition.kind, Kind::Headers));
            let message = if secret {
                format!("invalid argument for {written:?} flag: {reason}")
            } else {
                format!("invalid argument {text:?} for {written:?} flag: {reason}")
            };
            self.problem(written, message, "");
        }
    }

    fn unknown(&mut self, name: &str) {
        let written = format!("--{name}");
        if let Some(removed) = removed::find(name) {
            self.problem(
                &written,
                format!("{written} is gone since Kubernetes {}", removed.since),
                removed.remedy,
            );
            return;
        }
        let found = nearest(name, catalog::flags().keys().copied().chain(["help", "version"]))
            .map(|found| format!("--{found}"));
        self.problem(
            &written,
            format!("unknown flag: {written}"),
            suggestion(found.as_deref(), "--help lists the known flags"),
        );
    }

    fn stray(&mut self, word: &str) {
        self.problem("", format!("unknown command {word:?}"), "kubelet takes flags only; write --name=value");
    }

    fn problem(&mut self, path: &str, message: impl Into<String>, remedy: impl Into<String>) {
        self.problems.push(Problem::new(path, message, remedy).at(COMMAND_LINE));
    }
}

type Words = std::iter::Peekable<std::vec::IntoIter<String>>;

/// A flag that exists.
#[derive(Clone, Copy)]
enum Known {
    Help,
    Version,
    Option(&'static Entry),
}

impl Known {
    fn of(name: &str) -> Option<Self> {
        match name {
            "help" => Some(Self::Help),
            "version" => Some(Self::Version),
            name => catalog::flags().get(name).copied().map(Self::Option),
        }
    }

    /// The value of a flag that is given without one; such flags never take the next word.
    fn value_if_bare(self) -> Option<String> {
        match self {
            Self::Help | Self::Version => Some("true".to_owned()),
            Self::Option(entry) => matches!(entry.definition.kind, Kind::Bool).then(|| "true".to_owned()),
        }
    }
}

/// The text that `--help` prints.
pub fn help() -> String {
    let mut out = String::from(
        "mainstay kubelet: runs the pods of this node and answers for them.\n\n\
         Usage:\n  kubelet [flags]\n\nFlags:\n",
    );
    let mut lines = vec![
        ("help", "  -h, --help".to_owned(), "Print this text.".to_owned()),
        (
            "version",
            "      --version version[=true]".to_owned(),
            "Print the version and exit; raw prints more.".to_owned(),
        ),
    ];
    for (name, entry) in catalog::flags() {
        let definition = entry.definition;
        let short = definition.flag.and_then(|flag| flag.short);
        let dash = short.map_or("     ".to_owned(), |letter| format!(" -{letter},"));
        let word = value_word(definition.kind, definition.flag.map(|flag| flag.style));
        let mut sentence = definition.doc.trim().to_owned();
        if let Some(default) = definition.default {
            sentence.push_str(&format!(" (default {default})"));
        }
        if definition.flag.is_some_and(|flag| flag.deprecated) && !entry.is_setting() {
            sentence.push_str(&format!(" (DEPRECATED: set {} in the --config file)", entry.path));
        } else if definition.flag.is_some_and(|flag| flag.deprecated) {
            sentence.push_str(" (DEPRECATED)");
        }
        lines.push((name, format!(" {dash} --{name}{word}"), sentence));
    }
    lines.sort_by_key(|(name, ..)| *name);
    for (_, flag, sentence) in lines {
        out.push_str(&format!("{flag}\n          {sentence}\n"));
    }
    out
}

/// The word for a flag's value in the help.
fn value_word(kind: Kind, style: Option<FlagStyle>) -> &'static str {
    match (style, kind) {
        (Some(FlagStyle::Taints), _) => " key=value:effect,...",
        (Some(FlagStyle::ReservedMemory), _) => " node:type=quantity,...",
        (Some(FlagStyle::VModule), _) => " pattern=N,...",
        (Some(FlagStyle::LessThan), _) => " signal<value,...",
        (Some(FlagStyle::Colon), _) => " name:value,...",
        (Some(FlagStyle::Address), _) => " ip",
        (_, Kind::Bool) => "",
        (_, Kind::Int32 | Kind::Int64 | Kind::Uint32) => " int",
        (_, Kind::Float) => " float",
        (_, Kind::Duration | Kind::DurationOrNanoseconds) => " duration",
        (_, Kind::Quantity) => " quantity",
        (_, Kind::TextList | Kind::Int32List) => " strings",
        (_, Kind::TextMap | Kind::BoolMap | Kind::QuantityMap | Kind::Headers) => " key=value,...",
        (_, Kind::Text | Kind::Object(_) | Kind::ObjectList(_)) => " string",
    }
}

#[cfg(test)]
mod tests;
