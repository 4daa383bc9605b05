//! `journalctl`, asked for what services wrote.

use std::{
    io,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::AsyncReadExt,
    net::unix::pipe,
    process::{Child, Command},
    sync::{Semaphore, mpsc},
};

/// How much is read at once.
const PIECE: usize = 32 << 10;
/// As much as a list of units may be long; a machine has some hundreds.
const MAX_UNITS: usize = 4 << 20;
/// Programs that run at a time, each with the memory and the share of the disk that a search of the journal takes; further
/// readers wait until one has ended.
const READERS: usize = 8;

/// How the journal is read: by the program that every machine with a journal has.
#[derive(Clone, Debug)]
pub struct Journal {
    program: PathBuf,
    turns: Arc<Semaphore>,
    /// Lists of units are short, and asked for before each reading.
    list_turns: Arc<Semaphore>,
}

/// What is asked of the journal. Texts are handed over as they are, each in an argument of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalQuery {
    /// `--since`.
    pub since: Option<String>,
    /// `--until`.
    pub until: Option<String>,
    /// `--lines`, from the end.
    pub lines: Option<i64>,
    /// `--unit`, each.
    pub units: Vec<String>,
    /// `--grep`, if not empty.
    pub pattern: String,
    /// `--boot`.
    pub boot: Option<i64>,
}

/// Why the journal said nothing.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The program could not be run.
    #[error("cannot run {program}; is systemd's journal installed on this machine?", program = program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Its output could not be read.
    #[error("cannot read what {program} says", program = program.display())]
    Read {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Default for Journal {
    /// The `journalctl` that the search path leads to.
    fn default() -> Self {
        Self::new("journalctl".into())
    }
}

impl Journal {
    /// One that is read by this program. Clones share the number of programs that may run.
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        let turns = || Arc::new(Semaphore::new(READERS));
        Self { program, turns: turns(), list_turns: turns() }
    }

    /// The units that have written to the journal; none if there is no journal. The caller gives the deadline: dropping the
    /// future kills the program.
    pub async fn units(&self) -> Vec<String> {
        let arguments = ["--field".to_owned(), "_SYSTEMD_UNIT".to_owned()];
        // Nobody closes it, so that there always is a turn.
        let _turn = self.list_turns.acquire().await.ok();
        let (mut child, mut output) = match self.start(&arguments) {
            Ok(started) => started,
            Err(error) => {
                tracing::debug!(%error, "no journal");
                return Vec::new();
            }
        };
        let mut text = Vec::new();
        let read = (&mut output).take(MAX_UNITS as u64).read_to_end(&mut text).await;
        // Closed before it is waited for: it may have more to say than is wanted.
        drop(output);
        let ended = child.wait().await;
        if read.is_err() || !ended.is_ok_and(|status| status.success()) {
            return Vec::new();
        }
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }

    /// Hands what the journal says (both streams of the program, as they come) to `sink`, as fast as it takes it; ends early
    /// when nobody takes it any more. Waits for its turn while many read. Dropping the future kills the program.
    ///
    /// # Errors
    /// When the program cannot be run or read from. How it ends is no error: what it had to say was said.
    pub async fn read(
        &self,
        query: &JournalQuery,
        sink: &mpsc::Sender<Bytes>,
    ) -> Result<Option<ExitStatus>, JournalError> {
        let _turn = self.turns.acquire().await.ok();
        let (mut child, mut output) = self.start(&query.arguments())?;
        let failed = |source| JournalError::Read { program: self.program.clone(), source };
        loop {
            let mut piece = BytesMut::with_capacity(PIECE);
            if output.read_buf(&mut piece).await.map_err(failed)? == 0 {
                return child.wait().await.map(Some).map_err(failed);
            }
            if sink.send(piece.freeze()).await.is_err() {
                return Ok(None);
            }
        }
    }

    fn start(&self, arguments: &[String]) -> Result<(Child, pipe::Receiver), JournalError> {
        let start = || {
            let (output, input) = io::pipe()?;
            let mut command = Command::new(&self.program);
            command
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(input.try_clone()?)
                .stderr(input)
                .kill_on_drop(true);
            let child = command.spawn()?;
            // Only the child still holds the other end; the pipe ends with it.
            drop(command);
            Ok((child, pipe::Receiver::from_owned_fd(output.into())?))
        };
        start().map_err(|source| JournalError::Start { program: self.program.clone(), source })
    }
}

