//! `/logs/` over a real socket, from real files.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    time::{Duration, SystemTime},
};

use mainstay_nodelogs::Journal;

use super::*;
use crate::table::{Face, Found, Switches, find};

/// The first second of 2026.
const DATE: &str = "Thu, 01 Jan 2026 00:00:00 GMT";

fn touch(path: &Path) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

/// A log directory and a server that shows it.
fn world(queries: bool, journal: &str) -> (tempfile::TempDir, Fixture) {
    let top = tempfile::tempdir().unwrap();
    let log = top.path().join("log");
    fs::create_dir_all(log.join("apt")).unwrap();
    fs::create_dir(log.join("site")).unwrap();
    fs::create_dir(log.join("nginx")).unwrap();
    fs::write(log.join("syslog"), "0123456789").unwrap();
    fs::write(log.join("empty"), "").unwrap();
    fs::write(log.join("a&b <c>:d"), "odd\n").unwrap();
    fs::write(log.join("apt/term.json"), "{}").unwrap();
    fs::write(log.join("site/index.html"), "<p>hi").unwrap();
    fs::write(log.join("old.1"), b"PK\x03\x04zipped").unwrap();
    fs::write(log.join("nginx/nginx.log"), "GET /\n").unwrap();
    fs::write(log.join("cron.log"), "ran\n").unwrap();
    fs::write(top.path().join("secret"), "secret").unwrap();
    symlink("../secret", log.join("out")).unwrap();
    symlink("syslog", log.join("link")).unwrap();
    touch(&log.join("syslog"));
    let (script, program) = (top.path().join("script"), top.path().join("journalctl"));
    fs::write(&script, format!("#!/bin/sh\n{journal}\n")).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    // Copied by another process, because what is open for writing, be it in a child of a neighbouring test, cannot be run.
    assert!(std::process::Command::new("cp").args([&script, &program]).status().unwrap().success());
    let directory = LogDirectory::new(log, Links::Inside(Vec::new()));
    let fixture = Fixture::with_logs(NodeLogs { directory, journal: Journal::new(program), queries });
    (top, fixture)
}

