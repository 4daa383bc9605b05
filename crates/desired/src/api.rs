//! The API server as a source: its pods of this node, and the Node object.
//!
//! One task listens. What it hears is put into a book that is shared with the owner of the desired state, which is told
//! that there is news; so a slow owner holds nobody up, and what changed often is looked at once. Accepted pods and the
//! Node are kept on disk: after a start they count until the API server has said otherwise.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use mainstay_apiserver::{Change, Client, Listing, Reflected, Scope, Unreadable, reflect};
use mainstay_checkpoint::{Deferred, Durability, SealKey, Store, WriteError};
use mainstay_lifecycle::{is_own_condition, node_digest, others_node_status, status_digest};
use mainstay_task::TaskGroup;
use mainstay_types::{
    ApiNode, ApiPod, ApiPods, Barriers, DesiredPod, Event, EventKind, EventSink, EventTarget, FullName,
    Objects, PodExt as _, PodFailure, PodSource, PodUid, RemoteStatus, TerminalPhase, annotations,
    rfc3339_nanos,
};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::{
    kept_objects::{self, KeptObjects},
    objects::{self, ApiObjects},
};

/// So long it is tried to look what the Node object is now, for pods that would be turned away for what it was.
const NODE_LOOK: Duration = Duration::from_secs(10);
/// Between two tries.
const NODE_LOOK_AGAIN: Duration = Duration::from_secs(1);
const NODE_KEY: &str = "node";
const VERSION_KEY: &str = "pods";

/// A pod as it is kept on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ApiRecord {
    pod: Pod,
    remote: RemoteStatus,
}

/// What is known of the API server's side.
#[derive(Debug, Default)]
struct ApiBook {
    node: Option<Arc<Node>>,
    /// Its version, if it was looked up: what was on its way then is older.
    node_looked_up: u64,
    /// The last question about it that was answered.
    node_answered: u64,
    /// The API server has the Node object, as far as it told in this life.
    node_is_there: bool,
    node_losses: u64,
    /// What it said of how the node is when it was last seen.
    node_status: ApiNode,
    barriers: Option<Arc<Barriers>>,
    pods: BTreeMap<PodUid, Arc<DesiredPod>>,
    /// The API server has listed its pods in this life.
    delivered: bool,
    /// An earlier life was told of pods or of the node.
    remembered: bool,
    /// The pods that it was told of: they run, and wait for nothing.
    remembered_pods: BTreeSet<PodUid>,
    /// The newest versions that lists and watches told of in this life, of nodes and of pods.
    newest_node: u64,
    newest_pod: u64,
    /// How often one was older than that, which is only when the API server's store was put back.
    rewinds: u64,
    seen: BTreeMap<PodUid, Arc<ApiPod>>,
    /// The version that was acted upon, in this life or before: nothing older is listened to, or a pod that is gone would
    /// be there again.
    version: Option<String>,
}

/// The book, shared between the one who listens and the owner of the desired state.
#[derive(Clone, Debug)]
pub(crate) struct ApiSource {
    book: Arc<Mutex<ApiBook>>,
    news: Arc<Notify>,
    /// What its pods need.
    objects: ApiObjects,
}

/// What the API server wants, as far as it can be run.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) node_answered: u64,
    pub(crate) pods: BTreeMap<PodUid, Arc<DesiredPod>>,
    pub(crate) objects: Objects,
    /// All its pods are among them.
    pub(crate) whole: bool,
    /// When to look again at those that are not.
    pub(crate) again: Option<Instant>,
}

