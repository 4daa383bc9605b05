//! The rows of the table, in the order in which the documentation shows them.

use super::{Face, Handler, Mux, Origin, Parameter, Place, Reply, Route, Stability, Switch};

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// Every listener.
const EVERYWHERE: &[Face] = &[Face::Local, Face::Secure, Face::ReadOnly, Face::Healthz];
/// Upstream's common set.
const COMMON: &[Face] = &[Face::Local, Face::Secure, Face::ReadOnly];
/// Never without a decision.
const GUARDED: &[Face] = &[Face::Local, Face::Secure];

const GET: &[&str] = &["GET"];
const POST: &[&str] = &["POST"];
const GET_POST: &[&str] = &["GET", "POST"];

const DEBUG: &[Switch] = &[Switch::DebuggingHandlers];

const NOT_READY: Reply = Reply {
    status: 503,
    content_type: TEXT,
    what: "The node's state is not complete yet; `Retry-After` says when to ask again. Never a part of a list.",
};
const NO_SUCH_POD: Reply =
    Reply { status: 404, content_type: TEXT, what: "No such pod, or no such container in it." };

const NAMESPACE: Parameter = path("namespace", "The pod's namespace.");
const POD: Parameter = path("pod", "The pod's name (static pods: with the node's name at its end).");
const UID: Parameter = path("uid", "The pod's UID.");
const CONTAINER: Parameter = path("container", "The container's name: regular, init or ephemeral.");

const fn path(name: &'static str, what: &'static str) -> Parameter {
    Parameter { name, place: Place::Path, kind: "string", what }
}

const fn query(name: &'static str, kind: &'static str, what: &'static str) -> Parameter {
    Parameter { name, place: Place::Query, kind, what }
}

const fn header(name: &'static str, what: &'static str) -> Parameter {
    Parameter { name, place: Place::Header, kind: "string", what }
}

const fn ok(content_type: &'static str, what: &'static str) -> Reply {
    Reply { status: 200, content_type, what }
}

const fn reply(status: u16, content_type: &'static str, what: &'static str) -> Reply {
    Reply { status, content_type, what }
}

/// What most rows share.
const BASE: Route = Route {
    path: "",
    mux: Mux::Exact,
    methods: GET,
    produces: JSON,
    parameters: &[],
    answers: &[],
    subresources: &["proxy"],
    acts: false,
    faces: GUARDED,
    switches: &[],
    stability: Stability::Stable,
    origin: Origin::Upstream,
    summary: "",
    handler: Handler::Health,
};

const HEALTH_CHECK: Route = Route {
    subresources: &["healthz", "proxy"],
    faces: COMMON,
    answers: &[ok(TEXT, "`ok`."), reply(500, TEXT, "What is wrong.")],
    ..BASE
};

const COMMAND: Parameter = query("command", "string", "The command; each further one is an argument of it.");
const INPUT: Parameter = query("input", "integer", "`1`: the client sends standard input.");
const OUTPUT: Parameter = query("output", "integer", "`1`: the client wants standard output.");
const ERROR: Parameter = query("error", "integer", "`1`: the client wants standard error.");
const TTY: Parameter = query("tty", "integer", "`1`: through a terminal.");
const EXEC_QUERY: &[Parameter] = &[NAMESPACE, POD, CONTAINER, COMMAND, INPUT, OUTPUT, ERROR, TTY, REDIRECT];
const EXEC_QUERY_UID: &[Parameter] =
    &[NAMESPACE, POD, UID, CONTAINER, COMMAND, INPUT, OUTPUT, ERROR, TTY, REDIRECT];
const ATTACH_QUERY: &[Parameter] = &[NAMESPACE, POD, CONTAINER, INPUT, OUTPUT, ERROR, TTY, REDIRECT];
const ATTACH_QUERY_UID: &[Parameter] = &[NAMESPACE, POD, UID, CONTAINER, INPUT, OUTPUT, ERROR, TTY, REDIRECT];
const REDIRECT: Parameter = query(
    "redirect",
    "integer",
    "`1`: answer 302 with an address below `/cri/` that is good for one use within a minute.",
);
const STREAM_ANSWERS: &[Reply] = &[
    reply(101, "", "The connection now carries SPDY/3.1 or WebSocket."),
    reply(302, TEXT, "Where to come back for the stream, if `redirect` was asked for."),
    reply(400, TEXT, "None of input, output and error was asked for, or ports that are none."),
    reply(404, TEXT, "No such pod."),
    reply(429, TEXT, "Too many sessions, here or in the runtime."),
    reply(500, TEXT, "No such container, a runtime that refuses, or a request that is no upgrade."),
];

