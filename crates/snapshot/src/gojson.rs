//! JSON in Go's spelling, which clients compare byte by byte and which is safe inside HTML.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};

/// Compact JSON as Go's `encoding/json` writes it: `<`, `>`, `&`, U+2028 and U+2029 are escaped.
///
/// A value that has no JSON form (a map whose keys are not texts; no Kubernetes type is like that) becomes `null` and a
/// line in the log, because one odd object must not take the list it stands in with it.
#[must_use]
pub fn go_json<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    match value.serialize(&mut Serializer::with_formatter(&mut out, GoFormatter)) {
        Ok(()) => out,
        Err(error) => {
            tracing::error!(%error, "a value has no JSON form; null is served instead");
            b"null".to_vec()
        }
    }
}

struct GoFormatter;

impl Formatter for GoFormatter {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let bytes = fragment.as_bytes();
        let mut begun = 0;
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            // (escape, how many bytes it stands for); U+2028 and U+2029 are E2 80 A8 and E2 80 A9 in UTF-8.
            let (escape, length) = match byte {
                b'<' => (r"\u003c", 1),
                b'>' => (r"\u003e", 1),
                b'&' => (r"\u0026", 1),
                0xe2 => match bytes.get(at + 1..at + 3) {
                    Some([0x80, 0xa8]) => (r"\u2028", 3),
                    Some([0x80, 0xa9]) => (r"\u2029", 3),
                    _ => {
                        at += 1;
                        continue;
                    }
                },
                _ => {
                    at += 1;
                    continue;
                }
            };
            writer.write_all(bytes.get(begun..at).unwrap_or_default())?;
            writer.write_all(escape.as_bytes())?;
            at += length;
            begun = at;
        }
        CompactFormatter.write_string_fragment(writer, fragment.get(begun..).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn html_characters_are_escaped_as_in_go() {
        // Right: what Go 1.26's json.Marshal gives for the same text.
        for (text, expected) in [
            ("plain", r#""plain""#),
            ("", r#""""#),
            ("echo init > /shared/i", r#""echo init \u003e /shared/i""#),
            ("<a href=\"x\">&</a>", r#""\u003ca href=\"x\"\u003e\u0026\u003c/a\u003e""#),
            ("a\u{2028}b\u{2029}", r#""a\u2028b\u2029""#),
            ("…\u{e2}\u{2027}", "\"…\u{e2}\u{2027}\""),
            (
                "tab\t nl\n cr\r bs\u{8} ff\u{c} nul\0 esc\u{1b} del\u{7f}",
                "\"tab\\t nl\\n cr\\r bs\\b ff\\f nul\\u0000 esc\\u001b del\u{7f}\"",
            ),
            ("Grüße, 世界 🚢", "\"Grüße, 世界 🚢\""),
        ] {
            assert_eq!(String::from_utf8(go_json(text)).unwrap(), expected, "{text:?}");
        }
    }

    #[test]
    fn it_stays_the_same_value() {
        let value = serde_json::json!({"a<b": ["x&y", {"k": null}], "n": 1.5, "long": "&".repeat(5000)});
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&go_json(&value)).unwrap(), value);
    }

    #[test]
    fn what_has_no_json_form_is_null() {
        let odd = std::collections::BTreeMap::from([(vec![1], 1)]);
        assert_eq!(go_json(&odd), b"null");
    }
}
