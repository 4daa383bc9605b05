//! Until when a certificate is good. Just enough DER for that; what is malformed says nothing.

use jiff::{Timestamp, civil, tz::TimeZone};
use rustls::pki_types::{CertificateDer, pem::PemObject};

/// When the first certificate of a PEM text ended, if it has.
pub(crate) fn expired(pem: &[u8]) -> Option<Timestamp> {
    span_of_pem(pem).map(|(_, end)| end).filter(|end| *end < Timestamp::now())
}

/// From when until when the first certificate of a PEM text is good.
pub(crate) fn span_of_pem(pem: &[u8]) -> Option<(Timestamp, Timestamp)> {
    span(&CertificateDer::from_pem_slice(pem).ok()?)
}

/// From when until when a certificate (DER) is good; `None` if it does not say so in a way that can be understood.
#[must_use]
pub fn span(certificate: &[u8]) -> Option<(Timestamp, Timestamp)> {
    let (outer, _) = element(certificate, 0x30)?;
    let (mut fields, _) = element(outer, 0x30)?;
    if fields.first() == Some(&0xa0) {
        fields = any(fields)?.2;
    }
    // Serial number, signature algorithm, issuer.
    for _ in 0..3 {
        fields = any(fields)?.2;
    }
    let (validity, _) = element(fields, 0x30)?;
    let (tag, begin, rest) = any(validity)?;
    let (end_tag, end, _) = any(rest)?;
    Some((time(tag, begin)?, time(end_tag, end)?))
}

fn time(tag: u8, text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, rest) = match tag {
        // UTCTime: two digits, of 1950 to 2049.
        0x17 => {
            let (year, rest) = text.split_at_checked(2)?;
            let year: i16 = year.parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        0x18 => {
            let (year, rest) = text.split_at_checked(4)?;
            (year.parse().ok()?, rest)
        }
        _ => return None,
    };
    let mut numbers = [0_i8; 5];
    let mut rest = rest;
    for number in &mut numbers {
        let (digits, after) = rest.split_at_checked(2)?;
        *number = digits.parse().ok()?;
        rest = after;
    }
    let [month, day, hour, minute, second] = numbers;
    let date = civil::DateTime::new(year, month, day, hour, minute, second, 0).ok()?;
    Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    any(bytes).filter(|(found, _, _)| *found == tag).map(|(_, content, rest)| (content, rest))
}

/// Tag and content of the first element, and what is behind it.
fn any(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first >= 0x80 {
        let count = usize::from(first & 0x7f);
        // Four bytes of length are more than any certificate has.
        if !(1..=4).contains(&count) {
            return None;
        }
        let (digits, after) = rest.split_at_checked(count)?;
        length = digits.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        rest = after;
    }
    let (content, after) = rest.split_at_checked(length)?;
    Some((tag, content, after))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    #[test]
    fn the_span_of_real_certificates() {
        for (from, to, begin, end) in
            [(2020, 2030, "2020-01-01", "2030-01-01"), (1999, 2999, "1999-01-01", "2999-01-01")]
        {
            let mut params = CertificateParams::new(vec!["a".into()]).unwrap();
            params.not_before = rcgen::date_time_ymd(from, 1, 1);
            params.not_after = rcgen::date_time_ymd(to, 1, 1);
            let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            let (first, last) = span(made.der()).unwrap();
            assert_eq!(first.to_string(), format!("{begin}T00:00:00Z"));
            assert_eq!(last.to_string(), format!("{end}T00:00:00Z"));
            for length in 0..60 {
                assert_eq!(span(&made.der()[..length]), None);
            }
        }
    }
}