/// Everything that is served.
pub(crate) static ROUTES: &[Route] = &[
    Route {
        path: "/healthz",
        faces: EVERYWHERE,
        parameters: &[
            query("verbose", "string", "Given at all: a line per check."),
            query("exclude", "string", "A check not to make; may be given more than once."),
        ],
        answers: &[
            ok(TEXT, "`ok`, or a line per check."),
            reply(500, TEXT, "A line per check, failed ones among them."),
        ],
        summary: "Whether mainstay itself is well.",
        handler: Handler::Health,
        ..HEALTH_CHECK
    },
    Route {
        path: "/healthz/ping",
        faces: EVERYWHERE,
        summary: "Whether somebody answers.",
        handler: Handler::HealthPing,
        ..HEALTH_CHECK
    },
    Route {
        path: "/healthz/log",
        summary: "Whether log lines can be written.",
        handler: Handler::HealthLog,
        ..HEALTH_CHECK
    },
    Route {
        path: "/healthz/syncloop",
        summary: "Whether the sync loop goes round.",
        handler: Handler::HealthSyncLoop,
        ..HEALTH_CHECK
    },
    Route {
        path: "/healthz/device-plugin",
        summary: "Whether device plugins can make themselves known: false while their socket cannot be listened on.",
        handler: Handler::HealthDevicePlugin,
        ..HEALTH_CHECK
    },
    Route {
        path: "/pods",
        mux: Mux::Service("/pods"),
        parameters: POD_QUERY,
        answers: &[
            ok(JSON, "The v1 `PodList`, or with `watch` a line per event."),
            reply(304, "", "`If-None-Match` names what would be sent."),
            reply(400, TEXT, "A selector or a version that is not understood."),
            reply(410, JSON, "The version to go on from is not known any more: begin anew."),
            NOT_READY,
        ],
        subresources: &["pods", "proxy"],
        faces: COMMON,
        summary: "The node's pods with their live status.",
        handler: Handler::Pods,
        ..BASE
    },
    Route {
        path: "/node",
        mux: Mux::Service("/node"),
        parameters: &[
            query("watch", "boolean", "Lines of watch events: the node as it is, then each change."),
            header("If-None-Match", "An `ETag` from an earlier answer."),
            header("Accept-Encoding", "`gzip`: the object comes compressed."),
        ],
        answers: &[
            ok(JSON, "The v1 `Node`, or with `watch` a line per event."),
            reply(304, "", "`If-None-Match` names what would be sent."),
            NOT_READY,
        ],
        subresources: &["node", "proxy"],
        faces: COMMON,
        origin: Origin::Mainstay,
        summary: "This node, from mainstay's own view of it.",
        handler: Handler::Node,
        ..BASE
    },
    Route {
        path: "/allocatedPods",
        summary: "Active pods as they were let in, without a status.",
        answers: &[ok(JSON, "The v1 `PodList`."), NOT_READY],
        ..ALLOCATED
    },
    Route {
        path: "/allocatedPods/{namespace}/{pod}",
        parameters: &[NAMESPACE, POD],
        summary: "One of them.",
        ..ALLOCATED
    },
    Route {
        path: "/allocatedPods/{namespace}/{pod}/{uid}",
        parameters: &[NAMESPACE, POD, UID],
        summary: "The same, for the pod of this UID only.",
        ..ALLOCATED
    },
    Route {
        path: "/runningpods/",
        mux: Mux::Subtree("/runningpods"),
        answers: &[ok(JSON, "A v1 `PodList` with names, images and nothing else."), NOT_READY],
        subresources: &["pods", "proxy"],
        switches: DEBUG,
        summary: "What runs, by the runtime's word.",
        handler: Handler::RunningPods,
        ..BASE
    },
    Route {
        path: "/configz",
        answers: &[ok(
            JSON,
            "`{\"kubeletconfig\":KubeletConfiguration}`; values of secret headers are masked.",
        )],
        subresources: &["configz", "proxy"],
        switches: DEBUG,
        summary: "The effective configuration.",
        handler: Handler::Configz,
        ..BASE
    },
    Route {
        path: "/flagz",
        parameters: ZPAGE,
        answers: ZPAGE_ANSWERS,
        subresources: &["configz"],
        switches: &[Switch::DebuggingHandlers, Switch::Flagz],
        stability: Stability::Beta,
        summary: "The command line: every flag with its value.",
        handler: Handler::Flagz,
        ..BASE
    },
    Route {
        path: "/statusz",
        parameters: ZPAGE,
        answers: ZPAGE_ANSWERS,
        subresources: &["statusz"],
        switches: &[Switch::DebuggingHandlers, Switch::Statusz],
        stability: Stability::Beta,
        summary: "Version, start and paths.",
        handler: Handler::Statusz,
        ..BASE
    },
    Route {
        path: "/debug/flags/v",
        methods: &["PUT"],
        parameters: &[Parameter {
            name: "verbosity",
            place: Place::Body,
            kind: "integer",
            what: "klog's number: 0 to 3 for operators, 4 and 5 for debugging, 6 and above for every step.",
        }],
        answers: &[
            ok("text/plain", "It is so from now on, until mainstay is restarted."),
            reply(400, "text/plain", "Not a number."),
            reply(406, "text/plain", "Another method than PUT."),
        ],
        switches: &[Switch::DebuggingHandlers, Switch::DebugFlagsHandler],
        summary: "Changes how much is logged.",
        handler: Handler::LogVerbosity,
        ..BASE
    },
    Route {
        path: "/metrics",
        answers: &[ok(PROMETHEUS, "The families of mainstay itself.")],
        summary: "Metrics of mainstay itself.",
        handler: Handler::Metrics,
        ..METRICS
    },
    Route {
        path: "/metrics/cadvisor",
        answers: &[ok(PROMETHEUS, "Cgroups and the machine in cAdvisor's families.")],
        summary: "What the machine, pods and containers use, in detail.",
        handler: Handler::MetricsCadvisor,
        ..METRICS
    },
    Route {
        path: "/metrics/slis",
        methods: &["GET", "DELETE"],
        answers: &[ok(
            PROMETHEUS,
            "How often each health check passed and failed; DELETE resets the counts.",
        )],
        summary: "Health checks as metrics.",
        handler: Handler::MetricsSlis,
        ..METRICS
    },
    Route {
        path: "/metrics/probes",
        answers: &[ok(PROMETHEUS, "The families of probes.")],
        summary: "How often probes passed and failed, and how long they took.",
        handler: Handler::MetricsProbes,
        ..METRICS
    },
    Route {
        path: "/metrics/resource",
        answers: &[ok(PROMETHEUS, "Cpu, memory and swap of the node, its pods and their containers.")],
        summary: "What the metrics server reads: each number with the time at which its cgroup was read.",
        handler: Handler::MetricsResource,
        ..METRICS
    },
    Route {
        path: "/metrics/resource/v1alpha1",
        answers: &[ok(PROMETHEUS, "Cpu and memory of the node and its containers, all as gauges.")],
        stability: Stability::Deprecated,
        origin: Origin::FormerUpstream,
        summary: "The older form of `/metrics/resource`.",
        handler: Handler::MetricsResourceV1Alpha1,
        ..METRICS
    },
    Route {
        path: "/spec/",
        mux: Mux::Subtree("/spec"),
        answers: &[
            ok(JSON, "cAdvisor's `MachineInfo` (v1)."),
            reply(500, TEXT, "The kernel does not tell of its processors or memory."),
        ],
        subresources: &["spec", "proxy"],
        faces: COMMON,
        stability: Stability::Deprecated,
        origin: Origin::FormerUpstream,
        summary: "The machine: processors, memory, disks, networks.",
        handler: Handler::Spec,
        ..BASE
    },
    Route {
        path: "/stats/",
        answers: &[
            ok(JSON, "cAdvisor's `ContainerInfo` (v1) with the newest reading."),
            reply(500, TEXT, "A query that is not understood, or a root cgroup that was not read yet."),
            NOT_READY,
        ],
        summary: "What the whole machine uses.",
        ..STATS
    },
    Route {
        path: "/stats/summary",
        parameters: &[query(
            "only_cpu_and_memory",
            "boolean",
            "`true`: only cpu, memory and swap. May be sent as a form, too.",
        )],
        answers: &[
            ok(JSON, "The node, its pods and their containers (`Summary` of `stats/v1alpha1`)."),
            reply(500, TEXT, "The root cgroup has not been read yet, or the query or form cannot be read."),
            NOT_READY,
        ],
        stability: Stability::Stable,
        origin: Origin::Upstream,
        summary: "What the node, its pods and their containers use; each number with the time at which it was read.",
        handler: Handler::Summary,
        ..STATS
    },
    Route {
        path: "/stats/container",
        answers: &[
            ok(
                JSON,
                "`ContainerInfo` by cgroup: the one of `containerName` and, with `subcontainers`, those below it that belong to pods.",
            ),
            reply(500, TEXT, "A query that is not understood."),
            NOT_READY,
        ],
        summary: "What a cgroup uses.",
        handler: Handler::StatsByCgroup,
        ..STATS
    },
    Route {
        path: "/stats/{pod}/{container}",
        parameters: &[POD, CONTAINER, STATS_QUERY],
        summary: "What a container of a pod in the namespace `default` uses.",
        ..STATS
    },
    Route {
        path: "/stats/{namespace}/{pod}/{uid}/{container}",
        parameters: &[NAMESPACE, POD, UID, CONTAINER, STATS_QUERY],
        summary: "What a container uses.",
        ..STATS
    },
    Route {
        path: "/containerLogs/{namespace}/{pod}/{container}",
        mux: Mux::Service("/containerLogs"),
        produces: "",
        parameters: &[
            NAMESPACE,
            POD,
            CONTAINER,
            query("follow", "boolean", "Go on until the container stops."),
            query("previous", "boolean", "The instance before this one."),
            query("timestamps", "boolean", "A time in front of each line."),
            query("tailLines", "integer", "Only so many lines from the end."),
            query("tail", "string", "An older name of it, which goes before; `all` is all of them."),
            query("limitBytes", "integer", "At most so many bytes."),
            query("sinceSeconds", "integer", "Only lines that are at most so old."),
            query("sinceTime", "string", "Only lines since then (RFC 3339)."),
            query(
                "stream",
                "string",
                "`All`, `Stdout` or `Stderr`; the last two need the gate PodLogsQuerySplitStreams.",
            ),
        ],
        answers: &[
            ok("", "The log, in chunks. What goes wrong on the way is text at its end."),
            reply(400, TEXT, "A parameter that is not understood, or a container that has no log yet."),
            NO_SUCH_POD,
            reply(422, TEXT, "A parameter out of range."),
            NOT_READY,
        ],
        switches: DEBUG,
        summary: "A container's log.",
        handler: Handler::ContainerLogs,
        ..BASE
    },
    Route {
        path: "/logs/",
        parameters: NODE_LOG_QUERY,
        summary: "The machine's log directory, or what services of the machine have logged.",
        ..NODE_LOGS
    },
    Route {
        path: "/logs/{path...}",
        parameters: &[path(
            "path",
            "A file or directory; links that lead out of the log directory are not followed.",
        )],
        summary: "A log file of the machine, or a listing.",
        ..NODE_LOGS
    },
    Route {
        path: "/debug/pprof/",
        answers: &[ok("text/html; charset=utf-8", "A list with links.")],
        summary: "Which profiles of mainstay itself there are.",
        ..PROFILES
    },
    Route {
        path: "/debug/pprof/{name...}",
        parameters: &[
            path(
                "name",
                "`profile`, `heap`, `allocs`, `goroutine` (tasks), `threadcreate` (threads), `cmdline` or `symbol`.",
            ),
            query(
                "seconds",
                "integer",
                "How long to look (`profile`: 30); of the others, what has come about meanwhile.",
            ),
            query("debug", "integer", "Not 0: text for people; not for `profile`."),
        ],
        answers: &[
            ok(
                "application/octet-stream",
                "What `go tool pprof` opens; text of `cmdline`, `symbol` and with `debug`.",
            ),
            reply(400, TEXT, "A parameter that is not understood, or longer than four hours."),
            reply(
                404,
                TEXT,
                "No such profile. `trace`, `block` and `mutex` are not kept: the first belongs to Go's scheduler, and nobody counts who waits for which lock.",
            ),
            reply(500, TEXT, "Somebody else records a `profile`."),
        ],
        summary: "What mainstay itself spends its time and memory on.",
        ..PROFILES
    },
    Route {
        path: "/run/{namespace}/{pod}/{container}",
        mux: Mux::Service("/run"),
        methods: POST,
        parameters: &[
            NAMESPACE,
            POD,
            CONTAINER,
            query("cmd", "string", "The command, split at single spaces."),
        ],
        answers: RUN_ANSWERS,
        summary: "Runs a command in a container and answers with its output.",
        handler: Handler::Run,
        ..ACTING
    },
    Route {
        path: "/run/{namespace}/{pod}/{uid}/{container}",
        mux: Mux::Service("/run"),
        methods: POST,
        parameters: &[
            NAMESPACE,
            POD,
            UID,
            CONTAINER,
            query("cmd", "string", "The command, split at single spaces."),
        ],
        answers: RUN_ANSWERS,
        summary: "The same; the UID is not looked at.",
        handler: Handler::Run,
        ..ACTING
    },
    Route {
        path: "/exec/{namespace}/{pod}/{container}",
        mux: Mux::Service("/exec"),
        parameters: EXEC_QUERY,
        summary: "Runs a command (`command`, repeatable) in a container with streams both ways.",
        handler: Handler::Exec,
        ..ACTING
    },
    Route {
        path: "/exec/{namespace}/{pod}/{uid}/{container}",
        mux: Mux::Service("/exec"),
        parameters: EXEC_QUERY_UID,
        summary: "The same; the UID is not looked at.",
        handler: Handler::Exec,
        ..ACTING
    },
    Route {
        path: "/attach/{namespace}/{pod}/{container}",
        mux: Mux::Service("/attach"),
        parameters: ATTACH_QUERY,
        summary: "Streams to and from a container's own process.",
        handler: Handler::Attach,
        ..ACTING
    },
    Route {
        path: "/attach/{namespace}/{pod}/{uid}/{container}",
        mux: Mux::Service("/attach"),
        parameters: ATTACH_QUERY_UID,
        summary: "The same, for the pod of this UID only.",
        handler: Handler::Attach,
        ..ACTING
    },
    Route {
        path: "/portForward/{namespace}/{pod}",
        mux: Mux::Service("/portForward"),
        parameters: &[NAMESPACE, POD, PORT, REDIRECT],
        summary: "Connections to ports of a pod.",
        handler: Handler::PortForward,
        ..ACTING
    },
    Route {
        path: "/portForward/{namespace}/{pod}/{uid}",
        mux: Mux::Service("/portForward"),
        parameters: &[NAMESPACE, POD, UID, PORT, REDIRECT],
        summary: "The same, for the pod of this UID only.",
        handler: Handler::PortForward,
        ..ACTING
    },
    Route {
        path: "/checkpoint/{namespace}/{pod}/{container}",
        mux: Mux::Subtree("/checkpoint"),
        methods: POST,
        parameters: &[
            NAMESPACE,
            POD,
            CONTAINER,
            query(
                "timeout",
                "integer",
                "Seconds that the runtime may take; 0 or fewer than its default means the default.",
            ),
        ],
        answers: &[
            ok(JSON, "`{\"items\":[PATH]}`: where the archive lies."),
            reply(404, TEXT, "No such pod or container, or a timeout that is no number."),
            reply(500, TEXT, "What the runtime said."),
        ],
        subresources: &["checkpoint"],
        switches: &[Switch::DebuggingHandlers, Switch::ContainerCheckpoint],
        stability: Stability::Beta,
        summary: "Writes a checkpoint of a running container to disk.",
        handler: Handler::Checkpoint,
        ..BASE
    },
    Route {
        path: "/cri/{rest...}",
        mux: Mux::Subtree("/cri"),
        methods: GET_POST,
        produces: "",
        parameters: &[path("rest", "`exec/TOKEN`, `attach/TOKEN` or `portforward/TOKEN`, from a redirect.")],
        answers: &[
            reply(101, "", "The connection now carries SPDY/3.1 or WebSocket."),
            reply(404, TEXT, "A token that is not known, or was used."),
        ],
        acts: true,
        switches: DEBUG,
        stability: Stability::Deprecated,
        origin: Origin::FormerUpstream,
        summary: "Where clients come back to that were redirected by exec, attach or portForward.",
        handler: Handler::Cri,
        ..BASE
    },
    Route {
        path: "/openapi/v3",
        mux: Mux::Subtree("/openapi"),
        answers: &[ok(JSON, "An OpenAPI 3.1 document.")],
        origin: Origin::Mainstay,
        summary: "This manual, for programs.",
        handler: Handler::OpenApi,
        ..BASE
    },
    Route {
        path: "/mainstay/v1/events",
        parameters: &[
            query(
                "after",
                "integer",
                "Only events after this sequence; one above the newest (mainstay was restarted) counts as 0.",
            ),
            query(
                "watch",
                "boolean",
                "Lines `{\"type\":\"ADDED|MODIFIED\",\"object\":EVENT}`, then what comes.",
            ),
            query("pod", "string", "Only of this pod: `NAMESPACE/NAME`."),
        ],
        answers: &[
            ok(JSON, "`{\"newest\":N,\"items\":[EVENT…]}`, or with `watch` a line per event."),
            reply(400, TEXT, "A parameter that is not understood."),
        ],
        summary: "What happened.",
        handler: Handler::Events,
        ..OURS
    },
    Route {
        path: "/mainstay/v1/manifests",
        answers: &[ok(JSON, "A verdict per file, and the origin of each pod."), NOT_READY],
        summary: "What became of each file, and which pod came from where.",
        handler: Handler::Manifests,
        ..OURS
    },
    Route {
        path: "/mainstay/v1/node",
        answers: &[ok(JSON, "Name, version, runtime, counts, resources."), NOT_READY],
        summary: "The node at a glance.",
        handler: Handler::NodeSummary,
        ..OURS
    },
    Route {
        path: "/mainstay/v1/resources",
        answers: &[
            ok(
                JSON,
                "`{\"devices\":[DEVICE…],\"cpus\":[CPU…],\"memory\":[MEMORY…],\"unknown\":UNKNOWN}`: healthy devices and held ones, CPUs that are online, memory by NUMA node, each with who holds it; and of what the holders are not known, because a state file was lost.",
            ),
            NOT_READY,
        ],
        summary: "Which devices, CPUs and memory there are, and who holds them.",
        handler: Handler::Resources,
        ..OURS
    },
];

