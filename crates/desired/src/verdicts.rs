//! Rulings on disk, for one thing only: since when they stand.

use std::{path::Path, sync::Arc};

use mainstay_checkpoint::{Deferred, Durability, Loaded, Store, WriteError};
use mainstay_task::TaskGroup;
use mainstay_types::FileVerdict;

const KEY: &str = "verdicts";

/// `<root>/mainstay/verdicts.json`, written after each change without anybody waiting for it.
#[derive(Clone, Debug)]
pub(crate) struct VerdictFile {
    deferred: Arc<Deferred<Vec<FileVerdict>>>,
}

impl VerdictFile {
    /// Reads what an earlier life found, and starts the task that writes. A file that had to be set aside comes as a
    /// sentence. Blocks.
    pub(crate) fn open(
        root_dir: &Path,
        tasks: &TaskGroup,
    ) -> Result<(Self, Vec<FileVerdict>, Option<String>), WriteError> {
        // Not flushed: after a power failure a ruling stands since then.
        let store = Store::open(root_dir.join("mainstay"), 0o700, KEY, 1, Durability::ProcessDeath)?;
        let (earlier, problem) = match store.load(KEY)? {
            Loaded::Good(earlier) => (earlier, None),
            Loaded::Absent => (Vec::new(), None),
            Loaded::SetAside(bad) => (Vec::new(), Some(bad.to_string())),
        };
        let deferred = Arc::new(Deferred::new(store));
        let (writer, shutdown) = (Arc::clone(&deferred), tasks.shutdown());
        tasks.spawn("manifest verdicts", async move { writer.run(shutdown.signalled()).await });
        Ok((Self { deferred }, earlier, problem))
    }

    pub(crate) fn keep(&self, verdicts: &[FileVerdict]) {
        self.deferred.put(KEY, verdicts.to_vec());
    }
}
