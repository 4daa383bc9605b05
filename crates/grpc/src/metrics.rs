//! What is counted of calls, by upstream's names.

use mainstay_types::{CounterName, Counters};

use crate::{service::Call, wire::Code};

macro_rules! counters {
    ($($constant:ident = $name:literal, $help:literal;)*) => {
        $(pub(crate) const $constant: CounterName = CounterName { name: $name, help: $help };)*
    };
}

counters! {
    PODS = "kubelet_pod_requests_total", "[ALPHA] Cumulative number of requests to the PodsAPI endpoint. Broken down by server api version and status code.";
    PODS_LIST = "kubelet_pod_requests_list_total", "[ALPHA] Number of requests to the PodsAPI List endpoint. Broken down by server api version and status code.";
    PODS_GET = "kubelet_pod_requests_get_total", "[ALPHA] Number of requests to the PodsAPI Get endpoint. Broken down by server api version and status code.";
    PODS_WATCH = "kubelet_pod_requests_watch_total", "[ALPHA] Number of requests to the PodsAPI Watch endpoint. Broken down by server api version and status code.";
    PODS_DROPPED = "kubelet_pod_watch_events_dropped_total", "[ALPHA] Cumulative number of pod watch events dropped.";
    INFO = "kubelet_pod_info_endpoint_requests_total", "[ALPHA] Number of calls of the PodInfo API";
    INFO_LIST = "kubelet_pod_info_endpoint_requests_list", "[ALPHA] Number of ListPodConditions calls";
    INFO_GET = "kubelet_pod_info_endpoint_requests_get", "[ALPHA] Number of GetPodConditions calls";
    INFO_WATCH = "kubelet_pod_info_endpoint_requests_watch", "[ALPHA] Number of WatchPodConditions calls that are over";
    INFO_LIST_ERRORS = "kubelet_pod_info_endpoint_errors_list", "[ALPHA] Number of ListPodConditions calls that failed";
    INFO_GET_ERRORS = "kubelet_pod_info_endpoint_errors_get", "[ALPHA] Number of GetPodConditions calls that failed";
    INFO_WATCH_ERRORS = "kubelet_pod_info_endpoint_errors_watch", "[ALPHA] Number of WatchPodConditions calls that failed";
    RESOURCES = "kubelet_pod_resources_endpoint_requests_total", "[ALPHA] Cumulative number of requests to the PodResource endpoint. Broken down by server api version.";
    RESOURCES_LIST = "kubelet_pod_resources_endpoint_requests_list", "[ALPHA] Number of requests to the PodResource List endpoint. Broken down by server api version.";
    RESOURCES_ALLOCATABLE = "kubelet_pod_resources_endpoint_requests_get_allocatable", "[ALPHA] Number of requests to the PodResource GetAllocatableResources endpoint. Broken down by server api version.";
    RESOURCES_GET = "kubelet_pod_resources_endpoint_requests_get", "[ALPHA] Number of requests to the PodResource Get endpoint. Broken down by server api version.";
    RESOURCES_LIST_ERRORS = "kubelet_pod_resources_endpoint_errors_list", "[ALPHA] Number of requests to the PodResource List endpoint which returned error. Broken down by server api version.";
    RESOURCES_ALLOCATABLE_ERRORS = "kubelet_pod_resources_endpoint_errors_get_allocatable", "[ALPHA] Number of requests to the PodResource GetAllocatableResources endpoint which returned error. Broken down by server api version.";
    RESOURCES_GET_ERRORS = "kubelet_pod_resources_endpoint_errors_get", "[ALPHA] Number of requests to the PodResource Get endpoint which returned error. Broken down by server api version.";
    RESOURCES_WATCH = "mainstay_pod_resources_watch_requests_total", "Number of Watch calls of the PodResources API that are over";
}

/// Counts a call that is over.
pub(crate) fn count(counters: &Counters, call: Call, code: Code) {
    let version = [("server_api_version", call.version())];
    let failed = !matches!(code, Code::Ok | Code::Canceled);
    let (total, own, errors) = match call {
        Call::ListPods | Call::WatchPods | Call::GetPod => {
            let labels = [version[0], ("status_code", code.name())];
            counters.add(PODS, &labels);
            let own = match call {
                Call::ListPods => PODS_LIST,
                Call::WatchPods => PODS_WATCH,
                _ => PODS_GET,
            };
            counters.add(own, &labels);
            return;
        }
        Call::ListConditions => (INFO, Some(INFO_LIST), Some(INFO_LIST_ERRORS)),
        Call::WatchConditions => (INFO, Some(INFO_WATCH), Some(INFO_WATCH_ERRORS)),
        Call::GetConditions => (INFO, Some(INFO_GET), Some(INFO_GET_ERRORS)),
        Call::ListResources => (RESOURCES, Some(RESOURCES_LIST), Some(RESOURCES_LIST_ERRORS)),
        Call::GetAllocatable => (RESOURCES, Some(RESOURCES_ALLOCATABLE), Some(RESOURCES_ALLOCATABLE_ERRORS)),
        Call::GetResources => (RESOURCES, Some(RESOURCES_GET), Some(RESOURCES_GET_ERRORS)),
        Call::ListResourcesAlpha => (RESOURCES, None, None),
        Call::WatchResources => {
            counters.add(RESOURCES_WATCH, &[("status_code", code.name())]);
            return;
        }
    };
    counters.add(total, &version);
    if let Some(own) = own {
        counters.add(own, &version);
    }
    if let Some(errors) = errors.filter(|_| failed) {
        counters.add(errors, &version);
    }
}
