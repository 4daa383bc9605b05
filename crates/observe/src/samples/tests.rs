use std::{
    fs,
    sync::atomic::{AtomicU32, Ordering},
};

use mainstay_cgroup::Driver;
use mainstay_types::{ContainerPhase, FullName, ObservedContainer, ObservedPod, ObservedSandbox, PodUid};

use super::{
    reader::tests::{blocks, panics},
    *,
};

fn cgroup(dir: &std::path::Path, usec: u64) {
    fs::create_dir_all(dir).unwrap();
    fs::write(dir.join("cpu.stat"), format!("usage_usec {usec}\n")).unwrap();
    fs::write(dir.join("cgroup.procs"), "").unwrap();
}

#[tokio::test]
async fn a_round_that_panics_ends_nothing_but_itself() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in
        [("cgroup.controllers", "cpu\n"), ("cgroup.procs", ""), ("cpu.stat", "usage_usec 7\n")]
    {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let hierarchy = Cgroups::open(dir.path()).unwrap();
    let made = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&made);
    let make = move || {
        let names = CgroupNames::new(Driver::Cgroupfs, "/").unwrap();
        let reader = Reader::new(names, hierarchy.clone(), Vec::new(), None, Budget::new(10));
        if count.fetch_add(1, Ordering::Relaxed) < 2 { reader.in_other_ways(panics()) } else { reader }
    };
    let cri = Cri::new("unix:///run/nobody.sock", None, SOON).unwrap();
    let (_observed, observed) = watch::channel(Arc::new(ObservedState::unread()));
    let (sender, mut samples) = watch::channel(Arc::<Samples>::default());
    let tasks = TaskGroup::new();
    tasks.spawn_critical("samples", run(make, (cri, Duration::from_millis(10)), observed, sender));
    let read = samples.wait_for(|samples| samples.generation > 3);
    let read = tokio::time::timeout(Duration::from_secs(60), read).await.unwrap().unwrap();
    assert_eq!(read.root.as_ref().unwrap().cpu.usage_ns, 7000);
    assert_eq!(made.load(Ordering::Relaxed), 3, "two that panicked, and one");
    assert_eq!(tasks.running_names(), ["samples"]);
}

#[tokio::test]
async fn what_a_round_hangs_at_is_left_out_and_the_rest_is_read() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("cgroup.controllers"), "cpu\n").unwrap();
    cgroup(dir.path(), 100);
    cgroup(&dir.path().join("hung"), blocks::USAGE);
    cgroup(&dir.path().join("well"), 5);
    let hierarchy = Cgroups::open(dir.path()).unwrap();
    let make = move || {
        let names = CgroupNames::new(Driver::Cgroupfs, "/").unwrap();
        let slices = ["/hung", "/well"].map(|path| (SliceRole::Misc, CgroupPath::parse(path).unwrap()));
        Reader::new(names, hierarchy.clone(), slices.into(), None, Budget::new(10))
            .in_other_ways(blocks::ways())
    };
    let cri = Cri::new("unix:///run/nobody.sock", None, SOON).unwrap();
    let (_observed, observed) = watch::channel(Arc::new(ObservedState::unread()));
    let (sender, mut samples) = watch::channel(Arc::<Samples>::default());
    let tasks = TaskGroup::new();
    tasks.spawn_critical("samples", run(make, (cri, Duration::from_millis(10)), observed, sender));
    let there = |samples: &Samples| {
        let names: Vec<String> = samples.slices.iter().map(|slice| slice.cgroup.to_string()).collect();
        (names, samples.cost.hanging)
    };
    let mut wait = async |names: &[&str], hanging: u32| {
        let is_so = |samples: &Arc<Samples>| {
            there(samples) == (names.iter().map(|&name| name.to_owned()).collect(), hanging)
        };
        let found = samples.wait_for(is_so);
        tokio::time::timeout(Duration::from_secs(60), found).await.expect("in time").unwrap().generation
    };
    let first = wait(&["/hung", "/well"], 0).await;
    blocks::block(true);
    let second = wait(&["/well"], 1).await;
    cgroup(&dir.path().join("well"), 6);
    let third = wait(&["/well"], 1).await;
    assert!(first < second && second <= third);
    blocks::block(false);
    wait(&["/hung", "/well"], 0).await;
    assert_eq!(tasks.running_names(), ["samples"]);
}

fn container(id: &str, phase: ContainerPhase) -> ObservedContainer {
    ObservedContainer {
        id: id.into(),
        sandbox: "s1".into(),
        name: id.into(),
        restart_count: 0,
        hash: 0,
        phase,
        created_at: jiff::Timestamp::UNIX_EPOCH,
        started_at: None,
        finished_at: None,
        exit_code: 0,
        reason: "".into(),
        message: "".into(),
        oom_killed: false,
        stop_signal: None,
        image: "".into(),
        image_ref: "".into(),
        log_path: "".into(),
        user: None,
        termination_grace_seconds: None,
        pre_stop: None,
    }
}

