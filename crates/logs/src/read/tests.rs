use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::*;

fn line(n: usize) -> String {
    format!("2016-10-06T00:17:{:02}.{:09}Z stdout F line {n}\n", n % 60, n % 1_000_000_000)
}

fn lines(range: std::ops::Range<usize>) -> String {
    range.map(|n| format!("line {n}\n")).collect()
}

fn append(path: &Path, range: std::ops::Range<usize>) {
    let mut file = File::options().create(true).append(true).open(path).unwrap();
    for n in range {
        file.write_all(line(n).as_bytes()).unwrap();
    }
}

/// A reader running beside the test.
struct Running {
    receiver: mpsc::Receiver<Bytes>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), ReadError>>,
    text: String,
}

impl Running {
    #[expect(clippy::disallowed_methods, reason = "the test joins the task itself")]
    fn start(path: &Path, options: Options) -> Self {
        let (sender, receiver) = mpsc::channel(1);
        let (stop, stopped) = oneshot::channel::<()>();
        let path = path.to_owned();
        let task = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            read(&path, &options, stopped, &sender).await
        });
        Self { receiver, stop: Some(stop), task, text: String::new() }
    }

    fn follow(path: &Path) -> Self {
        Self::start(path, Options { follow: true, ..Options::default() })
    }

    /// Waits until the text read so far is `expected`.
    #[track_caller]
    fn expect(&mut self, expected: &str) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let deadline = tokio::time::sleep(Duration::from_secs(60));
            let mut deadline = std::pin::pin!(deadline);
            while self.text.len() < expected.len() {
                tokio::select! {
                    chunk = self.receiver.recv() => match chunk {
                        Some(chunk) => self.text.push_str(std::str::from_utf8(&chunk).unwrap()),
                        None => break,
                    },
                    () = &mut deadline => break,
                }
            }
            assert_eq!(self.text, expected, "at {caller}");
        }
    }

    fn stop(&mut self) {
        drop(self.stop.take());
    }

    async fn finish(mut self) -> Result<String, ReadError> {
        let rest = async {
            while let Some(chunk) = self.receiver.recv().await {
                self.text.push_str(std::str::from_utf8(&chunk).unwrap());
            }
        };
        tokio::time::timeout(Duration::from_secs(60), rest).await.expect("the reader did not end");
        self.task.await.unwrap().map(|()| self.text)
    }
}

async fn read_all(path: &Path, options: Options) -> Result<String, ReadError> {
    Running::start(path, options).finish().await
}

#[tokio::test]
async fn whole_file_and_tails() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    append(&path, 0..5000);
    assert_eq!(read_all(&path, Options::default()).await.unwrap(), lines(0..5000));
    for tail in [0, 1, 10, 4999, 5000, 9999] {
        let options = Options { tail_lines: Some(tail), ..Options::default() };
        let first = 5000_usize.saturating_sub(usize::try_from(tail).unwrap());
        assert_eq!(read_all(&path, options).await.unwrap(), lines(first..5000));
    }
    let options = Options { tail_lines: Some(2), limit_bytes: Some(12), ..Options::default() };
    assert_eq!(read_all(&path, options).await.unwrap(), "line 4998\nli");
    let link = directory.path().join("link.log");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert_eq!(read_all(&link, Options::default()).await.unwrap(), lines(0..5000));
    fs::write(&path, b"").unwrap();
    assert_eq!(read_all(&path, Options::default()).await.unwrap(), "");
}

#[tokio::test]
async fn errors_in_upstreams_words() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("c/0.log");
    let error = read_all(&missing, Options::default()).await.unwrap_err().to_string();
    let (path, at) = (missing.display(), directory.path().join("c"));
    assert_eq!(
        error,
        format!(
            "failed to try resolving symlinks in path \"{path}\": lstat {}: no such file or directory",
            at.display()
        )
    );
    let error = read_all(directory.path(), Options::default()).await.unwrap_err().to_string();
    assert!(error.starts_with("failed to open log file"), "{error}");
    let garbage = directory.path().join("garbage");
    fs::write(&garbage, b"what is this?\nno idea\n").unwrap();
    let error = read_all(&garbage, Options::default()).await.unwrap_err().to_string();
    assert_eq!(error, "failed to get parse function: unsupported log format: \"what is this?\\n\"");
}

