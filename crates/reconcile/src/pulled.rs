//! The files that say what images were pulled with: upstream's, below `<root>/image_manager`.
//!
//! Before a pull begins, that it does is written down (`pulling/`): should mainstay be killed before it can say what the image
//! was pulled with, it is known at least that it was pulled for a pod, and is not there for everybody.

use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::{Timestamp, Unit};
use mainstay_podspec::runtime::ImageName;
use mainstay_policy::{MayUse, PullVerification, PulledBy, PulledRecord, Shown};
use mainstay_types::NodeCounters;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tracing::warn;

/// Shared by all workers.
#[derive(Debug)]
pub(crate) struct PullRecords {
    policy: PullVerification,
    files: Arc<Files>,
}

#[derive(Debug)]
struct Files {
    dir: PathBuf,
    /// How many pulls of an image are under way: the last one removes what says so. Also the lock of all files.
    under_way: Mutex<HashMap<String, usize>>,
    counters: Arc<NodeCounters>,
}

/// A pull that has begun. One that is dropped was cut short: that it had begun stays on disk, because the runtime may have gone on with it.
#[derive(Debug)]
pub(crate) struct Intent {
    files: Arc<Files>,
    image: String,
    ended: bool,
}

impl Drop for Intent {
    fn drop(&mut self) {
        if !self.ended {
            self.files.no_longer(&self.image);
        }
    }
}

impl PullRecords {
    pub(crate) fn new(policy: PullVerification, root: &Path, counters: Arc<NodeCounters>) -> Self {
        let dir = root.join("image_manager");
        Self { policy, files: Arc::new(Files { dir, under_way: Mutex::default(), counters }) }
    }

    /// Counts what an earlier life has written down.
    pub(crate) async fn count(&self) {
        let files = Arc::clone(&self.files);
        // It cannot fail, only die with the process.
        tokio::task::spawn_blocking(move || {
            files.count("pulling");
            files.count("pulled");
        })
        .await
        .ok();
    }

    /// Whether a pod may use an image that is there, by what it can show if it is asked.
    pub(crate) async fn may_use<F: Future<Output = Shown>>(
        &self,
        image: &str,
        image_ref: &str,
        shown: impl FnOnce() -> F,
    ) -> bool {
        let (verdict, why) = Box::pin(self.judge(image, image_ref, shown)).await;
        self.files.counters.image_checks.of([why]).add();
        verdict
    }

    /// The verdict, and how it was come to, in upstream's words.
    async fn judge<F: Future<Output = Shown>>(
        &self,
        image: &str,
        image_ref: &str,
        shown: impl FnOnce() -> F,
    ) -> (bool, &'static str) {
        const ALLOWED: &str = "credentialPolicyAllowed";
        const RECORDED: &str = "credentialRecordFound";
        const MUST_ASK: &str = "mustAuthenticate";
        const ERROR: &str = "error";
        if self.policy == PullVerification::Never {
            return (true, ALLOWED);
        }
        let Ok(name) = ImageName::parse(image) else { return (false, ERROR) };
        let (files, asked, of) = (Arc::clone(&self.files), image.to_owned(), image_ref.to_owned());
        let read = tokio::task::spawn_blocking(move || files.read(&asked, &of)).await;
        let (record, pulled, none) = match read {
            Ok(Ok((record, pulled))) => (record, pulled, MUST_ASK),
            // What cannot be read is no proof.
            Ok(Err(error)) => {
                warn!(image, %error, "what the image was pulled with cannot be read; its registry is asked");
                (None, true, ERROR)
            }
            Err(_) => (None, true, ERROR),
        };
        if !self.policy.wants(&name.repository(), pulled) {
            return (true, ALLOWED);
        }
        let Some(record) = record else { return (false, none) };
        // Programs are asked only where it matters what they say.
        if let Some(verdict) = record.allows_anybody(&name.repository()) {
            return (verdict, if verdict { RECORDED } else { MUST_ASK });
        }
        match record.allows(&name.repository(), &shown().await) {
            MayUse::Yes => (true, RECORDED),
            MayUse::No => (false, MUST_ASK),
            MayUse::Noting(secret) => {
                let (files, of, name) = (Arc::clone(&self.files), image_ref.to_owned(), name.repository());
                let noted =
                    tokio::task::spawn_blocking(move || files.note(&name, &of, PulledBy::Secret(secret)))
                        .await;
                if let Ok(Err(error)) = noted {
                    warn!(image, %error, "a secret that is good for the image cannot be noted");
                }
                (true, RECORDED)
            }
        }
    }

