//! From a request to its answer: the table is asked for the route, the guard for the right, the handler for the rest.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use http::{Method, Request, StatusCode, header, request::Parts};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use jiff::Timestamp;
use mainstay_auth::{ANONYMOUS, ActingVerb, Asking, Attributes, Guard, Identity, audit, bearer};
use mainstay_cri::CallStats;
use mainstay_host::Host;
use mainstay_snapshot::EventReader;
use mainstay_task::{Shutdown, TaskGroup};
use mainstay_trace::{Context, Kind, Span, Tracer};
use mainstay_types::{
    Assignments, Counters, EventCounts, Filesystems, Heartbeat, NodeCounters, NodeSnapshot, ProbeMetrics,
    Samples,
};
use tokio::sync::{mpsc, watch};

use crate::{
    acting,
    answer::{self, Answer},
    cadvisor,
    call::{Call, Passage},
    choice::FamilyChoice,
    connection::Peer,
    container_logs,
    deed::deed,
    door::Place,
    health, local_api, metrics, node,
    node_logs::{self, NodeLogs},
    openapi,
    own_families::Facts,
    own_metrics::{InFlight, OwnMetrics},
    pods,
    process::{self, Process},
    profiles,
    representation::Kept,
    request::{Query, accepts, clean, unescape},
    resource_metrics::{self, Version},
    resources, stats, summary,
    table::{self, Face, Found, Handler, Mux, Route, Switches},
    watch::Feed,
};

/// What the server looks at.
#[derive(Clone, Debug)]
pub struct ServerState {
    /// The newest snapshot; `None` until there is a complete one.
    pub snapshot: watch::Receiver<Option<Arc<NodeSnapshot>>>,
    /// What happened.
    pub events: EventReader,
    /// The sync loop's sign of life.
    pub heartbeat: Heartbeat,
    /// What probes have counted.
    pub probes: ProbeMetrics,
    /// What cgroups use.
    pub samples: watch::Receiver<Arc<Samples>>,
    /// What lies on disks.
    pub disks: Disks,
    /// Who holds which CPUs and devices.
    pub assignments: watch::Receiver<Arc<Assignments>>,
    /// What the node's parts have counted.
    pub work: Arc<NodeCounters>,
    /// What is known of the process.
    pub facts: Facts,
    /// What was asked of the container runtime.
    pub calls: Arc<CallStats>,
    /// What became of events.
    pub event_counts: EventCounts,
    /// What other parts count.
    pub counters: Arc<Counters>,
    /// What is told of how long requests take.
    pub tracer: Tracer,
    /// When the process began.
    pub process_start: Timestamp,
    /// What the process tells about itself.
    pub process: Process,
}

/// What lies on disks, and a way to say that somebody wants to know.
#[derive(Clone, Debug)]
pub struct Disks {
    /// What was found.
    pub found: watch::Receiver<Arc<Filesystems>>,
    /// Takes a wish whenever somebody was told of it.
    pub wishes: mpsc::Sender<()>,
}

impl Default for Disks {
    /// Nothing, and nobody who looks.
    fn default() -> Self {
        Self { found: watch::channel(Arc::default()).1, wishes: mpsc::channel(1).0 }
    }
}

/// Everything a handler may use.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) state: ServerState,
    pub(crate) sync_frequency: Duration,
    pub(crate) split_log_streams: bool,
    pub(crate) switches: Switches,
    pub(crate) pod_list: Kept,
    pub(crate) node: Kept,
    pub(crate) feed: Feed,
    pub(crate) metrics: OwnMetrics,
    pub(crate) health_counts: health::Counts,
    pub(crate) acting: acting::Acting,
    pub(crate) node_logs: NodeLogs,
    pub(crate) host: Host,
    pub(crate) machine: stats::KeptMachine,
    pub(crate) families: Arc<FamilyChoice>,
    pub(crate) log_check: health::LogCheck,
    pub(crate) resource_texts: resource_metrics::ResourceTexts,
    pub(crate) cadvisor: cadvisor::Kept,
    pub(crate) summaries: summary::Summaries,
    /// When the machine began.
    pub(crate) booted: Timestamp,
    /// Who may do what through the secure port.
    pub(crate) guard: Option<Arc<Guard>>,
    pub(crate) acting_verb: ActingVerb,
    /// What the secure port shows and speaks.
    pub(crate) tls: Option<Arc<crate::tls::Tls>>,
    pub(crate) tasks: TaskGroup,
    pub(crate) shutdown: Shutdown,
}

impl App {
    /// Watches' versions are this and the snapshot's generation: they go on counting up when mainstay is restarted.
    pub(crate) fn version_base(&self) -> u64 {
        u64::try_from(self.state.process_start.as_second()).unwrap_or(0) << 20
    }

    pub(crate) fn snapshot(&self) -> Option<Arc<NodeSnapshot>> {
        self.state.snapshot.borrow().clone()
    }
}

