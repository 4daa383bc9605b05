//! HPACK's Huffman code (RFC 7541, appendix B), as far as it takes to find where symbols end and to change some of them on the way.

/// How many codes there are of each length in bits. Codes of one length follow one another, and those of the next length follow them.
const COUNTS: [u32; 31] =
    [0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29, 0, 4];
/// The first five bits of a space and of `%`, and nothing else; with the last one set, of `-` and `.`.
const SPACE_OR_PERCENT: (usize, u32) = (5, 0b0_1010);
/// `/`; with the last bit set, `3`.
const SLASH: (usize, u32) = (6, 0b01_1000);

/// Where in a text we are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Symbols {
    /// The bits of the symbol so far, how many they are, and the first code of that length.
    code: u32,
    length: usize,
    first: u32,
}

impl Symbols {
    /// Changes what h2 does not take in an authority and paths have: a space, `%` and `/` become `-`, `.` and `3`, which are of the same
    /// length, so that everything after them stays where it is. Only the bit that was just read is ever changed.
    pub(super) fn pass(&mut self, byte: &mut u8) {
        for bit in (0..8).rev().map(|shift| 1_u8 << shift) {
            let mut code = self.code << 1 | u32::from(*byte & bit != 0);
            let length = self.length + 1;
            if [SPACE_OR_PERCENT, SLASH].contains(&(length, code)) {
                *byte |= bit;
                code |= 1;
            }
            let first = (self.first + COUNTS.get(self.length).copied().unwrap_or(0)) << 1;
            let count = COUNTS.get(length).copied().unwrap_or(0);
            *self = if code.wrapping_sub(first) < count || length + 1 >= COUNTS.len() {
                Self::default()
            } else {
                Self { code, length, first }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes of some characters, of every length up to eight bits and one of thirteen.
    const CODES: &[(char, &str)] = &[
        ('2', "00010"),
        ('a', "00011"),
        ('e', "00101"),
        (' ', "010100"),
        ('%', "010101"),
        ('-', "010110"),
        ('.', "010111"),
        ('/', "011000"),
        ('3', "011001"),
        ('v', "1110111"),
        ('F', "1100001"),
        ('k', "1110101"),
        (':', "1011100"),
        ('X', "11111100"),
        ('~', "1111111111101"),
    ];

    fn encoded(text: &str) -> Vec<u8> {
        let mut bits: String =
            text.chars().map(|wanted| CODES.iter().find(|(it, _)| *it == wanted).unwrap().1).collect();
        while !bits.len().is_multiple_of(8) {
            bits.push('1');
        }
        bits.as_bytes()
            .chunks(8)
            .map(|byte| u8::from_str_radix(std::str::from_utf8(byte).unwrap(), 2).unwrap())
            .collect()
    }

    #[test]
    fn every_code_is_counted() {
        let all: u64 =
            COUNTS.iter().enumerate().map(|(length, count)| u64::from(*count) << (30 - length)).sum();
        assert_eq!(all, 1 << 30, "the codes are all there are");
        assert_eq!(COUNTS.iter().sum::<u32>(), 257);
    }

    #[test]
    fn only_what_is_not_taken_is_changed() {
        for (text, expected) in [
            ("/var/k.a".replace('r', "e"), "3vae3k.a"),
            ("%2Fa%2Fk".to_owned(), ".2Fa.2Fk"),
            ("a a~/X:/".to_owned(), "a-a~3X:3"),
            ("kvXF~2e:a".to_owned(), "kvXF~2e:a"),
        ] {
            let mut bytes = encoded(&text);
            let mut symbols = Symbols::default();
            bytes.iter_mut().for_each(|byte| symbols.pass(byte));
            assert_eq!(bytes, encoded(expected), "{text}");
        }
    }
}
