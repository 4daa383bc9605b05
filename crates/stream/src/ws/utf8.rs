//! UTF-8 that arrives in parts.

/// Checks a text part by part.
#[derive(Debug, Default)]
pub(crate) struct Utf8Check {
    /// The beginning of a character whose rest has not come yet.
    cut: Vec<u8>,
}

impl Utf8Check {
    /// Whether the text can still be UTF-8 with this part.
    pub(crate) fn push(&mut self, mut part: &[u8]) -> bool {
        while !self.cut.is_empty() {
            let Some((next, rest)) = part.split_first() else { return true };
            self.cut.push(*next);
            part = rest;
            match std::str::from_utf8(&self.cut) {
                Ok(_) => self.cut.clear(),
                Err(error) if error.error_len().is_some() => return false,
                Err(_) => {}
            }
        }
        match std::str::from_utf8(part) {
            Ok(_) => true,
            Err(error) if error.error_len().is_some() => false,
            Err(error) => {
                self.cut = part.get(error.valid_up_to()..).unwrap_or_default().to_vec();
                true
            }
        }
    }

    /// Whether the text may end here.
    pub(crate) fn is_whole(&self) -> bool {
        self.cut.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::Utf8Check;

    #[test]
    fn parts_are_judged_like_the_whole() {
        let texts: [&[u8]; 7] =
            [b"", b"plain", "ä€🦀".as_bytes(), b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xf0\x9f\xa6\x80x\x80"];
        for text in texts {
            for size in 1..=text.len().max(1) {
                let mut check = Utf8Check::default();
                let valid = text.chunks(size).all(|part| check.push(part)) && check.is_whole();
                assert_eq!(valid, std::str::from_utf8(text).is_ok(), "{text:?} in parts of {size}");
            }
        }
    }
}
