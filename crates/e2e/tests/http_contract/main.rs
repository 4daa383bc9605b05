//! What clients of the kubelet's HTTP API can rely on, as one table that is held against mainstay and against upstream's
//! kubelet alike. Where mainstay answers otherwise on purpose, the row says how and why.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod served;

use served::{Served, Subject, swapped_certificate};

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
