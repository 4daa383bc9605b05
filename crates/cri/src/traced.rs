//! Calls as spans, and the runtime told of which trace a call is part, as upstream's otelgrpc does both.

use std::task::{Context, Poll};

use http::{HeaderValue, Request, Response};
use mainstay_trace::Span;
use tonic::{Code, body::Body, transport};
use tower::Service;

use crate::CriError;

/// gRPC's names of the calls.
const METHODS: [(&str, &str); 30] = [
    ("version", "runtime.v1.RuntimeService/Version"),
    ("status", "runtime.v1.RuntimeService/Status"),
    ("runtime_config", "runtime.v1.RuntimeService/RuntimeConfig"),
    ("update_runtime_config", "runtime.v1.RuntimeService/UpdateRuntimeConfig"),
    ("list_podsandbox", "runtime.v1.RuntimeService/ListPodSandbox"),
    ("podsandbox_status", "runtime.v1.RuntimeService/PodSandboxStatus"),
    ("run_podsandbox", "runtime.v1.RuntimeService/RunPodSandbox"),
    ("stop_podsandbox", "runtime.v1.RuntimeService/StopPodSandbox"),
    ("remove_podsandbox", "runtime.v1.RuntimeService/RemovePodSandbox"),
    ("list_containers", "runtime.v1.RuntimeService/ListContainers"),
    ("container_status", "runtime.v1.RuntimeService/ContainerStatus"),
    ("container_stats", "runtime.v1.RuntimeService/ContainerStats"),
    ("list_container_stats", "runtime.v1.RuntimeService/ListContainerStats"),
    ("create_container", "runtime.v1.RuntimeService/CreateContainer"),
    ("start_container", "runtime.v1.RuntimeService/StartContainer"),
    ("stop_container", "runtime.v1.RuntimeService/StopContainer"),
    ("remove_container", "runtime.v1.RuntimeService/RemoveContainer"),
    ("update_container", "runtime.v1.RuntimeService/UpdateContainerResources"),
    ("exec_sync", "runtime.v1.RuntimeService/ExecSync"),
    ("exec", "runtime.v1.RuntimeService/Exec"),
    ("attach", "runtime.v1.RuntimeService/Attach"),
    ("port_forward", "runtime.v1.RuntimeService/PortForward"),
    ("checkpoint_container", "runtime.v1.RuntimeService/CheckpointContainer"),
    ("reopen_container_log", "runtime.v1.RuntimeService/ReopenContainerLog"),
    ("get_container_events", "runtime.v1.RuntimeService/GetContainerEvents"),
    ("list_images", "runtime.v1.ImageService/ListImages"),
    ("image_status", "runtime.v1.ImageService/ImageStatus"),
    ("pull_image", "runtime.v1.ImageService/PullImage"),
    ("remove_image", "runtime.v1.ImageService/RemoveImage"),
    ("image_fs_info", "runtime.v1.ImageService/ImageFsInfo"),
];

/// A call's name in gRPC.
pub(crate) fn span_name(call: &'static str) -> &'static str {
    METHODS.iter().find(|(known, _)| *known == call).map_or(call, |(_, method)| method)
}

/// What is said of a call that has ended, in OpenTelemetry's words.
pub(crate) fn describe<T>(span: &mut Span, call: &'static str, result: &Result<T, CriError>) {
    if !span.is_recorded() {
        return;
    }
    span.set("rpc.system", "grpc");
    if let Some((service, method)) = span_name(call).split_once('/') {
        span.set("rpc.service", service);
        span.set("rpc.method", method);
    }
    let code = match result {
        Ok(_) => Code::Ok,
        Err(CriError::Unreachable { .. }) => Code::Unavailable,
        Err(CriError::Timeout { .. }) => Code::DeadlineExceeded,
        Err(CriError::Refused { code, .. }) => *code,
        Err(CriError::TooMuchOutput { .. }) => Code::OutOfRange,
    };
    span.set("rpc.grpc.status_code", i64::from(i32::from(code)));
    if let Err(error) = result {
        span.fail(error);
    }
}

/// A connection that tells of the trace that a call is part of. Without one it only looks.
#[derive(Clone, Debug)]
pub(crate) struct Channel(transport::Channel);

impl Channel {
    pub(crate) const fn new(channel: transport::Channel) -> Self {
        Self(channel)
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = transport::Error;
    type Future = <transport::Channel as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::<Request<Body>>::poll_ready(&mut self.0, cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(context) = mainstay_trace::current() {
            let headers = request.headers_mut();
            if let Ok(parent) = HeaderValue::try_from(context.traceparent()) {
                headers.insert("traceparent", parent);
            }
            if let Some(state) = context.state.and_then(|state| HeaderValue::from_str(&state).ok()) {
                headers.insert("tracestate", state);
            }
        }
        self.0.call(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_that_is_counted_has_its_name_in_grpc() {
        for call in crate::stats::CALLS {
            let name = span_name(call);
            assert!(name.starts_with("runtime.v1.") && name.contains("Service/"), "{call}: {name}");
        }
    }
}
