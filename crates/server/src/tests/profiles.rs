//! `/debug/pprof/` over a real socket. That `go tool pprof` opens what it gives is shown by the end-to-end tests.

use super::*;
use crate::table::{Face, Found, Switches, find};

#[tokio::test]
async fn there_is_an_index_and_what_it_names() {
    let fixture = Fixture::start();
    let index = fixture.get("/debug/pprof/").await;
    assert_eq!((index.status, index.header("content-type")), (200, Some("text/html; charset=utf-8")));
    for name in ["allocs", "goroutine", "heap", "threadcreate"] {
        assert!(index.body.contains(&format!("<a href=\"{name}\">")), "{name}");
        let reply = fixture.get(&format!("/debug/pprof/{name}")).await;
        assert_eq!(reply.status, 200, "{name}");
        assert_eq!(reply.header("content-type"), Some("application/octet-stream"), "{name}");
        let expected = format!("attachment; filename=\"{name}\"");
        assert_eq!(reply.header("content-disposition"), Some(expected.as_str()));
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        assert!(reply.raw.starts_with(&[0x1f, 0x8b]), "{name} is compressed");
        let text = fixture.get(&format!("/debug/pprof/{name}?debug=1")).await;
        assert_eq!(text.header("content-type"), Some("text/plain; charset=utf-8"), "{name}");
    }
    let tasks = fixture.get("/debug/pprof/goroutine?debug=1").await.body;
    assert!(tasks.starts_with("# goroutine/count\n") && tasks.contains("@ http connection\n"), "{tasks}");
    let line = fixture.get("/debug/pprof/cmdline").await.body;
    let expected: Vec<String> = std::env::args().collect();
    assert_eq!(line, expected.join("\0"));
    let address = crate::bind as *const () as usize;
    let symbols = fixture.get(&format!("/debug/pprof/symbol?{address:#x}+0x1+zz")).await.body;
    assert!(
        symbols.starts_with(&format!("num_symbols: 1\n{address:#x} mainstay_server::listen::bind")),
        "{symbols}"
    );
    assert_eq!(symbols.lines().count(), 2);
}

#[tokio::test]
async fn refusals_are_gos() {
    let fixture = Fixture::start();
    for (path, status, text) in [
        ("heap/", 404, "Unknown profile\n"),
        ("nothing", 404, "Unknown profile\n"),
        ("heap?seconds=x", 400, "invalid value for \"seconds\" - must be a positive integer\n"),
        ("heap?seconds=0", 400, "invalid value for \"seconds\" - must be a positive integer\n"),
        ("goroutine?seconds=1&debug=2", 400, "seconds and debug params are incompatible\n"),
        ("profile?seconds=14400", 400, "profile duration exceeds server's WriteTimeout\n"),
    ] {
        let reply = fixture.get(&format!("/debug/pprof/{path}")).await;
        reply.is_error(status, text);
        assert_eq!(reply.header("x-go-pprof"), Some("1"), "{path}");
    }
    for name in ["trace", "block", "mutex"] {
        assert_eq!(fixture.get(&format!("/debug/pprof/{name}")).await.status, 404, "{name}");
    }
    fixture.request("POST", "/debug/pprof/profile", &[]).await.is_plain(405, "405: Method Not Allowed");
}

#[tokio::test]
async fn one_cpu_profile_at_a_time() {
    let fixture = Fixture::start();
    let mut rounds = 0;
    loop {
        let is_over = std::cell::Cell::new(false);
        let first = async {
            let reply = fixture.get("/debug/pprof/profile?seconds=3").await;
            is_over.set(true);
            assert_eq!(reply.status, 200);
            assert!(reply.raw.starts_with(&[0x1f, 0x8b]));
        };
        let second = async {
            // One that ends at once says whether the first has begun, and gets in nobody's way.
            while !is_over.get() && mainstay_profile::record_cpu(Duration::ZERO).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let reply = fixture.get("/debug/pprof/profile?seconds=1").await;
            (reply, !is_over.get())
        };
        let ((), (reply, came_meanwhile)) = tokio::join!(first, second);
        if came_meanwhile {
            reply.is_error(500, "Could not enable CPU profiling: cpu profiling already in use\n");
            break;
        }
        // It was held up until the first had ended.
        rounds += 1;
        assert!(rounds < 10, "{reply:?}");
    }
    let delta = fixture.get("/debug/pprof/goroutine?seconds=1").await;
    assert_eq!(delta.header("content-disposition"), Some("attachment; filename=\"goroutine-delta\""));
}

#[test]
fn the_switch_closes_the_port_only() {
    let off = Switches { profiling_handler: false, ..Switches::default() };
    for path in ["/debug/pprof/", "/debug/pprof/heap"] {
        let found = find(Face::Secure, off, path);
        assert!(matches!(found, Found::Disabled("profiling endpoint is disabled.")), "{path}");
        assert!(matches!(find(Face::Local, off, path), Found::Route(..)), "{path}");
    }
}
