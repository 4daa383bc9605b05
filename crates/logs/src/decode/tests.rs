use super::*;

const LOG: &str = "\
2016-10-06T00:17:01.1Z stdout F one
2016-10-06T00:17:02.25Z stderr F two
2016-10-06T00:17:03Z stdout P thr
2016-10-06T00:17:04Z stdout P e
2016-10-06T00:17:05Z stdout F e
2016-10-06T00:17:06Z stdout F \n\
2016-10-06T00:17:07Z stderr F four
";

fn decode_in_pieces(log: &[u8], options: &Options, piece: usize) -> String {
    let mut decoder = Decoder::new(options);
    let mut out = Vec::new();
    for piece in log.chunks(piece) {
        decoder.feed(piece, &mut out);
    }
    decoder.finish(&mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// Decodes in pieces of many sizes, which must make no difference.
#[track_caller]
fn check(log: &str, options: &Options, expected: &str) {
    for piece in [1, 2, 3, 7, 31, 64, 1000, log.len().max(1)] {
        assert_eq!(decode_in_pieces(log.as_bytes(), options, piece), expected, "in pieces of {piece}");
    }
}

#[test]
fn plain() {
    check(LOG, &Options::default(), "one\ntwo\nthree\n\nfour\n");
    check("", &Options::default(), "");
}

#[test]
fn joined_lines_are_stamped_once() {
    check(
        LOG,
        &Options { timestamps: true, ..Options::default() },
        "2016-10-06T00:17:01.100000000Z one\n\
         2016-10-06T00:17:02.250000000Z two\n\
         2016-10-06T00:17:03.000000000Z three\n\
         2016-10-06T00:17:06.000000000Z \n\
         2016-10-06T00:17:07.000000000Z four\n",
    );
}

#[test]
fn another_stream_between_the_pieces_does_not_stamp_them() {
    let log = "\
2016-10-06T00:17:01Z stdout P ab
2016-10-06T00:17:02Z stderr F err
2016-10-06T00:17:03Z stdout F cd
";
    let options = Options { timestamps: true, streams: Streams::Stdout, ..Options::default() };
    check(log, &options, "2016-10-06T00:17:01.000000000Z abcd\n");
    let options = Options { timestamps: true, streams: Streams::Stderr, ..Options::default() };
    check(log, &options, "2016-10-06T00:17:02.000000000Z err\n");
}

#[test]
fn one_stream() {
    check(LOG, &Options { streams: Streams::Stdout, ..Options::default() }, "one\nthree\n\n");
    check(LOG, &Options { streams: Streams::Stderr, ..Options::default() }, "two\nfour\n");
}

#[test]
fn since_means_not_before() {
    let since = |text: &str| Options { since: Some(text.parse().unwrap()), ..Options::default() };
    check(LOG, &since("2016-10-06T00:17:02.25Z"), "two\nthree\n\nfour\n");
    check(LOG, &since("2016-10-06T00:17:02.250000001Z"), "three\n\nfour\n");
    check(LOG, &since("2016-10-06T02:17:07+02:00"), "four\n");
    check(LOG, &since("2017-01-01T00:00:00Z"), "");
}

#[test]
fn the_limit_is_a_hard_cut() {
    let limit = |bytes| Options { limit_bytes: Some(bytes), ..Options::default() };
    check(LOG, &limit(5), "one\nt");
    check(LOG, &limit(4), "one\n");
    check(LOG, &limit(1000), "one\ntwo\nthree\n\nfour\n");
    check(LOG, &Options { timestamps: true, ..limit(33) }, "2016-10-06T00:17:01.100000000Z on");
    // Bytes of the stream that was not asked for are not counted.
    check(LOG, &Options { streams: Streams::Stderr, ..limit(6) }, "two\nfo");
}

#[test]
fn tail_stops_after_its_lines() {
    check(LOG, &Options { tail_lines: Some(2), ..Options::default() }, "one\ntwo\n");
    check(LOG, &Options { tail_lines: Some(0), ..Options::default() }, "");
    check(
        LOG,
        &Options { tail_lines: Some(0), follow: true, ..Options::default() },
        "one\ntwo\nthree\n\nfour\n",
    );
}

#[test]
fn the_end_of_the_file_ends_a_line() {
    check("2016-10-06T00:17:01Z stdout F no newline", &Options::default(), "no newline");
    check("2016-10-06T00:17:01Z stdout F whole\n2016-10-06T00:17", &Options::default(), "whole\n");
}

#[test]
fn bad_lines_are_skipped() {
    let log = format!("\0\0\0\0\ngarbage\n{LOG}2016-10-06T00:17:08Z std");
    check(&log, &Options::default(), "one\ntwo\nthree\n\nfour\n");
    let mut decoder = Decoder::new(&Options::default());
    decoder.feed(b"garbage\nmore\n", &mut Vec::new());
    assert_eq!(decoder.unsupported(), Some(b"garbage\n".as_slice()));
    decoder.feed(LOG.as_bytes(), &mut Vec::new());
    assert_eq!(decoder.unsupported(), None);
}

#[test]
fn docker_lines_are_understood_and_joined() {
    let log = r#"{"log":"a","stream":"stdout","time":"2016-10-06T00:17:01.5Z"}
{"log":"b\n","stream":"stdout","time":"2016-10-06T00:17:02Z"}
{"log":"c\n","stream":"stderr","time":"2016-10-06T00:17:03Z"}
"#;
    check(log, &Options::default(), "ab\nc\n");
    check(
        log,
        &Options { timestamps: true, ..Options::default() },
        "2016-10-06T00:17:01.500000000Z ab\n2016-10-06T00:17:03.000000000Z c\n",
    );
}

#[test]
fn endless_lines_are_passed_on_without_being_held() {
    let mut decoder = Decoder::new(&Options { timestamps: true, ..Options::default() });
    let mut total = 0;
    let mut out = Vec::new();
    decoder.feed(b"2016-10-06T00:17:01Z stdout F ", &mut out);
    for _ in 0..1000 {
        decoder.feed(&[b'x'; 10_000], &mut out);
        total += out.len();
        out.clear();
        assert!(decoder.held.len() <= MAX_HELD_BYTES);
    }
    decoder.feed(b"\n2016-10-06T00:17:02Z stdout F next\n", &mut out);
    assert_eq!(String::from_utf8(out).unwrap(), "\n2016-10-06T00:17:02.000000000Z next\n");
    assert_eq!(total, "2016-10-06T00:17:01.000000000Z ".len() + 10_000_000);

    // An endless line that cannot be parsed is skipped to its end.
    let mut decoder = Decoder::new(&Options::default());
    let mut out = Vec::new();
    for _ in 0..100 {
        decoder.feed(&[0; 10_000], &mut out);
    }
    decoder.feed(b"\n2016-10-06T00:17:02Z stdout F next\n", &mut out);
    assert_eq!(out, b"next\n");
}

#[test]
fn a_long_partial_line_is_joined_too() {
    let long = "y".repeat(400_000);
    let log = format!("2016-10-06T00:17:01Z stdout P {long}\n2016-10-06T00:17:02Z stdout F z\n");
    let options = Options { timestamps: true, ..Options::default() };
    for piece in [1000, 100_000, log.len()] {
        let expected = format!("2016-10-06T00:17:01.000000000Z {long}z\n");
        assert!(decode_in_pieces(log.as_bytes(), &options, piece) == expected, "in pieces of {piece}");
    }
}

#[test]
fn bytes_that_are_not_utf8_pass_through() {
    let mut decoder = Decoder::new(&Options::default());
    let mut out = Vec::new();
    decoder.feed(b"2016-10-06T00:17:01Z stdout F \xff\xfe\0\r\n", &mut out);
    assert_eq!(out, b"\xff\xfe\0\r\n");
}

/// Corrupted logs: no panic, and the pieces they come in make no difference.
#[test]
fn noise() {
    let mut state = 1_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % below
    };
    for _ in 0..500 {
        let mut log = LOG.repeat(3).into_bytes();
        for _ in 0..random(30) {
            let at = random(log.len());
            let byte = *b"\n\n \0{}\"P:Z+9".get(random(12)).unwrap();
            match random(3) {
                0 => log.insert(at, byte),
                1 => drop(log.remove(at)),
                _ => *log.get_mut(at).unwrap() = byte,
            }
        }
        let options = Options {
            timestamps: random(2) == 0,
            limit_bytes: (random(2) == 0).then(|| random(300) as u64),
            tail_lines: (random(2) == 0).then(|| random(20) as u64),
            ..Options::default()
        };
        let whole = decode_in_pieces(&log, &options, log.len());
        assert_eq!(decode_in_pieces(&log, &options, random(50) + 1), whole);
    }
}
