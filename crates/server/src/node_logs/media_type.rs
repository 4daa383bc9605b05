//! Which type a file is sent as: by the end of its name, as this machine knows it, or by how it begins. As Go's file server
//! decides (`mime.TypeByExtension`, `http.DetectContentType`, Go 1.26).

use std::{
    fs::File,
    io::{BufRead, BufReader},
};

/// How much of a file is looked at.
pub(crate) const SNIFFED: usize = 512;
/// What is known where the machine knows nothing.
const BUILT_IN: &[(&str, &str)] = &[
    (".bin", "application/octet-stream"),
    (".css", "text/css; charset=utf-8"),
    (".csv", "text/csv; charset=utf-8"),
    (".gif", "image/gif"),
    (".gz", "application/gzip"),
    (".htm", "text/html; charset=utf-8"),
    (".html", "text/html; charset=utf-8"),
    (".jpeg", "image/jpeg"),
    (".jpg", "image/jpeg"),
    (".js", "text/javascript; charset=utf-8"),
    (".json", "application/json"),
    (".mjs", "text/javascript; charset=utf-8"),
    (".pdf", "application/pdf"),
    (".png", "image/png"),
    (".ps", "application/postscript"),
    (".rtf", "application/rtf"),
    (".svg", "image/svg+xml"),
    (".text", "text/plain; charset=utf-8"),
    (".txt", "text/plain; charset=utf-8"),
    (".wasm", "application/wasm"),
    (".webp", "image/webp"),
    (".xhtml", "application/xhtml+xml"),
    (".xml", "text/xml; charset=utf-8"),
    (".xsl", "text/xml; charset=utf-8"),
    (".zip", "application/zip"),
];
/// The database of shared-mime-info; the first that is there counts.
const GLOBS: [&str; 2] = ["/usr/local/share/mime/globs2", "/usr/share/mime/globs2"];
/// Older tables, read one after the other where there is no database.
const TABLES: [&str; 4] =
    ["/etc/mime.types", "/etc/apache2/mime.types", "/etc/apache/mime.types", "/etc/httpd/conf/mime.types"];

/// The type that a file's name stands for, if any. The tables are read each time: keeping them costs more than a file that
/// is in the page cache anyway. Blocks on the disk.
pub(crate) fn by_name(name: &str) -> Option<String> {
    let extension = name.rsplit('/').next().and_then(|last| last.rfind('.').and_then(|at| last.get(at..)))?;
    let lower = extension.to_ascii_lowercase();
    by_machine(extension)
        .or_else(|| by_machine(&lower).filter(|_| lower != extension))
        .map(with_charset)
        .or_else(|| BUILT_IN.iter().find(|(known, _)| *known == lower).map(|(_, kind)| (*kind).to_owned()))
}

fn by_machine(extension: &str) -> Option<String> {
    for globs in GLOBS {
        if let Ok(file) = File::open(globs) {
            // Sorted by weight: the first counts.
            return lines(file).find_map(|line| glob_line(&line, extension).map(str::to_owned));
        }
    }
    // The last that says something counts.
    let tables = TABLES.iter().filter_map(|path| File::open(path).ok());
    tables.flat_map(lines).filter_map(|line| table_line(&line, extension).map(str::to_owned)).last()
}

fn lines(file: File) -> impl Iterator<Item = String> {
    BufReader::new(file).lines().map_while(Result::ok)
}

/// `weight:type:*.extension[:…]`.
fn glob_line<'a>(line: &'a str, extension: &str) -> Option<&'a str> {
    let mut fields = line.split(':');
    let (weight, kind, glob) = (fields.next()?, fields.next()?, fields.next()?);
    (!weight.starts_with('#') && glob.strip_prefix('*')? == extension).then_some(kind)
}

/// `type extension…`.
fn table_line<'a>(line: &'a str, extension: &str) -> Option<&'a str> {
    let mut words = line.split_ascii_whitespace().take_while(|word| !word.starts_with('#'));
    let kind = words.next()?;
    words.any(|word| extension.strip_prefix('.') == Some(word)).then_some(kind)
}

