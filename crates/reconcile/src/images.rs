//! Images: there already, or pulled within limits.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Container, Secret};
use mainstay_cri::CriError;
use mainstay_lifecycle::HoldCause;
use mainstay_podspec::runtime::{Credential, ImageName, Keyring};
use mainstay_policy::{PullSecret, PulledBy, Shown};
use mainstay_task::Backoff;
use mainstay_types::{
    ContainerKind, ContainerReason, EventKind, FullName, ObservedContainer, PodExt, format_go_duration,
    image_size_label,
};
use tokio::sync::Semaphore;
use tracing::{debug, info, warn};

use crate::{
    PullLimits,
    accounts::ForPod,
    providers::Given,
    sandbox,
    sandbox::Made,
    userns,
    worker::{Fact, Order, RETRY_AFTER, Shared, hold},
};

/// Why there is no image. It has been reported already.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// The container waits, with a reason.
    Held,
    /// The pod is to end.
    Cancelled,
}

/// Longest that a pull keeps others from beginning. The runtime itself gives up on one that makes no progress, but not
/// every runtime, and not every kind of no progress.
const PERMIT_TIME: Duration = Duration::from_secs(300);

/// How often a runtime that does not answer is asked for its images again.
const SETTLE_AGAIN: Backoff =
    Backoff::doubling(Duration::from_secs(1), Duration::from_secs(60)).with_jitter(0.3);

/// Limits pulls of the whole node.
#[derive(Debug)]
pub(crate) struct Puller {
    permits: Option<Semaphore>,
    bucket: Option<Mutex<Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
    per_second: f64,
    burst: f64,
}

impl Puller {
    pub(crate) fn new(limits: PullLimits) -> Self {
        let bucket = (limits.per_second > 0).then(|| {
            let burst = f64::from(limits.burst.max(1));
            Mutex::new(Bucket {
                tokens: burst,
                filled: Instant::now(),
                per_second: f64::from(limits.per_second),
                burst,
            })
        });
        Self { permits: limits.parallel.map(Semaphore::new), bucket }
    }

    /// Takes one pull out of the budget; `false` when it is used up for now.
    fn within_rate(&self, now: Instant) -> bool {
        let Some(bucket) = &self.bucket else { return true };
        let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let gained = now.saturating_duration_since(bucket.filled).as_secs_f64() * bucket.per_second;
        bucket.tokens = (bucket.tokens + gained).min(bucket.burst);
        bucket.filled = now;
        if bucket.tokens < 1.0 {
            return false;
        }
        bucket.tokens -= 1.0;
        true
    }
}

/// Settles what an earlier life left of its pulls, as soon as the runtime says which images there are. Until then each of those
/// images counts as one that was pulled for somebody.
pub(crate) async fn settle(shared: &Shared) {
    shared.pulled.count().await;
    if !shared.pulled.has_unsettled().await {
        return;
    }
    let mut attempts = SETTLE_AGAIN.attempts();
    let images = loop {
        match shared.config.cri.list_images().await {
            Ok(images) => break images,
            Err(error) => debug!(%error, "the images cannot be listed yet"),
        }
        tokio::time::sleep(attempts.failed()).await;
    };
    let names =
        |image: cri::Image| (image.id, image.repo_tags.into_iter().chain(image.repo_digests).collect());
    shared.pulled.settle(images.into_iter().map(names).collect()).await;
}

/// What was found out about an image on the way: whether it was there, and whether it had to be pulled.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    present: Option<bool>,
    pull: Option<bool>,
}

impl Found {
    /// Upstream's labels: present_locally, pull_policy, pull_required.
    fn labels(self, policy: &str) -> [&'static str; 3] {
        let word = |known: Option<bool>| known.map_or("unknown", |is| if is { "true" } else { "false" });
        let policy = match policy {
            "Always" => "always",
            "Never" => "never",
            _ => "ifnotpresent",
        };
        [word(self.present), policy, word(self.pull)]
    }
}

/// Makes sure that the container's image is there, by its pull policy.
pub(crate) async fn ensure(
    shared: &Shared,
    order: &Order,
    target: &Made,
    spec: &Container,
    kind: ContainerKind,
) -> Result<cri::Image, Wanted> {
    let mut found = Found::default();
    let ensured = Box::pin(try_ensure(shared, order, target, spec, kind, &mut found)).await;
    let policy = spec.image_pull_policy.as_deref().unwrap_or_default();
    shared.config.counters.images_wanted.of(found.labels(policy)).add();
    ensured
}

