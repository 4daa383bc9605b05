//! All options in one list, found by path or by flag.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::definition::{Definition, Flag, Kind, Section};
use crate::kubelet::KubeletConfiguration;
use crate::settings::Settings;

/// One option with its full path.
#[derive(Debug)]
pub struct Entry {
    /// Dotted path in the file (`authentication.webhook.cacheTTL`), or `--name` for an option that only a flag sets.
    pub path: String,
    /// The heading it stands under.
    pub section: &'static str,
    /// Its definition.
    pub definition: &'static Definition,
}

impl Entry {
    /// Whether only a flag can set it.
    pub fn is_setting(&self) -> bool {
        self.path.starts_with("--")
    }
}

static FIELDS: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    let mut entries = Vec::new();
    for section in KubeletConfiguration::SECTIONS {
        collect("", section.title, section, &mut entries);
    }
    entries
});

static SETTINGS: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    let of = |section: &'static Section| {
        section.definitions.iter().map(|definition| Entry {
            path: format!("--{}", definition.name),
            section: section.title,
            definition,
        })
    };
    Settings::SECTIONS.iter().flat_map(of).collect()
});

static FLAGS: LazyLock<BTreeMap<&'static str, &'static Entry>> = LazyLock::new(|| {
    let flag = |entry: &'static Entry| entry.definition.flag.as_ref().map(|flag| (flag.name, entry));
    fields().iter().chain(settings()).filter_map(flag).collect()
});

fn collect(prefix: &str, title: &'static str, section: &'static Section, entries: &mut Vec<Entry>) {
    for definition in section.definitions {
        let path = format!("{prefix}{}", definition.name);
        match definition.kind {
            Kind::Object(inner) => {
                for section in inner {
                    collect(&format!("{path}."), title, section, entries);
                }
            }
            _ => entries.push(Entry { path, section: title, definition }),
        }
    }
}

/// Every field of `KubeletConfiguration`, in the order of the documentation; objects are given by their fields.
pub fn fields() -> &'static [Entry] {
    &FIELDS
}

/// Every option that only a flag can set.
pub fn settings() -> &'static [Entry] {
    &SETTINGS
}

/// Every flag that sets an option, by name.
pub(crate) fn flags() -> &'static BTreeMap<&'static str, &'static Entry> {
    &FLAGS
}

/// The field or setting at `path`.
pub(crate) fn find(path: &str) -> Option<&'static Entry> {
    fields().iter().chain(settings()).find(|entry| entry.path == path)
}

/// The flag with this one-letter form.
pub(crate) fn find_short(letter: char) -> Option<&'static str> {
    let flag = |entry: &&'static Entry| entry.definition.flag;
    let matches = |flag: &Flag| flag.short == Some(letter);
    flags().values().filter_map(flag).find(matches).map(|flag| flag.name)
}

/// The options that are accepted but not yet acted upon: fields by path, flags with their dashes, sorted.
pub fn not_yet() -> Vec<&'static str> {
    let mut paths: Vec<&str> = fields()
        .iter()
        .chain(settings())
        .filter(|entry| !entry.definition.acted)
        .map(|entry| entry.path.as_str())
        .collect();
    paths.sort_unstable();
    paths
}
