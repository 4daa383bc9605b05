//! That a URL has delivered, on disk: after a start nobody waits for one that has, also when all that it said was that there are no pods.

use std::{path::Path, sync::Arc};

use mainstay_checkpoint::{Deferred, Durability, Loaded, Store, WriteError};
use mainstay_task::TaskGroup;

const KEY: &str = "static-pod-url";

/// `<root>/mainstay/static-pod-url.json`, written without anybody waiting for it.
#[derive(Debug)]
pub(crate) struct DeliveredFile {
    deferred: Arc<Deferred<String>>,
    /// The URL in it.
    url: Option<String>,
}

impl DeliveredFile {
    /// Reads which URL delivered in an earlier life, and starts the task that writes. A file that had to be set aside comes as a
    /// sentence. Blocks.
    pub(crate) fn open(root_dir: &Path, tasks: &TaskGroup) -> Result<(Self, Option<String>), WriteError> {
        // Not flushed: after a power failure it is waited for.
        let store = Store::open(root_dir.join("mainstay"), 0o700, KEY, 1, Durability::ProcessDeath)?;
        let (url, problem) = match store.load(KEY)? {
            Loaded::Good(url) => (Some(url), None),
            Loaded::Absent => (None, None),
            Loaded::SetAside(bad) => (None, Some(bad.to_string())),
        };
        let deferred = Arc::new(Deferred::new(store));
        let (writer, shutdown) = (Arc::clone(&deferred), tasks.shutdown());
        tasks.spawn("static pod URL's mark", async move { writer.run(shutdown.signalled()).await });
        Ok((Self { deferred, url }, problem))
    }

    /// Whether this URL has delivered.
    pub(crate) fn has(&self, url: &str) -> bool {
        self.url.as_deref() == Some(url)
    }

    /// This URL has delivered.
    pub(crate) fn note(&mut self, url: &str) {
        if !self.has(url) {
            self.url = Some(url.to_owned());
            self.deferred.put(KEY, url.to_owned());
        }
    }
}
