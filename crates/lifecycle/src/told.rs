//! The part of a pod's status that is this node's to tell, and how it is told.
//!
//! Conditions of others, and fields that controllers write (`resourceClaimStatuses` and the like), are never touched.

use k8s_openapi::api::core::v1::{ContainerStatus, NodeStatus, PodCondition, PodStatus};
use mainstay_types::fnv1a_64;
use serde_json::{Map, Value, json};

/// The conditions that a kubelet owns (upstream: `PodConditionByKubelet` in `pkg/kubelet/types/pod_status.go`).
const OWN_CONDITIONS: [&str; 8] = [
    "AllContainersRestarting",
    "ContainersReady",
    "Initialized",
    "PodReadyToStartContainers",
    "PodResizeInProgress",
    "PodResizePending",
    "PodScheduled",
    "Ready",
];
/// A condition that others write as well: it is ours if it says so (upstream: `PodConditionSharedByKubelet`).
pub(crate) const DISRUPTION_TARGET: &str = "DisruptionTarget";
/// The reason of it that is ours.
pub(crate) const BY_KUBELET: &str = "TerminationByKubelet";
/// Of our conditions, the ones that come and go.
const PASSING_CONDITIONS: [&str; 3] = ["AllContainersRestarting", "PodResizeInProgress", "PodResizePending"];
/// The fields that are told whole. `null` takes away what is no longer there.
const OWN_FIELDS: [&str; 15] = [
    "phase",
    "reason",
    "message",
    "hostIP",
    "hostIPs",
    "podIP",
    "podIPs",
    "startTime",
    "initContainerStatuses",
    "containerStatuses",
    "ephemeralContainerStatuses",
    "qosClass",
    "observedGeneration",
    "allocatedResources",
    "resources",
];
/// Lists that a strategic merge would merge by key.
const MERGED_LISTS: [&str; 2] = ["hostIPs", "podIPs"];

/// Whether a condition is the kubelet's.
#[must_use]
pub fn is_own_condition(kind: &str) -> bool {
    OWN_CONDITIONS.contains(&kind)
}

fn is_ours(condition: &PodCondition) -> bool {
    is_own_condition(&condition.type_)
        || condition.type_ == DISRUPTION_TARGET && condition.reason.as_deref() == Some(BY_KUBELET)
}

/// A digest of what is ours in a status: two statuses of the same digest tell the same.
#[must_use]
pub fn status_digest(status: &PodStatus) -> u64 {
    let (mut fields, conditions) = own(status);
    fields.insert("conditions".to_owned(), Value::Array(conditions));
    fnv1a_64(Value::Object(fields).to_string().as_bytes())
}

/// Conditions that say how a node is by its kubelet's word. When it is not heard of, a controller says that they are unknown.
const NODE_CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// The node's condition that its state files could all be used.
pub const STATE_INTACT: &str = "StateIntact";

/// What others say in a Node's status: their conditions, the addresses that a cloud knows, the volumes that a controller attached, and
/// what the API server has of the node's resources, among which somebody's may be.
#[must_use]
pub fn others_node_status(status: &NodeStatus) -> NodeStatus {
    let own = |kind: &str| NODE_CONDITIONS.contains(&kind) || kind == STATE_INTACT;
    let conditions = status.conditions.iter().flatten().filter(|it| !own(&it.type_));
    NodeStatus {
        conditions: Some(conditions.cloned().collect()),
        addresses: status.addresses.clone(),
        volumes_attached: status.volumes_attached.clone(),
        capacity: status.capacity.clone(),
        allocatable: status.allocatable.clone(),
        ..NodeStatus::default()
    }
}

/// A digest of what a node's conditions say, times and messages aside: two statuses of the same digest say the same of the node.
#[must_use]
pub fn node_digest(status: Option<&NodeStatus>) -> u64 {
    let all = status.into_iter().flat_map(|status| status.conditions.iter().flatten());
    let ours = all.filter(|condition| NODE_CONDITIONS.contains(&condition.type_.as_str()));
    let mut words: Vec<String> = ours
        .map(|it| format!("{} {} {}", it.type_, it.status, it.reason.as_deref().unwrap_or_default()))
        .collect();
    words.sort();
    fnv1a_64(words.join("\n").as_bytes())
}

