//! The manual, from the route table: OpenAPI 3.1 at `/openapi/v3`, and `docs/api.md`.

use std::sync::LazyLock;

use bytes::Bytes;
use mainstay_types::VERSION;
use serde_json::{Map, Value, json};

use crate::{
    answer::{self, Answer},
    table::{Face, Origin, Place, ROUTES, Reply, Route, Stability},
};

static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
    let mut text = document().to_string();
    text.push('\n');
    text.into()
});

/// `/openapi/v3`.
pub(crate) fn serve() -> Answer {
    answer::json(DOCUMENT.clone())
}

/// What every route of the secure port may say instead.
const REFUSALS: [Reply; 3] = [
    Reply {
        status: 401,
        content_type: "text/plain; charset=utf-8",
        what: "Secure port: nobody known is asking.",
    },
    Reply {
        status: 403,
        content_type: "text/plain; charset=utf-8",
        what: "Secure port: somebody without the right.",
    },
    Reply {
        status: 500,
        content_type: "text/plain; charset=utf-8",
        what: "Secure port: whoever decides could not be asked.",
    },
];

fn document() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let item = paths.entry(route.path.replace("...", "")).or_insert_with(|| json!({}));
        for method in route.methods {
            item[method.to_lowercase()] = operation(route, method);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "mainstay",
            "summary": "The API of a Kubernetes node.",
            "version": VERSION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"securitySchemes": {
            "certificate": {"type": "mutualTLS", "description": "A client certificate of authentication.x509.clientCAFile."},
            "token": {"type": "http", "scheme": "bearer", "description": "A token that the API server or the local access file knows."},
        }},
        "security": [{"certificate": []}, {"token": []}],
    })
}

fn operation(route: &Route, method: &str) -> Value {
    let mut responses = Map::new();
    let shared = REFUSALS.iter().filter(|_| route.faces.contains(&Face::Secure));
    for reply in route.answers.iter().chain(shared) {
        let response =
            responses.entry(reply.status.to_string()).or_insert_with(|| json!({"description": ""}));
        let before = response["description"].as_str().unwrap_or_default();
        let gap = if before.is_empty() { "" } else { " " };
        response["description"] = format!("{before}{gap}{}", reply.what).into();
        if !reply.content_type.is_empty() {
            response["content"][reply.content_type] = json!({});
        }
    }
    let parameters: Vec<Value> =
        route.parameters.iter().filter(|it| it.place != Place::Body).map(parameter).collect();
    let mut operation = json!({
        "operationId": operation_id(route, method),
        "summary": route.summary,
        "responses": responses,
        "x-listeners": route.faces.iter().map(|face| listener(*face)).collect::<Vec<_>>(),
        "x-authorization": {
            "resource": "nodes",
            "subresources": route.subresources,
            "verb": verb(route, method),
        },
        "x-stability": stability(route),
        "x-origin": origin(route),
    });
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(body) = route.parameters.iter().find(|it| it.place == Place::Body) {
        operation["requestBody"] =
            json!({"description": body.what, "content": {"text/plain": {"schema": {"type": body.kind}}}});
    }
    if !route.switches.is_empty() {
        operation["x-switches"] = route.switches.iter().map(|it| it.name()).collect::<Vec<_>>().into();
    }
    if route.stability == Stability::Deprecated {
        operation["deprecated"] = true.into();
    }
    operation
}

fn parameter(parameter: &crate::table::Parameter) -> Value {
    let place = match parameter.place {
        Place::Path => "path",
        Place::Query => "query",
        Place::Header => "header",
        Place::Body => "body",
    };
    json!({
        "name": parameter.name,
        "in": place,
        "required": parameter.place == Place::Path,
        "description": parameter.what,
        "schema": {"type": parameter.kind},
    })
}

/// `getContainerLogsNamespacePodContainer`.
fn operation_id(route: &Route, method: &str) -> String {
    let mut id = method.to_lowercase();
    for word in route.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
        let (first, rest) = word.split_at(1);
        id.push_str(&first.to_uppercase());
        id.push_str(rest);
    }
    id
}

fn verb(route: &Route, method: &str) -> &'static str {
    match method {
        _ if route.acts => "create",
        "GET" => "get",
        "POST" => "create",
        "PUT" => "update",
        "DELETE" => "delete",
        _ => "",
    }
}

fn listener(face: Face) -> &'static str {
    match face {
        Face::Local => "socket",
        Face::Secure => "secure",
        Face::ReadOnly => "read-only",
        Face::Healthz => "healthz",
    }
}

