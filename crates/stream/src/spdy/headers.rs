//! Header blocks: names and values, and the zlib stream that carries them.
//!
//! One zlib stream per direction lives as long as the connection and begins with SPDY's dictionary. flate2's Rust backend
//! cannot be given a dictionary, and does not have to be: to a raw DEFLATE decoder, a stored block with the
//! dictionary in front of everything is the same thing. Our own blocks are stored, not compressed (DEFLATE's level 0): a session
//! has a handful of headers of some forty bytes, for which a compressor would cost 300 KB of memory per connection.

use std::fmt;

use flate2::{Decompress, FlushDecompress, Status};

use super::dictionary::{DICTIONARY, DICTIONARY_ID};
use super::frame::FrameError;

/// The zlib header of a stream that was begun with a dictionary: method 8, window 32 KiB, FDICT, check bits.
const ZLIB_WITH_DICTIONARY: [u8; 2] = [0x78, 0xbb];
/// The FDICT bit of the second byte.
const FDICT: u8 = 0x20;
/// The longest stored block of DEFLATE.
const MAX_STORED_BYTES: usize = 0xffff;
/// As many headers as spdystream takes.
const MAX_HEADERS: u32 = 1000;

/// The headers of a stream: lower-case names with their values, in the order in which they came.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// The first value of a header; the name's case does not matter.
    pub fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        // Several values of one name are joined with NUL bytes.
        value.split('\0').next()
    }

    /// Adds a header. A second value for the same name is joined to the first.
    pub fn insert(&mut self, name: &str, value: &str) {
        let name = name.to_ascii_lowercase();
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, values)) => {
                values.push('\0');
                values.push_str(value);
            }
            None => self.0.push((name, value.to_owned())),
        }
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn encode(&self) -> Vec<u8> {
        let mut block = Vec::new();
        push_length(&mut block, self.0.len());
        for (name, value) in &self.0 {
            for text in [name, value] {
                push_length(&mut block, text.len());
                block.extend_from_slice(text.as_bytes());
            }
        }
        block
    }

    fn decode(block: &[u8]) -> Result<Self, FrameError> {
        let mut rest = block;
        let count = take_length(&mut rest)?;
        if count > MAX_HEADERS {
            return Err(FrameError::TooManyHeaders);
        }
        let mut headers = Vec::new();
        for _ in 0..count {
            let name = take_text(&mut rest)?;
            let value = take_text(&mut rest)?;
            let bad_name = name.is_empty() || name.bytes().any(|byte| byte.is_ascii_uppercase());
            if bad_name || headers.iter().any(|(known, _)| *known == name) {
                return Err(FrameError::BadHeaders);
            }
            headers.push((name, value));
        }
        Ok(Self(headers))
    }
}

impl<N: AsRef<str>, V: AsRef<str>> FromIterator<(N, V)> for Headers {
    fn from_iter<T: IntoIterator<Item = (N, V)>>(pairs: T) -> Self {
        let mut headers = Self::default();
        for (name, value) in pairs {
            headers.insert(name.as_ref(), value.as_ref());
        }
        headers
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(name, value)| (name, value))).finish()
    }
}

fn push_length(block: &mut Vec<u8>, length: usize) {
    // Frames end at 16 MiB, so nothing that is ever sent comes near the bound.
    block.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
}

fn take_length(rest: &mut &[u8]) -> Result<u32, FrameError> {
    let (length, after) = rest.split_first_chunk().ok_or(FrameError::BadHeaders)?;
    *rest = after;
    Ok(u32::from_be_bytes(*length))
}

