use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

#[derive(Debug, thiserror::Error)]
#[error("the runtime is away")]
struct Away;

fn at(text: &str) -> jiff::Timestamp {
    text.parse().unwrap()
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// A runtime that makes a new file at the path.
async fn rotate_with_runtime(path: &Path, max_files: usize, now: &str) {
    let reopen = || async {
        File::options().create_new(true).write(true).open(path).unwrap();
        Ok::<(), Away>(())
    };
    rotate(path, RotationPolicy { max_files }, at(now), reopen).await.unwrap();
}

#[test]
fn sizes() {
    assert!(needs_rotation(10, 10) && needs_rotation(11, 10));
    assert!(!needs_rotation(9, 10) && !needs_rotation(9, 0));
}

#[tokio::test]
async fn keeps_as_many_files_as_allowed_and_compresses_all_but_the_newest() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("0.log");
    fs::write(&log, "text 0\n").unwrap();
    fs::set_permissions(&log, fs::Permissions::from_mode(0o640)).unwrap();
    for n in 1..=6 {
        rotate_with_runtime(&log, 4, &format!("2026-01-31T23:59:0{n}Z")).await;
        fs::write(&log, format!("text {n}\n")).unwrap();
    }
    assert_eq!(
        names(directory.path()),
        ["0.log", "0.log.20260131-235904.gz", "0.log.20260131-235905.gz", "0.log.20260131-235906",]
    );
    let mut text = String::new();
    let compressed = directory.path().join("0.log.20260131-235904.gz");
    flate2::read::GzDecoder::new(File::open(&compressed).unwrap()).read_to_string(&mut text).unwrap();
    assert_eq!(text, "text 3\n");
    assert_eq!(fs::read_to_string(directory.path().join("0.log.20260131-235906")).unwrap(), "text 5\n");
}

#[tokio::test]
async fn two_files_are_the_least() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("0.log");
    for max_files in [0, 1, 2] {
        fs::write(&log, "x").unwrap();
        rotate_with_runtime(&log, max_files, &format!("2026-01-01T00:00:0{max_files}Z")).await;
        assert_eq!(names(directory.path()), ["0.log".to_owned(), format!("0.log.20260101-00000{max_files}")]);
    }
}

#[tokio::test]
async fn leftovers_of_an_interrupted_compression_go() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("3.log");
    for name in [
        "3.log",
        "3.log.20260101-000000.tmp",
        "3.log.20260101-000001",
        "3.log.20260101-000001.gz",
        "3.log.20260101-000002",
        "13.log.20260101-000001",
        "3.logs",
    ] {
        fs::write(directory.path().join(name), name).unwrap();
    }
    rotate_with_runtime(&log, 9, "2026-01-02T00:00:00Z").await;
    assert_eq!(
        names(directory.path()),
        [
            "13.log.20260101-000001",
            "3.log",
            "3.log.20260101-000001.gz",
            "3.log.20260101-000002.gz",
            "3.log.20260102-000000",
            "3.logs",
        ]
    );
}

#[tokio::test]
async fn a_runtime_that_fails_leaves_the_log_where_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("0.log");
    fs::write(&log, "text").unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = calls.clone();
    let reopen = || async move {
        seen.fetch_add(1, Ordering::SeqCst);
        Err(Away)
    };
    let error =
        rotate(&log, RotationPolicy { max_files: 5 }, at("2026-01-01T00:00:00Z"), reopen).await.unwrap_err();
    assert!(matches!(error, RotateError::Reopen { source: Away, .. }));
    assert_eq!((names(directory.path()), calls.load(Ordering::SeqCst)), (vec!["0.log".to_owned()], 1));
}

#[tokio::test]
async fn a_log_that_was_reopened_after_all_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("0.log");
    fs::write(&log, "old").unwrap();
    let reopen = || async {
        fs::write(&log, "new").unwrap();
        Err(Away)
    };
    rotate(&log, RotationPolicy { max_files: 5 }, at("2026-01-01T00:00:00Z"), reopen).await.unwrap_err();
    assert_eq!(names(directory.path()), ["0.log", "0.log.20260101-000000"]);
    assert_eq!(fs::read_to_string(&log).unwrap(), "new");
}

#[tokio::test]
async fn a_missing_log_is_an_error_and_the_runtime_is_not_asked() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("0.log");
    let reopen = || async { panic!("must not be called") as Result<(), Away> };
    let error =
        rotate(&log, RotationPolicy { max_files: 5 }, at("2026-01-01T00:00:00Z"), reopen).await.unwrap_err();
    assert!(error.to_string().contains("cannot rename"), "{error}");
}