impl ApiSource {
    /// Reads what is on disk and begins to listen. Files that had to be set aside are returned as sentences.
    pub(crate) fn start(
        client: Client,
        (node_name, questions): (&Arc<str>, watch::Receiver<u64>),
        (root_dir, key): (&Path, Option<Arc<SealKey>>),
        events: &EventSink,
        tasks: &TaskGroup,
    ) -> Result<(Self, watch::Receiver<ApiPods>, Vec<String>), WriteError> {
        let directory = root_dir.join("mainstay").join("api");
        let pods: Store<ApiRecord> =
            Store::open(directory.join("pods"), 0o700, "api-pod", 1, Durability::ProcessDeath)?;
        let node: Store<Node> =
            Store::open(directory.join("node"), 0o700, "api-node", 1, Durability::ProcessDeath)?;
        let versions: Store<String> =
            Store::open(directory.join("version"), 0o700, "api-version", 1, Durability::ProcessDeath)?;
        let mut problems = Vec::new();
        let mut book = ApiBook::default();
        let contents = versions.load_all();
        problems.extend(contents.set_aside.iter().map(ToString::to_string));
        book.version = contents.good.into_values().next();
        let contents = pods.load_all();
        problems.extend(contents.set_aside.iter().map(ToString::to_string));
        for ApiRecord { pod, remote } in contents.good.into_values() {
            let pod = Arc::new(desired(pod, Some(Arc::new(remote))));
            book.pods.insert(pod.uid.clone(), pod);
        }
        let contents = node.load_all();
        problems.extend(contents.set_aside.iter().map(ToString::to_string));
        book.node = contents.good.into_values().next().map(Arc::new);
        book.remembered = book.node.is_some() || !book.pods.is_empty();
        book.remembered_pods = book.pods.keys().cloned().collect();
        let (sender, receiver) = watch::channel(ApiPods::default());
        let news = Arc::new(Notify::new());
        let (kept, objects) = match key {
            Some(key) => {
                let kept = KeptObjects::open(&directory.join("objects"), key, Timestamp::now())?;
                problems.extend(kept.2);
                (Some(kept.0), kept.1)
            }
            None => {
                kept_objects::forget(&directory.join("objects"));
                (None, Objects::default())
            }
        };
        let object_files = kept.as_ref().map(|kept| Arc::clone(&kept.files));
        let objects = ApiObjects::new(Arc::clone(&news), kept, objects, events.clone());
        // Before anybody listens: what no pod needs is forgotten.
        objects.need(&book.pods);
        if let Some(node) = &book.node {
            objects.node_is(node);
        }
        let (listening, of_objects, shutdown) = (objects.clone(), client.clone(), tasks.shutdown());
        tasks.spawn_critical("api objects", async move {
            shutdown.run_until_signalled(Box::pin(listening.run(of_objects))).await;
        });
        let source = Self { book: Arc::new(Mutex::new(book)), news, objects };
        let files = Files {
            pods: Arc::new(Deferred::new(pods)),
            node: Arc::new(Deferred::new(node)),
            versions: Arc::new(Deferred::new(versions)),
        };
        let (writer, shutdown) = (files.clone(), tasks.shutdown());
        tasks.spawn("api records", async move {
            let objects = async {
                if let Some(files) = object_files {
                    files.run(shutdown.signalled()).await;
                }
            };
            tokio::join!(
                writer.pods.run(shutdown.signalled()),
                writer.node.run(shutdown.signalled()),
                writer.versions.run(shutdown.signalled()),
                objects
            );
        });
        let listener = Listener {
            source: source.clone(),
            sender,
            files,
            node_name: Arc::clone(node_name),
            events: events.clone(),
        };
        let shutdown = tasks.shutdown();
        tasks.spawn_critical("api source", async move {
            shutdown.run_until_signalled(Box::pin(listener.run(client, questions))).await;
        });
        Ok((source, receiver, problems))
    }

    /// Whether an earlier life was told anything: what is on disk is the API server's last word.
    pub(crate) fn remembered(&self) -> bool {
        self.book().remembered
    }

    fn book(&self) -> MutexGuard<'_, ApiBook> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wanted now. Of pods that `shown` does not know, those are left out whose objects have not been looked up.
    pub(crate) fn wanted(&self, shown: impl Fn(&PodUid) -> bool) -> Wanted {
        let book = self.book();
        let waits = self.objects.need(&book.pods);
        let held =
            |uid: &PodUid| waits.contains_key(uid) && !shown(uid) && !book.remembered_pods.contains(uid);
        let again = waits.iter().filter(|(uid, _)| held(uid)).map(|(_, until)| *until).min();
        let pods = book.pods.iter().filter(|(uid, _)| !held(uid));
        Wanted {
            node: book.node.clone(),
            node_answered: book.node_answered,
            pods: pods.map(|(uid, pod)| (uid.clone(), Arc::clone(pod))).collect(),
            objects: self.objects.objects(),
            whole: book.delivered && again.is_none(),
            again,
        }
    }

