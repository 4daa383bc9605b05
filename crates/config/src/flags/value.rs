//! From the text of a flag to the value of its option, as pflag and upstream's flag types read it.

use serde_json::{Map, Value, json};

use super::VersionRequest;
use crate::definition::{Definition, FlagStyle, Kind};
use crate::duration::GoDuration;
use crate::names;
use crate::quantity::Quantity;

/// The value that `text` stands for, added to `previous` where the flag may repeat; nothing if it changes nothing.
pub(super) fn convert(
    definition: &Definition,
    previous: Option<&Value>,
    text: &str,
) -> Result<Option<Value>, String> {
    let style = definition.flag.map_or(FlagStyle::Plain, |flag| flag.style);
    let value = match (style, definition.kind) {
        (FlagStyle::Address, _) if text.is_empty() => return Ok(None),
        (FlagStyle::Address, _) => names::parse_ip(text)
            .map(|_| text.into())
            .ok_or_else(|| format!("{text:?} is not a valid IP address"))?,
        (FlagStyle::LessThan, _) => pairs(previous, text.split(','), '<', |value| Ok(value.into()))?,
        (FlagStyle::OnePair, _) => pairs(previous, [text].into_iter(), '=', |value| Ok(value.into()))?,
        (FlagStyle::Colon, _) => headers(previous, text)?,
        (FlagStyle::Labels, _) => labels(previous, text),
        (FlagStyle::Taints, _) => taints(text)?,
        (FlagStyle::ReservedMemory, _) => reserved_memory(previous, text)?,
        (FlagStyle::VModule, _) => vmodule(previous, text)?,
        (FlagStyle::OnlyTrue | FlagStyle::Plain, kind) => plain(kind, previous, text)?,
    };
    Ok(Some(value))
}

fn plain(kind: Kind, previous: Option<&Value>, text: &str) -> Result<Value, String> {
    match kind {
        Kind::Bool => parse_bool(text).map(Value::from),
        Kind::Int32 => parse_int(text, i32::MIN.into(), i32::MAX.into()),
        Kind::Int64 => parse_int(text, i64::MIN, i64::MAX),
        // Only log levels are of this kind, and klog holds them in 31 bits.
        Kind::Uint32 => parse_level(text).map(Value::from),
        Kind::Float => text
            .parse::<f64>()
            .ok()
            .filter(|value| value.is_finite())
            .map(Value::from)
            .ok_or_else(|| "not a number".to_owned()),
        Kind::Text => Ok(text.into()),
        Kind::Duration | Kind::DurationOrNanoseconds => {
            text.parse::<GoDuration>().map(|duration| duration.to_string().into()).map_err(|e| e.to_string())
        }
        Kind::Quantity => text.parse::<Quantity>().map(|_| text.into()).map_err(|e| e.to_string()),
        Kind::TextList => {
            let mut items = previous.and_then(Value::as_array).cloned().unwrap_or_default();
            items.extend(split_csv(text)?.into_iter().map(Value::from));
            Ok(items.into())
        }
        Kind::TextMap => pairs(previous, text.split(','), '=', |value| Ok(value.into())),
        Kind::BoolMap => pairs(previous, text.split(','), '=', |value| parse_bool(value).map(Value::from)),
        Kind::Int32List | Kind::QuantityMap | Kind::Headers | Kind::Object(_) | Kind::ObjectList(_) => {
            Err("this option cannot be set by a flag".to_owned())
        }
    }
}

/// The words that Go's `strconv.ParseBool` knows.
pub(super) fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("write true or false".to_owned()),
    }
}

/// `--version`, which takes a boolean, `raw` or a version.
pub(super) fn parse_version(text: &str) -> Result<Option<VersionRequest>, String> {
    match text {
        "raw" => Ok(Some(VersionRequest::Raw)),
        version if version.starts_with('v') => Ok(Some(VersionRequest::Report(version.to_owned()))),
        other => Ok(parse_bool(other)?.then_some(VersionRequest::Short)),
    }
}

/// A whole number as Go reads it with base 0: `0x`, `0o`, `0b` and `_` between digits are understood.
fn parse_int(text: &str, low: i64, high: i64) -> Result<Value, String> {
    let syntax = || "write a whole number".to_owned();
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, text.get(1..).unwrap_or_default()),
        Some(b'+') => (false, text.get(1..).unwrap_or_default()),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, lower.get(2..)),
        [b'0', b'o', ..] => (8, lower.get(2..)),
        [b'0', b'b', ..] => (2, lower.get(2..)),
        [b'0', _, ..] => (8, lower.get(1..)),
        _ => (10, Some(lower.as_str())),
    };
    let digits = digits.unwrap_or_default();
    // from_str_radix would take a second sign.
    if digits.is_empty()
        || digits.starts_with(['-', '+', '_'])
        || digits.ends_with('_')
        || digits.contains("__")
    {
        return Err(syntax());
    }
    let digits =
        if radix == 10 && digits.contains('_') { return Err(syntax()) } else { digits.replace('_', "") };
    let magnitude = i128::from_str_radix(&digits, radix).map_err(|error| match error.kind() {
        std::num::IntErrorKind::PosOverflow => format!("must be between {low} and {high}"),
        _ => syntax(),
    })?;
    let value = if negative { -magnitude } else { magnitude };
    i64::try_from(value)
        .ok()
        .filter(|value| (low..=high).contains(value))
        .map(Value::from)
        .ok_or_else(|| format!("must be between {low} and {high}"))
}

