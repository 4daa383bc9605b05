//! The table against upstream's bytes, and against everything that a pod can have.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use prost::encoding::{WireType, decode_key, decode_varint};
use serde_json::{Map, Value, json};

use super::{Field, Kind, Mask, Message, encode_pod, table};

/// The way back, by the same table; panics at what the table does not know.
fn decode(of: &Message, mut bytes: &[u8], object: &mut Map<String, Value>) {
    while !bytes.is_empty() {
        let (number, wire) = decode_key(&mut bytes).unwrap();
        let field = of.fields.iter().find(|field| field.number == number);
        let field = field.unwrap_or_else(|| panic!("{} has no field {number}", of.name));
        let value = if wire == WireType::Varint {
            Raw::Int(decode_varint(&mut bytes).unwrap().cast_signed())
        } else {
            assert_eq!(wire, WireType::LengthDelimited, "{}.{}", of.name, field.name);
            let length = usize::try_from(decode_varint(&mut bytes).unwrap()).unwrap();
            let (value, rest) = bytes.split_at(length);
            bytes = rest;
            Raw::Bytes(value)
        };
        put(field, value, object);
    }
}

#[derive(Clone, Copy)]
enum Raw<'a> {
    Int(i64),
    Bytes(&'a [u8]),
}

fn put(field: &Field, raw: Raw<'_>, object: &mut Map<String, Value>) {
    match (&field.kind, raw) {
        (Kind::Message(inner), Raw::Bytes(bytes)) if field.inline => decode(inner, bytes, object),
        (Kind::Map(kind), Raw::Bytes(mut bytes)) => {
            let (mut key, mut value) = (String::new(), Value::Null);
            while !bytes.is_empty() {
                let (number, _) = decode_key(&mut bytes).unwrap();
                let length = usize::try_from(decode_varint(&mut bytes).unwrap()).unwrap();
                let (part, rest) = bytes.split_at(length);
                bytes = rest;
                match number {
                    1 => key = text(part),
                    _ => value = read(kind, Raw::Bytes(part)),
                }
            }
            let map = object.entry(field.name).or_insert_with(|| json!({}));
            map.as_object_mut().unwrap().insert(key, value);
        }
        (kind, raw) if field.repeated => {
            let list = object.entry(field.name).or_insert_with(|| json!([]));
            list.as_array_mut().unwrap().push(read(kind, raw));
        }
        (kind, raw) => {
            object.insert(field.name.to_owned(), read(kind, raw));
        }
    }
}

fn read(kind: &Kind, raw: Raw<'_>) -> Value {
    match (kind, raw) {
        (Kind::String, Raw::Bytes(bytes)) => text(bytes).into(),
        (Kind::Bool, Raw::Int(value)) => (value != 0).into(),
        (Kind::Int, Raw::Int(value)) => value.into(),
        (Kind::Message(of), Raw::Bytes(bytes)) => {
            let mut object = Map::new();
            decode(of, bytes, &mut object);
            object.into()
        }
        (Kind::Quantity, Raw::Bytes(bytes)) => text(parts(bytes)[0].1.bytes()).into(),
        (Kind::FieldsV1, Raw::Bytes(bytes)) => serde_json::from_slice(parts(bytes)[0].1.bytes()).unwrap(),
        (Kind::Time, Raw::Bytes(bytes)) => {
            let second = parts(bytes).first().map_or(0, |(_, raw)| raw.int());
            if bytes.is_empty() {
                Value::Null
            } else {
                Timestamp::from_second(second).unwrap().to_string().into()
            }
        }
        (Kind::IntOrString, Raw::Bytes(bytes)) => {
            let parts = parts(bytes);
            let of = |number| parts.iter().find(|(it, _)| *it == number).unwrap().1;
            if of(1).int() == 1 { text(of(3).bytes()).into() } else { of(2).int().into() }
        }
        _ => panic!("{kind:?} of another wire type"),
    }
}

impl<'a> Raw<'a> {
    fn int(self) -> i64 {
        let Self::Int(value) = self else { panic!("bytes") };
        value
    }

    fn bytes(self) -> &'a [u8] {
        let Self::Bytes(value) = self else { panic!("a number") };
        value
    }
}

fn parts(mut bytes: &[u8]) -> Vec<(u32, Raw<'_>)> {
    let mut parts = Vec::new();
    while !bytes.is_empty() {
        let (number, wire) = decode_key(&mut bytes).unwrap();
        if wire == WireType::Varint {
            parts.push((number, Raw::Int(decode_varint(&mut bytes).unwrap().cast_signed())));
        } else {
            let length = usize::try_from(decode_varint(&mut bytes).unwrap()).unwrap();
            let (value, rest) = bytes.split_at(length);
            bytes = rest;
            parts.push((number, Raw::Bytes(value)));
        }
    }
    parts
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn decoded(bytes: &[u8]) -> Value {
    let mut object = Map::new();
    decode(&table::POD, bytes, &mut object);
    object.into()
}

/// Upstream writes fields that are not pointers in Go also where they say nothing; JSON and we leave them out.
fn without_nothing(value: &Value) -> Value {
    let nothing = |value: &Value| match value {
        Value::Null => true,
        Value::Bool(yes) => !yes,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    };
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().map(|(key, value)| (key.clone(), without_nothing(value)));
            kept.filter(|(_, value)| !nothing(value)).collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(without_nothing).collect(),
        other => other.clone(),
    }
}