const POD_QUERY: &[Parameter] = &[
    query("labelSelector", "string", "Only pods with these labels, as for the API server."),
    query(
        "fieldSelector",
        "string",
        "Only pods with these fields, as for the API server: `metadata.name`, `metadata.namespace`, `spec.nodeName`, `spec.restartPolicy`, \
         `spec.schedulerName`, `spec.serviceAccountName`, `spec.hostNetwork`, `status.phase`, `status.podIP`, `status.podIPs`, `status.nominatedNodeName`.",
    ),
    query(
        "watch",
        "boolean",
        "Lines of watch events instead of a list: all pods, a `BOOKMARK`, then what changes.",
    ),
    query(
        "resourceVersion",
        "string",
        "With `watch`: only what happened since the `BOOKMARK` of this version.",
    ),
    header("If-None-Match", "An `ETag` from an earlier answer."),
    header("Accept-Encoding", "`gzip`: the list comes compressed."),
];

const ZPAGE: &[Parameter] = &[header(
    "Accept",
    "`text/plain`, or an object by all of its name: `application/json;v=v1beta1;g=config.k8s.io;as=KIND` (or `application/yaml`).",
)];
const ZPAGE_ANSWERS: &[Reply] = &[
    ok(TEXT, "Text for people, or the object that was asked for."),
    reply(406, JSON, "A v1 `Status`: none of the types that `Accept` names."),
];

