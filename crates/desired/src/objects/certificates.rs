//! Certificates of pods: asked for with a PodCertificateRequest, and again before they expire.
//!
//! The key is made here and never leaves the node but into the pod's volume. A signer, which is no part of Kubernetes, answers a request by its
//! status: issued, denied or failed. The last two are final for the pod (upstream's rule), until mainstay is started again; a certificate that
//! it has is shown as long as the pod is there.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    ByteString,
    api::{
        certificates::v1::{PodCertificateRequest, PodCertificateRequestSpec, PodCertificateRequestStatus},
        core::v1::{Node, ServiceAccount},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use mainstay_apiserver::{ApiError, Change, Client, Reflected, Scope, reflect};
use mainstay_podspec::volumes::plain_chain;
use mainstay_task::{Backoff, random_unit};
use mainstay_types::{
    CertificateKey, CertificateWish, Event, EventKind, EventTarget, FullName, IssuedCertificate,
    PodCertificate, PodUid,
};
use tokio::sync::watch;

use super::{ApiObjects, due::NAP, pod_key::PodKey};

const AGAIN: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(60)).with_jitter(0.3);
/// How long a request that nobody hears of is waited for: then it has been deleted.
const UNHEARD: Duration = Duration::from_secs(600);
/// Renewals are spread over so much behind the time that the signer names (upstream's), and over no more than a tenth of what is left then.
const SPREAD: SignedDuration = SignedDuration::from_mins(5);
/// A signer that wants to be asked at once is not asked in a circle.
const REFRESH_NOT_BEFORE: SignedDuration = SignedDuration::from_secs(10);
/// So long behind its time a renewal is told of as late (upstream's).
const OVERDUE: SignedDuration = SignedDuration::from_mins(10);

/// One certificate that somebody wants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CertificateAsk {
    pub(super) key: CertificateKey,
    pub(super) wish: CertificateWish,
    pub(super) pod: (FullName, PodUid),
    pub(super) account: String,
}

/// What those who ask for certificates have to know.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// The node's name and UID.
    node: watch::Sender<Option<(String, String)>>,
    /// What became of requests, by their names.
    requests: watch::Sender<BTreeMap<FullName, Decision>>,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    Pending,
    /// It was deleted before it was decided.
    Gone,
    Issued {
        chain: String,
        refresh_at: Timestamp,
        expires: Timestamp,
    },
    /// `Denied` or `Failed`, and what the signer said.
    Refused(&'static str, String),
}

impl ApiObjects {
    /// Says what the node is.
    pub(crate) fn node_is(&self, node: &Node) {
        let (name, uid) = (node.metadata.name.clone(), node.metadata.uid.clone());
        if let (Some(name), Some(uid)) = (name, uid) {
            self.certificates.node.send_replace(Some((name, uid)));
        }
    }

    /// Hears what becomes of this node's requests, for ever.
    pub(super) async fn listen_to_certificate_requests(self, client: Client) {
        let (name, _) = self.node().await;
        // A node may listen to its own only.
        let fields = Some(format!("spec.nodeName={name}"));
        let what = Reflected { namespace: None, fields, labels: None, since: None };
        reflect::<PodCertificateRequest>(&client, &what, |change| {
            self.certificates.requests.send_modify(|requests| take(requests, change));
        })
        .await;
    }

    /// Asks for a certificate, and for the next before it expires, until the signer refuses. Never ends.
    pub(super) async fn keep_certificate(self, client: Client, ask: CertificateAsk) {
        loop {
            let current = self.known().objects.certificates.get(&ask.key).and_then(|it| it.issued.clone());
            // Cancel safe: the second never ends, and tells of nothing twice.
            let goes_on = tokio::select! {
                goes_on = self.renew_certificate(&client, &ask, current.as_ref()) => goes_on,
                () = self.tell_when_late(&ask, current.as_ref()) => true,
            };
            if !goes_on {
                // Nobody renews it, but when it is over that is told.
                self.tell_when_late(&ask, current.as_ref()).await;
            }
        }
    }

