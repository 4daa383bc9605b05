//! The worker: takes the steps for one pod, one after the other, and reports what it finds.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use mainstay_lifecycle::{Hold, HoldCause, KillReason, SANDBOX_HOLD, Step, probe_grace_seconds};
use mainstay_podspec::runtime::NodeSettings;
use mainstay_policy::Rejection;
use mainstay_task::Shutdown;
use mainstay_trace::{Kind, Span, Tracer};
use mainstay_types::{
    ContainerId, ContainerKind, ContainerName, ContainerReason, DesiredPod, DesiredState, Event, EventKind,
    EventTarget, FileVerdict, MadeObjects, Objects, ObservedPod, PodExt, PodFailure, PodUid, ReadWish,
    RuntimeHealth, SandboxId,
};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{Instrument, debug, info, info_span, warn};

use crate::{
    ReconcileConfig,
    accounts::Accounts,
    actor::Report,
    cleanup::{self, CleanupError},
    containers,
    images::Puller,
    kill::{self, Grace},
    pod::PodState,
    providers::Providers,
    pulled::PullRecords,
    record::PodRecord,
    record::Records,
    resources, sandbox, volumes,
};

/// After a failure that has no back-off of its own.
pub(crate) const RETRY_AFTER: SignedDuration = SignedDuration::from_secs(10);
/// After "the pod network is not ready".
pub(crate) const RETRY_NETWORK: SignedDuration = SignedDuration::from_secs(1);

/// What all workers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: ReconcileConfig,
    pub(crate) records: Records,
    pub(crate) puller: Puller,
    pub(crate) providers: Providers,
    pub(crate) pulled: PullRecords,
    /// Turns to bring the contents of volumes up to date.
    pub(crate) refreshes: tokio::sync::Semaphore,
    /// Held by who gives user IDs to a pod. The pods that the runtime has said to have the node's users.
    pub(crate) user_namespaces: tokio::sync::Mutex<HashSet<PodUid>>,
    /// Which CPUs containers were last told to run on.
    pub(crate) cpusets: crate::cpusets::Applied,
    /// That the node has no cluster DNS has been told.
    pub(crate) told_of_dns: AtomicBool,
    reports: mpsc::Sender<Report>,
}