fn with_charset(kind: String) -> String {
    if kind.starts_with("text/") && !kind.contains("charset=") { kind + "; charset=utf-8" } else { kind }
}

/// The type that a file's first bytes speak for.
pub(crate) fn by_content(start: &[u8]) -> &'static str {
    let start = start.get(..SNIFFED).unwrap_or(start);
    let text = start.trim_ascii_start();
    if HTML.iter().any(|tag| is_tag(text, tag)) {
        return "text/html; charset=utf-8";
    }
    if text.starts_with(b"<?xml") {
        return "text/xml; charset=utf-8";
    }
    let known = SIGNATURES.iter().find(|(at, signature, rest, _)| {
        start.starts_with(signature) && start.get(*at..).is_some_and(|later| later.starts_with(rest))
    });
    if let Some((.., kind)) = known {
        return kind;
    }
    if is_mp4(start) {
        return "video/mp4";
    }
    let binary = |byte: &u8| matches!(byte, 0..=8 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f);
    if text.iter().any(binary) { "application/octet-stream" } else { "text/plain; charset=utf-8" }
}

const HTML: &[&[u8]] = &[
    b"<!DOCTYPE HTML",
    b"<HTML",
    b"<HEAD",
    b"<SCRIPT",
    b"<IFRAME",
    b"<H1",
    b"<DIV",
    b"<FONT",
    b"<TABLE",
    b"<A",
    b"<STYLE",
    b"<TITLE",
    b"<B",
    b"<BODY",
    b"<BR",
    b"<P",
    b"<!--",
];

