//! `/debug/pprof/`: what mainstay itself spends its time and memory on. Names, parameters and refusals as Go's
//! `net/http/pprof`; profiles in the format that `go tool pprof` opens.
//!
//! | name | here it is |
//! | --- | --- |
//! | `profile` | stacks of running threads, sampled by CPU time |
//! | `heap`, `allocs` | one allocation in half a megabyte, by stack |
//! | `goroutine` | the tasks that run now, by name |
//! | `threadcreate` | the threads that there are, by name |
//! | `cmdline`, `symbol` | as in Go |
//!
//! `trace`, `block` and `mutex` are not served: the first is an event log of Go's own scheduler, and nobody here keeps count
//! of who waited for which lock. An empty profile would say that nobody did.

use std::{fs, sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue, StatusCode, header};
use mainstay_profile::{CpuError, Profile};

use crate::{
    answer::{self, Answer},
    body::Body,
    call::Call,
    route::App,
};

/// Go says by this header that the refusal comes from its profiler.
const GO_PPROF: HeaderName = HeaderName::from_static("x-go-pprof");
/// Upstream's `WriteTimeout`, which no profile may outlast.
const LONGEST: Duration = Duration::from_secs(4 * 60 * 60);
const DEFAULT: Duration = Duration::from_secs(30);
/// Addresses that one request may ask the names of.
const MAX_ADDRESSES: usize = 4096;

/// What there is, with a word on each.
const PROFILES: [(&str, &str); 7] = [
    ("allocs", "What was ever allocated, sampled, by stack."),
    ("cmdline", "The command line."),
    ("goroutine", "The tasks that run now, by name."),
    ("heap", "What is allocated now, sampled, by stack."),
    ("profile", "Where CPU time goes; `seconds` says for how long to look (30)."),
    ("symbol", "Names of functions for addresses."),
    ("threadcreate", "The threads that there are, by name."),
];

/// Answers one request.
pub(crate) async fn serve(app: &Arc<App>, call: &Call<'_>) -> Answer {
    let Some(name) = call.values.first().copied() else { return index() };
    match name {
        "cmdline" => command_line(),
        "symbol" => symbol(call).await,
        "profile" => cpu(app, call).await,
        "heap" | "allocs" | "goroutine" | "threadcreate" => named(app, call, name).await,
        "trace" => {
            refusal(StatusCode::NOT_FOUND, "Unknown profile: mainstay has no scheduler of Go's to trace")
        }
        "block" | "mutex" => refusal(
            StatusCode::NOT_FOUND,
            "Unknown profile: mainstay does not count who waits for which lock",
        ),
        _ => refusal(StatusCode::NOT_FOUND, "Unknown profile"),
    }
}