/// Something a worker found that must be remembered.
#[derive(Debug)]
pub(crate) enum Fact {
    /// A container cannot be started now.
    Held { name: ContainerName, hold: Hold },
    /// A container is started again after it ended.
    Crashed { key: String, ended: Timestamp },
    /// Its image could not be pulled.
    PullFailed { name: ContainerName, image: String, at: Timestamp, cause: HoldCause },
    /// Its image waits because it could not be pulled for another container.
    PullHeld { name: ContainerName, image: String, at: Timestamp, cause: HoldCause },
    /// An image was pulled, or found.
    Pulled { image: String },
    /// The preStop hook of a container is begun.
    Stopping { id: ContainerId },
    /// A container is about to run, its postStart hook too.
    Hooking { id: ContainerId },
    /// A container is up.
    Started { name: ContainerName, id: ContainerId },
    /// A sandbox is up.
    SandboxMade,
    /// All containers are being restarted; no longer once one of them is started, or cannot be.
    RestartingAll,
    /// What the pod asks for cannot be given to it yet: a device plugin has not answered, or it is not known who holds what.
    AwaitsResources { reason: &'static str, message: String },
    /// The pod has what it asks for.
    ResourcesUp,
    /// The pod cannot have the devices that it asks for; nothing of it was made.
    DevicesRefused { rejection: Rejection },
    /// Volumes are not there, so that these containers (and the sandbox) cannot be made.
    VolumesFailed { names: Vec<ContainerName>, reason: ContainerReason },
    /// The volumes of these containers are there; of all of them if there is no list.
    VolumesUp { names: Option<Vec<ContainerName>> },
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Job {
    Sync(Vec<Step>),
    Stop {
        grace: Grace,
    },
    Settle,
    Remove,
    /// Bring the contents of volumes up to date.
    Refresh,
}

impl Job {
    /// As metrics label it, in upstream's words for what its workers do.
    const fn word(&self) -> &'static str {
        match self {
            Self::Sync(_) => "sync",
            Self::Stop { .. } => "kill",
            Self::Settle | Self::Remove => "terminated",
            Self::Refresh => "update",
        }
    }
}

/// A span for a job, with the name and the attributes of upstream's.
pub(crate) fn span(tracer: &Tracer, pod: &PodState, job: &Job, is_first: bool) -> Span {
    if !tracer.is_on() {
        return Span::default();
    }
    let name = match job {
        Job::Sync(_) | Job::Refresh => "syncPod",
        Job::Stop { .. } => "syncTerminatingPod",
        Job::Settle | Job::Remove => "syncTerminatedPod",
    };
    let mut span = tracer.below(pod.start.context(), name, Kind::Internal);
    describe(&mut span, &pod.desired);
    if name == "syncPod" {
        span.set("k8s.pod.update_type", if is_first { "create" } else { "sync" });
    }
    span
}

/// Which pod a span is about, in upstream's words.
pub(crate) fn describe(span: &mut Span, desired: &DesiredPod) {
    if span.is_recorded() {
        let name = &desired.full_name;
        span.set("k8s.pod.uid", desired.uid.as_str().to_owned());
        span.set("k8s.pod", name.to_string());
        span.set("k8s.pod.name", name.name.to_string());
        span.set("k8s.namespace.name", name.namespace.to_string());
    }
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobEnd {
    /// As it should, or as far as it went; the next look decides.
    Done,
    /// Everything was told to stop.
    Stopped,
    /// The pod has come to rest.
    AtRest,
    /// It must be tried again, and not at once.
    Failed,
    /// Nothing was done that the runtime could show.
    Refreshed,
}

/// One order to a worker.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) desired: Arc<DesiredPod>,
    pub(crate) observed: Option<Arc<ObservedPod>>,
    pub(crate) objects: Arc<Objects>,
    /// The Node object, if there is an API server that has one.
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) runtime: Arc<RuntimeHealth>,
    /// To be on disk before anything is made.
    pub(crate) record: Option<PodRecord>,
    /// When preStop hooks were begun.
    pub(crate) pre_stops: BTreeMap<ContainerId, Timestamp>,
    /// Some image could not be pulled before.
    pub(crate) had_pull_trouble: bool,
    /// Images that are not pulled before their time, and why; those that could not be pulled in this very job among them.
    pub(crate) pulls_that_wait: Mutex<BTreeMap<String, HoldCause>>,
    /// Some volume could not be set up before.
    pub(crate) had_volume_trouble: bool,
    /// So often in a row.
    pub(crate) volume_failures: u32,
    /// What became of each file, to tell why a ConfigMap or Secret is missing.
    pub(crate) verdicts: Arc<Vec<FileVerdict>>,
    pub(crate) job: Job,
    /// What is told of the time that it takes.
    pub(crate) trace: Span,
    pub(crate) cancel: Cancel,
    pub(crate) log: MadeLog,
}

impl Order {
    /// The runtime's handler that the pod's RuntimeClass names; the default one has no name.
    pub(crate) fn handler(&self) -> &str {
        let class = self.desired.pod.spec_ref().runtime_class_name.as_deref();
        class.and_then(|class| self.objects.runtime_classes.get(class)).map_or("", AsRef::as_ref)
    }
}

/// What a worker has made so far, so that the reading afterwards need not search for it.
#[derive(Debug, Default)]
pub(crate) struct MadeLog {
    made: Mutex<MadeObjects>,
    /// A call to make something failed (it may have been made all the same), or something was removed: search.
    uncertain: AtomicBool,
}

