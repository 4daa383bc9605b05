//! JSON as Go's `encoding/json` writes it: fields in the order of the Go struct, empty ones left out, markup escaped.
//! Annotations that hold such JSON are compared by text in places, and read back by whoever takes a container over.

use k8s_openapi::{
    api::core::v1::{ContainerPort, HTTPGetAction, LifecycleHandler, TCPSocketAction},
    apimachinery::pkg::util::intstr::IntOrString,
};
use serde::Serialize;

#[derive(Serialize)]
struct Port<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(rename = "hostPort", skip_serializing_if = "is_zero")]
    host_port: i32,
    #[serde(rename = "containerPort")]
    container_port: i32,
    #[serde(skip_serializing_if = "str::is_empty")]
    protocol: &'a str,
    #[serde(rename = "hostIP", skip_serializing_if = "str::is_empty")]
    host_ip: &'a str,
}

#[derive(Serialize)]
struct Handler<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    exec: Option<Exec<'a>>,
    #[serde(rename = "httpGet", skip_serializing_if = "Option::is_none")]
    http_get: Option<HttpGet<'a>>,
    #[serde(rename = "tcpSocket", skip_serializing_if = "Option::is_none")]
    tcp_socket: Option<TcpSocket<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sleep: Option<Sleep>,
}

#[derive(Serialize)]
struct Exec<'a> {
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    command: &'a [String],
}

#[derive(Serialize)]
struct HttpGet<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    path: &'a str,
    port: &'a IntOrString,
    #[serde(skip_serializing_if = "str::is_empty")]
    host: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    scheme: &'a str,
    #[serde(rename = "httpHeaders", skip_serializing_if = "Vec::is_empty")]
    http_headers: Vec<Header<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<&'a str>,
}

#[derive(Serialize)]
struct Header<'a> {
    name: &'a str,
    value: &'a str,
}

#[derive(Serialize)]
struct TcpSocket<'a> {
    port: &'a IntOrString,
    #[serde(skip_serializing_if = "str::is_empty")]
    host: &'a str,
}

#[derive(Serialize)]
struct Sleep {
    seconds: i64,
}

/// The value of annotation `io.kubernetes.container.ports`.
#[must_use]
pub fn container_ports_json(ports: &[ContainerPort]) -> String {
    let ports: Vec<Port<'_>> = ports
        .iter()
        .map(|port| Port {
            name: port.name.as_deref().unwrap_or_default(),
            host_port: port.host_port.unwrap_or_default(),
            container_port: port.container_port,
            protocol: port.protocol.as_deref().unwrap_or_default(),
            host_ip: port.host_ip.as_deref().unwrap_or_default(),
        })
        .collect();
    go_json(&ports)
}

/// The value of annotation `io.kubernetes.container.preStopHandler`.
#[must_use]
pub fn lifecycle_handler_json(handler: &LifecycleHandler) -> String {
    go_json(&Handler {
        exec: handler.exec.as_ref().map(|exec| Exec { command: exec.command.as_deref().unwrap_or_default() }),
        http_get: handler.http_get.as_ref().map(http_get),
        tcp_socket: handler.tcp_socket.as_ref().map(tcp_socket),
        sleep: handler.sleep.as_ref().map(|sleep| Sleep { seconds: sleep.seconds }),
    })
}

fn http_get(action: &HTTPGetAction) -> HttpGet<'_> {
    let headers = action.http_headers.iter().flatten();
    HttpGet {
        path: action.path.as_deref().unwrap_or_default(),
        port: &action.port,
        host: action.host.as_deref().unwrap_or_default(),
        scheme: action.scheme.as_deref().unwrap_or_default(),
        http_headers: headers.map(|header| Header { name: &header.name, value: &header.value }).collect(),
        protocol: action.protocol.as_deref(),
    }
}

fn tcp_socket(action: &TCPSocketAction) -> TcpSocket<'_> {
    TcpSocket { port: &action.port, host: action.host.as_deref().unwrap_or_default() }
}

/// Only strings can hold the characters that Go escapes, so they can be replaced in the finished text.
pub(super) fn go_json(value: &impl Serialize) -> String {
    // Structs of strings and numbers always serialize; the fallback is never seen.
    serde_json::to_string(value)
        .unwrap_or_default()
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes the field by reference")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_handler(input: &str, expected: &str) {
        let handler: LifecycleHandler = serde_json::from_str(input).unwrap();
        assert_eq!(lifecycle_handler_json(&handler), expected);
    }

    #[test]
    fn handlers() {
        check_handler(
            r#"{"exec":{"command":["sh","-c","a<b && c>d \"q\" \u0007\n\u2028"]}}"#,
            r#"{"exec":{"command":["sh","-c","a\u003cb \u0026\u0026 c\u003ed \"q\" \u0007\n\u2028"]}}"#,
        );
        check_handler(r#"{"exec":{}}"#, r#"{"exec":{}}"#);
        check_handler(
            r#"{"httpGet":{"host":"h","httpHeaders":[{"name":"X","value":""}],"path":"/p","port":"web","scheme":"HTTP"}}"#,
            r#"{"httpGet":{"path":"/p","port":"web","host":"h","scheme":"HTTP","httpHeaders":[{"name":"X","value":""}]}}"#,
        );
        check_handler(r#"{"httpGet":{"port":80,"path":""}}"#, r#"{"httpGet":{"port":80}}"#);
        check_handler(r#"{"tcpSocket":{"host":"h","port":0}}"#, r#"{"tcpSocket":{"port":0,"host":"h"}}"#);
        check_handler(r#"{"sleep":{"seconds":0}}"#, r#"{"sleep":{"seconds":0}}"#);
        check_handler("{}", "{}");
    }

    #[test]
    fn ports() {
        let ports: Vec<ContainerPort> = serde_json::from_str(
            r#"[{"containerPort":8080,"name":"http","protocol":"TCP"},
                {"containerPort":53,"hostIP":"::1","hostPort":5353,"protocol":"UDP"},
                {"containerPort":1,"hostPort":0,"name":""}]"#,
        )
        .unwrap();
        assert_eq!(
            container_ports_json(&ports),
            concat!(
                r#"[{"name":"http","containerPort":8080,"protocol":"TCP"},"#,
                r#"{"hostPort":5353,"containerPort":53,"protocol":"UDP","hostIP":"::1"},"#,
                r#"{"containerPort":1}]"#
            )
        );
    }
}
