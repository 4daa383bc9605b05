//! The formats of the kernel's files. Whatever the bytes are, something sensible comes out.

use mainstay_types::{IoSample, Pressure, PressureLine};

/// A number that fills the file; `None` for `max` and for anything else. Negative numbers, which some kernels print for
/// counters that ran under, are 0.
pub(crate) fn number(bytes: &[u8]) -> Option<u64> {
    let bytes = bytes.trim_ascii();
    if let Some(rest) = bytes.strip_prefix(b"-") {
        return (!rest.is_empty() && rest.iter().all(u8::is_ascii_digit)).then_some(0);
    }
    if bytes.is_empty() {
        return None;
    }
    let mut value = 0_u64;
    for byte in bytes {
        if !byte.is_ascii_digit() {
            return None;
        }
        value = value.saturating_mul(10).saturating_add(u64::from(byte - b'0'));
    }
    Some(value)
}

/// Lines of a key and a number.
pub(crate) fn keyed(bytes: &[u8]) -> impl Iterator<Item = (&[u8], u64)> {
    bytes.split(|byte| *byte == b'\n').filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b' ')?;
        let (key, value) = line.split_at(at);
        Some((key, number(value)?))
    })
}

/// `cpu.max`: the quota, if there is one, and the period.
pub(crate) fn cpu_max(bytes: &[u8]) -> Option<(Option<u64>, u64)> {
    let mut words = words(bytes);
    let quota = words.next()?;
    let period = number(words.next()?)?;
    Some((number(quota), period))
}

/// `MAJOR:MINOR` as in `io.stat` and `blkio.*`.
fn device(word: &[u8]) -> Option<(u32, u32)> {
    let at = word.iter().position(|byte| *byte == b':')?;
    let (major, minor) = word.split_at(at);
    let minor = minor.get(1..)?;
    Some((u32::try_from(number(major)?).ok()?, u32::try_from(number(minor)?).ok()?))
}

/// cgroup v2's `io.stat`. Devices that have only ever been looked at are left out.
pub(crate) fn io_stat(bytes: &[u8]) -> Vec<IoSample> {
    let mut found = Vec::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        let mut words = words(line);
        let Some((major, minor)) = words.next().and_then(device) else { continue };
        let mut sample = IoSample { major, minor, ..IoSample::default() };
        let mut any = false;
        for word in words {
            let Some(at) = word.iter().position(|byte| *byte == b'=') else { continue };
            let (key, value) = word.split_at(at);
            let Some(value) = value.get(1..).and_then(number) else { continue };
            match key {
                b"rbytes" => sample.read_bytes = value,
                b"wbytes" => sample.written_bytes = value,
                b"rios" => sample.reads = value,
                b"wios" => sample.writes = value,
                _ => continue,
            }
            any = true;
        }
        if any {
            found.push(sample);
        }
    }
    found
}

/// A line of cgroup v1's `blkio.*`: the device, the operation, how much.
pub(crate) fn blkio(bytes: &[u8]) -> impl Iterator<Item = ((u32, u32), &[u8], u64)> {
    bytes.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut words = words(line);
        Some((device(words.next()?)?, words.next()?, number(words.next()?)?))
    })
}

/// A pressure file; `None` if there is no line in it that can be read.
pub(crate) fn pressure(bytes: &[u8]) -> Option<Pressure> {
    let mut found = Pressure::default();
    let mut any = false;
    for line in bytes.split(|byte| *byte == b'\n') {
        let mut words = words(line);
        let target = match words.next() {
            Some(b"some") => &mut found.some,
            Some(b"full") => &mut found.full,
            _ => continue,
        };
        *target = pressure_line(words);
        any = true;
    }
    any.then_some(found)
}

fn pressure_line<'a>(words: impl Iterator<Item = &'a [u8]>) -> PressureLine {
    let mut line = PressureLine::default();
    for word in words {
        let Some(at) = word.iter().position(|byte| *byte == b'=') else { continue };
        let (key, value) = word.split_at(at);
        let value = value.get(1..).unwrap_or_default();
        match key {
            b"avg10" => line.avg10 = percent(value),
            b"avg60" => line.avg60 = percent(value),
            b"avg300" => line.avg300 = percent(value),
            b"total" => line.total_us = number(value).unwrap_or_default(),
            _ => {}
        }
    }
    line
}