impl MadeLog {
    pub(crate) fn sandbox(&self, id: &SandboxId) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).sandboxes.push(id.clone());
    }

    pub(crate) fn container(&self, id: &ContainerId, sandbox: &SandboxId) {
        let entry = (id.clone(), sandbox.clone());
        self.made.lock().unwrap_or_else(PoisonError::into_inner).containers.push(entry);
    }

    pub(crate) fn uncertain(&self) {
        self.uncertain.store(true, Ordering::Relaxed);
    }

    fn read(&self) -> Option<MadeObjects> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        (!self.uncertain.load(Ordering::Relaxed)).then(|| made.clone())
    }
}

/// Tells a worker to stop between two steps, or in a wait.
#[derive(Clone, Debug)]
pub(crate) struct Cancel {
    sender: watch::Sender<bool>,
    shutdown: Shutdown,
    /// How many hooks are under way that would be cut short for good.
    hooks: watch::Sender<usize>,
}

/// A hook that is under way.
#[derive(Debug)]
pub(crate) struct HookUnderWay(watch::Sender<usize>);

impl Drop for HookUnderWay {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl Cancel {
    pub(crate) fn new(shutdown: Shutdown) -> Self {
        Self { sender: watch::channel(false).0, shutdown, hooks: watch::channel(0).0 }
    }

    /// From now until it is dropped, [`Self::in_this_life`] waits.
    pub(crate) fn hook(&self) -> HookUnderWay {
        self.hooks.send_modify(|count| *count += 1);
        HookUnderWay(self.hooks.clone())
    }

    pub(crate) fn cancel(&self) {
        self.sender.send_replace(true);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        *self.sender.borrow() || self.shutdown.is_signalled()
    }

    /// Runs something that the next life of mainstay goes on with. `None` when this one ends, and no hook is under way: that
    /// would not be run again.
    pub(crate) async fn in_this_life<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let ending = async {
            self.shutdown.signalled().await;
            // The sender lives as long as this.
            self.hooks.subscribe().wait_for(|count| *count == 0).await.ok();
        };
        tokio::select! {
            biased;
            () = ending => None,
            result = work => Some(result),
        }
    }

    /// Runs something that may be dropped halfway. `None` when it was.
    pub(crate) async fn cut<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut receiver = self.sender.subscribe();
        tokio::select! {
            biased;
            _ = receiver.wait_for(|cancelled| *cancelled) => None,
            () = self.shutdown.signalled() => None,
            result = work => Some(result),
        }
    }
}

impl Shared {
    pub(crate) fn new(config: ReconcileConfig, records: Records, reports: mpsc::Sender<Report>) -> Self {
        let puller = Puller::new(config.pulls);
        let counters = &config.counters;
        let accounts = Accounts::new(config.accounts.clone());
        let providers = Providers::new(config.credential_providers.clone(), accounts, Arc::clone(counters));
        let root = &config.node.root_dir;
        let pulled = PullRecords::new(config.pull_verification.clone(), root, Arc::clone(counters));
        Self {
            config,
            records,
            puller,
            providers,
            pulled,
            refreshes: tokio::sync::Semaphore::new(volumes::REFRESHES),
            user_namespaces: tokio::sync::Mutex::default(),
            cpusets: crate::cpusets::Applied::default(),
            told_of_dns: AtomicBool::new(false),
            reports,
        }
    }

    /// The node's addresses as they are now.
    pub(crate) fn addresses(&self) -> Arc<[String]> {
        Arc::clone(&self.config.addresses.borrow())
    }

    /// The node's settings, with the addresses of now.
    pub(crate) fn node_now(&self) -> NodeSettings {
        NodeSettings { host_ips: self.addresses().to_vec(), ..self.config.node.clone() }
    }

    pub(crate) async fn report(&self, uid: &PodUid, fact: Fact) {
        // The actor ends only when the agent does.
        self.reports.send(Report::Fact(uid.clone(), fact)).await.ok();
    }

