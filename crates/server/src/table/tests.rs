use std::collections::HashSet;

use http::Method;
use mainstay_auth::{ActingVerb, Attributes};

use super::*;

/// A path that belongs to the route.
fn example(route: &Route) -> String {
    route.path.replace("...", "").replace(['{', '}'], "")
}

#[test]
fn every_route_is_described() {
    let mut seen = HashSet::new();
    for route in ROUTES {
        let path = route.path;
        assert!(seen.insert(path), "{path} stands there twice");
        assert!(path.starts_with('/'), "{path}");
        assert!(route.summary.len() > 10 && route.summary.ends_with('.'), "{path} needs a sentence");
        assert!(!route.methods.is_empty(), "{path}");
        assert!(route.answers.iter().any(|it| it.status < 400), "{path}: what does it answer?");
        assert!(route.answers.iter().all(|it| !it.what.is_empty()), "{path}");
        assert!(!route.faces.is_empty() && route.faces.contains(&Face::Local), "{path}");
        assert!(!route.subresources.is_empty(), "{path}");
        let variables: Vec<&str> = segments(path)
            .filter_map(|it| it.strip_prefix('{')?.strip_suffix('}'))
            .map(|name| name.trim_end_matches("..."))
            .collect();
        let described: Vec<&str> =
            route.parameters.iter().filter(|it| it.place == Place::Path).map(|it| it.name).collect();
        assert_eq!(variables, described, "{path}");
        for parameter in route.parameters {
            assert!(!parameter.what.is_empty(), "{path}: {}", parameter.name);
            assert!(["string", "integer", "boolean"].contains(&parameter.kind), "{path}: {}", parameter.name);
        }
        match route.mux {
            Mux::Exact => assert!(variables.is_empty(), "{path}"),
            Mux::Service(prefix) | Mux::Subtree(prefix) => assert!(is_or_below(path, prefix), "{path}"),
        }
    }
}

#[test]
fn a_route_is_found_by_its_own_path() {
    for route in ROUTES {
        let path = example(route);
        for face in [Face::Local, Face::Secure, Face::ReadOnly, Face::Healthz] {
            let found = find(face, Switches { allocated_pods: true, ..Switches::default() }, &path);
            match found {
                Found::Route(found, values) => {
                    assert_eq!(found.path, route.path);
                    assert!(route.faces.contains(&face));
                    let given: Vec<_> = route
                        .parameters
                        .iter()
                        .filter(|it| it.place == Place::Path)
                        .map(|it| it.name)
                        .collect();
                    assert_eq!(values, given, "{path}");
                }
                other => assert!(!route.faces.contains(&face), "{path} on {face:?}: {other:?}"),
            }
        }
    }
}

/// The guard judges by path, before a route is chosen; both must mean the same.
#[test]
fn the_guard_and_the_table_agree() {
    for route in ROUTES {
        let path = example(route);
        for method in route.methods {
            let method: Method = method.parse().unwrap();
            let attributes = Attributes::of(&method, &path, ActingVerb::Create);
            assert_eq!(attributes.subresources, route.subresources, "{path}");
            if route.acts {
                assert_eq!(attributes.verb, "create", "{method} {path}");
            } else {
                assert_eq!(
                    attributes,
                    Attributes::of(&method, &path, ActingVerb::ByMethod),
                    "{method} {path}"
                );
            }
        }
    }
}