#[tokio::test]
async fn the_tail_of_a_huge_file_is_found_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    let mut file = File::create(&path).unwrap();
    // A hole of a terabyte, then real lines.
    file.set_len(1 << 40).unwrap();
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(format!("\n{}", line(1)).as_bytes()).unwrap();
    append(&path, 2..2000);
    let options = Options { tail_lines: Some(1999), ..Options::default() };
    assert_eq!(read_all(&path, options).await.unwrap(), lines(1..2000));
}

#[tokio::test]
async fn chunks_are_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    append(&path, 0..200_000);
    let mut running = Running::start(&path, Options { timestamps: true, ..Options::default() });
    let (mut total, mut chunks) = (0, 0);
    while let Some(chunk) = running.receiver.recv().await {
        assert!(chunk.len() <= 4 * BLOCK_BYTES, "{}", chunk.len());
        total += chunk.len();
        chunks += 1;
    }
    assert!(chunks > 10);
    assert_eq!(total, (0..200_000).map(|n| format!("line {n}\n").len() + 31).sum::<usize>());
}

#[tokio::test]
async fn follows_what_is_written_and_ends_when_the_container_stops() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    append(&path, 0..3);
    let mut running = Running::follow(&path);
    running.expect(&lines(0..3)).await;
    for n in 3..20 {
        append(&path, n..n + 1);
        running.expect(&lines(0..n + 1)).await;
    }
    // A line that is being written is not delivered before it is whole.
    let mut file = File::options().append(true).open(&path).unwrap();
    let text = line(20);
    let (first, second) = text.split_at(40);
    file.write_all(first.as_bytes()).unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    running.expect(&lines(0..20)).await;
    file.write_all(second.as_bytes()).unwrap();
    running.expect(&lines(0..21)).await;
    append(&path, 21..30);
    running.stop();
    assert_eq!(running.finish().await.unwrap(), lines(0..30));
}

#[tokio::test]
async fn follow_begins_at_the_tail() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    append(&path, 0..10);
    let mut running =
        Running::start(&path, Options { follow: true, tail_lines: Some(0), ..Options::default() });
    // What comes before the reader has found the end is not for it.
    let mut next = 10;
    while running.text.is_empty() {
        append(&path, next..next + 1);
        next += 1;
        tokio::select! {
            chunk = running.receiver.recv() => running.text.push_str(std::str::from_utf8(&chunk.unwrap()).unwrap()),
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
    }
    let first = running.text.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(first >= 10, "{}", running.text);
    append(&path, next..next + 2);
    running.expect(&lines(first..next + 2)).await;
    running.stop();
    assert_eq!(running.finish().await.unwrap(), lines(first..next + 2));
    // The limit ends a follower too.
    let options = Options { follow: true, limit_bytes: Some(9), ..Options::default() };
    assert_eq!(read_all(&path, options).await.unwrap(), "line 0\nli");
}

#[tokio::test]
async fn follows_across_rotation() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    append(&path, 0..3);
    let mut running = Running::follow(&path);
    running.expect(&lines(0..3)).await;
    for round in 1..4 {
        let base = round * 10;
        let rotated = directory.path().join(format!("0.log.20260101-00000{round}"));
        let mut old = File::options().append(true).open(&path).unwrap();
        fs::rename(&path, &rotated).unwrap();
        // The runtime still writes to the old file, then makes the new one, and writes to the old one once more. It closes it
        // but once, in the end: after that nothing more is expected in it.
        old.write_all(line(base).as_bytes()).unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
        File::create(&path).unwrap();
        old.write_all(line(base + 1).as_bytes()).unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        old.write_all(line(base + 2).as_bytes()).unwrap();
        append(&path, base + 3..base + 4);
        drop(old);
        let expected: String = (1..=round).map(|r| lines(r * 10..r * 10 + 4)).collect();
        running.expect(&(lines(0..3) + &expected)).await;
    }
    running.stop();
    let expected: String = (1..4).map(|r| lines(r * 10..r * 10 + 4)).collect();
    assert_eq!(running.finish().await.unwrap(), lines(0..3) + &expected);
}

