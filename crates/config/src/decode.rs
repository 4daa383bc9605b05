//! From a document to checked JSON: every field is known, written once and of the right type, or it is a problem.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::catalog;
use crate::definition::{Definition, Kind, Section};
use crate::document::{self, Node};
use crate::duration::GoDuration;
use crate::kubelet::{API_VERSION, KIND, KubeletConfiguration};
use crate::nearest::{nearest, suggestion};
use crate::problem::Problem;
use crate::quantity::Quantity;

/// What a file says, after the checks.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    /// The fields that are set, nested; `null` where the file resets a field.
    pub(crate) values: Map<String, Value>,
    /// The paths of the options that are set to something.
    pub(crate) set: BTreeSet<String>,
    /// The paths of the options that are reset by `null`.
    pub(crate) reset: BTreeSet<String>,
}

/// Reads one file of configuration: what of it is right, and every problem in it, each with `source_name`.
pub(crate) fn decode(source_name: &str, text: &str) -> (Decoded, Vec<Problem>) {
    let mut decoder = Decoder::default();
    let mut values = Map::new();
    match document::parse(text) {
        Ok(entries) => {
            decoder.type_meta(&entries);
            values = decoder.object("", KubeletConfiguration::SECTIONS, entries, true, true);
        }
        Err(problem) => decoder.problems.push(problem),
    }
    let problems = decoder.problems.into_iter().map(|problem| problem.at(source_name)).collect();
    (Decoded { values, set: decoder.set, reset: decoder.reset }, problems)
}

#[derive(Default)]
struct Decoder {
    problems: Vec<Problem>,
    set: BTreeSet<String>,
    reset: BTreeSet<String>,
}

impl Decoder {
    /// Both must be there: upstream decides by them what the file is.
    fn type_meta(&mut self, entries: &[(String, Node)]) {
        for (name, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            let remedy = format!("write {name}: {wanted}");
            match entries.iter().find(|(key, _)| key == name) {
                None => self.problem(name, format!("{name} is missing"), remedy),
                Some((_, Node::Text(found))) if found == wanted => {}
                Some((_, Node::Text(found))) => {
                    self.problem(
                        name,
                        format!("{name} {found:?} is not a configuration of this kubelet"),
                        remedy,
                    );
                }
                Some((_, other)) => {
                    self.problem(name, format!("{name} must be a string, not {}", other.words()), remedy);
                }
            }
        }
    }

    /// Checks the entries of an object; `track` is off inside lists, whose items are not options of their own.
    fn object(
        &mut self,
        prefix: &str,
        sections: &'static [Section],
        entries: Vec<(String, Node)>,
        is_root: bool,
        track: bool,
    ) -> Map<String, Value> {
        let mut values = Map::new();
        let mut seen = BTreeSet::new();
        for (key, node) in entries {
            let path = format!("{prefix}{key}");
            if !seen.insert(key.clone()) {
                self.problem(&path, format!("field {path:?} is set twice"), "keep one of them");
                continue;
            }
            if is_root && (key == "apiVersion" || key == "kind") {
                continue;
            }
            let definitions = || sections.iter().flat_map(|section| section.definitions);
            let Some(definition) = definitions().find(|definition| definition.name == key) else {
                let remedy = unknown_field_remedy(&key, prefix, definitions().map(|d| d.name));
                self.problem(&path, format!("unknown field {path:?}"), remedy);
                continue;
            };
            if let Some(value) = self.field(&path, definition, node, track) {
                values.insert(key, value);
            }
        }
        values
    }

    fn field(
        &mut self,
        path: &str,
        definition: &'static Definition,
        node: Node,
        track: bool,
    ) -> Option<Value> {
        if let (Kind::Object(sections), Node::Map(entries)) = (definition.kind, &node) {
            let entries = entries.clone();
            return Some(self.object(&format!("{path}."), sections, entries, false, track).into());
        }
        if node == Node::Null {
            if track {
                self.mark_reset(path, definition);
            }
            return Some(Value::Null);
        }
        let value = self.value(path, definition.kind, node)?;
        if track {
            self.set.insert(path.to_owned());
        }
        Some(value)
    }

    /// `null` for an object resets all that is in it.
    fn mark_reset(&mut self, path: &str, definition: &'static Definition) {
        match definition.kind {
            Kind::Object(sections) => {
                for inner in sections.iter().flat_map(|section| section.definitions) {
                    self.mark_reset(&format!("{path}.{}", inner.name), inner);
                }
            }
            _ => {
                self.reset.insert(path.to_owned());
            }
        }
    }

