//! The objects that a pod needs of an API server.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, Container, Pod, PodCertificateProjection, Volume,
};
use mainstay_types::{CertificateKey, CertificateWish, FullName, Objects, PodExt as _, TokenKey, TrustQuery};

/// How long a token is good for unless its volume says otherwise.
const TOKEN_SECONDS: i64 = 3600;

/// What a pod refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// ConfigMaps.
    pub config_maps: BTreeSet<FullName>,
    /// Secrets, those for pulling images among them.
    pub secrets: BTreeSet<FullName>,
    /// Tokens of its service account.
    pub tokens: BTreeSet<TokenKey>,
    /// PersistentVolumeClaims, and whether each must have been made for the pod (`ephemeral`).
    pub claims: BTreeMap<FullName, bool>,
    /// ClusterTrustBundles.
    pub trust_bundles: BTreeSet<TrustQuery>,
    /// Certificates that are issued to it.
    pub certificates: BTreeMap<CertificateKey, CertificateWish>,
    /// Its RuntimeClass.
    pub runtime_class: Option<String>,
}

/// Everything that the pod's volumes, environment and image pulls refer to.
#[must_use]
pub fn references(pod: &Pod) -> References {
    let spec = pod.spec_ref();
    let named = |name: &str| FullName::new(pod.namespace_ref(), name);
    let mut found = References {
        runtime_class: spec.runtime_class_name.clone().filter(|class| !class.is_empty()),
        ..References::default()
    };
    for volume in spec.volumes.iter().flatten() {
        found.config_maps.extend(volume.config_map.as_ref().map(|source| named(&source.name)));
        found.secrets.extend(volume.secret.iter().filter_map(|it| it.secret_name.as_deref()).map(named));
        found.claims.extend(claim_name(pod, volume).map(|name| (name, volume.ephemeral.is_some())));
        for (place, source) in volume.projected.iter().flat_map(|it| it.sources.iter().flatten()).enumerate()
        {
            found.config_maps.extend(source.config_map.as_ref().map(|source| named(&source.name)));
            found.secrets.extend(source.secret.as_ref().map(|source| named(&source.name)));
            let token = source.service_account_token.as_ref();
            found
                .tokens
                .extend(token.map(|it| token_key(pod, it.audience.as_deref(), it.expiration_seconds)));
            found.trust_bundles.extend(source.cluster_trust_bundle.as_ref().and_then(trust_query));
            let certificate = source.pod_certificate.as_ref();
            found.certificates.extend(
                certificate.map(|it| (certificate_key(pod, &volume.name, place), certificate_wish(it))),
            );
        }
    }
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let of_ephemeral = ephemeral.map(|it| (it.env.as_deref(), it.env_from.as_deref()));
    let of_others =
        pod.all_containers().map(|(_, it): (_, &Container)| (it.env.as_deref(), it.env_from.as_deref()));
    for (env, env_from) in of_others.chain(of_ephemeral) {
        for source in env_from.into_iter().flatten() {
            found.config_maps.extend(source.config_map_ref.as_ref().map(|it| named(&it.name)));
            found.secrets.extend(source.secret_ref.as_ref().map(|it| named(&it.name)));
        }
        for source in env.into_iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
            found.config_maps.extend(source.config_map_key_ref.as_ref().map(|it| named(&it.name)));
            found.secrets.extend(source.secret_key_ref.as_ref().map(|it| named(&it.name)));
        }
    }
    found.secrets.extend(spec.image_pull_secrets.iter().flatten().map(|it| named(&it.name)));
    found
}

/// Whether anything that the pod refers to is another in `new` than in `old`, or the Services have been heard of meanwhile.
#[must_use]
pub fn references_differ(pod: &Pod, old: &Objects, new: &Objects) -> bool {
    let found = references(pod);
    let class = found.runtime_class.as_deref();
    class.is_some_and(|class| old.runtime_classes.get(class) != new.runtime_classes.get(class))
        || old.services.is_empty() != new.services.is_empty()
        || found.config_maps.iter().any(|it| !same(old.config_maps.get(it), new.config_maps.get(it)))
        || found.secrets.iter().any(|it| !same(old.secrets.get(it), new.secrets.get(it)))
        || found.tokens.iter().any(|it| !same(old.tokens.get(it), new.tokens.get(it)))
        || found.claims.keys().any(|it| !same(old.claims.get(it), new.claims.get(it)))
        || found.trust_bundles.iter().any(|it| !same(old.trust_bundles.get(it), new.trust_bundles.get(it)))
        || found.certificates.keys().any(|it| !same(old.certificates.get(it), new.certificates.get(it)))
}

