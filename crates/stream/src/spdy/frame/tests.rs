use proptest::prelude::*;

use super::*;

fn encode(control: &Control) -> Vec<u8> {
    let mut out = Vec::new();
    control.encode(&mut HeaderEncoder::default(), &mut out);
    out
}

fn decode(bytes: &[u8]) -> Result<Control, FrameError> {
    let header = FrameHeader::parse(bytes[..8].try_into().unwrap())?;
    let FrameHeader::Control { kind, flags, length } = header else { panic!("{header:?}") };
    assert_eq!(length, bytes.len() - 8, "the length is wrong");
    Control::parse(kind, flags, &bytes[8..], &mut HeaderDecoder::new(4096))
}

#[test]
fn frames_as_the_draft_draws_them() {
    let table: [(Control, &[u8]); 6] = [
        (
            Control::RstStream { stream: 5, status: ResetStatus::CANCEL },
            &[0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 5],
        ),
        (Control::Ping(2), &[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 2]),
        (
            Control::GoAway { last_good_stream: 7, status: 1 },
            &[0x80, 3, 0, 7, 0, 0, 0, 8, 0, 0, 0, 7, 0, 0, 0, 1],
        ),
        (
            Control::WindowUpdate { stream: 0, delta: 0x7fff_ffff },
            &[0x80, 3, 0, 9, 0, 0, 0, 8, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff],
        ),
        (
            Control::Settings(vec![(7, 65536)]),
            &[0x80, 3, 0, 4, 0, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 7, 0, 1, 0, 0],
        ),
        (
            Control::SynReply { stream: 3, fin: true, headers: Headers::default() },
            &[
                0x80, 3, 0, 2, 1, 0, 0, 24, 0, 0, 0, 3, 0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2, 0, 4, 0, 0xfb,
                0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff,
            ],
        ),
    ];
    for (control, bytes) in table {
        assert_eq!(encode(&control), bytes, "{control:?}");
        assert_eq!(decode(bytes).unwrap(), control);
    }
    let mut data = Vec::new();
    encode_data(0x0102_0304, true, b"abc", &mut data);
    assert_eq!(data, [1, 2, 3, 4, 1, 0, 0, 3, b'a', b'b', b'c']);
    let header = FrameHeader::parse(data[..8].try_into().unwrap()).unwrap();
    assert_eq!(header, FrameHeader::Data { stream: 0x0102_0304, fin: true, length: 3 });
}

#[test]
fn streams_are_opened_with_headers() {
    let headers = Headers::from_iter([("streamType", "stdin")]);
    let control = Control::SynStream { stream: 1, fin: false, headers };
    let bytes = encode(&control);
    assert_eq!(bytes[..18], [0x80, 3, 0, 1, 0, 0, 0, 53, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(decode(&bytes).unwrap(), control);
    let control = Control::Headers { stream: 1, fin: true };
    assert_eq!(decode(&encode(&control)).unwrap(), control);
}

#[test]
fn what_is_wrong_with_frames() {
    let table: [(&str, &[u8], Result<Control, FrameError>); 8] = [
        ("HTTP/1.1", b"\xC8\x54\x54\x50/1.1", Err(FrameError::Version(0x4854))),
        ("version 2", &[0x80, 2, 0, 6, 0, 0, 0, 0], Err(FrameError::Version(2))),
        ("a short ping", &[0x80, 3, 0, 6, 0, 0, 0, 3, 0, 0, 0], Err(FrameError::BadControl(PING))),
        (
            "a reset of nothing",
            &[0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1],
            Err(FrameError::StreamZero),
        ),
        (
            "fewer settings than announced",
            &[0x80, 3, 0, 4, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff],
            Err(FrameError::BadControl(SETTINGS)),
        ),
        ("no headers", &[0x80, 3, 0, 2, 0, 0, 0, 4, 0, 0, 0, 1], Err(FrameError::BadCompression)),
        ("data for nothing", &[0, 0, 0, 0, 0, 0, 0, 0], Err(FrameError::StreamZero)),
        ("an unknown kind", &[0x80, 3, 0, 99, 0, 0, 0, 0], Ok(Control::Unknown)),
    ];
    for (name, bytes, expected) in table {
        assert_eq!(decode(bytes), expected, "{name}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_frames_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
        crate::spdy::fuzz::frames(&bytes);
    }

    #[test]
    fn any_payload_is_a_frame_or_an_error(
        kind in 0_u16..12, flags: u8, payload in proptest::collection::vec(any::<u8>(), 0..200)
    ) {
        drop(Control::parse(kind, flags, &payload, &mut HeaderDecoder::new(256)));
    }

    #[test]
    fn data_headers_survive(stream in 1..=MAX_STREAM_ID, fin: bool, length in 0_usize..5000) {
        let mut out = Vec::new();
        encode_data(stream, fin, &vec![7; length], &mut out);
        let header = FrameHeader::parse(out[..8].try_into().unwrap()).unwrap();
        prop_assert_eq!(header, FrameHeader::Data { stream, fin, length });
        prop_assert_eq!(out.len(), length + 8);
    }
}
