//! The Node object: what is fixed at the start, filled in with what is observed.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{
        ContainerImage, Node, NodeAddress, NodeCondition, NodeFeatures, NodeRuntimeHandler,
        NodeRuntimeHandlerFeatures, NodeStatus, NodeSystemInfo,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use mainstay_checkpoint::{Deferred, Durability, Store};
use mainstay_task::TaskGroup;
use mainstay_types::{
    Event, EventKind, EventSink, EventTarget, NodePressure, NodeResources, NodeView, OthersWord,
    PressureKind, RuntimeHandler, RuntimeHealth, to_seconds,
};
use tokio::sync::watch;

use crate::gojson::go_json;

/// How old the conditions' heartbeat may become, as upstream's `nodeStatusReportFrequency`.
const HEARTBEAT: SignedDuration = SignedDuration::from_secs(5 * 60);

/// What of the node does not change while mainstay runs: name, labels, spec, machine. Addresses, capacity, conditions,
/// images and the runtime's version are filled in here.
#[derive(Debug)]
pub struct NodeTemplate {
    /// The object so far.
    pub node: Node,
    /// The images that the runtime has.
    pub images: watch::Receiver<Arc<[ContainerImage]>>,
    /// A cloud's controller knows the node's addresses: its word is shown as soon as it has spoken.
    pub addresses_by_cloud: bool,
}

/// The newest Node object, and what it was made from.
#[derive(Debug)]
pub(crate) struct NodeObject {
    template: Node,
    addresses_by_cloud: bool,
    /// Resources that device plugins have offered in this life: one that is gone is told of as none, because the API server keeps what it
    /// was told last.
    offered: BTreeSet<String>,
    events: EventSink,
    node_name: Arc<str>,
    newest: Option<Made>,
    /// The conditions of an earlier life, for their times.
    restored: Vec<NodeCondition>,
    files: Option<Arc<Deferred<Vec<NodeCondition>>>>,
}

#[derive(Debug)]
struct Made {
    view: Arc<NodeView>,
    runtime: Arc<RuntimeHealth>,
    images: Arc<[ContainerImage]>,
    addresses: Arc<[String]>,
    resources: Arc<NodeResources>,
    ours: Arc<[NodeCondition]>,
    pressure: NodePressure,
    sources: Option<String>,
    api: Option<Arc<Node>>,
    at: Timestamp,
}

/// What the Node object is made from, besides what is fixed.
pub(crate) struct NodeInput<'a> {
    pub(crate) runtime: &'a Arc<RuntimeHealth>,
    pub(crate) images: &'a Arc<[ContainerImage]>,
    /// The node's addresses, primary first.
    pub(crate) addresses: &'a Arc<[String]>,
    /// What it has.
    pub(crate) resources: &'a Arc<NodeResources>,
    /// Conditions that others found.
    pub(crate) conditions: &'a Arc<[NodeCondition]>,
    /// What the node runs short of.
    pub(crate) pressure: NodePressure,
    /// What sources have not delivered.
    pub(crate) sources: Option<String>,
    /// The object by the API server's word.
    pub(crate) api: Option<&'a Arc<Node>>,
    pub(crate) now: Timestamp,
}

impl NodeObject {
    /// Reads what is known of an earlier life; what cannot be used is told of.
    pub(crate) fn open(
        (template, addresses_by_cloud): (Node, bool),
        (node_name, events): (&Arc<str>, &EventSink),
        dir: &Path,
        tasks: &TaskGroup,
    ) -> (Self, Vec<String>) {
        let mut object = Self {
            template,
            addresses_by_cloud,
            offered: BTreeSet::new(),
            events: events.clone(),
            node_name: Arc::clone(node_name),
            newest: None,
            restored: Vec::new(),
            files: None,
        };
        // Not flushed: what a power failure takes are the times of conditions.
        let store: Store<Vec<NodeCondition>> =
            match Store::open(dir, 0o700, "node-conditions", 1, Durability::ProcessDeath) {
                Ok(store) => store,
                Err(error) => return (object, vec![error.to_string()]),
            };
        let contents = store.load_all();
        let problems = contents.set_aside.iter().map(ToString::to_string).collect();
        object.restored = contents.good.into_values().flatten().collect();
        let deferred = Arc::new(Deferred::new(store));
        let (writer, shutdown) = (Arc::clone(&deferred), tasks.shutdown());
        tasks.spawn("node files", async move { writer.run(shutdown.signalled()).await });
        object.files = Some(deferred);
        (object, problems)
    }

