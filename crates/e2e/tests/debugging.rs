//! What people look at when something is wrong: the machine's logs and mainstay's own profiles, through the real thing.

use std::{fs, os::unix::fs::symlink, process::Command};

use anyhow::{Context, Result, ensure};
use mainstay_e2e::SOON;
use mainstay_testkit::{Containerd, Flavor, Http, Node, Response, wait_until};

fn get(http: &Http, path: &str, headers: &[(&str, &str)]) -> Result<Response> {
    http.request("GET", path, headers)
}

#[test]
fn the_machines_logs_are_listed_and_read_and_nothing_beside_them() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let logs = containerd.dir().join("var-log");
    fs::create_dir_all(logs.join("deep/er"))?;
    fs::write(logs.join("kern.log"), "0123456789\n")?;
    fs::write(logs.join("deep/er/a <b>.log"), "deep\n")?;
    fs::write(containerd.dir().join("secret"), "secret\n")?;
    symlink("../secret", logs.join("out"))?;
    symlink("kern.log", logs.join("in"))?;
    let node = Node::builder()
        .containerd(&containerd)
        .args([format!("--node-log-dir={}", logs.display())])
        .config("enableSystemLogQuery: true")
        .start()?;
    let http = node.http();
    let listing = get(&http, "/logs/", &[])?;
    ensure!(listing.status == 200, "{} {}", listing.status, listing.text());
    ensure!(listing.header("content-type") == Some("text/html; charset=utf-8"), "{:?}", listing.headers);
    for line in ["<a href=\"deep/\">deep/</a>", "<a href=\"kern.log\">kern.log</a>"] {
        ensure!(listing.text().contains(line), "{line} in {}", listing.text());
    }
    let below = get(&http, "/logs/deep/er/", &[])?;
    ensure!(below.text().contains("<a href=\"a%20%3Cb%3E.log\">a &lt;b&gt;.log</a>"), "{}", below.text());
    ensure!(get(&http, "/logs/deep/er/a%20%3Cb%3E.log", &[])?.text() == "deep\n");

    let whole = get(&http, "/logs/kern.log", &[])?;
    ensure!(whole.text() == "0123456789\n" && whole.header("content-length") == Some("11"), "{whole:?}");
    let changed = whole.header("last-modified").context("a time")?.to_owned();
    ensure!(get(&http, "/logs/kern.log", &[("If-Modified-Since", &changed)])?.status == 304);
    let part = get(&http, "/logs/kern.log", &[("Range", "bytes=2-4")])?;
    ensure!((part.status, part.text().as_str()) == (206, "234"), "{part:?}");
    ensure!(part.header("content-range") == Some("bytes 2-4/11"), "{:?}", part.headers);
    ensure!(get(&http, "/logs/kern.log", &[("Range", "bytes=99-")])?.status == 416);
    let moved = get(&http, "/logs/deep", &[])?;
    ensure!((moved.status, moved.header("location")) == (301, Some("deep/")), "{moved:?}");
    ensure!(get(&http, "/logs/in", &[])?.text() == "0123456789\n", "a link inside");

    for path in [
        "/logs/out",
        "/logs/../secret",
        "/logs/%2e%2e/secret",
        "/logs/..%2fsecret",
        "/logs/deep/%2e%2e/%2e%2e/secret",
        "/logs//etc/passwd",
    ] {
        let found = get(&http, path, &[])?;
        ensure!(matches!(found.status, 307 | 403 | 404), "{path}: {} {}", found.status, found.text());
        ensure!(
            !found.text().contains("secret\n") && !found.text().contains("root:"),
            "{path}: {}",
            found.text()
        );
    }
    // By query: the file of a service, and what is wrong with a query in upstream's words.
    let found = get(&http, "/logs/?query=kern", &[])?;
    ensure!((found.status, found.text().as_str()) == (200, "0123456789\n"), "{found:?}");
    let wrong = get(&http, "/logs/?query=kern&tailLines=x", &[])?;
    ensure!(wrong.status == 400 && wrong.text().contains("tailLines: Invalid value: \"x\""), "{wrong:?}");
    let wrong = get(&http, "/logs/?query=kern&boot=1", &[])?;
    ensure!(wrong.status == 406 && wrong.text().contains("must be less than 1"), "{wrong:?}");
    Ok(())
}

/// Go's own tool is the judge of whether it is a profile.
fn pprof(dir: &std::path::Path, name: &str, profile: &Response) -> Result<String> {
    ensure!(profile.status == 200, "{name}: {} {}", profile.status, profile.text());
    ensure!(
        profile.header("content-type") == Some("application/octet-stream"),
        "{name}: {:?}",
        profile.headers
    );
    let path = dir.join(format!("{name}.pb.gz"));
    fs::write(&path, &profile.body)?;
    let shown = Command::new("go").args(["tool", "pprof", "-symbolize=none", "-top"]).arg(&path).output();
    let shown = shown.context("cannot run go; scripts/setup.sh tells what the tests need")?;
    let (text, errors) = (String::from_utf8_lossy(&shown.stdout), String::from_utf8_lossy(&shown.stderr));
    ensure!(shown.status.success(), "{name}: {errors}{text}");
    Ok(text.into_owned())
}

#[test]
fn profiles_are_what_gos_tool_opens() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let node = Node::builder().containerd(&containerd).start()?;
    let http = node.http();
    let dir = containerd.dir();
    let cpu = pprof(dir, "profile", &get(&http, "/debug/pprof/profile?seconds=1", &[])?)?;
    ensure!(cpu.contains("Type: cpu"), "{cpu}");
    let heap = pprof(dir, "heap", &get(&http, "/debug/pprof/heap", &[])?)?;
    ensure!(heap.contains("Type: inuse_space"), "{heap}");
    let all = pprof(dir, "allocs", &get(&http, "/debug/pprof/allocs", &[])?)?;
    ensure!(all.contains("Type: alloc_space"), "{all}");
    // It answers before all of its tasks have begun.
    wait_until(SOON, "the tasks by their names", || {
        let profile = get(&http, "/debug/pprof/goroutine", &[]).map_err(|error| format!("{error:#}"))?;
        let tasks = pprof(dir, "goroutine", &profile).map_err(|error| format!("{error:#}"))?;
        if tasks.contains("reconcile") { Ok(()) } else { Err(tasks) }
    })?;
    let command = get(&http, "/debug/pprof/cmdline", &[])?;
    ensure!(command.text().split('\0').any(|it| it == "--config"), "{:?}", command.text());
    let none = get(&http, "/debug/pprof/mutex", &[])?;
    ensure!(none.status == 404, "{} {}", none.status, none.text());
    Ok(())
}
