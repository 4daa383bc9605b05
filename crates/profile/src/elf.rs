//! Names of functions from the symbol table of an ELF file (64 bits, little endian). Nothing of the file is kept: the table is
//! read through once for a set of addresses.

use std::{fs::File, io, os::unix::fs::FileExt};

const HEADER: usize = 64;
const SYMBOL: usize = 24;
const PROGRAM_HEADER: usize = 56;
const SECTION_HEADER: usize = 64;
/// Section types and the symbols' type of functions.
const SYMTAB: u32 = 2;
const DYNSYM: u32 = 11;
const FUNC: u8 = 2;
const LOAD: u32 = 1;
/// As many as a header may speak of; more is no file that a linker made.
const MAX_HEADERS: u64 = 4096;
/// Symbols that are read at once.
const BATCH: u64 = 4096;
/// As long as a name may be.
const MAX_NAME: usize = 8 << 10;

/// A file whose headers were read.
pub(crate) struct Elf<F = File> {
    file: F,
    /// `(offset in the file, length, address)` of what is loaded.
    segments: Vec<(u64, u64, u64)>,
    /// `(offset, length)` of a table of symbols and of its names; the full one if there is one.
    symbols: Option<((u64, u64), (u64, u64))>,
}

impl<F: FileExt> Elf<F> {
    /// Reads the headers. Blocks on the disk.
    pub(crate) fn open(file: F) -> io::Result<Self> {
        let header = read(&file, 0, HEADER)?;
        if !header.starts_with(b"\x7fELF\x02\x01") {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let segments = table(&file, &header, (32, 56), PROGRAM_HEADER)?
            .iter()
            .filter(|it| u32_at(it, 0) == LOAD)
            .map(|it| (u64_at(it, 8), u64_at(it, 32), u64_at(it, 16)))
            .collect();
        let sections = table(&file, &header, (40, 60), SECTION_HEADER)?;
        let place = |section: &Vec<u8>| (u64_at(section, 24), u64_at(section, 32));
        let of_type = |wanted| {
            let section = sections.iter().find(|it| u32_at(it, 4) == wanted)?;
            let names = sections.get(usize::try_from(u32_at(section, 40)).ok()?)?;
            Some((place(section), place(names)))
        };
        let symbols = of_type(SYMTAB).or_else(|| of_type(DYNSYM));
        Ok(Self { file, segments, symbols })
    }

    /// The address that the file itself gives to what stands at an offset in it.
    pub(crate) fn address(&self, offset: u64) -> Option<u64> {
        let segment = self
            .segments
            .iter()
            .find(|(start, len, _)| offset.checked_sub(*start).is_some_and(|at| at < *len));
        segment.and_then(|(start, _, address)| address.checked_add(offset - start))
    }

    /// The functions that these addresses, sorted, lie in. Blocks on the disk.
    pub(crate) fn names(&self, addresses: &[u64]) -> io::Result<Vec<Option<String>>> {
        // Where each name stands, and where its function begins: of several, the last beginning counts.
        let mut found: Vec<Option<(u64, u64)>> = vec![None; addresses.len()];
        let Some(((start, len), names)) = self.symbols else { return Ok(vec![None; addresses.len()]) };
        let mut at = 0;
        while at < len {
            let size = (len - at).min(BATCH * SYMBOL as u64);
            let batch = read(&self.file, start.saturating_add(at), usize::try_from(size).unwrap_or(0))?;
            for symbol in batch.chunks_exact(SYMBOL) {
                if symbol.get(4).copied().unwrap_or_default() & 0xf != FUNC {
                    continue;
                }
                let (value, size) = (u64_at(symbol, 8), u64_at(symbol, 16).max(1));
                let first = addresses.partition_point(|address| *address < value);
                let inside = addresses.iter().zip(&mut found).skip(first);
                for (_, best) in inside.take_while(|(address, _)| **address - value < size) {
                    if best.is_none_or(|(_, begin)| value >= begin) {
                        *best = Some((u64::from(u32_at(symbol, 0)), value));
                    }
                }
            }
            at += size.max(1);
        }
        found.into_iter().map(|it| it.map(|(name, _)| self.name(names, name)).transpose()).collect()
    }

    fn name(&self, (start, len): (u64, u64), at: u64) -> io::Result<String> {
        let left = usize::try_from(len.saturating_sub(at)).unwrap_or(usize::MAX);
        let mut name = Vec::new();
        // Most names are short.
        for size in [256, MAX_NAME] {
            name = read(&self.file, start.saturating_add(at), size.min(left))?;
            if let Some(end) = name.iter().position(|byte| *byte == 0) {
                name.truncate(end);
                break;
            }
        }
        Ok(String::from_utf8_lossy(&name).into_owned())
    }
}

/// The entries of the table of headers whose offset and count stand at these places.
fn table(
    file: &impl FileExt,
    header: &[u8],
    (offset, sizes): (usize, usize),
    expected: usize,
) -> io::Result<Vec<Vec<u8>>> {
    let sizes = if sizes == 56 { (54, 56) } else { (58, 60) };
    let (entry, count) = (u64::from(u16_at(header, sizes.0)), u64::from(u16_at(header, sizes.1)));
    if count > MAX_HEADERS || (count > 0 && entry < expected as u64) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let offset = u64_at(header, offset);
    (0..count).map(|at| read(file, offset.saturating_add(at * entry), expected)).collect()
}

fn read(file: &impl FileExt, at: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, at))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_is_no_elf_file_is_refused() {
        for bytes in [&b""[..], b"#!/bin/sh\n", b"\x7fELF\x02\x01", &[0xff; 64]] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            assert!(Elf::open(file).is_err(), "{bytes:?}");
        }
        // A header that speaks of tables far behind the end.
        let mut header = [0_u8; 64];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        header[32..64].fill(0xff);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&header).unwrap();
        assert!(Elf::open(file).is_err());
    }
}
