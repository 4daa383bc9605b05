//! What the process tells about itself, and the one thing of it that can be changed: `/configz`, `/flagz`, `/statusz`,
//! `/debug/flags/v`.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use jiff::{Timestamp, tz::TimeZone};
use mainstay_snapshot::go_json;
use mainstay_types::VERSION;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    answer::{self, Answer},
    call::{self, Call},
    request::quoted,
    route::App,
};

/// The longest number that anybody would send.
const MAX_NUMBER_BYTES: usize = 1024;
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and \
                       is for debugging purposes only.";

/// What the process tells about itself.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// The effective configuration.
    pub config: ConfigPage,
    /// The command line: every flag with its value.
    pub flags: Arc<BTreeMap<String, String>>,
    /// How much is logged.
    pub verbosity: Verbosity,
}

/// `/configz`, which is known in full only once the runtime has answered.
#[derive(Clone, Debug, Default)]
pub struct ConfigPage(Arc<RwLock<Bytes>>);

impl ConfigPage {
    /// Puts the configuration there: a `KubeletConfiguration` without `kind` and `apiVersion`, whose secrets are masked.
    pub fn set(&self, config: &impl Serialize) {
        const HEAD: &[u8] =
            br#"{"kubeletconfig":{"kind":"KubeletConfiguration","apiVersion":"kubelet.config.k8s.io/v1beta1""#;
        let fields = go_json(config);
        let mut page = HEAD.to_vec();
        let rest = fields.strip_prefix(b"{").unwrap_or(b"}");
        if rest.first() != Some(&b'}') {
            page.push(b',');
        }
        page.extend_from_slice(rest);
        page.push(b'}');
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = page.into();
    }

    fn get(&self) -> Bytes {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Changes how much is logged, with klog's numbers.
#[derive(Clone, Default)]
pub struct Verbosity(Option<Arc<dyn Fn(u32) + Send + Sync>>);

impl Verbosity {
    /// `set` must not block.
    pub fn new(set: impl Fn(u32) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(set)))
    }
}

impl fmt::Debug for Verbosity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verbosity")
    }
}

/// `/configz`.
pub(crate) fn configz(app: &App) -> Answer {
    answer::nosniff(answer::json(app.state.process.config.get()))
}

/// `/debug/flags/v`. Upstream: `apiserver/pkg/server/routes/flags.go`.
pub(crate) async fn verbosity(app: &App, call: Call<'_>) -> Answer {
    if *call.method != Method::PUT {
        return flat(StatusCode::NOT_ACCEPTABLE, "unsupported http method\n".into());
    }
    let text = match call::read(call.body, MAX_NUMBER_BYTES).await {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => return flat(StatusCode::BAD_REQUEST, format!("{error}\n")),
    };
    let level = match parse_uint(&text) {
        Ok(level) => level,
        Err(why) => return flat(StatusCode::BAD_REQUEST, format!("{why}\n")),
    };
    if let Some(set) = &app.state.process.verbosity.0 {
        set(level);
    }
    tracing::info!(verbosity = level, "the log's verbosity was changed");
    flat(StatusCode::OK, format!("successfully set klog.logging.verbosity to {level}\n"))
}

/// Go's `strconv.ParseUint(text, 10, 32)`.
fn parse_uint(text: &str) -> Result<u32, String> {
    let why = |what| format!("strconv.ParseUint: parsing {}: {what}", quoted(text));
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(why("invalid syntax"));
    }
    text.parse().map_err(|_| why("value out of range"))
}

fn flat(status: StatusCode, text: String) -> Answer {
    let mut answer = answer::nosniff(answer::plain(status, text));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    answer
}

/// `/flagz`.
pub(crate) fn flagz(app: &App, headers: &HeaderMap) -> Answer {
    let flags = &app.state.process.flags;
    page(headers, "Flagz", |version| match version {
        None => {
            let lines: String = flags.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
            Page::Text(format!("\nkubelet flagz\n{WARNING}\n{lines}"))
        }
        Some(version) => Page::Object(json!({
            "kind": "Flagz", "apiVersion": format!("config.k8s.io/{version}"), "metadata": {"name": "kubelet"}, "flags": **flags,
        })),
    })
}

/// `/statusz`.
pub(crate) fn statusz(app: &App, headers: &HeaderMap) -> Answer {
    let start = app.state.process_start;
    let up = Timestamp::now().duration_since(start).as_secs().max(0);
    let binary = VERSION.trim_start_matches('v');
    let emulated: String = binary.split('.').take(2).collect::<Vec<_>>().join(".");
    let paths = crate::table::exact_roots(app.switches);
    let runtime = "none (not a Go program)";
    page(headers, "Statusz", |version| match version {
        None => {
            let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
            let started = start.to_zoned(TimeZone::UTC).strftime("%a %b %e %H:%M:%S UTC %Y").to_string();
            Page::Text(format!(
                "\nkubelet statusz\n{WARNING}\n\nStarted:  {started}\nUp:  {hours} hr {minutes:02} min {seconds:02} sec\n\
                 Go version:  {runtime}\nBinary version:  {binary}\nEmulation version:  {emulated}\nPaths:  {}\n",
                paths.join(" ")
            ))
        }
        Some(version) => Page::Object(json!({
            "kind": "Statusz", "apiVersion": format!("config.k8s.io/{version}"), "metadata": {"name": "kubelet"},
            "startTime": mainstay_types::to_seconds(start).to_string(), "uptimeSeconds": up, "goVersion": runtime,
            "binaryVersion": binary, "emulationVersion": emulated, "paths": paths,
        })),
    })
}