/// The strategic merge patch that makes what is ours in the API server's status equal to this one. It fails if the pod of
/// that name has another UID by now. `ours_alone`: nobody else has a say in the pod, as in a mirror pod.
#[must_use]
pub fn status_patch(uid: &str, status: &PodStatus, ours_alone: bool) -> Value {
    let (own, mut conditions) = own(status);
    // Conditions are merged, field by field: what one no longer says must be taken back, or a pod that is ready would go on
    // saying why it was not.
    for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
        for name in ["reason", "message", "lastProbeTime", "observedGeneration"] {
            condition.entry(name).or_insert(Value::Null);
        }
    }
    let mut fields = Map::new();
    for name in OWN_FIELDS {
        let value = match own.get(name) {
            Some(Value::Array(items)) if MERGED_LISTS.contains(&name) => {
                let replace = std::iter::once(json!({ "$patch": "replace" }));
                Value::Array(replace.chain(items.iter().cloned()).collect())
            }
            Some(value) => value.clone(),
            None => Value::Null,
        };
        fields.insert(name.to_owned(), value);
    }
    let shared = ours_alone.then_some(DISRUPTION_TARGET);
    let passed = PASSING_CONDITIONS.into_iter().chain(shared);
    let passed = passed.filter(|kind| !conditions.iter().any(|it| it["type"] == **kind));
    let passed: Vec<_> = passed.map(|kind| json!({ "$patch": "delete", "type": kind })).collect();
    conditions.extend(passed);
    fields.insert("conditions".to_owned(), Value::Array(conditions));
    json!({ "metadata": { "uid": uid }, "status": fields })
}

/// Whether all that has happened between two statuses is that a pod's start has come a step further, with more steps to
/// follow soon: its sandbox is there, an init container has done its work, one of several containers runs. Whoever waits for
/// the pod waits for what comes after these.
#[must_use]
pub fn is_step_of_start(before: &PodStatus, after: &PodStatus) -> bool {
    let all = |status: &PodStatus| -> Vec<ContainerStatus> {
        let init = status.init_container_statuses.iter().flatten();
        init.chain(status.container_statuses.iter().flatten()).cloned().collect()
    };
    let (was, is) = (all(before), all(after));
    let init = after.init_container_statuses.as_ref().map_or(0, Vec::len);
    was.len() == is.len()
        && is.iter().any(is_to_come)
        && was.iter().zip(&is).enumerate().all(|(index, (was, is))| is_further(was, is, index < init))
        && rest(before) == rest(after)
}

/// Whether such a step is one that nobody sees: a container has been made and does not run yet.
#[must_use]
pub fn is_unseen_step_of_start(before: &PodStatus, after: &PodStatus) -> bool {
    let states = |status: &PodStatus| {
        let init = status.init_container_statuses.iter().flatten();
        let all = init.chain(status.container_statuses.iter().flatten());
        all.map(|container| container.state.clone()).collect::<Vec<_>>()
    };
    is_step_of_start(before, after)
        && (&before.phase, &before.pod_ips) == (&after.phase, &after.pod_ips)
        && own(before).1 == own(after).1
        && states(before) == states(after)
}

/// Whether all that has happened between two statuses of a pod that is being deleted is that its end has come a step further:
/// it is as ready as it was, and not over yet.
#[must_use]
pub fn is_step_of_end(before: &PodStatus, after: &PodStatus) -> bool {
    let ready = |status: &PodStatus| -> Vec<Option<String>> {
        let of = |kind: &str| {
            let found = status.conditions.iter().flatten().find(|it| it.type_ == kind);
            found.map(|condition| condition.status.clone())
        };
        ["Ready", "ContainersReady", DISRUPTION_TARGET].map(of).to_vec()
    };
    before.phase == after.phase
        && !matches!(after.phase.as_deref(), Some("Succeeded" | "Failed"))
        && (&before.reason, &before.message) == (&after.reason, &after.message)
        && ready(before) == ready(after)
}

