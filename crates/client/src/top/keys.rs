//! What keys send, and what is meant by it.

/// What somebody pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    /// Show what is inside, or hide it.
    Open,
    /// Leave what is open.
    Back,
    Log,
    Help,
    Quit,
    /// Sort by the column of this letter.
    Sort(char),
}

/// Bytes of a sequence that has not ended yet.
#[derive(Debug, Default)]
pub(super) struct Keys {
    rest: Vec<u8>,
}

impl Keys {
    /// The keys that are complete with these bytes.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.rest.extend_from_slice(bytes);
        let mut keys = Vec::new();
        loop {
            let (used, key) = match first(&self.rest) {
                Found::Nothing => break,
                Found::Half => {
                    // The escape key alone sends what longer sequences begin with; nothing follows it at once.
                    if self.rest == [0x1b] {
                        self.rest.clear();
                        keys.push(Key::Back);
                    }
                    break;
                }
                Found::Key(used, key) => (used, key),
            };
            self.rest.drain(..used.min(self.rest.len()));
            keys.extend(key);
        }
        // Nobody types so much of a sequence that is none.
        if self.rest.len() > 16 {
            self.rest.clear();
        }
        keys
    }
}

enum Found {
    Nothing,
    Half,
    Key(usize, Option<Key>),
}

fn first(bytes: &[u8]) -> Found {
    match bytes {
        [] => Found::Nothing,
        [0x1b, b'[' | b'O', rest @ ..] => {
            let Some(end) = rest.iter().position(|byte| (0x40..=0x7e).contains(byte)) else {
                return Found::Half;
            };
            let key = match rest.get(..=end).unwrap_or_default() {
                b"A" => Some(Key::Up),
                b"B" => Some(Key::Down),
                b"C" => Some(Key::Open),
                b"D" => Some(Key::Back),
                b"H" | b"1~" | b"7~" => Some(Key::First),
                b"F" | b"4~" | b"8~" => Some(Key::Last),
                b"5~" => Some(Key::PageUp),
                b"6~" => Some(Key::PageDown),
                _ => None,
            };
            Found::Key(3 + end, key)
        }
        [0x1b] => Found::Half,
        [0x1b, ..] => Found::Key(1, Some(Key::Back)),
        [byte, ..] => Found::Key(
            1,
            match byte {
                b'k' => Some(Key::Up),
                b'j' => Some(Key::Down),
                b'g' => Some(Key::First),
                b'G' => Some(Key::Last),
                b'\r' | b'\n' | b' ' => Some(Key::Open),
                0x7f | 0x08 => Some(Key::Back),
                b'l' => Some(Key::Log),
                b'?' | b'h' => Some(Key::Help),
                // Ctrl-C and Ctrl-D.
                b'q' | 3 | 4 => Some(Key::Quit),
                b'a' | b'c' | b'm' | b'i' | b'n' | b'd' | b'r' => Some(Key::Sort(char::from(*byte))),
                _ => None,
            },
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_their_sequences() {
        for (bytes, expected) in [
            (&b"j"[..], &[Key::Down][..]),
            (b"\x1b[A", &[Key::Up]),
            (b"\x1bOB", &[Key::Down]),
            (b"\x1b[5~\x1b[6~", &[Key::PageUp, Key::PageDown]),
            (b"\x1b", &[Key::Back]),
            (b"\x1bq", &[Key::Back, Key::Quit]),
            (b"\x1b[1;5Zx\xff\x00", &[]),
            (b"cm\rl?q", &[Key::Sort('c'), Key::Sort('m'), Key::Open, Key::Log, Key::Help, Key::Quit]),
            (b"\x03", &[Key::Quit]),
            (b"", &[]),
        ] {
            assert_eq!(Keys::default().add(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn a_sequence_that_comes_in_pieces_and_one_that_never_ends() {
        let mut keys = Keys::default();
        assert_eq!(keys.add(b"\x1b["), []);
        assert_eq!(keys.add(b"A"), [Key::Up]);
        assert_eq!(keys.add(&[b"\x1b[".as_slice(), &[b'1'; 100]].concat()), []);
        assert_eq!(keys.add(b"q"), [Key::Quit]);
    }
}
