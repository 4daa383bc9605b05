use flate2::{Compress, Compression, FlushCompress};
use proptest::prelude::*;

use super::*;

const LIMIT: usize = 16 * 1024;

fn headers(pairs: &[(&str, &str)]) -> Headers {
    pairs.iter().copied().collect()
}

#[test]
fn blocks_go_there_and_back_over_one_stream() {
    let mut encoder = HeaderEncoder::default();
    let mut decoder = HeaderDecoder::new(LIMIT);
    let long = "x".repeat(15_000);
    for sent in [
        headers(&[]),
        headers(&[("streamtype", "error")]),
        headers(&[("streamtype", "data"), ("port", "8080"), ("requestid", "17")]),
        headers(&[("long", &long)]),
        headers(&[("streamtype", "error")]),
    ] {
        assert_eq!(decoder.decode(&encoder.encode(&sent)).unwrap(), sent);
    }
}

#[test]
fn the_first_block_names_the_dictionary_and_all_end_with_a_flush() {
    let mut encoder = HeaderEncoder::default();
    let first = encoder.encode(&headers(&[("a", "b")]));
    let block = [0, 0, 0, 1, 0, 0, 0, 1, b'a', 0, 0, 0, 1, b'b'];
    let mut expected = vec![0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2, 0, 14, 0, 0xf1, 0xff];
    expected.extend_from_slice(&block);
    expected.extend_from_slice(&[0, 0, 0, 0xff, 0xff]);
    assert_eq!(first, expected);
    assert_eq!(encoder.encode(&headers(&[("a", "b")])), expected[6..]);
}

/// A compressor as other peers have one: it knows the dictionary because it has compressed it before.
struct RealCompressor {
    deflate: Compress,
    begun: bool,
}

impl RealCompressor {
    fn new() -> Self {
        let mut deflate = Compress::new(Compression::best(), false);
        let mut ignored = Vec::with_capacity(4096);
        deflate.compress_vec(DICTIONARY, &mut ignored, FlushCompress::Sync).unwrap();
        Self { deflate, begun: false }
    }

    fn encode(&mut self, headers: &Headers) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 * 1024);
        if !std::mem::replace(&mut self.begun, true) {
            out.extend_from_slice(&[0x78, 0xf9]);
            out.extend_from_slice(&DICTIONARY_ID.to_be_bytes());
        }
        self.deflate.compress_vec(&headers.encode(), &mut out, FlushCompress::Sync).unwrap();
        out
    }
}

#[test]
fn references_into_the_dictionary_and_earlier_blocks_are_resolved() {
    let mut compressor = RealCompressor::new();
    let mut decoder = HeaderDecoder::new(LIMIT);
    let sent = headers(&[("accept-encoding", "x"), ("streamtype", "stdin"), ("www-authenticate", "200 OK")]);
    let first = compressor.encode(&sent);
    assert!(first.len() < sent.encode().len(), "the dictionary was of no use");
    assert_eq!(decoder.decode(&first).unwrap(), sent);
    let again = compressor.encode(&sent);
    assert!(again.len() < 24, "{} bytes for a repetition", again.len());
    assert_eq!(decoder.decode(&again).unwrap(), sent);
}

#[test]
fn a_stream_without_the_dictionary_is_zlib_too() {
    let mut deflate = Compress::new(Compression::best(), true);
    let sent = headers(&[("streamtype", "stdin")]);
    let mut bytes = Vec::with_capacity(1024);
    deflate.compress_vec(&sent.encode(), &mut bytes, FlushCompress::Sync).unwrap();
    assert_eq!(HeaderDecoder::new(LIMIT).decode(&bytes).unwrap(), sent);
}

#[test]
fn a_bomb_is_not_unpacked() {
    let mut compressor = RealCompressor::new();
    let zeros = "0".repeat(40_000);
    let bomb = compressor.encode(&headers(&[("a", &zeros)]));
    assert!(bomb.len() < 400);
    let refused = HeaderDecoder::new(LIMIT).decode(&bomb);
    assert_eq!(refused, Err(FrameError::HeadersTooLong { limit: LIMIT }));
}

