//! JSON trees addressed by dotted paths, and how a later layer of configuration goes over an earlier one.

use serde_json::{Map, Value};

use crate::definition::{Kind, Section};

/// Lays `patch` over `base` by the rules of JSON merge patch (RFC 7386): objects merge, `null` removes, the rest replaces.
pub(crate) fn merge(base: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (key, value) in patch {
        match value {
            Value::Null => {
                base.remove(&key);
            }
            Value::Object(patch) => {
                let inner = base.entry(key).or_insert_with(|| Value::Object(Map::new()));
                if !inner.is_object() {
                    *inner = Value::Object(Map::new());
                }
                if let Value::Object(inner) = inner {
                    merge(inner, patch);
                }
            }
            value => {
                base.insert(key, value);
            }
        }
    }
}

/// The value at a dotted path.
pub(crate) fn get<'a>(values: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    match path.split_once('.') {
        None => values.get(path),
        Some((first, rest)) => get(values.get(first)?.as_object()?, rest),
    }
}

/// Puts a value at a dotted path, making objects on the way.
pub(crate) fn set(values: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            values.insert(path.to_owned(), value);
        }
        Some((first, rest)) => {
            let inner = values.entry(first).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                set(inner, rest, value);
            }
        }
    }
}

/// Takes away what upstream's defaulting treats as unset: `null`, and zero where zero is no value of its own.
///
/// Empty lists and maps stay: `enforceNodeAllocatable: []` and `evictionHard: {}` mean "none".
pub(crate) fn drop_unset(values: &mut Map<String, Value>, sections: &'static [Section]) {
    for definition in sections.iter().flat_map(|section| section.definitions) {
        match (definition.kind, values.get_mut(definition.name)) {
            (_, None) => {}
            (Kind::Object(inner), Some(Value::Object(object))) => drop_unset(object, inner),
            (_, Some(value)) => {
                let unset = value.is_null() || (!definition.zero_counts && is_zero(definition.kind, value));
                if unset {
                    values.remove(definition.name);
                } else if let Value::Object(object) = value {
                    object.retain(|_, value| !value.is_null());
                }
            }
        }
    }
}

fn is_zero(kind: Kind, value: &Value) -> bool {
    match kind {
        Kind::Text => value == "",
        Kind::Int32 | Kind::Int64 | Kind::Uint32 => value == 0,
        // Durations are kept in the form that Go prints.
        Kind::Duration | Kind::DurationOrNanoseconds => value == "0s",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merge_patch() {
        // Rows of RFC 7386, appendix A, as far as they are about objects.
        for (base, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": "foo"}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            let (Value::Object(mut merged), Value::Object(patch)) = (base, patch) else { unreachable!() };
            merge(&mut merged, patch);
            assert_eq!(Value::Object(merged), result);
        }
    }

    #[test]
    fn paths() {
        let mut values = Map::new();
        set(&mut values, "a.b.c", json!(1));
        set(&mut values, "a.d", json!(2));
        assert_eq!(get(&values, "a.b.c"), Some(&json!(1)));
        assert_eq!(get(&values, "a.d"), Some(&json!(2)));
        assert_eq!(get(&values, "a.x.c"), None);
    }
}
