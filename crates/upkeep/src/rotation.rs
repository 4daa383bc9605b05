//! Rotation of container logs.

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use mainstay_logs::{RotationPolicy, needs_rotation, rotate};
use mainstay_task::Lane;
use mainstay_types::{ContainerId, ContainerPhase};
use tracing::{debug, warn};

use crate::{Snapshots, UpkeepConfig};

/// A disk that hangs holds this thread, and no other.
static LOOKS: Lane = Lane::new(1);
const PATIENCE: Duration = Duration::from_secs(10);

/// Looks at the logs of all running containers, again and again.
pub(crate) async fn rotate_logs(config: Arc<UpkeepConfig>, snapshots: Snapshots) {
    if config.log_max_bytes == 0 {
        std::future::pending::<()>().await;
    }
    loop {
        tokio::time::sleep(config.log_period).await;
        let running: Vec<(ContainerId, PathBuf)> = match &*snapshots.borrow() {
            Some(snapshot) => snapshot
                .pods
                .iter()
                .filter_map(|view| view.observed.as_ref())
                .flat_map(|pod| &pod.containers)
                .filter(|container| {
                    container.phase == ContainerPhase::Running && !container.log_path.is_empty()
                })
                .map(|container| (container.id.clone(), PathBuf::from(&*container.log_path)))
                .collect(),
            None => continue,
        };
        stream::iter(running)
            .for_each_concurrent(config.log_workers.max(1), |(id, path)| {
                let config = Arc::clone(&config);
                async move { look(&config, &id, path).await }
            })
            .await;
    }
}

async fn look(config: &UpkeepConfig, id: &ContainerId, path: PathBuf) {
    let file = path.clone();
    let size = match LOOKS.run(PATIENCE, move || std::fs::metadata(file)).await {
        Err(hung) => {
            debug!(%hung, log = %path.display(), "cannot look at a log");
            return;
        }
        Ok(Ok(metadata)) => metadata.len(),
        Ok(Err(_)) => {
            // A running container without a log file: a rotation was interrupted, or somebody removed it.
            if let Err(error) = config.cri.reopen_container_log(id.as_str()).await {
                debug!(%error, log = %path.display(), "cannot have a missing log made again");
            }
            return;
        }
    };
    if !needs_rotation(size, config.log_max_bytes) {
        return;
    }
    let policy = RotationPolicy { max_files: config.log_max_files };
    let reopen = || config.cri.reopen_container_log(id.as_str());
    match rotate(&path, policy, Timestamp::now(), reopen).await {
        Ok(()) => debug!(log = %path.display(), size, "rotated a container log"),
        Err(error) => warn!(%error, "cannot rotate a container log; the next look tries again"),
    }
}