#[test]
fn what_is_wrong_with_blocks() {
    let raw = |block: &[u8]| {
        let mut bytes = vec![0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2];
        push_stored(&mut bytes, block);
        HeaderDecoder::new(LIMIT).decode(&bytes)
    };
    let named = |name: &str, value: &[u8]| {
        let mut block = vec![0, 0, 0, 1];
        push_length(&mut block, name.len());
        block.extend_from_slice(name.as_bytes());
        push_length(&mut block, value.len());
        block.extend_from_slice(value);
        block
    };
    assert_eq!(raw(&named("a", b"b")).unwrap(), headers(&[("a", "b")]));
    assert_eq!(raw(&named("a", b"\xff")).unwrap().get("a"), Some("\u{fffd}"));
    assert_eq!(raw(b"\0\0\0\0").unwrap(), headers(&[]));
    let table: [(&str, &[u8], FrameError); 6] = [
        ("nothing", b"", FrameError::BadHeaders),
        ("a capital", &named("A", b"b"), FrameError::BadHeaders),
        ("no name", &named("", b"b"), FrameError::BadHeaders),
        ("shorter than said", b"\0\0\0\x01\0\0\0\x05a", FrameError::BadHeaders),
        ("many", b"\xff\xff\xff\xff", FrameError::TooManyHeaders),
        ("a length beyond all bounds", b"\0\0\0\x01\xff\xff\xff\xff", FrameError::BadHeaders),
    ];
    for (name, block, error) in table {
        assert_eq!(raw(block), Err(error), "{name}");
    }
    let mut twice = named("a", b"b");
    twice[3] = 2;
    let second = named("a", b"c");
    twice.extend_from_slice(&second[4..]);
    assert_eq!(raw(&twice), Err(FrameError::BadHeaders));
}

#[test]
fn what_is_wrong_with_streams() {
    let table: [(&str, &[u8]); 6] = [
        ("empty", b""),
        ("one byte", b"\x78"),
        ("another method", b"\x77\x01"),
        ("wrong check bits", b"\x78\xbc\xe3\xc6\xa7\xc2"),
        ("another dictionary", b"\x78\xbb\xe3\xc6\xa7\xc3\0\0\0\xff\xff"),
        ("a stored block whose lengths disagree", b"\x78\xbb\xe3\xc6\xa7\xc2\0\x01\0\0\0a"),
    ];
    for (name, bytes) in table {
        assert_eq!(HeaderDecoder::new(LIMIT).decode(bytes), Err(FrameError::BadCompression), "{name}");
    }
}

#[test]
fn values_and_names() {
    let mut both = headers(&[("Port", "80")]);
    both.insert("port", "81");
    assert_eq!((both.len(), both.get("PORT"), both.get("other")), (1, Some("80"), None));
    assert!(Headers::default().is_empty());
    assert_eq!(format!("{both:?}"), r#"{"port": "80\081"}"#);
}

proptest! {
    #[test]
    fn any_headers_survive(pairs in proptest::collection::vec(("[a-z]{1,12}", "[ -~]{0,40}"), 0..20)) {
        let sent: Headers = pairs.into_iter().collect();
        let mut decoder = HeaderDecoder::new(LIMIT);
        prop_assert_eq!(decoder.decode(&HeaderEncoder::default().encode(&sent)).unwrap(), sent.clone());
        let mut decoder = HeaderDecoder::new(LIMIT);
        prop_assert_eq!(decoder.decode(&RealCompressor::new().encode(&sent)).unwrap(), sent);
    }

    #[test]
    fn any_bytes_are_an_answer_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..2000), framed: bool) {
        let mut all = if framed { vec![0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2] } else { Vec::new() };
        all.extend_from_slice(&bytes);
        let mut decoder = HeaderDecoder::new(256);
        if decoder.decode(&all).is_ok() {
            drop(decoder.decode(&bytes));
        }
    }
}