fn parse_level(text: &str) -> Result<u32, String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse::<u32>()
        .ok()
        .filter(|level| digits && *level <= 0x7fff_ffff)
        .ok_or_else(|| "write a whole number from 0 to 2147483647".to_owned())
}

/// `key=value` parts into a map; empty parts mean nothing, spaces around keys and values neither.
fn pairs<'a>(
    previous: Option<&Value>,
    parts: impl Iterator<Item = &'a str>,
    separator: char,
    convert: impl Fn(&str) -> Result<Value, String>,
) -> Result<Value, String> {
    let mut map = previous.and_then(Value::as_object).cloned().unwrap_or_default();
    for part in parts.filter(|part| !part.is_empty()) {
        let Some((key, value)) = part.split_once(separator) else {
            return Err(format!("malformed pair {part:?}, expect key{separator}value"));
        };
        let (key, value) = (key.trim(), value.trim());
        map.insert(key.to_owned(), convert(value).map_err(|reason| format!("{key}: {reason}"))?);
    }
    Ok(map.into())
}

fn headers(previous: Option<&Value>, text: &str) -> Result<Value, String> {
    let mut map = previous.and_then(Value::as_object).cloned().unwrap_or_default();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        // The part is not quoted back: it may hold a password.
        let (name, value) = part.split_once(':').ok_or("malformed pair, expect name:value")?;
        let values = map.entry(name.trim().to_owned()).or_insert_with(|| json!([]));
        if let Value::Array(values) = values {
            values.push(value.trim().into());
        }
    }
    Ok(map.into())
}

fn labels(previous: Option<&Value>, text: &str) -> Value {
    let mut map = previous.and_then(Value::as_object).cloned().unwrap_or_default();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        map.insert(key.trim().to_owned(), value.trim().into());
    }
    map.into()
}

/// Unlike other lists, taints given again replace those before.
fn taints(text: &str) -> Result<Value, String> {
    let mut taints = Vec::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        // A taint to be removed, in kubectl's grammar; there is nothing to remove here.
        if part.ends_with('-') {
            continue;
        }
        let spec = || format!("invalid taint spec: {part}, expect key=value:effect");
        let (pair, effect) = part.split_once(':').ok_or_else(spec)?;
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if effect.contains(':') || value.contains('=') {
            return Err(spec());
        }
        if let Some(reason) = names::taint_fault(key, value, effect).or((effect.is_empty()).then(spec)) {
            return Err(format!("invalid taint spec: {part}, {reason}"));
        }
        let taint = json!({ "key": key, "value": value, "effect": effect });
        let same = |other: &Value| other["key"] == taint["key"] && other["effect"] == taint["effect"];
        if taints.iter().any(same) {
            return Err(format!("duplicated taints with the same key and effect: {part}"));
        }
        taints.push(taint);
    }
    Ok(taints.into())
}

fn reserved_memory(previous: Option<&Value>, text: &str) -> Result<Value, String> {
    let mut reservations = previous.and_then(Value::as_array).cloned().unwrap_or_default();
    for part in text.split(';').filter(|_| !text.is_empty()) {
        let grammar = || {
            format!(
                "the reserved memory has incorrect format, expected numaNodeID:type=quantity[,type=quantity...], got {part}"
            )
        };
        let (node, limits) = part.split_once(':').ok_or_else(grammar)?;
        let node: i32 = node
            .parse()
            .map_err(|_| format!("failed to convert the NUMA node ID, expected integer, got {node}"))?;
        let mut map = Map::new();
        for limit in limits.split(',') {
            let (resource, quantity) = limit.split_once('=').ok_or_else(grammar)?;
            if !names::is_memory_resource(resource) {
                return Err(format!("memory type conversion error, unknown type: {resource:?}"));
            }
            quantity.parse::<Quantity>().map_err(|error| error.to_string())?;
            map.insert(resource.to_owned(), quantity.into());
        }
        reservations.push(json!({ "numaNode": node, "limits": map }));
    }
    Ok(reservations.into())
}

fn vmodule(previous: Option<&Value>, text: &str) -> Result<Value, String> {
    let mut items = previous.and_then(Value::as_array).cloned().unwrap_or_default();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (pattern, level) = part
            .split_once('=')
            .filter(|(pattern, level)| !pattern.is_empty() && !level.is_empty() && !level.contains('='))
            .ok_or_else(|| format!("{part:?} does not have the pattern=N format"))?;
        let level =
            parse_level(level).map_err(|reason| format!("parsing verbosity in {part:?}: {reason}"))?;
        items.push(json!({ "filePattern": pattern, "verbosity": level }));
    }
    Ok(items.into())
}

/// One line of comma-separated values, where a value in double quotes may hold commas.
fn split_csv(text: &str) -> Result<Vec<String>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut items = Vec::new();
    let mut rest = text;
    loop {
        let (item, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_item(quoted)?,
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                let (item, after) = rest.split_at(end);
                if item.contains('"') {
                    return Err("a quote may only stand around a whole value".to_owned());
                }
                (item.to_owned(), after)
            }
        };
        items.push(item);
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None if after.is_empty() => return Ok(items),
            None => return Err("a quote may only stand around a whole value".to_owned()),
        }
    }
}

/// The rest of a quoted value, in which two quotes are one, and what follows its end.
fn quoted_item(text: &str) -> Result<(String, &str), String> {
    let mut item = String::new();
    let mut rest = text;
    loop {
        let Some((part, after)) = rest.split_once('"') else {
            return Err("a quote is not closed".to_owned());
        };
        item.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                item.push('"');
                rest = after;
            }
            None => return Ok((item, after)),
        }
    }
}
