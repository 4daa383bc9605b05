//! Just enough DER to read a certificate's subject. The certificate has been checked before; what is malformed all the
//! same is `None`, never a panic.

/// What a subject says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    /// The last common name.
    pub(crate) common_name: String,
    /// All organizations.
    pub(crate) organizations: Vec<String>,
    /// All user IDs (attribute 1.3.6.1.4.1.57683.2).
    pub(crate) uids: Vec<String>,
}

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;
/// `[0] EXPLICIT`, the version.
const VERSION: u8 = 0xa0;
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];
const USER_ID: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x83, 0xc2, 0x53, 0x02];

/// Reads the subject of a certificate.
pub(crate) fn subject(certificate: &[u8]) -> Option<Subject> {
    let mut outer = Reader(certificate);
    let mut certificate = Reader(outer.expect(SEQUENCE)?);
    let mut fields = Reader(certificate.expect(SEQUENCE)?);
    if fields.peek() == Some(VERSION) {
        fields.next()?;
    }
    // Serial number, signature algorithm, issuer, validity.
    for _ in 0..4 {
        fields.next()?;
    }
    let mut names = Reader(fields.expect(SEQUENCE)?);
    let mut subject = Subject::default();
    while !names.is_empty() {
        let mut set = Reader(names.expect(SET)?);
        while !set.is_empty() {
            let mut pair = Reader(set.expect(SEQUENCE)?);
            let id = pair.expect(OBJECT_ID)?;
            let (tag, value) = pair.next()?;
            match id {
                COMMON_NAME => subject.common_name = text(tag, value)?,
                ORGANIZATION => subject.organizations.push(text(tag, value)?),
                USER_ID => subject.uids.push(text(tag, value)?),
                _ => {}
            }
        }
    }
    Some(subject)
}

/// The string types that names are written in.
fn text(tag: u8, value: &[u8]) -> Option<String> {
    match tag {
        // UTF8String, NumericString, PrintableString, IA5String: all are UTF-8, too.
        0x0c | 0x12 | 0x13 | 0x16 => String::from_utf8(value.to_vec()).ok(),
        // T61String, taken for Latin-1 as everybody does.
        0x14 => Some(value.iter().copied().map(char::from).collect()),
        // BMPString.
        0x1e => {
            let (pairs, rest) = value.as_chunks::<2>();
            let units: Vec<u16> = pairs.iter().copied().map(u16::from_be_bytes).collect();
            String::from_utf16(&units).ok().filter(|_| rest.is_empty())
        }
        _ => None,
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// The content of the next element, which must have this tag.
    fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, content)| content)
    }

    /// Tag and content of the next element.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let length = if first < 0x80 {
            usize::from(first)
        } else {
            let count = usize::from(first & 0x7f);
            // Four bytes of length are more than any certificate has.
            if !(1..=4).contains(&count) {
                return None;
            }
            let (bytes, after) = rest.split_at_checked(count)?;
            rest = after;
            bytes.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte))
        };
        let (content, after) = rest.split_at_checked(length)?;
        self.0 = after;
        Some((tag, content))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        let mut out = vec![tag];
        match u8::try_from(content.len()) {
            Ok(short) if short < 0x80 => out.push(short),
            _ => {
                out.push(0x82);
                out.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
            }
        }
        out.extend(content);
        out
    }

    fn certificate(names: &[(&[u8], u8, &[u8])], version: bool) -> Vec<u8> {
        let names: Vec<u8> = names
            .iter()
            .flat_map(|(id, tag, value)| {
                element(SET, &element(SEQUENCE, &[element(OBJECT_ID, id), element(*tag, value)].concat()))
            })
            .collect();
        let mut fields = Vec::new();
        if version {
            fields.extend(element(VERSION, &element(0x02, &[2])));
        }
        fields.extend(element(0x02, &[1]));
        for _ in 0..3 {
            fields.extend(element(SEQUENCE, &[]));
        }
        fields.extend(element(SEQUENCE, &names));
        element(SEQUENCE, &element(SEQUENCE, &fields))
    }

    #[test]
    fn the_last_common_name_and_all_organizations_count() {
        let names: [(&[u8], u8, &[u8]); 6] = [
            (ORGANIZATION, 0x13, b"team1"),
            (COMMON_NAME, 0x0c, b"old"),
            (ORGANIZATION, 0x1e, &[0x00, 0x74, 0x20, 0xac]),
            (COMMON_NAME, 0x14, &[b'b', 0xfc]),
            (USER_ID, 0x0c, b"42"),
            (&[0x55, 0x04, 0x06], 0x13, b"CH"),
        ];
        let expected = Subject {
            common_name: "bü".into(),
            organizations: vec!["team1".into(), "t€".into()],
            uids: vec!["42".into()],
        };
        assert_eq!(subject(&certificate(&names, true)), Some(expected.clone()));
        assert_eq!(subject(&certificate(&names, false)), Some(expected));
        assert_eq!(subject(&certificate(&[], true)), Some(Subject::default()));
    }

    #[test]
    fn what_is_malformed_is_nothing() {
        let bad_text: [(&[u8], u8, &[u8]); 1] = [(COMMON_NAME, 0x0c, &[0xff])];
        assert_eq!(subject(&certificate(&bad_text, true)), None);
        let good = certificate(&[(COMMON_NAME, 0x0c, b"me")], true);
        for length in 0..good.len() {
            assert_eq!(subject(&good[..length]), None, "cut to {length}");
        }
        assert_eq!(subject(&[0x30, 0x85, 0xff, 0xff, 0xff, 0xff, 0xff]), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            subject(&bytes);
        }
    }
}
