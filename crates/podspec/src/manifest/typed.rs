//! Plain values to API types, with the path of whatever does not fit and of whatever nobody knows.

use std::{cell::RefCell, fmt};

use mainstay_types::edit_distance;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde_json::Value;

use crate::validate::Problem;

/// So many wrong types are reported; the rest would be noise.
const MAX_TYPE_PROBLEMS: usize = 20;

/// What is said about a value that must not be shown. The usual mistake is to write it as it is.
const SECRET_VALUE: &str =
    "Invalid value: it cannot be read; a Secret's data is base64: encode it, or write it under stringData";

/// A value as an API type, as far as it could be read.
#[derive(Debug)]
pub(super) struct Typed<T> {
    /// The object without the fields that have a wrong type.
    pub(super) object: Option<T>,
    /// The wrong types.
    pub(super) problems: Vec<Problem>,
    /// Fields that do not exist, with the nearest one that does.
    pub(super) unknown: Vec<String>,
}

/// Reads a value as `T`. With `secret`, no message contains a value.
pub(super) fn read<T: DeserializeOwned>(value: &Value, secret: bool) -> Typed<T> {
    let mut problems = Vec::<Problem>::new();
    // Cloned only when something has to be taken out.
    let mut reduced: Option<Value> = None;
    loop {
        let notes = Notes { unknown: RefCell::default(), secret };
        let input = reduced.as_ref().unwrap_or(value);
        let outcome = T::deserialize(Node { value: input, path: Path::Root, notes: &notes });
        let unknown = notes.unknown.into_inner();
        let error = match outcome {
            Ok(object) => return Typed { object: Some(object), problems, unknown },
            Err(error) => error,
        };
        let steps = error.steps.unwrap_or_default();
        let field = render(&steps);
        problems.push(Problem::new(field, error.message));
        let mut next = reduced.take().unwrap_or_else(|| value.clone());
        if problems.len() >= MAX_TYPE_PROBLEMS || !take_out(&mut next, &steps) {
            return Typed { object: None, problems, unknown };
        }
        reduced = Some(next);
    }
}

/// Removes the innermost named field on the way to `steps`, so that the rest can be looked at as well.
fn take_out(value: &mut Value, steps: &[Step]) -> bool {
    let Some(last) = steps.iter().rposition(|step| matches!(step, Step::Key(_))) else { return false };
    let (way, Some(Step::Key(key))) = (steps.get(..last).unwrap_or_default(), steps.get(last)) else {
        return false;
    };
    let mut place = value;
    for step in way {
        let next = match step {
            Step::Key(key) => place.get_mut(key),
            Step::Index(index) => place.get_mut(index),
        };
        let Some(next) = next else { return false };
        place = next;
    }
    place.as_object_mut().and_then(|map| map.shift_remove(key)).is_some()
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

fn render(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        match step {
            Step::Key(key) if text.is_empty() => text.push_str(key),
            Step::Key(key) if key.contains(['.', '/']) => text.push_str(&format!("[{key}]")),
            Step::Key(key) => text.push_str(&format!(".{key}")),
            Step::Index(index) => text.push_str(&format!("[{index}]")),
        }
    }
    text
}

#[derive(Clone, Copy)]
enum Path<'a> {
    Root,
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl Path<'_> {
    fn steps(&self) -> Vec<Step> {
        let (mut steps, mut place) = (Vec::new(), self);
        loop {
            place = match place {
                Path::Root => break,
                Path::Key(parent, key) => {
                    steps.push(Step::Key((*key).to_owned()));
                    parent
                }
                Path::Index(parent, index) => {
                    steps.push(Step::Index(*index));
                    parent
                }
            };
        }
        steps.reverse();
        steps
    }
}

struct Notes {
    unknown: RefCell<Vec<String>>,
    secret: bool,
}

/// Why a value is not of its type. The path is filled in by the innermost node that sees it.
#[derive(Debug)]
struct TypeError {
    steps: Option<Vec<Step>>,
    message: String,
    /// The message without anything of the value.
    discreet: String,
}

impl std::error::Error for TypeError {}

impl fmt::Display for TypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl de::Error for TypeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { steps: None, message: format!("Invalid value: {message}"), discreet: SECRET_VALUE.into() }
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let expected = plain_words(&expected.to_string());
        let advice = match (&unexpected, expected.as_str()) {
            (
                Unexpected::Bool(_) | Unexpected::Unsigned(_) | Unexpected::Signed(_) | Unexpected::Float(_),
                "a string",
            ) => "; put it in quotes",
            (Unexpected::Str(text), "a whole number") if text.parse::<i64>().is_ok() => {
                "; write it without quotes"
            }
            (Unexpected::Str("true" | "false"), "true or false") => "; write it without quotes",
            (Unexpected::Map, "a list") => "; begin each entry with '- '",
            _ => "",
        };
        let shown = match unexpected {
            Unexpected::Bool(value) => value.to_string(),
            Unexpected::Unsigned(value) => value.to_string(),
            Unexpected::Signed(value) => value.to_string(),
            Unexpected::Float(value) => value.to_string(),
            Unexpected::Str(text) => format!("{:?}", shortened(text)),
            Unexpected::Seq => "a list".into(),
            Unexpected::Map => "a mapping".into(),
            Unexpected::Unit => "null".into(),
            other => other.to_string(),
        };
        Self {
            steps: None,
            message: format!("Invalid value: {shown}: must be {expected}{advice}"),
            discreet: format!("Invalid value: must be {expected}{advice}"),
        }
    }

    fn invalid_value(unexpected: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let expected = plain_words(&expected.to_string());
        Self {
            steps: None,
            message: format!("Invalid value: {unexpected}: must be {expected}"),
            discreet: format!("Invalid value: must be {expected}"),
        }
    }
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= 64 { text.to_owned() } else { text.chars().take(64).chain(['…']).collect() }
}

