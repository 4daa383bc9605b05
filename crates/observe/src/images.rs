//! Which images the runtime has, for the Node object.
//!
//! One task, `images`, owned by the task group given to [`start`]: it asks once a period, and publishes what changed.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ContainerImage;
use mainstay_cri::Cri;
use mainstay_task::TaskGroup;
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

/// As many names of one image as upstream shows.
const MAX_NAMES: usize = 5;

/// Starts asking. `most` images are shown, the largest first (`nodeStatusMaxImages`); `None` for all.
pub fn start(
    cri: Cri,
    period: Duration,
    most: Option<usize>,
    tasks: &TaskGroup,
) -> watch::Receiver<Arc<[ContainerImage]>> {
    let (sender, receiver) = watch::channel(Arc::from([]));
    let shutdown = tasks.shutdown();
    let asking = async move {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match cri.list_images().await {
                Ok(images) => {
                    let shown = shown(images, most);
                    sender.send_if_modified(|known| {
                        let changed = **known != *shown;
                        if changed {
                            *known = shown.into();
                        }
                        changed
                    });
                }
                // What was known stays; that the runtime is away is told elsewhere.
                Err(error) => tracing::debug!(%error, "cannot list images"),
            }
        }
    };
    tasks.spawn("images", async move {
        shutdown.run_until_signalled(asking).await;
    });
    receiver
}

/// Upstream: `nodestatus.Images` in `pkg/kubelet/nodestatus/setters.go`.
fn shown(images: Vec<k8s_cri::v1::Image>, most: Option<usize>) -> Vec<ContainerImage> {
    let mut shown: Vec<ContainerImage> = images
        .into_iter()
        .map(|image| {
            let names = image.repo_digests.into_iter().chain(image.repo_tags).take(MAX_NAMES).collect();
            ContainerImage { names: Some(names), size_bytes: i64::try_from(image.size).ok() }
        })
        .collect();
    shown.sort_by(|a, b| (b.size_bytes, &a.names).cmp(&(a.size_bytes, &b.names)));
    shown.truncate(most.unwrap_or(usize::MAX));
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_come_first() {
        let image = |name: &str, size| k8s_cri::v1::Image {
            repo_tags: vec![name.into()],
            repo_digests: (0..6).map(|i| format!("{name}@{i}")).collect(),
            size,
            ..Default::default()
        };
        let images = vec![image("a", 1), image("c", 9), image("b", 9)];
        let names = |most| -> Vec<String> {
            shown(images.clone(), most).into_iter().map(|it| it.names.unwrap()[0].clone()).collect()
        };
        assert_eq!(names(None), ["b@0", "c@0", "a@0"]);
        assert_eq!(names(Some(1)), ["b@0"]);
        assert_eq!(shown(images, None)[0].names.as_ref().unwrap().len(), 5);
    }
}