    /// Makes of pulls that an earlier life began, and whose end it did not see, what is known of them: an image that is there was
    /// pulled for some pod, with what is not known (upstream does so at its start). One that is not there may still come.
    pub(crate) async fn settle(&self, images: Vec<(String, Vec<String>)>) {
        let files = Arc::clone(&self.files);
        let settled = tokio::task::spawn_blocking(move || files.settle(&images)).await;
        if let Ok(Err(error)) = settled {
            warn!(%error, "the notes of pulls that were cut short cannot be settled; their images are pulled again");
        }
    }

    /// Whether an earlier life began pulls whose end it did not see.
    pub(crate) async fn has_unsettled(&self) -> bool {
        let files = Arc::clone(&self.files);
        let found = tokio::task::spawn_blocking(move || files.intents().map(|all| !all.is_empty())).await;
        matches!(found, Ok(Ok(true)))
    }

    /// Writes down that a pull begins. What cannot be written holds nobody up.
    pub(crate) async fn begin(&self, image: &str) -> Intent {
        let intent = Intent { files: Arc::clone(&self.files), image: image.to_owned(), ended: false };
        self.files.under_way(image);
        let (files, image) = (Arc::clone(&self.files), image.to_owned());
        let begun = tokio::task::spawn_blocking(move || files.begin(&image)).await;
        if let Ok(Err(error)) = begun {
            warn!(image = intent.image, %error, "cannot write down that an image is being pulled");
        }
        intent
    }
}

impl Intent {
    /// It was pulled with this.
    pub(crate) async fn succeeded(mut self, image: &str, image_ref: &str, by: PulledBy) {
        self.ended = true;
        let (files, asked) = (Arc::clone(&self.files), self.image.clone());
        let (of, name) = (image_ref.to_owned(), ImageName::parse(image).map(|name| name.repository()));
        let done = tokio::task::spawn_blocking(move || {
            // Only then it is safe to forget that it was pulled for a pod.
            files.note(&name.map_err(io::Error::other)?, &of, by)?;
            files.end(&asked)
        });
        if let Ok(Err(error)) = done.await {
            warn!(image, %error, "cannot write down what an image was pulled with; it will be pulled again");
        }
    }

    /// It was not pulled.
    pub(crate) async fn failed(mut self) {
        self.ended = true;
        let (files, image) = (Arc::clone(&self.files), self.image.clone());
        let done = tokio::task::spawn_blocking(move || files.end(&image)).await;
        if let Ok(Err(error)) = done {
            warn!(%error, "cannot remove the note of a pull that failed");
        }
    }
}

impl Files {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record of an image, and whether it was, or is being, pulled for a pod.
    fn read(&self, image: &str, image_ref: &str) -> io::Result<(Option<PulledRecord>, bool)> {
        let under_way = self.lock();
        let record = self.record(image_ref)?;
        let pulled = record.is_some() || under_way.contains_key(image) || self.intent(image).exists();
        Ok((record, pulled))
    }