#[tokio::test]
async fn a_directory_is_listed_as_go_lists_it() {
    let (_top, fixture) = world(false, "");
    let listing = fixture.get("/logs/").await;
    assert_eq!(listing.status, 200);
    assert_eq!(listing.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(listing.header("last-modified").is_some());
    assert_eq!(
        listing.body,
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n\
         <a href=\"./a&amp;b%20%3Cc%3E:d\">a&amp;b &lt;c&gt;:d</a>\n\
         <a href=\"apt/\">apt/</a>\n<a href=\"cron.log\">cron.log</a>\n<a href=\"empty\">empty</a>\n\
         <a href=\"link\">link</a>\n<a href=\"nginx/\">nginx/</a>\n<a href=\"old.1\">old.1</a>\n\
         <a href=\"out\">out</a>\n<a href=\"site/\">site/</a>\n<a href=\"syslog\">syslog</a>\n</pre>\n"
    );
    for (path, location) in [
        ("/logs/apt?x=1", "apt/?x=1"),
        ("/logs/syslog/", "../syslog"),
        ("/logs/site", "site/"),
        ("/logs/site/index.html", "./"),
    ] {
        let moved = fixture.get(path).await;
        assert_eq!((moved.status, moved.header("location")), (301, Some(location)), "{path}");
        assert_eq!((moved.body.as_str(), moved.header("content-type")), ("", None), "{path}");
    }
    let index = fixture.get("/logs/site/").await;
    assert_eq!((index.status, index.body.as_str()), (200, "<p>hi"));
    // Without the switch a query string means nothing.
    assert_eq!(fixture.get("/logs/?query=cron&boot=x").await.body, listing.body);
    assert_eq!(fixture.get("/logs").await.status, 307);
    fixture.request("POST", "/logs/syslog", &[]).await.is_plain(405, "405: Method Not Allowed");
    fixture
        .request("GET", "/logs/syslog", &[("Accept", "text/plain")])
        .await
        .is_plain(406, "406: Not Acceptable\n\nAvailable representations: ");
}

#[tokio::test]
async fn files_are_sent_whole_and_in_parts() {
    let (_top, fixture) = world(false, "");
    let ask = async |headers: &[(&str, &str)]| fixture.request("GET", "/logs/syslog", headers).await;
    let whole = ask(&[]).await;
    assert_eq!((whole.status, whole.body.as_str()), (200, "0123456789"));
    for (name, value) in [
        ("content-type", "text/plain; charset=utf-8"),
        ("content-length", "10"),
        ("last-modified", DATE),
        ("accept-ranges", "bytes"),
    ] {
        assert_eq!(whole.header(name), Some(value), "{name}");
    }
    for (path, kind) in [
        ("/logs/old.1", "application/zip"),
        ("/logs/apt/term.json", "application/json"),
        ("/logs/empty", "text/plain; charset=utf-8"),
        ("/logs/site/", "text/html; charset=utf-8"),
    ] {
        assert_eq!(fixture.get(path).await.header("content-type"), Some(kind), "{path}");
    }
    assert_eq!(fixture.get("/logs/link").await.body, "0123456789");
    assert_eq!(fixture.get("/logs/a%26b%20%3Cc%3E:d").await.body, "odd\n");

    let part = ask(&[("Range", "bytes=2-4")]).await;
    assert_eq!((part.status, part.body.as_str()), (206, "234"));
    assert_eq!(part.header("content-range"), Some("bytes 2-4/10"));
    assert_eq!(part.header("content-length"), Some("3"));
    assert_eq!(ask(&[("Range", "bytes=-2"), ("If-Range", DATE)]).await.body, "89");
    let behind = ask(&[("Range", "bytes=10-")]).await;
    behind.is_error(416, "invalid range: failed to overlap\n");
    assert_eq!(behind.header("content-range"), Some("bytes */10"));
    ask(&[("Range", "bytes=x")]).await.is_error(416, "invalid range\n");

    let several = ask(&[("Range", "bytes=0-1,8-")]).await;
    let kind = several.header("content-type").unwrap().to_owned();
    let boundary = kind.strip_prefix("multipart/byteranges; boundary=").unwrap();
    let head =
        |range| format!("Content-Range: bytes {range}/10\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n");
    let expected = format!(
        "--{boundary}\r\n{}01\r\n--{boundary}\r\n{}89\r\n--{boundary}--\r\n",
        head("0-1"),
        head("8-9")
    );
    assert_eq!((several.status, several.body.as_str()), (206, expected.as_str()));
    assert_eq!(several.header("content-length"), Some(expected.len().to_string().as_str()));

    let same = ask(&[("If-Modified-Since", DATE)]).await;
    assert_eq!((same.status, same.body.as_str(), same.header("last-modified")), (304, "", Some(DATE)));
    assert_eq!(same.header("content-type"), None);
    assert_eq!(ask(&[("If-Modified-Since", "Wed, 31 Dec 2025 23:59:59 GMT")]).await.status, 200);
    assert_eq!(ask(&[("If-Unmodified-Since", "Wed, 31 Dec 2025 23:59:59 GMT")]).await.status, 412);
}

#[tokio::test]
async fn nothing_leads_out() {
    let (_top, fixture) = world(true, "");
    for path in [
        "/logs/%2e%2e/secret",
        "/logs/%2e%2e%2fsecret",
        "/logs/apt%2f%2e%2e%2f%2e%2e%2fsecret",
        "/logs/%2fetc/passwd",
        "/logs/nothing",
        "/logs/syslog/x",
    ] {
        fixture.get(path).await.is_error(404, "404 page not found\n");
    }
    fixture.get("/logs/out").await.is_error(403, "403 Forbidden\n");
    assert_eq!(fixture.get("/logs/%00").await.status, 500);
    // Unescaped dots are the router's: it redirects to where they lead.
    assert_eq!(fixture.get("/logs/../pods").await.header("location"), Some("/pods"));
    let refused = fixture.get("/logs/?query=./out").await;
    refused.is_error(406, "query: Invalid value: [\"./out\"]: statat ./out: path escapes from parent\n");
}

#[tokio::test]
async fn a_large_file_goes_at_its_readers_pace() {
    let (top, fixture) = world(false, "");
    let line = "a line of a log that is rather long\n".repeat(1 << 16);
    fs::write(top.path().join("log/large"), &line).unwrap();
    let reply = fixture.get("/logs/large").await;
    assert_eq!(reply.header("content-length"), Some(line.len().to_string().as_str()));
    assert!(reply.body == line);
    // One that goes away in the middle leaves the server as it was.
    let stream = fixture.open("/logs/large").await;
    drop(stream);
    assert_eq!(fixture.get("/logs/syslog").await.status, 200);
}

const UNITS: &str = r#"[ "$1" = --field ] && { echo kubelet.service; exit; }"#;

#[tokio::test]
async fn queries_for_files_and_services() {
    let journal = format!("{UNITS}\nprintf '%s ' \"$@\"; echo done >&2");
    let (_top, fixture) = world(true, &journal);
    let text = async |path: &str| {
        let reply = fixture.get(path).await;
        assert_eq!(reply.status, 200, "{path}");
        reply.body
    };
    assert_eq!(text("/logs/?query=./syslog").await, "0123456789");
    assert_eq!(text("/logs/?query=nginx/nginx.log").await, "GET /\n");
    assert_eq!(text("/logs/syslog").await, "0123456789");

    let reply = fixture.get("/logs/?query=kubelet&tailLines=5&pattern=x").await;
    assert_eq!(reply.header("content-type"), Some("text/plain;charset=UTF-8"));
    assert_eq!(
        reply.body,
        "--utc --no-pager --output=short-precise --pager-end --lines=5 --unit=kubelet --grep=x done\n"
    );
    // A name that only ends like a unit's is none.
    assert_eq!(text("/logs/?query=let").await, "\nlog not found for let\n");
    assert_eq!(text("/logs/?query=cron").await, "ran\n");
    assert_eq!(
        text("/logs/?query=nginx&query=syslog&query=none").await,
        "GET /\n0123456789\nlog not found for none\n"
    );
    assert_eq!(
        text("/logs/?query=out").await,
        "\nerror getting log for out: openat out: path escapes from parent\n"
    );
    assert_eq!(
        text("/logs/?query=cron&query=nginx&boot=0").await,
        "\noptions present and query resolved to log files for [cron nginx]\ntry without specifying options\n"
    );
    fixture.get("/logs/?query=+").await.is_error(400, "query: Invalid value: [\" \"]: may not be empty\n");
    fixture.get("/logs/syslog?query=cron").await.is_error(406, "path not allowed in query mode\n");
    let refused = fixture.get("/logs/?boot=0").await;
    refused.is_error(406, "query: Required value: cannot be empty with options\n");
    // Only this very value asks for compression.
    let plain = fixture.request("GET", "/logs/?query=cron", &[("Accept-Encoding", "gzip, br")]).await;
    assert_eq!((plain.header("content-encoding"), plain.body.as_str()), (None, "ran\n"));
}

#[tokio::test]
async fn a_query_may_be_compressed() {
    let (_top, fixture) = world(true, UNITS);
    let mut stream = UnixStream::connect(&fixture.socket).await.unwrap();
    let request =
        "GET /logs/?query=cron HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept-Encoding: gzip\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    let at = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    assert!(String::from_utf8_lossy(&answer[..at]).contains("Content-Encoding: gzip"));
    let mut text = String::new();
    let zipped = dechunk(&answer[at + 4..]);
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(zipped.as_slice()), &mut text).unwrap();
    assert_eq!(text, "ran\n");
}

#[tokio::test]
async fn the_journals_reader_dies_with_its_client() {
    let (top, fixture) = world(true, &format!("{UNITS}\necho $$ > \"$0.pid\"; echo begun; exec sleep 1000"));
    let mut stream = fixture.open("/logs/?query=kubelet").await;
    stream.until(b"begun").await;
    let pid = fs::read_to_string(top.path().join("journalctl.pid")).unwrap();
    drop(stream);
    let gone = async {
        // A zombie has no command line.
        while fs::read(format!("/proc/{}/cmdline", pid.trim())).is_ok_and(|text| !text.is_empty()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
}

#[test]
fn the_switch_closes_the_port_only() {
    let off = Switches { system_log_handler: false, ..Switches::default() };
    for path in ["/logs/", "/logs/x"] {
        assert!(
            matches!(find(Face::Secure, off, path), Found::Disabled("logs endpoint is disabled.")),
            "{path}"
        );
        assert!(matches!(find(Face::Local, off, path), Found::Route(..)), "{path}");
        assert!(matches!(find(Face::ReadOnly, off, path), Found::Disabled("Debug endpoints are disabled.")));
    }
    assert!(matches!(find(Face::Secure, off, "/logs"), Found::AddSlash));
}