/// A container that is about to be made.
fn is_to_come(container: &ContainerStatus) -> bool {
    let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
    waiting.is_some_and(|waiting| {
        matches!(waiting.reason.as_deref(), Some("ContainerCreating" | "PodInitializing"))
    })
}

/// Whether a container is where it was, or has come to run (or, if `init`, to its good end) for the first time.
fn is_further(was: &ContainerStatus, is: &ContainerStatus, init: bool) -> bool {
    let runs = |it: &ContainerStatus| it.state.as_ref().is_some_and(|state| state.running.is_some());
    let done = |it: &ContainerStatus| {
        let ended = it.state.as_ref().and_then(|state| state.terminated.as_ref());
        init && ended.is_some_and(|ended| ended.exit_code == 0)
    };
    let same_past = was.restart_count == is.restart_count && was.last_state == is.last_state;
    let good = |it: &ContainerStatus| is_to_come(it) || runs(it) || done(it);
    // What runs already is as it was: that it is no longer ready, or is so now, is news.
    let news = runs(was) && runs(is) && (was.ready, was.started) != (is.ready, is.started);
    same_past && good(was) && good(is) && !news
}

/// What is left of our part of a status without what a start brings about.
fn rest(status: &PodStatus) -> (Map<String, Value>, Vec<Value>) {
    let (mut fields, mut conditions) = own(status);
    for name in ["phase", "podIP", "podIPs", "initContainerStatuses", "containerStatuses"] {
        fields.remove(name);
    }
    conditions.retain(|it| it["type"] != "PodReadyToStartContainers" && it["type"] != "Initialized");
    for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
        // Which containers are not ready is told anew with each of them.
        condition.remove("message");
    }
    (fields, conditions)
}

/// Our fields that are there, and our conditions by type.
fn own(status: &PodStatus) -> (Map<String, Value>, Vec<Value>) {
    let mut conditions: Vec<&PodCondition> =
        status.conditions.iter().flatten().filter(|it| is_ours(it)).collect();
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    let conditions = conditions.into_iter().filter_map(|it| serde_json::to_value(it).ok()).collect();
    // A status of ours always has a JSON form.
    let Ok(Value::Object(mut all)) = serde_json::to_value(status) else { return (Map::new(), conditions) };
    let fields = OWN_FIELDS.iter().filter_map(|name| Some(((*name).to_owned(), all.remove(*name)?)));
    (fields.filter(|(_, value)| !is_nothing(value)).collect(), conditions)
}

