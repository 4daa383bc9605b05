use k8s_openapi::api::core::v1::Pod;
use mainstay_cri::Cri;
use mainstay_types::{DesiredPod, FullName, ObservedState, PodSource, PodUid};
use mainstay_volume::Jobs;
use rustix::mount::{MountFlags, mount};

use super::*;
use crate::garbage::Keep;

const PATIENCE: Duration = Duration::from_secs(60);

/// A root directory, and what is known of its pods: nothing.
struct Node {
    dir: tempfile::TempDir,
    config: Arc<UpkeepConfig>,
    desired: watch::Sender<Arc<DesiredState>>,
    snapshots: Snapshots,
    _sender: watch::Sender<Option<Arc<NodeSnapshot>>>,
}

impl Node {
    fn new() -> Self {
        Self::that(true)
    }

    fn that(remove_unknown: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let (desired, desired_reader) =
            watch::channel(Arc::new(DesiredState { synced: true, ..DesiredState::default() }));
        let config = Arc::new(UpkeepConfig {
            cri: Cri::new("unix:///run/nobody.sock", None, Duration::from_secs(1)).unwrap(),
            root_dir: root.clone(),
            pod_logs_dir: root.join("logs"),
            container_log_links: root.join("links"),
            remove_unknown,
            desired: desired_reader,
            counters: Arc::default(),
            volume_jobs: Jobs::default(),
            events: mainstay_types::EventSink::bounded(1).0,
            keep: Keep { per_container: 1, in_all: -1, min_age: Duration::ZERO },
            period: Duration::from_secs(60),
            log_max_bytes: 0,
            log_max_files: 5,
            log_workers: 1,
            log_period: Duration::from_secs(10),
        });
        let snapshot = NodeSnapshot::new(
            1,
            "node".into(),
            Vec::new(),
            Arc::new(DesiredState { synced: true, ..DesiredState::default() }),
            Arc::new(ObservedState::unread()),
        );
        let (sender, snapshots) = watch::channel(Some(Arc::new(snapshot)));
        Self { dir, config, desired, snapshots, _sender: sender }
    }

    /// Makes the directory of a pod that is gone, with a volume in it.
    fn leftover(&self, uid: &str) -> PathBuf {
        let path = self.dir.path().join("pods").join(uid);
        fs::create_dir_all(path.join("volumes/kubernetes.io~secret/s")).unwrap();
        let time = SystemTime::now() - 2 * MIN_AGE;
        fs::File::open(&path).unwrap().set_modified(time).unwrap();
        path
    }

    fn want(&self, uid: &str) {
        let pod = DesiredPod {
            uid: uid.into(),
            full_name: FullName::new("default", uid),
            pod: Arc::new(Pod::default()),
            source: PodSource::File,
            origin: "".into(),
            terminate: None,
            remote: None,
        };
        let pods = Arc::new([(PodUid::from(uid), Arc::new(pod))].into());
        self.desired.send_replace(Arc::new(DesiredState { synced: true, pods, ..DesiredState::default() }));
    }
}

#[tokio::test]
async fn volumes_of_pods_that_nobody_knows_are_unmounted_and_removed() {
    let node = Node::new();
    let gone = node.leftover("gone");
    let young = node.dir.path().join("pods/young");
    fs::create_dir_all(&young).unwrap();
    let volume = gone.join("volumes/kubernetes.io~secret/s");
    mount("tmpfs", &volume, "tmpfs", MountFlags::empty(), None).unwrap();
    fs::write(volume.join("key"), "secret").unwrap();
    sweep(&node.config, &node.snapshots).await;
    assert!(!gone.exists());
    assert!(young.exists(), "somebody may be making it");
    let mounts = mainstay_host::Host::default().mounts().unwrap();
    assert_eq!(mounts.at_or_below(node.dir.path()).count(), 0);
}

#[tokio::test]
async fn beside_another_kubelet_only_what_is_marked_goes() {
    let node = Node::that(false);
    let (own, others) = (node.leftover("own"), node.leftover("others"));
    let time = fs::metadata(&own).unwrap().modified().unwrap();
    mainstay_volume::make_pod_dir(&own, node.dir.path()).unwrap();
    assert_eq!(fs::metadata(&own).unwrap().modified().unwrap(), time, "no younger by the mark");
    let log = node.dir.path().join("logs/default_pod_own");
    fs::create_dir_all(&log).unwrap();
    fs::File::open(&log).unwrap().set_modified(time).unwrap();
    mount("tmpfs", own.join("volumes/kubernetes.io~secret/s"), "tmpfs", MountFlags::empty(), None).unwrap();
    sweep(&node.config, &node.snapshots).await;
    assert_eq!((own.exists(), others.exists(), log.exists()), (false, true, true));
    let mounts = mainstay_host::Host::default().mounts().unwrap();
    assert_eq!(mounts.at_or_below(node.dir.path()).count(), 0);
}

#[tokio::test]
async fn a_pod_that_comes_back_while_its_volumes_are_set_up_keeps_them() {
    let node = Node::new();
    let (back, other) = (node.leftover("back"), node.leftover("other"));
    // Reconcile is at work on it, and no snapshot shows the pod yet.
    let (release, set_up) = std::sync::mpsc::channel::<()>();
    let reconcile = node.config.volume_jobs.run("back", PATIENCE, move |_| set_up.recv().ok());
    let come_back = async {
        // The other one is not held up.
        while other.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(back.exists());
        node.want("back");
        release.send(()).unwrap();
    };
    let all = async { tokio::join!(reconcile, sweep(&node.config, &node.snapshots), come_back) };
    tokio::time::timeout(PATIENCE, all).await.unwrap().0.unwrap();
    assert!(back.join("volumes/kubernetes.io~secret/s").exists());
}
