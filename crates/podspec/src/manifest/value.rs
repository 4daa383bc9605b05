//! Bytes to plain values: YAML or JSON, one or several documents, with every limit enforced while reading.
//!
//! Scalars are resolved as upstream's YAML library does (YAML 1.1: `0644` is octal, `yes` is a boolean), because a
//! manifest must mean the same to both.

use std::{
    cell::{Cell, RefCell},
    fmt,
};

use serde::de::{self, DeserializeSeed, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::ManifestError;

/// Values in one manifest, aliases expanded. A pod has a few hundred.
const MAX_VALUES: usize = 1_000_000;
/// Text in one manifest, aliases expanded.
const MAX_TEXT_BYTES: usize = 4 * super::MAX_MANIFEST_BYTES;
/// Open brackets at one place. The YAML scanner's time grows with depth times length, so it is not started on more;
/// both readers stop at a nesting of 128 anyway.
const MAX_OPEN_BRACKETS: usize = 1_000;

/// One document and what was odd about it.
#[derive(Debug)]
pub(super) struct RawDocument {
    pub(super) value: Value,
    pub(super) warnings: Vec<String>,
}

/// Reads all documents. Empty ones are left out.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<RawDocument>, ManifestError> {
    if bytes.len() > super::MAX_MANIFEST_BYTES {
        return Err(ManifestError::TooLarge { limit: super::MAX_MANIFEST_BYTES });
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let reader = Reader::new(bytes);
    let looks_like_json =
        bytes.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|b| b"{[".contains(b));
    if looks_like_json {
        match reader.json() {
            Ok(documents) => return Ok(documents),
            Err(_) if reader.too_much.get() => return Err(reader.too_much_error()),
            // It may be YAML in braces; if that fails as well, the YAML reader's word counts.
            Err(_) => {}
        }
    }
    let reader = Reader::new(bytes);
    reader.yaml()
}

struct Reader<'a> {
    input: &'a [u8],
    values: Cell<usize>,
    text_bytes: Cell<usize>,
    too_much: Cell<bool>,
    path: RefCell<Vec<Step>>,
    warnings: RefCell<Vec<String>>,
}

enum Step {
    Key(String),
    Index(usize),
}

impl<'a> Reader<'a> {
    fn new(input: &'a [u8]) -> Self {
        Self {
            input,
            values: Cell::new(0),
            text_bytes: Cell::new(0),
            too_much: Cell::new(false),
            path: RefCell::default(),
            warnings: RefCell::default(),
        }
    }

    fn json(&self) -> Result<Vec<RawDocument>, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_slice(self.input);
        let mut documents = Vec::new();
        while deserializer.end().is_err() {
            let value = Node { reader: self, yaml: false }.deserialize(&mut deserializer)?;
            self.keep(&mut documents, value);
        }
        Ok(documents)
    }

    fn yaml(&self) -> Result<Vec<RawDocument>, ManifestError> {
        if open_brackets(self.input) > MAX_OPEN_BRACKETS {
            return Err(ManifestError::TooDeep { limit: MAX_OPEN_BRACKETS });
        }
        let mut documents = Vec::new();
        for document in serde_yaml_ng::Deserializer::from_slice(self.input) {
            match (Node { reader: self, yaml: true }).deserialize(document) {
                Ok(value) => self.keep(&mut documents, value),
                Err(_) if self.too_much.get() => return Err(self.too_much_error()),
                // An input without any document (only comments, or nothing) is an error to this reader, not to us.
                Err(_) if documents.is_empty() && is_blank(self.input) => break,
                Err(error) => {
                    let location = error.location().map(|at| (at.line(), at.column()));
                    return Err(ManifestError::Syntax { location, message: error.to_string() });
                }
            }
        }
        Ok(documents)
    }

    fn keep(&self, documents: &mut Vec<RawDocument>, value: Value) {
        self.path.borrow_mut().clear();
        let warnings = std::mem::take(&mut *self.warnings.borrow_mut());
        if !value.is_null() {
            documents.push(RawDocument { value, warnings });
        }
    }

    fn too_much_error(&self) -> ManifestError {
        ManifestError::TooManyValues { limit: MAX_VALUES }
    }

    /// Counts one value, and its text if it has some.
    fn count<E: de::Error>(&self, text_bytes: usize) -> Result<(), E> {
        self.values.set(self.values.get() + 1);
        self.text_bytes.set(self.text_bytes.get().saturating_add(text_bytes));
        if self.values.get() > MAX_VALUES || self.text_bytes.get() > MAX_TEXT_BYTES {
            self.too_much.set(true);
            return Err(E::custom("the manifest is too large when its aliases are expanded"));
        }
        Ok(())
    }

    /// Whether a piece of the input was written without quotes and without the tag `!!str`.
    fn is_plain(&self, text: &str) -> bool {
        let start = (text.as_ptr() as usize).wrapping_sub(self.input.as_ptr() as usize);
        let Some(before) = self.input.get(..start) else { return false };
        let before = match before.last() {
            Some(b'"' | b'\'') => return false,
            _ => before.trim_ascii_end(),
        };
        !before.ends_with(b"!!str")
    }

    fn warn_duplicate(&self, key: &str) {
        let mut path = String::new();
        for step in self.path.borrow().iter() {
            match step {
                Step::Key(key) if path.is_empty() => path.push_str(key),
                Step::Key(key) => path.push_str(&format!(".{key}")),
                Step::Index(index) => path.push_str(&format!("[{index}]")),
            }
        }
        let place = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        self.warnings
            .borrow_mut()
            .push(format!("{place}: given twice; the last one counts, remove the other"));
    }
}