const ALLOCATED: Route = Route {
    mux: Mux::Service("/allocatedPods"),
    answers: &[ok(JSON, "The v1 `Pod`."), reply(404, TEXT, "No such pod, or not active."), NOT_READY],
    subresources: &["pods", "proxy"],
    switches: &[Switch::DebuggingHandlers, Switch::AllocatedPods],
    stability: Stability::Alpha,
    handler: Handler::AllocatedPods,
    ..BASE
};

const METRICS: Route =
    Route { produces: "", parameters: METRICS_QUERY, subresources: &["metrics"], faces: COMMON, ..BASE };
const METRICS_QUERY: &[Parameter] = &[
    query("name[]", "string", "Only this family; may be given more than once."),
    header("Accept-Encoding", "`gzip`: the text comes compressed."),
];

const STATS: Route = Route {
    mux: Mux::Subtree("/stats"),
    methods: GET_POST,
    parameters: &[STATS_QUERY],
    answers: &[
        ok(JSON, "cAdvisor's `ContainerInfo` (v1) with the newest reading."),
        reply(404, TEXT, "No such container, or not read yet."),
        reply(500, TEXT, "A query that is not understood."),
        NOT_READY,
    ],
    subresources: &["stats"],
    faces: COMMON,
    stability: Stability::Deprecated,
    origin: Origin::FormerUpstream,
    handler: Handler::Stats,
    ..BASE
};
const STATS_QUERY: Parameter = Parameter {
    name: "query",
    place: Place::Body,
    kind: "string",
    what: "JSON, or nothing: `{\"containerName\":\"/\",\"num_stats\":60,\"start\":TIME,\"end\":TIME,\"subcontainers\":false}`. There is one reading, the newest.",
};