async fn try_ensure(
    shared: &Shared,
    order: &Order,
    target: &Made,
    spec: &Container,
    kind: ContainerKind,
    found: &mut Found,
) -> Result<cri::Image, Wanted> {
    let desired = &order.desired;
    let who = Some((kind, spec.name.as_str()));
    let asked = spec.image.as_deref().unwrap_or_default();
    let image = match ImageName::with_default_tag(asked) {
        Ok(image) => image,
        Err(error) => {
            let message = error.waiting_message();
            shared.event(desired, who, EventKind::Warning, "InspectFailed", message.clone());
            shared.event(desired, who, EventKind::Warning, "Failed", "Error: InvalidImageName".into());
            return held(shared, order, spec, "InvalidImageName", message).await;
        }
    };
    let present = match shared.config.cri.image_status(&image).await {
        Ok(present) => present,
        Err(error) => {
            let message = format!("Failed to inspect image {image:?}: {error}");
            shared.event(desired, who, EventKind::Warning, "InspectFailed", message.clone());
            shared.event(desired, who, EventKind::Warning, "Failed", "Error: ImageInspectError".into());
            return held(shared, order, spec, "ImageInspectError", message).await;
        }
    };
    let policy = spec.image_pull_policy.as_deref().unwrap_or("IfNotPresent");
    found.present = Some(present.is_some());
    // Who may use it may take a program and the API server to say, and the pod may be to end meanwhile.
    let usable = match &present {
        Some(present) if policy != "Always" => {
            let verdict = order.cancel.cut(Box::pin(may_use(shared, order, asked, present))).await;
            verdict.ok_or(Wanted::Cancelled)?
        }
        _ => false,
    };
    match (policy, present) {
        ("Never" | "IfNotPresent", Some(present)) if usable => {
            found.pull = Some(false);
            let text = format!(
                "Container image {asked:?} already present on machine and can be accessed by the pod"
            );
            shared.event(desired, who, EventKind::Normal, "Pulled", text);
            if order.had_pull_trouble {
                shared.report(&desired.uid, Fact::Pulled { image: asked.to_owned() }).await;
            }
            Ok(present)
        }
        // Not for this pod, for all it can show.
        ("Never", _) => {
            let message = format!("Container image {asked:?} is not present with pull policy of Never");
            shared.event(desired, who, EventKind::Warning, "ErrImageNeverPull", message.clone());
            shared.event(desired, who, EventKind::Warning, "Failed", "Error: ErrImageNeverPull".into());
            held(shared, order, spec, "ErrImageNeverPull", message).await
        }
        _ => {
            found.pull = Some(true);
            pull(shared, order, target, spec, kind, &image).await
        }
    }
}

async fn held(
    shared: &Shared,
    order: &Order,
    spec: &Container,
    reason: &'static str,
    message: String,
) -> Result<cri::Image, Wanted> {
    warn!(reason, message, "cannot use the container's image");
    let cause = HoldCause::Failed(ContainerReason { reason: reason.into(), message });
    hold(shared, &order.desired.uid, spec.name.as_str().into(), cause, RETRY_AFTER).await;
    Err(Wanted::Held)
}