enum Page {
    Text(String),
    Object(Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Json(&'static str),
    Yaml(&'static str),
}

/// Upstream: `component-base/zpages`: text for people, an object only for those who name version, group and kind.
fn page(headers: &HeaderMap, kind: &str, make: impl Fn(Option<&str>) -> Page) -> Answer {
    let accept = headers.get(header::ACCEPT).map(|value| value.to_str().unwrap_or("?")).unwrap_or_default();
    let Some(form) = negotiate(accept, kind) else { return not_acceptable(accept) };
    let version = match form {
        Form::Text => None,
        Form::Json(version) | Form::Yaml(version) => Some(version),
    };
    let (bytes, media): (Bytes, _) = match (make(version), form) {
        (Page::Text(text), _) => (text.into(), None),
        (Page::Object(object), Form::Yaml(_)) => {
            (serde_yaml_ng::to_string(&object).unwrap_or_default().into(), Some("yaml"))
        }
        (Page::Object(object), _) => (format!("{object}\n").into(), Some("json")),
    };
    let mut answer = answer::plain(StatusCode::OK, bytes);
    if let (Some(media), Some(version)) = (media, version) {
        let kind_of = format!("application/{media};g=config.k8s.io;v={version};as={kind}");
        if let Ok(value) = HeaderValue::from_str(&kind_of) {
            answer.headers_mut().insert(header::CONTENT_TYPE, value);
        }
        if version == "v1alpha1" {
            let name = kind.to_lowercase();
            let warning = format!(
                "299 - \"This version of the {name} endpoint is deprecated. Please use a newer version.\""
            );
            if let Ok(value) = HeaderValue::from_str(&warning) {
                answer.headers_mut().insert(header::WARNING, value);
            }
        }
    }
    answer
}

fn negotiate(accept: &str, kind: &str) -> Option<Form> {
    if accept.trim().is_empty() {
        return Some(Form::Text);
    }
    accept.split(',').find_map(|item| {
        let mut parts = item.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let parameters: BTreeMap<&str, &str> = parts.filter_map(|part| part.split_once('=')).collect();
        let version = match parameters.get("v").copied() {
            Some("v1beta1") => Some("v1beta1"),
            Some("v1alpha1") => Some("v1alpha1"),
            _ => None,
        };
        let is_ours =
            parameters.get("g") == Some(&"config.k8s.io") && parameters.get("as").copied() == Some(kind);
        match (media, version.filter(|_| is_ours)) {
            ("*/*" | "text/plain", _) => Some(Form::Text),
            ("application/json", Some(version)) => Some(Form::Json(version)),
            ("application/yaml", Some(version)) => Some(Form::Yaml(version)),
            _ => None,
        }
    })
}

fn not_acceptable(accept: &str) -> Answer {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "only the following media types are accepted: application/json, application/yaml, text/plain",
        "reason": "NotAcceptable", "code": 406,
    });
    // Upstream writes it in one of two ways, by which serializer it had found.
    let text = if accept.trim() == "application/json" {
        format!("{status}\n")
    } else {
        serde_json::to_string_pretty(&status).unwrap_or_default()
    };
    let mut answer = answer::json(text.into());
    *answer.status_mut() = StatusCode::NOT_ACCEPTABLE;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_go_reads_them() {
        assert_eq!(parse_uint("5"), Ok(5));
        assert_eq!(parse_uint("abc").unwrap_err(), "strconv.ParseUint: parsing \"abc\": invalid syntax");
        assert_eq!(parse_uint("4\n").unwrap_err(), "strconv.ParseUint: parsing \"4\\n\": invalid syntax");
        assert_eq!(parse_uint("").unwrap_err(), "strconv.ParseUint: parsing \"\": invalid syntax");
        assert_eq!(parse_uint("-1").unwrap_err(), "strconv.ParseUint: parsing \"-1\": invalid syntax");
        assert_eq!(
            parse_uint("99999999999").unwrap_err(),
            "strconv.ParseUint: parsing \"99999999999\": value out of range"
        );
    }

    #[test]
    fn objects_only_for_those_who_name_them() {
        let json = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz";
        for (accept, expected) in [
            ("", Some(Form::Text)),
            (" ", Some(Form::Text)),
            ("*/*", Some(Form::Text)),
            ("text/plain", Some(Form::Text)),
            (json, Some(Form::Json("v1beta1"))),
            ("application/yaml;v=v1alpha1;g=config.k8s.io;as=Flagz", Some(Form::Yaml("v1alpha1"))),
            ("application/json", None),
            ("application/xml", None),
            ("application/json;v=v1beta1;g=config.k8s.io", None),
            ("application/json;v=v2;g=config.k8s.io;as=Flagz", None),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Statusz", None),
            ("application/json;as=Flagz, */*", Some(Form::Text)),
        ] {
            assert_eq!(negotiate(accept, "Flagz"), expected, "{accept}");
        }
    }
}
