use proptest::prelude::*;

use super::*;

#[test]
fn the_examples_of_the_rfc() {
    // RFC 6455, section 5.7.
    let masked_hello = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    let (header, used) = FrameHeader::parse(&masked_hello, Role::Server).unwrap().unwrap();
    let expected =
        FrameHeader { opcode: Opcode::Text, fin: true, length: 5, mask: Some([0x37, 0xfa, 0x21, 0x3d]) };
    assert_eq!((header, used), (expected, 6));
    let mut payload = masked_hello[6..].to_vec();
    apply_mask(&mut payload, header.mask.unwrap(), 0);
    assert_eq!(payload, b"Hello");

    let mut out = Vec::new();
    let start = begin(Opcode::Text, 5, Some([0x37, 0xfa, 0x21, 0x3d]), &mut out);
    out.extend_from_slice(b"Hello");
    finish(start, Some([0x37, 0xfa, 0x21, 0x3d]), &mut out);
    assert_eq!(out, masked_hello);

    for (length, bytes) in
        [(256, &[0x82, 0x7e, 1, 0][..]), (65536, &[0x82, 0x7f, 0, 0, 0, 0, 0, 1, 0, 0][..])]
    {
        let (header, used) = FrameHeader::parse(bytes, Role::Client).unwrap().unwrap();
        assert_eq!((header.length, used), (length, bytes.len()));
        let mut out = Vec::new();
        begin(Opcode::Binary, usize::try_from(length).unwrap(), None, &mut out);
        assert_eq!(out, bytes);
    }
}

#[test]
fn control_frames() {
    let table: [(Control, &[u8]); 5] = [
        (Control::Ping(b"hi".to_vec()), &[0x89, 2, b'h', b'i']),
        (Control::Pong(Vec::new()), &[0x8a, 0]),
        (Control::Close(Some(CloseCode::NORMAL)), &[0x88, 2, 0x03, 0xe8]),
        (Control::Close(None), &[0x88, 0]),
        (Control::Hello(Opcode::Binary, 1), &[0x82, 1, 1]),
    ];
    for (control, bytes) in table {
        let mut out = Vec::new();
        control.encode(None, &mut out);
        assert_eq!(out, bytes, "{control:?}");
    }
    let mut out = Vec::new();
    Control::Ping(b"hi".to_vec()).encode(Some([1, 2, 3, 4]), &mut out);
    assert_eq!(out, [0x89, 0x82, 1, 2, 3, 4, b'h' ^ 1, b'i' ^ 2]);
}

#[test]
fn what_is_wrong_with_close_frames() {
    let table: [(&[u8], Result<Control, WsError>); 7] = [
        (&[], Ok(Control::Close(None))),
        (&[3, 0xe8, b'o', b'k'], Ok(Control::Close(Some(CloseCode::NORMAL)))),
        (&[0x0f, 0xa0], Ok(Control::Close(Some(CloseCode(4000))))),
        (&[3], Err(WsError::BadClose)),
        (&[3, 0xed], Err(WsError::BadClose)),
        (&[0, 0], Err(WsError::BadClose)),
        (&[3, 0xe8, 0xff], Err(WsError::NotUtf8)),
    ];
    for (payload, expected) in table {
        assert_eq!(Control::parse(Opcode::Close, payload), expected, "{payload:?}");
    }
}

#[test]
fn what_is_wrong_with_headers() {
    let table: [(&str, &[u8], WsError); 9] = [
        ("an extension's bit", &[0xc2, 0x80], WsError::Reserved),
        ("opcode 3", &[0x83, 0x80], WsError::Opcode(3)),
        ("opcode 15", &[0x8f, 0x80], WsError::Opcode(15)),
        ("a client that does not mask", &[0x82, 0x00], WsError::Mask),
        ("a ping in parts", &[0x09, 0x80], WsError::BadControl),
        ("a long ping", &[0x89, 0xfe], WsError::BadControl),
        ("16 bits for a short length", &[0x82, 0xfe, 0, 125], WsError::BadLength),
        ("64 bits for a medium length", &[0x82, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff], WsError::BadLength),
        ("a length of 64 bits", &[0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0], WsError::BadLength),
    ];
    for (name, bytes, error) in table {
        assert_eq!(FrameHeader::parse(bytes, Role::Server), Err(error), "{name}");
    }
    assert_eq!(FrameHeader::parse(&[0x82, 0x80, 0, 0, 0, 0], Role::Client), Err(WsError::Mask));
}

proptest! {
    #[test]
    fn frames_survive_in_any_parts(length in 0_usize..70_000, mask: [u8; 4], cut in 0_usize..100) {
        let payload: Vec<u8> = (0..length).map(|index| index.to_le_bytes()[0]).collect();
        let mut out = Vec::new();
        let start = begin(Opcode::Binary, length, Some(mask), &mut out);
        out.extend_from_slice(&payload);
        finish(start, Some(mask), &mut out);
        // Every prefix of the header asks for more.
        for end in 0..start {
            prop_assert_eq!(FrameHeader::parse(&out[..end], Role::Server), Ok(None));
        }
        let (header, used) = FrameHeader::parse(&out, Role::Server).unwrap().unwrap();
        prop_assert_eq!((header.length, used), (length as u64, start));
        let mut body = out[start..].to_vec();
        let (first, second) = body.split_at_mut(cut.min(length));
        apply_mask(first, mask, 0);
        apply_mask(second, mask, first.len() as u64);
        prop_assert!(body == payload);
    }

    #[test]
    fn any_bytes_are_frames_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
        fuzz_frames(&bytes);
    }
}