    /// Notes that a container is about to run with its postStart hook, and waits until that is on disk. One that cannot be
    /// written runs all the same: a restart of mainstay may then forget its hook. False when mainstay ends: then nobody notes
    /// anything any more, and the container is left to the next life.
    pub(crate) async fn note_hook(&self, uid: &PodUid, id: &ContainerId) -> bool {
        self.report(uid, Fact::Hooking { id: id.clone() }).await;
        // Reports are taken in their order.
        let (reached, noted) = oneshot::channel();
        self.reports.send(Report::Mark(reached)).await.ok();
        if noted.await.is_err() {
            return false;
        }
        if let Err(error) = self.records.settle(uid).await {
            warn!(%error, "cannot keep on disk that a postStart hook is about to run");
        }
        true
    }

    /// Wishes for a fresh reading, so that clients see what was done before the whole job is.
    pub(crate) fn look(&self, order: &Order) {
        let (uid, full_name) = (order.desired.uid.clone(), order.desired.full_name.clone());
        // With the channel full a reading is on its way anyway.
        self.wish(ReadWish { uid, full_name, made: order.log.read() });
    }

    /// Wishes for a fresh reading. With the channel full there is none: the next list stands in for it.
    pub(crate) fn wish(&self, wish: ReadWish) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.config.refresh.try_send(wish) {
            self.config.counters.wishes_dropped.add();
        }
    }

    pub(crate) fn event(
        &self,
        desired: &DesiredPod,
        container: Option<(ContainerKind, &str)>,
        kind: EventKind,
        reason: impl Into<Cow<'static, str>>,
        message: String,
    ) {
        let target = EventTarget::Pod {
            uid: desired.uid.clone(),
            full_name: desired.full_name.clone(),
            field_path: container.map(|(kind, name)| kind.field_path(name)),
        };
        let reason = reason.into();
        self.config.events.send(Event { target, kind, reason, message, time: Timestamp::now() });
    }

    pub(crate) fn tell_pod_failed(&self, desired: &DesiredPod, failure: &PodFailure) {
        if failure.reason == "DeadlineExceeded" {
            self.event(desired, None, EventKind::Normal, "DeadlineExceeded", failure.message.clone());
        }
    }

    /// Says of each ephemeral container that has been added that nothing comes of it.
    pub(crate) fn tell_of_ephemeral_containers(&self, before: &DesiredState, wanted: &DesiredPod) {
        let names = |pod: &DesiredPod| -> Vec<String> {
            let containers = pod.pod.spec_ref().ephemeral_containers.iter().flatten();
            containers.map(|container| container.name.clone()).collect()
        };
        let known = before.pods.get(&wanted.uid).map(|pod| names(pod)).unwrap_or_default();
        for name in names(wanted).into_iter().filter(|name| !known.contains(name)) {
            let text = format!(
                "Ephemeral container {name:?} is not started: this version does not run ephemeral containers yet; use exec \
                 in a container of the pod"
            );
            self.event(wanted, None, EventKind::Warning, "EphemeralContainerNotStarted", text);
        }
    }

    /// A pod was taken up.
    pub(crate) fn count_containers(&self, pod: &PodState) {
        let containers = pod.desired.pod.spec_ref().containers.len();
        self.config.counters.containers_per_pod.observe_number(containers);
    }

    /// Lets a pod end that somebody wishes away, and tells of it. Whether that was news.
    pub(crate) fn obey_wish(&self, pod: &mut PodState) -> bool {
        let was_over = pod.memory.finished.is_some();
        if !pod.obey_wish() {
            return false;
        }
        if was_over {
            return true;
        }
        if let Some(failure) = pod.memory.failure.as_ref().filter(|failure| failure.reason == "Evicted") {
            self.event(&pod.desired, None, EventKind::Warning, "Evicted", failure.message.clone());
        }
        if let Some(signal) = pod.desired.terminate.as_ref().and_then(|wish| wish.signal) {
            self.config.counters.evictions.of([signal]).add();
        }
        true
    }

    /// Tells of each back-off that is newly in force.
    pub(crate) fn tell_backoffs(&self, pod: &PodState) {
        let told = pod.outcome.as_ref().map(|outcome| &outcome.reasons);
        for (name, reason) in &pod.reasons {
            if told.and_then(|told| told.get(name)) == Some(reason) {
                continue;
            }
            let spec = &pod.desired.pod;
            let Some((kind, _)) = spec.container(name.as_str()) else { continue };
            match reason.reason.as_str() {
                "CrashLoopBackOff" => {
                    let text = format!(
                        "Back-off restarting failed container {name} in pod {}_{}({})",
                        spec.name_ref(),
                        spec.namespace_ref(),
                        spec.uid_ref()
                    );
                    self.event(
                        &pod.desired,
                        Some((kind, name.as_str())),
                        EventKind::Warning,
                        "BackOff",
                        text,
                    );
                }
                "ImagePullBackOff" => {
                    let who = Some((kind, name.as_str()));
                    self.event(&pod.desired, who, EventKind::Normal, "BackOff", reason.message.clone());
                    self.event(
                        &pod.desired,
                        who,
                        EventKind::Warning,
                        "Failed",
                        "Error: ImagePullBackOff".into(),
                    );
                }
                _ => {}
            }
        }
    }
}