#[tokio::test]
async fn a_reader_that_is_several_rotations_behind_misses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    append(&path, 0..20_000);
    // The channel holds one chunk, so the reader is stuck in the first file.
    let mut running = Running::follow(&path);
    let first = running.receiver.recv().await.unwrap();
    running.text.push_str(std::str::from_utf8(&first).unwrap());
    for round in 1..4 {
        fs::rename(&path, directory.path().join(format!("0.log.20260101-00000{round}"))).unwrap();
        append(&path, round * 20_000..(round + 1) * 20_000);
    }
    fs::write(directory.path().join("0.log.20260101-000000.gz"), b"older").unwrap();
    running.stop();
    let text = running.finish().await.unwrap();
    assert!(text == lines(0..80_000), "{} lines", text.lines().count());
}

/// containerd's writer of the old file may come to its last lines long after another has begun the new one, and the pieces of
/// one line may be in both: nothing is begun before the old file was closed.
#[tokio::test]
async fn a_slow_writer_of_the_old_file_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    append(&path, 0..1);
    let mut old = File::options().append(true).open(&path).unwrap();
    let mut running = Running::follow(&path);
    running.expect(&lines(0..1)).await;
    fs::rename(&path, directory.path().join("0.log.20260101-000001")).unwrap();
    fs::write(&path, b"2016-10-06T00:17:01.0Z stdout F ne 1\n").unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    old.write_all(b"2016-10-06T00:17:01.0Z stdout P li\n").unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(old);
    running.expect(&lines(0..2)).await;
    running.stop();
    assert_eq!(running.finish().await.unwrap(), lines(0..2));
}

/// The file after ours is found also when ours was compressed meanwhile.
#[tokio::test]
async fn a_reader_whose_file_was_compressed_goes_on_with_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    let rotated = |round: usize| directory.path().join(format!("0.log.20260101-00000{round}"));
    append(&rotated(0), 90_000..90_001);
    tokio::time::sleep(Duration::from_millis(20)).await;
    append(&path, 0..20_000);
    let mut running = Running::follow(&path);
    let first = running.receiver.recv().await.unwrap();
    running.text.push_str(std::str::from_utf8(&first).unwrap());
    fs::rename(&path, rotated(1)).unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    append(&path, 20_000..20_010);
    fs::rename(&path, rotated(2)).unwrap();
    fs::rename(rotated(1), directory.path().join("0.log.20260101-000001.gz.tmp")).unwrap();
    fs::write(directory.path().join("0.log.20260101-000001.gz"), b"packed").unwrap();
    fs::remove_file(directory.path().join("0.log.20260101-000001.gz.tmp")).unwrap();
    append(&path, 20_010..20_020);
    running.stop();
    let text = running.finish().await.unwrap();
    assert!(text == lines(0..20_020), "{} lines", text.lines().count());
}