fn percent(bytes: &[u8]) -> f64 {
    let value = std::str::from_utf8(bytes).ok().and_then(|text| text.parse::<f64>().ok());
    value.filter(|value| value.is_finite() && *value >= 0.0).unwrap_or_default()
}

/// The value of one key of `/proc/meminfo`, in bytes.
pub(crate) fn meminfo(bytes: &[u8], wanted: &[u8]) -> Option<u64> {
    bytes.split(|byte| *byte == b'\n').find_map(|line| {
        let rest = line.strip_prefix(wanted)?.strip_prefix(b":")?;
        number(words(rest).next()?).map(|kilobytes| kilobytes.saturating_mul(1024))
    })
}

/// The size of huge pages by the name of the kernel's directory about them: `hugepages-2048kB`.
pub(crate) fn page_size(name: &[u8]) -> Option<u64> {
    let kilobytes = name.strip_prefix(b"hugepages-")?.strip_suffix(b"kB")?;
    number(kilobytes)?.checked_mul(1024).filter(|bytes| *bytes > 0)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers() {
        for (text, expected) in [
            ("0\n", Some(0)),
            ("42", Some(42)),
            (" 7 ", Some(7)),
            ("-1\n", Some(0)),
            ("max\n", None),
            ("", None),
            ("-", None),
            ("1x", None),
            ("99999999999999999999999999", Some(u64::MAX)),
        ] {
            assert_eq!(number(text.as_bytes()), expected, "{text:?}");
        }
        let lines: Vec<_> = keyed(b"usage_usec 12\nbad\nuser_usec x\nsystem_usec -3\n").collect();
        assert_eq!(lines, [(b"usage_usec".as_slice(), 12), (b"system_usec".as_slice(), 0)]);
        assert_eq!(cpu_max(b"max 100000\n"), Some((None, 100_000)));
        assert_eq!(cpu_max(b"50000 100000\n"), Some((Some(50_000), 100_000)));
        assert_eq!(cpu_max(b"50000"), None);
    }

    #[test]
    fn sizes_of_huge_pages() {
        for (name, expected) in [
            ("hugepages-2048kB", Some(2 << 20)),
            ("hugepages-1048576kB", Some(1 << 30)),
            ("hugepages-0kB", None),
            ("hugepages-99999999999999999999kB", None),
            ("hugepages-kB", None),
            ("2048kB", None),
        ] {
            assert_eq!(page_size(name.as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn devices() {
        let text =
            b"8:0 rbytes=4096 wbytes=512 rios=1 wios=2 dbytes=0 dios=0\n253:16 \nx:1 rbytes=1\n8:16 cost.usage=3\n";
        let expected =
            IoSample { major: 8, minor: 0, read_bytes: 4096, written_bytes: 512, reads: 1, writes: 2 };
        assert_eq!(io_stat(text), [expected]);
        let lines: Vec<_> = blkio(b"8:0 Read 4096\n8:0 Write 512\nTotal 4608\n").collect();
        assert_eq!(lines, [((8, 0), b"Read".as_slice(), 4096), ((8, 0), b"Write".as_slice(), 512)]);
    }

    #[test]
    fn pressures() {
        let text = b"some avg10=1.50 avg60=0.20 avg300=0.00 total=12345\nfull avg10=0.00 avg60=nan avg300=-1 total=7\n";
        let found = pressure(text).unwrap();
        assert_eq!((found.some.avg10, found.some.avg60, found.some.total_us), (1.5, 0.2, 12_345));
        assert_eq!((found.full.avg60, found.full.avg300, found.full.total_us), (0.0, 0.0, 7));
        assert_eq!(pressure(b""), None);
        assert_eq!(meminfo(b"MemTotal:       16 kB\nSwapTotal: 2 kB\n", b"SwapTotal"), Some(2048));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            number(&bytes);
            keyed(&bytes).count();
            cpu_max(&bytes);
            io_stat(&bytes);
            blkio(&bytes).count();
            pressure(&bytes);
            meminfo(&bytes, b"MemTotal");
            page_size(&bytes);
        }

        #[test]
        fn lines_that_are_nearly_right_are_survived(text in "[ :=\\n0-9a-z.-]{0,200}") {
            io_stat(text.as_bytes());
            pressure(text.as_bytes());
            blkio(text.as_bytes()).count();
        }
    }
}