    /// The newest object; the same one as before if nothing of it changed and it is not too old.
    pub(crate) fn refresh(&mut self, generation: u64, input: NodeInput<'_>) -> Arc<NodeView> {
        if let Some(made) = self.newest.as_ref().filter(|made| made.holds(&input)) {
            return Arc::clone(&made.view);
        }
        let before = match &self.newest {
            Some(made) => {
                made.view.node.status.as_ref().and_then(|it| it.conditions.as_deref()).unwrap_or_default()
            }
            None => &self.restored,
        };
        let conditions = conditions(&input, before);
        if let Some(event) = turn_of_ready(&self.node_name, before, &conditions, input.now) {
            self.events.send(event);
        }
        if let Some(files) = &self.files {
            files.put("node", conditions.clone());
        }
        self.offered.extend(input.resources.capacity.keys().filter(|name| name.contains('/')).cloned());
        let (node, others) = self.filled(&input, conditions);
        let mut json = br#"{"kind":"Node","apiVersion":"v1","#.to_vec();
        let fields = go_json(&Fields { metadata: &node.metadata, spec: &node.spec, status: &node.status });
        json.extend_from_slice(fields.strip_prefix(b"{").unwrap_or(&fields));
        json.push(b'\n');
        let view =
            Arc::new(NodeView { version: generation, node: Arc::new(node), json: json.into(), others });
        self.newest = Some(Made {
            view: Arc::clone(&view),
            runtime: Arc::clone(input.runtime),
            images: Arc::clone(input.images),
            addresses: Arc::clone(input.addresses),
            resources: Arc::clone(input.resources),
            ours: Arc::clone(input.conditions),
            pressure: input.pressure,
            sources: input.sources,
            api: input.api.cloned(),
            at: input.now,
        });
        view
    }
}

/// The object without what `go_json` of the whole would put in another order.
#[derive(serde::Serialize)]
struct Fields<'a, M, P, S> {
    metadata: &'a M,
    spec: &'a P,
    status: &'a S,
}

impl Made {
    fn holds(&self, input: &NodeInput<'_>) -> bool {
        self.runtime == *input.runtime
            && Arc::ptr_eq(&self.images, input.images)
            && self.addresses == *input.addresses
            && Arc::ptr_eq(&self.resources, input.resources)
            && Arc::ptr_eq(&self.ours, input.conditions)
            && self.pressure == input.pressure
            && self.sources == input.sources
            && self.api.as_ref().map(Arc::as_ptr) == input.api.map(Arc::as_ptr)
            && self.at <= input.now
            && input.now.duration_since(self.at) < HEARTBEAT
    }
}