pub(crate) fn same<T: PartialEq>(old: Option<&Arc<T>>, new: Option<&Arc<T>>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => Arc::ptr_eq(old, new) || old == new,
        (None, None) => true,
        _ => false,
    }
}

/// By what a token is known.
pub(crate) fn token_key(pod: &Pod, audience: Option<&str>, expiration_seconds: Option<i64>) -> TokenKey {
    TokenKey {
        pod: pod.uid_ref().into(),
        audience: audience.unwrap_or_default().to_owned(),
        expiration_seconds: expiration_seconds.unwrap_or(TOKEN_SECONDS),
    }
}

/// By what the certificate of a volume's source is known.
pub(crate) fn certificate_key(pod: &Pod, volume: &str, source: usize) -> CertificateKey {
    CertificateKey { pod: pod.uid_ref().into(), volume: volume.to_owned(), source }
}

fn certificate_wish(source: &PodCertificateProjection) -> CertificateWish {
    CertificateWish {
        signer: source.signer_name.clone(),
        key_type: source.key_type.clone(),
        max_expiration_seconds: source.max_expiration_seconds,
        annotations: source.user_annotations.clone().unwrap_or_default(),
    }
}

/// The claim behind a volume, if there is one. That of an ephemeral volume is made by a controller, of pod's and volume's name.
pub(crate) fn claim_name(pod: &Pod, volume: &Volume) -> Option<FullName> {
    let name = match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => claim.claim_name.clone(),
        (None, Some(_)) => format!("{}-{}", pod.name_ref(), volume.name),
        (None, None) => return None,
    };
    Some(FullName::new(pod.namespace_ref(), &name))
}

/// By what the objects behind a clusterTrustBundle source are asked for; `None` if it names none, which no API server lets
/// pass.
pub(crate) fn trust_query(source: &ClusterTrustBundleProjection) -> Option<TrustQuery> {
    let named = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    named(&source.name).map(TrustQuery::Name).or_else(|| named(&source.signer_name).map(TrustQuery::Signer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_a_pod_refers_to() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": { "name": "p", "namespace": "ns", "uid": "u1" },
            "spec": {
                "runtimeClassName": "deep",
                "imagePullSecrets": [{ "name": "pull" }],
                "initContainers": [{ "name": "i", "env": [
                    { "name": "A", "valueFrom": { "secretKeyRef": { "name": "key", "key": "k" } } }] }],
                "containers": [{ "name": "c",
                    "envFrom": [{ "configMapRef": { "name": "env" } }, { "secretRef": { "name": "env" } }],
                    "env": [{ "name": "A", "valueFrom": { "configMapKeyRef": { "name": "key", "key": "k" } } }] }],
                "volumes": [
                    { "name": "a", "configMap": { "name": "vol" } },
                    { "name": "b", "secret": { "secretName": "vol" } },
                    { "name": "c", "projected": { "sources": [
                        { "configMap": { "name": "proj" } }, { "secret": { "name": "proj" } },
                        { "serviceAccountToken": { "path": "t", "audience": "me", "expirationSeconds": 700 } },
                        { "serviceAccountToken": { "path": "u" } },
                        { "podCertificate": { "signerName": "example.com/s", "keyType": "ED25519", "keyPath": "k",
                            "maxExpirationSeconds": 7200, "userAnnotations": { "example.com/a": "b" } } } ] } },
                ],
            },
        }))
        .unwrap();
        let names = |set: &BTreeSet<FullName>| set.iter().map(|it| it.name.to_string()).collect::<Vec<_>>();
        let found = references(&pod);
        assert_eq!(names(&found.config_maps), ["env", "key", "proj", "vol"]);
        assert_eq!(names(&found.secrets), ["env", "key", "proj", "pull", "vol"]);
        assert_eq!(found.runtime_class.as_deref(), Some("deep"));
        let tokens: Vec<_> =
            found.tokens.iter().map(|it| (it.audience.as_str(), it.expiration_seconds)).collect();
        assert_eq!(tokens, [("", 3600), ("me", 700)]);
        let key = CertificateKey { pod: "u1".into(), volume: "c".into(), source: 4 };
        let wish = CertificateWish {
            signer: "example.com/s".into(),
            key_type: "ED25519".into(),
            max_expiration_seconds: Some(7200),
            annotations: [("example.com/a".to_owned(), "b".to_owned())].into(),
        };
        assert_eq!(found.certificates, [(key, wish)].into());
    }
}