fn state(ready: bool, containers: &[(&str, ContainerPhase)]) -> Arc<ObservedState> {
    let uid = PodUid::from("u1");
    let name = FullName::new("default", "p");
    let mut pod = ObservedPod::nothing(uid.clone(), Some(name), std::time::Instant::now());
    pod.sandboxes = vec![ObservedSandbox {
        id: "s1".into(),
        attempt: 0,
        ready,
        created_at: jiff::Timestamp::UNIX_EPOCH,
        ips: Vec::new(),
        host_network: false,
        source: None,
    }];
    pod.containers = containers.iter().map(|(id, phase)| container(id, *phase)).collect();
    let mut state = ObservedState::unread();
    state.pods.insert(uid, Arc::new(pod));
    Arc::new(state)
}

#[tokio::test]
async fn what_has_ended_is_left_out_before_anything_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("cgroup.controllers"), "cpu\n").unwrap();
    let pod = dir.path().join("kubepods/burstable/podu1");
    for place in [dir.path().to_owned(), pod.clone(), pod.join("s1"), pod.join("a"), pod.join("b")] {
        cgroup(&place, 100);
    }
    let hierarchy = Cgroups::open(dir.path()).unwrap();
    let make = move || {
        let names = CgroupNames::new(Driver::Cgroupfs, "/").unwrap();
        Reader::new(names, hierarchy.clone(), Vec::new(), None, Budget::new(10))
    };
    let cri = Cri::new("unix:///run/nobody.sock", None, SOON).unwrap();
    let (runs, ended) = (ContainerPhase::Running, ContainerPhase::Exited);
    let (source, observed) = watch::channel(state(true, &[("a", runs), ("b", runs)]));
    let (sender, mut samples) = watch::channel(Arc::<Samples>::default());
    let tasks = TaskGroup::new();
    let never = Duration::from_secs(1_000_000);
    tasks.spawn_critical("samples", run(make, (cri, never), observed, sender));
    let mut wait = async |expected: Option<(bool, &[&str])>| {
        let is_so = |samples: &Arc<Samples>| {
            let pod = samples.pods.get(&PodUid::from("u1"));
            let pod = pod.map(|pod| {
                let ids: Vec<&str> = pod.containers.iter().map(|it| it.id.as_str()).collect();
                (pod.sandbox.is_some(), ids)
            });
            samples.generation > 0 && pod == expected.map(|(sandbox, ids)| (sandbox, ids.to_vec()))
        };
        let found = samples.wait_for(is_so);
        let found = tokio::time::timeout(Duration::from_secs(60), found).await.expect("in time").unwrap();
        (found.generation, found.root.as_ref().map(|root| root.at))
    };
    let first = wait(Some((true, &["a", "b"]))).await;
    source.send_replace(state(true, &[("a", ended), ("b", runs)]));
    let second = wait(Some((true, &["b"]))).await;
    assert!(second.0 > first.0 && second.1 == first.1, "it is another reading, and nothing was read");
    source.send_replace(state(false, &[("a", ended), ("b", runs)]));
    wait(Some((false, &["b"]))).await;
    source.send_replace(state(false, &[("a", ended), ("b", ended)]));
    wait(None).await;
    // One that comes after it is read soon.
    cgroup(&pod.join("c"), 100);
    source.send_replace(state(true, &[("b", ended), ("c", runs)]));
    wait(Some((true, &["c"]))).await;
}

#[tokio::test(start_paused = true)]
async fn the_image_of_sandboxes_is_asked_for_until_it_is_known_and_nobody_waits() {
    let mut image = SandboxImage::default();
    let asked = Arc::new(AtomicU32::new(0));
    let answers = |image: &mut SandboxImage, answer: Option<&'static str>| {
        let asked = Arc::clone(&asked);
        image.ask(|| {
            asked.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move { answer.map(str::to_owned) })
        });
    };
    // The loop takes other branches meanwhile; a question that takes long is one and the same.
    image.ask(|| {
        Box::pin(async {
            tokio::time::sleep(IMAGE_AGAIN).await;
            None
        })
    });
    for _ in 0..10 {
        tokio::time::timeout(SOON, image.answered()).await.unwrap_err();
        answers(&mut image, Some("other"));
    }
    tokio::time::timeout(IMAGE_AGAIN, image.answered()).await.unwrap_err();
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    for _ in 0..20 {
        tokio::time::advance(IMAGE_AGAIN).await;
        answers(&mut image, None);
        tokio::time::timeout(SOON, image.answered()).await.unwrap_err();
        answers(&mut image, None);
    }
    assert_eq!(asked.load(Ordering::Relaxed), 20, "again and again, but not at every reading");
    tokio::time::advance(IMAGE_AGAIN).await;
    answers(&mut image, Some("pause"));
    image.answered().await;
    assert_eq!(&*image.name, "pause");
    answers(&mut image, Some("other"));
    assert!(image.asking.is_none());
}