impl NodeObject {
    /// The object, and what of it others say.
    fn filled(&self, input: &NodeInput<'_>, conditions: Vec<NodeCondition>) -> (Node, OthersWord) {
        let mut node = self.template.clone();
        let mut others = OthersWord::default();
        if let Some(api) = input.api {
            // What a node is called, labelled and kept from is the API server's word, once there is one.
            node.metadata = api.metadata.clone();
            node.spec = api.spec.clone();
        }
        let there = input.api.and_then(|api| api.status.as_ref());
        let status: &mut NodeStatus = node.status.get_or_insert_default();
        let amounts = |list: &mainstay_types::ResourceList| -> BTreeMap<String, Quantity> {
            let gone = self.offered.iter().map(|name| (name.clone(), Quantity("0".to_owned())));
            gone.chain(list.iter().map(|(name, amount)| (name.clone(), Quantity(amount.to_string()))))
                .collect()
        };
        let (mut capacity, mut allocatable) =
            (amounts(&input.resources.capacity), amounts(&input.resources.allocatable));
        if let Some(there) = there {
            others.resources = advertised(there, &capacity);
            for (own, there) in [(&mut capacity, &there.capacity), (&mut allocatable, &there.allocatable)] {
                let theirs = there.iter().flatten().filter(|(name, _)| others.resources.contains(*name));
                own.extend(theirs.map(|(name, amount)| (name.clone(), amount.clone())));
            }
        }
        status.capacity = Some(capacity);
        status.allocatable = Some(allocatable);
        let theirs = there.iter().flat_map(|it| it.conditions.iter().flatten());
        let is_other = |it: &&NodeCondition| conditions.iter().all(|own| own.type_ != it.type_);
        let theirs: Vec<_> = theirs.filter(is_other).cloned().collect();
        others.conditions = theirs.iter().map(|it| it.type_.clone()).collect();
        status.conditions = Some(theirs.into_iter().chain(conditions).collect());
        status.volumes_attached = there.and_then(|it| it.volumes_attached.clone());
        let internal =
            input.addresses.iter().map(|ip| NodeAddress { type_: "InternalIP".into(), address: ip.clone() });
        let fixed = status.addresses.take().unwrap_or_default();
        let own: Vec<NodeAddress> = internal.chain(fixed).collect();
        let by_cloud = there.and_then(|it| it.addresses.clone());
        status.addresses = Some(match by_cloud.filter(|all| self.addresses_by_cloud && !all.is_empty()) {
            Some(by_cloud) => {
                others.own_addresses = Some(own);
                by_cloud
            }
            None => own,
        });
        status.images = (!input.images.is_empty()).then(|| input.images.to_vec());
        let runtime = input.runtime;
        if let Some(NodeSystemInfo { container_runtime_version, .. }) = &mut status.node_info
            && !runtime.name.is_empty()
        {
            *container_runtime_version = format!("{}://{}", runtime.name, plain_version(&runtime.version));
        }
        // What a runtime does not tell is not known, and not said.
        let features = NodeFeatures { supplemental_groups_policy: Some(runtime.strict_groups) };
        status.features = runtime.tells_features.then_some(features);
        let handler = |handler: &RuntimeHandler| NodeRuntimeHandler {
            name: Some(handler.name.clone()),
            features: handler.recursive_read_only.map(|recursive| NodeRuntimeHandlerFeatures {
                recursive_read_only_mounts: Some(recursive),
                user_namespaces: handler.user_namespaces,
            }),
        };
        let handlers: Vec<_> = runtime.handlers.iter().map(handler).collect();
        status.runtime_handlers = (!handlers.is_empty()).then_some(handlers);
        (node, others)
    }
}

/// Resources that somebody has written into the Node object, for schedulers and quotas. Huge pages are nobody's but the node's.
fn advertised(there: &NodeStatus, own: &BTreeMap<String, Quantity>) -> BTreeSet<String> {
    let names = [&there.capacity, &there.allocatable].into_iter().flatten().flat_map(BTreeMap::keys);
    names.filter(|name| name.contains('/') && !own.contains_key(*name)).cloned().collect()
}

/// Ready has turned. A node that is new has not.
fn turn_of_ready(
    node: &str,
    before: &[NodeCondition],
    after: &[NodeCondition],
    time: Timestamp,
) -> Option<Event> {
    let ready = |all: &[NodeCondition]| {
        all.iter().find(|condition| condition.type_ == "Ready").map(|condition| condition.status == "True")
    };
    let (was, is) = (ready(before)?, ready(after)?);
    let reason = if is { "NodeReady" } else { "NodeNotReady" };
    (was != is).then(|| Event {
        target: EventTarget::Node,
        kind: EventKind::Normal,
        reason: reason.into(),
        message: format!("Node {node} status is now: {reason}"),
        time,
    })
}

/// Types, reasons and texts as upstream's (`pkg/kubelet/nodestatus`). What nobody measures is `Unknown`, and says so.
fn conditions(input: &NodeInput<'_>, before: &[NodeCondition]) -> Vec<NodeCondition> {
    let now = Time(to_seconds(input.now));
    let mut wanted: Vec<(String, &str, &str, String)> =
        PressureKind::ALL.into_iter().map(|kind| pressure(kind, input.pressure.of(kind))).collect();
    wanted.push(match not_ready(input, before) {
        None => ("Ready".to_owned(), "True", "KubeletReady", "kubelet is posting ready status".to_owned()),
        Some(why) => ("Ready".to_owned(), "False", "KubeletNotReady", why),
    });
    let own = wanted.into_iter().map(|(type_, status, reason, message)| NodeCondition {
        type_,
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_heartbeat_time: None,
        last_transition_time: None,
    });
    let others = input.conditions.iter().cloned();
    others
        .chain(own)
        .map(|mut condition| {
            let known = before
                .iter()
                .find(|known| known.type_ == condition.type_ && known.status == condition.status);
            condition.last_heartbeat_time = Some(now.clone());
            // A restart of mainstay is no transition.
            condition.last_transition_time = condition
                .last_transition_time
                .or_else(|| known.and_then(|known| known.last_transition_time.clone()))
                .or_else(|| Some(now.clone()));
            condition
        })
        .collect()
}