async fn pull(
    shared: &Shared,
    order: &Order,
    target: &Made,
    spec: &Container,
    kind: ContainerKind,
    image: &str,
) -> Result<cri::Image, Wanted> {
    let desired = &order.desired;
    let who = Some((kind, spec.name.as_str()));
    let asked = spec.image.as_deref().unwrap_or_default();
    let waits = order.pulls_that_wait.lock().unwrap_or_else(PoisonError::into_inner).get(asked).cloned();
    if let Some(cause) = waits {
        let (name, image) = (spec.name.as_str().into(), asked.to_owned());
        shared.report(&desired.uid, Fact::PullHeld { name, image, at: Timestamp::now(), cause }).await;
        return Err(Wanted::Held);
    }
    // The pull may take long: let clients see the sandbox meanwhile.
    shared.look(order);
    shared.event(desired, who, EventKind::Normal, "Pulling", format!("Pulling image {asked:?}"));
    let begun = Instant::now();
    let work = async {
        // Before the permit: a program that is asked for them and hangs holds up this pod alone.
        let (credentials, problems) = credentials(shared, order, image).await;
        let permit = match &shared.puller.permits {
            Some(permits) => permits.acquire().await.ok(),
            None => None,
        };
        if !shared.puller.within_rate(Instant::now()) {
            return Err(Trouble::Rate);
        }
        let intent = shared.pulled.begin(asked).await;
        let pulling = Instant::now();
        // A pull needs the configuration only for its labels: one that cannot be made is told of with the container.
        let ids = userns::ensure(shared, order).await.ok().flatten();
        let sandbox = sandbox::config(shared, order, target.attempt, ids.as_ref()).await.ok();
        let pull = pull_with(shared, image, credentials, sandbox);
        let pulled = Box::pin(not_holding_up_others(pull, permit, PERMIT_TIME, image)).await;
        let pulled = match pulled {
            Ok((present, used)) => {
                intent.succeeded(asked, &present.id, pulled_by(order, used)).await;
                Ok(present)
            }
            Err(trouble) => {
                intent.failed().await;
                Err(trouble)
            }
        };
        if pulled.is_err() {
            for text in problems {
                shared.event(desired, None, EventKind::Warning, "FailedToRetrieveImagePullSecret", text);
            }
        }
        pulled.map(|present| (present, pulling.elapsed()))
    };
    let mut span = mainstay_trace::child("image pull");
    if span.is_recorded() {
        span.set("container.image.name", asked.to_owned());
    }
    let result = match order.cancel.cut(span.run(Box::pin(work))).await {
        None => return Err(Wanted::Cancelled),
        Some(result) => result,
    };
    let is_new = |name: &str| order.observed.as_deref().is_none_or(|pod| pod.newest(name).is_none());
    if desired.pod.spec_ref().containers.iter().any(|container| is_new(&container.name)) {
        shared.config.counters.pull_times.add(&desired.uid, begun.elapsed());
    }
    match result {
        Ok((present, took)) => {
            let size = present.size;
            let text = format!(
                "Successfully pulled image {asked:?} in {} ({} including waiting). Image size: {size} bytes.",
                format_go_duration(whole_millis(took)),
                format_go_duration(whole_millis(begun.elapsed())),
            );
            info!(image, millis = took.as_millis(), "image pulled");
            shared.event(desired, who, EventKind::Normal, "Pulled", text);
            shared.report(&desired.uid, Fact::Pulled { image: asked.to_owned() }).await;
            Ok(present)
        }
        Err(trouble) => {
            let (reason, message) = trouble.face(asked);
            span.fail(&message);
            warn!(image, reason, message, "cannot pull the image");
            shared.event(
                desired,
                who,
                EventKind::Warning,
                "Failed",
                format!("Failed to pull image {asked:?}: {message}"),
            );
            shared.event(desired, who, EventKind::Warning, "Failed", format!("Error: {reason}"));
            let cause = HoldCause::Pull { image: asked.to_owned(), reason: reason.into(), message };
            order
                .pulls_that_wait
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(asked.to_owned(), cause.clone());
            let name = spec.name.as_str().into();
            let fact = Fact::PullFailed { name, image: asked.to_owned(), at: Timestamp::now(), cause };
            shared.report(&desired.uid, fact).await;
            Err(Wanted::Held)
        }
    }
}

/// Runs a pull; after a while it no longer counts against the limit, so that one that hangs does not stop all others.
async fn not_holding_up_others<T, P>(
    pull: impl Future<Output = T>,
    permit: Option<P>,
    time: Duration,
    image: &str,
) -> T {
    let mut pull = std::pin::pin!(pull);
    let early = tokio::time::timeout(time, &mut pull).await;
    if permit.is_some() && early.is_err() {
        warn!(image, "the pull takes very long; other pulls no longer wait for it");
    }
    drop(permit);
    match early {
        Ok(pulled) => pulled,
        Err(_) => pull.await,
    }
}