/// Real rotation under a busy writer: every line arrives once and in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follows_real_rotation_under_a_busy_writer() {
    const LINES: usize = 20_000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    append(&path, 0..1);
    let mut running = Running::follow(&path);
    let written = std::sync::Arc::new(AtomicUsize::new(1));
    let written_so_far = written.clone();
    let (reopen_sender, reopen_receiver) = std::sync::mpsc::channel::<oneshot::Sender<()>>();
    let writer_path = path.clone();
    let writer = std::thread::spawn(move || {
        let mut file = File::options().append(true).open(&writer_path).unwrap();
        for n in 1..LINES {
            file.write_all(line(n).as_bytes()).unwrap();
            written_so_far.store(n + 1, Ordering::SeqCst);
            if let Ok(done) = reopen_receiver.try_recv() {
                file = File::options().create(true).append(true).open(&writer_path).unwrap();
                done.send(()).unwrap();
            }
            if n % 10 == 0 {
                std::thread::sleep(Duration::from_micros(500));
            }
        }
        // On a slow machine a rotation may come after the last line.
        for done in reopen_receiver {
            File::options().create(true).append(true).open(&writer_path).unwrap();
            done.send(()).unwrap();
        }
    });
    let stop = running.stop.take();
    let (told, mut heard) = watch::channel(0_usize);
    let reading = async {
        while let Some(chunk) = running.receiver.recv().await {
            running.text.push_str(std::str::from_utf8(&chunk).unwrap());
            told.send_modify(|lines| *lines += chunk.iter().filter(|byte| **byte == b'\n').count());
        }
        running.finish().await
    };
    let rotations = async {
        for round in 0..5_i64 {
            tokio::time::sleep(Duration::from_millis(150)).await;
            let now = jiff::Timestamp::from_second(1_700_000_000 + round).unwrap();
            let reopen = || async {
                let (done, answer) = oneshot::channel();
                reopen_sender.send(done).unwrap();
                answer.await
            };
            crate::rotate(&path, crate::RotationPolicy { max_files: 3 }, now, reopen).await.unwrap();
            // A reader that is still in an older file when that is compressed misses it: the next line is in the new one.
            let enough = LINES.min(written.load(Ordering::SeqCst) + 1);
            let caught_up = heard.wait_for(|lines| *lines >= enough);
            tokio::time::timeout(Duration::from_secs(60), caught_up)
                .await
                .expect("the reader stopped")
                .unwrap();
        }
        drop(reopen_sender);
        tokio::task::spawn_blocking(|| writer.join().unwrap()).await.unwrap();
        drop(stop);
    };
    let (text, ()) = tokio::join!(reading, rotations);
    let text = text.unwrap();
    for (n, found) in text.lines().enumerate() {
        assert_eq!(found, format!("line {n}"));
    }
    assert_eq!(text.lines().count(), LINES);
}

#[tokio::test]
async fn a_truncated_file_is_begun_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    append(&path, 0..100);
    let mut running = Running::follow(&path);
    running.expect(&lines(0..100)).await;
    File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    tokio::time::sleep(Duration::from_millis(30)).await;
    append(&path, 200..203);
    running.expect(&(lines(0..100) + &lines(200..203))).await;
    running.stop();
    running.finish().await.unwrap();
}

#[tokio::test]
async fn ends_when_the_receiver_goes_away() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    append(&path, 0..3);
    let mut running = Running::follow(&path);
    running.expect(&lines(0..3)).await;
    drop(running.receiver);
    tokio::time::timeout(Duration::from_secs(60), running.task).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_removed_file_is_held_until_the_container_stops() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    append(&path, 0..3);
    let mut running = Running::follow(&path);
    running.expect(&lines(0..3)).await;
    let mut file = File::options().append(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    file.write_all(line(3).as_bytes()).unwrap();
    running.stop();
    assert_eq!(running.finish().await.unwrap(), lines(0..4));
}

#[test]
fn termination_messages() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    append(&path, 0..1000);
    assert_eq!(termination_log_tail(&path).unwrap(), lines(920..1000));
    let mut file = File::options().append(true).open(&path).unwrap();
    for _ in 0..3 {
        writeln!(file, "2016-10-06T00:17:01Z stderr F {}", "é".repeat(500)).unwrap();
    }
    // 2048 bytes are two lines of 1001 and 46 bytes of the one before, which begin in the middle of an é when counted back.
    let message = termination_log_tail(&path).unwrap();
    assert!(
        message.len() <= TERMINATION_BYTES && message.len() >= TERMINATION_BYTES - 3,
        "{}",
        message.len()
    );
    assert!(message.starts_with('é') && message.ends_with("é\n"));
    fs::write(&path, b"").unwrap();
    assert_eq!(termination_log_tail(&path).unwrap(), "");
    termination_log_tail(&directory.path().join("none")).unwrap_err();
}