    fn record(&self, image_ref: &str) -> io::Result<Option<PulledRecord>> {
        match fs::read(self.dir.join("pulled").join(file_name(image_ref))) {
            Ok(bytes) => {
                let record: PulledRecord = serde_json::from_slice(&bytes)?;
                Ok(Some(record).filter(|record| record.image_ref == image_ref))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn note(&self, name: &str, image_ref: &str, by: PulledBy) -> io::Result<()> {
        let _locked = self.lock();
        // One that cannot be read is written anew: what is noted in it was shown just now.
        let known = self.record(image_ref).unwrap_or_default();
        let fresh = known.is_none();
        let mut record = known.unwrap_or_else(|| PulledRecord::new(image_ref));
        if !record.note(name, by) && !fresh {
            return Ok(());
        }
        let now = Timestamp::now();
        record.last_updated_time = now.round(Unit::Second).unwrap_or(now).to_string();
        write(&self.dir.join("pulled"), &file_name(image_ref), &serde_json::to_vec(&record)?)?;
        self.count("pulled");
        Ok(())
    }

    /// Tells how many files there are of a kind. Few, and looked at only when one more is written or removed.
    fn count(&self, kind: &str) {
        let files = fs::read_dir(self.dir.join(kind)).map_or(0, |dir| {
            let names = dir.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
            names.filter(|name| name.starts_with("sha256-") && !name.ends_with(".tmp")).count()
        });
        let counter =
            if kind == "pulled" { &self.counters.pulled_records } else { &self.counters.pull_intents };
        counter.set(u64::try_from(files).unwrap_or(u64::MAX));
    }

    fn intent(&self, image: &str) -> PathBuf {
        self.dir.join("pulling").join(file_name(image))
    }

    /// The images whose pull was begun, by what is written.
    fn intents(&self) -> io::Result<Vec<String>> {
        #[derive(serde::Deserialize)]
        struct Written {
            image: String,
        }
        let dir = match fs::read_dir(self.dir.join("pulling")) {
            Ok(dir) => dir,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        for entry in dir {
            let entry = entry?;
            let name = entry.file_name();
            if name.to_string_lossy().ends_with(".tmp") {
                continue;
            }
            // One that cannot be read says nothing, and nothing can be said of it.
            let written =
                fs::read(entry.path()).ok().and_then(|it| serde_json::from_slice::<Written>(&it).ok());
            found
                .extend(written.map(|it| it.image).filter(|image| name.to_str() == Some(&*file_name(image))));
        }
        Ok(found)
    }

    /// `images`: each image's ID with all its names.
    fn settle(&self, images: &[(String, Vec<String>)]) -> io::Result<()> {
        let repository = |name: &str| ImageName::parse(name).map(|name| name.repository());
        for image in self.intents()? {
            // Begun in this life: its end will be seen.
            if self.lock().contains_key(&image) {
                continue;
            }
            let Ok(full) = ImageName::with_default_tag(&image) else { continue };
            let there =
                images.iter().filter(|(_, names)| names.iter().any(|name| *name == full || *name == image));
            for (id, _) in there {
                self.note(&repository(&image).map_err(io::Error::other)?, id, PulledBy::Unknown)?;
                // Held until it is gone: one that begins meanwhile writes its own.
                let begun = self.lock();
                if !begun.contains_key(&image) {
                    fs::remove_file(self.intent(&image)).or_else(|error| match error.kind() {
                        io::ErrorKind::NotFound => Ok(()),
                        _ => Err(error),
                    })?;
                    self.count("pulling");
                }
            }
        }
        Ok(())
    }

    fn under_way(&self, image: &str) {
        *self.lock().entry(image.to_owned()).or_default() += 1;
    }

    /// One less. Whether it was the last.
    fn no_longer(&self, image: &str) -> bool {
        let mut under_way = self.lock();
        let left = under_way.get(image).map_or(0, |count| count.saturating_sub(1));
        match left {
            0 => under_way.remove(image),
            left => under_way.insert(image.to_owned(), left),
        };
        left == 0
    }

    fn begin(&self, image: &str) -> io::Result<()> {
        let _locked = self.lock();
        let intent = json!({
            "kind": "ImagePullIntent", "apiVersion": "kubelet.config.k8s.io/v1beta1", "image": image,
        });
        write(&self.dir.join("pulling"), &file_name(image), intent.to_string().as_bytes())?;
        self.count("pulling");
        Ok(())
    }

    fn end(&self, image: &str) -> io::Result<()> {
        if !self.no_longer(image) {
            return Ok(());
        }
        let locked = self.lock();
        // Another one may have begun meanwhile.
        if locked.contains_key(image) {
            return Ok(());
        }
        let removed = fs::remove_file(self.intent(image));
        self.count("pulling");
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Upstream's: what it is of may hold what no file name may.
fn file_name(of: &str) -> String {
    let digest = Sha256::digest(of.as_bytes());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256-{digest}")
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let temporary = dir.join(format!("{name}.tmp"));
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    io::Write::write_all(&mut file, bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, dir.join(name))
}

#[cfg(test)]
mod tests {
    use mainstay_policy::PullSecret;

    use super::*;

    const IMAGE: &str = "r.test/team/app:1";

    fn secret(hash: &str) -> PullSecret {
        let (namespace, name) = ("ns".to_owned(), "s".to_owned());
        PullSecret { namespace, name, uid: format!("u-{hash}"), credential_hash: hash.to_owned() }
    }

    async fn showing(hash: &str) -> Shown {
        Shown { secrets: vec![secret(hash)], account: None }
    }

    async fn nothing() -> Shown {
        Shown::default()
    }

    #[tokio::test]
    async fn what_was_pulled_with_a_secret_is_for_those_who_have_it() {
        let dir = tempfile::tempdir().unwrap();
        let records = PullRecords::new(PullVerification::Pulled, dir.path(), Arc::default());
        assert!(records.may_use(IMAGE, "id", nothing).await, "somebody put it there");
        let intent = records.begin(IMAGE).await;
        assert!(!records.may_use(IMAGE, "id", || showing("1")).await, "it is being pulled for somebody");
        intent.succeeded(IMAGE, "id", PulledBy::Secret(secret("1"))).await;
        assert!(records.may_use(IMAGE, "id", || showing("1")).await);
        assert!(!records.may_use(IMAGE, "id", || showing("2")).await);
        assert!(!records.may_use(IMAGE, "id", nothing).await);
        // Another life heeds it.
        let again = PullRecords::new(PullVerification::Pulled, dir.path(), Arc::default());
        assert!(!again.may_use(IMAGE, "id", nothing).await);
        assert!(again.may_use(IMAGE, "id", || showing("1")).await);
        let never = PullRecords::new(PullVerification::Never, dir.path(), Arc::default());
        assert!(never.may_use(IMAGE, "id", nothing).await);
        // Once it was had without any, it is everybody's.
        again.begin(IMAGE).await.succeeded(IMAGE, "id", PulledBy::Anybody).await;
        assert!(again.may_use(IMAGE, "id", nothing).await);
        let left = fs::read_dir(dir.path().join("image_manager/pulling")).unwrap().count();
        assert_eq!(left, 0, "no pull is under way");
    }

    #[tokio::test]
    async fn a_pull_that_was_cut_short_is_not_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let records = PullRecords::new(PullVerification::Pulled, dir.path(), Arc::default());
        // Cut short while the runtime goes on: what is under way is forgotten, that it was is not.
        drop(records.begin(IMAGE).await);
        assert!(records.files.lock().is_empty());
        assert!(!records.may_use(IMAGE, "id", || showing("1")).await);
        let cut = records.begin(IMAGE).await;
        drop(records);
        let again = PullRecords::new(PullVerification::Pulled, dir.path(), Arc::default());
        assert!(!again.may_use(IMAGE, "id", || showing("1")).await);
        drop(cut);
        // Two at a time: the first to fail does not forget the other.
        let (first, second) = (again.begin(IMAGE).await, again.begin(IMAGE).await);
        first.failed().await;
        assert!(!again.may_use(IMAGE, "id", || showing("1")).await);
        second.failed().await;
        assert!(again.may_use(IMAGE, "id", nothing).await);
        // What cannot be read is no proof.
        let file = dir.path().join("image_manager/pulled").join(file_name("id"));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "{").unwrap();
        assert!(!again.may_use(IMAGE, "id", || showing("1")).await);
    }

    #[tokio::test]
    async fn what_is_written_down_and_how_it_is_judged_is_counted() {
        let (dir, counters) = (tempfile::tempdir().unwrap(), Arc::<NodeCounters>::default());
        let records = PullRecords::new(PullVerification::Pulled, dir.path(), Arc::clone(&counters));
        let files = || (counters.pull_intents.get(), counters.pulled_records.get());
        records.count().await;
        assert_eq!(files(), (0, 0));
        assert!(records.may_use(IMAGE, "id", nothing).await, "nobody pulled it");
        let pull = records.begin(IMAGE).await;
        assert_eq!(files(), (1, 0));
        assert!(!records.may_use(IMAGE, "id", nothing).await, "it is being pulled for somebody");
        pull.succeeded(IMAGE, "id", PulledBy::Secret(secret("1"))).await;
        assert_eq!(files(), (0, 1));
        assert!(records.may_use(IMAGE, "id", || showing("1")).await);
        assert!(!records.may_use(IMAGE, "id", nothing).await, "it has nothing to show");
        drop(records.begin(IMAGE).await);
        let counters = Arc::<NodeCounters>::default();
        let again = PullRecords::new(PullVerification::Pulled, dir.path(), Arc::clone(&counters));
        again.count().await;
        assert_eq!(
            (counters.pull_intents.get(), counters.pulled_records.get()),
            (1, 1),
            "of an earlier life"
        );
        let checks = |counters: &NodeCounters| -> Vec<_> {
            counters.image_checks.all().iter().map(|([why], count)| (*why, count.get())).collect()
        };
        let expected =
            [("credentialPolicyAllowed", 1), ("credentialRecordFound", 1), ("mustAuthenticate", 2)];
        assert_eq!(checks(&records.files.counters), expected);
        assert_eq!(checks(&counters), []);
    }

    #[tokio::test]
    async fn pulls_of_an_earlier_life_are_settled() {
        let dir = tempfile::tempdir().unwrap();
        let records = PullRecords::new(PullVerification::Pulled, dir.path(), Arc::default());
        let other = "r.test/team/other:1";
        // Killed in the middle of two pulls, of which the runtime has finished one.
        std::mem::forget((records.begin(IMAGE).await, records.begin(other).await));
        fs::write(dir.path().join("image_manager/pulling/sha256-x"), "{").unwrap();
        let again = PullRecords::new(PullVerification::Pulled, dir.path(), Arc::default());
        assert!(again.has_unsettled().await);
        let id = |name: &str| (format!("id of {name}"), vec![name.to_owned()]);
        again.settle(vec![id(IMAGE), id("r.test/bystander:1")]).await;
        let image = format!("id of {IMAGE}");
        assert!(!again.may_use(IMAGE, &image, nothing).await, "it was pulled for somebody");
        assert!(!again.may_use(IMAGE, &image, || showing("1")).await, "nobody knows for whom");
        assert!(again.may_use("r.test/bystander:1", "id of r.test/bystander:1", nothing).await);
        let left = again.files.intents().unwrap();
        assert_eq!(left, [other], "what is not there may still come");
        // Under another name of the image as well: it is the image that was pulled.
        assert!(!again.may_use("r.test/alias:1", &image, nothing).await);
        again.begin(IMAGE).await.succeeded(IMAGE, &image, PulledBy::Secret(secret("1"))).await;
        assert!(again.may_use(IMAGE, &image, || showing("1")).await);
    }
}
