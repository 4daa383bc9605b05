//! The one owner of the desired state: selects events, applies them, publishes.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use mainstay_lifecycle::storage_wish;
use mainstay_task::{Shutdown, TaskGroup};
use mainstay_types::{
    ApiPods, AwaitedSource, DesiredState, Event, EventKind, EventSink, EventTarget, FileVerdict,
    ObservedState, PodExt as _, PodSource, PodUid, StorageUsage, TerminationWish,
};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use crate::{
    api::ApiSource,
    book::{Book, Consequences, Delivered, News},
    config::{SourcesConfig, SourcesError},
    delivered::DeliveredFile,
    files::{FileScanner, Hints, Scan},
    inotify::{PathWatch, Told},
    records::{RecordChange, Records, keep_records},
    url::{self, UrlAnswer},
    verdicts::VerdictFile,
};

/// Changes that come together are looked at together.
const DEBOUNCE: Duration = Duration::from_millis(2);
/// A file that is being written is read when it is closed, or when nothing was written for this long.
const WRITING: Duration = Duration::from_millis(200);
/// The first delivery waits at most this long for files that are being written.
const FIRST_DELIVERY: Duration = Duration::from_secs(2);
/// A source that has not delivered is not waited for longer: a URL is given ten seconds to answer, and a bit.
const PATIENCE: Duration = Duration::from_secs(15);
/// A look at the path that takes this long is worth a warning: a network file system that hangs.
const SLOW_SCAN: Duration = Duration::from_secs(30);
/// Changes of the path that may wait; more make one look at everything.
const TOLD_BOUND: usize = 256;
/// Batches of records that may wait for the disk; then the sources wait for it too.
const RECORDS_BOUND: usize = 64;
const WISHES_BOUND: usize = 64;

/// Somebody's wish that a pod end although its source still has it. It stands until the pod is gone from its source.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The pod.
    pub uid: PodUid,
    /// Why, and how fast.
    pub wish: TerminationWish,
}

/// What is seen of the node, as far as it bears on what should run.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The runtime: a running pod may have to keep its UID.
    pub observed: watch::Receiver<Arc<ObservedState>>,
    /// What pods wrote to disk: who is over a limit of his own is wished away.
    pub usage: watch::Receiver<Arc<StorageUsage>>,
}

/// The ends of the running sources.
#[derive(Debug)]
pub struct Sources {
    /// What should run. The first value has generation 0 and means that nothing has been read yet.
    pub desired: watch::Receiver<Arc<DesiredState>>,
    /// Where wishes go in. Wishes about unknown pods are dropped.
    pub wishes: mpsc::Sender<Wish>,
    /// What the API server has of this node's pods; nothing, ever, without one.
    pub api_pods: watch::Receiver<ApiPods>,
}

