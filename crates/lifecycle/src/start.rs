//! How long a pod took to start, by the definition of Kubernetes' SLI.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus, Volume};
use mainstay_types::PodExt as _;
use std::time::Duration;

/// How long the start of a pod took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartTime {
    /// From its creation until all its containers were started.
    pub total: Duration,
    /// The same without pulls and init containers. `None` for a pod that mounts what lasts longer than it: the SLI is not about those.
    pub sli: Option<Duration>,
}

/// Tells of a pod that has just started: all its containers run, for the first time, and did not before. `created` is when the pod was
/// made, or first heard of; `pulled` what was spent on images. As upstream's `pod_startup_latency_tracker.go` (1.37), but measured when the
/// node knows it, not when the API server has told it back.
#[must_use]
pub fn start_time(
    pod: &Pod,
    (before, status): (&PodStatus, &PodStatus),
    (created, now): (Timestamp, Timestamp),
    pulled: Duration,
) -> Option<StartTime> {
    let first = list(&status.container_statuses).all(|container| container.restart_count == 0);
    if !first || !all_run(status) || all_run(before) {
        return None;
    }
    let total = between(created, now);
    let inits: Duration = list(&status.init_container_statuses)
        .filter_map(|container| {
            let ended = container.state.as_ref()?.terminated.as_ref()?;
            Some(between(ended.started_at.as_ref()?.0, ended.finished_at.as_ref()?.0))
        })
        .sum();
    let lasting = pod.spec_ref().volumes.iter().flatten().any(lasts);
    let sli = (!lasting).then(|| total.saturating_sub(pulled).saturating_sub(inits));
    Some(StartTime { total, sli })
}

fn list(statuses: &Option<Vec<ContainerStatus>>) -> impl Iterator<Item = &ContainerStatus> {
    statuses.iter().flatten()
}

fn all_run(status: &PodStatus) -> bool {
    let runs =
        |container: &ContainerStatus| container.state.as_ref().is_some_and(|state| state.running.is_some());
    list(&status.container_statuses).next().is_some() && list(&status.container_statuses).all(runs)
}

fn lasts(volume: &Volume) -> bool {
    volume.secret.is_none()
        && volume.config_map.is_none()
        && volume.downward_api.is_none()
        && volume.empty_dir.is_none()
        && volume.projected.is_none()
}

/// Zero where a clock was set back.
fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status(phase: &str, containers: Value) -> PodStatus {
        let init = json!([{"name": "i", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"terminated": {
            "exitCode": 0, "startedAt": "2026-01-01T00:00:02Z", "finishedAt": "2026-01-01T00:00:05Z"}}}]);
        serde_json::from_value(
            json!({"phase": phase, "containerStatuses": containers, "initContainerStatuses": init}),
        )
        .unwrap()
    }

    fn container(restarts: i32, state: &str) -> Value {
        json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": restarts, "state": {state: {}}})
    }

    #[test]
    fn a_start_is_told_of_once() {
        let pod = |volumes: Value| -> Pod {
            serde_json::from_value(json!({"metadata": {}, "spec": {"containers": [], "volumes": volumes}}))
                .unwrap()
        };
        let plain = pod(json!([{"name": "v", "emptyDir": {}}]));
        let lasting = pod(json!([{"name": "v", "hostPath": {"path": "/"}}]));
        let waits = status("Pending", json!([container(0, "waiting")]));
        let runs = status("Running", json!([container(0, "running")]));
        let half = status("Running", json!([container(0, "running"), container(0, "waiting")]));
        let both = status("Running", json!([container(0, "running"), container(0, "running")]));
        let again = status("Running", json!([container(1, "running")]));
        let crashed = status("Running", json!([container(0, "terminated")]));
        let told = Some((10, Some(6)));
        for (row, pod, before, now, expected) in [
            ("it runs", &plain, &waits, &runs, told),
            ("it has volumes that last", &lasting, &waits, &runs, Some((10, None))),
            ("it ran before", &plain, &runs, &runs, None),
            ("a part of it runs", &plain, &waits, &half, None),
            ("the rest of it runs too", &plain, &half, &both, told),
            ("it runs again", &plain, &crashed, &again, None),
            ("it does not run", &plain, &waits, &crashed, None),
        ] {
            let times = ("2026-01-01T00:00:00Z".parse().unwrap(), "2026-01-01T00:00:10Z".parse().unwrap());
            let found = start_time(pod, (before, now), times, Duration::from_secs(1));
            let found = found.map(|it| (it.total.as_secs(), it.sli.map(|sli| sli.as_secs())));
            assert_eq!(found, expected, "{row}");
        }
    }
}
