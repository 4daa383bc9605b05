//! The objects that API pods need: ConfigMaps, Secrets and trust bundles, each listened to while some pod refers to it, and
//! tokens of service accounts and certificates, renewed before they expire.
//!
//! One task for all. A pod that is new is held back by its source until each of its objects has been looked up once, so that
//! none fails for want of something that was only on its way.

mod certificates;
mod claims;
mod due;
mod pod_key;
mod services;
mod trust;
pub(crate) mod unreadable;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use self::{
    certificates::{CertificateAsk, Desk},
    due::{Due, Moment},
    services::SlimService,
};
use crate::kept_objects::KeptObjects;
use futures_util::{
    StreamExt as _,
    future::{AbortHandle, Abortable},
    stream::FuturesUnordered,
};
use jiff::Timestamp;
use k8s_openapi::{
    ListableResource, Metadata,
    api::{
        core::v1::{ConfigMap, Secret},
        node::v1::RuntimeClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use mainstay_apiserver::{ApiError, Change, Client, Reflected, bound_token, reflect, renew_token_after};
use mainstay_podspec::{References, references};
use mainstay_task::{Backoff, random_unit};
use mainstay_types::{
    DesiredPod, EventSink, FullName, Objects, PodExt as _, PodUid, ServiceToken, TokenKey, TrustQuery,
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

/// How long a new pod waits for its objects when they cannot be had: then it is shown, and says what is missing.
const PATIENCE: Duration = Duration::from_secs(10);
const RETRY: Backoff =
    Backoff::doubling(Duration::from_millis(500), Duration::from_secs(30)).with_jitter(0.3);
/// So many tokens are asked for at a time: enough for the usual rate when the API server takes half a second for each.
const TOKENS_AT_ONCE: usize = 24;

/// When a token is asked for (again).
#[derive(Debug)]
struct Renewal {
    due: Due,
    attempts: mainstay_task::Attempts,
    /// It is being asked for.
    asked: bool,
}

type Renewals = BTreeMap<TokenKey, Renewal>;

/// What is known of objects, shared with the owner of the desired state.
#[derive(Clone, Debug)]
pub(crate) struct ApiObjects {
    known: Arc<Mutex<Known>>,
    /// Somebody needs other objects than before.
    needs: Arc<Notify>,
    /// There are other objects than before.
    news: Arc<Notify>,
    /// Where they are kept for a start without the API server.
    kept: Option<KeptObjects>,
    events: EventSink,
    certificates: Arc<Desk>,
}

#[derive(Debug, Default)]
struct Known {
    objects: Objects,
    /// Those that have been looked up in this life, there or not. What was kept is for pods that ran before, and for others
    /// only when the API server does not answer in time.
    config_maps: BTreeSet<FullName>,
    secrets: BTreeSet<FullName>,
    runtime_classes: BTreeSet<String>,
    trust_bundles: BTreeSet<TrustQuery>,
    claims: BTreeSet<FullName>,
    /// All services have been listed.
    services: bool,
    wanted: BTreeMap<PodUid, Wanted>,
    /// What pods of other sources name, once that is known.
    static_classes: Option<BTreeSet<String>>,
    /// Those that cannot be read, with the version of which that was told.
    unreadable: BTreeMap<(&'static str, FullName), String>,
}

/// What one pod needs.
#[derive(Debug)]
struct Wanted {
    references: References,
    /// Who it is: tokens are bound to it.
    full_name: FullName,
    account: String,
    /// Not waited for any longer.
    patience: Instant,
}

impl ApiObjects {
    /// Begins with what is on disk: it holds until the API server has said otherwise.
    pub(crate) fn new(
        news: Arc<Notify>,
        kept: Option<KeptObjects>,
        objects: Objects,
        events: EventSink,
    ) -> Self {
        let known = Known { objects, ..Known::default() };
        let (known, needs) = (Arc::new(Mutex::new(known)), Arc::new(Notify::new()));
        Self { known, needs, news, kept, events, certificates: Arc::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says which pods there are; what others needed is forgotten. Which of them wait for objects that have not been looked
    /// up yet, and until when at the latest.
    pub(crate) fn need(&self, pods: &BTreeMap<PodUid, Arc<DesiredPod>>) -> BTreeMap<PodUid, Instant> {
        let mut known = self.known();
        let (mut changed, mut newcomers) = (false, BTreeSet::new());
        // A pod that is over needs nothing any more, however long it is still there to be looked at.
        let is_over = |pod: &DesiredPod| pod.remote.as_deref().is_some_and(|it| it.finished.is_some());
        known.wanted.retain(|uid, _| {
            let stays = pods.get(uid).is_some_and(|pod| !is_over(pod));
            changed |= !stays;
            stays
        });
        for (uid, pod) in pods.iter().filter(|(_, pod)| !is_over(pod)) {
            if known.wanted.contains_key(uid) {
                // What a pod refers to cannot change, but for ephemeral containers, which come with their own update.
                continue;
            }
            changed = true;
            newcomers.insert(Arc::clone(&pod.full_name.namespace));
            let account = pod.pod.spec_ref().service_account_name.clone().unwrap_or_else(|| "default".into());
            let references = references(&pod.pod);
            // A claim of the same name may have been made anew since another pod asked after it.
            known.claims.retain(|name| !references.claims.contains_key(name));
            known.wanted.insert(
                uid.clone(),
                Wanted {
                    references,
                    full_name: pod.full_name.clone(),
                    account,
                    patience: Instant::now() + PATIENCE,
                },
            );
        }
        if changed {
            self.needs.notify_one();
        }
        self.keep_services(&known, &newcomers);
        let now = Instant::now();
        let waits =
            known.wanted.iter().filter(|(_, wanted)| wanted.patience > now && !known.has(&wanted.references));
        waits.map(|(uid, wanted)| (uid.clone(), wanted.patience)).collect()
    }

    /// Says which RuntimeClasses pods of other sources name. Nobody waits for them: such a pod is tried again until it starts.
    pub(crate) fn need_classes(&self, classes: BTreeSet<String>) {
        let mut known = self.known();
        if known.static_classes.as_ref() != Some(&classes) {
            known.static_classes = Some(classes);
            self.needs.notify_one();
        }
    }

    /// All that is known.
    pub(crate) fn objects(&self) -> Objects {
        self.known().objects.clone()
    }

    /// Listens for what is needed, for ever.
    pub(crate) async fn run(self, client: Client) {
        let mut listeners = Listeners::default();
        listeners.running.push(self.listen_to_services(client.clone()));
        let mut tokens = Renewals::new();
        // Beside the listeners, not in their way: they may have the connection that these wait for.
        let mut asking = FuturesUnordered::new();
        loop {
            let needed = self.all_needed();
            listeners.keep(&self, &client, &needed);
            let wanted = needed.tokens;
            tokens.retain(|key, _| wanted.contains_key(key));
            for key in wanted.keys() {
                tokens.entry(key.clone()).or_insert_with(|| self.first_renewal(key));
            }
            let room = TOKENS_AT_ONCE.saturating_sub(asking.len());
            let due = tokens.values().filter(|token| !token.asked && room > 0).map(|token| token.due);
            let nap = Due::nap(due, Moment::now());
            // Every branch is cancel safe: notices, a time, and listeners and requests that stay where they are.
            tokio::select! {
                () = self.needs.notified() => {}
                _ = listeners.running.next(), if !listeners.running.is_empty() => {}
                Some((key, pod, answer)) = asking.next(), if !asking.is_empty() => {
                    if let Some(renewal) = tokens.get_mut(&key) {
                        self.take_token(&key, &pod, answer, renewal);
                    }
                }
                () = sleep(nap.unwrap_or_default()), if nap.is_some() => {
                    let now = Moment::now();
                    let are_due = tokens.iter_mut().filter(|(_, token)| !token.asked && token.due.is_over(now));
                    for (key, token) in are_due.take(room) {
                        let Some((pod, account)) = wanted.get(key).cloned() else { continue };
                        token.asked = true;
                        let (client, key) = (client.clone(), key.clone());
                        asking.push(async move {
                            let answer = bound_token(&client, &key, &pod, &account).await;
                            (key, pod, answer)
                        });
                    }
                }
            }
        }
    }

    /// One that was kept from an earlier life is good until its time.
    fn first_renewal(&self, key: &TokenKey) -> Renewal {
        let kept = self.known().objects.tokens.get(key).map(|token| renewal_in(token));
        let due = Due::after(kept.unwrap_or_default(), Moment::now());
        Renewal { due, attempts: RETRY.attempts(), asked: false }
    }

    fn take_token(
        &self,
        key: &TokenKey,
        pod: &FullName,
        answer: Result<ServiceToken, ApiError>,
        renewal: &mut Renewal,
    ) {
        renewal.asked = false;
        match answer {
            Ok(token) => {
                renewal.attempts.succeeded();
                renewal.due = Due::after(renewal_in(&token), Moment::now());
                if let Some(kept) = &self.kept {
                    kept.token(key, Some(&token));
                }
                self.known().objects.tokens.insert(key.clone(), Arc::new(token));
                self.news.notify_one();
            }
            Err(error) => {
                if renewal.attempts.failures() == 0 {
                    tracing::warn!(%pod, %error, "no token for the pod yet; it is asked for again");
                }
                renewal.due = Due::after(renewal.attempts.failed(), Moment::now());
            }
        }
    }

    fn all_needed(&self) -> Needed {
        let mut known = self.known();
        let Needed {
            mut config_maps,
            mut secrets,
            mut runtime_classes,
            mut trust_bundles,
            mut claims,
            mut tokens,
            mut certificates,
        } = Needed::default();
        for (uid, wanted) in &known.wanted {
            config_maps.extend(wanted.references.config_maps.iter().cloned());
            secrets.extend(wanted.references.secrets.iter().cloned());
            let class = wanted.references.runtime_class.as_deref();
            runtime_classes.extend(class.map(|class| FullName::new("", class)));
            trust_bundles.extend(wanted.references.trust_bundles.iter().cloned());
            for (name, own) in &wanted.references.claims {
                let askers: &mut BTreeMap<PodUid, bool> = claims.entry(name.clone()).or_default();
                askers.insert(uid.clone(), *own);
            }
            for key in &wanted.references.tokens {
                tokens.insert(key.clone(), (wanted.full_name.clone(), wanted.account.clone()));
            }
        }
        match &known.static_classes {
            Some(classes) => runtime_classes.extend(classes.iter().map(|class| FullName::new("", class))),
            // What was kept may be theirs.
            None => runtime_classes
                .extend(known.objects.runtime_classes.keys().map(|class| FullName::new("", class))),
        }
        for (uid, wanted) in &known.wanted {
            certificates.extend(wanted.references.certificates.iter().map(|(key, wish)| CertificateAsk {
                key: key.clone(),
                wish: wish.clone(),
                pod: (wanted.full_name.clone(), uid.clone()),
                account: wanted.account.clone(),
            }));
        }
        let certified: BTreeSet<_> = certificates.iter().map(|ask| &ask.key).collect();
        // What nobody needs is not kept, secrets least of all.
        if let Some(kept) = &self.kept {
            let objects = &known.objects;
            let idle = objects.config_maps.keys().filter(|name| !config_maps.contains(name));
            idle.for_each(|name| kept.config_map(name, None));
            let idle = objects.secrets.keys().filter(|name| !secrets.contains(name));
            idle.for_each(|name| kept.secret(name, None));
            let idle = objects.runtime_classes.keys().filter(|name| !named(&runtime_classes, name));
            idle.for_each(|name| kept.runtime_class(name, None));
            let idle = objects.trust_bundles.keys().filter(|query| !trust_bundles.contains(query));
            idle.for_each(|query| kept.trust_bundles(query, None));
            let idle = objects.claims.keys().filter(|name| !claims.contains_key(name));
            idle.for_each(|name| kept.claim(name, None));
            let idle = objects.tokens.keys().filter(|key| !tokens.contains_key(key));
            idle.for_each(|key| kept.token(key, None));
            let idle = objects.certificates.keys().filter(|key| !certified.contains(key));
            idle.for_each(|key| kept.certificate(key, None));
        }
        known.objects.config_maps.retain(|name, _| config_maps.contains(name));
        known.objects.secrets.retain(|name, _| secrets.contains(name));
        known.objects.runtime_classes.retain(|name, _| named(&runtime_classes, name));
        known.runtime_classes.retain(|name| named(&runtime_classes, name));
        known.objects.trust_bundles.retain(|query, _| trust_bundles.contains(query));
        known.trust_bundles.retain(|query| trust_bundles.contains(query));
        known.objects.claims.retain(|name, _| claims.contains_key(name));
        known.claims.retain(|name| claims.contains_key(name));
        known.objects.tokens.retain(|key, _| tokens.contains_key(key));
        known.objects.certificates.retain(|key, _| certified.contains(key));
        known.config_maps.retain(|name| config_maps.contains(name));
        known.secrets.retain(|name| secrets.contains(name));
        known.unreadable.retain(|(_, name), _| {
            [&config_maps, &secrets, &runtime_classes].iter().any(|all| all.contains(name))
        });
        Needed { config_maps, secrets, runtime_classes, trust_bundles, claims, tokens, certificates }
    }

    /// Services of all namespaces: any of them may be some pod's neighbour.
    fn listen_to_services(&self, client: Client) -> Listening {
        let objects = self.clone();
        let work = async move {
            let fields = Some("spec.clusterIP!=None".to_owned());
            let what = Reflected { namespace: None, fields, labels: None, since: None };
            reflect::<SlimService>(&client, &what, |change| objects.take_services(change)).await;
        };
        Abortable::new(Box::pin(work), AbortHandle::new_pair().1)
    }

    fn take_services(&self, change: Change<SlimService>) {
        let mut known = self.known();
        let mut namespaces = BTreeSet::new();
        match change {
            Change::Listed(services) => {
                for service in &services.unreadable {
                    tracing::warn!(?service, "a Service cannot be read; pods are not told of it");
                }
                known.services = true;
                namespaces.extend(known.objects.services.keys().map(|name| Arc::clone(&name.namespace)));
                let unread = services.unreadable.iter().map(|it| FullName::new(&it.namespace, &it.name));
                // What cannot be read is as it was before.
                let kept: Vec<_> =
                    unread.filter_map(|name| known.objects.services.remove_entry(&name)).collect();
                known.objects.services =
                    services.items.into_iter().map(SlimService::told).chain(kept).collect();
                namespaces.extend(known.objects.services.keys().map(|name| Arc::clone(&name.namespace)));
            }
            Change::Applied(service) => {
                let (name, service) = service.told();
                if known.objects.services.get(&name).is_some_and(|before| *before == service) {
                    return;
                }
                namespaces.insert(Arc::clone(&name.namespace));
                known.objects.services.insert(name, service);
            }
            Change::Deleted(service) => {
                let (name, _) = service.told();
                known.objects.services.remove(&name);
                namespaces.insert(name.namespace);
            }
            Change::Unreadable(service) => {
                tracing::warn!(?service, "a Service cannot be read; it is as it was before");
                return;
            }
            Change::Interrupted(_) => return,
        }
        self.keep_services(&known, &namespaces);
        drop(known);
        self.news.notify_one();
    }

    /// Of all the cluster's services those are kept that pods of this node are told of, `kubernetes` among them.
    fn keep_services(&self, known: &Known, changed: &BTreeSet<Arc<str>>) {
        let Some(kept) = &self.kept else { return };
        let pods = known.wanted.values().map(|wanted| &*wanted.full_name.namespace);
        let told: BTreeSet<&str> = pods.chain(["default"]).collect();
        for namespace in told.into_iter().filter(|namespace| changed.contains(*namespace)) {
            kept.services(namespace, &known.objects.services);
        }
    }

    /// The object by this change, if there is one: `None` if nothing is known by it.
    fn newest<T: Metadata<Ty = ObjectMeta>>(
        &self,
        kind: &'static str,
        name: &FullName,
        change: Change<T>,
    ) -> Option<Option<T>> {
        if let Some(object) = unreadable::of(&change) {
            self.tell_unreadable(kind, name, object);
            return None;
        }
        let mut object = match change {
            Change::Listed(list) => list.items.into_iter().next(),
            Change::Applied(object) => Some(object),
            Change::Deleted(_) => None,
            // What was known holds.
            Change::Unreadable(_) | Change::Interrupted(_) => return None,
        };
        if let Some(object) = &mut object {
            object.metadata_mut().managed_fields = None;
        }
        Some(object)
    }

    fn take_config_map(&self, name: &FullName, change: Change<ConfigMap>) {
        let Some(object) = self.newest("ConfigMap", name, change) else { return };
        let mut known = self.known();
        let mut changed = known.config_maps.insert(name.clone());
        let other = put(&mut known.objects.config_maps, name, object);
        changed |= other;
        if let Some(kept) = self.kept.as_ref().filter(|_| other) {
            kept.config_map(name, known.objects.config_maps.get(name).map(AsRef::as_ref));
        }
        drop(known);
        if changed {
            self.news.notify_one();
        }
    }

    fn take_runtime_class(&self, name: &FullName, change: Change<RuntimeClass>) {
        let Some(object) = self.newest("RuntimeClass", name, change) else { return };
        let handler: Option<Arc<str>> = object.map(|class| class.handler.into());
        let name = name.name.to_string();
        let mut known = self.known();
        let mut changed = known.runtime_classes.insert(name.clone());
        let other = known.objects.runtime_classes.get(&name) != handler.as_ref();
        changed |= other;
        if let Some(kept) = self.kept.as_ref().filter(|_| other) {
            kept.runtime_class(&name, handler.as_deref());
        }
        match handler {
            Some(handler) => known.objects.runtime_classes.insert(name, handler),
            None => known.objects.runtime_classes.remove(&name),
        };
        drop(known);
        if changed {
            self.news.notify_one();
        }
    }

    fn take_secret(&self, name: &FullName, change: Change<Secret>) {
        let Some(object) = self.newest("Secret", name, change) else { return };
        let mut known = self.known();
        let mut changed = known.secrets.insert(name.clone());
        let other = put(&mut known.objects.secrets, name, object);
        changed |= other;
        if let Some(kept) = self.kept.as_ref().filter(|_| other) {
            kept.secret(name, known.objects.secrets.get(name).map(AsRef::as_ref));
        }
        drop(known);
        if changed {
            self.news.notify_one();
        }
    }
}

impl Known {
    fn has(&self, references: &References) -> bool {
        self.services
            && references.config_maps.is_subset(&self.config_maps)
            && references.secrets.is_subset(&self.secrets)
            && references.runtime_class.iter().all(|class| self.runtime_classes.contains(class))
            && references.trust_bundles.is_subset(&self.trust_bundles)
            && references.claims.keys().all(|name| self.claims.contains(name))
            && references.tokens.iter().all(|key| self.objects.tokens.contains_key(key))
            && references.certificates.keys().all(|key| self.objects.certificates.contains_key(key))
    }
}

/// What all pods together need.
#[derive(Default)]
struct Needed {
    config_maps: BTreeSet<FullName>,
    secrets: BTreeSet<FullName>,
    /// In no namespace.
    runtime_classes: BTreeSet<FullName>,
    trust_bundles: BTreeSet<TrustQuery>,
    /// With the pods that ask for each, and whether it must have been made for them.
    claims: BTreeMap<FullName, BTreeMap<PodUid, bool>>,
    /// With the pod that each is bound to, and its account.
    tokens: BTreeMap<TokenKey, (FullName, String)>,
    certificates: BTreeSet<CertificateAsk>,
}

fn named(classes: &BTreeSet<FullName>, name: &str) -> bool {
    classes.iter().any(|class| &*class.name == name)
}

/// Whether that changed anything.
fn put<T: PartialEq>(all: &mut BTreeMap<FullName, Arc<T>>, name: &FullName, object: Option<T>) -> bool {
    match object {
        Some(object) if all.get(name).is_some_and(|before| **before == object) => false,
        Some(object) => {
            all.insert(name.clone(), Arc::new(object));
            true
        }
        None => all.remove(name).is_some(),
    }
}

type Listening = Abortable<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// One listener per object.
#[derive(Default)]
struct Listeners {
    running: FuturesUnordered<Listening>,
    config_maps: BTreeMap<FullName, AbortHandle>,
    secrets: BTreeMap<FullName, AbortHandle>,
    runtime_classes: BTreeMap<FullName, AbortHandle>,
    trust_bundles: BTreeMap<TrustQuery, AbortHandle>,
    /// A claim is looked up anew whenever other pods ask for it.
    claims: BTreeMap<(FullName, BTreeMap<PodUid, bool>), AbortHandle>,
    certificates: BTreeMap<CertificateAsk, AbortHandle>,
    /// What becomes of requests for certificates, while somebody has one.
    certificate_requests: BTreeMap<(), AbortHandle>,
}

impl Listeners {
    /// Begins to listen for what is needed, and ends for what is not.
    fn keep(&mut self, objects: &ApiObjects, client: &Client, needed: &Needed) {
        let running = &self.running;
        keep(&mut self.config_maps, &needed.config_maps, running, |name| {
            let (objects, client) = (objects.clone(), client.clone());
            Box::pin(async move {
                let tell = |change| objects.take_config_map(&name, change);
                listen_while_it_may_change::<ConfigMap>(&client, &name, |it| it.immutable, tell).await;
            })
        });
        keep(&mut self.secrets, &needed.secrets, running, |name| {
            let (objects, client) = (objects.clone(), client.clone());
            Box::pin(async move {
                let tell = |change| objects.take_secret(&name, change);
                listen_while_it_may_change::<Secret>(&client, &name, |it| it.immutable, tell).await;
            })
        });
        keep(&mut self.runtime_classes, &needed.runtime_classes, running, |name| {
            let (objects, client) = (objects.clone(), client.clone());
            Box::pin(async move {
                let tell = |change| objects.take_runtime_class(&name, change);
                listen::<RuntimeClass>(&client, &name, tell).await;
            })
        });
        keep(&mut self.trust_bundles, &needed.trust_bundles, running, |query| {
            Box::pin(objects.clone().listen_to_trust_bundles(client.clone(), query))
        });
        let claims = needed.claims.iter().map(|(name, askers)| (name.clone(), askers.clone())).collect();
        keep(&mut self.claims, &claims, running, |(name, askers)| {
            Box::pin(objects.clone().look_up_claim(client.clone(), name, askers))
        });
        keep(&mut self.certificates, &needed.certificates, running, |ask| {
            Box::pin(objects.clone().keep_certificate(client.clone(), ask))
        });
        let somebody = needed.certificates.first().map(|_| ()).into_iter().collect();
        keep(&mut self.certificate_requests, &somebody, running, |()| {
            Box::pin(objects.clone().listen_to_certificate_requests(client.clone()))
        });
    }
}

fn keep<K: Clone + Ord>(
    handles: &mut BTreeMap<K, AbortHandle>,
    needed: &BTreeSet<K>,
    running: &FuturesUnordered<Listening>,
    begin: impl Fn(K) -> Pin<Box<dyn Future<Output = ()> + Send>>,
) {
    handles.retain(|name, handle| {
        let stays = needed.contains(name);
        if !stays {
            handle.abort();
        }
        stays
    });
    for name in needed {
        if !handles.contains_key(name) {
            let (handle, registration) = AbortHandle::new_pair();
            running.push(Abortable::new(begin(name.clone()), registration));
            handles.insert(name.clone(), handle);
        }
    }
}

/// The same until the object says that it will never change: then nothing more is to be heard of it (upstream's rule, which spares
/// the API server most watches where objects are immutable).
async fn listen_while_it_may_change<T>(
    client: &Client,
    name: &FullName,
    immutable: impl Fn(&T) -> Option<bool>,
    mut tell: impl FnMut(Change<T>),
) where
    T: ListableResource + Metadata<Ty = ObjectMeta> + DeserializeOwned,
{
    let settled = Notify::new();
    let heard = |change: Change<T>| {
        let object = match &change {
            Change::Listed(list) => list.items.first(),
            Change::Applied(object) => Some(object),
            Change::Deleted(_) | Change::Unreadable(_) | Change::Interrupted(_) => None,
        };
        if object.is_some_and(|object| immutable(object) == Some(true)) {
            settled.notify_one();
        }
        tell(change);
    };
    // Cancel safe: what was heard has been told. First, because a watch would begin otherwise.
    tokio::select! {
        biased;
        () = settled.notified() => {}
        () = listen::<T>(client, name, heard) => {}
    }
}

/// Listens to one object; a node may see only those that its pods refer to, each by its name.
async fn listen<T>(client: &Client, name: &FullName, tell: impl FnMut(Change<T>))
where
    T: ListableResource + Metadata<Ty = ObjectMeta> + DeserializeOwned,
{
    let what = Reflected {
        namespace: Some(name.namespace.to_string()).filter(|namespace| !namespace.is_empty()),
        fields: Some(format!("metadata.name={}", name.name)),
        labels: None,
        since: None,
    };
    reflect::<T>(client, &what, tell).await;
}

/// How long a token is left as it is.
fn renewal_in(token: &ServiceToken) -> Duration {
    let left = Duration::try_from(token.expires.duration_since(Timestamp::now())).unwrap_or_default();
    renew_token_after(left, random_unit())
}

#[cfg(test)]
mod tests;
