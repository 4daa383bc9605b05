//! What clients of the kubelet's HTTP API can rely on, as one table that is held against mainstay and against upstream's
//! kubelet alike. Where mainstay answers otherwise on purpose, the row says how and why.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use mainstay_testkit::{
    Authority, Certificate, CertificateWish, Containerd, Flavor, Http, Node, Response, Usage, tls_client,
    wait_until,
};
use serde_json::json;

/// Upstream reads cgroups for the first time after up to half a minute, and looks again after a minute at a certificate whose
/// change it missed.
const ROUNDS: Duration = Duration::from_secs(240);

/// Which listener.
#[derive(Clone, Copy, Debug)]
enum On {
    Secure,
    ReadOnly,
    Healthz,
}
use On::{Healthz as H, ReadOnly as R, Secure as S};

/// What an answer must be. `{pod}` stands for the pod's name in the texts, too.
#[derive(Clone, Copy, Debug)]
struct Expected {
    status: u16,
    /// `None` where it is not looked at, `""` for none at all.
    content_type: Option<&'static str>,
    text: Text,
    headers: &'static [(&'static str, &'static str)],
}

#[derive(Clone, Copy, Debug)]
enum Text {
    Is(&'static str),
    Begins(&'static str),
    Has(&'static str),
    /// A form that cannot be read, for this reason.
    Form(&'static str),
    Any,
}
use Text::{Any, Begins, Has, Is};

const PLAIN: Option<&str> = Some("text/plain; charset=utf-8");
const JSON: Option<&str> = Some("application/json");
const PROMETHEUS: Option<&str> = Some("text/plain; version=0.0.4; charset=utf-8; escaping=underscores");
const NOSNIFF: &[(&str, &str)] = &[("x-content-type-options", "nosniff")];

const fn answer(status: u16, content_type: Option<&'static str>, text: Text) -> Expected {
    Expected { status, content_type, text, headers: &[] }
}

/// Upstream's errors of its service router: the text alone.
const fn plain(status: u16, text: &'static str) -> Expected {
    answer(status, PLAIN, Is(text))
}

/// Go's `http.Error`: with a newline, and no guessing.
const fn error(status: u16, text: &'static str) -> Expected {
    Expected { status, content_type: PLAIN, text: Is(text), headers: NOSNIFF }
}

/// A wrong method in a service.
const fn wrong_method(allow: &'static [(&'static str, &'static str)]) -> Expected {
    Expected { status: 405, content_type: PLAIN, text: Is("405: Method Not Allowed"), headers: allow }
}
const GET_ONLY: &[(&str, &str)] = &[("allow", "GET")];
const POST_ONLY: &[(&str, &str)] = &[("allow", "POST")];

const DISABLED: Expected = error(405, "Debug endpoints are disabled.\n");
const UNKNOWN: Expected = error(404, "404 page not found\n");
const UNKNOWN_BELOW: Expected = plain(404, "404: Page Not Found");
const NOT_JSON: Expected = plain(406, "406: Not Acceptable\n\nAvailable representations: application/json");
const NOT_ANY: Expected = plain(406, "406: Not Acceptable\n\nAvailable representations: ");
const NO_STREAM: Expected = plain(400, "you must specify at least 1 of stdin, stdout, stderr");
const NO_POD: Expected = plain(404, "pod does not exist");
const NO_UPGRADE: Expected = error(500, "Upgrade request required\n");
const BAD_QUERY: Expected = plain(400, r#"{"message": "Unable to decode query."}"#);
const BAD_RANGE: Expected = plain(422, r#"{"message": "Invalid request."}"#);

/// Go's complaint about a form.
const fn bad_form(text: &'static str) -> Expected {
    answer(500, PLAIN, Text::Form(text))
}

/// One request.
#[derive(Clone, Copy, Debug)]
struct Row {
    on: On,
    request: (&'static str, &'static str),
    headers: &'static [(&'static str, &'static str)],
    body: &'static str,
    expected: Expected,
    /// What mainstay answers instead, and why.
    ours: Option<(Expected, &'static str)>,
}

const fn row(on: On, method: &'static str, path: &'static str, expected: Expected) -> Row {
    Row { on, request: (method, path), headers: &[], body: "", expected, ours: None }
}

impl Row {
    const fn with(self, headers: &'static [(&'static str, &'static str)]) -> Self {
        Self { headers, ..self }
    }

    const fn sending(self, body: &'static str) -> Self {
        Self { body, ..self }
    }

    const fn ours(self, expected: Expected, why: &'static str) -> Self {
        Self { ours: Some((expected, why)), ..self }
    }
}

const WEBSOCKET: &[(&str, &str)] = &[
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

const WEBSOCKET_V5: &[(&str, &str)] = &[
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Protocol", "v5.channel.k8s.io"),
];

const WEBSOCKET_TUNNEL: &[(&str, &str)] = &[
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Protocol", "SPDY/3.1+portforward.k8s.io"),
];

const fn redirect(location: &'static [(&'static str, &'static str)], text: &'static str) -> Expected {
    Expected {
        status: 307,
        content_type: Some("text/html; charset=utf-8"),
        text: Is(text),
        headers: location,
    }
}

const SEED: &str = "the seed documents name it, so it is served";
const KEPT: &str = "mainstay has it, upstream has not";

const ROWS: &[Row] = &[
    // Routing.
    row(S, "POST", "/pods/", wrong_method(GET_ONLY)),
    row(S, "POST", "/containerLogs/a/b/c", wrong_method(GET_ONLY)),
    row(S, "POST", "/runningpods/", wrong_method(GET_ONLY)),
    row(S, "POST", "/logs/", wrong_method(GET_ONLY)),
    row(S, "POST", "/debug/pprof/profile", wrong_method(GET_ONLY)),
    row(S, "INVENTED", "/pods", wrong_method(GET_ONLY)),
    row(S, "HEAD", "/pods", answer(405, PLAIN, Any)),
    row(S, "GET", "/checkpoint/a/b/c", wrong_method(POST_ONLY)),
    row(S, "GET", "/run/a/b/c", wrong_method(POST_ONLY)),
    row(S, "GET", "/allocatedPods", UNKNOWN),
    row(S, "GET", "/", UNKNOWN),
    row(S, "GET", "/debug", UNKNOWN),
    row(S, "GET", "/healthz/", UNKNOWN),
    row(S, "GET", "/metrics/", UNKNOWN),
    row(S, "GET", "/configz/", UNKNOWN),
    row(S, "GET", "/healthzjunk", UNKNOWN),
    row(S, "GET", "/pods/a", UNKNOWN_BELOW),
    row(S, "GET", "/containerLogs/a", UNKNOWN_BELOW),
    row(S, "GET", "/exec", UNKNOWN_BELOW),
    row(S, "GET", "/stats/a/b/c", UNKNOWN_BELOW),
    row(
        S,
        "GET",
        "/logs",
        redirect(&[("location", "/logs/")], "<a href=\"/logs/\">Temporary Redirect</a>.\n\n"),
    ),
    row(
        S,
        "GET",
        "/stats",
        redirect(&[("location", "/stats/")], "<a href=\"/stats/\">Temporary Redirect</a>.\n\n"),
    ),
    row(
        S,
        "GET",
        "/runningpods?a=b&c",
        redirect(
            &[("location", "/runningpods/?a=b&c")],
            "<a href=\"/runningpods/?a=b&amp;c\">Temporary Redirect</a>.\n\n",
        ),
    ),
    row(
        S,
        "GET",
        "//pods",
        redirect(&[("location", "/pods")], "<a href=\"/pods\">Temporary Redirect</a>.\n\n"),
    ),
    row(
        S,
        "GET",
        "/a/../pods",
        redirect(&[("location", "/pods")], "<a href=\"/pods\">Temporary Redirect</a>.\n\n"),
    ),
    row(
        S,
        "POST",
        "/runningpods",
        Expected {
            status: 307,
            content_type: Some(""),
            text: Is(""),
            headers: &[("location", "/runningpods/")],
        },
    ),
    // The read-only port: what is not for it is refused by name.
    row(R, "GET", "/run/", DISABLED),
    row(R, "POST", "/exec/a/b/c", DISABLED),
    row(R, "PUT", "/attach/a", DISABLED),
    row(R, "PATCH", "/portForward/a/b", DISABLED),
    row(R, "DELETE", "/containerLogs/a/b/c", DISABLED),
    row(R, "GET", "/runningpods/", DISABLED),
    row(R, "GET", "/debug/pprof/heap", DISABLED),
    row(R, "GET", "/logs/syslog", DISABLED),
    row(
        R,
        "GET",
        "/run",
        redirect(&[("location", "/run/")], "<a href=\"/run/\">Temporary Redirect</a>.\n\n"),
    ),
    row(R, "GET", "/configz", UNKNOWN),
    row(R, "GET", "/debug/flags/v", UNKNOWN),
    row(R, "POST", "/checkpoint/a/b/c", UNKNOWN),
    row(R, "GET", "/flagz", UNKNOWN),
    row(R, "GET", "/statusz", UNKNOWN),
    row(H, "GET", "/pods", UNKNOWN),
    row(H, "GET", "/healthz/syncloop", UNKNOWN),
    // Accept is taken at its word.
    row(S, "GET", "/pods", NOT_JSON).with(&[("Accept", "application/*")]),
    row(S, "GET", "/pods", NOT_JSON).with(&[("Accept", "*")]),
    row(R, "GET", "/pods", answer(200, JSON, Any)).with(&[("Accept", "text/html, application/json;q=0.1")]),
    row(S, "GET", "/containerLogs/default/{pod}/c", NOT_ANY).with(&[("Accept", "text/plain")]),
    row(S, "POST", "/exec/default/{pod}/c", NOT_ANY).with(&[("Accept", "application/json")]),
    row(S, "GET", "/debug/pprof/cmdline", NOT_ANY).with(&[("Accept", "text/plain")]),
    // Health.
    row(R, "GET", "/healthz", Expected { headers: NOSNIFF, ..plain(200, "ok") }),
    row(H, "GET", "/healthz", Expected { headers: NOSNIFF, ..plain(200, "ok") }),
    row(R, "POST", "/healthz", plain(200, "ok")),
    row(
        S,
        "GET",
        "/healthz?verbose",
        plain(200, "[+]ping ok\n[+]log ok\n[+]syncloop ok\n[+]device-plugin ok\nhealthz check passed\n"),
    ),
    row(
        S,
        "GET",
        "/healthz?verbose&exclude=log&exclude=b&exclude=a",
        plain(
            200,
            "[+]ping ok\n[+]log excluded: ok\n[+]syncloop ok\n[+]device-plugin ok\n\
             warn: some health checks cannot be excluded: no matches for \"a\",\"b\"\nhealthz check passed\n",
        ),
    ),
    row(S, "GET", "/healthz?exclude=log,ping", plain(200, "ok")),
    row(H, "GET", "/healthz?verbose=0", plain(200, "[+]ping ok\nhealthz check passed\n")),
    row(S, "GET", "/healthz/ping", plain(200, "ok")),
    row(S, "GET", "/healthz/log", plain(200, "ok")),
    row(R, "GET", "/healthz/syncloop", plain(200, "ok")),
    row(R, "GET", "/healthz/device-plugin", plain(200, "ok")),
    // Lists and pages.
    row(
        R,
        "GET",
        "/pods",
        answer(
            200,
            JSON,
            Begins(r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"#),
        ),
    ),
    row(
        S,
        "GET",
        "/runningpods/",
        answer(
            200,
            JSON,
            Begins(
                r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"name":"{pod}","namespace":"default""#,
            ),
        ),
    ),
    row(
        S,
        "GET",
        "/configz",
        Expected {
            headers: NOSNIFF,
            ..answer(
                200,
                JSON,
                Begins(
                    r#"{"kubeletconfig":{"kind":"KubeletConfiguration","apiVersion":"kubelet.config.k8s.io/v1beta1","#,
                ),
            )
        },
    ),
    row(S, "POST", "/configz", answer(200, JSON, Has(r#""cgroupDriver":""#))),
    row(S, "GET", "/flagz", answer(200, PLAIN, Begins("\nkubelet flagz\n"))),
    row(S, "GET", "/statusz", answer(200, PLAIN, Begins("\nkubelet statusz\n"))),
    row(S, "GET", "/flagz", answer(406, JSON, Has("only the following media types are accepted")))
        .with(&[("Accept", "application/json")]),
    row(S, "GET", "/statusz", answer(406, JSON, Has("only the following media types are accepted")))
        .with(&[("Accept", "application/xml")]),
    row(S, "GET", "/statusz", answer(200, PLAIN, Begins("\nkubelet statusz\n")))
        .with(&[("Accept", "application/json;as=Statusz, */*")]),
    row(
        S,
        "GET",
        "/flagz",
        answer(
            200,
            Some("application/json;g=config.k8s.io;v=v1beta1;as=Flagz"),
            Begins(r#"{"kind":"Flagz","apiVersion":"config.k8s.io/v1beta1","#),
        ),
    )
    .with(&[("Accept", "application/json;v=v1beta1;g=config.k8s.io;as=Flagz")]),
    // Logs of containers.
    row(S, "GET", "/containerLogs/default/{pod}/c", answer(200, Some(""), Is("one\ntwo\n"))),
    row(S, "GET", "/containerLogs/default/{pod}/c?tailLines=1", answer(200, Some(""), Is("two\n"))),
    row(S, "GET", "/containerLogs/default/{pod}/c?tail=1&tailLines=5", answer(200, Some(""), Is("two\n"))),
    row(
        S,
        "GET",
        "/containerLogs/default/{pod}/c?tail=all&tailLines=1",
        answer(200, Some(""), Is("one\ntwo\n")),
    ),
    row(S, "GET", "/containerLogs/default/{pod}/c?limitBytes=2", answer(200, Some(""), Is("on"))),
    row(S, "GET", "/containerLogs/default/{pod}/c?tailLines=0", answer(200, Some(""), Is(""))),
    row(S, "GET", "/containerLogs/default/{pod}/c?tail=-1", BAD_RANGE),
    row(S, "GET", "/containerLogs/default/{pod}/c?tailLines=-1", BAD_RANGE),
    row(S, "GET", "/containerLogs/default/{pod}/c?sinceSeconds=0", BAD_RANGE),
    row(S, "GET", "/containerLogs/default/{pod}/c?limitBytes=0", BAD_RANGE),
    row(S, "GET", "/containerLogs/default/{pod}/c?stream=stdout", BAD_RANGE),
    row(S, "GET", "/containerLogs/default/{pod}/c?tailLines=x", BAD_QUERY),
    row(S, "GET", "/containerLogs/default/{pod}/c?sinceTime=yesterday", BAD_QUERY),
    row(
        S,
        "GET",
        "/containerLogs/default/{pod}/c?stream=Stdout",
        answer(
            400,
            None,
            Is(
                "unable to return the given log stream: \"Stdout\". Please enable PodLogsQuerySplitStreams feature gate in kubelet",
            ),
        ),
    ),
    row(
        S,
        "GET",
        "/containerLogs/default/{pod}/c?previous=yes",
        answer(400, Some(""), Is("previous terminated container \"c\" in pod \"{pod}\" not found")),
    ),
    row(S, "GET", "/containerLogs/default/nobody/c", plain(404, "pod \"nobody\" does not exist")),
    row(S, "GET", "/containerLogs/default/{pod}/d", plain(404, "container \"d\" not found in pod \"{pod}\"")),
    // What is done in containers.
    row(S, "POST", "/run/default/{pod}/c?cmd=echo%20a%20b", answer(200, JSON, Is("a b\n"))),
    row(S, "POST", "/run/default/{pod}/any/c?cmd=echo%20a&cmd=false", answer(200, JSON, Is("a\n"))),
    row(S, "POST", "/run/default/{pod}/c?cmd=true", answer(200, None, Is(""))),
    row(S, "POST", "/run/default/{pod}/c?cmd=false", plain(500, "command 'false' exited with 1: ")),
    row(S, "POST", "/run/default/nobody/c?cmd=true", NO_POD),
    row(S, "POST", "/run/default/{pod}/d?cmd=true", plain(500, "container not found (\"d\")")),
    row(S, "POST", "/exec/default/{pod}/c?command=true", NO_STREAM),
    row(S, "POST", "/exec/default/{pod}/c?command=true&stdout=1&output=true", NO_STREAM),
    row(S, "GET", "/exec/default/{pod}/c?command=true&error=1&tty=1", NO_STREAM),
    row(S, "POST", "/exec/default/nobody/c?command=true&output=1", NO_POD),
    row(S, "POST", "/exec/default/{pod}/d?command=true&output=1", plain(500, "container not found (\"d\")")),
    row(S, "POST", "/exec/default/{pod}/c?command=true&output=1", NO_UPGRADE),
    row(S, "POST", "/exec/default/{pod}/any/c/?command=true&output=1", NO_UPGRADE),
    row(S, "POST", "/attach/default/{pod}/c", NO_STREAM),
    row(
        S,
        "POST",
        "/attach/default/{pod}/d?output=1",
        plain(500, "container d not found in pod {pod}_default"),
    ),
    row(S, "POST", "/attach/default/{pod}/c?output=1", NO_UPGRADE),
    row(S, "POST", "/portForward/default/nobody", NO_POD),
    row(S, "POST", "/portForward/default/{pod}/other", plain(404, "pod not found")),
    row(S, "POST", "/portForward/default/{pod}", NO_UPGRADE),
    row(S, "GET", "/portForward/default/{pod}", plain(400, "query parameter \"port\" is required"))
        .with(WEBSOCKET),
    row(S, "GET", "/portForward/default/{pod}?port=", plain(400, "query parameter \"port\" cannot be empty"))
        .with(WEBSOCKET),
    row(S, "GET", "/portForward/default/{pod}?port=80&port=0", plain(400, "port \"0\" must be > 0"))
        .with(WEBSOCKET),
    row(
        S,
        "GET",
        "/portForward/default/{pod}?port=80,abc",
        plain(
            400,
            "unable to parse \"80,abc\" as a port: strconv.ParseUint: parsing \"abc\": invalid syntax",
        ),
    )
    .with(WEBSOCKET),
    row(S, "POST", "/checkpoint/default/nobody/c", NO_POD),
    row(S, "POST", "/checkpoint/default/{pod}/d", plain(404, "container d does not exist")),
    row(
        S,
        "POST",
        "/checkpoint/default/{pod}/c?timeout=x",
        plain(404, "cannot parse value of timeout parameter"),
    ),
    // The machine's logs.
    row(S, "GET", "/logs/", answer(200, Some("text/html; charset=utf-8"), Has("<pre>\n"))),
    row(S, "GET", "/logs/no-such-file", UNKNOWN),
    row(S, "GET", "/logs/%2e%2e/etc/passwd", UNKNOWN),
    // Debugging.
    row(
        S,
        "GET",
        "/debug/flags/v",
        Expected { headers: NOSNIFF, ..answer(406, Some("text/plain"), Is("unsupported http method\n")) },
    ),
    row(
        S,
        "PUT",
        "/debug/flags/v",
        answer(400, None, Is("strconv.ParseUint: parsing \"abc\": invalid syntax\n")),
    )
    .sending("abc"),
    row(
        S,
        "PUT",
        "/debug/flags/v",
        answer(200, Some("text/plain"), Is("successfully set klog.logging.verbosity to 2\n")),
    )
    .sending("2"),
    row(S, "GET", "/debug/pprof/", UNKNOWN_BELOW).ours(
        answer(200, Some("text/html; charset=utf-8"), Has("heap")),
        "an index helps whoever looks for the names",
    ),
    row(
        S,
        "GET",
        "/debug/pprof/nothing",
        Expected { headers: &[("x-go-pprof", "1")], ..answer(404, None, Is("Unknown profile\n")) },
    ),
    row(
        S,
        "GET",
        "/debug/pprof/heap?seconds=x",
        answer(400, None, Is("invalid value for \"seconds\" - must be a positive integer\n")),
    ),
    row(S, "GET", "/debug/pprof/cmdline", answer(200, PLAIN, Has("--config"))),
    row(
        S,
        "GET",
        "/debug/pprof/heap",
        Expected {
            headers: &[("content-disposition", "attachment; filename=\"heap\"")],
            ..answer(200, Some("application/octet-stream"), Any)
        },
    ),
    // Metrics.
    row(R, "GET", "/metrics", answer(200, PROMETHEUS, Has("\nkubelet_http_requests_total{"))),
    row(S, "POST", "/metrics/probes", answer(200, PROMETHEUS, Has("process_start_time_seconds "))),
    row(
        R,
        "GET",
        "/metrics/probes?name[]=process_start_time_seconds",
        answer(200, PROMETHEUS, Begins("# HELP process_start_time_seconds ")),
    ),
    row(R, "GET", "/metrics/probes?name[]=nothing", answer(200, PROMETHEUS, Is(""))),
    row(
        R,
        "GET",
        "/metrics",
        Expected { headers: &[("content-encoding", "gzip")], ..answer(200, PROMETHEUS, Any) },
    )
    .with(&[("Accept-Encoding", "gzip")]),
    row(R, "GET", "/metrics/resource", answer(200, PROMETHEUS, Has("\nnode_memory_working_set_bytes "))),
    row(
        R,
        "GET",
        "/metrics/slis",
        answer(200, PROMETHEUS, Has(r#"kubernetes_healthcheck{name="ping",type="healthz"} 1"#)),
    ),
    row(S, "DELETE", "/metrics/slis", plain(200, "metrics reset\n")),
    // A query or form that cannot be read whole is an error here, and only here.
    row(R, "GET", "/stats/summary?%zz", bad_form("invalid URL escape \"%zz\"")),
    row(S, "GET", "/stats/summary?b=%4&only_cpu_and_memory=true", bad_form("invalid URL escape \"%4\"")),
    row(R, "GET", "/stats/summary?%zz&a;b", bad_form("invalid semicolon separator in query")),
    row(R, "POST", "/stats/summary", bad_form("mime: unexpected content after media subtype"))
        .with(&[("Content-Type", "invalid/content/type")]),
    row(R, "POST", "/stats/summary?%zz", bad_form("mime: duplicate parameter name"))
        .with(&[("Content-Type", "text/plain; a=1; a=2")]),
    row(R, "POST", "/stats/summary?%zz", bad_form("invalid URL escape \"%yy\""))
        .with(&[("Content-Type", "application/x-www-form-urlencoded")])
        .sending("a=%yy"),
    row(
        R,
        "POST",
        "/stats/summary",
        answer(200, JSON, Begins("{\n \"node\": {\n  \"nodeName\": \"node\",\n")),
    )
    .sending("a=%yy"),
    row(
        R,
        "GET",
        "/stats/summary",
        answer(200, JSON, Begins("{\n \"node\": {\n  \"nodeName\": \"node\",\n")),
    )
    .with(&[("Content-Type", "invalid/content/type")]),
    // What upstream had once, or never.
    row(S, "GET", "/stats/", UNKNOWN_BELOW).ours(answer(200, JSON, Begins("{\n \"name\": \"/\",\n")), SEED),
    row(R, "GET", "/stats/container", UNKNOWN_BELOW).ours(answer(200, JSON, Begins("{\n \"/\": {\n")), SEED),
    row(S, "GET", "/stats/%63ontainer/", UNKNOWN_BELOW)
        .ours(answer(200, JSON, Begins("{\n \"/\": {\n")), SEED),
    row(S, "GET", "/stats/{pod}/c", UNKNOWN_BELOW)
        .ours(answer(200, JSON, Has("\"io.kubernetes.container.name\": \"c\"")), SEED),
    row(S, "GET", "/stats/{pod}/d", UNKNOWN_BELOW).ours(plain(404, "no matching container"), SEED),
    row(R, "GET", "/spec/", UNKNOWN).ours(answer(200, JSON, Has("\n \"num_cores\": ")), SEED),
    row(R, "GET", "/metrics/resource/v1alpha1", UNKNOWN)
        .ours(answer(200, PROMETHEUS, Has("\nscrape_error 0")), SEED),
    row(R, "GET", "/node", UNKNOWN)
        .ours(answer(200, JSON, Begins(r#"{"kind":"Node","apiVersion":"v1","#)), SEED),
    row(S, "GET", "/openapi/v3", UNKNOWN).ours(answer(200, JSON, Has(r#""openapi":"3.1"#)), KEPT),
];

/// What is answered to those whom nobody knows. Unknown paths and redirects tell them nothing that they could not guess.
const CLOSED: &[Row] = &[
    row(S, "GET", "/pods", plain(401, "Unauthorized")),
    row(S, "POST", "/pods", plain(401, "Unauthorized")),
    row(S, "GET", "/pods/a", plain(401, "Unauthorized")),
    row(S, "GET", "/pods", plain(401, "Unauthorized")).with(&[("Authorization", "Basic YTpi")]),
    row(S, "GET", "/healthz", plain(401, "Unauthorized")),
    row(S, "GET", "/metrics", plain(401, "Unauthorized")),
    row(S, "GET", "/logs/", plain(401, "Unauthorized")),
    row(S, "POST", "/exec/a/b/c", plain(401, "Unauthorized")),
    row(S, "GET", "/unknown", UNKNOWN),
    row(
        S,
        "GET",
        "/logs",
        redirect(&[("location", "/logs/")], "<a href=\"/logs/\">Temporary Redirect</a>.\n\n"),
    ),
    row(H, "GET", "/healthz", plain(200, "ok")),
    row(R, "GET", "/healthz", plain(200, "ok")),
];

/// With `enableDebuggingHandlers: false`, whatever the switches of single handlers say. The eight that are refused by name
/// are in [`refused_by_name`].
const WITHOUT_DEBUGGING: &[Row] = &[
    row(S, "GET", "/logs/", DISABLED).with(&[("Accept", "text/plain")]),
    row(
        S,
        "GET",
        "/run",
        redirect(&[("location", "/run/")], "<a href=\"/run/\">Temporary Redirect</a>.\n\n"),
    ),
    row(
        S,
        "POST",
        "/containerLogs?a=b",
        Expected {
            status: 307,
            content_type: Some(""),
            text: Is(""),
            headers: &[("location", "/containerLogs/?a=b")],
        },
    ),
    row(S, "GET", "/configz", UNKNOWN),
    row(S, "PUT", "/debug/flags/v", UNKNOWN).sending("2"),
    row(S, "POST", "/checkpoint/a/b/c", UNKNOWN),
    row(S, "GET", "/checkpoint", UNKNOWN),
    row(S, "GET", "/allocatedPods", UNKNOWN),
    row(S, "GET", "/flagz", UNKNOWN),
    row(S, "GET", "/statusz", UNKNOWN),
    row(S, "GET", "/cri/exec/token", UNKNOWN),
    // What everybody may be offered stays.
    row(S, "GET", "/healthz", plain(200, "ok")),
    row(S, "GET", "/healthz/syncloop", plain(200, "ok")),
    row(
        S,
        "GET",
        "/pods",
        answer(200, JSON, Begins(r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"#)),
    ),
    row(S, "POST", "/pods", wrong_method(GET_ONLY)),
    row(
        R,
        "GET",
        "/pods",
        answer(200, JSON, Begins(r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"#)),
    ),
    row(S, "GET", "/metrics", answer(200, PROMETHEUS, Has("\nkubelet_http_requests_total{"))),
    row(S, "GET", "/metrics/probes", answer(200, PROMETHEUS, Has("process_start_time_seconds "))),
    row(S, "GET", "/metrics/slis", answer(200, PROMETHEUS, Has("kubernetes_healthcheck{"))),
    row(S, "GET", "/stats/a/b/c", UNKNOWN_BELOW),
    row(S, "GET", "/spec/", UNKNOWN).ours(answer(200, JSON, Has("\n \"num_cores\": ")), SEED),
    row(S, "GET", "/node", UNKNOWN)
        .ours(answer(200, JSON, Begins(r#"{"kind":"Node","apiVersion":"v1","#)), SEED),
    row(S, "GET", "/openapi/v3", UNKNOWN).ours(answer(200, JSON, Has(r#""openapi":"3.1"#)), KEPT),
    row(H, "GET", "/healthz", plain(200, "ok")),
];

/// What is refused by name where debugging is off: any method, the listener's root and below it.
fn refused_by_name() -> Vec<Row> {
    let paths = [
        "/run/",
        "/exec/a/b/c",
        "/attach/a",
        "/portForward/a/b",
        "/containerLogs/a/b/c",
        "/runningpods/",
        "/debug/pprof/heap",
        "/logs/syslog",
    ];
    let methods = ["GET", "POST", "PUT", "PATCH", "DELETE"];
    let pairs = paths.iter().flat_map(|path| methods.iter().map(move |method| (*method, *path)));
    pairs.map(|(method, path)| row(S, method, path, DISABLED)).collect()
}

const LOGS_OFF: Expected = error(405, "logs endpoint is disabled.\n");
const PROFILING_OFF: Expected = error(405, "profiling endpoint is disabled.\n");
const FLAGS_OFF: Expected = error(405, "flags endpoint is disabled.\n");

/// With the switches of [`SINGLE_SWITCHES`].
const SWITCHED: &[Row] = &[
    // Each of the three says its own, whatever the method and the `Accept`.
    row(S, "GET", "/logs/", LOGS_OFF),
    row(S, "POST", "/logs/", LOGS_OFF),
    row(S, "DELETE", "/logs/syslog", LOGS_OFF).with(&[("Accept", "text/html")]),
    row(
        S,
        "GET",
        "/logs",
        redirect(&[("location", "/logs/")], "<a href=\"/logs/\">Temporary Redirect</a>.\n\n"),
    ),
    row(S, "GET", "/debug/pprof/", PROFILING_OFF),
    row(S, "GET", "/debug/pprof/heap", PROFILING_OFF).with(&[("Accept", "application/json")]),
    row(S, "POST", "/debug/pprof/profile", PROFILING_OFF),
    row(S, "GET", "/debug/flags/v", FLAGS_OFF),
    row(S, "POST", "/debug/flags/v", FLAGS_OFF),
    row(S, "PUT", "/debug/flags/v", FLAGS_OFF).sending("2"),
    // On the read-only port nothing is different.
    row(R, "GET", "/logs/", DISABLED),
    row(R, "GET", "/debug/pprof/heap", DISABLED),
    row(R, "PUT", "/debug/flags/v", UNKNOWN).sending("2"),
    // What a gate has taken away was never there.
    row(S, "POST", "/checkpoint/default/{pod}/c", UNKNOWN),
    row(S, "GET", "/checkpoint", UNKNOWN),
    row(S, "GET", "/flagz", UNKNOWN),
    row(S, "GET", "/statusz", UNKNOWN),
    // What one has brought.
    row(
        S,
        "GET",
        "/allocatedPods",
        answer(
            200,
            JSON,
            Begins(r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"#),
        ),
    ),
    row(S, "GET", "/allocatedPods/default/{pod}", answer(200, JSON, Has(r#""status":{}"#))),
    row(S, "GET", "/allocatedPods/default/{pod}/other", plain(404, "pod not found")),
    row(S, "GET", "/allocatedPods/default/nobody", plain(404, "pod not found")),
    row(S, "POST", "/allocatedPods", wrong_method(GET_ONLY)),
    row(S, "GET", "/allocatedPods", NOT_JSON).with(&[("Accept", "text/plain")]),
    row(R, "GET", "/allocatedPods", UNKNOWN),
    row(S, "GET", "/containerLogs/default/{pod}/c?stream=Stdout", answer(200, Some(""), Is("one\ntwo\n"))),
    row(S, "GET", "/containerLogs/default/{pod}/c?stream=Stderr", answer(200, Some(""), Is(""))),
    row(
        S,
        "GET",
        "/containerLogs/default/{pod}/c?stream=Stdout&limitBytes=2",
        answer(200, Some(""), Is("on")),
    ),
    row(S, "GET", "/containerLogs/default/{pod}/c?stream=stdout", BAD_RANGE),
    // What does not end here any more is for the runtime to understand, which it does not.
    row(S, "GET", "/exec/default/{pod}/c?command=true&output=1", answer(403, None, Any)).with(WEBSOCKET_V5),
    row(S, "GET", "/attach/default/{pod}/c?output=1", answer(403, None, Any)).with(WEBSOCKET_V5),
    row(S, "GET", "/portForward/default/{pod}", plain(400, "query parameter \"port\" is required"))
        .with(WEBSOCKET_TUNNEL),
    // The others are as they were.
    row(S, "GET", "/configz", answer(200, JSON, Has(r#""enableSystemLogHandler":false"#))),
    row(S, "POST", "/exec/default/{pod}/c?command=true&output=1", NO_UPGRADE),
];

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Mainstay,
    Upstream,
}

struct Served {
    node: Node,
    subject: Subject,
    authority: Authority,
    secure: Http,
    pod: String,
    certificate: PathBuf,
    key: PathBuf,
    _containerd: Containerd,
}

impl Served {
    fn start(subject: Subject, config: &str) -> Self {
        let containerd = Containerd::start(Flavor::Debian16).unwrap();
        let authority = Authority::new("servers").unwrap();
        let (certificate, key) = (containerd.dir().join("tls.crt"), containerd.dir().join("tls.key"));
        install(&authority, &certificate, &key);
        let builder = Node::builder().containerd(&containerd).config(config).config(format!(
            "tlsCertFile: {}\ntlsPrivateKeyFile: {}\nauthentication: {{webhook: {{enabled: false}}}}\n\
             authorization: {{mode: AlwaysAllow}}\n",
            certificate.display(),
            key.display(),
        ));
        // How full the machine's disk is must not decide whether the pod may run.
        let never = "evictionHard: {memory.available: 0%, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}";
        let builder = if subject == Subject::Upstream { builder.upstream().config(never) } else { builder };
        let node = builder.start().unwrap();
        let secure = Http::Tls(node.secure(), tls_client(&authority.pem, None).unwrap());
        let pod = format!("web-{}", node.name());
        let served =
            Self { node, subject, authority, secure, pod, certificate, key, _containerd: containerd };
        // Upstream's ports come one after the other.
        for on in [S, R, H] {
            wait_until(ROUNDS, &format!("{on:?}"), || {
                let answer = served.http(on).get("/unknown").map_err(|error| format!("{error:#}"))?;
                if answer.status == 404 { Ok(()) } else { Err(answer.status.to_string()) }
            })
            .unwrap();
        }
        // Upstream is not well before all of its parts are up.
        served.eventually(R, "/healthz", "ok");
        served
    }

    /// With a pod that has logged something.
    fn with_pod(self) -> Self {
        let script = "echo one; echo two; trap 'exit 0' TERM; while true; do sleep 1; done";
        let manifest = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [
                {"name": "c", "image": mainstay_testkit::BUSYBOX, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script]},
            ]},
        });
        self.node.write_manifest("web.json", &manifest.to_string()).unwrap();
        // Each is eventually so, and stays: the list is whole, the log is there.
        self.eventually(S, &format!("/containerLogs/default/{}/c", self.pod), "two\n");
        self.eventually(R, "/pods", "\"phase\":\"Running\"");
        self.eventually(S, "/runningpods/", &self.pod);
        self
    }

    /// Waits until the cgroups were read.
    fn measured(self) -> Self {
        self.eventually(R, "/metrics/resource", "container_memory_working_set_bytes{");
        self
    }

    fn eventually(&self, on: On, path: &str, text: &str) {
        wait_until(ROUNDS, &format!("{text:?} in {path}"), || {
            let found = self.http(on).get(path).map_err(|error| format!("{error:#}"))?;
            let is_there = found.status == 200 && found.text().contains(text);
            if is_there { Ok(()) } else { Err(format!("{} {}", found.status, found.text())) }
        })
        .unwrap();
    }

    fn http(&self, on: On) -> Http {
        match on {
            S => self.secure.clone(),
            R => Http::Tcp(self.node.read_only()),
            H => Http::Tcp(self.node.healthz_address()),
        }
    }

    /// What is wrong with the answer to a row, if something is.
    fn check(&self, row: &Row) -> Option<String> {
        let (method, path) = row.request;
        let path = path.replace("{pod}", &self.pod);
        let expected = match row.ours {
            Some((ours, _)) if self.subject == Subject::Mainstay => ours,
            _ => row.expected,
        };
        let what = format!("{method} {path} on {:?} with {:?}", row.on, row.headers);
        match self.http(row.on).send(method, &path, row.headers, row.body.as_bytes()) {
            Ok(found) => {
                let wrong = expected.differs(&found, &self.pod)?;
                let (kind, text) = (found.header("content-type"), found.text());
                let text: String = text.chars().take(300).collect();
                Some(format!("{what}: {wrong}\n    {} {kind:?} {text:?}", found.status))
            }
            Err(error) => Some(format!("{what}: {error:#}")),
        }
    }

    fn holds(&self, rows: &[Row]) {
        let wrong: Vec<String> = rows.iter().filter_map(|row| self.check(row)).collect();
        assert!(
            wrong.is_empty(),
            "{:?}: {} of {} rows:\n{}",
            self.subject,
            wrong.len(),
            rows.len(),
            wrong.join("\n")
        );
    }
}

impl Expected {
    fn differs(&self, found: &Response, pod: &str) -> Option<String> {
        if found.status != self.status {
            return Some(format!("not {}", self.status));
        }
        if let Some(kind) =
            self.content_type.filter(|kind| found.header("content-type").unwrap_or_default() != *kind)
        {
            return Some(format!("not of type {kind:?}"));
        }
        let text = found.text();
        let fits = match self.text {
            Is(wanted) => text == wanted.replace("{pod}", pod),
            Begins(wanted) => text.starts_with(&wanted.replace("{pod}", pod)),
            Has(wanted) => text.contains(&wanted.replace("{pod}", pod)),
            Text::Form(reason) => text == format!("Internal Error: parse form failed: {reason}"),
            Any => true,
        };
        if !fits {
            return Some(format!("the text is not {:?}", self.text));
        }
        let missing = self.headers.iter().find(|(name, value)| found.header(name) != Some(*value));
        missing.map(|header| format!("without {header:?}: {:?}", found.headers))
    }
}

/// Puts a new certificate in place, the key first, as careful people do.
fn install(authority: &Authority, certificate: &Path, key: &Path) {
    let made = issue(authority);
    replace(key, made.key.as_bytes());
    replace(certificate, made.certificate.as_bytes());
}

fn issue(authority: &Authority) -> Certificate {
    let wish = CertificateWish {
        name: "node",
        organizations: &[],
        names: &["127.0.0.1"],
        usage: Usage::Server,
        expired: false,
    };
    authority.issue(&wish).unwrap()
}

fn replace(path: &Path, content: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, content).unwrap();
    fs::rename(&new, path).unwrap();
}

/// Whoever trusts the first authority is served, until the files on the disk were found wanting and after that.
fn keeps_its_certificate(served: &Served, ours: &str, upstreams: &str) {
    let complaint = if served.subject == Subject::Mainstay { ours } else { upstreams };
    let asked = || {
        // A client that has not been there before: it looks at the certificate.
        let http = Http::Tls(served.node.secure(), tls_client(&served.authority.pem, None).unwrap());
        assert_eq!(http.get("/healthz").unwrap().status, 200, "{complaint}");
    };
    wait_until(ROUNDS, complaint, || {
        asked();
        let log = served.node.log();
        let told = log.lines().any(|line| {
            line.contains(complaint)
                && (served.subject != Subject::Mainstay || line.contains("stays in force"))
        });
        if told { Ok(()) } else { Err("nothing is said of it".to_owned()) }
    })
    .unwrap();
    asked();
}

const OPEN: &str = "authentication: {anonymous: {enabled: true}}";
const SHUT: &str = "authentication: {anonymous: {enabled: false}}";

/// The switches of single handlers are on, as they are where nobody says, and the gate is to no avail.
const DEBUGGING_OFF: &str = "authentication: {anonymous: {enabled: true}}
enableDebuggingHandlers: false
featureGates: {KubeletAllocatedPodsEndpoint: true}";

const SINGLE_SWITCHES: &str = "authentication: {anonymous: {enabled: true}}
enableSystemLogHandler: false
enableProfilingHandler: false
enableDebugFlagsHandler: false
featureGates:
  ContainerCheckpoint: false
  ComponentFlagz: false
  ComponentStatusz: false
  ExtendWebSocketsToKubelet: false
  KubeletAllocatedPodsEndpoint: true
  PodLogsQuerySplitStreams: true";

fn swapped_certificate(served: &Served) {
    let other = Authority::new("others").unwrap();
    let trusts_other = Http::Tls(served.node.secure(), tls_client(&other.pem, None).unwrap());
    assert!(trusts_other.get("/healthz").is_err(), "not yet");
    // A key that is none changes nothing, and neither does a certificate that came without its key.
    let key = fs::read(&served.key).unwrap();
    replace(&served.key, b"nonsense");
    keeps_its_certificate(served, "no items found", "tls: failed to find any PEM data in key input");
    replace(&served.key, &key);
    replace(&served.certificate, issue(&other).certificate.as_bytes());
    keeps_its_certificate(served, "KeyMismatch", "tls: private key does not match public key");
    install(&other, &served.certificate, &served.key);
    wait_until(ROUNDS, "the new certificate", || {
        let answer = trusts_other.get("/healthz").map_err(|error| format!("{error:#}"))?;
        if answer.status == 200 { Ok(()) } else { Err(answer.status.to_string()) }
    })
    .unwrap();
    // A client that has not been there before, since one that has need not look at the certificate again.
    let trusts_old = Http::Tls(served.node.secure(), tls_client(&served.authority.pem, None).unwrap());
    assert!(trusts_old.get("/healthz").is_err(), "the old one is not shown any more");
}

#[test]
fn mainstay_answers_as_the_table_says() {
    let served = Served::start(Subject::Mainstay, OPEN).with_pod().measured();
    served.holds(ROWS);
    swapped_certificate(&served);
}

#[test]
fn upstream_answers_as_the_table_says() {
    let served = Served::start(Subject::Upstream, OPEN).with_pod().measured();
    served.holds(ROWS);
    swapped_certificate(&served);
}

#[test]
fn strangers_are_told_the_same_by_both() {
    for subject in [Subject::Mainstay, Subject::Upstream] {
        Served::start(subject, SHUT).holds(CLOSED);
    }
}

#[test]
fn without_debugging_both_refuse_the_same() {
    for subject in [Subject::Mainstay, Subject::Upstream] {
        let rows = [&refused_by_name()[..], WITHOUT_DEBUGGING].concat();
        Served::start(subject, DEBUGGING_OFF).holds(&rows);
    }
}

#[test]
fn single_switches_and_gates_do_the_same_to_both() {
    for subject in [Subject::Mainstay, Subject::Upstream] {
        Served::start(subject, SINGLE_SWITCHES).with_pod().holds(SWITCHED);
    }
}

#[test]
fn every_difference_has_a_reason_and_is_one() {
    for row in [ROWS, CLOSED, WITHOUT_DEBUGGING, SWITCHED].concat() {
        let Some((ours, why)) = row.ours else { continue };
        assert!(why.len() > 10, "{row:?}");
        assert_ne!(format!("{ours:?}"), format!("{:?}", row.expected), "{row:?}");
    }
}