    /// The RuntimeClasses that pods of other sources name.
    pub(crate) fn need_classes(&self, classes: BTreeSet<String>) {
        self.objects.need_classes(classes);
    }

    /// Waits for news. Cancel safe.
    pub(crate) async fn news(&self) {
        self.news.notified().await;
    }
}

#[derive(Clone, Debug)]
struct Files {
    pods: Arc<Deferred<ApiRecord>>,
    node: Arc<Deferred<Node>>,
    versions: Arc<Deferred<String>>,
}

struct Listener {
    source: ApiSource,
    sender: watch::Sender<ApiPods>,
    files: Files,
    node_name: Arc<str>,
    events: EventSink,
}

impl Listener {
    /// Listens for ever. Pods are listened to once it is known what the node is: its labels decide whether a pod may run.
    async fn run(self, client: Client, questions: watch::Receiver<u64>) {
        let there = Notify::new();
        let (node_since, since) = {
            let book = self.source.book();
            let node = book.node.as_ref().and_then(|node| node.metadata.resource_version.clone());
            (node, book.version.clone())
        };
        let node = Reflected {
            namespace: None,
            fields: Some(format!("metadata.name={}", self.node_name)),
            labels: None,
            since: node_since,
        };
        let of_the_node = reflect::<Node>(&client, &node, |change| {
            if self.take_node(change) {
                there.notify_one();
            }
        });
        let pods = Reflected {
            namespace: None,
            fields: Some(format!("spec.nodeName={}", self.node_name)),
            labels: None,
            since,
        };
        let of_its_pods = async {
            there.notified().await;
            reflect::<Pod>(&client, &pods, |change| self.take_pods(change)).await;
        };
        tokio::join!(of_the_node, of_its_pods, self.answer(&client, questions));
    }

    /// Looks what the Node object is now whenever somebody asks, for ever. An API server that is away has no other answer than what it said
    /// before.
    async fn answer(&self, client: &Client, mut questions: watch::Receiver<u64>) {
        let client = client.with_deadline(NODE_LOOK);
        while questions.changed().await.is_ok() {
            let number = *questions.borrow_and_update();
            let look = async {
                loop {
                    match client.get::<Node>(Scope::Cluster, &self.node_name).await {
                        Ok(node) => return Some(node),
                        Err(error) if error.status() == Some(404) => return None,
                        Err(error) => {
                            tracing::debug!(%error, "the node cannot be looked up; trying again");
                            tokio::time::sleep(NODE_LOOK_AGAIN).await;
                        }
                    }
                }
            };
            if let Some(node) = tokio::time::timeout(NODE_LOOK, look).await.unwrap_or_default() {
                let version = parsed(node.metadata.resource_version.as_deref());
                // Unless it has been heard of what came after it.
                let is_news = {
                    let mut book = self.source.book();
                    let is_news = version > book.newest_node.max(book.node_looked_up);
                    if is_news {
                        book.node_looked_up = version;
                    }
                    is_news
                };
                if is_news {
                    self.keep_node(node);
                }
            }
            self.source.book().node_answered = number;
            self.source.news.notify_one();
        }
    }

    /// Whether it is known what the node is.
    fn take_node(&self, change: Change<Node>) -> bool {
        let at = match &change {
            Change::Listed(nodes) => parsed(Some(&nodes.version)),
            Change::Applied(node) | Change::Deleted(node) => {
                parsed(node.metadata.resource_version.as_deref())
            }
            Change::Unreadable(_) | Change::Interrupted(_) => 0,
        };
        let is_list = matches!(change, Change::Listed(_));
        let is_old = {
            let mut book = self.source.book();
            if is_list && at < book.newest_node {
                self.rewind(&mut book);
                (book.newest_node, book.node_looked_up) = (at, 0);
            }
            book.newest_node = book.newest_node.max(at);
            at < book.node_looked_up
        };
        if is_old && !matches!(change, Change::Unreadable(_) | Change::Interrupted(_)) {
            // It was on its way when the node was looked up, and is no news.
            return is_list;
        }
        let node = match change {
            Change::Listed(nodes) => match nodes.items.into_iter().next() {
                Some(node) => node,
                None if !nodes.unreadable.is_empty() => {
                    tracing::warn!(node = ?nodes.unreadable, "the Node object cannot be read; it is taken as it was before");
                    return true;
                }
                // It is registered when the node can say how it is, and that is after every source has delivered.
                None => {
                    self.lose_node();
                    return true;
                }
            },
            Change::Applied(node) => node,
            // What it was is what is known until it is made again.
            Change::Deleted(node) => {
                self.tell_barriers(&node);
                self.lose_node();
                return false;
            }
            Change::Unreadable(node) => {
                tracing::warn!(?node, "the Node object cannot be read; it is taken as it was before");
                return false;
            }
            Change::Interrupted(_) => return false,
        };
        self.keep_node(node);
        true
    }