/// Answers one request, and counts it.
pub(crate) async fn respond(app: &Arc<App>, face: Face, peer: &Peer, request: Request<Incoming>) -> Answer {
    let counted = app.metrics.begin(face, request.method(), request.uri().path());
    let open = peer.place.as_ref().map(Place::request);
    let counted = Mutex::new(counted);
    let mut answer = decide(app, face, peer, request, &counted).await;
    drop(open);
    // A body that is still to come is part of the answer.
    answer.body_mut().keep(counted.into_inner().unwrap_or_else(PoisonError::into_inner));
    answer
}

async fn decide(
    app: &Arc<App>,
    face: Face,
    peer: &Peer,
    mut request: Request<Incoming>,
    counted: &Mutex<Option<InFlight>>,
) -> Answer {
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let (mut head, body) = request.into_parts();
    let escaped = head.uri.path();
    if head.method == Method::OPTIONS && escaped == "*" {
        return answer::empty(StatusCode::OK);
    }
    let cleaned = clean(escaped);
    let Some(path) = unescape(&cleaned, false) else { return answer::bad_request() };
    let found = table::find(face, app.switches, &path);
    match &found {
        Found::AddSlash => return redirect(&head, &format!("{cleaned}/")),
        _ if matches!(cleaned, Cow::Owned(_)) => return redirect(&head, &cleaned),
        Found::Nothing => return answer::unknown_path(),
        Found::Route(..) | Found::UnknownSubPath | Found::Disabled(_) => {}
    }
    let passage = match face {
        Face::Secure => match Box::pin(judge(app, peer, &head, &path)).await {
            Ok(who) => Passage::Judged(who),
            Err(refusal) => return refusal,
        },
        Face::Local => {
            note_use_of_socket(app, peer, &head, &path);
            Passage::Open
        }
        Face::ReadOnly | Face::Healthz => Passage::Open,
    };
    // It has served its purpose, and is nobody else's: not the runtime's either.
    bearer::remove(&mut head.headers);
    // What the router found wrong is told only to those who may ask.
    let (route, values) = match found {
        Found::Route(route, values) => (route, values),
        Found::Disabled(text) => return answer::error(StatusCode::METHOD_NOT_ALLOWED, text),
        Found::UnknownSubPath | Found::AddSlash | Found::Nothing => return answer::unknown_sub_path(),
    };
    if route.mux != Mux::Exact
        && let Some(refusal) = refusal(route, &head)
    {
        return refusal;
    }
    let call = Call {
        face,
        passage,
        method: &head.method,
        uri: &head.uri,
        values: &values,
        query: Query::parse(head.uri.query()).of(route),
        headers: &head.headers,
        body,
        upgrade,
        peer,
        counted,
    };
    if !app.state.tracer.is_on() {
        return serve(app, route.handler, call).await;
    }
    Box::pin(serve_traced(app, route, call)).await
}

/// The same with a span, in the words of OpenTelemetry's conventions. It has the time that the guard took in it, and lasts until the
/// answer's body is gone.
async fn serve_traced(app: &Arc<App>, route: &Route, call: Call<'_>) -> Answer {
    let tracer = &app.state.tracer;
    let caller = Context::from_headers(call.headers);
    let mut span = match call.face {
        Face::Healthz => Span::default(),
        // Anybody may reach it, so that nobody's decision counts: as upstream.
        Face::ReadOnly => tracer.linked(caller, route.path, Kind::Server),
        Face::Secure | Face::Local => tracer.below(caller.as_ref(), route.path, Kind::Server),
    };
    if span.is_recorded() {
        if let Some(counted) = &*call.counted.lock().unwrap_or_else(PoisonError::into_inner) {
            span.since(SystemTime::now().checked_sub(counted.age()).unwrap_or_else(SystemTime::now));
        }
        span.set("server.address", "kubelet");
        span.set("http.request.method", call.method.as_str().to_owned());
        span.set("http.route", route.path);
        span.set("url.scheme", if call.face == Face::Secure { "https" } else { "http" });
        span.set("url.path", call.uri.path().to_owned());
        if let Some(address) = call.peer.address {
            span.set("network.peer.address", address.ip().to_canonical().to_string());
            span.set("network.peer.port", i64::from(address.port()));
        }
        if let Some(agent) = call.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()) {
            span.set("user_agent.original", agent.to_owned());
        }
    }
    let counted = call.counted;
    let answer = span.run(serve(app, route.handler, call)).await;
    span.set("http.response.status_code", i64::from(answer.status().as_u16()));
    if answer.status().is_server_error() {
        span.fail("");
    }
    if let Some(counted) = counted.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        counted.keep(span);
    }
    answer
}