fn take_text(rest: &mut &[u8]) -> Result<String, FrameError> {
    let length = usize::try_from(take_length(rest)?).map_err(|_| FrameError::BadHeaders)?;
    let (text, after) = rest.split_at_checked(length).ok_or(FrameError::BadHeaders)?;
    *rest = after;
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// Makes the outgoing zlib stream.
#[derive(Debug, Default)]
pub(crate) struct HeaderEncoder {
    begun: bool,
}

impl HeaderEncoder {
    /// The bytes of the next header block.
    pub(crate) fn encode(&mut self, headers: &Headers) -> Vec<u8> {
        let mut bytes = Vec::new();
        if !self.begun {
            self.begun = true;
            bytes.extend_from_slice(&ZLIB_WITH_DICTIONARY);
            bytes.extend_from_slice(&DICTIONARY_ID.to_be_bytes());
        }
        for part in headers.encode().chunks(MAX_STORED_BYTES) {
            push_stored(&mut bytes, part);
        }
        // What zlib's sync flush ends with. Go's decoder hands nothing out before it.
        push_stored(&mut bytes, &[]);
        bytes
    }
}

/// Appends a stored block that is not the last one.
fn push_stored(bytes: &mut Vec<u8>, part: &[u8]) {
    let length = u16::try_from(part.len()).unwrap_or(u16::MAX);
    bytes.push(0);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&(!length).to_le_bytes());
    bytes.extend_from_slice(part);
}

/// Reads the incoming zlib stream.
#[derive(Debug)]
pub(crate) struct HeaderDecoder {
    max_block_bytes: usize,
    /// Made with the first block: it holds a window of 32 KiB.
    inflate: Option<Decompress>,
}

impl HeaderDecoder {
    /// A decoder that refuses blocks which are longer than this when unpacked.
    pub(crate) fn new(max_block_bytes: usize) -> Self {
        Self { max_block_bytes, inflate: None }
    }

    /// The headers of the next block. After an error the stream cannot be read on.
    pub(crate) fn decode(&mut self, compressed: &[u8]) -> Result<Headers, FrameError> {
        let mut rest = compressed;
        let inflate = match &mut self.inflate {
            Some(inflate) => inflate,
            None => {
                let primed = begin(&mut rest)?;
                self.inflate.insert(primed)
            }
        };
        // One byte more than allowed shows that a block is too long.
        let mut block = Vec::with_capacity(rest.len().saturating_mul(4).clamp(64, self.max_block_bytes + 1));
        loop {
            let before = (inflate.total_in(), inflate.total_out());
            let status = inflate
                .decompress_vec(rest, &mut block, FlushDecompress::Sync)
                .map_err(|_| FrameError::BadCompression)?;
            let consumed = inflate.total_in() - before.0;
            rest = usize::try_from(consumed).ok().and_then(|n| rest.get(n..)).unwrap_or_default();
            if status == Status::StreamEnd {
                return Err(FrameError::BadCompression);
            }
            if block.len() > self.max_block_bytes {
                return Err(FrameError::HeadersTooLong { limit: self.max_block_bytes });
            }
            if block.len() == block.capacity() {
                block.reserve((self.max_block_bytes + 1 - block.len()).min(block.len()));
            } else if rest.is_empty() {
                return Headers::decode(&block);
            } else if before == (inflate.total_in(), inflate.total_out()) {
                return Err(FrameError::BadCompression);
            }
        }
    }
}

/// Reads the zlib header and gives a decoder that knows the dictionary.
fn begin(rest: &mut &[u8]) -> Result<Decompress, FrameError> {
    let (header, after) = rest.split_first_chunk::<2>().ok_or(FrameError::BadCompression)?;
    *rest = after;
    let [method, flags] = *header;
    if method & 0x0f != 8 || method >> 4 > 7 || u16::from_be_bytes(*header) % 31 != 0 {
        return Err(FrameError::BadCompression);
    }
    let mut inflate = Decompress::new(false);
    // zlib leaves it to the sender whether it begins with the dictionary.
    if flags & FDICT != 0 {
        let (id, after) = rest.split_first_chunk::<4>().ok_or(FrameError::BadCompression)?;
        *rest = after;
        if u32::from_be_bytes(*id) != DICTIONARY_ID {
            return Err(FrameError::BadCompression);
        }
        let mut block = Vec::with_capacity(DICTIONARY.len() + 5);
        push_stored(&mut block, DICTIONARY);
        let mut history = Vec::with_capacity(DICTIONARY.len());
        inflate
            .decompress_vec(&block, &mut history, FlushDecompress::Sync)
            .map_err(|_| FrameError::BadCompression)?;
        if history != DICTIONARY {
            return Err(FrameError::BadCompression);
        }
    }
    Ok(inflate)
}

#[cfg(test)]
mod tests;