    /// Takes note of what the node is now.
    fn keep_node(&self, node: Node) {
        self.tell_status(&node);
        self.tell_barriers(&node);
        let status = node.status.as_ref().map(others_node_status);
        let mut node = Node { status, ..node };
        node.metadata.managed_fields = None;
        let mut book = self.source.book();
        book.node_is_there = true;
        if let Some(before) = &book.node {
            let version = std::mem::replace(
                &mut node.metadata.resource_version,
                before.metadata.resource_version.clone(),
            );
            if **before == node {
                return;
            }
            node.metadata.resource_version = version;
        }
        self.tell_of_cordon(book.node.as_deref(), &node);
        self.source.objects.node_is(&node);
        self.files.node.put(NODE_KEY, node.clone());
        book.node = Some(Arc::new(node));
        drop(book);
        self.source.news.notify_one();
    }

    /// Tells those who go by what the API server answered that it does not have that any more.
    fn rewind(&self, book: &mut ApiBook) {
        book.rewinds += 1;
        let rewinds = book.rewinds;
        tracing::warn!(
            "the API server has gone back to an older version of its objects; it is told again what it has forgotten"
        );
        self.sender.send_modify(|pods| pods.rewinds = rewinds);
    }

    /// Tells those who say how the node is what is said of it there, if that is another thing than before.
    fn tell_status(&self, node: &Node) {
        let status = node.status.as_ref();
        let now = ApiNode {
            version: parsed(node.metadata.resource_version.as_deref()),
            conditions: node_digest(status),
            has_addresses: status.is_some_and(|it| it.addresses.as_ref().is_some_and(|all| !all.is_empty())),
        };
        let mut book = self.source.book();
        let before = std::mem::replace(&mut book.node_status, now);
        drop(book);
        if (before.conditions, before.has_addresses) != (now.conditions, now.has_addresses) {
            self.sender.send_modify(|pods| pods.node = now);
        }
    }

    /// Tells those who register the node what it is to have again if it is lost.
    fn tell_barriers(&self, node: &Node) {
        let now = Barriers::of(node);
        let mut book = self.source.book();
        if book.barriers.as_deref() != Some(&now) {
            book.barriers = Some(Arc::new(now));
            let barriers = book.barriers.clone();
            drop(book);
            self.sender.send_modify(|pods| pods.barriers = barriers);
        }
    }

    /// Somebody has closed the node to new pods, or opened it.
    fn tell_of_cordon(&self, before: Option<&Node>, node: &Node) {
        let is_closed = |node: &Node| node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
        let closed = is_closed(node);
        if closed == before.is_some_and(is_closed) {
            return;
        }
        let reason = if closed { "NodeNotSchedulable" } else { "NodeSchedulable" };
        let message = format!("Node {} status is now: {reason}", self.node_name);
        let (target, kind) = (EventTarget::Node, EventKind::Normal);
        let time = Timestamp::now();
        self.events.send(Event { target, kind, reason: reason.into(), message, time });
    }

    /// Tells those who register the node that there is none.
    fn lose_node(&self) {
        let mut book = self.source.book();
        if std::mem::take(&mut book.node_is_there) {
            book.node_losses += 1;
            let losses = book.node_losses;
            drop(book);
            self.sender.send_modify(|pods| pods.node_losses = losses);
        }
    }

