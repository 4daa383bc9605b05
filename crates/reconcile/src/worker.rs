//! The worker: takes the steps for one pod, one after the other, and reports what it finds.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use jiff::{SignedDuration, Timestamp};
use mainstay_lifecycle::{Hold, HoldCause, SANDBOX_HOLD, Step};
use mainstay_task::Shutdown;
use mainstay_types::{
    ContainerId, ContainerKind, ContainerName, ContainerReason, DesiredPod, Event, EventKind, EventTarget,
    MadeObjects, Objects, ObservedPod, PodExt, PodFailure, PodUid, ReadWish, RuntimeHealth, SandboxId,
};
use tokio::sync::{mpsc, watch};
use tracing::{Instrument, debug, info_span, warn};

use crate::{
    ReconcileConfig, actor::Report, cleanup, containers, images::Puller, kill, pod::PodState,
    record::PodRecord, record::Records, sandbox,
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
    /// An image was pulled, or found.
    Pulled { image: String },
    /// A container runs, its postStart hook too.
    Hooking { id: ContainerId },
    /// A container is up.
    Started { name: ContainerName, id: ContainerId },
    /// A sandbox is up.
    SandboxMade,
    /// All containers are being restarted; no longer once one of them is started, or cannot be.
    RestartingAll,
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Job {
    Sync(Vec<Step>),
    Stop { grace_seconds: i64 },
    Settle,
    Remove,
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
}

/// One order to a worker.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) desired: Arc<DesiredPod>,
    pub(crate) observed: Option<Arc<ObservedPod>>,
    pub(crate) objects: Arc<Objects>,
    pub(crate) runtime: Arc<RuntimeHealth>,
    /// To be on disk before anything is made.
    pub(crate) record: Option<PodRecord>,
    /// Some image could not be pulled before.
    pub(crate) had_pull_trouble: bool,
    pub(crate) job: Job,
    pub(crate) cancel: Cancel,
    pub(crate) log: MadeLog,
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
}

impl Cancel {
    pub(crate) fn new(shutdown: Shutdown) -> Self {
        Self { sender: watch::channel(false).0, shutdown }
    }

    pub(crate) fn cancel(&self) {
        self.sender.send_replace(true);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        *self.sender.borrow() || self.shutdown.is_signalled()
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
        Self { config, records, puller, reports }
    }

    pub(crate) async fn report(&self, uid: &PodUid, fact: Fact) {
        // The actor ends only when the agent does.
        self.reports.send(Report::Fact(uid.clone(), fact)).await.ok();
    }

    /// Wishes for a fresh reading, so that clients see what was done before the whole job is.
    pub(crate) fn look(&self, order: &Order) {
        let (uid, full_name) = (order.desired.uid.clone(), order.desired.full_name.clone());
        // With the channel full a reading is on its way anyway.
        self.config.refresh.try_send(ReadWish { uid, full_name, made: order.log.read() }).ok();
    }

    pub(crate) fn event(
        &self,
        desired: &DesiredPod,
        container: Option<(ContainerKind, &str)>,
        kind: EventKind,
        reason: &'static str,
        message: String,
    ) {
        let target = EventTarget::Pod {
            uid: desired.uid.clone(),
            full_name: desired.full_name.clone(),
            field_path: container.map(|(kind, name)| kind.field_path(name)),
        };
        self.config.events.send(Event { target, kind, reason, message, time: Timestamp::now() });
    }

