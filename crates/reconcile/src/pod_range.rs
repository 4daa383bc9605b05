//! `podCIDRs` of the Node object, told to the runtime: some make pods' networks from it.

use std::{sync::Arc, time::Duration};

use mainstay_task::{Backoff, TaskGroup};
use mainstay_types::DesiredState;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::worker::Shared;

/// A runtime that does not take it is told again.
const AGAIN: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(60)).with_jitter(0.3);

/// Starts telling whenever it is another (upstream: `updatePodCIDR`).
pub(crate) fn start(shared: Arc<Shared>, desired: watch::Receiver<Arc<DesiredState>>, tasks: &TaskGroup) {
    let shutdown = tasks.shutdown();
    tasks.spawn("pod range", async move {
        shutdown.run_until_signalled(Box::pin(run(&shared, desired))).await;
    });
}

async fn run(shared: &Shared, mut desired: watch::Receiver<Arc<DesiredState>>) {
    let mut told = String::new();
    let mut attempts = AGAIN.attempts();
    loop {
        let range = of(&desired.borrow_and_update());
        if range.is_empty() || range == told {
            if desired.changed().await.is_err() {
                return;
            }
            continue;
        }
        match shared.config.cri.update_runtime_config(&range).await {
            Ok(()) => {
                info!(range, "the runtime knows the addresses of this node's pods");
                attempts.succeeded();
                told = range;
            }
            Err(error) => {
                if attempts.failures() == 0 {
                    warn!(range, %error, "cannot tell the runtime the addresses of this node's pods; it is told again");
                }
                tokio::time::sleep(attempts.failed()).await;
            }
        }
    }
}

/// All of them, as the runtime wants them.
fn of(desired: &DesiredState) -> String {
    let spec = desired.node.as_ref().and_then(|node| node.spec.as_ref());
    spec.and_then(|spec| spec.pod_cidrs.as_ref()).map(|ranges| ranges.join(",")).unwrap_or_default()
}