    /// Whether there may be another after it.
    async fn renew_certificate(
        &self,
        client: &Client,
        ask: &CertificateAsk,
        current: Option<&IssuedCertificate>,
    ) -> bool {
        if let Some(current) = current {
            sleep_until(current.refresh_at).await;
        }
        let mut attempts = AGAIN.attempts();
        loop {
            let key = match PodKey::make(&ask.wish.key_type).await {
                Ok(key) => key,
                Err(error) => {
                    self.tell(
                        ask,
                        "Failed",
                        format!("no certificate of signer {:?}: {error}", ask.wish.signer),
                    );
                    self.take_problem(ask, error.to_string());
                    return false;
                }
            };
            let wait = match self.ask_for_certificate(client, ask, &key).await {
                Err(error) => {
                    if attempts.failures() == 0 {
                        let (pod, signer) = (&ask.pod.0, &ask.wish.signer);
                        tracing::warn!(%pod, signer, %error, "no certificate for the pod yet; it is asked for again");
                    }
                    self.take_problem(ask, format!("it is asked for again: {error}"));
                    let least = error.retry_after().unwrap_or_default().min(Duration::from_secs(60));
                    attempts.failed().max(least)
                }
                Ok(request) => match self.decision_after_trouble(ask, &request).await {
                    Decision::Issued { chain, refresh_at, expires } => {
                        let refresh_at = spread(refresh_at, expires, Timestamp::now(), random_unit());
                        let issued = IssuedCertificate { key: key.pem, chain, refresh_at, expires };
                        self.take_issued(ask, issued);
                        return true;
                    }
                    Decision::Refused(word, said) => {
                        let deed = if word == "Denied" { "was denied" } else { "failed" };
                        let problem = format!("PodCertificateRequest {request} {deed}: {said}");
                        self.tell(ask, word, problem.clone());
                        self.take_problem(ask, problem);
                        return false;
                    }
                    Decision::Pending | Decision::Gone => attempts.failed(),
                },
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Makes a request; its name.
    async fn ask_for_certificate(
        &self,
        client: &Client,
        ask: &CertificateAsk,
        key: &PodKey,
    ) -> Result<FullName, ApiError> {
        let (pod, uid) = &ask.pod;
        let scope = Scope::Namespace(&pod.namespace);
        let account: ServiceAccount = client.get(scope, &ask.account).await?;
        let (node_name, node_uid) = self.node().await;
        let wish = &ask.wish;
        let request = PodCertificateRequest {
            metadata: ObjectMeta {
                generate_name: Some("req-".to_owned()),
                namespace: Some(pod.namespace.to_string()),
                // It goes with the pod.
                owner_references: Some(vec![OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Pod".to_owned(),
                    name: pod.name.to_string(),
                    uid: uid.as_str().to_owned(),
                    ..OwnerReference::default()
                }]),
                ..ObjectMeta::default()
            },
            spec: PodCertificateRequestSpec {
                max_expiration_seconds: wish.max_expiration_seconds,
                node_name,
                node_uid,
                pod_name: pod.name.to_string(),
                pod_uid: uid.as_str().to_owned(),
                service_account_name: ask.account.clone(),
                service_account_uid: account.metadata.uid.unwrap_or_default(),
                signer_name: wish.signer.clone(),
                stub_pkc_s10_request: ByteString(key.request.clone()),
                unverified_user_annotations: Some(wish.annotations.clone()).filter(|it| !it.is_empty()),
            },
            status: None,
        };
        let made = client.create(scope, &request).await?;
        Ok(FullName::new(&pod.namespace, made.metadata.name.as_deref().unwrap_or_default()))
    }

    /// The same as [`Self::decision`]; what went wrong before is not said any longer.
    async fn decision_after_trouble(&self, ask: &CertificateAsk, request: &FullName) -> Decision {
        if self.known().objects.certificates.get(&ask.key).is_some_and(|it| !it.problem.is_empty()) {
            self.take_problem(ask, format!("PodCertificateRequest {request} waits for its signer"));
        }
        self.decision(request).await
    }

    /// Waits for what becomes of a request. `Pending`, if nobody has heard of it for long.
    async fn decision(&self, request: &FullName) -> Decision {
        let mut heard = self.certificates.requests.subscribe();
        loop {
            let decided = heard.wait_for(|all| !matches!(all.get(request), None | Some(Decision::Pending)));
            let decided = match tokio::time::timeout(UNHEARD, decided).await {
                Ok(Ok(all)) => all.get(request).cloned(),
                _ => None,
            };
            if let Some(decided) = decided {
                self.certificates.requests.send_modify(|all| {
                    all.remove(request);
                });
                return decided;
            }
            if !self.certificates.requests.borrow().contains_key(request) {
                return Decision::Pending;
            }
        }
    }

    async fn node(&self) -> (String, String) {
        let mut node = self.certificates.node.subscribe();
        let known = node.wait_for(Option::is_some).await.ok().and_then(|node| node.clone());
        // The sender lives as long as we do.
        known.unwrap_or_default()
    }

    fn take_issued(&self, ask: &CertificateAsk, issued: IssuedCertificate) {
        if let Some(kept) = &self.kept {
            kept.certificate(&ask.key, Some(&issued));
        }
        let known = PodCertificate { issued: Some(issued), problem: String::new() };
        self.known().objects.certificates.insert(ask.key.clone(), Arc::new(known));
        self.news.notify_one();
    }

    fn take_problem(&self, ask: &CertificateAsk, problem: String) {
        let mut known = self.known();
        let before = known.objects.certificates.get(&ask.key);
        if before.is_some_and(|before| before.problem == problem) {
            return;
        }
        // A certificate that there is stays in its volume.
        let issued = before.and_then(|before| before.issued.clone());
        known.objects.certificates.insert(ask.key.clone(), Arc::new(PodCertificate { issued, problem }));
        drop(known);
        self.news.notify_one();
    }

    /// Tells the pod when its certificate should have been renewed long ago, and when it is no longer good. Never ends.
    async fn tell_when_late(&self, ask: &CertificateAsk, current: Option<&IssuedCertificate>) {
        if let Some(current) = current {
            let signer = &ask.wish.signer;
            let overdue = current.refresh_at.saturating_add(OVERDUE).unwrap_or(Timestamp::MAX);
            sleep_until(overdue.min(current.expires)).await;
            if overdue < current.expires {
                let text = format!("the certificate of signer {signer:?} should have been renewed by now");
                self.tell(ask, "CertificateOverdueForRefresh", text);
                sleep_until(current.expires).await;
            }
            let text = format!("the certificate of signer {signer:?} expired at {}", current.expires);
            self.tell(ask, "CertificateExpired", text);
        }
        std::future::pending().await
    }

    fn tell(&self, ask: &CertificateAsk, reason: &'static str, message: String) {
        let (full_name, uid) = ask.pod.clone();
        self.events.send(Event {
            target: EventTarget::Pod { uid, full_name, field_path: None },
            kind: EventKind::Warning,
            reason: reason.into(),
            message,
            time: Timestamp::now(),
        });
    }
}

async fn sleep_until(time: Timestamp) {
    while let Ok(left) = Duration::try_from(time.duration_since(Timestamp::now())) {
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(NAP)).await;
    }
}

/// When to renew: a little after the time that the signer named. `luck`, from 0 to 1, lets those of many pods not all be renewed at once.
fn spread(refresh_at: Timestamp, expires: Timestamp, now: Timestamp, luck: f64) -> Timestamp {
    let room = (expires.duration_since(refresh_at) / 10).clamp(SignedDuration::ZERO, SPREAD);
    let later =
        SignedDuration::try_from_secs_f64(room.as_secs_f64() * luck.clamp(0.0, 1.0)).unwrap_or_default();
    let earliest = now.saturating_add(REFRESH_NOT_BEFORE).unwrap_or(Timestamp::MAX);
    refresh_at.saturating_add(later).unwrap_or(Timestamp::MAX).max(earliest)
}

fn take(requests: &mut BTreeMap<FullName, Decision>, change: Change<PodCertificateRequest>) {
    let named = |metadata: &ObjectMeta| {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        FullName::new(&text(&metadata.namespace), &text(&metadata.name))
    };
    match change {
        Change::Listed(list) => {
            let before = std::mem::take(requests);
            requests.extend(list.items.iter().map(|it| (named(&it.metadata), decision(it.status.as_ref()))));
            for (name, _) in before.into_iter().filter(|(_, it)| *it == Decision::Pending) {
                requests.entry(name).or_insert(Decision::Gone);
            }
        }
        Change::Applied(request) => {
            requests.insert(named(&request.metadata), decision(request.status.as_ref()));
        }
        Change::Deleted(request) => {
            let name = named(&request.metadata);
            // Somebody may wait for it; what was decided is known, or of no interest.
            if requests.remove(&name) == Some(Decision::Pending) {
                requests.insert(name, Decision::Gone);
            }
        }
        Change::Unreadable(request) => {
            tracing::warn!(?request, "a PodCertificateRequest cannot be read");
        }
        Change::Interrupted(_) => {}
    }
}

/// What a request's status says.
fn decision(status: Option<&PodCertificateRequestStatus>) -> Decision {
    let Some(status) = status else { return Decision::Pending };
    for condition in status.conditions.iter().flatten().filter(|it| it.status == "True") {
        let said = || format!("{} ({})", condition.message, condition.reason);
        match condition.type_.as_str() {
            "Denied" => return Decision::Refused("Denied", said()),
            "Failed" => return Decision::Refused("Failed", said()),
            "Issued" => {
                let chain = status.certificate_chain.as_deref().and_then(plain_chain);
                let (refresh_at, expires) = (status.begin_refresh_at.as_ref(), status.not_after.as_ref());
                let (Some(chain), Some(refresh_at), Some(expires)) = (chain, refresh_at, expires) else {
                    let lacks = "it is issued without certificateChain in PEM, beginRefreshAt or notAfter";
                    return Decision::Refused("Failed", lacks.to_owned());
                };
                return Decision::Issued { chain, refresh_at: refresh_at.0, expires: expires.0 };
            }
            _ => {}
        }
    }
    Decision::Pending
}

#[cfg(test)]
mod tests {
    use mainstay_apiserver::Listing;
    use serde_json::{Value, json};