fn pressure(kind: PressureKind, found: Option<bool>) -> (String, &'static str, &'static str, String) {
    let (status, reason, message) = match (kind, found) {
        (_, None) => ("Unknown", "NotMeasured", "mainstay could not measure this yet"),
        (PressureKind::Memory, Some(false)) => {
            ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available")
        }
        (PressureKind::Memory, Some(true)) => {
            ("True", "KubeletHasInsufficientMemory", "kubelet has insufficient memory available")
        }
        (PressureKind::Disk, Some(false)) => {
            ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure")
        }
        (PressureKind::Disk, Some(true)) => ("True", "KubeletHasDiskPressure", "kubelet has disk pressure"),
        (PressureKind::Pid, Some(false)) => {
            ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available")
        }
        (PressureKind::Pid, Some(true)) => {
            ("True", "KubeletHasInsufficientPID", "kubelet has insufficient PID available")
        }
    };
    (kind.condition().to_owned(), status, reason, message.to_owned())
}

/// Why the node can take no pods; `None` if it can.
///
/// A source that is away keeps a node from becoming ready, and does not take that from one that was: what it said before holds, and
/// only a restart makes it be waited for.
fn not_ready(input: &NodeInput<'_>, before: &[NodeCondition]) -> Option<String> {
    let runtime = input.runtime;
    let mut why = Vec::new();
    if !runtime.reachable {
        why.push("container runtime is down".to_owned());
    }
    if let Some(problem) = &runtime.runtime_problem {
        why.push(format!("container runtime not ready: {problem}"));
    }
    if let Some(problem) = &runtime.network_problem {
        why.push(format!("container runtime network not ready: {problem}"));
    }
    let was_ready = before.iter().any(|it| it.type_ == "Ready" && it.status == "True");
    let sources = input.sources.as_ref().filter(|_| !was_ready);
    why.extend(sources.map(|sources| format!("pod sources have not delivered: {sources}")));
    // Upstream's aggregate of errors: brackets only around several, and each once (`k8s.io/apimachinery/pkg/util/errors`).
    let mut seen = BTreeSet::new();
    why.retain(|problem| seen.insert(problem.clone()));
    match why.len() {
        0 => None,
        1 => why.pop(),
        _ => Some(format!("[{}]", why.join(", "))),
    }
}