    fn take_pods(&self, change: Change<Pod>) {
        let mut book = self.source.book();
        let (mut changed, mut at) = (false, None);
        match change {
            Change::Listed(list) => {
                let Listing { version, items: pods, unreadable } = list;
                let mut there: BTreeSet<PodUid> =
                    pods.iter().map(|pod| PodUid::from(pod.uid_ref())).collect();
                // One that cannot be read is there: what runs of it runs on.
                there.extend(unreadable.iter().map(|pod| PodUid::from(pod.uid.as_str())));
                unreadable.iter().for_each(|pod| self.tell_unreadable(pod));
                // Also when it has as many versions again as it had: what is there is older than it was.
                let is_older = |pod: &Pod| {
                    let known = book.seen.get(&PodUid::from(pod.uid_ref()));
                    known
                        .is_some_and(|known| parsed(pod.metadata.resource_version.as_deref()) < known.version)
                };
                if parsed(Some(&version)) < book.newest_pod || pods.iter().any(is_older) {
                    self.rewind(&mut book);
                    book.newest_pod = 0;
                }
                at = Some(version);
                let gone: Vec<_> = book.pods.keys().filter(|uid| !there.contains(*uid)).cloned().collect();
                for uid in gone {
                    book.pods.remove(&uid);
                    self.files.pods.remove(uid.as_str());
                }
                book.seen.retain(|uid, _| there.contains(uid));
                for pod in pods {
                    self.apply(&mut book, pod);
                }
                book.delivered = true;
                changed = true;
            }
            Change::Applied(pod) => {
                at.clone_from(&pod.metadata.resource_version);
                changed |= self.apply(&mut book, pod);
            }
            Change::Unreadable(pod) => return self.tell_unreadable(&pod),
            Change::Deleted(pod) => {
                at.clone_from(&pod.metadata.resource_version);
                let uid = PodUid::from(pod.uid_ref());
                book.seen.remove(&uid);
                if book.pods.remove(&uid).is_some() {
                    self.files.pods.remove(uid.as_str());
                    changed = true;
                }
            }
            Change::Interrupted(error) => {
                tracing::debug!(%error, "the API server cannot be listened to; what it said before holds");
                return;
            }
        }
        book.newest_pod = book.newest_pod.max(parsed(at.as_deref()));
        if let Some(version) = at.filter(|version| changed && !version.is_empty()) {
            self.files.versions.put(VERSION_KEY, version.clone());
            book.version = Some(version);
        }
        let pods = ApiPods {
            listed: book.delivered,
            pods: Arc::new(book.seen.clone()),
            node_losses: book.node_losses,
            rewinds: book.rewinds,
            node: book.node_status,
            barriers: book.barriers.clone(),
        };
        drop(book);
        self.sender.send_replace(pods);
        if changed {
            self.source.news.notify_one();
        }
    }

    fn tell_unreadable(&self, pod: &Unreadable) {
        let full_name = FullName::new(&pod.namespace, &pod.name);
        tracing::warn!(pod = %full_name, problem = pod.problem, "a pod of the API server cannot be read; what runs of it runs on");
        let message = format!("The pod cannot be read by the node, and is as it was before: {}", pod.problem);
        self.events.send(Event {
            target: EventTarget::Pod { uid: pod.uid.as_str().into(), full_name, field_path: None },
            kind: EventKind::Warning,
            reason: objects::unreadable::REASON.into(),
            message,
            time: Timestamp::now(),
        });
    }

    /// Takes note of one pod; whether that changes what should run.
    fn apply(&self, book: &mut ApiBook, pod: Pod) -> bool {
        let uid = PodUid::from(pod.uid_ref());
        book.seen.insert(uid.clone(), Arc::new(seen(&pod)));
        // A static pod's likeness: the pod itself is not the API server's.
        if pod.annotation(annotations::CONFIG_MIRROR).is_some() {
            return false;
        }
        let before = book.pods.get(&uid);
        let next = accepted(pod, before.map(AsRef::as_ref), Timestamp::now());
        let Some(next) = next else { return false };
        let remote = next.remote.as_deref().cloned().unwrap_or_default();
        self.files.pods.put(uid.as_str(), ApiRecord { pod: Pod::clone(&next.pod), remote });
        book.pods.insert(uid, Arc::new(next));
        true
    }
}