#[test]
fn upstreams_bytes_say_what_its_json_says() {
    let list: Value = serde_json::from_str(include_str!("../../testdata/pods.json")).unwrap();
    let encoded = BASE64_STANDARD.decode(include_str!("../../testdata/pods.b64").trim()).unwrap();
    let theirs: Vec<&[u8]> = parts(&encoded).into_iter().map(|(_, raw)| raw.bytes()).collect();
    let items = list["items"].as_array().unwrap();
    assert_eq!(items.len(), theirs.len());
    for bytes in theirs {
        let theirs = decoded(bytes);
        let same = items.iter().find(|pod| pod["metadata"]["uid"] == theirs["metadata"]["uid"]).unwrap();
        assert_eq!(without_nothing(&theirs), without_nothing(same));
        let ours = decoded(&encode_pod(same, None));
        assert_eq!(without_nothing(&ours), without_nothing(&theirs));
    }
}

/// One of everything below a message, with values that can be told apart.
fn everything(of: &Message, path: &str) -> Value {
    let mut object = Map::new();
    for field in of.fields {
        let path = format!("{path}.{}", field.name);
        let value = |kind: &Kind| match kind {
            Kind::String => json!(path),
            Kind::Bool => json!(true),
            Kind::Int => json!(-7),
            Kind::Message(inner) => everything(inner, &path),
            Kind::Map(Kind::String) => json!({"a": path, "b": ""}),
            Kind::Map(_) => json!({"cpu": "250m"}),
            Kind::Time => json!("2026-11-15T09:58:42Z"),
            Kind::Quantity => json!("1500m"),
            Kind::IntOrString => json!("http"),
            Kind::FieldsV1 => json!({"f:metadata": {"f:labels": {".": {}}}}),
        };
        if field.inline {
            let Value::Object(inner) = value(&field.kind) else { panic!("{path} is no message") };
            object.extend(inner);
        } else if field.repeated {
            object.insert(field.name.to_owned(), json!([value(&field.kind), value(&field.kind)]));
        } else {
            object.insert(field.name.to_owned(), value(&field.kind));
        }
    }
    object.into()
}

#[test]
fn everything_that_a_pod_can_have_survives() {
    let pod = everything(&table::POD, "pod");
    assert_eq!(decoded(&encode_pod(&pod, None)), pod);
    // Nothing of it is unknown to the typed API of the same release, so the names are JSON's; and nothing is unknown to us.
    let typed: Pod = serde_json::from_value(pod.clone()).unwrap();
    let mut again = serde_json::to_value(&typed).unwrap();
    let fields = again.as_object_mut().unwrap();
    fields.retain(|name, _| !matches!(name.as_str(), "apiVersion" | "kind"));
    assert_eq!(again, pod);
}

#[test]
fn numbers_and_names_of_ports() {
    for port in [json!(8080), json!("http"), json!(0), json!("")] {
        let probe = json!({"spec": {"containers": [{"livenessProbe": {"httpGet": {"port": port}}}]}});
        assert_eq!(decoded(&encode_pod(&probe, None)), probe);
    }
}

#[test]
fn a_mask_lets_through_what_it_names() {
    let pod = json!({
        "metadata": {"name": "web", "uid": "u", "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}, {"name": "d"}], "volumes": [{"name": "v", "emptyDir": {}}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    let masked = |mask: &str| decoded(&encode_pod(&pod, Some(&Mask::parse(mask).unwrap())));
    assert_eq!(masked("metadata.name"), json!({"metadata": {"name": "web"}}));
    assert_eq!(
        masked("metadata.uid, metadata.labels,spec.containers.name,status.phase"),
        json!({
            "metadata": {"uid": "u", "labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c"}, {"name": "d"}]},
            "status": {"phase": "Running"},
        })
    );
    assert_eq!(masked("spec.volumes.emptyDir"), json!({"spec": {"volumes": [{"emptyDir": {}}]}}));
    assert_eq!(masked("metadata,metadata.name")["metadata"], pod["metadata"], "the whole wins");
    assert_eq!(masked("metadata.name,metadata")["metadata"], pod["metadata"], "in either order");
    assert_eq!(masked("metadata,spec,status"), pod);
}

#[test]
fn a_bad_mask_says_why() {
    for (mask, expected) in [
        ("metadata.nmae", r#"field mask: "metadata.nmae" is not a field of a pod: ObjectMeta has no "nmae""#),
        ("kind", r#"field mask: "kind" is not a field of a pod: Pod has no "kind""#),
        ("", "field mask: an empty path; separate paths by single commas"),
        ("spec,", "field mask: an empty path; separate paths by single commas"),
        (
            "metadata.labels.app",
            r#"field mask: "metadata.labels.app" goes on below "labels", which has no fields of its own; ask for the whole of it"#,
        ),
        ("metadata..name", r#"field mask: "metadata..name" is not a field of a pod: ObjectMeta has no """#),
        (
            "spec.volumes.volumeSource",
            r#"field mask: "spec.volumes.volumeSource" is not a field of a pod: Volume has no "volumeSource""#,
        ),
    ] {
        assert_eq!(Mask::parse(mask).unwrap_err().to_string(), expected);
    }
    assert!(Mask::parse(&vec!["spec"; 65].join(",")).is_err());
}

proptest! {
    #[test]
    fn no_mask_panics(text in "[a-z.,A-Z]{0,60}") {
        drop(Mask::parse(&text));
    }

    #[test]
    fn no_json_panics(text in r#"\{"(metadata|spec|status)":(null|1|"x"|\[\]|\[1\]|\{"(containers|labels|phase)":(1|"x"|\[\{"ports":7\}\]|\{"a":1\})\})\}"#) {
        drop(encode_pod(&serde_json::from_str(&text).unwrap(), None));
    }
}