/// Carries out an order and reports its end, whatever happens.
pub(crate) async fn run(shared: Arc<Shared>, order: Order) {
    let uid = order.desired.uid.clone();
    let span = info_span!("pod", pod = %order.desired.full_name, pod.uid = %uid);
    let mut order = order;
    let removes = matches!(order.job, Job::Remove);
    let (begun, kind) = (std::time::Instant::now(), order.job.word());
    let mut trace = std::mem::take(&mut order.trace);
    let end = trace.run(Box::pin(carry_out(&shared, &mut order)).instrument(span)).await;
    if end == JobEnd::Failed {
        trace.fail("it is tried again");
    }
    drop(trace);
    shared.config.counters.orders.of([kind]).observe(begun.elapsed());
    // That nothing is left is for the runtime to say, not for us.
    let made = order.log.read().filter(|_| !removes);
    shared.reports.send(Report::Done { uid, end, made }).await.ok();
}

async fn carry_out(shared: &Shared, order: &mut Order) -> JobEnd {
    let job = std::mem::replace(&mut order.job, Job::Settle);
    match job {
        Job::Sync(steps) => {
            Box::pin(sync(shared, order, steps)).await;
            JobEnd::Done
        }
        // A grace period may be long, and what is left of it is known to the next life.
        Job::Stop { grace } => match order.cancel.in_this_life(kill::stop_pod(shared, order, &grace)).await {
            None => JobEnd::Failed,
            Some(Ok(())) => JobEnd::Stopped,
            Some(Err(error)) => {
                warn!(%error, "cannot stop the pod; trying again");
                let text = format!("error killing pod: {error}");
                shared.event(&order.desired, None, EventKind::Warning, "FailedKillPod", text);
                JobEnd::Failed
            }
        },
        Job::Settle => match cleanup::settle(shared, order).await {
            Ok(()) => {
                shared.config.resources.release(&order.desired.uid);
                JobEnd::AtRest
            }
            Err(error) => not_gone(shared, order, &error, "cannot clean up after the pod; trying again"),
        },
        Job::Refresh => {
            volumes::refresh(shared, order).await;
            JobEnd::Refreshed
        }
        Job::Remove => match cleanup::remove(shared, order).await {
            Ok(()) => {
                shared.config.resources.release(&order.desired.uid);
                JobEnd::AtRest
            }
            Err(error) => not_gone(shared, order, &error, "cannot remove the pod's remains; trying again"),
        },
    }
}