    use super::*;

    fn request(name: &str, status: Value) -> PodCertificateRequest {
        let spec = PodCertificateRequestSpec::default();
        let metadata = ObjectMeta {
            name: Some(name.into()),
            namespace: Some("default".into()),
            ..ObjectMeta::default()
        };
        PodCertificateRequest { metadata, spec, status: serde_json::from_value(status).unwrap() }
    }

    fn condition(kind: &str) -> Value {
        json!([{ "type": kind, "status": "True", "reason": "Because", "message": "so",
            "lastTransitionTime": "2026-01-01T00:00:00Z" }])
    }

    fn issued() -> Value {
        json!({
            "conditions": condition("Issued"), "beginRefreshAt": "2026-01-01T12:00:00Z", "notAfter": "2026-01-02T00:00:00Z",
            "certificateChain": "mine\n-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----\n",
        })
    }

    #[test]
    fn what_a_status_says() {
        let mut lacking = issued();
        lacking["beginRefreshAt"] = Value::Null;
        let rows = [
            ("nothing yet", Value::Null, "Pending"),
            ("empty", json!({}), "Pending"),
            ("some other condition", json!({ "conditions": condition("Seen") }), "Pending"),
            ("denied", json!({ "conditions": condition("Denied") }), "Refused(\"Denied\", \"so (Because)\")"),
            ("failed", json!({ "conditions": condition("Failed") }), "Refused(\"Failed\", \"so (Because)\")"),
            ("without its time", lacking, "Refused(\"Failed\", \"it is issued without"),
            ("issued", issued(), "Issued { chain: \"-----BEGIN CERTIFICATE-----\\nYQ=="),
        ];
        for (row, status, expected) in rows {
            let seen = format!("{:?}", decision(request("a", status).status.as_ref()));
            assert!(seen.starts_with(expected), "{row}: {seen}");
        }
    }

