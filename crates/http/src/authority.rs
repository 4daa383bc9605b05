//! Clients that name a unix socket's path as the authority.
//!
//! gRPC's C core (Python, C++, Ruby), grpc-java, grpc-go where a bare path is dialled, and others send `:authority: run%2Fkubelet.sock` or the
//! path itself, which Go's server takes and the h2 crate refuses with PROTOCOL_ERROR before anybody sees the request (hyperium/h2#487).
//! Nobody here looks at the authority, so on the way in the characters that h2 does not take are replaced, each by one of the same length:
//! lengths stay, and what HPACK keeps in its table is replaced as well. Everything else passes as it came.

mod huffman;

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use huffman::Symbols;

const PREFACE: usize = 24;
const FRAME_HEAD: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;
/// HPACK's static table begins with it.
const AUTHORITY_INDEX: usize = 1;
const AUTHORITY: &[u8] = b":authority";

/// A connection whose client may say such things.
#[derive(Debug)]
pub struct Tolerant<S> {
    stream: S,
    frames: Frames,
}

impl<S> Tolerant<S> {
    /// Around a connection that was accepted.
    pub fn new(stream: S) -> Self {
        Self { stream, frames: Frames::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Tolerant<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if let Some(new) = buffer.filled_mut().get_mut(before..) {
            for byte in new {
                self.frames.pass(byte);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tolerant<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Where in the stream of frames we are.
#[derive(Debug)]
struct Frames {
    place: Place,
    fields: Fields,
}

impl Default for Frames {
    fn default() -> Self {
        Self { place: Place::Preface { left: PREFACE }, fields: Fields::Begin }
    }
}

#[derive(Debug)]
enum Place {
    Preface {
        left: usize,
    },
    Head {
        bytes: [u8; FRAME_HEAD],
        seen: usize,
    },
    /// In front of the fields: the length of padding, a priority.
    Prelude {
        padded: bool,
        skip: usize,
        padding: usize,
        left: usize,
    },
    Fields {
        left: usize,
        padding: usize,
    },
    /// Anything else.
    Rest {
        left: usize,
    },
}

impl Place {
    const HEAD: Self = Self::Head { bytes: [0; FRAME_HEAD], seen: 0 };

    fn after_head(bytes: [u8; FRAME_HEAD]) -> (Self, bool) {
        let [a, b, c, kind, flags, ..] = bytes;
        let left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        match kind {
            HEADERS => {
                let (padded, skip) = (flags & PADDED != 0, if flags & PRIORITY != 0 { 5 } else { 0 });
                (Self::prelude(padded, skip, 0, left), true)
            }
            CONTINUATION => (Self::fields(left, 0), false),
            _ => (Self::rest(left), false),
        }
    }

    fn prelude(padded: bool, skip: usize, padding: usize, left: usize) -> Self {
        if left > 0 && (padded || skip > 0) {
            Self::Prelude { padded, skip, padding, left }
        } else {
            Self::fields(left, padding)
        }
    }

    fn fields(left: usize, padding: usize) -> Self {
        if left > padding { Self::Fields { left, padding } } else { Self::rest(left) }
    }

    fn rest(left: usize) -> Self {
        if left == 0 { Self::HEAD } else { Self::Rest { left } }
    }
}

impl Frames {
    fn pass(&mut self, byte: &mut u8) {
        self.place = match std::mem::replace(&mut self.place, Place::HEAD) {
            Place::Preface { left: 1 } => Place::HEAD,
            Place::Preface { left } => Place::Preface { left: left - 1 },
            Place::Head { mut bytes, seen } => {
                bytes[seen] = *byte;
                if seen + 1 < FRAME_HEAD {
                    Place::Head { bytes, seen: seen + 1 }
                } else {
                    let (place, begins) = Place::after_head(bytes);
                    if begins {
                        self.fields = Fields::Begin;
                    }
                    place
                }
            }
            Place::Prelude { padded: true, skip, left, .. } => {
                Place::prelude(false, skip, usize::from(*byte), left - 1)
            }
            Place::Prelude { padded: false, skip, padding, left } => {
                Place::prelude(false, skip - 1, padding, left - 1)
            }
            Place::Fields { left, padding } => {
                self.fields.pass(byte);
                Place::fields(left - 1, padding)
            }
            Place::Rest { left } => Place::rest(left - 1),
        };
    }
}

/// Where in a block of HPACK's representations we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fields {
    Begin,
    /// A number goes on; then this.
    Number {
        value: usize,
        shift: u32,
        then: Then,
    },
    /// A string's length comes next.
    Length {
        role: Role,
    },
    Text {
        left: usize,
        huffman: bool,
        role: Role,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// Nothing more of this representation.
    Begin,
    /// It was the index of a name.
    Name,
    /// It was a length.
    Text { huffman: bool, role: Role },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// How much of it is `:authority` so far; `None` if it is not.
    Name {
        same: Option<usize>,
    },
    Value {
        authority: bool,
        symbols: Symbols,
    },
}

impl Role {
    fn value(authority: bool) -> Self {
        Self::Value { authority, symbols: Symbols::default() }
    }
}

impl Fields {
    fn pass(&mut self, byte: &mut u8) {
        *self = match *self {
            Self::Begin => {
                let (bits, then) = match *byte {
                    0x80.. => (7, Then::Begin),
                    0x40..=0x7f => (6, Then::Name),
                    0x20..=0x3f => (5, Then::Begin),
                    0..=0x1f => (4, Then::Name),
                };
                Self::number(*byte, bits, then)
            }
            Self::Number { value, shift, then } => {
                // More than h2 itself takes; it will end the connection.
                let more = usize::from(*byte & 0x7f).checked_shl(shift).unwrap_or(usize::MAX);
                let value = value.saturating_add(more);
                if *byte & 0x80 != 0 {
                    Self::Number { value, shift: shift.saturating_add(7), then }
                } else {
                    then.with(value)
                }
            }
            Self::Length { role } => Self::number(*byte, 7, Then::Text { huffman: *byte & 0x80 != 0, role }),
            Self::Text { left, huffman, role } => {
                let role = match role {
                    Role::Name { same } => {
                        let same = same.filter(|at| !huffman && AUTHORITY.get(*at) == Some(byte));
                        Role::Name { same: same.map(|at| at + 1) }
                    }
                    Role::Value { authority: true, mut symbols } if huffman => {
                        symbols.pass(byte);
                        Role::Value { authority: true, symbols }
                    }
                    Role::Value { authority, .. } => {
                        if authority && !is_fine(*byte) {
                            *byte = b'-';
                        }
                        role
                    }
                };
                Self::text(left - 1, huffman, role)
            }
        };
    }

    /// A number that begins in the low bits of a byte.
    fn number(byte: u8, bits: u32, then: Then) -> Self {
        let most = (1_u8 << bits) - 1;
        let value = byte & most;
        if value == most {
            Self::Number { value: usize::from(value), shift: 0, then }
        } else {
            then.with(usize::from(value))
        }
    }

    fn text(left: usize, huffman: bool, role: Role) -> Self {
        match role {
            role if left > 0 => Self::Text { left, huffman, role },
            Role::Name { same } => Self::Length { role: Role::value(same == Some(AUTHORITY.len())) },
            Role::Value { .. } => Self::Begin,
        }
    }
}

impl Then {
    fn with(self, value: usize) -> Fields {
        match self {
            Self::Begin => Fields::Begin,
            Self::Name if value == 0 => Fields::Length { role: Role::Name { same: Some(0) } },
            Self::Name => Fields::Length { role: Role::value(value == AUTHORITY_INDEX) },
            Self::Text { huffman, role } => Fields::text(value, huffman, role),
        }
    }
}

/// What an authority may have, without looking at where.
fn is_fine(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b':' | b'@' | b'[' | b']')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn passed(bytes: &[u8]) -> Vec<u8> {
        let mut frames = Frames::default();
        let mut bytes = bytes.to_vec();
        bytes.iter_mut().for_each(|byte| frames.pass(byte));
        bytes
    }

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    fn string(text: &[u8]) -> Vec<u8> {
        [&[u8::try_from(text.len()).unwrap()], text].concat()
    }

    fn connection(frames: &[Vec<u8>]) -> Vec<u8> {
        [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frames.concat()].concat()
    }

    #[test]
    fn the_path_of_a_socket_becomes_a_name() {
        let named = |value: &[u8]| [&[0x40][..], &string(b":authority"), &string(value)].concat();
        let indexed = |value: &[u8]| [&[0x01][..], &string(value)].concat();
        let other =
            [&[0x40][..], &string(b":path"), &string(b"/v1.X/%2F"), &[0x83, 0x3f, 0xe1, 0x1f]].concat();
        let pad = |block: &[u8]| [&[3][..], block, b"/%/"].concat();
        let both = |block: &[u8]| [&[3, 0, 0, 0, 0, 9][..], block, b"/%/"].concat();
        let block = |authority: Vec<u8>| [&other[..], &authority, &other].concat();
        let all = |value: &[u8]| {
            connection(&[
                frame(4, 0, b"/%/%/%"),
                frame(1, 4, &block(named(value))),
                frame(0, 1, b"@\n:authority\x02/%"),
                frame(1, 4, &block(indexed(value))),
                frame(1, 4 | PADDED, &pad(&block(named(value)))),
                frame(1, 4 | PADDED | PRIORITY, &both(&block(indexed(value)))),
                frame(1, PRIORITY, &[&[0, 0, 0, 0, 9][..], &other].concat()),
                frame(9, 4, &block(named(value))),
                frame(1, 4, b""),
                frame(1, 4 | PADDED, &[0]),
                frame(1, 4, &named(value)),
            ])
        };
        assert_eq!(passed(&all(b"run%2Fkubelet.sock")), all(b"run-2Fkubelet.sock"));
        assert_eq!(passed(&all(b"/run/a b.sock")), all(b"-run-a-b.sock"));
        assert_eq!(passed(&all(b"localhost:10250")), all(b"localhost:10250"));
        assert_eq!(passed(&all(b"")), all(b""));
        let long = [b'%'; 126];
        assert_eq!(passed(&all(&long)), all(&[b'-'; 126]));
        // Longer than seven bits: 127 and the rest.
        let very = |value: u8| {
            connection(&[frame(1, 4, &[&[0x41, 0x7f, 0x80 | 73, 1][..], &[value; 328], &[0x82]].concat())])
        };
        assert_eq!(passed(&very(b'/')), very(b'-'));
        // Coded, as Go's clients do: `/a%2e` becomes `3a.2e`.
        let coded =
            |value: [u8; 4]| connection(&[frame(1, 4, &[&[0x41, 0x84][..], &value, &[0x82]].concat())]);
        assert_eq!(passed(&coded([0x60, 0x6a, 0x88, 0xbf])), coded([0x64, 0x6b, 0x88, 0xbf]));
        // Split in the middle of the value.
        let split = |value: &[u8]| {
            let block = named(value);
            let (one, two) = block.split_at(block.len() - 2);
            connection(&[frame(1, 0, one), frame(9, 4, two)])
        };
        assert_eq!(passed(&split(b"a%2Fb/c")), split(b"a-2Fb-c"));
    }

    proptest! {
        /// Whatever comes, nothing but single bytes is changed, in a coded text by setting bits, and nothing panics.
        #[test]
        fn anything_passes(frames in proptest::collection::vec((0_u8..12, any::<u8>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..8), tail in proptest::collection::vec(any::<u8>(), 0..40)) {
            let frames: Vec<_> = frames.into_iter().map(|(kind, flags, payload)| frame(kind, flags, &payload)).collect();
            let bytes = [connection(&frames), tail].concat();
            let out = passed(&bytes);
            prop_assert_eq!(out.len(), bytes.len());
            prop_assert!(bytes.iter().zip(&out).all(|(before, after)| before & after == *before || *after == b'-'));
        }
    }
}