/// Something of the pod is still there. A volume that stays mounted holds up its end, and only the machine's owner can find out
/// who is using it; one with much in it goes by and by.
fn not_gone(shared: &Shared, order: &Order, error: &CleanupError, what: &'static str) -> JobEnd {
    match error {
        CleanupError::Volumes(error) if error.is_only_long() => info!(%error, "the pod's end takes long"),
        CleanupError::Volumes(error) => {
            warn!(%error, "{what}");
            let text = format!("Unable to take down a volume of the pod, trying again: {error}");
            shared.event(&order.desired, None, EventKind::Warning, "FailedUnMount", text);
        }
        error => warn!(%error, "{what}"),
    }
    JobEnd::Failed
}

/// Takes the steps of a plan. A step that fails puts a hold on what it was for; the others go on where they can.
async fn sync(shared: &Shared, order: &mut Order, steps: Vec<Step>) {
    let uid = order.desired.uid.clone();
    // What has to be stopped is, whether or not something can be started in its place.
    let (kills, steps): (Vec<Step>, Vec<Step>) =
        steps.into_iter().partition(|step| matches!(step, Step::Kill { .. }));
    for kill in kills {
        if order.cancel.is_cancelled() {
            return;
        }
        if let Step::Kill { id, name, reason } = kill
            && !stop_one(shared, order, &id, name, reason).await
        {
            return;
        }
    }
    // A pod that runs has a record. If a newer one cannot be written, its containers are better off with the older than not at all.
    if let Some(record) = order.record.take()
        && let Err(error) = shared.records.keep_now(record).await
        && (steps.iter().any(|step| matches!(step, Step::CreateSandbox { .. }))
            || !shared.records.has(&uid).await)
    {
        let reason = ContainerReason { reason: "CreatePodSandboxError".into(), message: error.to_string() };
        warn!(%error, "cannot write the pod's record, so nothing of it is started");
        shared.event(&order.desired, None, EventKind::Warning, "FailedSync", error.to_string());
        // Whatever the steps were for is not tried again before its time.
        let mut names: Vec<ContainerName> = vec![SANDBOX_HOLD.into()];
        names.extend(steps.into_iter().filter_map(|step| match step {
            Step::Start { name, .. } | Step::PostStart { name, .. } | Step::RestartAll { trigger: name } => {
                Some(name)
            }
            _ => None,
        }));
        for name in names {
            hold(shared, &uid, name, HoldCause::Failed(reason.clone()), RETRY_AFTER).await;
        }
        return;
    }
    if !resources::ready_for(shared, order, &steps).await || !volumes::ready_for(shared, order, &steps).await
    {
        return;
    }
    let mut made: Option<sandbox::Made> = None;
    let mut images = volumes::Images::for_steps(&steps);
    for step in steps {
        if order.cancel.is_cancelled() {
            return;
        }
        match step {
            Step::StopPod => {
                let grace = Grace::fixed(order.desired.pod.grace_seconds().max(1));
                let stopped = order.cancel.in_this_life(kill::stop_pod(shared, order, &grace)).await;
                if let Some(Err(error)) = stopped {
                    warn!(%error, "cannot stop what is left of the pod's old sandbox");
                    let reason =
                        ContainerReason { reason: "KillPodSandboxError".into(), message: error.to_string() };
                    hold(shared, &uid, SANDBOX_HOLD.into(), HoldCause::Failed(reason), RETRY_AFTER).await;
                    return;
                }
            }
            // Taken already.
            Step::Kill { .. } => {}
            Step::RestartAll { trigger } => {
                shared.report(&uid, Fact::RestartingAll).await;
                order.log.uncertain();
                if let Err(error) = kill::remove_all_containers(shared, order, trigger.as_str()).await {
                    warn!(%error, "cannot restart all containers; trying again");
                    let reason =
                        ContainerReason { reason: "KillContainerError".into(), message: error.to_string() };
                    hold(shared, &uid, trigger, HoldCause::Failed(reason), RETRY_AFTER).await;
                    return;
                }
            }
            Step::PostStart { id, name, kind, sandbox } => {
                let target = sandbox::Made::existing(shared, sandbox, order);
                containers::resume(shared, order, &target, name, kind, id).await;
            }
            Step::Remove(id) => {
                if let Err(error) = shared.config.cri.remove_container(id.as_str()).await {
                    debug!(container.id = %id, %error, "cannot remove a dead container");
                }
                // What was removed must be seen to be gone, not remembered.
                order.log.uncertain();
            }
            Step::CreateSandbox { attempt, changed } => {
                let mut span = mainstay_trace::child("sandbox");
                let created = span.run(Box::pin(sandbox::create(shared, order, attempt, changed))).await;
                if let Err(failure) = &created {
                    span.fail(&failure.reason.message);
                }
                drop(span);
                match created {
                    Ok(sandbox) => {
                        shared.report(&uid, Fact::SandboxMade).await;
                        made = Some(sandbox);
                    }
                    Err(failure) => {
                        hold(
                            shared,
                            &uid,
                            SANDBOX_HOLD.into(),
                            HoldCause::Failed(failure.reason),
                            failure.retry_after,
                        )
                        .await;
                        return;
                    }
                }
            }
            Step::Start { name, kind, sandbox, after_crash } => {
                let target = match sandbox {
                    Some(id) => sandbox::Made::existing(shared, id, order),
                    None => match &made {
                        Some(made) => made.clone(),
                        None => return,
                    },
                };
                if let Some((key, ended)) = after_crash {
                    shared.report(&uid, Fact::Crashed { key, ended }).await;
                }
                images.pull_all(shared, order, &target).await;
                let started = containers::start(shared, order, &target, name.clone(), kind, &images).await;
                // A plain init container that cannot be started stops the rest; a sidecar or another one does not.
                if !started && kind == ContainerKind::Init {
                    return;
                }
            }
        }
    }
}

