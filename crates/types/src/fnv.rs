//! FNV-1a, and the container hash built on it.

/// FNV-1a, 32 bit.
#[must_use]
pub fn fnv1a_32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// FNV-1a, 64 bit.
#[must_use]
pub fn fnv1a_64(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The value of annotation `io.kubernetes.container.hash`: a container whose running hash differs is restarted.
///
/// Only name and image are in it (upstream since 1.31). The hash is taken over Go's dump of a byte slice, so that
/// upstream's kubelet computes the same number and leaves the container alone when it takes over.
#[must_use]
pub fn container_hash(name: &str, image: &str) -> u32 {
    let json = format!(r#"{{"image":{},"name":{}}}"#, go_json_string(image), go_json_string(name));
    let mut dump = String::with_capacity(json.len() * 4 + 12);
    dump.push_str("([]uint8)[");
    for (i, byte) in json.bytes().enumerate() {
        if i > 0 {
            dump.push(' ');
        }
        dump.push_str(&byte.to_string());
    }
    dump.push(']');
    fnv1a_32(dump.as_bytes())
}

/// Go's `encoding/json` also escapes `<`, `>`, `&` and the two Unicode line separators.
fn go_json_string(text: &str) -> String {
    let plain = serde_json::Value::from(text).to_string();
    plain
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_hash_matches_upstream_vectors() {
        for (name, image, expected) in [
            ("test_container", "foo/image:v1", 0x8e45_cbd0),
            ("nginx", "nginx:1.27", 0x91ed_ee8f),
            ("c", "busybox", 0xad81_9b5c),
        ] {
            assert_eq!(container_hash(name, image), expected, "{name} {image}");
        }
    }

    #[test]
    fn markup_is_escaped_as_go_does() {
        assert_eq!(go_json_string("a<b>&\""), r#""a\u003cb\u003e\u0026\"""#);
    }
}