impl Sources {
    /// Starts reading the configured sources.
    ///
    /// Verdicts are published as soon as files are read; pods only after the evidence has shown a complete list of the
    /// runtime, because a running pod may have to keep its UID.
    ///
    /// # Errors
    /// [`SourcesError`] when the directory for kept manifests cannot be made, or the URL can never be asked.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(
        config: SourcesConfig,
        tasks: &TaskGroup,
        events: EventSink,
        evidence: Evidence,
    ) -> Result<Self, SourcesError> {
        if let Some(source) = &config.static_pod_url {
            url::check(source)?;
        }
        let records = Arc::new(Records::open(&config.root_dir).map_err(SourcesError::State)?);
        let (verdicts, earlier, problem) =
            VerdictFile::open(&config.root_dir, tasks).map_err(SourcesError::State)?;
        let (url_file, url_problem) =
            DeliveredFile::open(&config.root_dir, tasks).map_err(SourcesError::State)?;
        let (api, api_pods, api_problems) = match &config.api_server {
            Some(client) => {
                let (api, pods, problems) = ApiSource::start(
                    client.clone(),
                    (&config.node_name, config.node_questions.clone()),
                    (&config.root_dir, config.object_key.clone()),
                    &events,
                    tasks,
                )
                .map_err(SourcesError::State)?;
                (Some(api), pods, problems)
            }
            None => (None, watch::channel(ApiPods::default()).1, Vec::new()),
        };
        let config = Arc::new(config);
        let (desired_sender, desired) = watch::channel(Arc::new(DesiredState::default()));
        let (wish_sender, wishes) = mpsc::channel(WISHES_BOUND);
        let (record_sender, record_receiver) = mpsc::channel(RECORDS_BOUND);
        let (answer_sender, answers) = mpsc::channel(1);

        tasks.spawn_critical("manifest records", keep_records(Arc::clone(&records), record_receiver));
        if let Some(source) = config.static_pod_url.clone() {
            let asking = url::ask(source, Arc::clone(&config), answer_sender, tasks.shutdown());
            tasks.spawn_critical("static pod URL", asking);
        }
        let loading = Loading {
            config,
            stored: records,
            verdicts,
            url_file,
            earlier,
            problems: problem.into_iter().chain(url_problem).chain(api_problems).collect(),
            api,
            shutdown: tasks.shutdown(),
            events,
            evidence,
            desired: desired_sender,
            records: record_sender,
            answers,
            wishes,
        };
        tasks.spawn_critical("sources", loading.run());
        Ok(Self { desired, wishes: wish_sender, api_pods })
    }
}

/// Everything the actor needs, before the kept manifests are read.
struct Loading {
    config: Arc<SourcesConfig>,
    stored: Arc<Records>,
    verdicts: VerdictFile,
    url_file: DeliveredFile,
    /// The verdicts of an earlier life, and what was wrong with them.
    earlier: Vec<FileVerdict>,
    problems: Vec<String>,
    api: Option<ApiSource>,
    shutdown: Shutdown,
    events: EventSink,
    evidence: Evidence,
    desired: watch::Sender<Arc<DesiredState>>,
    records: mpsc::Sender<Vec<RecordChange>>,
    answers: mpsc::Receiver<UrlAnswer>,
    wishes: mpsc::Receiver<Wish>,
}

impl Loading {
    async fn run(self) {
        let Self {
            config,
            stored,
            verdicts,
            url_file,
            earlier,
            problems,
            api,
            shutdown,
            events,
            evidence,
            ..
        } = self;
        let Self { desired, records, answers, wishes, .. } = self;
        let (node_name, takes_over) = (Arc::clone(&config.node_name), config.takes_over);
        let load = {
            let config = Arc::clone(&config);
            tokio::task::spawn_blocking(move || stored.load(&config))
        };
        let (held, set_aside) = match load.await {
            Ok(loaded) => loaded,
            Err(error) => {
                tracing::error!(%error, "reading the kept manifests failed; going on without them");
                (BTreeMap::new(), Vec::new())
            }
        };
        for message in set_aside.into_iter().chain(problems) {
            tracing::warn!("{message}");
            let (target, kind, reason) = (EventTarget::Node, EventKind::Warning, "StateFileSetAside".into());
            events.send(Event { target, kind, reason, message, time: Timestamp::now() });
        }
        let files = config.static_pod_path.as_deref().map(|path| Files::new(path, &config));
        let names = source_names(&config);
        let mut book = Book::new(node_name, held, names).with_earlier_verdicts(earlier);
        book.takes_over(takes_over);
        let mut delivered = Delivered {
            file: files.is_none(),
            http: config.static_pod_url.is_none(),
            ..Delivered::default()
        };
        match &api {
            None => delivered.api = true,
            Some(api) => {
                delivered.api_earlier = api.remembered();
                book.take_api(api.wanted(|_| false));
            }
        }
        if let Some(source) = &config.static_pod_url
            && (book.remembers(PodSource::Http, &source.url) || url_file.has(&source.url))
        {
            // Its last word is on disk, and stands until it says another.
            book.await_reading(PodSource::Http, &source.url);
            delivered.http = true;
        }
        let looked = files.is_none();
        let actor =
            Actor { delivered, looked, book, config, api, events, desired, records, verdicts, url_file };
        actor.run(files, answers, wishes, evidence, shutdown).await;
    }
}