/// Stops a single container. Whether it could be; if not, it is not tried again before its time.
async fn stop_one(
    shared: &Shared,
    order: &Order,
    id: &ContainerId,
    name: ContainerName,
    reason: KillReason,
) -> bool {
    let text = reason.message(name.as_str());
    let grace = kill_grace(&order.desired.pod, name.as_str(), reason);
    let stop = kill::stop_container(shared, order, id, name.as_str(), grace, text);
    let Some(Err(error)) = order.cancel.in_this_life(stop).await else { return true };
    warn!(container = %name, %error, "cannot stop the container");
    let reason = ContainerReason { reason: "KillContainerError".into(), message: error.to_string() };
    hold(shared, &order.desired.uid, name, HoldCause::Failed(reason), RETRY_AFTER).await;
    false
}

/// How long a single container that is stopped may take: a probe that failed may grant another grace than the pod.
fn kill_grace(pod: &Pod, name: &str, reason: KillReason) -> i64 {
    let own = match reason {
        KillReason::ProbeFailed { kind, .. } => probe_grace_seconds(pod, name, kind),
        KillReason::DefinitionChanged | KillReason::StateUnknown => None,
    };
    own.unwrap_or_else(|| pod.grace_seconds()).max(1)
}

/// Puts a hold on a container (or the sandbox).
pub(crate) async fn hold(
    shared: &Shared,
    uid: &PodUid,
    name: ContainerName,
    cause: HoldCause,
    wait: SignedDuration,
) {
    let since = Timestamp::now();
    let until = since.checked_add(wait).unwrap_or(since);
    shared.report(uid, Fact::Held { name, hold: Hold { since, until, cause } }).await;
}

/// The sandbox's ID as text, for log fields.
pub(crate) fn short(id: &SandboxId) -> &str {
    id.as_str().get(..13).unwrap_or(id.as_str())
}
