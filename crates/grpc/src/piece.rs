//! An answer on its way: pieces that are made when there is room for them, and that know when they have been taken.
//!
//! HTTP/2 keeps what a client has not taken, for as long as the client likes. So no more than pieces are handed to it, each a copy: one that
//! were a part of something larger would keep alive all that it was cut from. The same piece may go to many.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::task::AtomicWaker;

use crate::{peer::CallPlace, wire::Status};

/// A frame of HTTP/2.
pub(crate) const PIECE: usize = 16 << 10;
/// What a part may have before its body.
const MOST_OF_HEAD: usize = 16;
/// So much of a part is kept for whoever is in the middle of it, that he can be told its end whatever becomes of the rest.
const KEPT_OF_PART: usize = 64 << 10;

/// How far somebody has come in an answer of many parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursor {
    /// The next one.
    part: usize,
    /// What of its body has been told; then its head has been, too.
    offset: usize,
    /// What is left of the one before it.
    rest: Bytes,
}

impl Cursor {
    /// The next piece of at most [`PIECE`] bytes; empty after the last. `part` says of each number, until there are no more, what its body is, and writes its
    /// head where one is wanted.
    pub(crate) fn fill(
        &mut self,
        mut part: impl FnMut(usize, Option<&mut BytesMut>) -> Result<Option<Bytes>, Status>,
    ) -> Result<Bytes, Status> {
        let mut piece = BytesMut::with_capacity(PIECE);
        let count = self.rest.len().min(PIECE);
        piece.extend_from_slice(&self.rest.split_to(count));
        while piece.len() + MOST_OF_HEAD < PIECE {
            let head = (self.offset == 0).then_some(&mut piece);
            let Some(body) = part(self.part, head)? else { break };
            let left = body.slice(self.offset.min(body.len())..);
            let count = left.len().min(PIECE - piece.len());
            piece.extend_from_slice(left.get(..count).unwrap_or_default());
            if left.len() - count > KEPT_OF_PART {
                self.offset += count;
            } else {
                self.rest = left.slice(count..);
                (self.part, self.offset) = (self.part + 1, 0);
            }
        }
        // What waits is counted by what it holds, not by the room that it was made in.
        Ok(if piece.len() < PIECE / 2 { Bytes::copy_from_slice(&piece) } else { piece.freeze() })
    }

    /// Whether all of so many parts have been told, but for the rest of the last.
    pub(crate) fn has_told(&self, parts: usize) -> bool {
        self.part >= parts
    }

    /// Begins with other parts. What is left of the last one is told first.
    pub(crate) fn begin_anew(&mut self) {
        (self.part, self.offset) = (0, 0);
    }

    /// The next piece of what is left of the last part, when there will be no other.
    pub(crate) fn rest(&mut self) -> Option<Bytes> {
        let count = self.rest.len().min(PIECE);
        (count > 0).then(|| Bytes::copy_from_slice(&self.rest.split_to(count)))
    }
}

/// What of an answer is with HTTP/2, and the caller's place meanwhile.
pub(crate) struct Lent {
    pieces: AtomicUsize,
    all_taken: AtomicWaker,
    _place: CallPlace,
}

impl Lent {
    pub(crate) fn new(place: CallPlace) -> Arc<Self> {
        Arc::new(Self { pieces: AtomicUsize::new(0), all_taken: AtomicWaker::new(), _place: place })
    }

    pub(crate) fn piece(self: &Arc<Self>, bytes: Bytes) -> Piece {
        self.pieces.fetch_add(1, Ordering::AcqRel);
        Piece { bytes, lent: Arc::clone(self) }
    }

    /// Ready when the client has taken all.
    pub(crate) fn poll_taken(&self, context: &Context<'_>) -> Poll<()> {
        self.all_taken.register(context.waker());
        if self.pieces.load(Ordering::Acquire) == 0 { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("pieces", &self.pieces).finish_non_exhaustive()
    }
}

/// Some bytes of an answer.
#[derive(Debug)]
pub(crate) struct Piece {
    bytes: Bytes,
    lent: Arc<Lent>,
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if self.lent.pieces.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.lent.all_taken.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BufMut as _;

    use super::*;

    /// All pieces of parts that are so long, and the parts one behind the other with their heads.
    fn told(lengths: &[usize]) -> (Vec<Bytes>, Vec<u8>) {
        let body = |at: usize, length: usize| Bytes::from(vec![u8::try_from(at % 251).unwrap(); length]);
        let mut cursor = Cursor::default();
        let mut pieces = Vec::new();
        loop {
            let piece = cursor
                .fill(|at, head| {
                    let Some(length) = lengths.get(at) else { return Ok(None) };
                    if let Some(head) = head {
                        head.put_u64(*length as u64);
                    }
                    Ok(Some(body(at, *length)))
                })
                .unwrap();
            if piece.is_empty() {
                break;
            }
            pieces.push(piece);
        }
        assert!(cursor.has_told(lengths.len()) && cursor.rest().is_none());
        let all = lengths
            .iter()
            .enumerate()
            .flat_map(|(at, length)| [&(*length as u64).to_be_bytes()[..], &body(at, *length)].concat());
        (pieces, all.collect())
    }

    #[test]
    fn pieces_are_full_and_nothing_is_lost_between_them() {
        for lengths in [
            vec![],
            vec![0, 1, 0],
            vec![PIECE - 8, 5, PIECE],
            vec![3 * KEPT_OF_PART, 1, 2 * KEPT_OF_PART],
            (0..200).map(|number| number * 37 % 3000).collect(),
        ] {
            let (pieces, all) = told(&lengths);
            assert_eq!(pieces.concat(), all, "{lengths:?}");
            let rest = pieces.len().saturating_sub(1);
            let short = pieces.iter().take(rest).filter(|piece| piece.len() + MOST_OF_HEAD < PIECE);
            assert_eq!(short.count(), 0, "{lengths:?}");
        }
    }

    /// Whoever is in the middle of a part that goes away can be told its end if that is short, and keeps nothing of one that is long.
    #[test]
    fn the_end_of_a_part_is_kept_if_it_is_short() {
        for (length, kept) in [(PIECE + KEPT_OF_PART, KEPT_OF_PART), (PIECE + KEPT_OF_PART + 1, 0)] {
            let body = Bytes::from(vec![1; length]);
            let mut cursor = Cursor::default();
            let piece = cursor.fill(|at, _| Ok((at == 0).then(|| body.clone()))).unwrap();
            assert_eq!(piece.len(), PIECE);
            let rest: usize = std::iter::from_fn(|| cursor.rest()).map(|piece| piece.len()).sum();
            assert_eq!(rest, kept, "{length}");
        }
    }
}