/// The pod as it should run; `None` if it is as before.
fn accepted(mut pod: Pod, before: Option<&DesiredPod>, now: Timestamp) -> Option<DesiredPod> {
    let status = pod.status.take().unwrap_or_default();
    pod.metadata.managed_fields = None;
    let first_seen = before.and_then(|before| before.pod.annotation(annotations::CONFIG_SEEN));
    let first_seen = first_seen.map_or_else(|| rfc3339_nanos(now), str::to_owned);
    let map = pod.metadata.annotations.get_or_insert_default();
    map.insert(annotations::CONFIG_SOURCE.to_owned(), PodSource::Api.as_str().to_owned());
    map.insert(annotations::CONFIG_SEEN.to_owned(), first_seen);
    let remote = remote_status(&status, before.and_then(|before| before.remote.as_deref()));
    let Some(before) = before else { return Some(desired(pod, Some(Arc::new(remote)))) };
    // A version of which only the status is new is the same pod.
    let version =
        std::mem::replace(&mut pod.metadata.resource_version, before.pod.metadata.resource_version.clone());
    let same_pod = *before.pod == pod;
    let same_remote = before.remote.as_deref() == Some(&remote);
    if same_pod && same_remote {
        return None;
    }
    pod.metadata.resource_version = version;
    let mut next = desired(pod, Some(Arc::new(remote)));
    if same_pod {
        next.pod = Arc::clone(&before.pod);
    }
    if same_remote {
        next.remote.clone_from(&before.remote);
    }
    next.terminate.clone_from(&before.terminate);
    Some(next)
}

/// What the status says to us: other people's conditions as they are, our own as they were at first.
fn remote_status(status: &PodStatus, before: Option<&RemoteStatus>) -> RemoteStatus {
    let (ours, theirs): (Vec<_>, Vec<_>) =
        status.conditions.iter().flatten().cloned().partition(|it| is_own_condition(&it.type_));
    let finished = match status.phase.as_deref() {
        Some("Succeeded") => Some(TerminalPhase::Succeeded),
        Some("Failed") => Some(TerminalPhase::Failed),
        _ => None,
    };
    let reason = status.reason.clone().filter(|_| finished == Some(TerminalPhase::Failed));
    let failure =
        reason.map(|reason| PodFailure { reason, message: status.message.clone().unwrap_or_default() });
    let Some(before) = before else {
        return RemoteStatus {
            finished,
            failure,
            start_time: status.start_time.as_ref().map(|time| time.0),
            conditions: ours.into_iter().chain(theirs).collect(),
        };
    };
    let first = before.conditions.iter().filter(|it| is_own_condition(&it.type_)).cloned();
    let conditions = first.chain(theirs).collect();
    if before.finished.is_some() {
        return RemoteStatus { conditions, ..before.clone() };
    }
    // Over by somebody's word: our own, which is no news to who ended it, or another's, which is to be heeded.
    RemoteStatus { finished, failure, conditions, ..before.clone() }
}

/// A version as a number, which it is for all of Kubernetes' own objects; 0 if there is none.
fn parsed(version: Option<&str>) -> u64 {
    version.and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn desired(pod: Pod, remote: Option<Arc<RemoteStatus>>) -> DesiredPod {
    DesiredPod {
        uid: pod.uid_ref().into(),
        full_name: FullName::new(pod.namespace_ref(), pod.name_ref()),
        pod: Arc::new(pod),
        source: PodSource::Api,
        origin: "".into(),
        terminate: None,
        remote,
    }
}

fn seen(pod: &Pod) -> ApiPod {
    let status = pod.status.as_ref();
    ApiPod {
        uid: pod.uid_ref().into(),
        full_name: FullName::new(pod.namespace_ref(), pod.name_ref()),
        version: parsed(pod.metadata.resource_version.as_deref()),
        status_digest: status.map_or(0, status_digest),
        finished: status.is_some_and(|it| matches!(it.phase.as_deref(), Some("Succeeded" | "Failed"))),
        deleting: pod.metadata.deletion_timestamp.is_some(),
        released: pod.metadata.deletion_timestamp.is_some()
            && pod.metadata.deletion_grace_period_seconds == Some(0),
        mirror_of: pod.annotation(annotations::CONFIG_MIRROR).map(PodUid::from),
    }
}

#[cfg(test)]
mod tests;
