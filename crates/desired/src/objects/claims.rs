//! PersistentVolumeClaims and the volumes that they are bound to.
//!
//! A node may get those of its pods and listen to none (upstream's node authorizer), so each is asked for until it is bound.
//! Then it is not asked for again until another pod wants it: what a bound claim leads to does not change while a pod uses it, but a claim
//! that nobody uses may be deleted and made anew.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use mainstay_apiserver::{ApiError, Client, Scope};
use mainstay_task::Backoff;
use mainstay_types::{Claim, ClaimedVolume, FullName, PodUid};

use super::ApiObjects;

const AGAIN: Backoff =
    Backoff::doubling(Duration::from_millis(500), Duration::from_secs(10)).with_jitter(0.3);

/// The finalizer of a claim that pods may still use.
const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// The annotation by which an administrator says which group a volume belongs to.
const GROUP: &str = "pv.beta.kubernetes.io/gid";

impl ApiObjects {
    /// Asks until the claim is bound, and was made for those who take no other: that of a pod of the same name that was deleted a moment ago
    /// is there for a while.
    pub(super) async fn look_up_claim(self, client: Client, name: FullName, askers: BTreeMap<PodUid, bool>) {
        let mut attempts = AGAIN.attempts();
        loop {
            let wait = match ask(&client, &name).await {
                Ok(claim) => {
                    let owned = |uid: &PodUid| claim.owners.iter().any(|owner| owner == uid.as_str());
                    let is_theirs = askers.iter().all(|(uid, own)| !own || owned(uid));
                    let done = claim.volume.is_some() && claim.problem.is_empty() && is_theirs;
                    self.take_claim(&name, claim);
                    if done {
                        return;
                    }
                    attempts.failed()
                }
                Err(error) => {
                    if attempts.failures() == 0 {
                        tracing::warn!(claim = %name, %error, "a claim cannot be looked up; it is asked for again");
                    }
                    let least = error.retry_after().unwrap_or_default().min(Duration::from_secs(60));
                    attempts.failed().max(least)
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// A claim that has lost its volume keeps it for the pods that were given it, with the reason why no other is.
    pub(super) fn take_claim(&self, name: &FullName, mut claim: Claim) {
        let mut known = self.known();
        if claim.volume.is_none() {
            claim.volume = known.objects.claims.get(name).and_then(|before| before.volume.clone());
        }
        let mut news = known.claims.insert(name.clone());
        if known.objects.claims.get(name).is_none_or(|before| **before != claim) {
            news = true;
            if let Some(kept) = &self.kept {
                kept.claim(name, Some(&claim));
            }
            known.objects.claims.insert(name.clone(), Arc::new(claim));
        }
        drop(known);
        if news {
            self.news.notify_one();
        }
    }
}

async fn ask(client: &Client, name: &FullName) -> Result<Claim, ApiError> {
    let lacks = |owners: Vec<String>, problem: String| Claim { owners, volume: None, problem };
    let found = client.get::<PersistentVolumeClaim>(Scope::Namespace(&name.namespace), &name.name).await;
    let claim = match found {
        Ok(claim) => claim,
        Err(error) if error.status() == Some(404) => {
            return Ok(lacks(Vec::new(), "not found; create it".to_owned()));
        }
        Err(error) => return Err(error),
    };
    let owners = claim.metadata.owner_references.into_iter().flatten().map(|owner| owner.uid).collect();
    // One that pods use is protected until they are gone, and theirs until then.
    let protected = claim.metadata.finalizers.iter().flatten().any(|it| it == PROTECTION);
    if claim.metadata.deletion_timestamp.is_some() && !protected {
        return Ok(lacks(owners, "is being deleted; create it anew".to_owned()));
    }
    let phase = claim.status.and_then(|status| status.phase).unwrap_or_default();
    let volume = claim.spec.and_then(|spec| spec.volume_name).filter(|name| !name.is_empty());
    let Some(volume) = volume.filter(|_| phase == "Bound") else {
        let state = if phase.is_empty() { "has no phase" } else { &phase };
        let problem = format!("is not bound yet (it is {state}); is there a PersistentVolume for it?");
        return Ok(lacks(owners, problem));
    };
    let found = client.get::<PersistentVolume>(Scope::Cluster, &volume).await;
    let volume = match found {
        Ok(object) => object,
        Err(error) if error.status() == Some(404) => {
            let problem = format!("is bound to persistentvolume {volume:?}, which does not exist");
            return Ok(lacks(owners, problem));
        }
        Err(error) => return Err(error),
    };
    let whose = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let uid = claim.metadata.uid.unwrap_or_default();
    if whose.is_none_or(|whose| whose.uid.as_deref() != Some(uid.as_str())) {
        let name = volume.metadata.name.unwrap_or_default();
        return Ok(lacks(
            owners,
            format!("is bound to persistentvolume {name:?}, which belongs to another claim"),
        ));
    }
    let annotations = volume.metadata.annotations.unwrap_or_default();
    let volume = ClaimedVolume {
        group: annotations.get(GROUP).and_then(|group| group.parse().ok()).filter(|group| *group >= 0),
        name: volume.metadata.name.unwrap_or_default(),
        spec: volume.spec.unwrap_or_default(),
    };
    Ok(Claim { owners, volume: Some(volume), problem: String::new() })
}