#[test]
fn wildcards_and_slashes() {
    let at = |path| match find(Face::Local, Switches::default(), path) {
        Found::Route(route, values) => format!("{} {}", route.path, values.join(" ")),
        other => format!("{other:?}"),
    };
    for (path, expected) in [
        ("/pods", "/pods "),
        ("/pods/", "/pods "),
        ("/pods/x", "UnknownSubPath"),
        ("/runningpods", "AddSlash"),
        ("/runningpods/", "/runningpods/ "),
        ("/exec/a/b/c", "/exec/{namespace}/{pod}/{container} a b c"),
        ("/exec/a/b/c/", "/exec/{namespace}/{pod}/{container} a b c"),
        ("/exec/a/b/c/d", "/exec/{namespace}/{pod}/{uid}/{container} a b c d"),
        ("/exec/a/b", "UnknownSubPath"),
        ("/exec", "UnknownSubPath"),
        ("/cri/exec/t/", "/cri/{rest...} exec/t/"),
        ("/cri/", "UnknownSubPath"),
        ("/cri", "AddSlash"),
        ("/healthz/", "Nothing"),
        ("/podsx", "Nothing"),
        ("/", "Nothing"),
    ] {
        assert_eq!(at(path), expected, "{path}");
    }
}

#[test]
fn switches_close_the_ports_and_not_the_socket() {
    let off = Switches { debugging_handlers: false, ..Switches::default() };
    for path in ["/exec/a/b/c", "/containerLogs/a/b/c", "/runningpods/", "/logs/x", "/debug/pprof/heap"] {
        assert!(matches!(find(Face::Secure, off, path), Found::Disabled(_)), "{path}");
        assert!(matches!(find(Face::ReadOnly, Switches::default(), path), Found::Disabled(_)), "{path}");
    }
    assert!(matches!(find(Face::Local, off, "/exec/a/b/c"), Found::Route(..)));
    assert!(matches!(find(Face::Secure, off, "/checkpoint/a/b/c"), Found::Nothing));
    assert!(matches!(find(Face::Secure, off, "/run"), Found::AddSlash));
    let off = Switches { container_checkpoint: false, ..Switches::default() };
    for face in [Face::Secure, Face::Local] {
        assert!(matches!(find(face, off, "/checkpoint/a/b/c"), Found::Nothing));
    }
}

impl Route {
    /// Whether a query parameter is described. What hangs below a service may read what the service does.
    pub(crate) fn declares(&self, name: &str) -> bool {
        let of =
            |route: &Route| route.parameters.iter().any(|it| it.place == Place::Query && it.name == name);
        of(self)
            || (self.path.ends_with("...}")
                && ROUTES.iter().filter(|other| other.handler == self.handler).any(of))
    }
}

const BEGIN: &str = "<!-- from the table of routes: UPDATE_DOCS=1 cargo test -p mainstay-server -->\n";
const END: &str = "<!-- end -->\n";

/// Which right opens what, for people who write rules.
#[test]
fn the_page_about_access_names_every_right() {
    let mut rows: Vec<(String, Vec<&str>)> = Vec::new();
    for route in ROUTES.iter().filter(|route| route.faces.contains(&Face::Secure)) {
        let names: Vec<String> = route.subresources.iter().map(|name| format!("`{name}`")).collect();
        let verb = if route.acts { "`create`" } else { "by the method" };
        let right = format!("{} | {verb}", names.join(", "));
        let path = match route.mux {
            Mux::Exact => route.path,
            Mux::Service(prefix) | Mux::Subtree(prefix) => prefix,
        };
        match rows.iter_mut().find(|(known, _)| *known == right) {
            Some((_, paths)) if paths.contains(&path) => {}
            Some((_, paths)) => paths.push(path),
            None => rows.push((right, vec![path])),
        }
    }
    let mut table =
        "| path | subresources, one of which must be allowed | verb |\n| --- | --- | --- |\n".to_owned();
    for (right, paths) in rows {
        let paths: Vec<String> = paths.iter().map(|path| format!("`{path}`")).collect();
        table.push_str(&format!("| {} | {right} |\n", paths.join(", ")));
    }
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/access.md");
    let page = std::fs::read_to_string(&file).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has a place for the table");
    let (_, after) = rest.split_once(END).expect("the place has an end");
    let wanted = format!("{before}{BEGIN}{table}{END}{after}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&file, &wanted).unwrap();
    } else {
        assert!(page == wanted, "docs/access.md is old: UPDATE_DOCS=1 cargo test -p mainstay-server");
    }
}
