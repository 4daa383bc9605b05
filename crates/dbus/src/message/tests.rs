use proptest::prelude::*;

use super::*;

fn whole(body: Vec<Value>) -> Message {
    Message {
        kind: Kind::Call,
        serial: 7,
        reply_serial: Some(3),
        path: "/org/freedesktop/systemd1".to_owned(),
        interface: "org.freedesktop.systemd1.Manager".to_owned(),
        member: "StartTransientUnit".to_owned(),
        error_name: String::new(),
        destination: "org.freedesktop.systemd1".to_owned(),
        sender: ":1.5".to_owned(),
        body,
    }
}

/// As `busctl --user capture` shows a Hello: written down by hand from the specification.
#[test]
fn the_bytes_of_a_small_call() {
    let message = Message {
        serial: 1,
        path: "/a".to_owned(),
        member: "M".to_owned(),
        body: vec![Value::U32(5)],
        ..Message::default()
    };
    #[rustfmt::skip]
    let expected: Vec<u8> = [
        &b"l\x01\x00\x01"[..], &4_u32.to_le_bytes(), &1_u32.to_le_bytes(),
        &39_u32.to_le_bytes(),
        b"\x03\x01s\x00", &1_u32.to_le_bytes(), b"M\0", &[0; 6],
        b"\x01\x01o\x00", &2_u32.to_le_bytes(), b"/a\0", &[0; 5],
        b"\x08\x01g\x00\x01u\0", &[0],
        &5_u32.to_le_bytes(),
    ].concat();
    assert_eq!(message.encode().unwrap(), expected);
    assert_eq!(Message::parse(&expected).unwrap(), message);
}

#[test]
fn a_transient_unit_there_and_back() {
    let properties = Value::properties([
        ("Description", Value::text("pod")),
        ("Wants", Value::texts(["kubepods.slice"])),
        ("CPUAccounting", Value::Bool(true)),
        ("MemoryMax", Value::U64(u64::MAX)),
        ("AllowedCPUs", Value::bytes(&[3])),
    ]);
    let auxiliary = Value::Array("(sa(sv))".to_owned(), Vec::new());
    let message = whole(vec![Value::text("a.slice"), Value::text("replace"), properties, auxiliary]);
    let bytes = message.encode().unwrap();
    assert_eq!(signature_of(&message.body), "ssa(sv)a(sa(sv))");
    assert_eq!(Message::parse(&bytes).unwrap(), message);
}

#[test]
fn the_other_byte_order_is_read() {
    #[rustfmt::skip]
    let bytes: Vec<u8> = [
        &b"B\x02\x00\x01"[..], &4_u32.to_be_bytes(), &9_u32.to_be_bytes(),
        &15_u32.to_be_bytes(),
        b"\x05\x01u\x00", &4_u32.to_be_bytes(),
        b"\x08\x01g\x00\x01u\0", &[0],
        &77_u32.to_be_bytes(),
    ].concat();
    let message = Message::parse(&bytes).unwrap();
    assert_eq!((message.serial, message.reply_serial), (9, Some(4)));
    assert_eq!(message.body, [Value::U32(77)]);
}

#[test]
fn what_cannot_be_sent_is_refused() {
    for body in [
        Value::text("a\0b"),
        Value::Array("s".to_owned(), vec![Value::U32(1)]),
        Value::Array(String::new(), Vec::new()),
        Value::Signature("s".repeat(300)),
    ] {
        whole(vec![body]).encode().unwrap_err();
    }
}

#[test]
fn endless_nesting_is_refused() {
    let mut value = Value::Byte(1);
    for _ in 0..200 {
        value = Value::Variant(Box::new(value));
    }
    let bytes = whole(vec![value]).encode().unwrap();
    assert_eq!(Message::parse(&bytes), Err(WireError::Deep));
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<u8>().prop_map(Value::Byte),
        any::<bool>().prop_map(Value::Bool),
        any::<i16>().prop_map(Value::I16),
        any::<i64>().prop_map(Value::I64),
        any::<u64>().prop_map(Value::U64),
        "[a-zA-Zäß/ ]{0,12}".prop_map(Value::Text),
        "[a-z/]{0,12}".prop_map(Value::Path),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            inner.clone().prop_map(|value| Value::Variant(Box::new(value))),
            proptest::collection::vec(inner.clone(), 1..4).prop_map(Value::Struct),
            (inner.clone(), 0_usize..4).prop_map(|(value, count)| {
                let mut element = String::new();
                value.signature(&mut element);
                Value::Array(element, vec![value; count])
            }),
            (any::<u32>(), inner).prop_map(|(key, value)| {
                let entry = Value::Entry(Box::new((Value::U32(key), value)));
                let mut element = String::new();
                entry.signature(&mut element);
                Value::Array(element, vec![entry])
            }),
        ]
    })
}

proptest! {
    #[test]
    fn any_values_there_and_back(values in proptest::collection::vec(any_value(), 0..4)) {
        let message = whole(values);
        prop_assert_eq!(Message::parse(&message.encode().unwrap()).unwrap(), message);
    }

    #[test]
    fn garbage_is_an_error_and_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        drop(Message::parse(&bytes));
    }

    /// Bytes that are nearly right get further into the parser.
    #[test]
    fn damaged_messages_are_no_panic(
        values in proptest::collection::vec(any_value(), 0..4),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = whole(values).encode().unwrap();
        for (place, byte) in damage {
            let index = place.index(bytes.len());
            bytes[index] = byte;
        }
        drop(Message::parse(&bytes));
    }
}