struct Actor {
    config: Arc<SourcesConfig>,
    api: Option<ApiSource>,
    book: Book,
    delivered: Delivered,
    /// The files have been looked at, with whatever success, and none of them was half-written.
    looked: bool,
    events: EventSink,
    desired: watch::Sender<Arc<DesiredState>>,
    records: mpsc::Sender<Vec<RecordChange>>,
    verdicts: VerdictFile,
    url_file: DeliveredFile,
}

/// The file source.
struct Files {
    /// Away while a look is under way.
    eyes: Option<(FileScanner, PathWatch)>,
    told: mpsc::Receiver<Told>,
    missed: Arc<Notify>,
    changed: BTreeSet<PathBuf>,
    /// Files being written, and when they will be read even so.
    writing: BTreeMap<PathBuf, Instant>,
    next_look: Instant,
    look: Option<JoinHandle<(FileScanner, PathWatch, Scan)>>,
    slow_at: Instant,
    failing: bool,
    directory_gone: bool,
    started: Instant,
}

/// What happened.
enum Happened {
    Told(Option<Told>),
    TimeToLook,
    Slow,
    Looked(Result<(FileScanner, PathWatch, Scan), tokio::task::JoinError>),
    Observed(bool),
    Measured(bool),
    OutOfPatience,
    Answered(Option<UrlAnswer>),
    Wished(Option<Wish>),
    ApiNews,
    Shutdown,
}

impl Actor {
    async fn run(
        mut self,
        mut files: Option<Files>,
        mut answers: mpsc::Receiver<UrlAnswer>,
        mut wishes: mpsc::Receiver<Wish>,
        evidence: Evidence,
        shutdown: Shutdown,
    ) {
        let Evidence { mut observed, mut usage } = evidence;
        let (mut may_answer, mut may_wish, mut may_observe, mut may_measure) =
            (self.config.static_pod_url.is_some(), true, true, true);
        let patience = Instant::now() + PATIENCE;
        let mut api_again = None;
        // Says at once that there is nothing, where nothing is configured.
        self.settle(&observed).await;
        loop {
            let waiting = may_observe && !self.book.begun();
            let impatient = !self.delivered.waited && !self.delivered.all();
            // Every branch is cancel safe: the channels' `recv` and `changed` are, the look goes on in its own thread and
            // its handle stays where it is, and `happened` below only awaits such things.
            let happened = tokio::select! {
                biased;
                () = shutdown.signalled() => Happened::Shutdown,
                happened = Files::happened(files.as_mut()) => happened,
                changed = observed.changed(), if waiting => Happened::Observed(changed.is_ok()),
                changed = usage.changed(), if may_measure => Happened::Measured(changed.is_ok()),
                answer = answers.recv(), if may_answer => Happened::Answered(answer),
                wish = wishes.recv(), if may_wish => Happened::Wished(wish),
                () = api_news(self.api.as_ref()) => Happened::ApiNews,
                () = sleep_until(api_again.unwrap_or(patience)), if api_again.is_some() => Happened::ApiNews,
                () = sleep_until(patience), if impatient => Happened::OutOfPatience,
            };
            match happened {
                Happened::Shutdown => return,
                Happened::Told(told) => {
                    if let Some(files) = &mut files {
                        files.note(told);
                    }
                    continue;
                }
                Happened::TimeToLook => {
                    if let Some(files) = &mut files {
                        files.start_look(self.config.file_check_frequency);
                    }
                    continue;
                }
                Happened::Slow => {
                    if let Some(files) = &mut files {
                        files.slow_at = Instant::now() + SLOW_SCAN;
                    }
                    let path = self.config.static_pod_path.as_deref().unwrap_or(Path::new("")).display();
                    tracing::warn!(%path, "reading the static pod path takes very long; does its file system hang?");
                    continue;
                }
                Happened::Looked(Ok((scanner, watch, scan))) => {
                    if let Some(files) = &mut files {
                        self.take_scan(files, scanner, watch, scan);
                    }
                }
                Happened::Looked(Err(error)) => {
                    tracing::error!(%error, "looking at the static pod path failed");
                    return;
                }
                Happened::Observed(open) => may_observe = open,
                Happened::OutOfPatience => {
                    self.delivered.waited = true;
                    self.looked = true;
                }
                Happened::Measured(open) => {
                    may_measure = open;
                    let usage = usage.borrow_and_update().clone();
                    if !self.hold_to_limits(&usage) {
                        continue;
                    }
                }
                Happened::Answered(Some(UrlAnswer { reading, delivered })) => {
                    self.delivered.http |= delivered;
                    if let Some(source) = &self.config.static_pod_url {
                        if delivered {
                            self.url_file.note(&source.url);
                        }
                        self.book.read(PodSource::Http, &source.url, reading);
                    }
                }
                Happened::Answered(None) => {
                    may_answer = false;
                    continue;
                }
                Happened::Wished(Some(Wish { uid, wish })) => {
                    if !self.book.wish(uid.clone(), wish) {
                        tracing::debug!(%uid, "a wish about a pod that is not there");
                        continue;
                    }
                }
                Happened::ApiNews => {
                    if let Some(api) = &self.api {
                        let wanted = api.wanted(|uid| self.book.pod(uid).is_some());
                        // One that is held back may run already, if mainstay was killed before it was kept.
                        self.delivered.api |= wanted.whole;
                        api_again = wanted.again;
                        self.book.take_api(wanted);
                    }
                }
                Happened::Wished(None) => {
                    may_wish = false;
                    continue;
                }
            }
            self.settle(&observed).await;
        }
    }