/// Asks the guard. What the secure port serves, it serves past this only; unknown paths and redirects tell nothing.
async fn judge(app: &App, peer: &Peer, head: &Parts, path: &str) -> Result<Identity, Answer> {
    let Some(guard) = &app.guard else {
        return Err(answer::plain(StatusCode::UNAUTHORIZED, "Unauthorized"));
    };
    let attributes = Attributes::of(&head.method, path, app.acting_verb);
    let what = what(app, head, path);
    let address = peer.address.map(|address| address.ip().to_canonical());
    let asking = Asking { headers: &head.headers, chain: &peer.chain, address, what: &what };
    let judged = guard.judge(asking, &attributes).await;
    if let (Ok(who), Some(place)) = (&judged, &peer.place)
        && who.user != ANONYMOUS
    {
        place.keep();
    }
    judged.map_err(|refusal| answer::plain(refusal.status, refusal.text))
}

/// The socket asks nobody, but what is done through it in containers, or read from their logs, is a line of the audit log as well.
fn note_use_of_socket(app: &App, peer: &Peer, head: &Parts, path: &str) {
    let attributes = Attributes::of(&head.method, path, app.acting_verb);
    // What mainstay's own pages tell is in the public lists, too; its tools ask for them all the time.
    if attributes.is_privileged() && !path.starts_with("/mainstay/") {
        let (user, process) = peer.process.unzip();
        audit::by_socket(user, process.flatten(), &what(app, head, path));
    }
}

/// What is asked for, for the audit log. A client that comes back for a stream does what it asked for before.
fn what(app: &App, head: &Parts, path: &str) -> String {
    let what = deed(&head.method, path, head.uri.query());
    match path.strip_prefix("/cri/").and_then(|rest| app.acting.asked_before(rest)) {
        Some(before) => format!("{what} for {before}"),
        None => what,
    }
}

fn redirect(head: &Parts, path: &str) -> Answer {
    match head.uri.query() {
        Some(query) => answer::redirect(&head.method, &format!("{path}?{query}")),
        None => answer::redirect(&head.method, path),
    }
}

/// What a service's router says before its handler is asked.
fn refusal(route: &Route, head: &Parts) -> Option<Answer> {
    if !route.methods.contains(&head.method.as_str()) {
        return Some(answer::method_not_allowed(route.methods));
    }
    let accept = head.headers.get(header::ACCEPT).map(|value| value.to_str().unwrap_or("?"));
    (!accepts(accept, route.produces)).then(|| answer::not_acceptable(route.produces))
}

/// Hands the request over. What waits is put into a box of its own: a connection keeps room for the largest of these futures
/// as long as it lives, and most connections only ever ask for what is there.
async fn serve(app: &Arc<App>, handler: Handler, call: Call<'_>) -> Answer {
    match handler {
        Handler::Health => health::root(app, call.face, &call.query),
        Handler::HealthPing => health::single(app, health::Check::Ping),
        Handler::HealthLog => health::single(app, health::Check::Log),
        Handler::HealthDevicePlugin => health::single(app, health::Check::DevicePlugin),
        Handler::HealthSyncLoop => health::single(app, health::Check::SyncLoop),
        Handler::MetricsProbes => metrics::probes(app, &call).await,
        Handler::Metrics => metrics::own(app, &call).await,
        Handler::MetricsSlis => metrics::slis(app, &call).await,
        Handler::Pods => pods::list(app, &call),
        Handler::AllocatedPods => pods::allocated(app, &call),
        Handler::Configz => process::configz(app),
        Handler::Flagz => process::flagz(app, call.headers),
        Handler::Statusz => process::statusz(app, call.headers),
        Handler::LogVerbosity => Box::pin(process::verbosity(app, call)).await,
        Handler::MetricsResource => metrics::resource(app, &call, Version::Current).await,
        Handler::MetricsResourceV1Alpha1 => metrics::resource(app, &call, Version::V1Alpha1).await,
        Handler::MetricsCadvisor => Box::pin(cadvisor::serve(app, call)).await,
        Handler::RunningPods => pods::running(app),
        Handler::ContainerLogs => Box::pin(container_logs::serve(app, &call)).await,
        Handler::Profiles => Box::pin(profiles::serve(app, &call)).await,
        Handler::NodeLogs => Box::pin(node_logs::serve(app, &call)).await,
        Handler::Events => local_api::events(app, &call.query),
        Handler::Manifests => local_api::manifests(app),
        Handler::Resources => resources::resources(app),
        Handler::Node => node::serve(app, &call),
        Handler::NodeSummary => local_api::node(app),
        Handler::OpenApi => openapi::serve(),
        Handler::Spec => Box::pin(stats::spec(app)).await,
        Handler::Summary => Box::pin(summary::serve(app, call)).await,
        Handler::StatsByCgroup => Box::pin(stats::by_cgroup(app, call)).await,
        Handler::Stats => Box::pin(stats::serve(app, call)).await,
        Handler::Run => Box::pin(acting::run(app, call)).await,
        Handler::Exec => Box::pin(acting::exec(app, call)).await,
        Handler::Attach => Box::pin(acting::attach(app, call)).await,
        Handler::PortForward => Box::pin(acting::port_forward(app, call)).await,
        Handler::Checkpoint => Box::pin(acting::checkpoint(app, call)).await,
        Handler::Cri => Box::pin(acting::cri(app, call)).await,
    }
}