    fn value(&mut self, path: &str, kind: Kind, node: Node) -> Option<Value> {
        match (kind, node) {
            (Kind::Bool, Node::Bool(value)) => Some(value.into()),
            (Kind::Bool, Node::Text(word)) if yaml_1_1_bool(&word).is_some() => {
                yaml_1_1_bool(&word).map(Value::from)
            }
            (Kind::Int32, Node::Int(value)) => self.in_range(path, value, i32::MIN.into(), i32::MAX.into()),
            (Kind::Int64, Node::Int(value)) => Some(value.into()),
            (Kind::Uint32, Node::Int(value)) => self.in_range(path, value, 0, u32::MAX.into()),
            (Kind::Float, Node::Float(value)) if value.is_finite() => Some(value.into()),
            (Kind::Float, Node::Int(value)) => Some(value.into()),
            (Kind::Text, Node::Text(value)) => Some(value.into()),
            (Kind::Duration | Kind::DurationOrNanoseconds, Node::Text(text)) => {
                match text.parse::<GoDuration>() {
                    Ok(duration) => Some(duration.to_string().into()),
                    Err(error) => {
                        self.problem(path, error.to_string(), "");
                        None
                    }
                }
            }
            (Kind::DurationOrNanoseconds, Node::Int(value)) => {
                Some(GoDuration::from_nanoseconds(value).to_string().into())
            }
            (Kind::Quantity, Node::Text(text)) => self.quantity(path, text),
            (Kind::Quantity, Node::Int(value)) => self.quantity(path, value.to_string()),
            (Kind::Quantity, Node::Large(value)) => self.quantity(path, value.to_string()),
            (Kind::Quantity, Node::Float(value)) => self.quantity(path, value.to_string()),
            (Kind::TextList, Node::List(items)) => self.list(path, Kind::Text, items),
            (Kind::Int32List, Node::List(items)) => self.list(path, Kind::Int32, items),
            (Kind::ObjectList(sections), Node::List(items)) => self.objects(path, sections, items),
            (Kind::TextMap, Node::Map(entries)) => self.map(path, Kind::Text, entries),
            (Kind::BoolMap, Node::Map(entries)) => self.map(path, Kind::Bool, entries),
            (Kind::QuantityMap, Node::Map(entries)) => self.map(path, Kind::Quantity, entries),
            (Kind::Headers, Node::Map(entries)) => self.map(path, Kind::TextList, entries),
            (kind, node) => {
                self.problem(
                    path,
                    format!("{path} must be {}, not {}", kind.words(), node.words()),
                    type_remedy(kind, &node),
                );
                None
            }
        }
    }

    fn in_range(&mut self, path: &str, value: i64, low: i64, high: i64) -> Option<Value> {
        if (low..=high).contains(&value) {
            return Some(value.into());
        }
        self.problem(path, format!("{path} {value} must be between {low} and {high}"), "");
        None
    }

    fn quantity(&mut self, path: &str, text: String) -> Option<Value> {
        match text.parse::<Quantity>() {
            Ok(_) => Some(text.into()),
            Err(error) => {
                self.problem(path, error.to_string(), "");
                None
            }
        }
    }

    fn list(&mut self, path: &str, kind: Kind, items: Vec<Node>) -> Option<Value> {
        let mut values = Vec::new();
        for (index, item) in items.into_iter().enumerate() {
            values.extend(self.value(&format!("{path}[{index}]"), kind, item));
        }
        Some(values.into())
    }

    fn objects(&mut self, path: &str, sections: &'static [Section], items: Vec<Node>) -> Option<Value> {
        let mut values = Vec::new();
        for (index, item) in items.into_iter().enumerate() {
            let path = format!("{path}[{index}]");
            match item {
                Node::Map(entries) => {
                    let mut object = self.object(&format!("{path}."), sections, entries, false, false);
                    object.retain(|_, value| !value.is_null());
                    values.push(object.into());
                }
                other => {
                    self.problem(&path, format!("{path} must be an object, not {}", other.words()), "");
                }
            }
        }
        Some(Value::Array(values))
    }

    /// A `null` is kept: in a drop-in it takes the key away from the layer below.
    fn map(&mut self, path: &str, kind: Kind, entries: Vec<(String, Node)>) -> Option<Value> {
        let mut values = Map::new();
        for (key, node) in entries {
            let path = format!("{path}.{key}");
            if values.contains_key(&key) {
                self.problem(&path, format!("key {path:?} is set twice"), "keep one of them");
                continue;
            }
            let value = match node {
                Node::Null => Some(Value::Null),
                node => self.value(&path, kind, node),
            };
            values.extend(value.map(|value| (key, value)));
        }
        Some(values.into())
    }

    fn problem(&mut self, path: &str, message: impl Into<String>, remedy: impl Into<String>) {
        self.problems.push(Problem::new(path, message, remedy));
    }
}

fn unknown_field_remedy<'a>(key: &str, prefix: &str, siblings: impl Iterator<Item = &'a str>) -> String {
    if let Some(found) = nearest(key, siblings) {
        return format!("did you mean {:?}?", format!("{prefix}{found}"));
    }
    // A field in the wrong object, or a flag's name in the file.
    let elsewhere = |entry: &&catalog::Entry| entry.definition.name == key && !entry.is_setting();
    let by_flag = || catalog::flags().get(key).filter(|entry| !entry.is_setting()).copied();
    if let Some(entry) = catalog::fields().iter().find(elsewhere).or_else(by_flag) {
        return format!("did you mean {:?}?", entry.path);
    }
    suggestion(
        nearest(key, catalog::fields().iter().map(|entry| entry.path.as_str())),
        "remove it; the documentation page lists the known fields",
    )
}

fn type_remedy(kind: Kind, node: &Node) -> &'static str {
    match (kind, node) {
        (Kind::Text, Node::Int(_) | Node::Large(_) | Node::Float(_) | Node::Bool(_)) => "put it in quotes",
        (Kind::Duration, Node::Int(_) | Node::Large(_) | Node::Float(_)) => {
            "write it with a unit, such as \"10s\""
        }
        (Kind::Bool | Kind::Int32 | Kind::Int64 | Kind::Uint32 | Kind::Float, Node::Text(_)) => {
            "write it without quotes"
        }
        (Kind::TextList, Node::Text(_)) => "write it as [\"...\"]",
        _ => "",
    }
}

/// Words that Go's YAML 1.1 reader takes for booleans and a YAML 1.2 reader for text.
fn yaml_1_1_bool(word: &str) -> Option<bool> {
    match word {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}