/// How it begins, and how it goes on at an offset.
type Signature = (usize, &'static [u8], &'static [u8], &'static str);

const SIGNATURES: &[Signature] = &[
    (0, b"%PDF-", b"", "application/pdf"),
    (0, b"%!PS-Adobe-", b"", "application/postscript"),
    // Marks of byte order count if at least one character follows.
    (4, b"\xfe\xff", b"", "text/plain; charset=utf-16be"),
    (4, b"\xff\xfe", b"", "text/plain; charset=utf-16le"),
    (4, b"\xef\xbb\xbf", b"", "text/plain; charset=utf-8"),
    (0, b"\0\0\x01\0", b"", "image/x-icon"),
    (0, b"\0\0\x02\0", b"", "image/x-icon"),
    (0, b"BM", b"", "image/bmp"),
    (0, b"GIF87a", b"", "image/gif"),
    (0, b"GIF89a", b"", "image/gif"),
    (8, b"RIFF", b"WEBPVP", "image/webp"),
    (0, b"\x89PNG\r\n\x1a\n", b"", "image/png"),
    (0, b"\xff\xd8\xff", b"", "image/jpeg"),
    (8, b"FORM", b"AIFF", "audio/aiff"),
    (0, b"ID3", b"", "audio/mpeg"),
    (0, b"OggS\0", b"", "application/ogg"),
    (0, b"MThd\0\0\0\x06", b"", "audio/midi"),
    (8, b"RIFF", b"AVI ", "video/avi"),
    (8, b"RIFF", b"WAVE", "audio/wave"),
    (0, b"\x1a\x45\xdf\xa3", b"", "video/webm"),
    (34, b"", b"LP", "application/vnd.ms-fontobject"),
    (0, b"\0\x01\0\0", b"", "font/ttf"),
    (0, b"OTTO", b"", "font/otf"),
    (0, b"ttcf", b"", "font/collection"),
    (0, b"wOFF", b"", "font/woff"),
    (0, b"wOF2", b"", "font/woff2"),
    (0, b"\x1f\x8b\x08", b"", "application/x-gzip"),
    (0, b"PK\x03\x04", b"", "application/zip"),
    (0, b"Rar!\x1a\x07\0", b"", "application/x-rar-compressed"),
    (0, b"Rar!\x1a\x07\x01\0", b"", "application/x-rar-compressed"),
    (0, b"\0asm", b"", "application/wasm"),
];

/// A tag, in letters of either case, that ends where it should.
fn is_tag(text: &[u8], tag: &[u8]) -> bool {
    text.split_at_checked(tag.len()).is_some_and(|(name, rest)| {
        name.eq_ignore_ascii_case(tag) && matches!(rest.first(), Some(b' ' | b'>'))
    })
}

/// The first box names the brands.
fn is_mp4(start: &[u8]) -> bool {
    let Some((size, rest)) = start.split_first_chunk::<4>() else { return false };
    let size = u32::from_be_bytes(*size) as usize;
    let brands = start.get(8..size).filter(|_| size.is_multiple_of(4) && rest.starts_with(b"ftyp"));
    brands
        .into_iter()
        .flat_map(|it| it.chunks(4).enumerate())
        .any(|(at, it)| at != 1 && it.starts_with(b"mp4"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_the_first_bytes() {
        for (start, expected) in [
            (&b""[..], "text/plain; charset=utf-8"),
            (b"Nov 15 12:00:00 node kernel: hi\n", "text/plain; charset=utf-8"),
            (b"\x1b[31mred\x1b[0m\n", "text/plain; charset=utf-8"),
            (b"  \n<hTmL>", "text/html; charset=utf-8"),
            (b"<html", "text/plain; charset=utf-8"),
            (b"<P>", "text/html; charset=utf-8"),
            (b"<!-- x", "text/html; charset=utf-8"),
            (b"<pre>", "text/plain; charset=utf-8"),
            (b"\n<?xml version", "text/xml; charset=utf-8"),
            (b"\x1f\x8b\x08\0\0", "application/x-gzip"),
            (b"\x7fELF\x02\x01\x01\0", "application/octet-stream"),
            (b"\xef\xbb\xbfx", "text/plain; charset=utf-8"),
            (b"\xff\xfeab", "text/plain; charset=utf-16le"),
            (b"RIFF1234WEBPVP8", "image/webp"),
            (b"RIFF1234WAVE", "audio/wave"),
            (b"\0\0\0\x10ftypmp42\0\0\0\0", "video/mp4"),
            (b"\0\0\0\x10ftypisom\0\0\0\0", "application/octet-stream"),
            (b"LPKSHHRH\x01\0", "application/octet-stream"),
        ] {
            assert_eq!(by_content(start), expected, "{start:?}");
        }
        // Only the beginning counts.
        let mut long = vec![b'a'; SNIFFED];
        long.push(0);
        assert_eq!(by_content(&long), "text/plain; charset=utf-8");
    }

    #[test]
    fn lines_of_the_machines_tables() {
        assert_eq!(glob_line("50:text/x-log:*.log", ".log"), Some("text/x-log"));
        assert_eq!(glob_line("50:text/x-log:*.log:cs", ".log"), Some("text/x-log"));
        assert_eq!(glob_line("# 50:text/x-log:*.log", ".log"), None);
        assert_eq!(glob_line("50:text/x-log:*.login", ".log"), None);
        assert_eq!(glob_line("50:text/x-make:Makefile", ".log"), None);
        assert_eq!(table_line("text/plain\t\ttxt text log # log2", ".log"), Some("text/plain"));
        assert_eq!(table_line("text/plain txt # log", ".log"), None);
        assert_eq!(table_line("#text/plain log", ".log"), None);
        assert_eq!(with_charset("text/x-log".into()), "text/x-log; charset=utf-8");
        assert_eq!(with_charset("application/json".into()), "application/json");
    }

    #[test]
    fn by_the_end_of_a_name() {
        assert_eq!(by_name("x/index.html").as_deref(), Some("text/html; charset=utf-8"));
        assert_eq!(by_name("x/PICTURE.PNG").as_deref(), Some("image/png"));
        for name in ["syslog", "x.d/syslog", "a.unheard-of", "x.1", ""] {
            assert_eq!(by_name(name), None, "{name}");
        }
    }
}
