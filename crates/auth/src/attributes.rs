//! What is being asked for, in the words of the Kubernetes API: a verb on a subresource of this node.

use http::Method;

/// One request as authorization sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// `get`, `create` …; empty for methods that stand for no verb, which only a rule for every verb allows.
    pub verb: &'static str,
    /// Subresources of `nodes`: being allowed one of them is enough. They are tried in this order.
    pub subresources: &'static [&'static str],
}

/// Which verb opens exec, attach, run and portForward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ActingVerb {
    /// `create`, whatever the method: reading rights alone never run a command.
    #[default]
    Create,
    /// The method's own verb as upstream has it, so that `get` on `nodes/proxy` may run commands over WebSocket.
    ByMethod,
}

/// Paths (themselves or below) and the subresources that open them.
const BY_PATH: [(&str, &[&str]); 12] = [
    ("/pods", &["pods", "proxy"]),
    ("/runningpods", &["pods", "proxy"]),
    ("/allocatedPods", &["pods", "proxy"]),
    ("/healthz", &["healthz", "proxy"]),
    ("/configz", &["configz", "proxy"]),
    ("/node", &["node", "proxy"]),
    ("/spec", &["spec", "proxy"]),
    ("/stats", &["stats"]),
    ("/metrics", &["metrics"]),
    ("/logs", &["log"]),
    ("/checkpoint", &["checkpoint"]),
    ("/statusz", &["statusz"]),
];

/// Upstream gives this one no way through `proxy`, unlike `/configz` whose subresource it shares.
const FLAGZ: (&str, &[&str]) = ("/flagz", &["configz"]);

/// Paths behind which something is done in a container.
const ACTING: [&str; 5] = ["/exec", "/attach", "/run", "/portForward", "/cri"];

impl Attributes {
    /// The attributes of a request. The path is the cleaned and unescaped one that routing uses, so that no spelling of a
    /// path is judged as another.
    #[must_use]
    pub fn of(method: &Method, path: &str, acting: ActingVerb) -> Self {
        let acts = ACTING.iter().any(|prefix| is_or_below(path, prefix));
        let verb = if acts && acting == ActingVerb::Create { "create" } else { verb(method) };
        let known = BY_PATH.iter().chain(std::iter::once(&FLAGZ));
        let subresources = known
            .into_iter()
            .find(|(prefix, _)| is_or_below(path, prefix))
            .map_or(&["proxy"] as &[_], |(_, s)| s);
        Self { verb, subresources }
    }

    /// Whether a call of this kind goes to the audit log even when it is allowed: it acts, or shows what is not in any
    /// list.
    #[must_use]
    pub fn is_privileged(&self) -> bool {
        self.subresources.iter().all(|subresource| matches!(*subresource, "proxy" | "log" | "checkpoint"))
    }
}

fn verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

fn is_or_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_methods_become_verbs_on_subresources() {
        let of = |method: Method, path| {
            let found = Attributes::of(&method, path, ActingVerb::Create);
            (found.verb, found.subresources.join(","))
        };
        for (method, path, verb, subresources) in [
            (Method::GET, "/pods", "get", "pods,proxy"),
            (Method::GET, "/pods/", "get", "pods,proxy"),
            (Method::GET, "/podsx", "get", "proxy"),
            (Method::GET, "/runningpods/", "get", "pods,proxy"),
            (Method::GET, "/allocatedPods/ns/p", "get", "pods,proxy"),
            (Method::HEAD, "/healthz/ping", "", "healthz,proxy"),
            (Method::GET, "/configz", "get", "configz,proxy"),
            (Method::GET, "/node", "get", "node,proxy"),
            (Method::GET, "/spec/", "get", "spec,proxy"),
            (Method::POST, "/stats/summary", "create", "stats"),
            (Method::GET, "/metrics/cadvisor", "get", "metrics"),
            (Method::GET, "/logs/x", "get", "log"),
            (Method::POST, "/checkpoint/ns/p/c", "create", "checkpoint"),
            (Method::GET, "/statusz", "get", "statusz"),
            (Method::GET, "/flagz", "get", "configz"),
            (Method::PUT, "/debug/flags/v", "update", "proxy"),
            (Method::GET, "/containerLogs/ns/p/c", "get", "proxy"),
            (Method::GET, "/exec/ns/p/c", "create", "proxy"),
            (Method::GET, "/attach/ns/p/c", "create", "proxy"),
            (Method::OPTIONS, "/portForward/ns/p", "create", "proxy"),
            (Method::POST, "/run/ns/p/c", "create", "proxy"),
            (Method::PATCH, "/", "patch", "proxy"),
            (Method::DELETE, "/metrics/slis", "delete", "metrics"),
        ] {
            let expected = (verb, subresources.to_owned());
            assert_eq!(of(method.clone(), path), expected, "{method} {path}");
        }
        let upstream = Attributes::of(&Method::GET, "/exec/ns/p/c", ActingVerb::ByMethod);
        assert_eq!((upstream.verb, upstream.subresources), ("get", &["proxy"] as &[_]));
    }

    #[test]
    fn acting_and_reading_of_secrets_is_audited() {
        for (path, audited) in [
            ("/exec/a/b/c", true),
            ("/logs/", true),
            ("/checkpoint/a/b/c", true),
            ("/debug/pprof/heap", true),
        ]
        .into_iter()
        .chain([("/pods", false), ("/metrics", false), ("/healthz", false), ("/configz", false)])
        {
            assert_eq!(
                Attributes::of(&Method::GET, path, ActingVerb::Create).is_privileged(),
                audited,
                "{path}"
            );
        }
    }
}
