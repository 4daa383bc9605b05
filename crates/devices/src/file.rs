//! Who holds which devices, on disk: `kubelet_internal_checkpoint`, and a copy of mainstay's own for the day when that cannot be used.
//!
//! What a device is called only its plugin knows, and neither the runtime nor the kernel tells it of a container that runs. So that a device
//! which is in use is not given away a second time, the book is kept twice.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use mainstay_alloc::{DeviceFileError, Ledger, Unsure};
use mainstay_checkpoint::{Durability, File, Loaded, TextError, TextFile, WriteError, ensure_directory};
use mainstay_task::{Lane, LaneError};
use serde::{Deserialize, Serialize};

/// Upstream's.
const NAME: &str = "kubelet_internal_checkpoint";
/// What a node full of pods with the largest answers of plugins needs; more would be no such file.
const MAX_BYTES: u64 = 512 << 20;
/// How long the disk may take.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

/// One writer.
static LANE: Lane = Lane::new(1);
/// Another one.
static COPY_LANE: Lane = Lane::new(1);

/// Why it is not on disk.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// Upstream's file.
    #[error(transparent)]
    File(#[from] TextError),
    /// The copy.
    #[error(transparent)]
    Copy(#[from] WriteError),
    /// The disk hangs.
    #[error("cannot write the copy of who holds which devices")]
    Slow(#[from] LaneError),
}

/// The copy.
#[derive(Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Kept {
    /// As in upstream's file.
    pub(crate) text: String,
    /// Who holds devices that nobody can name.
    #[serde(default)]
    pub(crate) unsure: Unsure,
    /// Resources whose plugin is to be asked before each start of a container; upstream's file does not say it.
    #[serde(default)]
    pub(crate) pre_start: BTreeSet<Arc<str>>,
}

/// Both files.
pub(crate) struct Files {
    file: TextFile,
    copy: File,
    /// What was written last to the copy; held while writing, so that the newest is written last.
    copied: tokio::sync::Mutex<Option<Kept>>,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("file", &self.file).field("copy", &self.copy).finish_non_exhaustive()
    }
}

/// What an earlier life left.
pub(crate) struct Opened {
    pub(crate) files: Files,
    pub(crate) ledger: Ledger,
    /// Resources whose plugin is to be asked before each start of a container, as far as that is known.
    pub(crate) pre_start: BTreeSet<Arc<str>>,
    /// Upstream's file was not there, or could not be used: pods that run may hold what nobody knows of.
    pub(crate) lost: bool,
    /// What is wrong, as sentences.
    pub(crate) problems: Vec<String>,
}

impl Files {
    /// Reads what is there: upstream's file in `directory`, or else the copy. What cannot be used is set aside, and told of. Where neither is there
    /// it was lost, if pods of an earlier life are `recorded`: such a life always leaves one.
    pub(crate) fn open(directory: &Path, copy: &Path, recorded: bool) -> Opened {
        let mut problems = Vec::new();
        let file = TextFile::new(directory.join(NAME), MAX_BYTES, &LANE);
        if let Some(above) = copy.parent()
            && let Err(error) = ensure_directory(above, 0o700)
        {
            problems.push(error.to_string());
        }
        let copy = File::new(copy, "devices", 1, Durability::ProcessDeath);
        let kept: Option<Kept> = match copy.load() {
            Loaded::Absent => None,
            Loaded::Good(kept) => Some(kept),
            Loaded::SetAside(bad) => {
                problems.push(bad.to_string());
                None
            }
        };
        let (unsure, pre_start) =
            kept.as_ref().map(|kept| (kept.unsure.clone(), kept.pre_start.clone())).unwrap_or_default();
        let from_copy = || -> Option<Ledger> {
            let kept = kept.as_ref()?;
            let parsed: Result<Ledger, DeviceFileError> = Ledger::from_text(&kept.text);
            parsed.ok()
        };
        let then = "who holds which devices is taken from mainstay's own copy";
        let (ledger, lost) = match file.read(Ledger::from_text, then) {
            Ok(Some(ledger)) => (ledger, false),
            Ok(None) => {
                let shown = file.path().display();
                match from_copy() {
                    Some(ledger) => {
                        problems.push(format!("the state file {shown} is gone; {then}"));
                        (ledger, true)
                    }
                    None if recorded => {
                        problems.push(format!(
                            "the state file {shown} is gone, and so is mainstay's own copy; nobody can tell which devices containers that run hold"
                        ));
                        (Ledger::default(), true)
                    }
                    // The first life.
                    None => (Ledger::default(), false),
                }
            }
            Err(problem) => {
                problems.push(problem);
                (from_copy().unwrap_or_default(), true)
            }
        };
        let mut ledger = ledger;
        ledger.set_unsure(unsure);
        let files = Self { file, copy, copied: tokio::sync::Mutex::default() };
        Opened { files, ledger, pre_start, lost, problems }
    }

    /// Writes what `state` says when it is its turn, unless that is there already. The copy first: what is in upstream's file is in both.
    pub(crate) async fn write(&self, state: impl Fn() -> Kept) -> Result<(), KeepError> {
        {
            let mut copied = self.copied.lock().await;
            let kept = state();
            if copied.as_ref() != Some(&kept) {
                // What is there is not known until it is written.
                *copied = None;
                let (copy, value) = (self.copy.clone(), kept.clone());
                COPY_LANE.run(PATIENCE, move || copy.write(&value)).await??;
                *copied = Some(kept);
            }
        }
        self.file.write(|| state().text).await?;
        Ok(())
    }
}
