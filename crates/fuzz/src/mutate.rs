//! Small changes to inputs, from a seed.

/// An input never grows beyond this: parsers' bounds are tested elsewhere, and speed finds more than size.
const MAX_BYTES: usize = 16 << 10;

/// Numbers at which readers go wrong.
const EDGES: &[&str] = &[
    "0",
    "-1",
    "1",
    "127",
    "128",
    "255",
    "256",
    "65535",
    "65536",
    "2147483647",
    "2147483648",
    "4294967295",
    "-9223372036854775808",
    "9223372036854775807",
    "18446744073709551615",
    "1e999",
    "0.1",
    "1Ei",
    "100m",
    "-0",
    "0x10",
    "NaN",
    "00",
    "3.5s",
    "9999999h",
];

/// Pieces that mean something to one reader or another.
const PIECES: &[&str] = &[
    "\n",
    "\r\n",
    "\t",
    " ",
    "---\n",
    "...",
    ": ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    ",",
    "\"",
    "'",
    "#",
    "&a",
    "*a",
    "<<: ",
    "!!binary ",
    "|\n",
    ">-\n",
    "null",
    "true",
    "~",
    "%",
    "%2f",
    "%00",
    "%zz",
    "+",
    ";",
    "..",
    "//",
    "/./",
    "?",
    "=",
    "é",
    "\u{feff}",
    "\u{2028}",
    "\0",
    "-",
    ".",
    "@",
    "$(A)",
    "$$",
    "name",
    "kind: List\nitems:\n",
    "2026-01-02T03:04:05.678901234Z stdout P ",
    " F ",
    "metadata:",
    "spec:",
    "containers:",
];

/// A source of changes that gives the same ones for the same seed.
#[derive(Clone, Debug)]
pub struct Mutator {
    state: u64,
}

impl Mutator {
    /// Begins at a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number (splitmix64).
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.number() % bound).unwrap_or(0)
    }

    /// `input` after one to eight changes, some of them with pieces of `other`.
    pub fn change(&mut self, input: &[u8], other: &[u8]) -> Vec<u8> {
        let mut bytes = input.to_vec();
        for _ in 0..=self.below(8) {
            self.change_once(&mut bytes, other);
        }
        bytes.truncate(MAX_BYTES);
        bytes
    }

    fn change_once(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        let (from, to) = self.range(bytes.len());
        match self.below(11) {
            0 => {
                if let Some(byte) = bytes.get_mut(from) {
                    *byte ^= 1 << self.below(8);
                }
            }
            1 => {
                let new = u8::try_from(self.number() & 0xff).unwrap_or(0);
                if let Some(byte) = bytes.get_mut(from) {
                    *byte = new;
                }
            }
            2 => drop(bytes.drain(from..to)),
            3 => {
                let piece = bytes.get(from..to).unwrap_or_default().to_vec();
                self.insert(bytes, &piece);
            }
            4 => {
                let (from, to) = self.range(other.len());
                self.insert(bytes, other.get(from..to).unwrap_or_default());
            }
            5 | 6 => {
                let piece = PIECES.get(self.below(PIECES.len())).copied().unwrap_or_default();
                self.insert(bytes, piece.as_bytes());
            }
            7 => self.change_number(bytes),
            8 => bytes.truncate(from),
            9 => {
                // A length or a count, in one to four bytes.
                let value = [0, 1, 0x7f, 0x80, 0xff][self.below(5)];
                let end = (from + 1 + self.below(4)).min(bytes.len());
                bytes.get_mut(from..end).unwrap_or_default().fill(value);
            }
            _ => {
                // Two lines change places, or one is there twice.
                let mut lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
                let (a, b) = (self.below(lines.len()), self.below(lines.len()));
                if a < lines.len() && b < lines.len() {
                    if self.below(2) == 0 { lines.swap(a, b) } else { lines.insert(a, lines[b]) }
                }
                *bytes = lines.concat();
            }
        }
    }

    /// Replaces one run of digits by a number at an edge.
    fn change_number(&mut self, bytes: &mut Vec<u8>) {
        let starts: Vec<usize> = (0..bytes.len())
            .filter(|at| {
                let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
                digit(*at) && at.checked_sub(1).is_none_or(|before| !digit(before))
            })
            .collect();
        let Some(&start) = starts.get(self.below(starts.len())) else { return };
        let length = bytes.iter().skip(start).take_while(|byte| byte.is_ascii_digit()).count();
        let edge = EDGES.get(self.below(EDGES.len())).copied().unwrap_or_default();
        bytes.splice(start..start + length, edge.bytes());
    }

    fn insert(&mut self, bytes: &mut Vec<u8>, piece: &[u8]) {
        let at = self.below(bytes.len() + 1);
        bytes.splice(at..at, piece.iter().copied());
    }

    /// A piece of so many bytes, mostly a short one.
    fn range(&mut self, length: usize) -> (usize, usize) {
        let from = self.below(length);
        let longest = if self.below(4) == 0 { length } else { 16 };
        (from, (from + self.below(longest) + 1).min(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_inputs() {
        let many = |seed| {
            let mut mutator = Mutator::new(seed);
            let mut bytes = b"replicas: 12\nname: a\n".to_vec();
            (0..500)
                .map(|_| {
                    bytes = mutator.change(&bytes, b"other: [1, 2]\n");
                    bytes.clone()
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(many(1), many(1));
        assert_ne!(many(1), many(2));
        assert!(many(3).iter().all(|input| input.len() <= MAX_BYTES));
    }
}