/// The deserializer's words for types, in the reader's.
fn plain_words(expected: &str) -> String {
    match expected {
        "i8" | "i16" | "i32" | "i64" | "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number".into(),
        "f32" | "f64" => "a number".into(),
        "a boolean" => "true or false".into(),
        "a sequence" => "a list".into(),
        "a map" => "a mapping".into(),
        other if other.starts_with(|c: char| c.is_ascii_uppercase()) && !other.contains(' ') => {
            format!("a mapping with the fields of {other}")
        }
        other => other.to_owned(),
    }
}

#[derive(Clone, Copy)]
struct Node<'a> {
    value: &'a Value,
    path: Path<'a>,
    notes: &'a Notes,
}

impl<'a> Node<'a> {
    fn placed<T>(&self, outcome: Result<T, TypeError>) -> Result<T, TypeError> {
        outcome.map_err(|mut error| {
            if error.steps.is_none() {
                error.steps = Some(self.path.steps());
                if self.notes.secret {
                    error.message.clone_from(&error.discreet);
                }
            }
            error
        })
    }

    fn any<'de, V: Visitor<'de>>(
        self,
        visitor: V,
        fields: Option<&'static [&'static str]>,
    ) -> Result<V::Value, TypeError> {
        let outcome = match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(number) => {
                if let Some(value) = number.as_u64() {
                    visitor.visit_u64(value)
                } else if let Some(value) = number.as_i64() {
                    visitor.visit_i64(value)
                } else {
                    visitor.visit_f64(number.as_f64().unwrap_or_default())
                }
            }
            Value::String(text) => visitor.visit_str(text),
            Value::Array(items) => visitor.visit_seq(Items { items: items.iter().enumerate(), node: &self }),
            Value::Object(map) => {
                visitor.visit_map(Fields { entries: map.iter(), value: None, node: &self, fields })
            }
        };
        self.placed(outcome)
    }
}

impl<'de> Deserializer<'de> for Node<'_> {
    type Error = TypeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        self.any(visitor, None)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        let outcome = if self.value.is_null() { visitor.visit_none() } else { visitor.visit_some(self) };
        self.placed(outcome)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, TypeError> {
        let outcome = visitor.visit_newtype_struct(self);
        self.placed(outcome)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TypeError> {
        self.any(visitor, Some(fields))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map enum identifier
    }
}

struct Items<'a> {
    items: std::iter::Enumerate<std::slice::Iter<'a, Value>>,
    node: &'a Node<'a>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = TypeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, TypeError> {
        let Some((index, value)) = self.items.next() else { return Ok(None) };
        let node = Node { value, path: Path::Index(&self.node.path, index), notes: self.node.notes };
        node.placed(seed.deserialize(node)).map(Some)
    }
}

struct Fields<'a> {
    entries: serde_json::map::Iter<'a>,
    value: Option<(&'a str, &'a Value)>,
    node: &'a Node<'a>,
    /// The names a struct has; a map has any.
    fields: Option<&'static [&'static str]>,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = TypeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, TypeError> {
        let Some((key, value)) = self.entries.next() else { return Ok(None) };
        self.value = Some((key, value));
        if let Some(fields) = self.fields
            && !fields.contains(&key.as_str())
            && !value.is_null()
        {
            let mut steps = self.node.path.steps();
            steps.push(Step::Key(key.clone()));
            let advice = match nearest(key, fields) {
                Some(known) => format!("did you mean {known}?"),
                None => "is it at the right depth?".to_owned(),
            };
            self.node
                .notes
                .unknown
                .borrow_mut()
                .push(format!("{}: unknown field, ignored; {advice}", render(&steps)));
        }
        seed.deserialize(key.as_str().into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, TypeError> {
        let Some((key, value)) = self.value.take() else {
            return Err(de::Error::custom("a field without a value"));
        };
        let node = Node { value, path: Path::Key(&self.node.path, key), notes: self.node.notes };
        node.placed(seed.deserialize(node))
    }
}

/// The known name that is most like `name`, if one is like it at all.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let lower = |text: &str| text.to_lowercase().chars().collect::<Vec<_>>();
    let wanted = lower(name);
    known
        .iter()
        .map(|candidate| (edit_distance(&wanted, &lower(candidate), candidate.len() / 3), *candidate))
        .filter(|(edits, candidate)| *edits <= candidate.len() / 3)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}