    /// The node goes on without sources that did not deliver: that is for somebody to look at.
    fn tell_awaited(&self, state: &DesiredState) {
        // What the API server said in an earlier life holds until it says another: nobody waited for it.
        let waited = |awaited: &&AwaitedSource| awaited.source != PodSource::Api || self.delivered.waited;
        for awaited in state.awaited.iter().filter(waited) {
            let message = format!(
                "{} has not delivered within {} s; the node goes on without its pods, and removes nothing that may \
                 be its own until it does; make it answer, or take it out of the configuration",
                awaited.name,
                PATIENCE.as_secs()
            );
            tracing::warn!("{message}");
            let (target, kind, reason) = (EventTarget::Node, EventKind::Warning, "SourceNotDelivered".into());
            self.events.send(Event { target, kind, reason, message, time: Timestamp::now() });
        }
    }

    /// Wishes away the pods that wrote more than they may. Whether there is one that was not wished away before.
    fn hold_to_limits(&mut self, usage: &StorageUsage) -> bool {
        let mut any = false;
        for (uid, storage) in &usage.pods {
            // What was measured may be an earlier life of the same UID, and one that is told to go need not be told again.
            let current = self
                .book
                .pod(uid)
                .is_some_and(|pod| Arc::ptr_eq(&pod.pod, &storage.pod) && pod.terminate.is_none());
            if current && let Some(wish) = storage_wish(storage) {
                tracing::warn!(pod.uid = %uid, why = wish.message.trim_end(), "the pod is over a storage limit: it must end");
                any |= self.book.wish(uid.clone(), wish);
            }
        }
        any
    }