fn whole_millis(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

enum Trouble {
    Rate,
    Runtime(CriError),
    Vanished,
}

impl Trouble {
    /// Waiting reason and message. The runtime may name a more precise reason at the head of its text, as upstream reads it.
    fn face(self, image: &str) -> (&'static str, String) {
        match self {
            Self::Rate => ("ErrImagePull", "pull QPS exceeded".into()),
            Self::Vanished => (
                "ErrImagePull",
                format!("image {image:?} was pulled but is not there; is the runtime's disk full?"),
            ),
            Self::Runtime(CriError::Refused { message, .. }) => {
                for reason in ["RegistryUnavailable", "SignatureValidationFailed"] {
                    if let Some(rest) = message.strip_prefix(reason) {
                        return (reason, rest.trim_start_matches([':', ' ']).to_owned());
                    }
                }
                ("ErrImagePull", message)
            }
            Self::Runtime(error) => ("ErrImagePull", error.to_string()),
        }
    }
}

/// Tries each credential, or none when there are none; the last error counts. The image, and what it was pulled with.
async fn pull_with(
    shared: &Shared,
    image: &str,
    credentials: Vec<Given>,
    sandbox: Option<cri::PodSandboxConfig>,
) -> Result<(cri::Image, Option<Given>), Trouble> {
    let tries: Vec<Option<Given>> =
        if credentials.is_empty() { vec![None] } else { credentials.into_iter().map(Some).collect() };
    let mut last = Trouble::Vanished;
    for credential in tries {
        let auth = credential.as_ref().map(|given| given.credential.auth_config());
        let begun = Instant::now();
        match shared.config.cri.pull_image(image, auth, sandbox.clone()).await {
            Ok(reference) => {
                let took = begun.elapsed();
                let found =
                    match shared.config.cri.image_status(&reference).await.map_err(Trouble::Runtime)? {
                        Some(found) => Some(found),
                        None => shared.config.cri.image_status(image).await.map_err(Trouble::Runtime)?,
                    };
                let size = image_size_label(found.as_ref().map_or(0, |image| image.size));
                shared.config.counters.pulls.of([size]).observe(took);
                return found.map(|found| (found, credential)).ok_or(Trouble::Vanished);
            }
            Err(error) => last = Trouble::Runtime(error),
        }
    }
    Err(last)
}

/// Whether the pod may use an image that is there without asking its registry.
async fn may_use(shared: &Shared, order: &Order, asked: &str, present: &cri::Image) -> bool {
    let Ok(name) = ImageName::parse(asked) else { return false };
    // A pod that has run this very image has proved that it may; else it could not start again while nobody can be asked.
    if order.observed.as_deref().is_some_and(|pod| pod.containers.iter().any(|it| runs(it, present))) {
        return true;
    }
    let shown = async || {
        let (keyrings, _) = keyrings(order);
        let credentials = keyrings.iter().flat_map(|keyring| keyring.lookup(&name));
        let secrets = credentials.filter_map(|credential| pull_secret(order, &credential)).collect();
        let (given, _) = shared.providers.lookup(&name, &ForPod::of(&order.desired)).await;
        Shown { secrets, account: given.into_iter().find_map(|given| given.account) }
    };
    shared.pulled.may_use(asked, &present.id, shown).await
}

/// Whether a container was made from an image, by either name that runtimes give it.
fn runs(container: &ObservedContainer, image: &cri::Image) -> bool {
    let used = &*container.image_ref;
    !used.is_empty() && (used == image.id || image.repo_digests.iter().any(|digest| digest == used))
}

/// Whose an image is that was pulled with this; nothing is what every pod of the node has, too.
fn pulled_by(order: &Order, used: Option<Given>) -> PulledBy {
    let Some(Given { credential, account }) = used else { return PulledBy::Anybody };
    match account {
        Some(account) => PulledBy::Account(account),
        None => pull_secret(order, &credential).map_or(PulledBy::Anybody, PulledBy::Secret),
    }
}

/// What of a Secret is written down; `None` for what every pod of the node has.
fn pull_secret(order: &Order, credential: &Credential) -> Option<PullSecret> {
    let source = credential.source()?;
    let secret = order.objects.secrets.get(source)?;
    Some(PullSecret {
        namespace: source.namespace.to_string(),
        name: source.name.to_string(),
        uid: secret.metadata.uid.clone().unwrap_or_default(),
        credential_hash: credential.hash(),
    })
}

/// The pod's pull secrets, and what is wrong with them.
fn keyrings(order: &Order) -> (Vec<Keyring>, Vec<String>) {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    let pod = &order.desired.pod;
    let (mut secrets, mut missing): (Vec<&Secret>, Vec<&str>) = (Vec::new(), Vec::new());
    for reference in pod.spec_ref().image_pull_secrets.iter().flatten() {
        let full_name = FullName::new(pod.namespace_ref(), &reference.name);
        match order.objects.secrets.get(&full_name) {
            Some(secret) => secrets.push(secret),
            None => missing.push(&reference.name),
        }
    }
    if !missing.is_empty() {
        problems.push(format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            missing.join(", ")
        ));
    }
    for secret in secrets {
        match Keyring::from_secrets([secret]) {
            Ok(keyring) => found.push(keyring),
            Err(error) => problems.push(format!("Unable to use an image pull secret: {error}")),
        }
    }
    (found, problems)
}