impl JournalQuery {
    /// Upstream's arguments, in its order (`getLoggingCmd` in `pkg/kubelet/kubelet_server_journal_linux.go`, 1.37).
    fn arguments(&self) -> Vec<String> {
        let mut all: Vec<String> =
            ["--utc", "--no-pager", "--output=short-precise"].map(str::to_owned).into();
        all.extend(self.since.iter().map(|time| format!("--since={time}")));
        all.extend(self.until.iter().map(|time| format!("--until={time}")));
        if let Some(lines) = self.lines {
            all.extend(["--pager-end".to_owned(), format!("--lines={lines}")]);
        }
        all.extend(self.units.iter().map(|unit| format!("--unit={unit}")));
        if !self.pattern.is_empty() {
            all.push(format!("--grep={}", self.pattern));
        }
        if let Some(boot) = self.boot {
            all.extend(["--boot".to_owned(), boot.to_string()]);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(40);

    fn fake(directory: &tempfile::TempDir, script: &str) -> Journal {
        let (written, program) = (directory.path().join("script"), directory.path().join("journalctl"));
        fs::write(&written, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&written, fs::Permissions::from_mode(0o755)).unwrap();
        // Copied by another process: a child that this one forks meanwhile would hold it open for writing, and what is
        // open for writing cannot be run.
        assert!(std::process::Command::new("cp").args([&written, &program]).status().unwrap().success());
        Journal::new(program)
    }

    async fn said(journal: &Journal, query: &JournalQuery) -> String {
        let (sink, mut pieces) = mpsc::channel(1);
        let read = async {
            journal.read(query, &sink).await.unwrap();
            drop(sink);
        };
        let take = async {
            let mut text = String::new();
            while let Some(piece) = pieces.recv().await {
                text.push_str(std::str::from_utf8(&piece).unwrap());
            }
            text
        };
        tokio::time::timeout(PATIENCE, async { tokio::join!(read, take).1 }).await.unwrap()
    }

    #[tokio::test]
    async fn every_option_is_an_argument_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let journal = fake(&directory, r#"for a; do printf '<%s>' "$a"; done; echo oops >&2; exit 3"#);
        let bare = said(&journal, &JournalQuery::default()).await;
        assert_eq!(bare, "<--utc><--no-pager><--output=short-precise>oops\n");
        let query = JournalQuery {
            since: Some("2026-1-2 3:4:5".into()),
            until: Some("2026-1-2 3:4:6".into()),
            lines: Some(0),
            units: vec!["a".into(), "b@c".into()],
            pattern: "x y; $(z)".into(),
            boot: Some(-1),
        };
        let full = said(&journal, &query).await;
        assert_eq!(
            full,
            "<--utc><--no-pager><--output=short-precise><--since=2026-1-2 3:4:5><--until=2026-1-2 3:4:6>\
             <--pager-end><--lines=0><--unit=a><--unit=b@c><--grep=x y; $(z)><--boot><-1>oops\n"
        );
    }

    #[tokio::test]
    async fn units_come_from_a_program_that_succeeds() {
        let directory = tempfile::tempdir().unwrap();
        let journal = fake(&directory, "printf 'kubelet.service\\ninit.scope\\n'");
        assert_eq!(journal.units().await, ["kubelet.service", "init.scope"]);
        let journal = fake(&directory, "echo kubelet.service; exit 1");
        assert_eq!(journal.units().await, Vec::<String>::new());
        let journal = Journal::new(directory.path().join("none"));
        assert_eq!(journal.units().await, Vec::<String>::new());
        let (sink, _pieces) = mpsc::channel(1);
        let error = journal.read(&JournalQuery::default(), &sink).await.unwrap_err();
        assert!(matches!(error, JournalError::Start { .. }));
    }

    #[tokio::test]
    async fn so_many_read_at_a_time_and_no_more() {
        let directory = tempfile::tempdir().unwrap();
        let at_work = directory.path().join("at-work");
        fs::create_dir(&at_work).unwrap();
        let journal = fake(&directory, &format!("touch {}/$$; exec sleep 1000", at_work.display()));
        let count = || fs::read_dir(&at_work).unwrap().count();
        let (sink, _pieces) = mpsc::channel(1);
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..READERS + 1 {
            let (journal, sink) = (journal.clone(), sink.clone());
            readers.spawn(async move { journal.read(&JournalQuery::default(), &sink).await });
        }
        let all = async {
            while count() < READERS {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, all).await.unwrap();
        assert_eq!((count(), journal.turns.available_permits()), (READERS, 0));
        readers.abort_all();
        while readers.join_next().await.is_some() {}
        assert_eq!(journal.turns.available_permits(), READERS);
    }

    #[tokio::test]
    async fn the_program_dies_with_its_reader() {
        let directory = tempfile::tempdir().unwrap();
        let pid_file = directory.path().join("pid");
        let journal = fake(&directory, &format!("echo $$ > {}; exec sleep 1000", pid_file.display()));
        let (sink, _pieces) = mpsc::channel(1);
        let query = JournalQuery::default();
        let started = async {
            loop {
                match fs::read_to_string(&pid_file) {
                    Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
                    _ => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        let pid = tokio::select! {
            _ = journal.read(&query, &sink) => panic!("it ended"),
            pid = tokio::time::timeout(PATIENCE, started) => pid.unwrap(),
        };
        let gone = async {
            // A zombie has no command line.
            while fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|text| !text.is_empty()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, gone).await.unwrap();
    }
}
