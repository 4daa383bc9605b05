//! The route table: everything that the server answers, once.
//!
//! Routing ([`find`]), the OpenAPI document and `docs/api.md` come from [`ROUTES`]; who may pass stands in it too, and a test
//! holds it against the table of the auth crate, which judges by path before any route is chosen.
//!
//! Two layers, as upstream: exact paths and the roots of services first (Go's `ServeMux`), then method, sub-path and `Accept`
//! inside a service (go-restful); each has its own error texts.

mod rows;

use std::{
    collections::{HashMap, HashSet},
    sync::LazyLock,
};

pub(crate) use rows::ROUTES;

/// Which listener a request came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Face {
    /// The root-only unix socket.
    Local,
    /// The TLS port, where everybody must say who they are.
    Secure,
    /// The read-only port.
    ReadOnly,
    /// The healthz port.
    Healthz,
}

/// One thing that can be asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    /// `/containerLogs/{namespace}/{pod}/{container}`; `{name...}` stands for all that is left, slashes included.
    pub(crate) path: &'static str,
    /// How the first layer knows it.
    pub(crate) mux: Mux,
    /// What a service's router lets through. Exact paths are asked whatever the method; those they mean stand here.
    pub(crate) methods: &'static [&'static str],
    /// What the service declares to produce; empty for nothing. Compared with `Accept` in services only.
    pub(crate) produces: &'static str,
    /// What is in the path and after the `?`.
    pub(crate) parameters: &'static [Parameter],
    /// What comes back, besides the refusals that all routes share.
    pub(crate) answers: &'static [Reply],
    /// Subresources of `nodes`: being allowed one is enough.
    pub(crate) subresources: &'static [&'static str],
    /// Something is done in a container, which takes `create` whatever the method.
    pub(crate) acts: bool,
    /// The listeners that serve it.
    pub(crate) faces: &'static [Face],
    /// What turns it off. The unix socket belongs to root and heeds gates only.
    pub(crate) switches: &'static [Switch],
    /// How long it will be there.
    pub(crate) stability: Stability,
    /// Whose it is.
    pub(crate) origin: Origin,
    /// One sentence for people.
    pub(crate) summary: &'static str,
    /// Who answers.
    pub(crate) handler: Handler,
}

/// How Go's `ServeMux` would have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mux {
    /// This path and no other.
    Exact,
    /// A service below this prefix, known with and without the final slash.
    Service(&'static str),
    /// The same; without the slash it redirects.
    Subtree(&'static str),
}

/// A part of a request that the route looks at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) place: Place,
    /// `string`, `integer` or `boolean`.
    pub(crate) kind: &'static str,
    pub(crate) what: &'static str,
}

/// Where a parameter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Path,
    Query,
    Header,
    /// The request's body.
    Body,
}

/// One of the answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Empty for none.
    pub(crate) content_type: &'static str,
    pub(crate) what: &'static str,
}

/// Something in the configuration that turns routes off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    /// `enableDebuggingHandlers`.
    DebuggingHandlers,
    /// Gate `ContainerCheckpoint`.
    ContainerCheckpoint,
    /// `enableDebugFlagsHandler`.
    DebugFlagsHandler,
    /// `enableSystemLogHandler`.
    SystemLogHandler,
    /// Gate `KubeletAllocatedPodsEndpoint`.
    AllocatedPods,
    /// Gate `ComponentFlagz`.
    Flagz,
    /// Gate `ComponentStatusz`.
    Statusz,
    /// `enableProfilingHandler`.
    ProfilingHandler,
}

/// How long a route will be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stability {
    Stable,
    Beta,
    /// Off unless its gate is on.
    Alpha,
    Deprecated,
}

/// Whose route it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Upstream 1.37 has it.
    Upstream,
    /// Upstream had it once.
    FormerUpstream,
    /// Upstream never had it.
    Mainstay,
}

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Handler {
    AllocatedPods,
    Attach,
    Checkpoint,
    Configz,
    ContainerLogs,
    Cri,
    Events,
    Exec,
    Flagz,
    Health,
    HealthDevicePlugin,
    HealthLog,
    HealthPing,
    HealthSyncLoop,
    LogVerbosity,
    Manifests,
    Resources,
    Metrics,
    MetricsProbes,
    MetricsSlis,
    MetricsCadvisor,
    MetricsResource,
    MetricsResourceV1Alpha1,
    Node,
    NodeLogs,
    NodeSummary,
    OpenApi,
    Pods,
    PortForward,
    Profiles,
    Run,
    RunningPods,
    Spec,
    Stats,
    StatsByCgroup,
    Summary,
    Statusz,
}

