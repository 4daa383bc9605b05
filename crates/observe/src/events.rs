//! Container events of the runtime: hints where to look.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mainstay_cri::Cri;
use mainstay_task::{Backoff, TaskGroup};
use mainstay_types::{NodeCounters, PodUid, labels};
use tokio::sync::mpsc;
use tracing::{debug, info};

/// How many hints may wait. When it is full the stream waits, and the runtime's own buffer takes over.
const BOUND: usize = 256;

/// The pods that events were about.
pub(crate) struct EventUids {
    receiver: mpsc::Receiver<PodUid>,
    connected: Arc<AtomicBool>,
}

impl EventUids {
    pub(crate) async fn next(&mut self) -> Option<PodUid> {
        self.receiver.recv().await
    }

    /// The stream stands right now.
    pub(crate) fn connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }
}

/// Subscribes, again and again. A runtime without events (containerd 1.6) is asked once per connection only.
pub(crate) fn start(cri: Cri, counters: Arc<NodeCounters>, tasks: &TaskGroup) -> EventUids {
    let (sender, receiver) = mpsc::channel(BOUND);
    let connected = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&connected);
    let shutdown = tasks.shutdown();
    tasks.spawn_critical("runtime events", async move {
        shutdown.run_until_signalled(follow((cri, counters), sender, flag)).await;
    });
    EventUids { receiver, connected }
}

/// How old an event is that was made then, in nanoseconds since 1970; nothing where the clock was set back.
fn age(created_at: i64) -> Duration {
    let now = jiff::Timestamp::now().as_nanosecond();
    let nanos = now.saturating_sub(i128::from(created_at));
    u64::try_from(nanos).map(Duration::from_nanos).unwrap_or_default()
}

async fn follow(
    (cri, counters): (Cri, Arc<NodeCounters>),
    sender: mpsc::Sender<PodUid>,
    connected: Arc<AtomicBool>,
) {
    let mut attempts = Backoff::doubling(Duration::from_millis(200), Duration::from_secs(30)).attempts();
    let mut told = false;
    loop {
        match cri.container_events().await {
            Ok(mut stream) => {
                connected.store(true, Ordering::Relaxed);
                counters.event_streams.add();
                debug!("following the runtime's container events");
                loop {
                    match stream.message().await {
                        Ok(Some(event)) => {
                            attempts.succeeded();
                            counters.event_ages.observe(age(event.created_at));
                            let labels =
                                event.pod_sandbox_status.map(|status| status.labels).unwrap_or_default();
                            if let Some(uid) = labels::owner(&labels)
                                && sender.send(uid).await.is_err()
                            {
                                return;
                            }
                        }
                        Ok(None) => break,
                        Err(status) => {
                            counters.event_stream_errors.add();
                            if status.code() == tonic::Code::Unimplemented && !told {
                                told = true;
                                info!(
                                    "the runtime sends no container events; relisting every second instead"
                                );
                            }
                            break;
                        }
                    }
                }
                connected.store(false, Ordering::Relaxed);
            }
            Err(error) if error.is_unimplemented() => {
                counters.event_stream_errors.add();
                if !told {
                    told = true;
                    info!("the runtime sends no container events; relisting every second instead");
                }
            }
            Err(error) => {
                counters.event_stream_errors.add();
                debug!(%error, "cannot follow the runtime's container events");
            }
        }
        tokio::time::sleep(attempts.failed()).await;
    }
}