    pub(crate) fn tell_pod_failed(&self, desired: &DesiredPod, failure: &PodFailure) {
        if failure.reason == "DeadlineExceeded" {
            self.event(desired, None, EventKind::Normal, "DeadlineExceeded", failure.message.clone());
        }
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
    let end = Box::pin(carry_out(&shared, &mut order)).instrument(span).await;
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
        Job::Stop { grace_seconds } => match kill::stop_pod(shared, order, grace_seconds).await {
            Ok(()) => JobEnd::Stopped,
            Err(error) => {
                warn!(%error, "cannot stop the pod; trying again");
                let text = format!("error killing pod: {error}");
                shared.event(&order.desired, None, EventKind::Warning, "FailedKillPod", text);
                JobEnd::Failed
            }
        },
        Job::Settle => match cleanup::settle(shared, order).await {
            Ok(()) => JobEnd::AtRest,
            Err(error) => {
                debug!(%error, "cannot clean up after the pod; trying again");
                JobEnd::Failed
            }
        },
        Job::Remove => match cleanup::remove(shared, order).await {
            Ok(()) => JobEnd::AtRest,
            Err(error) => {
                warn!(%error, "cannot remove the pod's remains; trying again");
                JobEnd::Failed
            }
        },
    }
}

/// Takes the steps of a plan. A step that fails puts a hold on what it was for; the others go on where they can.
async fn sync(shared: &Shared, order: &mut Order, steps: Vec<Step>) {
    let uid = order.desired.uid.clone();
    if let Some(record) = order.record.take()
        && let Err(error) = shared.records.keep_now(record).await
    {
        let reason = ContainerReason { reason: "CreatePodSandboxError".into(), message: error.to_string() };
        warn!(%error, "cannot write the pod's record, so nothing of it is started");
        shared.event(&order.desired, None, EventKind::Warning, "FailedSync", error.to_string());
        // Whatever the steps were for is not tried again before its time.
        let mut names: Vec<ContainerName> = vec![SANDBOX_HOLD.into()];
        names.extend(steps.into_iter().filter_map(|step| match step {
            Step::Start { name, .. } | Step::Kill { name, .. } | Step::RestartAll { trigger: name } => {
                Some(name)
            }
            _ => None,
        }));
        for name in names {
            hold(shared, &uid, name, HoldCause::Failed(reason.clone()), RETRY_AFTER).await;
        }
        return;
    }
    let mut made: Option<sandbox::Made> = None;
    for step in steps {
        if order.cancel.is_cancelled() {
            return;
        }
        match step {
            Step::StopPod => {
                if let Err(error) =
                    kill::stop_pod(shared, order, order.desired.pod.grace_seconds().max(1)).await
                {
                    warn!(%error, "cannot stop what is left of the pod's old sandbox");
                    let reason =
                        ContainerReason { reason: "KillPodSandboxError".into(), message: error.to_string() };
                    hold(shared, &uid, SANDBOX_HOLD.into(), HoldCause::Failed(reason), RETRY_AFTER).await;
                    return;
                }
            }
            Step::Kill { id, name, reason } => {
                let text = reason.message(name.as_str());
                let grace = order.desired.pod.grace_seconds().max(1);
                if let Err(error) = kill::stop_container(shared, order, &id, name.as_str(), grace, text).await
                {
                    warn!(container = %name, %error, "cannot stop the container");
                    let reason =
                        ContainerReason { reason: "KillContainerError".into(), message: error.to_string() };
                    hold(shared, &uid, name, HoldCause::Failed(reason), RETRY_AFTER).await;
                    return;
                }
            }
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
            Step::Remove(id) => {
                if let Err(error) = shared.config.cri.remove_container(id.as_str()).await {
                    debug!(container.id = %id, %error, "cannot remove a dead container");
                }
                // What was removed must be seen to be gone, not remembered.
                order.log.uncertain();
            }
            Step::CreateSandbox { attempt, changed } => {
                match sandbox::create(shared, order, attempt, changed).await {
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
                    Some(id) => sandbox::Made::existing(id, order),
                    None => match &made {
                        Some(made) => made.clone(),
                        None => return,
                    },
                };
                if let Some((key, ended)) = after_crash {
                    shared.report(&uid, Fact::Crashed { key, ended }).await;
                }
                let started = containers::start(shared, order, &target, name.clone(), kind).await;
                // A plain init container that cannot be started stops the rest; a sidecar or another one does not.
                if !started && kind == ContainerKind::Init {
                    return;
                }
            }
        }
    }
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
