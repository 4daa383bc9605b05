//! Who may use an image that is already on the node (KEP-2535, `imagePullCredentialsVerificationPolicy`).
//!
//! An image that was pulled with somebody's secret is not everybody's only because it is there. What it was pulled with is
//! written down in upstream's form (`ImagePulledRecord` of `kubelet.config.k8s.io/v1beta1`), so that either kubelet heeds what
//! the other has seen; who cannot show the same has to pull, that is, to ask the registry.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// So many secrets are noted per image when they are merely found to be good; more would grow with every namespace.
const NOTED_MAX: usize = 100;

/// When a pod must prove that it may use an image that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PullVerification {
    /// Never.
    #[default]
    Never,
    /// For images that were pulled for pods; those that somebody put there are everybody's.
    Pulled,
    /// For all but these: names without tag, or `prefix/*`.
    AllBut(Vec<String>),
    /// Always.
    Always,
}

impl PullVerification {
    /// Whether a proof is needed. `name` is the image's repository, such as `docker.io/library/busybox`.
    #[must_use]
    pub fn wants(&self, name: &str, pulled_for_pods: bool) -> bool {
        match self {
            Self::Never => false,
            Self::Pulled => pulled_for_pods,
            Self::AllBut(listed) => !listed.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => name.starts_with(prefix),
                None => name == pattern,
            }),
            Self::Always => true,
        }
    }
}

/// What an image was pulled with, by the name that it was asked for by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PulledRecord {
    /// `ImagePulledRecord`.
    pub kind: String,
    /// The form's version.
    pub api_version: String,
    /// When it was last written, RFC 3339.
    pub last_updated_time: String,
    /// The runtime's name for the image.
    pub image_ref: String,
    /// By the image's name in pods, without tag and digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub credential_mapping: BTreeMap<String, PulledWith>,
}

/// What an image was pulled with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PulledWith {
    /// Secrets of pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_secrets: Vec<PullSecret>,
    /// Service accounts of pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_service_accounts: Vec<PullAccount>,
    /// Nothing, or what every pod of the node has.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub node_pods_accessible: bool,
}

/// A Secret that an image was pulled with.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PullSecret {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// A digest of what is in it for this image.
    pub credential_hash: String,
}

/// A service account whose token an image was pulled with.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PullAccount {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// Whose an image is by what it was pulled with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PulledBy {
    /// Those who have this secret.
    Secret(PullSecret),
    /// Pods of this service account.
    Account(PullAccount),
    /// Everybody's: it took nothing, or what every pod of the node has.
    Anybody,
    /// It is not known what it took: only that it was pulled for a pod.
    Unknown,
}

/// What a pod can show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Its pull secrets that are good for the image's registry.
    pub secrets: Vec<PullSecret>,
    /// Its service account, if some program gives a login for that.
    pub account: Option<PullAccount>,
}

/// Whether a pod may use an image that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MayUse {
    /// It may.
    Yes,
    /// It may, and this secret is as good as those that are noted.
    Noting(PullSecret),
    /// It has to ask the registry.
    No,
}

impl PulledRecord {
    /// A new one, by which the image counts as pulled for pods.
    #[must_use]
    pub fn new(image_ref: &str) -> Self {
        Self {
            kind: "ImagePulledRecord".to_owned(),
            api_version: "kubelet.config.k8s.io/v1beta1".to_owned(),
            image_ref: image_ref.to_owned(),
            ..Self::default()
        }
    }

    /// Whether everybody may use the image by this name; `None` where it depends on what a pod shows.
    #[must_use]
    pub fn allows_anybody(&self, name: &str) -> Option<bool> {
        let with = self.credential_mapping.get(name);
        match with {
            None => Some(false),
            Some(with) if with.node_pods_accessible => Some(true),
            Some(with) => (with.kubernetes_secrets.is_empty() && with.kubernetes_service_accounts.is_empty())
                .then_some(false),
        }
    }

    /// Whether a pod that shows this may use the image by this name.
    #[must_use]
    pub fn allows(&self, name: &str, shown: &Shown) -> MayUse {
        let Some(with) = self.credential_mapping.get(name) else { return MayUse::No };
        if with.node_pods_accessible {
            return MayUse::Yes;
        }
        for own in &shown.secrets {
            for noted in &with.kubernetes_secrets {
                let same =
                    (&own.uid, &own.namespace, &own.name) == (&noted.uid, &noted.namespace, &noted.name);
                let alike = !noted.credential_hash.is_empty() && own.credential_hash == noted.credential_hash;
                match (same, alike) {
                    (true, true) => return MayUse::Yes,
                    // The same secret, whose contents were changed since, or another with the same contents.
                    (true, false) | (false, true) if with.kubernetes_secrets.len() < NOTED_MAX => {
                        return MayUse::Noting(own.clone());
                    }
                    (false, true) => return MayUse::Yes,
                    _ => {}
                }
            }
        }
        match &shown.account {
            Some(account) if with.kubernetes_service_accounts.contains(account) => MayUse::Yes,
            _ => MayUse::No,
        }
    }