const NODE_LOG_QUERY: &[Parameter] = &[
    query(
        "query",
        "string",
        "With `enableSystemLogQuery`: a service, from the journal or its usual file; with a slash in it a file. May be given more than once.",
    ),
    query(
        "sinceTime",
        "string",
        "Only lines since then (RFC 3339); with services of the journal only, as all below.",
    ),
    query("untilTime", "string", "Only lines until then (RFC 3339)."),
    query("tailLines", "integer", "Only so many lines from the end, at most 100000."),
    query("pattern", "string", "Only lines that match this expression."),
    query("boot", "integer", "Only messages of this boot: 0 is the present one, -1 the one before."),
];

const NODE_LOGS: Route = Route {
    mux: Mux::Subtree("/logs"),
    produces: "",
    answers: &[
        ok("", "The file, a listing in HTML, or the services' logs as text."),
        reply(206, "", "The parts of a file that `Range` asks for."),
        reply(301, "", "A directory's name ends with a slash, a file's does not."),
        reply(304, "", "Not newer than `If-Modified-Since`."),
        reply(400, TEXT, "A parameter that is not understood."),
        reply(403, TEXT, "Neither a file nor a directory, or a link that leads out."),
        reply(404, TEXT, "No such file."),
        reply(406, TEXT, "A query that is understood and cannot be answered."),
        reply(412, "", "Newer than `If-Unmodified-Since`."),
        reply(416, TEXT, "Behind the end of the file."),
    ],
    subresources: &["log"],
    switches: &[Switch::DebuggingHandlers, Switch::SystemLogHandler],
    handler: Handler::NodeLogs,
    ..BASE
};

const PROFILES: Route = Route {
    mux: Mux::Subtree("/debug/pprof"),
    produces: "",
    switches: &[Switch::DebuggingHandlers, Switch::ProfilingHandler],
    handler: Handler::Profiles,
    ..BASE
};

const PORT: Parameter = query(
    "port",
    "string",
    "For WebSocket without a tunnel: ports, separated by commas or given more than once.",
);

const RUN_ANSWERS: &[Reply] = &[
    ok(JSON, "Standard output, then standard error, as they are: not JSON, whatever the type says."),
    reply(404, TEXT, "No such pod."),
    reply(500, TEXT, "No such container, or how the command failed."),
];

const ACTING: Route =
    Route { methods: GET_POST, produces: "", answers: STREAM_ANSWERS, acts: true, switches: DEBUG, ..BASE };

const OURS: Route = Route { mux: Mux::Subtree("/mainstay"), origin: Origin::Mainstay, ..BASE };