fn index() -> Answer {
    let mut html = String::from("<html>\n<head><title>/debug/pprof/</title></head>\n<body>\n<ul>\n");
    for (name, what) in PROFILES {
        html.push_str(&format!("<li><a href=\"{name}\">{name}</a>: {what}</li>\n"));
    }
    html.push_str("</ul>\n</body>\n</html>\n");
    let mut answer = answer::nosniff(answer::untyped(StatusCode::OK, Body::Whole(html.into())));
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

fn command_line() -> Answer {
    // The arguments as the kernel keeps them; it puts one zero too many behind the last.
    let mut line = fs::read("/proc/self/cmdline").unwrap_or_default();
    if line.last() == Some(&0) {
        line.pop();
    }
    answer::nosniff(answer::plain(StatusCode::OK, line))
}

/// `?0x1234+0x5678`: a line with the name of each that has one.
async fn symbol(call: &Call<'_>) -> Answer {
    let wanted = call.uri.query().unwrap_or_default().split('+').take(MAX_ADDRESSES);
    let wanted: Vec<usize> = wanted
        .filter_map(|text| usize::from_str_radix(text.trim_start_matches("0x"), 16).ok())
        .filter(|address| *address != 0)
        .collect();
    let look_up = move || {
        let mut text = String::from("num_symbols: 1\n");
        for (address, name) in wanted.iter().zip(mainstay_profile::symbols(&wanted)) {
            if let Some(name) = name {
                text.push_str(&format!("{address:#x} {name}\n"));
            }
        }
        text
    };
    match tokio::task::spawn_blocking(look_up).await {
        Ok(text) => answer::nosniff(answer::plain(StatusCode::OK, text)),
        Err(_) => refusal(StatusCode::INTERNAL_SERVER_ERROR, "cannot look names up"),
    }
}

async fn cpu(app: &Arc<App>, call: &Call<'_>) -> Answer {
    let given = call.query.first("seconds").and_then(|text| text.parse().ok()).filter(|seconds| *seconds > 0);
    let duration = given.map_or(DEFAULT, Duration::from_secs);
    if duration >= LONGEST {
        return too_long();
    }
    match app.shutdown.run_until_signalled(mainstay_profile::record_cpu(duration)).await {
        Some(Ok(profile)) => binary("profile", profile).await,
        Some(Err(error)) => {
            if let CpuError::System(source) = &error {
                tracing::warn!(%source, "{error}");
            }
            let text = format!("Could not enable CPU profiling: {error}");
            refusal(StatusCode::INTERNAL_SERVER_ERROR, &text)
        }
        None => ending(),
    }
}

async fn named(app: &Arc<App>, call: &Call<'_>, name: &str) -> Answer {
    let debug = call.query.first("debug").and_then(|text| text.parse().ok()).unwrap_or(0_i64);
    let seconds = match call.query.first("seconds").filter(|text| !text.is_empty()) {
        None => None,
        Some(text) => match text.parse().ok().filter(|seconds| *seconds > 0_u64) {
            None => {
                let text = "invalid value for \"seconds\" - must be a positive integer";
                return refusal(StatusCode::BAD_REQUEST, text);
            }
            Some(_) if debug != 0 => {
                return refusal(StatusCode::BAD_REQUEST, "seconds and debug params are incompatible");
            }
            Some(seconds) => Some(Duration::from_secs(seconds)),
        },
    };
    let Some(seconds) = seconds else {
        let profile = take(app, name).await;
        return if debug == 0 { binary(name, profile).await } else { text(profile).await };
    };
    if seconds >= LONGEST {
        return too_long();
    }
    let before = take(app, name).await;
    if app.shutdown.run_until_signalled(tokio::time::sleep(seconds)).await.is_none() {
        return ending();
    }
    binary(&format!("{name}-delta"), take(app, name).await.since(&before)).await
}

async fn take(app: &Arc<App>, name: &str) -> Profile {
    match name {
        "goroutine" => mainstay_profile::counted("goroutine", app.tasks.running_names()),
        "threadcreate" => {
            let names = tokio::task::spawn_blocking(thread_names).await.unwrap_or_default();
            mainstay_profile::counted("threadcreate", names)
        }
        // They differ in what a tool shows first.
        "allocs" => Profile { shown: Some("alloc_space"), ..mainstay_profile::heap() },
        _ => mainstay_profile::heap(),
    }
}

fn thread_names() -> Vec<String> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    // One that has ended since has no name any more.
    threads
        .filter_map(|it| fs::read_to_string(it.path().join("comm")).ok())
        .map(|it| it.trim_end().to_owned())
        .collect()
}

async fn binary(name: &str, profile: Profile) -> Answer {
    let Ok(Ok(bytes)) = tokio::task::spawn_blocking(move || profile.encoded()).await else {
        return refusal(StatusCode::INTERNAL_SERVER_ERROR, "cannot encode the profile");
    };
    let mut answer = answer::nosniff(answer::untyped(StatusCode::OK, Body::Whole(bytes.into())));
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    answer
}

async fn text(profile: Profile) -> Answer {
    let text = tokio::task::spawn_blocking(move || profile.text()).await.unwrap_or_default();
    answer::nosniff(answer::plain(StatusCode::OK, text))
}

fn too_long() -> Answer {
    refusal(StatusCode::BAD_REQUEST, "profile duration exceeds server's WriteTimeout")
}

fn ending() -> Answer {
    refusal(StatusCode::SERVICE_UNAVAILABLE, "mainstay is ending")
}

fn refusal(status: StatusCode, text: &str) -> Answer {
    let mut answer = answer::error(status, text);
    answer.headers_mut().insert(GO_PPROF, HeaderValue::from_static("1"));
    answer
}