    /// Notes what the image was pulled with. Whether that was news.
    pub fn note(&mut self, name: &str, by: PulledBy) -> bool {
        if by == PulledBy::Unknown {
            return false;
        }
        let with = self.credential_mapping.entry(name.to_owned()).or_default();
        let before = with.clone();
        match by {
            PulledBy::Anybody => *with = PulledWith { node_pods_accessible: true, ..PulledWith::default() },
            PulledBy::Unknown => {}
            // Whom everybody may use is not taken back.
            _ if with.node_pods_accessible => {}
            PulledBy::Account(account) => {
                if !with.kubernetes_service_accounts.contains(&account) {
                    with.kubernetes_service_accounts.push(account);
                    with.kubernetes_service_accounts.sort();
                }
            }
            PulledBy::Secret(secret) => {
                with.kubernetes_secrets.retain(|noted| {
                    (&noted.uid, &noted.namespace, &noted.name)
                        != (&secret.uid, &secret.namespace, &secret.name)
                });
                with.kubernetes_secrets.push(secret);
                with.kubernetes_secrets.sort();
            }
        }
        *with != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str, hash: &str) -> PullSecret {
        PullSecret {
            namespace: "ns".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
            credential_hash: hash.into(),
        }
    }

    #[test]
    fn policies() {
        let listed = PullVerification::AllBut(vec!["r.test/team/*".into(), "r.test/tool".into()]);
        let rows = [
            (PullVerification::Never, "r.test/x", true, false),
            (PullVerification::Pulled, "r.test/x", false, false),
            (PullVerification::Pulled, "r.test/x", true, true),
            (PullVerification::Always, "r.test/x", false, true),
            (listed.clone(), "r.test/team/x", true, false),
            (listed.clone(), "r.test/tool", true, false),
            (listed.clone(), "r.test/toolbox", false, true),
            (listed, "r.test/x", false, true),
        ];
        for (policy, name, pulled, wanted) in rows {
            assert_eq!(policy.wants(name, pulled), wanted, "{policy:?} {name} {pulled}");
        }
    }

    #[test]
    fn who_has_what_it_was_pulled_with_may_use_it() {
        let mut record = PulledRecord::new("sha256:1");
        let with = |secrets: Vec<PullSecret>| Shown { secrets, account: None };
        let none = Shown::default();
        let one = with(vec![secret("a", "1")]);
        assert_eq!(record.allows("r.test/x", &one), MayUse::No, "nothing is known");
        assert_eq!(record.allows_anybody("r.test/x"), Some(false));
        assert!(!record.note("r.test/x", PulledBy::Unknown));
        assert!(record.note("r.test/x", PulledBy::Secret(secret("a", "1"))));
        assert!(!record.note("r.test/x", PulledBy::Secret(secret("a", "1"))));
        assert_eq!(record.allows_anybody("r.test/x"), None);
        let rows = [
            ("the same", vec![secret("a", "1")], MayUse::Yes),
            ("none", vec![], MayUse::No),
            ("another", vec![secret("b", "2")], MayUse::No),
            ("another with the same contents", vec![secret("b", "1")], MayUse::Noting(secret("b", "1"))),
            ("the same with new contents", vec![secret("a", "2")], MayUse::Noting(secret("a", "2"))),
            ("one of several", vec![secret("b", "2"), secret("a", "1")], MayUse::Yes),
        ];
        for (row, secrets, wanted) in rows {
            assert_eq!(record.allows("r.test/x", &with(secrets)), wanted, "{row}");
        }
        assert_eq!(record.allows("r.test/y", &one), MayUse::No, "by another name");
        assert!(record.note("r.test/x", PulledBy::Secret(secret("a", "2"))), "one secret is noted once");
        assert_eq!(record.credential_mapping["r.test/x"].kubernetes_secrets, [secret("a", "2")]);
        // An account is the same if it is the very same.
        let account = |uid: &str| PullAccount { namespace: "ns".into(), name: "a".into(), uid: uid.into() };
        let of = |uid: &str| Shown { secrets: Vec::new(), account: Some(account(uid)) };
        assert_eq!(record.allows("r.test/x", &of("1")), MayUse::No);
        assert!(record.note("r.test/x", PulledBy::Account(account("1"))));
        assert!(!record.note("r.test/x", PulledBy::Account(account("1"))));
        assert_eq!(record.allows("r.test/x", &of("1")), MayUse::Yes);
        assert_eq!(record.allows("r.test/x", &of("2")), MayUse::No, "made anew since");
        assert!(record.note("r.test/x", PulledBy::Anybody));
        assert_eq!(record.allows("r.test/x", &none), MayUse::Yes);
        assert!(!record.note("r.test/x", PulledBy::Secret(secret("a", "1"))), "it stays everybody's");
    }

    #[test]
    fn the_form_is_upstreams() {
        let text = r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":"2024-10-21T12:26:40Z","imageRef":"testimageref","credentialMapping":{"docker.io/testing/test":{"kubernetesSecrets":[{"uid":"testsecretuid","namespace":"default","name":"pull-secret","credentialHash":"testsecrethash"}]},"x":{"nodePodsAccessible":true},"y":{"kubernetesServiceAccounts":[{"uid":"u","namespace":"n","name":"a"}]}}}"#;
        let record: PulledRecord = serde_json::from_str(text).unwrap();
        let again: serde_json::Value = serde_json::to_value(&record).unwrap();
        assert_eq!(again, serde_json::from_str::<serde_json::Value>(text).unwrap());
        assert_eq!(record.allows("x", &Shown::default()), MayUse::Yes);
        assert_eq!(record.allows("y", &Shown::default()), MayUse::No);
    }
}
