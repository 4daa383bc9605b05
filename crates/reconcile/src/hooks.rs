//! Lifecycle hooks: a command, an HTTP request, or a sleep.

use std::time::Duration;

use k8s_openapi::{
    api::core::v1::{Container, HTTPGetAction, LifecycleHandler},
    apimachinery::pkg::util::intstr::IntOrString,
};
use mainstay_cri::ExecOutcome;
use mainstay_http::{Request, Verify};
use mainstay_types::{ContainerId, ContainerKind, EventKind, user_agent_version};

use crate::worker::{Order, Shared};

/// Longest that an HTTP hook may take; the grace period of a preStop hook cuts it earlier.
const HTTP_DEADLINE: Duration = Duration::from_secs(30);
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Runs a hook. The error is the event's text.
pub(crate) async fn run(
    shared: &Shared,
    order: &Order,
    spec: &Container,
    kind: ContainerKind,
    id: &ContainerId,
    hook: &LifecycleHandler,
    pod_ip: Option<&str>,
) -> Result<(), String> {
    if let Some(exec) = &hook.exec {
        let command = exec.command.clone().unwrap_or_default();
        return match shared.config.cri.exec_sync(id.as_str(), command.clone(), None).await {
            Ok(ExecOutcome::Exited { code: 0, .. }) => Ok(()),
            Ok(ExecOutcome::Exited { code, output }) => {
                let output = String::from_utf8_lossy(&output);
                let output: String = output.chars().take(1024).collect();
                Err(format!(
                    "Exec lifecycle hook ({}) for Container {:?} failed - error: command '{}' exited with {code}: , message: {output:?}",
                    go_list(&command),
                    spec.name,
                    command.join(" "),
                ))
            }
            Ok(ExecOutcome::TimedOut) => {
                Err(format!("Exec lifecycle hook ({}) timed out", go_list(&command)))
            }
            Err(error) => Err(format!(
                "Exec lifecycle hook ({}) for Container {:?} failed - error: {error}",
                go_list(&command),
                spec.name
            )),
        };
    }
    if let Some(http) = &hook.http_get {
        return http_get(shared, order, spec, kind, http, pod_ip).await;
    }
    if let Some(sleep) = &hook.sleep {
        tokio::time::sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))).await;
        return Ok(());
    }
    Err(format!(
        "the lifecycle hook of container {:?} names no action; use exec, httpGet or sleep",
        spec.name
    ))
}

/// Any answer counts as success, whatever its status. Certificates are not verified.
async fn http_get(
    shared: &Shared,
    order: &Order,
    spec: &Container,
    kind: ContainerKind,
    http: &HTTPGetAction,
    pod_ip: Option<&str>,
) -> Result<(), String> {
    let fail =
        |what: String| format!("HTTP lifecycle hook for Container {:?} failed - error: {what}", spec.name);
    let host = match (http.host.as_deref().filter(|host| !host.is_empty()), pod_ip) {
        (Some(host), _) => host,
        (None, Some(ip)) => ip,
        (None, None) => {
            return Err(fail("failed to find networking container: the pod has no IP address".into()));
        }
    };
    let port = port(&http.port, spec)
        .ok_or_else(|| fail(format!("couldn't find port: {:?} in the container", http.port)))?;
    let path = http.path.as_deref().unwrap_or("/");
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let mut headers: Vec<(String, String)> = http
        .http_headers
        .iter()
        .flatten()
        .map(|header| (header.name.clone(), header.value.clone()))
        .collect();
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("user-agent")) {
        headers.push(("User-Agent".into(), format!("kube-lifecycle/{}", user_agent_version())));
    }
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("accept")) {
        headers.push(("Accept".into(), "*/*".into()));
    }
    let https = http.scheme.as_deref() == Some("HTTPS");
    let url = |scheme: &str| format!("{scheme}://{host}:{port}{path}");
    let request = |url: String, headers: Vec<(String, String)>| Request {
        asker: order.desired.uid.as_str().into(),
        url,
        headers,
        deadline: HTTP_DEADLINE,
        max_body_bytes: MAX_ANSWER_BYTES,
        verify: Verify::Nothing,
        http2: false,
    };
    let first = url(if https { "https" } else { "http" });
    match mainstay_http::get(&request(first, headers.clone())).await {
        Ok(_) => Ok(()),
        // It did answer; that the answer is too long is nobody's concern.
        Err(error) if error.status().is_some() => Ok(()),
        Err(error) if https && error.is_plain_http_on_tls() => {
            // Older hooks said HTTPS and were answered in plain HTTP; credentials must not leak that way.
            headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
            let text =
                "lifecycle hook set to HTTPS scheme but the server answered in HTTP; using HTTP".to_owned();
            let who = Some((kind, spec.name.as_str()));
            shared.event(&order.desired, who, EventKind::Warning, "LifecycleHTTPFallback", text);
            let again = mainstay_http::get(&request(url("http"), headers)).await;
            if again.is_ok() {
                shared.config.counters.hook_fallbacks.add();
            }
            again.map(drop).map_err(|error| fail(error.to_string()))
        }
        Err(error) => Err(fail(error.to_string())),
    }
}

/// A port by number, or by its name in the container.
fn port(port: &IntOrString, spec: &Container) -> Option<u16> {
    match port {
        IntOrString::Int(number) => u16::try_from(*number).ok(),
        IntOrString::String(name) => spec
            .ports
            .iter()
            .flatten()
            .find(|port| port.name.as_deref() == Some(name.as_str()))
            .and_then(|port| u16::try_from(port.container_port).ok())
            .or_else(|| name.parse().ok()),
    }
}

/// A list as Go prints it: `[a b]`.
fn go_list(items: &[String]) -> String {
    format!("[{}]", items.join(" "))
}