#[derive(Clone, Copy)]
struct Node<'r, 'a> {
    reader: &'r Reader<'a>,
    yaml: bool,
}

impl<'de> DeserializeSeed<'de> for Node<'_, '_> {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        self.reader.count(0)?;
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        self.reader.count(0)?;
        Ok(value.into())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        self.reader.count(0)?;
        Ok(value.into())
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<Value, E> {
        Err(E::custom(format_args!("the number {value} is too large")))
    }

    fn visit_u128<E: de::Error>(self, value: u128) -> Result<Value, E> {
        Err(E::custom(format_args!("the number {value} is too large")))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        self.reader.count(0)?;
        float(value)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Value, E> {
        self.reader.count(text.len())?;
        Ok(Value::String(text.to_owned()))
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Value, E> {
        self.reader.count(text.len())?;
        if self.yaml && self.reader.is_plain(text) {
            return resolve_plain(text).unwrap_or_else(|| Ok(Value::String(text.to_owned())));
        }
        Ok(Value::String(text.to_owned()))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        self.reader.count(0)?;
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        self.reader.count(0)?;
        let mut items = Vec::new();
        loop {
            self.reader.path.borrow_mut().push(Step::Index(items.len()));
            let item = access.next_element_seed(self)?;
            self.reader.path.borrow_mut().pop();
            match item {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        self.reader.count(0)?;
        let mut map = Map::new();
        let mut merged = Vec::new();
        while let Some(key) = access.next_key::<String>()? {
            self.reader.count(key.len())?;
            self.reader.path.borrow_mut().push(Step::Key(key.clone()));
            let value = access.next_value_seed(self)?;
            self.reader.path.borrow_mut().pop();
            if self.yaml && key == "<<" {
                match value {
                    Value::Object(other) => merged.push(other),
                    Value::Array(others) => {
                        merged.extend(others.into_iter().filter_map(|other| match other {
                            Value::Object(other) => Some(other),
                            _ => None,
                        }))
                    }
                    _ => return Err(de::Error::custom("<<: only mappings can be merged")),
                }
                continue;
            }
            if map.contains_key(&key) {
                self.reader.warn_duplicate(&key);
            }
            map.insert(key, value);
        }
        // What is written out wins over what is merged, and the first of several merged mappings over the next.
        for (key, value) in merged.into_iter().flatten() {
            if !map.contains_key(&key) {
                map.insert(key, value);
            }
        }
        Ok(Value::Object(map))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<Value, A::Error> {
        // A tag of somebody's own (`!foo bar`) says nothing to us; the value does.
        let (_, variant) = access.variant::<de::IgnoredAny>()?;
        variant.newtype_variant_seed(self)
    }
}

fn float<E: de::Error>(value: f64) -> Result<Value, E> {
    let number = Number::from_f64(value).ok_or_else(|| E::custom("infinity and NaN are not allowed"))?;
    Ok(Value::Number(number))
}

/// What an unquoted scalar that is no YAML 1.2 number, boolean or null is in YAML 1.1; `None` for text.
fn resolve_plain<E: de::Error>(text: &str) -> Option<Result<Value, E>> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => return Some(Ok(Value::Bool(true))),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => return Some(Ok(Value::Bool(false))),
        _ => {}
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+') {
        return None;
    }
    let digits = text.replace('_', "");
    let (sign, magnitude) = match digits.as_bytes().first() {
        Some(b'-') => (-1_i64, digits.get(1..)?),
        Some(b'+') => (1, digits.get(1..)?),
        _ => (1, digits.as_str()),
    };
    let (radix, magnitude) = match magnitude.get(..2) {
        Some("0x" | "0X") => (16, magnitude.get(2..)?),
        Some("0o" | "0O") => (8, magnitude.get(2..)?),
        Some("0b" | "0B") => (2, magnitude.get(2..)?),
        Some(two) if two.starts_with('0') => (8, magnitude.get(1..)?),
        _ => (10, magnitude),
    };
    if magnitude.starts_with(['+', '-']) {
        return None;
    }
    if let Ok(number) = i64::from_str_radix(magnitude, radix) {
        return Some(Ok((sign * number).into()));
    }
    let is_decimal = digits.bytes().all(|b| b.is_ascii_digit() || b".eE+-".contains(&b));
    if is_decimal { digits.parse().ok().map(float) } else { None }
}

/// The most brackets that are open at one place, wherever they stand: an upper bound for the nesting.
fn open_brackets(input: &[u8]) -> usize {
    let (mut open, mut most) = (0_usize, 0);
    for byte in input {
        match byte {
            b'[' | b'{' => {
                open += 1;
                most = most.max(open);
            }
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
    }
    most
}

/// Only blank lines, comments and document markers.
fn is_blank(input: &[u8]) -> bool {
    input.split(|byte| *byte == b'\n').all(|line| {
        let line = line.trim_ascii();
        line.is_empty() || line.starts_with(b"#") || line == b"---" || line == b"..."
    })
}
