//! Pods in protobuf, as the Kubernetes API encodes core/v1.
//!
//! From the JSON form to the wire by a table of names, numbers and kinds. A field that the table does not know is left
//! out; the tests hold the table against everything a pod can have.

mod mask;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use prost::encoding::{WireType, encode_key, encode_varint};
use serde_json::{Map, Value};

pub use mask::{Mask, MaskError};

mod table {
    use super::{Field, Kind, Message};

    include!(concat!(env!("OUT_DIR"), "/pod_fields.rs"));
}

/// A message that is an object in JSON.
#[derive(Debug)]
struct Message {
    name: &'static str,
    fields: &'static [Field],
}

#[derive(Debug)]
struct Field {
    name: &'static str,
    number: u32,
    repeated: bool,
    /// JSON has the message's fields in its place.
    inline: bool,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    String,
    Bool,
    Int,
    Message(&'static Message),
    /// From strings to this.
    Map(&'static Self),
    /// RFC 3339 in JSON.
    Time,
    /// A string in JSON.
    Quantity,
    IntOrString,
    /// Any JSON.
    FieldsV1,
}

/// The protobuf of a pod that is given as JSON (an object with `metadata`, `spec` and `status`): all of it, or what the mask
/// lets through.
#[must_use]
pub fn encode_pod(pod: &Value, mask: Option<&Mask>) -> Vec<u8> {
    let mut out = Vec::new();
    if let Value::Object(fields) = pod {
        message(&mut out, &table::POD, fields, mask);
    }
    out
}

fn message(out: &mut Vec<u8>, of: &Message, object: &Map<String, Value>, mask: Option<&Mask>) {
    for field in of.fields {
        if field.inline {
            if let Kind::Message(inner) = field.kind {
                let start = out.len();
                message(out, inner, object, mask);
                // Nothing of it, so not it either.
                if out.len() > start {
                    delimit(out, start, field.number);
                }
            }
            continue;
        }
        let inner = match mask.map(|mask| mask.below(field.name)) {
            None => None,
            Some(None) => continue,
            Some(Some(inner)) => inner,
        };
        let Some(value) = object.get(field.name) else { continue };
        match (&field.kind, value) {
            (_, Value::Null) => {}
            (Kind::Map(kind), Value::Object(entries)) => {
                for (key, value) in entries {
                    let start = out.len();
                    one(out, 1, &Kind::String, &Value::String(key.clone()), None);
                    one(out, 2, kind, value, None);
                    delimit(out, start, field.number);
                }
            }
            (kind, Value::Array(items)) if field.repeated => {
                for item in items {
                    one(out, field.number, kind, item, inner);
                }
            }
            (kind, value) => one(out, field.number, kind, value, inner),
        }
    }
}

/// One value with its number. What cannot be (a number where a string belongs) is left out.
fn one(out: &mut Vec<u8>, number: u32, kind: &Kind, value: &Value, mask: Option<&Mask>) {
    match (kind, value) {
        (Kind::String, Value::String(text)) => bytes(out, number, text.as_bytes()),
        (Kind::Bool, Value::Bool(yes)) => int(out, number, i64::from(*yes)),
        (Kind::Int, Value::Number(value)) => int(out, number, value.as_i64().unwrap_or_default()),
        (Kind::Message(of), Value::Object(object)) => {
            let start = out.len();
            message(out, of, object, mask);
            delimit(out, start, number);
        }
        (Kind::Quantity, Value::String(text)) => {
            let start = out.len();
            bytes(out, 1, text.as_bytes());
            delimit(out, start, number);
        }
        (Kind::Time, Value::String(text)) => {
            let Ok(time) = text.parse::<Timestamp>() else { return };
            let start = out.len();
            int(out, 1, time.as_second());
            int(out, 2, i64::from(time.subsec_nanosecond()));
            delimit(out, start, number);
        }
        (Kind::IntOrString, value) => {
            let start = out.len();
            match value {
                Value::String(text) => {
                    int(out, 1, 1);
                    int(out, 2, 0);
                    bytes(out, 3, text.as_bytes());
                }
                value => {
                    int(out, 1, 0);
                    int(out, 2, value.as_i64().unwrap_or_default());
                    bytes(out, 3, b"");
                }
            }
            delimit(out, start, number);
        }
        (Kind::FieldsV1, value) => {
            let start = out.len();
            bytes(out, 1, value.to_string().as_bytes());
            delimit(out, start, number);
        }
        _ => {}
    }
}

fn int(out: &mut Vec<u8>, number: u32, value: i64) {
    encode_key(number, WireType::Varint, out);
    encode_varint(value.cast_unsigned(), out);
}

fn bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Puts number and length in front of what was written since `start`.
fn delimit(out: &mut Vec<u8>, start: usize, number: u32) {
    // A key of at most five bytes and a length of at most ten.
    let mut head = Vec::with_capacity(15);
    encode_key(number, WireType::LengthDelimited, &mut head);
    encode_varint((out.len() - start) as u64, &mut head);
    out.splice(start..start, head);
}
