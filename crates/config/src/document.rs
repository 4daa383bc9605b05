//! YAML and JSON as a tree that keeps what maps would hide: duplicate keys.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, EnumAccess, MapAccess, SeqAccess, Visitor};

use crate::problem::Problem;

/// A value of a document, with every key as often as it was written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node {
    Null,
    Bool(bool),
    Int(i64),
    /// A whole number above the range of `Int`.
    Large(u64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    /// What it is, for messages; never its content, which may be secret.
    pub(crate) fn words(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "true or false",
            Self::Int(_) | Self::Large(_) => "a whole number",
            Self::Float(_) => "a number with a fraction",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Map(_) => "an object",
        }
    }
}

/// Reads the only document in `text`, JSON or YAML.
///
/// An empty file, a second document and everything that is not an object are errors.
pub(crate) fn parse(text: &str) -> Result<Vec<(String, Node)>, Problem> {
    // Most JSON is YAML, but not all of it (tabs, for one): it gets its own reader, and YAML's words if that fails.
    if text.trim_start().starts_with('{')
        && let Ok(Node::Map(entries)) = serde_json::from_str(text)
    {
        return Ok(entries);
    }
    let mut found = None;
    for document in serde_yaml_ng::Deserializer::from_str(text) {
        let node = Node::deserialize(document).map_err(|error| {
            Problem::new(
                "",
                format!("cannot be read as YAML or JSON: {error}"),
                "mend the syntax at that place",
            )
        })?;
        match (node, &found) {
            (Node::Null, _) => {}
            (node, None) => found = Some(node),
            (_, Some(_)) => {
                return Err(Problem::new(
                    "",
                    "the file has more than one document",
                    "keep one KubeletConfiguration in it and put others into drop-in files (--config-dir)",
                ));
            }
        }
    }
    match found {
        Some(Node::Map(entries)) => Ok(entries),
        None => Err(Problem::new("", "the file is empty", "write at least apiVersion and kind")),
        Some(other) => Err(Problem::new(
            "",
            format!("the file holds {}, not an object", other.words()),
            "write fields as \"name: value\"",
        )),
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(i64::try_from(value).map_or(Node::Large(value), Node::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = map.next_entry::<Node, Node>()? {
            // Go's YAML reader turns scalar keys into text as well.
            let key = match key {
                Node::Text(key) => key,
                Node::Bool(key) => key.to_string(),
                Node::Int(key) => key.to_string(),
                Node::Large(key) => key.to_string(),
                Node::Float(key) => key.to_string(),
                Node::Null => "null".to_owned(),
                Node::List(_) | Node::Map(_) => {
                    return Err(serde::de::Error::custom("a key must be a single word"));
                }
            };
            entries.push((key, value));
        }
        Ok(Node::Map(entries))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, _: A) -> Result<Node, A::Error> {
        Err(serde::de::Error::custom("YAML tags (words with '!') have no meaning here"))
    }
}
