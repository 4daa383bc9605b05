//! Where the last lines of a file begin.

use std::io::{self, Read, Seek, SeekFrom};

const BLOCK_BYTES: u64 = 64 << 10;

/// Seeks to where the last `lines` lines begin, reading backwards in blocks, and returns that offset. As upstream, a line
/// is what ends in a newline: an unfinished line at the end comes on top, and the pieces of a partial line count singly.
pub(crate) fn seek_to_last_lines<F: Read + Seek>(file: &mut F, lines: u64) -> io::Result<u64> {
    let mut right = file.seek(SeekFrom::End(0))?;
    let mut newlines = 0_u64;
    let mut block = Vec::new();
    while right > 0 {
        let left = right.saturating_sub(BLOCK_BYTES);
        file.seek(SeekFrom::Start(left))?;
        block.clear();
        file.by_ref().take(right - left).read_to_end(&mut block)?;
        for (at, byte) in block.iter().enumerate().rev() {
            if *byte == b'\n' {
                newlines += 1;
                if newlines > lines {
                    return file.seek(SeekFrom::Start(left + at as u64 + 1));
                }
            }
        }
        right = left;
    }
    file.seek(SeekFrom::Start(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    /// What the last lines are, found by splitting the whole text.
    fn naive(text: &[u8], lines: usize) -> usize {
        let ends: Vec<usize> =
            text.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(at, _)| at + 1).collect();
        ends.len().checked_sub(lines + 1).and_then(|index| ends.get(index)).copied().unwrap_or(0)
    }

    #[test]
    fn small_files() {
        for text in ["", "\n", "a", "a\n", "a\nb\nc\n", "a\nb\nunfinished", "\n\n\n"] {
            for lines in 0..5 {
                let found = seek_to_last_lines(&mut Cursor::new(text), lines).unwrap();
                assert_eq!(
                    usize::try_from(found).unwrap(),
                    naive(text.as_bytes(), usize::try_from(lines).unwrap()),
                    "{text:?} {lines}"
                );
            }
        }
    }

    #[test]
    fn across_block_borders() {
        // Line lengths that put newlines just before, on and after the borders of blocks.
        for length in [1, 2, 63, 64, 1023, 65_535, 65_536, 65_537, 100_000] {
            let text = [vec![b'x'; length - 1], vec![b'\n']].concat().repeat(300_000 / length + 3);
            for lines in [0, 1, 2, 7, 1000, 1_000_000] {
                let found = seek_to_last_lines(&mut Cursor::new(&text), lines).unwrap();
                assert_eq!(
                    usize::try_from(found).unwrap(),
                    naive(&text, usize::try_from(lines).unwrap()),
                    "{length} {lines}"
                );
            }
        }
    }
}
