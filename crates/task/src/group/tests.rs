use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const SOON: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn drain_waits_for_tasks_that_end_on_the_signal() {
    let group = TaskGroup::new();
    let finished = Arc::new(AtomicUsize::new(0));
    for n in 0..3 {
        let (shutdown, finished) = (group.shutdown(), finished.clone());
        group.spawn_critical(format!("worker {n}"), async move {
            shutdown.signalled().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            finished.fetch_add(1, Ordering::SeqCst);
        });
    }
    assert_eq!(group.running_names(), ["worker 0", "worker 1", "worker 2"]);
    let drained = group.drain(SOON).await;
    assert_eq!((drained, finished.load(Ordering::SeqCst)), (Drained::default(), 3));
    assert!(group.running_names().is_empty());
}

#[tokio::test(start_paused = true)]
async fn drain_aborts_and_names_those_that_do_not_listen() {
    let group = TaskGroup::new();
    let dropped = Arc::new(AtomicUsize::new(0));
    struct CountsDrop(Arc<AtomicUsize>);
    impl Drop for CountsDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    for name in ["deaf", "also deaf"] {
        let guard = CountsDrop(dropped.clone());
        group.spawn(name, async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        });
    }
    let shutdown = group.shutdown();
    group.spawn("polite", async move { shutdown.signalled().await });
    let started = tokio::time::Instant::now();
    let drained = group.drain(SOON).await;
    assert_eq!(drained.aborted, ["also deaf", "deaf"]);
    assert_eq!((started.elapsed(), dropped.load(Ordering::SeqCst)), (SOON, 2));
}

#[tokio::test]
async fn a_drained_group_starts_nothing() {
    let group = TaskGroup::new();
    group.drain(SOON).await;
    let ran = Arc::new(AtomicUsize::new(0));
    let seen = ran.clone();
    let handle = group.spawn("late", async move {
        seen.fetch_add(1, Ordering::SeqCst);
    });
    handle.ended().await;
    assert!(handle.is_ended());
    assert_eq!(ran.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_critical_task_that_returns_early_fails_the_group() {
    let group = TaskGroup::new();
    group.spawn_critical("relist", async {});
    let failure = tokio::time::timeout(SOON, group.failed()).await.unwrap();
    assert_eq!(failure, TaskFailure { name: "relist".to_owned(), kind: FailureKind::Returned });
    assert_eq!(failure.to_string(), "task relist ended before shutdown");
}

#[tokio::test]
async fn a_critical_panic_fails_the_group_with_its_message() {
    let group = TaskGroup::new();
    let number = 7;
    group.spawn_critical("probe", async move {
        tokio::task::yield_now().await;
        panic!("no container {number}");
    });
    let failure = tokio::time::timeout(SOON, group.failed()).await.unwrap();
    assert_eq!(failure.to_string(), "task probe panicked: no container 7");
}

#[tokio::test]
async fn an_ordinary_end_panic_or_abort_does_not_fail_the_group() {
    let group = TaskGroup::new();
    let done = group.spawn("done", async {});
    let panics = group.spawn("panics", async { panic!("on purpose") });
    let aborted = group.spawn_critical("aborted", std::future::pending());
    aborted.abort();
    for handle in [&done, &panics, &aborted] {
        tokio::time::timeout(SOON, handle.ended()).await.unwrap();
        assert!(handle.is_ended());
    }
    assert!(tokio::time::timeout(Duration::from_millis(20), group.failed()).await.is_err());
    assert_eq!(group.drain(SOON).await, Drained::default());
}

#[tokio::test]
async fn work_stops_at_the_signal() {
    let group = TaskGroup::new();
    let shutdown = group.shutdown();
    assert_eq!(shutdown.run_until_signalled(async { 1 }).await, Some(1));
    assert!(!shutdown.is_signalled());
    group.signal_shutdown();
    assert!(shutdown.is_signalled());
    assert_eq!(shutdown.run_until_signalled(std::future::pending::<()>()).await, None);
    // A token outlives its group.
    drop(group);
    shutdown.signalled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_short_tasks_leave_nothing_behind() {
    let group = TaskGroup::new();
    let ran = Arc::new(AtomicUsize::new(0));
    for n in 0..1000 {
        let ran = ran.clone();
        group.spawn(format!("short {n}"), async move {
            ran.fetch_add(1, Ordering::SeqCst);
        });
    }
    assert_eq!(group.drain(SOON).await, Drained::default());
    assert_eq!(ran.load(Ordering::SeqCst), 1000);
}
