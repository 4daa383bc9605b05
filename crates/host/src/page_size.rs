//! How large a page of memory is.

use std::fs;

/// The kind of the entry that says it (`AT_PAGESZ`).
const PAGE_SIZE: u64 = 6;
/// What nearly every machine has.
const USUAL: i64 = 4096;

/// The size of a page in bytes, as the kernel told this process at its start.
///
/// Not from rustix: that looks for everything else that was told then as well, and a program that is watched by valgrind is told of places
/// that it does not have.
#[must_use]
pub fn page_size() -> i64 {
    fs::read("/proc/self/auxv").ok().and_then(|bytes| parse(&bytes)).unwrap_or(USUAL)
}

pub(crate) fn parse(bytes: &[u8]) -> Option<i64> {
    let word = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let at = (0..bytes.len()).step_by(16).find(|at| word(*at) == Some(PAGE_SIZE))?;
    word(at + 8).filter(|size| size.is_power_of_two()).and_then(|size| i64::try_from(size).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_the_kernels() {
        assert_eq!(usize::try_from(page_size()).unwrap(), rustix::param::page_size());
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
        assert_eq!(parse(&words(&[3, 64, 6, 16384, 0, 0])), Some(16384));
        assert_eq!(parse(&words(&[3, 64, 0, 0])), None);
        assert_eq!(parse(&words(&[6])), None);
        assert_eq!(parse(b"short"), None);
    }
}
