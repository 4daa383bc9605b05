//! What of which file is mapped where, from `/proc/self/maps`.

use std::{fs, io, path::PathBuf};

/// Code that is mapped from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Where in the file it begins.
    pub(crate) offset: u64,
    pub(crate) file: PathBuf,
}

/// The mappings of this process that can be run.
pub(crate) fn executable() -> io::Result<Vec<Mapping>> {
    Ok(fs::read_to_string("/proc/self/maps")?.lines().filter_map(parse).collect())
}

/// `start-end perms offset device inode   path`.
pub(crate) fn parse(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?;
    let offset = fields.next()?;
    let file = fields.nth(2)?.trim_start();
    let number = |text| u64::from_str_radix(text, 16).ok();
    let runs = permissions.contains('x') && (file.starts_with('/') || file == "[vdso]");
    runs.then(|| {
        Some(Mapping {
            start: number(start)?,
            end: number(end)?,
            offset: number(offset)?,
            file: file.strip_suffix(" (deleted)").unwrap_or(file).into(),
        })
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let code =
            parse("55e0a000-55e0b000 r-xp 00001000 08:01 123                        /usr/bin/a b (deleted)");
        let expected =
            Mapping { start: 0x55e0_a000, end: 0x55e0_b000, offset: 0x1000, file: "/usr/bin/a b".into() };
        assert_eq!(code, Some(expected));
        for line in [
            "55e0a000-55e0b000 r--p 00001000 08:01 123      /usr/bin/a",
            "55e0a000-55e0b000 rwxp 00000000 00:00 0 ",
            "",
            "x",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
        let here = parse as *const () as u64;
        assert!(executable().unwrap().iter().any(|mapping| (mapping.start..mapping.end).contains(&here)));
    }
}
