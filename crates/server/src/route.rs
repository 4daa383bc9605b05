//! Which handler a request belongs to. Two layers, as upstream: exact paths and subtrees first (Go's `ServeMux`), then
//! method and `Accept` of the service behind a subtree (go-restful); each layer has its own error texts.

use std::{borrow::Cow, sync::Arc, time::Duration};

use http::{Method, Request, StatusCode, header};
use mainstay_snapshot::EventReader;
use mainstay_task::{Shutdown, TaskGroup};
use mainstay_types::{Heartbeat, NodeSnapshot};
use tokio::sync::watch;

use crate::{
    answer::{self, Answer},
    container_logs, health, local_api, pods,
    request::{Query, accepts, clean, unescape},
};

const JSON: &str = "application/json";
/// Declares nothing, so that only requests without `Accept` or with `*/*` are served.
const UNDECLARED: &str = "";

/// What the server looks at.
#[derive(Clone, Debug)]
pub struct ServerState {
    /// The newest snapshot; `None` until there is a complete one.
    pub snapshot: watch::Receiver<Option<Arc<NodeSnapshot>>>,
    /// What happened.
    pub events: EventReader,
    /// The sync loop's sign of life.
    pub heartbeat: Heartbeat,
}

/// Everything a handler may use.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) state: ServerState,
    pub(crate) sync_frequency: Duration,
    pub(crate) split_log_streams: bool,
    pub(crate) log_check: health::LogCheck,
    pub(crate) tasks: TaskGroup,
    pub(crate) shutdown: Shutdown,
}

impl App {
    pub(crate) fn snapshot(&self) -> Option<Arc<NodeSnapshot>> {
        self.state.snapshot.borrow().clone()
    }
}

/// Which listener a request came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Face {
    /// The root-only unix socket.
    Local,
    /// The read-only port.
    ReadOnly,
    /// The healthz port.
    Healthz,
}

/// What stands behind a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Health,
    HealthCheck(health::Check),
    Pods,
    RunningPods,
    ContainerLogs,
    LocalApi,
    Disabled,
}

enum Found {
    Target(Target),
    /// Only the form with a final slash exists.
    AddSlash,
    Nothing,
}

/// Upstream's debug endpoints, which its read-only port names but refuses.
const DISABLED: [&str; 8] =
    ["/run", "/exec", "/attach", "/portForward", "/containerLogs", "/runningpods", "/debug/pprof", "/logs"];

/// Answers one request.
pub(crate) async fn respond<B>(app: &Arc<App>, face: Face, request: &Request<B>) -> Answer {
    let method = request.method();
    let escaped = request.uri().path();
    if *method == Method::OPTIONS && escaped == "*" {
        return answer::empty(StatusCode::OK);
    }
    let cleaned = clean(escaped);
    let Some(path) = unescape(&cleaned, false) else { return answer::bad_request() };
    match find(face, &path) {
        Found::AddSlash => redirect(request, &format!("{cleaned}/")),
        Found::Target(_) | Found::Nothing if matches!(cleaned, Cow::Owned(_)) => redirect(request, &cleaned),
        Found::Nothing => answer::unknown_path(),
        Found::Target(target) => serve(app, face, target, request, &path).await,
    }
}

fn redirect<B>(request: &Request<B>, path: &str) -> Answer {
    match request.uri().query() {
        Some(query) => answer::redirect(request.method(), &format!("{path}?{query}")),
        None => answer::redirect(request.method(), path),
    }
}

async fn serve<B>(app: &Arc<App>, face: Face, target: Target, request: &Request<B>, path: &str) -> Answer {
    let query = Query::parse(request.uri().query());
    let sub_path: Vec<&str> = path.trim_matches('/').split('/').skip(1).collect();
    let refused = |produced: &str| refusal(request, produced);
    match target {
        Target::Health => health::root(app, face, &query),
        Target::HealthCheck(check) => health::single(app, check),
        Target::Disabled => answer::error(StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled."),
        Target::Pods | Target::RunningPods if !sub_path.is_empty() => answer::unknown_sub_path(),
        Target::Pods => match refused(JSON) {
            Some(refusal) => refusal,
            None => pods::list(app, &query),
        },
        Target::RunningPods => match refused(JSON) {
            Some(refusal) => refusal,
            None => pods::running(app),
        },
        Target::ContainerLogs => match sub_path.as_slice() {
            [namespace, pod, container] => match refused(UNDECLARED) {
                Some(refusal) => refusal,
                None => container_logs::serve(app, namespace, pod, container, &query).await,
            },
            _ => answer::unknown_sub_path(),
        },
        Target::LocalApi => match sub_path.as_slice() {
            ["v1", resource] => match local_api::Resource::named(resource) {
                Some(resource) => match refused(JSON) {
                    Some(refusal) => refusal,
                    None => local_api::serve(app, resource, &query),
                },
                None => answer::unknown_sub_path(),
            },
            _ => answer::unknown_sub_path(),
        },
    }
}

/// What a service's router says before its handler is asked.
fn refusal<B>(request: &Request<B>, produced: &str) -> Option<Answer> {
    if request.method() != Method::GET {
        return Some(answer::only_get());
    }
    let accept = request.headers().get(header::ACCEPT).map(|value| value.to_str().unwrap_or("?"));
    (!accepts(accept, produced)).then(|| answer::not_acceptable(produced))
}

fn find(face: Face, path: &str) -> Found {
    if let Some(rest) = path.strip_prefix("/healthz") {
        let target = match (face, rest) {
            (_, "") => Some(Target::Health),
            (_, "/ping") => Some(Target::HealthCheck(health::Check::Ping)),
            (Face::Healthz, _) => None,
            (_, "/log") => Some(Target::HealthCheck(health::Check::Log)),
            (_, "/syncloop") => Some(Target::HealthCheck(health::Check::SyncLoop)),
            _ => None,
        };
        return target.map_or(Found::Nothing, Found::Target);
    }
    match face {
        Face::Healthz => Found::Nothing,
        Face::ReadOnly | Face::Local if is_or_below(path, "/pods") => Found::Target(Target::Pods),
        Face::ReadOnly => subtrees(path, DISABLED.map(|prefix| (prefix, Target::Disabled))),
        Face::Local if is_or_below(path, "/containerLogs") => Found::Target(Target::ContainerLogs),
        Face::Local => {
            subtrees(path, [("/runningpods", Target::RunningPods), ("/mainstay", Target::LocalApi)])
        }
    }
}

fn subtrees<const N: usize>(path: &str, known: [(&str, Target); N]) -> Found {
    for (prefix, target) in known {
        if path == prefix {
            return Found::AddSlash;
        }
        if is_or_below(path, prefix) {
            return Found::Target(target);
        }
    }
    Found::Nothing
}

fn is_or_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
