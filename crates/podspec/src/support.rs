//! What mainstay does with each field of `v1.Pod`: one line per field or subtree, one file per area.
//!
//! From these lines come `docs/pod-spec.md` and the warnings of `mainstay check`. The tests hold them against the type
//! itself (no field forgotten, none invented) and against the sources of the tests they name.
//!
//! A line counts for everything below its path until a longer path says otherwise. A line for `spec.containers[]` counts
//! for init and ephemeral containers too, unless they have one of their own; likewise `status.containerStatuses[]`.
//!
//! To change a line: edit it, then `UPDATE_DOCS=1 cargo test -p mainstay-podspec support`.

mod identity;
mod lifecycle;
mod metadata;
mod probes;
mod resources;
mod status;
mod volumes;

#[cfg(test)]
mod fields;
#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

/// The areas in the order of the page.
const AREAS: [&Area; 7] = [
    &metadata::AREA,
    &lifecycle::AREA,
    &identity::AREA,
    &resources::AREA,
    &volumes::AREA,
    &probes::AREA,
    &status::AREA,
];

/// Lists whose fields are those of another list.
const LIKE: [(&str, &str); 4] = [
    ("spec.initContainers", "spec.containers"),
    ("spec.ephemeralContainers", "spec.containers"),
    ("status.initContainerStatuses", "status.containerStatuses"),
    ("status.ephemeralContainerStatuses", "status.containerStatuses"),
];

/// What init containers are given as others are.
const INIT: &[&str] = &["containers::an_init_container_is_given_what_it_asks_for"];

/// A file of lines.
struct Area {
    #[cfg_attr(not(test), expect(dead_code, reason = "the page's headings; the page is written by a test"))]
    title: &'static str,
    rows: &'static [Row],
}

/// What is done with a field and all below it.
struct Row {
    /// `spec.containers[].env`.
    path: &'static str,
    state: State,
}

enum State {
    /// Acted upon, as these tests show: `file::function` in `crates/e2e/tests`; and as far as is said.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the tests, which look for them"))]
    Works(&'static [&'static str], &'static str),
    /// Kept, shown and handed to whom it concerns, without being acted upon here.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the page, which is written by a test"))]
    PassedThrough(&'static str),
    /// What stands in the way, and what happens instead.
    NotYet(&'static str),
}

/// A field that does what it should, with the tests that show it.
const fn works(path: &'static str, tests: &'static [&'static str]) -> Row {
    works_but(path, tests, "")
}

/// One that does what it should only as far as is said.
const fn works_but(path: &'static str, tests: &'static [&'static str], how_far: &'static str) -> Row {
    Row { path, state: State::Works(tests, how_far) }
}

/// A field that is somebody else's to act upon, with whose.
const fn passed(path: &'static str, whose: &'static str) -> Row {
    Row { path, state: State::PassedThrough(whose) }
}

/// A field that does nothing yet: the blocker, and what happens instead.
const fn not_yet(path: &'static str, why: &'static str) -> Row {
    Row { path, state: State::NotYet(why) }
}

impl Row {
    /// Whether the line counts for `path`.
    fn covers(&self, path: &str) -> bool {
        path.strip_prefix(self.path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    }
}

fn rows() -> impl Iterator<Item = &'static Row> {
    AREAS.iter().flat_map(|area| area.rows)
}

/// The line that counts for `path`: the longest, of its own list before that of the list it is like.
fn deciding(path: &str) -> Option<&'static Row> {
    let longest = |path: &str| rows().filter(|row| row.covers(path)).max_by_key(|row| row.path.len());
    longest(path).or_else(|| longest(&alike(path)?))
}

/// The same field in the list that this one's list is like.
fn alike(path: &str) -> Option<String> {
    let of = |(list, like): &(&str, &str)| path.strip_prefix(list).map(|rest| format!("{like}{rest}"));
    LIKE.iter().find_map(of)
}

/// Every use of a field that this version does not act upon: the field and what happens instead.
pub(crate) fn not_yet_used(pod: &Pod) -> Vec<String> {
    let mut found = Vec::new();
    // A pod that was read from a manifest can be written as one.
    if let Ok(value) = serde_json::to_value(pod) {
        look(&value, &mut Vec::new(), &mut found);
    }
    found
}

enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

fn look<'a>(value: &'a Value, way: &mut Vec<Step<'a>>, found: &mut Vec<String>) {
    match value {
        Value::Null => {}
        // `emptyDir: {}` asks for as much as one with fields.
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                way.push(Step::Key(key));
                look(value, way, found);
                way.pop();
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                way.push(Step::Index(index));
                look(value, way, found);
                way.pop();
            }
        }
        _ => {
            let pattern = written(way, false);
            let Some(Row { path, state: State::NotYet(why) }) = deciding(&pattern) else { return };
            let steps = path.matches(['.', '[']).count() + 1;
            let place = written(way.get(..steps).unwrap_or(way), true);
            let warning = format!("{place}: {why}");
            if !found.contains(&warning) {
                found.push(warning);
            }
        }
    }
}

/// A path as people write it, with the places in lists or with `[]`.
fn written(way: &[Step<'_>], indices: bool) -> String {
    let mut text = String::new();
    for step in way {
        match step {
            Step::Key(key) if text.is_empty() => text.push_str(key),
            Step::Key(key) => text.push_str(&format!(".{key}")),
            Step::Index(index) if indices => text.push_str(&format!("[{index}]")),
            Step::Index(_) => text.push_str("[]"),
        }
    }
    text
}
