//! What exactly a probe asks.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::{Container, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};
use mainstay_podspec::runtime::{MAX_EXPANDED_BYTES, expand};
use mainstay_types::ContainerId;

use crate::{HttpTarget, TargetError};

/// A probe's handler with everything filled in that depends on the container instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Run a command in the container.
    Exec {
        /// The instance.
        container: ContainerId,
        /// The command.
        command: Vec<String>,
    },
    /// Ask over HTTP.
    Http(HttpTarget),
    /// Open a connection.
    Tcp {
        /// The pod, for whose sake the name is looked up.
        pod: Arc<str>,
        /// Host name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// Ask a gRPC health service.
    Grpc {
        /// Address.
        host: String,
        /// Port.
        port: u16,
        /// The service to ask about.
        service: String,
    },
}

impl Target {
    /// The target of a probe on one container instance of the pod with this UID.
    ///
    /// # Errors
    /// [`TargetError`] when it cannot be tried so.
    pub fn new(
        pod: &str,
        probe: &Probe,
        container: &Container,
        id: &ContainerId,
        pod_ip: Option<&str>,
    ) -> Result<Self, TargetError> {
        let host = |own: Option<&String>| match own.map(String::as_str).filter(|own| !own.is_empty()) {
            Some(own) => Ok(own.to_owned()),
            None => pod_ip.map(str::to_owned).ok_or(TargetError::NoAddress),
        };
        if let Some(exec) = &probe.exec {
            let command = exec.command.iter().flatten().map(|word| expanded(word, container));
            let command = command.collect::<Option<_>>().ok_or(TargetError::TooLong(MAX_EXPANDED_BYTES))?;
            return Ok(Self::Exec { container: id.clone(), command });
        }
        if let Some(http) = &probe.http_get {
            let (host, port) = (host(http.host.as_ref())?, port(&http.port, container)?);
            return Ok(Self::Http(HttpTarget::new(pod, http, &host, port)));
        }
        if let Some(tcp) = &probe.tcp_socket {
            let (host, port) = (host(tcp.host.as_ref())?, port(&tcp.port, container)?);
            return Ok(Self::Tcp { pod: pod.into(), host, port });
        }
        if let Some(grpc) = &probe.grpc {
            let port = u16::try_from(grpc.port).map_err(|_| TargetError::InvalidPort(grpc.port))?;
            let service = grpc.service.clone().unwrap_or_default();
            return Ok(Self::Grpc { host: host(None)?, port, service });
        }
        Err(TargetError::NoHandler)
    }

    /// It makes the runtime start a process.
    #[must_use]
    pub fn is_exec(&self) -> bool {
        matches!(self, Self::Exec { .. })
    }
}

/// `$(VAR)` by what the spec itself says of the container's variables: one whose value comes from elsewhere is empty here, as
/// upstream's probes have it. `None` for what becomes too long.
fn expanded(word: &str, container: &Container) -> Option<String> {
    expand(word, MAX_EXPANDED_BYTES, |name| {
        let mut known = container.env.iter().flatten().rev().filter(|variable| variable.name == name);
        known.next().map(|variable| variable.value.as_deref().unwrap_or_default())
    })
}

/// A port by number, or by its name in the container.
fn port(port: &IntOrString, container: &Container) -> Result<u16, TargetError> {
    let valid = |number: i32| {
        u16::try_from(number).ok().filter(|port| *port > 0).ok_or(TargetError::InvalidPort(number))
    };
    match port {
        IntOrString::Int(number) => valid(*number),
        IntOrString::String(name) => {
            let ports = container.ports.iter().flatten();
            match ports.into_iter().find(|port| port.name.as_deref() == Some(name.as_str())) {
                Some(port) => valid(port.container_port),
                None => valid(name.parse().map_err(|_| TargetError::UnknownPort(name.clone()))?),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn target(probe: Value, ip: Option<&str>) -> Result<Target, TargetError> {
        let env = json!([
            {"name": "USER", "value": "first"}, {"name": "USER", "value": "pg"},
            {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ]);
        let container = json!({"name": "c", "env": env, "ports": [{"name": "web", "containerPort": 8080}]});
        let container: Container = serde_json::from_value(container).unwrap();
        Target::new("u", &serde_json::from_value(probe).unwrap(), &container, &"id".into(), ip)
    }

    #[test]
    fn hosts_and_ports() {
        let tcp = |host: &str, port| Ok(Target::Tcp { pod: "u".into(), host: host.into(), port });
        for (probe, ip, expected) in [
            (json!({"tcpSocket": {"port": 80}}), Some("10.0.0.1"), tcp("10.0.0.1", 80)),
            (json!({"tcpSocket": {"port": "web"}}), Some("10.0.0.1"), tcp("10.0.0.1", 8080)),
            (json!({"tcpSocket": {"port": "81"}}), Some("fd00::1"), tcp("fd00::1", 81)),
            (json!({"tcpSocket": {"port": 80, "host": "example.test"}}), None, tcp("example.test", 80)),
            (json!({"tcpSocket": {"port": 80, "host": ""}}), None, Err(TargetError::NoAddress)),
            (
                json!({"tcpSocket": {"port": "other"}}),
                Some("a"),
                Err(TargetError::UnknownPort("other".into())),
            ),
            (json!({"tcpSocket": {"port": 70000}}), Some("a"), Err(TargetError::InvalidPort(70000))),
            (
                json!({"grpc": {"port": 9, "service": "s"}}),
                Some("a"),
                Ok(Target::Grpc { host: "a".into(), port: 9, service: "s".into() }),
            ),
            (
                json!({"exec": {"command": ["a", "b"]}}),
                None,
                Ok(Target::Exec { container: "id".into(), command: vec!["a".into(), "b".into()] }),
            ),
            (
                json!({"exec": {"command": ["$(USER)", "x$(SECRET)y", "$(OTHER)", "$$(cat /n)"]}}),
                None,
                Ok(Target::Exec {
                    container: "id".into(),
                    command: ["pg", "xy", "$(OTHER)", "$(cat /n)"].map(Into::into).into(),
                }),
            ),
            (json!({}), Some("a"), Err(TargetError::NoHandler)),
        ] {
            assert_eq!(target(probe.clone(), ip), expected, "{probe}");
        }
    }
}