/// What the configuration turns on and off. The default is upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// `enableDebuggingHandlers`.
    pub debugging_handlers: bool,
    /// Gate `ContainerCheckpoint`.
    pub container_checkpoint: bool,
    /// `enableDebugFlagsHandler`.
    pub debug_flags_handler: bool,
    /// `enableSystemLogHandler`.
    pub system_log_handler: bool,
    /// Gate `KubeletAllocatedPodsEndpoint`.
    pub allocated_pods: bool,
    /// Gate `ComponentFlagz`.
    pub flagz: bool,
    /// Gate `ComponentStatusz`.
    pub statusz: bool,
    /// `enableProfilingHandler`.
    pub profiling_handler: bool,
}

impl Default for Switches {
    fn default() -> Self {
        Self {
            debugging_handlers: true,
            container_checkpoint: true,
            debug_flags_handler: true,
            system_log_handler: true,
            profiling_handler: true,
            allocated_pods: false,
            flagz: true,
            statusz: true,
        }
    }
}

impl Switch {
    /// As the configuration calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::DebuggingHandlers => "enableDebuggingHandlers",
            Self::SystemLogHandler => "enableSystemLogHandler",
            Self::ProfilingHandler => "enableProfilingHandler",
            Self::ContainerCheckpoint => "gate ContainerCheckpoint",
            Self::DebugFlagsHandler => "enableDebugFlagsHandler",
            Self::AllocatedPods => "gate KubeletAllocatedPodsEndpoint",
            Self::Flagz => "gate ComponentFlagz",
            Self::Statusz => "gate ComponentStatusz",
        }
    }

    /// What a path says whose own switch is off; without a text it is as if it were not there.
    fn refusal(self) -> Option<&'static str> {
        match self {
            Self::DebugFlagsHandler => Some("flags endpoint is disabled."),
            Self::SystemLogHandler => Some("logs endpoint is disabled."),
            Self::ProfilingHandler => Some("profiling endpoint is disabled."),
            Self::DebuggingHandlers
            | Self::ContainerCheckpoint
            | Self::AllocatedPods
            | Self::Flagz
            | Self::Statusz => None,
        }
    }
}

impl Switches {
    fn is_on(self, switch: Switch, face: Face) -> bool {
        match switch {
            Switch::DebuggingHandlers => self.debugging_handlers || face == Face::Local,
            Switch::DebugFlagsHandler => self.debug_flags_handler || face == Face::Local,
            Switch::SystemLogHandler => self.system_log_handler || face == Face::Local,
            Switch::ProfilingHandler => self.profiling_handler || face == Face::Local,
            Switch::ContainerCheckpoint => self.container_checkpoint,
            Switch::AllocatedPods => self.allocated_pods,
            Switch::Flagz => self.flagz,
            Switch::Statusz => self.statusz,
        }
    }
}

/// What the table says about a path.
#[derive(Debug)]
pub(crate) enum Found<'p> {
    /// A route and the values of its path's variables, in order.
    Route(&'static Route, Vec<&'p str>),
    /// Inside a service, but none of its routes.
    UnknownSubPath,
    /// Known and turned off: 405 with this text.
    Disabled(&'static str),
    /// Only the form with a final slash exists.
    AddSlash,
    /// Nobody's.
    Nothing,
}

/// Upstream's debug services, which are named but refused where they are not served.
pub(crate) const DISABLED: [&str; 8] =
    ["/run", "/exec", "/attach", "/portForward", "/containerLogs", "/runningpods", "/debug/pprof", "/logs"];
const DEBUG_DISABLED: &str = "Debug endpoints are disabled.";