/// What the API server does not keep apart from an absent field.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(value: Value) -> PodStatus {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn only_what_is_ours_counts() {
        let ready = json!({ "type": "Ready", "status": "True" });
        let gate = json!({ "type": "example.com/gate", "status": "True" });
        let a = status(
            json!({ "phase": "Running", "conditions": [ready, gate], "podIPs": [{ "ip": "10.0.0.1" }] }),
        );
        let same = [
            json!({ "phase": "Running", "conditions": [ready], "podIPs": [{ "ip": "10.0.0.1" }], "message": "" }),
            json!({ "phase": "Running", "conditions": [gate, ready], "podIPs": [{ "ip": "10.0.0.1" }], "nominatedNodeName": "n" }),
        ];
        for b in same {
            assert_eq!(status_digest(&a), status_digest(&status(b.clone())), "{b}");
        }
        let others = [
            json!({ "phase": "Running", "conditions": [ready], "podIPs": [{ "ip": "10.0.0.2" }] }),
            json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "False" }], "podIPs": [{ "ip": "10.0.0.1" }] }),
            json!({ "phase": "Pending", "conditions": [ready], "podIPs": [{ "ip": "10.0.0.1" }] }),
        ];
        for b in others {
            assert_ne!(status_digest(&a), status_digest(&status(b.clone())), "{b}");
        }
    }

    #[test]
    fn a_patch_says_everything_and_touches_nothing_of_others() {
        let gate = json!({ "type": "example.com/gate", "status": "True" });
        let ready = json!({ "type": "Ready", "status": "True" });
        let patch = status_patch(
            "u1",
            &status(
                json!({ "phase": "Running", "conditions": [gate, ready], "podIPs": [{ "ip": "10.0.0.1" }] }),
            ),
            false,
        );
        assert_eq!(patch["metadata"], json!({ "uid": "u1" }));
        let status = &patch["status"];
        assert_eq!(status["podIPs"], json!([{ "$patch": "replace" }, { "ip": "10.0.0.1" }]));
        assert_eq!(status["reason"], Value::Null);
        assert!(status.as_object().unwrap().contains_key("reason"), "what is gone is taken away");
        assert!(!status.as_object().unwrap().contains_key("resourceClaimStatuses"));
        let kinds: Vec<_> = status["conditions"].as_array().unwrap().iter().map(|it| &it["type"]).collect();
        assert_eq!(kinds, ["Ready", "AllContainersRestarting", "PodResizeInProgress", "PodResizePending"]);
        assert_eq!(status["conditions"][1]["$patch"], "delete");
        let ready = status["conditions"][0].as_object().unwrap();
        for name in ["reason", "message"] {
            assert_eq!(ready.get(name), Some(&Value::Null), "what made it not ready is taken back");
        }
    }

    #[test]
    fn a_shared_condition_is_ours_when_it_says_so() {
        let of = |reason: &str| {
            let target = json!({ "type": "DisruptionTarget", "status": "True", "reason": reason });
            status(json!({ "phase": "Failed", "conditions": [target] }))
        };
        let told = |status: &PodStatus, ours_alone: bool| {
            status_patch("u1", status, ours_alone)["status"]["conditions"]
                .as_array()
                .unwrap()
                .iter()
                .find(|it| it["type"] == "DisruptionTarget")
                .cloned()
        };
        assert_eq!(told(&of("TerminationByKubelet"), false).unwrap()["status"], "True");
        assert_eq!(told(&of("PreemptionByScheduler"), false), None, "another's is left as it is");
        assert_eq!(told(&status(json!({})), true).unwrap()["$patch"], "delete");
        let none = status_digest(&status(json!({ "phase": "Failed" })));
        assert_eq!(status_digest(&of("PreemptionByScheduler")), none);
        assert_ne!(status_digest(&of("TerminationByKubelet")), none);
    }

    #[test]
    fn an_end_is_told_in_few_words() {
        let of = |phase: &str, ready: &str, generation: i64| {
            status(
                json!({ "phase": phase, "observedGeneration": generation, "conditions": [{ "type": "Ready", "status": ready }] }),
            )
        };
        let rows = [
            ("that it is to go is seen", of("Running", "True", 1), of("Running", "True", 2), true),
            ("another container has ended", of("Running", "False", 2), of("Running", "False", 2), true),
            ("it is not ready any more", of("Running", "True", 2), of("Running", "False", 2), false),
            ("it is over", of("Running", "False", 2), of("Failed", "False", 2), false),
            ("something is said of what is over", of("Failed", "False", 2), of("Failed", "False", 3), false),
        ];
        for (name, before, after, expected) in rows {
            assert_eq!(is_step_of_end(&before, &after), expected, "{name}");
        }
    }

    #[test]
    fn a_start_is_told_in_few_words() {
        let creating = json!({ "waiting": { "reason": "ContainerCreating" } });
        let initializing = json!({ "waiting": { "reason": "PodInitializing" } });
        let running = json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } });
        let ended = |code: i32| json!({ "terminated": { "exitCode": code } });
        // State and readiness of containers a and b, and of an init container i.
        let pod = |i: Option<&Value>, a: &Value, b: &Value, more: Value| {
            let container = |name: &str, state: &Value| {
                let runs = state.get("running").is_some();
                json!({ "name": name, "image": "i", "imageID": "", "restartCount": 0, "ready": runs, "started": runs, "state": state })
            };
            let mut value = json!({
                "phase": "Pending",
                "containerStatuses": [container("a", a), container("b", b)],
                "conditions": [{ "type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "a, b" }],
            });
            if let Some(i) = i {
                value["initContainerStatuses"] = json!([container("i", i)]);
            }
            for (name, field) in more.as_object().unwrap() {
                value[name] = field.clone();
            }
            status(value)
        };
        let none = || json!({});
        let sandbox = json!({ "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }], "conditions": [
            { "type": "PodReadyToStartContainers", "status": "True" },
            { "type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "a, b" } ] });
        let some = json!({ "phase": "Running", "conditions": [
            { "type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "b" } ] });
        let whole = json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] });
        let failed = json!({ "waiting": { "reason": "ErrImagePull" } });
        let made = pod(None, &creating, &creating, none());
        let rows = [
            ("its sandbox is there", made.clone(), pod(None, &creating, &creating, sandbox.clone()), true),
            ("one of two containers runs", made.clone(), pod(None, &running, &creating, some.clone()), true),
            ("both run", made.clone(), pod(None, &running, &running, whole.clone()), false),
            (
                "the last one runs",
                pod(None, &running, &creating, some.clone()),
                pod(None, &running, &running, whole),
                false,
            ),
            ("an image is missing", made.clone(), pod(None, &failed, &creating, none()), false),
            ("it had been missing", pod(None, &failed, &creating, none()), made.clone(), false),
            (
                "one has ended",
                pod(None, &running, &creating, some.clone()),
                pod(None, &ended(0), &creating, some.clone()),
                false,
            ),
            (
                "an init container runs",
                pod(Some(&creating), &initializing, &initializing, none()),
                pod(Some(&running), &initializing, &initializing, sandbox.clone()),
                true,
            ),
            (
                "it has done its work",
                pod(Some(&running), &initializing, &initializing, none()),
                pod(Some(&ended(0)), &initializing, &initializing, none()),
                true,
            ),
            (
                "it has failed",
                pod(Some(&running), &initializing, &initializing, none()),
                pod(Some(&ended(1)), &initializing, &initializing, none()),
                false,
            ),
            (
                "it is over",
                made.clone(),
                pod(None, &creating, &creating, json!({ "phase": "Failed", "reason": "Evicted" })),
                false,
            ),
            (
                "seen in another generation",
                made.clone(),
                pod(None, &creating, &creating, json!({ "observedGeneration": 2 })),
                false,
            ),
        ];
        for (name, before, after, expected) in rows {
            assert_eq!(is_step_of_start(&before, &after), expected, "{name}");
        }
        let sandboxed = pod(None, &creating, &creating, sandbox);
        let mut filled = sandboxed.clone();
        filled.container_statuses.as_mut().unwrap()[0].container_id = Some("containerd://1".to_owned());
        assert!(is_unseen_step_of_start(&sandboxed, &filled), "a container is made");
        assert!(!is_unseen_step_of_start(&made, &sandboxed), "an address is seen");
        let one_runs = pod(None, &running, &creating, some.clone());
        assert!(!is_unseen_step_of_start(&made, &one_runs), "that one runs is seen");
        let mut unready = pod(None, &running, &creating, some.clone());
        unready.container_statuses.as_mut().unwrap()[0].ready = false;
        let ready = pod(None, &running, &creating, some);
        assert!(!is_step_of_start(&ready, &unready), "one is not ready any more");
        let mut again = made.clone();
        again.container_statuses.as_mut().unwrap()[0].restart_count = 1;
        assert!(!is_step_of_start(&made, &again), "one starts again");
    }
}