    #[test]
    fn what_becomes_of_requests() {
        let names = ["a", "b", "c", "d"].map(|name| FullName::new("default", name));
        let mut seen = BTreeMap::new();
        take(&mut seen, Change::Applied(request("a", Value::Null)));
        take(&mut seen, Change::Applied(request("b", Value::Null)));
        take(&mut seen, Change::Applied(request("c", issued())));
        take(&mut seen, Change::Applied(request("b", json!({ "conditions": condition("Denied") }))));
        assert_eq!(seen.len(), 3);
        assert_eq!(seen[&names[0]], Decision::Pending);
        assert!(matches!(seen[&names[1]], Decision::Refused("Denied", _)));
        take(&mut seen, Change::Deleted(request("a", Value::Null)));
        take(&mut seen, Change::Deleted(request("c", issued())));
        assert_eq!(seen[&names[0]], Decision::Gone, "nobody will decide it");
        assert!(!seen.contains_key(&names[2]));

        // After an absence.
        take(&mut seen, Change::Applied(request("d", Value::Null)));
        let listed =
            Listing { version: "9".into(), items: vec![request("c", issued())], unreadable: Vec::new() };
        take(&mut seen, Change::Listed(listed));
        assert_eq!(seen.len(), 2, "{seen:?}");
        assert!(matches!(seen[&names[2]], Decision::Issued { .. }));
        assert_eq!(seen[&names[3]], Decision::Gone);
    }

    #[test]
    fn renewals_are_spread() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let rows = [
            ("at its time", 3600, 7200, 0.0, 3600),
            ("five minutes behind it at most", 3600, 90_000, 1.0, 3900),
            ("less where little is left", 3600, 4200, 1.0, 3660),
            ("half of that", 3600, 4200, 0.5, 3630),
            ("not in a circle", 0, 600, 0.0, 110),
            ("a signer that contradicts itself", 3600, 1800, 1.0, 3600),
        ];
        for (row, refresh_at, expires, luck, expected) in rows {
            assert_eq!(spread(at(refresh_at), at(expires), at(100), luck), at(expected), "{row}");
        }
    }
}