fn stability(route: &Route) -> &'static str {
    match route.stability {
        Stability::Stable => "stable",
        Stability::Beta => "beta",
        Stability::Alpha => "alpha",
        Stability::Deprecated => "deprecated",
    }
}

fn origin(route: &Route) -> &'static str {
    match route.origin {
        Origin::Upstream => "Kubernetes 1.37",
        Origin::FormerUpstream => "earlier Kubernetes",
        Origin::Mainstay => "mainstay",
    }
}

#[cfg(test)]
mod tests {
    use std::{fmt::Write as _, path::Path};

    use super::*;

    const HEAD: &str = "# The HTTP API\n\n\
        Written by `UPDATE_DOCS=1 cargo test -p mainstay-server` from the table that serves (`crates/server/src/table/rows.rs`); \
        the same as OpenAPI 3.1 is at `/openapi/v3`.\n\n\
        Listeners: **socket** `<root>/mainstay.sock` (root only), **secure** `address:port` (TLS; everybody must be known and allowed), \
        **read-only** `address:readOnlyPort` and **healthz** `healthzBindAddress:healthzPort` (plain HTTP; off or local unless configured).\n\n\
        On the secure port every route may also answer 401 (nobody known), 403 (no right) or 500 (whoever decides could not be asked). \
        Rights are verbs on subresources of `nodes`; one of those named is enough. The verb follows the method (GET `get`, POST `create`, PUT `update`, \
        DELETE `delete`); what acts in a container takes `create` whatever the method. Unknown paths are 404 and a missing final slash is 307, for everybody.\n\n\
        Switches are fields of KubeletConfiguration or feature gates. The socket, which only root can open, heeds gates only.\n";

    fn manual() -> String {
        let mut out = HEAD.to_owned();
        for route in ROUTES {
            writeln!(out, "\n## {} `{}`\n\n{}\n", route.methods.join(", "), route.path, route.summary)
                .unwrap();
            let faces: Vec<_> = route.faces.iter().map(|face| listener(*face)).collect();
            let rights: Vec<_> = route.subresources.iter().map(|it| format!("`nodes/{it}`")).collect();
            let acts = if route.acts { " (`create`)" } else { "" };
            write!(
                out,
                "{}; from {}; {}; right {}{acts}",
                stability(route),
                origin(route),
                faces.join(", "),
                rights.join(" or ")
            )
            .unwrap();
            if !route.switches.is_empty() {
                let switches: Vec<_> = route.switches.iter().map(|it| format!("`{}`", it.name())).collect();
                write!(out, "; switch {}", switches.join(", ")).unwrap();
            }
            out.push_str(".\n");
            if !route.parameters.is_empty() {
                out.push_str("\n| parameter | in | type | |\n| --- | --- | --- | --- |\n");
                for parameter in route.parameters {
                    let place = match parameter.place {
                        Place::Path => "path",
                        Place::Query => "query",
                        Place::Header => "header",
                        Place::Body => "body",
                    };
                    let what = parameter.what.replace('|', "\\|");
                    writeln!(out, "| `{}` | {place} | {} | {what} |", parameter.name, parameter.kind)
                        .unwrap();
                }
            }
            out.push_str("\n| status | type | |\n| --- | --- | --- |\n");
            for reply in route.answers {
                let kind = if reply.content_type.is_empty() {
                    "none".into()
                } else {
                    format!("`{}`", reply.content_type)
                };
                writeln!(out, "| {} | {kind} | {} |", reply.status, reply.what.replace('|', "\\|")).unwrap();
            }
        }
        out
    }

    #[test]
    fn the_manual_is_what_the_table_says() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md");
        let manual = manual();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &manual).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == manual, "docs/api.md is old: UPDATE_DOCS=1 cargo test -p mainstay-server");
    }

    #[test]
    fn the_document_holds_together() {
        let document = document();
        assert_eq!(document["openapi"], "3.1.0");
        let mut ids = std::collections::HashSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{method} {path}");
                for parameter in operation["parameters"].as_array().into_iter().flatten() {
                    let in_path = parameter["in"] == "path";
                    let name = parameter["name"].as_str().unwrap();
                    assert_eq!(path.contains(&format!("{{{name}}}")), in_path, "{path} {name}");
                }
                assert!(operation["responses"].as_object().is_some_and(|it| !it.is_empty()), "{path}");
            }
        }
        let logs = &document["paths"]["/containerLogs/{namespace}/{pod}/{container}"]["get"];
        assert_eq!(logs["x-authorization"]["verb"], "get");
        assert_eq!(
            document["paths"]["/exec/{namespace}/{pod}/{container}"]["get"]["x-authorization"]["verb"],
            "create"
        );
    }
}
