//! ClusterTrustBundles: those of a name or of a signer, listened to while some pod's volume shows them.

use std::sync::Arc;

use k8s_openapi::api::certificates::v1::ClusterTrustBundle;
use mainstay_apiserver::{Change, Client, Reflected, Unreadable, reflect};
use mainstay_types::{TrustBundle, TrustBundles, TrustQuery};

use super::ApiObjects;

impl ApiObjects {
    /// For ever.
    pub(super) async fn listen_to_trust_bundles(self, client: Client, query: TrustQuery) {
        let fields = match &query {
            TrustQuery::Name(name) => format!("metadata.name={name}"),
            TrustQuery::Signer(signer) => format!("spec.signerName={signer}"),
        };
        let what = Reflected { namespace: None, fields: Some(fields), labels: None, since: None };
        let tell = |change| self.take_trust_bundles(&query, change);
        reflect::<ClusterTrustBundle>(&client, &what, tell).await;
    }

    pub(super) fn take_trust_bundles(&self, query: &TrustQuery, change: Change<ClusterTrustBundle>) {
        let mut known = self.known();
        let before = known.objects.trust_bundles.get(query);
        let told = |unreadable: &Unreadable| {
            // It is as it was before, if it was there.
            tracing::warn!(object = ?unreadable, "a ClusterTrustBundle cannot be read");
        };
        let after: TrustBundles = match change {
            Change::Listed(list) => {
                list.unreadable.iter().for_each(told);
                let kept = list.unreadable.iter().filter_map(|it| before?.get_key_value(&it.name));
                let kept: Vec<_> = kept.map(|(name, bundle)| (name.clone(), bundle.clone())).collect();
                list.items.into_iter().map(shown).chain(kept).collect()
            }
            Change::Applied(object) => {
                let mut bundles = before.map(|it| TrustBundles::clone(it)).unwrap_or_default();
                bundles.extend([shown(object)]);
                bundles
            }
            Change::Deleted(object) => {
                let mut bundles = before.map(|it| TrustBundles::clone(it)).unwrap_or_default();
                bundles.remove(&object.metadata.name.unwrap_or_default());
                bundles
            }
            Change::Unreadable(object) => return told(&object),
            Change::Interrupted(error) => {
                // An API server that does not serve them is not waited for: the volume says so.
                let known_not_served =
                    error.status() == Some(404) && known.trust_bundles.insert(query.clone());
                drop(known);
                if known_not_served {
                    tracing::warn!(%error, "ClusterTrustBundles cannot be had of this API server");
                    self.news.notify_one();
                }
                return;
            }
        };
        let other = before.is_none_or(|before| **before != after);
        let news = known.trust_bundles.insert(query.clone()) | other;
        if other {
            if let Some(kept) = &self.kept {
                kept.trust_bundles(query, Some(&after));
            }
            known.objects.trust_bundles.insert(query.clone(), Arc::new(after));
        }
        drop(known);
        if news {
            self.news.notify_one();
        }
    }
}

fn shown(object: ClusterTrustBundle) -> (String, TrustBundle) {
    let labels = object.metadata.labels.unwrap_or_default();
    (object.metadata.name.unwrap_or_default(), TrustBundle { labels, certificates: object.spec.trust_bundle })
}