/// Looks a path up: the cleaned and unescaped one.
pub(crate) fn find<'p>(face: Face, switches: Switches, path: &'p str) -> Found<'p> {
    let serves = |route: &&Compiled| {
        route.route.faces.contains(&face)
            && route.route.switches.iter().all(|switch| switches.is_on(*switch, face))
    };
    // Named where it would be served, were it not for a switch of its own.
    let refused = |route: &Compiled| {
        let mut off = route.route.switches.iter().filter(|switch| !switches.is_on(**switch, face));
        let first = off.next().filter(|_| route.route.faces.contains(&face) && off.next().is_none());
        first.and_then(|switch| switch.refusal())
    };
    if let Some(route) = TABLE.exact.get(path) {
        if serves(&route) {
            return Found::Route(route.route, Vec::new());
        }
        if let Some(text) = refused(route) {
            return Found::Disabled(text);
        }
    }
    for service in &TABLE.services {
        if !is_or_below(path, service.prefix) {
            continue;
        }
        let mut routes = service.routes.iter().filter(serves).peekable();
        if routes.peek().is_none() {
            match service.routes.iter().find_map(refused) {
                Some(_) if path == service.prefix => return Found::AddSlash,
                Some(text) => return Found::Disabled(text),
                None => continue,
            }
        }
        if service.redirects && path == service.prefix {
            return Found::AddSlash;
        }
        let best =
            routes.filter_map(|it| Some((it.variables, it.route, it.values(path)?))).min_by_key(|it| it.0);
        return best.map_or(Found::UnknownSubPath, |(_, route, values)| Found::Route(route, values));
    }
    let refused = face == Face::ReadOnly || (face == Face::Secure && !switches.debugging_handlers);
    match DISABLED.iter().find(|prefix| refused && is_or_below(path, prefix)) {
        Some(prefix) if path == *prefix => Found::AddSlash,
        Some(_) => Found::Disabled(DEBUG_DISABLED),
        None => Found::Nothing,
    }
}

/// A first segment as the table has it.
pub(crate) fn first_segment(segment: &str) -> Option<&'static str> {
    TABLE.first_segments.get(segment).copied()
}

/// The first segments of exact paths that the secure port serves, as `/statusz` lists them: without itself.
pub(crate) fn exact_roots(switches: Switches) -> Vec<String> {
    let exact = ROUTES.iter().filter(|route| {
        route.mux == Mux::Exact
            && route.handler != Handler::Statusz
            && route.switches.iter().all(|switch| switches.is_on(*switch, Face::Secure))
    });
    let mut roots: Vec<String> =
        exact.filter_map(|route| segments(route.path).next()).map(|first| format!("/{first}")).collect();
    roots.sort_unstable();
    roots.dedup();
    roots
}

fn is_or_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The table in the form in which it is searched.
struct Table {
    first_segments: HashSet<&'static str>,
    exact: HashMap<&'static str, Compiled>,
    services: Vec<Service>,
}

struct Service {
    prefix: &'static str,
    redirects: bool,
    routes: Vec<Compiled>,
}

struct Compiled {
    route: &'static Route,
    parts: Vec<Part>,
    variables: usize,
}

#[derive(Clone, Copy)]
enum Part {
    Literal(&'static str),
    One,
    /// At least one segment.
    Rest,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut table = Table { first_segments: HashSet::new(), exact: HashMap::new(), services: Vec::new() };
    for route in ROUTES {
        table.first_segments.extend(segments(route.path).next());
        let compiled = Compiled::new(route);
        let (prefix, redirects) = match route.mux {
            Mux::Exact => {
                table.exact.insert(route.path, compiled);
                continue;
            }
            Mux::Service(prefix) => (prefix, false),
            Mux::Subtree(prefix) => (prefix, true),
        };
        match table.services.iter_mut().find(|service| service.prefix == prefix) {
            Some(service) => service.routes.push(compiled),
            None => table.services.push(Service { prefix, redirects, routes: vec![compiled] }),
        }
    }
    table
});

impl Compiled {
    fn new(route: &'static Route) -> Self {
        let parts: Vec<Part> = segments(route.path)
            .map(|segment| match segment.strip_prefix('{') {
                None => Part::Literal(segment),
                Some(name) if name.ends_with("...}") => Part::Rest,
                Some(_) => Part::One,
            })
            .collect();
        let variables = parts.iter().filter(|part| !matches!(part, Part::Literal(_))).count();
        Self { route, parts, variables }
    }

    /// The values of the variables, if the path is this route's. A final slash does not count, but in what is left.
    fn values<'p>(&self, path: &'p str) -> Option<Vec<&'p str>> {
        let mut values = Vec::with_capacity(self.variables);
        let mut left = path.strip_prefix('/').unwrap_or(path);
        for part in &self.parts {
            let (segment, rest) = left.split_once('/').unwrap_or((left, ""));
            match part {
                Part::Rest if !left.is_empty() => {
                    values.push(left);
                    return Some(values);
                }
                // An empty one, between two escaped slashes, is for the handler to refuse.
                Part::One if !left.is_empty() => values.push(segment),
                Part::Literal(literal) if segment == *literal => {}
                Part::Literal(_) | Part::One | Part::Rest => return None,
            }
            left = rest;
        }
        left.is_empty().then_some(values)
    }
}

fn segments(path: &'static str) -> impl Iterator<Item = &'static str> {
    path.split('/').filter(|segment| !segment.is_empty())
}

#[cfg(test)]
mod tests;