    fn take_scan(&mut self, files: &mut Files, scanner: FileScanner, watch: PathWatch, scan: Scan) {
        files.look = None;
        files.eyes = Some((scanner, watch));
        if let Some(failure) = scan.failure {
            if !files.failing {
                tracing::warn!("{failure}; what was known before still counts");
            }
            files.failing = true;
            self.looked = true;
            return;
        }
        if scan.directory_gone {
            let path = self.config.static_pod_path.as_deref().unwrap_or(Path::new(""));
            self.looked = true;
            self.delivered.file = true;
            let kept = self.book.keep_below(path);
            if !files.failing && kept > 0 {
                tracing::warn!(path = %path.display(), kept, "the static pod path is gone; its pods are kept");
            } else if !files.failing {
                tracing::warn!(path = %path.display(), "the static pod path does not exist; it is waited for");
            }
            files.failing = true;
            files.directory_gone = true;
            return;
        }
        if files.directory_gone {
            // It is back. What was kept and is not in it is deleted.
            let known = files.eyes.as_ref().map(|(scanner, _)| scanner);
            self.book.retain_files(|origin| known.is_some_and(|scanner| scanner.knows(origin)));
        }
        files.directory_gone = false;
        files.failing = false;
        if scan.pending.is_empty() || files.started.elapsed() > FIRST_DELIVERY {
            self.looked = true;
            self.delivered.file = true;
        }
        for origin in scan.pending {
            self.book.await_reading(PodSource::File, &origin);
        }
        for origin in scan.removed {
            self.book.remove(PodSource::File, &origin);
        }
        for (origin, reading) in scan.readings {
            self.book.read(PodSource::File, &origin, reading);
        }
        if let Some(wait) = scan.again_in {
            files.next_look = files.next_look.min(Instant::now() + wait);
        }
    }

    /// Draws the consequences and makes them known. The state goes out before the records: what is in them can be
    /// computed again, and a disk that is slow to flush must not make pods wait.
    async fn settle(&mut self, observed: &watch::Receiver<Arc<ObservedState>>) {
        let runtime = if self.looked { Some(Arc::clone(&observed.borrow())) } else { None };
        let Consequences { state, records, events, news } =
            self.book.settle(self.delivered, runtime.as_deref(), Timestamp::now());
        for event in events {
            // A full event store drops events by design, and the same is in the log and in the verdicts.
            self.events.send(event);
        }
        if let Some(state) = state {
            let (was_synced, before) = {
                let before = self.desired.borrow();
                (before.synced, Arc::clone(&before.verdicts))
            };
            if state.synced && !was_synced {
                self.tell_awaited(&state);
            }
            // Half of them would make the others look new after the next start.
            if state.synced && !(was_synced && Arc::ptr_eq(&state.verdicts, &before)) {
                self.verdicts.keep(&state.verdicts);
            }
            if let Some(api) = self.api.as_ref().filter(|_| state.synced) {
                api.need_classes(static_classes(&state));
            }
            self.desired.send_replace(state);
        }
        for line in news {
            log(line);
        }
        if !records.is_empty() && self.records.send(records).await.is_err() {
            tracing::error!("the keeper of manifests is gone; changes are not kept");
        }
    }
}

/// The RuntimeClasses that pods of files and of the URL name: the API server may be the one who has them.
fn static_classes(state: &DesiredState) -> BTreeSet<String> {
    let pods = state.pods.values().filter(|pod| pod.source.is_static());
    pods.filter_map(|pod| pod.pod.spec_ref().runtime_class_name.clone())
        .filter(|class| !class.is_empty())
        .collect()
}

impl Files {
    fn new(path: &Path, config: &SourcesConfig) -> Self {
        let (sender, told) = mpsc::channel(TOLD_BOUND);
        let missed = Arc::new(Notify::new());
        let watch = PathWatch::new(path, sender, Arc::clone(&missed));
        let scanner = FileScanner::new(path.to_owned(), config);
        let now = Instant::now();
        Self {
            eyes: Some((scanner, watch)),
            told,
            missed,
            changed: BTreeSet::new(),
            writing: BTreeMap::new(),
            next_look: now,
            look: None,
            slow_at: now,
            failing: false,
            directory_gone: false,
            started: now,
        }
    }

