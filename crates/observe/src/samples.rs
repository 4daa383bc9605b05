//! What pods and the node use, read from their cgroups: every cgroup once a period, for everybody who wants to know.
//!
//! One task, `samples`, owned by the task group given to [`start`]. In: what the runtime shows, which says whose cgroup is
//! whose; nothing is searched for. Out: a `watch` of readings. It decides nothing, and nobody waits for it.
//!
//! A container that has just come is read within a second rather than with the next round, so that it is soon seen.

mod reader;

use std::{collections::HashSet, sync::Arc, time::Duration};

use mainstay_cgroup::{CgroupNames, CgroupPath, Cgroups};
use mainstay_cri::Cri;
use mainstay_task::TaskGroup;
use mainstay_types::{ObservedState, Samples, SliceRole};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tracing::error;

use reader::{Reader, Wanted};

/// A pod that has come is given this long to start its containers before it is read.
const SOON: Duration = Duration::from_secs(1);
/// Longest that the runtime may take to tell of a sandbox, and how often it is asked before it is left in peace.
const IMAGE_DEADLINE: Duration = Duration::from_secs(2);
const IMAGE_ATTEMPTS: u32 = 5;

/// What to read, and how often.
#[derive(Clone, Debug)]
pub struct SamplesConfig {
    /// What the pods' cgroups are called.
    pub names: CgroupNames,
    /// Where they are.
    pub hierarchy: Cgroups,
    /// Cgroups beside those of pods: mainstay's own, and configured ones.
    pub slices: Vec<(SliceRole, CgroupPath)>,
    /// Below which every cgroup is measured, too; it is looked through at each reading.
    pub services: Option<CgroupPath>,
    /// The runtime, which knows of what sandboxes are made.
    pub cri: Cri,
    /// Between two readings.
    pub period: Duration,
}

/// Starts reading; readings go to `sender`.
pub fn start(
    config: SamplesConfig,
    observed: watch::Receiver<Arc<ObservedState>>,
    sender: watch::Sender<Arc<Samples>>,
    tasks: &TaskGroup,
) {
    let reader = Reader::new(config.names, config.hierarchy, config.slices, config.services);
    let shutdown = tasks.shutdown();
    tasks.spawn_critical("samples", async move {
        shutdown.run_until_signalled(run(reader, (config.cri, config.period), observed, sender)).await;
    });
}

async fn run(
    mut reader: Reader,
    (cri, period): (Cri, Duration),
    mut observed: watch::Receiver<Arc<ObservedState>>,
    sender: watch::Sender<Arc<Samples>>,
) {
    let mut tick = interval(period);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known: HashSet<String> = HashSet::new();
    let mut soon: Option<Instant> = None;
    let (mut image, mut attempts) = (String::new(), 0);
    loop {
        // Each is cancel safe: an interval, a sleep until a fixed moment, a watch.
        let all = tokio::select! {
            _ = tick.tick() => true,
            () = sleep_until(soon.unwrap_or_else(Instant::now)), if soon.is_some() => false,
            changed = observed.changed() => {
                if changed.is_err() {
                    return;
                }
                let state = observed.borrow_and_update().clone();
                let news = || state.pods.values().flat_map(|pod| Wanted::ids(pod)).any(|id| !known.contains(id));
                if soon.is_none() && news() {
                    soon = Some(Instant::now() + SOON);
                }
                continue;
            }
        };
        soon = None;
        let state = observed.borrow().clone();
        let wanted: Vec<Wanted> = state.pods.values().filter_map(|pod| Wanted::of(pod)).collect();
        known = wanted.iter().flat_map(Wanted::all_ids).cloned().collect();
        let sandbox = wanted.iter().find_map(Wanted::sandbox_id).map(str::to_owned);
        if image.is_empty()
            && attempts < IMAGE_ATTEMPTS
            && let Some(sandbox) = sandbox
        {
            // All sandboxes of a runtime are made of the same image: one is asked, once.
            attempts += 1;
            image = sandbox_image(&cri, &sandbox).await.unwrap_or_default();
        }
        let name = image.as_str().into();
        let before = sender.borrow().clone();
        let reading = tokio::task::spawn_blocking(move || {
            let samples = Samples { sandbox_image: name, ..reader.read(&wanted, all, &before) };
            (reader, samples)
        });
        match reading.await {
            Ok((back, samples)) => {
                reader = back;
                sender.send_replace(Arc::new(samples));
            }
            Err(error) => {
                // Only a panic or the end of the process brings this.
                error!(%error, "reading the cgroups failed; there will be no more statistics until mainstay is restarted");
                return;
            }
        }
    }
}

/// The image of a sandbox. Only containerd tells, and only those who ask for everything.
async fn sandbox_image(cri: &Cri, sandbox: &str) -> Option<String> {
    let asked = cri.sandbox_info(sandbox);
    let info = tokio::time::timeout(IMAGE_DEADLINE, asked).await.ok()?.ok()?;
    let info: serde_json::Value = serde_json::from_str(info.get("info")?).ok()?;
    info.get("image")?.as_str().map(str::to_owned)
}