/// Credentials for an image: the pod's pull secrets, the node's `config.json`, what credential providers say. And what is wrong with the secrets,
/// which matters only if the image cannot be pulled without them.
async fn credentials(shared: &Shared, order: &Order, image: &str) -> (Vec<Given>, Vec<String>) {
    let Ok(name) = ImageName::parse(image) else { return (Vec::new(), Vec::new()) };
    let (keyrings, mut problems) = keyrings(order);
    let mut found: Vec<Credential> = keyrings.iter().flat_map(|keyring| keyring.lookup(&name)).collect();
    let path = shared.config.node.root_dir.join("config.json");
    if let Ok(bytes) = tokio::fs::read(&path).await {
        match Keyring::from_config_json(&bytes, &path.display().to_string()) {
            Ok(keyring) => found.extend(keyring.lookup(&name)),
            Err(error) => debug!(%error, "cannot use the node's registry credentials"),
        }
    }
    let mut found: Vec<Given> =
        found.into_iter().map(|credential| Given { credential, account: None }).collect();
    let (more, failed) = shared.providers.lookup(&name, &ForPod::of(&order.desired)).await;
    found.extend(more);
    problems.extend(failed);
    (found, problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_a_wish_for_an_image_has_upstreams_words() {
        let found = |present, pull| Found { present, pull };
        for (row, found, policy, expected) in [
            ("its name is no name", Found::default(), "", ["unknown", "ifnotpresent", "unknown"]),
            (
                "it is there",
                found(Some(true), Some(false)),
                "IfNotPresent",
                ["true", "ifnotpresent", "false"],
            ),
            ("it is not", found(Some(false), Some(true)), "Always", ["false", "always", "true"]),
            ("nor may it be pulled", found(Some(false), None), "Never", ["false", "never", "unknown"]),
        ] {
            assert_eq!(found.labels(policy), expected, "{row}");
        }
    }

    #[tokio::test]
    async fn a_pull_that_hangs_does_not_keep_its_permit() {
        let permits = Semaphore::new(1);
        let permit = permits.acquire().await.ok();
        let (end, ended) = tokio::sync::oneshot::channel();
        let hanging = not_holding_up_others(ended, permit, Duration::from_millis(10), "i");
        let next = async {
            // Waits for the permit of the one that hangs, which then ends after all.
            drop(permits.acquire().await.unwrap());
            end.send(7).unwrap();
        };
        let (pulled, ()) =
            tokio::time::timeout(Duration::from_secs(30), async { tokio::join!(hanging, next) })
                .await
                .unwrap();
        assert_eq!(pulled.unwrap(), 7);
    }

    #[test]
    fn pulls_are_limited_by_rate() {
        let puller = Puller::new(PullLimits { parallel: None, per_second: 5, burst: 2 });
        let now = Instant::now();
        let tries = |at| [puller.within_rate(at), puller.within_rate(at), puller.within_rate(at)];
        assert_eq!(tries(now), [true, true, false]);
        assert_eq!(tries(now + Duration::from_millis(200)), [true, false, false]);
        assert_eq!(tries(now + Duration::from_secs(60)), [true, true, false], "no more than the burst");
        let unlimited = Puller::new(PullLimits { parallel: None, per_second: 0, burst: 0 });
        assert!((0..1000).all(|_| unlimited.within_rate(now)));
    }
}
