//! Which containers have ended since a pod was last looked at.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, PodStatus};

/// The ends of containers that a status tells of and the one before it did not, each with the label of its kind. One that was started again
/// at once has ended, too. Of a pod of which nothing was known before only what stands now counts: what is older was counted when it happened.
pub fn newly_ended<'a>(
    before: Option<&'a PodStatus>,
    status: &'a PodStatus,
) -> impl Iterator<Item = (&'static str, &'a ContainerStateTerminated)> {
    type List = fn(&PodStatus) -> &Option<Vec<ContainerStatus>>;
    const LISTS: [(&str, List); 3] = [
        ("init_container", |status| &status.init_container_statuses),
        ("container", |status| &status.container_statuses),
        ("ephemeral_container", |status| &status.ephemeral_container_statuses),
    ];
    LISTS.into_iter().flat_map(move |(kind, list)| {
        list(status).iter().flatten().flat_map(move |container| {
            let mut old = before.into_iter().flat_map(move |before| list(before).iter().flatten());
            let old = old.find(|old| old.name == container.name);
            let last = old.and_then(|_| last_end(container));
            let is_news = move |end: &&ContainerStateTerminated| {
                let known = old.into_iter().flat_map(|old| current_end(old).into_iter().chain(last_end(old)));
                !known.into_iter().any(|known| known.container_id == end.container_id)
            };
            current_end(container).into_iter().chain(last).filter(is_news).map(move |end| (kind, end))
        })
    })
}

fn current_end(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    container.state.as_ref()?.terminated.as_ref()
}

fn last_end(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    container.last_state.as_ref()?.terminated.as_ref()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status(state: Value, last: Value) -> PodStatus {
        let container = json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state, "lastState": last});
        serde_json::from_value(json!({"containerStatuses": [container]})).unwrap()
    }

    #[test]
    fn each_end_is_told_of_once() {
        let end = |id: &str, code: i32| json!({"terminated": {"exitCode": code, "reason": "Error", "containerID": id}});
        let runs = || json!({"running": {}});
        let none = || json!({});
        let waits = || json!({"waiting": {"reason": "CrashLoopBackOff"}});
        for (row, before, now, expected) in [
            ("it ends", Some(status(runs(), none())), status(end("1", 3), none()), vec![3]),
            ("it has ended", Some(status(end("1", 3), none())), status(end("1", 3), none()), vec![]),
            (
                "it waits after its end",
                Some(status(end("1", 3), none())),
                status(waits(), end("1", 3)),
                vec![],
            ),
            ("it ran again at once", Some(status(runs(), none())), status(runs(), end("1", 3)), vec![3]),
            ("it ended twice", Some(status(runs(), none())), status(end("2", 4), end("1", 3)), vec![4, 3]),
            ("nothing was known of it", None, status(end("2", 4), end("1", 3)), vec![4]),
            (
                "it never had an ID",
                Some(status(waits(), none())),
                status(json!({"terminated": {"exitCode": 137}}), none()),
                vec![137],
            ),
        ] {
            let found: Vec<_> =
                newly_ended(before.as_ref(), &now).map(|(kind, end)| (kind, end.exit_code)).collect();
            let expected: Vec<_> = expected.into_iter().map(|code| ("container", code)).collect();
            assert_eq!(found, expected, "{row}");
        }
    }
}