/// A version as upstream shows it: whole if it is semantic (`2.4.0-rc.1+b`), else its numbers (`1.6.20` of `1.6.20~ds1`).
fn plain_version(text: &str) -> &str {
    let text = text.trim();
    let text = text.strip_prefix('v').unwrap_or(text);
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (numbers, extra) = text.split_at(end);
    let numbers = numbers.trim_end_matches('.');
    let words = |part: &str| {
        let word = |word: &str| {
            !word.is_empty() && word.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-')
        };
        part.split('.').all(word)
    };
    let (release, build) = match extra.split_once('+') {
        Some((release, build)) => (release, Some(build)),
        None => (extra, None),
    };
    let semantic = numbers.split('.').count() == 3
        && (release.is_empty() || release.strip_prefix('-').is_some_and(words))
        && build.is_none_or(words);
    // What is no version at all is shown as it came.
    if semantic || !numbers.contains('.') { text } else { numbers }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_shown_as_upstream_does() {
        for (text, shown) in [
            ("1.6.20~ds1", "1.6.20"),
            ("v2.4.2", "2.4.2"),
            ("2.4.0-rc.1+b.5", "2.4.0-rc.1+b.5"),
            ("2.4.0+unknown", "2.4.0+unknown"),
            ("1.7.0-1ubuntu~1", "1.7.0"),
            ("1.31", "1.31"),
            ("unknown", "unknown"),
        ] {
            assert_eq!(plain_version(text), shown, "{text}");
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn runtime(reachable: bool) -> Arc<RuntimeHealth> {
        Arc::new(RuntimeHealth {
            name: "containerd".into(),
            version: "v2.4.2".into(),
            reachable,
            ..RuntimeHealth::default()
        })
    }

    fn ready(view: &NodeView) -> (String, i64) {
        let conditions = view.node.status.as_ref().unwrap().conditions.as_ref().unwrap();
        let ready = conditions.iter().find(|it| it.type_ == "Ready").unwrap();
        (ready.status.clone(), ready.last_transition_time.as_ref().unwrap().0.as_second())
    }

    #[test]
    fn why_it_is_not_ready() {
        let problem = |text: &str| Some(text.to_owned());
        let rows = [
            ("nothing speaks against it", true, None, None, None, false, None),
            (
                "one reason has no brackets, as upstream's",
                true,
                problem("no config"),
                None,
                None,
                false,
                Some("container runtime network not ready: no config"),
            ),
            (
                "several have",
                false,
                problem("no config"),
                problem("starting"),
                None,
                false,
                Some(
                    "[container runtime is down, container runtime not ready: starting, container runtime network not ready: no config]",
                ),
            ),
            (
                "a source keeps it from becoming ready",
                true,
                None,
                None,
                problem("a URL"),
                false,
                Some("pod sources have not delivered: a URL"),
            ),
            ("and not from staying so", true, None, None, problem("a URL"), true, None),
            (
                "what else is wrong counts",
                false,
                None,
                None,
                problem("a URL"),
                true,
                Some("container runtime is down"),
            ),
        ];
        for (name, reachable, network_problem, runtime_problem, sources, was_ready, expected) in rows {
            let runtime = RuntimeHealth {
                network_problem,
                runtime_problem,
                ..RuntimeHealth::clone(&runtime(reachable))
            };
            let input = NodeInput {
                runtime: &Arc::new(runtime),
                images: &Arc::from([]),
                addresses: &Arc::from([]),
                resources: &Arc::default(),
                conditions: &Arc::from([]),
                pressure: NodePressure::default(),
                sources,
                api: None,
                now: at(1),
            };
            let before = NodeCondition {
                type_: "Ready".into(),
                status: if was_ready { "True" } else { "False" }.into(),
                ..NodeCondition::default()
            };
            assert_eq!(not_ready(&input, &[before]).as_deref(), expected, "{name}");
        }
    }

    #[tokio::test]
    async fn it_changes_on_evidence_and_a_restart_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = TaskGroup::new();
        let template = || Node {
            status: Some(NodeStatus { node_info: Some(NodeSystemInfo::default()), ..NodeStatus::default() }),
            ..Node::default()
        };
        let resources = Arc::<NodeResources>::default();
        let (images, none): (Arc<[ContainerImage]>, Arc<[NodeCondition]>) = (Arc::default(), Arc::default());
        let (here, there): (Arc<[String]>, Arc<[String]>) =
            (Arc::from(["10.0.0.1".to_owned()]), Arc::from(["10.0.0.2".to_owned()]));
        let input = |runtime, second| NodeInput {
            runtime,
            images: &images,
            resources: &resources,
            addresses: if second < 1500 { &here } else { &there },
            conditions: &none,
            pressure: NodePressure::default(),
            sources: None,
            api: None,
            now: at(second),
        };
        let (events, mut told) = EventSink::bounded(8);
        let name: Arc<str> = "n".into();
        let (mut object, problems) =
            NodeObject::open((template(), false), (&name, &events), dir.path(), &tasks);
        assert_eq!(problems, Vec::<String>::new());
        let up = runtime(true);
        let first = object.refresh(1, input(&up, 1000));
        assert_eq!(ready(&first), ("True".into(), 1000));
        assert!(first.json.starts_with(br#"{"kind":"Node","apiVersion":"v1","metadata":"#));
        let text = String::from_utf8(first.json.to_vec()).unwrap();
        assert!(text.contains(r#""containerRuntimeVersion":"containerd://2.4.2""#), "{text}");
        assert!(Arc::ptr_eq(&first, &object.refresh(2, input(&up, 1010))), "nothing changed");
        let old = object.refresh(3, input(&up, 1300));
        assert_eq!((ready(&old), old.version), (("True".into(), 1000), 3), "a heartbeat is no transition");
        let down = runtime(false);
        let away = object.refresh(4, input(&down, 1400));
        assert_eq!(ready(&away), ("False".into(), 1400));
        let address = |view: &NodeView| {
            view.node.status.as_ref().unwrap().addresses.as_ref().unwrap()[0].address.clone()
        };
        assert_eq!(address(&away), "10.0.0.1");
        let moved = object.refresh(5, input(&down, 1500));
        assert_eq!((address(&moved).as_str(), ready(&moved)), ("10.0.0.2", ("False".into(), 1400)));
        assert!(tasks.drain(std::time::Duration::from_secs(20)).await.aborted.is_empty());

        let tasks = TaskGroup::new();
        let (mut object, _) = NodeObject::open((template(), false), (&name, &events), dir.path(), &tasks);
        assert_eq!(ready(&object.refresh(1, input(&down, 2000))), ("False".into(), 1400));
        assert_eq!(ready(&object.refresh(2, input(&up, 2001))), ("True".into(), 2001));
        tasks.drain(std::time::Duration::from_secs(20)).await;
        let mut turns = Vec::new();
        while let Ok(event) = told.try_recv() {
            turns.push((event.message, event.time.as_second()));
        }
        let turn = |reason: &str, second| (format!("Node n status is now: {reason}"), second);
        assert_eq!(turns, [turn("NodeNotReady", 1400), turn("NodeReady", 2001)]);
    }

    #[tokio::test]
    async fn what_others_say_of_it_is_shown_and_is_not_its_own_word() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = TaskGroup::new();
        let (events, _told) = EventSink::bounded(8);
        let name: Arc<str> = "n".into();
        let amount = |text: &str| Quantity(text.to_owned());
        let condition = |kind: &str, status: &str| NodeCondition {
            type_: kind.into(),
            status: status.into(),
            ..NodeCondition::default()
        };
        let there = NodeStatus {
            conditions: Some(vec![condition("KernelDeadlock", "False"), condition("Ready", "Unknown")]),
            addresses: Some(vec![NodeAddress { type_: "ExternalIP".into(), address: "192.0.2.7".into() }]),
            volumes_attached: Some(vec![]),
            capacity: Some(
                [
                    ("example.com/dongle", "4"),
                    ("example.com/gpu", "2"),
                    ("hugepages-1Gi", "0"),
                    ("cpu", "64"),
                ]
                .map(|(name, count)| (name.to_owned(), amount(count)))
                .into(),
            ),
            ..NodeStatus::default()
        };
        let api = Arc::new(Node { status: Some(there), ..Node::default() });
        let with = |gpus: Option<i64>| {
            let mut resources = NodeResources::default();
            let gpus =
                gpus.map(|count| ("example.com/gpu".to_owned(), mainstay_types::Quantity::whole(count)));
            resources.capacity = gpus.into_iter().collect();
            resources.allocatable = resources.capacity.clone();
            Arc::new(resources)
        };
        let up = runtime(true);
        let (images, none): (Arc<[ContainerImage]>, Arc<[NodeCondition]>) = (Arc::default(), Arc::default());
        let addresses: Arc<[String]> = Arc::from(["10.0.0.1".to_owned()]);
        let shown = |object: &mut NodeObject, resources: &Arc<NodeResources>, api| {
            object.refresh(
                1,
                NodeInput {
                    runtime: &up,
                    images: &images,
                    resources,
                    addresses: &addresses,
                    conditions: &none,
                    pressure: NodePressure::default(),
                    sources: None,
                    api,
                    now: at(1000),
                },
            )
        };
        for by_cloud in [false, true] {
            let told = (&name, &events);
            let (mut object, _) = NodeObject::open((Node::default(), by_cloud), told, dir.path(), &tasks);
            let alone = shown(&mut object, &with(Some(3)), None);
            assert_eq!(alone.own_status(), alone.node.status.clone().unwrap());
            // The plugin is gone, and with it what it offered.
            let view = shown(&mut object, &with(None), Some(&api));
            let (all, own) = (view.node.status.clone().unwrap(), view.own_status());
            let kinds = |status: &NodeStatus| -> Vec<String> {
                status.conditions.iter().flatten().map(|it| format!("{}={}", it.type_, it.status)).collect()
            };
            assert!(kinds(&all).contains(&"KernelDeadlock=False".into()), "{all:?}");
            assert!(kinds(&all).contains(&"Ready=True".into()), "{all:?}");
            assert!(!kinds(&own).iter().any(|it| it.starts_with("KernelDeadlock")), "{own:?}");
            let capacity = |status: &NodeStatus| status.capacity.clone().unwrap();
            assert_eq!(capacity(&own), [("example.com/gpu".to_owned(), amount("0"))].into());
            let gpu = ("example.com/gpu".to_owned(), amount("0"));
            assert_eq!(capacity(&all), [gpu, ("example.com/dongle".to_owned(), amount("4"))].into());
            assert!(all.volumes_attached.is_some() && own.volumes_attached.is_none());
            let first = |status: &NodeStatus| status.addresses.as_ref().unwrap()[0].address.clone();
            assert_eq!((first(&all) == "192.0.2.7", first(&own).as_str()), (by_cloud, "10.0.0.1"));
        }
        tasks.drain(std::time::Duration::from_secs(20)).await;
    }
}