    /// The next thing that happens to the files; never, without a file source. Cancel safe.
    async fn happened(files: Option<&mut Self>) -> Happened {
        let Some(files) = files else { return std::future::pending().await };
        let Self { told, missed, next_look, look, slow_at, .. } = files;
        let looking = look.is_some();
        let finished = async {
            match look {
                Some(look) => look.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(told) = told.recv() => Happened::Told(Some(told)),
            () = missed.notified() => Happened::Told(None),
            done = finished => Happened::Looked(done),
            () = sleep_until(*slow_at), if looking => Happened::Slow,
            () = sleep_until(*next_look), if !looking => Happened::TimeToLook,
        }
    }

    /// Takes note of a change; `None` says that one was missed.
    fn note(&mut self, told: Option<Told>) {
        let now = Instant::now();
        let look_at = match told {
            Some(Told::Settled(path)) => {
                self.writing.remove(&path);
                self.changed.insert(path);
                now + DEBOUNCE
            }
            Some(Told::Writing(path)) => {
                let until = now + WRITING;
                self.writing.insert(path, until);
                until
            }
            Some(Told::Missed) | None => now + DEBOUNCE,
        };
        self.next_look = self.next_look.min(look_at);
    }

    fn start_look(&mut self, check_frequency: Duration) {
        let Some((mut scanner, mut watch)) = self.eyes.take() else { return };
        let now = Instant::now();
        let (waiting, quiet): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.writing).into_iter().partition(|(_, until)| *until > now);
        self.writing = waiting;
        let mut changed = std::mem::take(&mut self.changed);
        changed.extend(quiet.into_keys());
        let hints = Hints { changed, writing: self.writing.keys().cloned().collect() };
        self.slow_at = now + SLOW_SCAN;
        self.next_look = now + check_frequency.max(Duration::from_secs(1));
        if let Some(earliest) = self.writing.values().min() {
            self.next_look = self.next_look.min(*earliest);
        }
        self.look = Some(tokio::task::spawn_blocking(move || {
            watch.arm();
            let scan = scanner.scan(&hints);
            (scanner, watch, scan)
        }));
    }
}

/// How people know the configured sources.
fn source_names(config: &SourcesConfig) -> Vec<AwaitedSource> {
    let path = config
        .static_pod_path
        .as_ref()
        .map(|path| AwaitedSource::new(PodSource::File, format!("staticPodPath {}", path.display())));
    let url = config
        .static_pod_url
        .as_ref()
        .map(|source| AwaitedSource::new(PodSource::Http, format!("staticPodURL {}", source.url)));
    let api = config
        .api_server
        .as_ref()
        .map(|client| AwaitedSource::new(PodSource::Api, format!("the API server {}", client.server())));
    path.into_iter().chain(url).chain(api).collect()
}

/// News of the API server; never, without one. Cancel safe.
async fn api_news(api: Option<&ApiSource>) {
    match api {
        Some(api) => api.news().await,
        None => std::future::pending().await,
    }
}

fn log(news: News) {
    match news {
        News::Added { object, uid, origin } => tracing::info!(object, %uid, %origin, "added"),
        News::Replaced { object, old_uid, uid, origin } => {
            tracing::info!(object, %old_uid, %uid, %origin, "replaced by an edited version");
        }
        News::TakenOver { object, uid, origin } => {
            tracing::info!(object, %uid, %origin, "added; it already runs and keeps its UID");
        }
        News::Removed { object, uid, origin } => tracing::info!(object, %uid, %origin, "removed"),
        News::Rejected { object, origin, problems, previous_kept } => {
            tracing::warn!(object, origin, previous_kept, problems = problems.join("; "), "rejected");
        }
        News::Warned { object, origin, warnings } => {
            tracing::warn!(object, origin, warnings = warnings.join("; "), "accepted with warnings");
        }
    }
}
