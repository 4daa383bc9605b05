//! The objects of API pods on disk: what they were when the API server was last heard, for starts without it.
//!
//! Every file is sealed with a key that does not lie beside them (see `docs/decisions/0010-secrets-on-disk.md`); without a
//! key nothing is kept. What cannot be opened, after a reboot for example, is removed: the API server has it.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use mainstay_checkpoint::{Deferred, Durability, SealKey, Sealed, Store, WriteError};
use mainstay_types::{
    CertificateKey, Claim, FullName, IssuedCertificate, Objects, PodCertificate, PodUid, ServiceToken,
    TokenKey, TrustBundles, TrustQuery,
};
use serde::{Deserialize, Serialize};

/// One file.
#[derive(Debug, Serialize, Deserialize)]
enum Kept {
    ConfigMap(FullName, ConfigMap),
    Secret(FullName, Secret),
    Token {
        pod: PodUid,
        audience: String,
        expiration_seconds: i64,
        token: String,
        expires: Timestamp,
    },
    /// Name and handler.
    RuntimeClass(String, String),
    /// What was found for a question after ClusterTrustBundles.
    TrustBundles(TrustQuery, TrustBundles),
    Claim(FullName, Box<Claim>),
    Certificate(CertificateKey, IssuedCertificate),
    /// All of a namespace.
    Services(Vec<(FullName, Service)>),
}

/// Where objects are kept.
#[derive(Clone, Debug)]
pub(crate) struct KeptObjects {
    key: Arc<SealKey>,
    pub(crate) files: Arc<Deferred<Sealed>>,
}

impl KeptObjects {
    /// Opens the store and reads what is in it. Files that had to be set aside are returned as sentences.
    pub(crate) fn open(
        directory: &Path,
        key: Arc<SealKey>,
        now: Timestamp,
    ) -> Result<(Self, Objects, Vec<String>), WriteError> {
        let store: Store<Sealed> = Store::open(directory, 0o700, "api-object", 1, Durability::ProcessDeath)?;
        let contents = store.load_all();
        let problems = contents.set_aside.iter().map(ToString::to_string).collect();
        let files = Arc::new(Deferred::new(store));
        let mut objects = Objects::default();
        let mut lost = 0_usize;
        for (place, sealed) in contents.good {
            match key.unseal::<Kept>(&place, &sealed) {
                Some(Kept::ConfigMap(name, object)) => {
                    objects.config_maps.insert(name, Arc::new(object));
                }
                Some(Kept::Secret(name, object)) => {
                    objects.secrets.insert(name, Arc::new(object));
                }
                Some(Kept::Token { pod, audience, expiration_seconds, token, expires }) if expires > now => {
                    let key = TokenKey { pod, audience, expiration_seconds };
                    objects.tokens.insert(key, Arc::new(ServiceToken { token, expires }));
                }
                Some(Kept::RuntimeClass(name, handler)) => {
                    objects.runtime_classes.insert(name, handler.into());
                }
                Some(Kept::TrustBundles(query, bundles)) => {
                    objects.trust_bundles.insert(query, Arc::new(bundles));
                }
                Some(Kept::Claim(name, claim)) => {
                    objects.claims.insert(name, Arc::new(*claim));
                }
                Some(Kept::Services(services)) => {
                    objects.services.extend(services.into_iter().map(|(name, it)| (name, Arc::new(it))));
                }
                Some(Kept::Certificate(key, issued)) if issued.expires > now => {
                    let known = PodCertificate { issued: Some(issued), problem: String::new() };
                    objects.certificates.insert(key, Arc::new(known));
                }
                Some(Kept::Token { .. } | Kept::Certificate(..)) => files.remove(&place),
                None => {
                    lost += 1;
                    files.remove(&place);
                }
            }
        }
        if lost > 0 {
            tracing::info!(
                lost,
                "objects of the API server that were kept with another key are forgotten, as after every reboot"
            );
        }
        Ok((Self { key, files }, objects, problems))
    }

    fn put(&self, place: &str, kept: &Kept) {
        if let Some(sealed) = self.key.seal(place, kept) {
            self.files.put(place, sealed);
        }
    }

    pub(crate) fn config_map(&self, name: &FullName, object: Option<&ConfigMap>) {
        let place = place("configmap", name, "");
        match object {
            Some(object) => self.put(&place, &Kept::ConfigMap(name.clone(), object.clone())),
            None => self.files.remove(&place),
        }
    }

    pub(crate) fn secret(&self, name: &FullName, object: Option<&Secret>) {
        let place = place("secret", name, "");
        match object {
            Some(object) => self.put(&place, &Kept::Secret(name.clone(), object.clone())),
            None => self.files.remove(&place),
        }
    }

    pub(crate) fn token(&self, key: &TokenKey, token: Option<&ServiceToken>) {
        let name = FullName::new(key.pod.as_str(), &key.expiration_seconds.to_string());
        let place = place("token", &name, &key.audience);
        match token {
            None => self.files.remove(&place),
            Some(token) => self.put(
                &place,
                &Kept::Token {
                    pod: key.pod.clone(),
                    audience: key.audience.clone(),
                    expiration_seconds: key.expiration_seconds,
                    token: token.token.clone(),
                    expires: token.expires,
                },
            ),
        }
    }

    pub(crate) fn runtime_class(&self, name: &str, handler: Option<&str>) {
        let place = place("runtimeclass", &FullName::new("", name), "");
        match handler {
            Some(handler) => self.put(&place, &Kept::RuntimeClass(name.to_owned(), handler.to_owned())),
            None => self.files.remove(&place),
        }
    }

    pub(crate) fn trust_bundles(&self, query: &TrustQuery, bundles: Option<&TrustBundles>) {
        let (kind, name) = match query {
            TrustQuery::Name(name) => ("trustbundle", name),
            TrustQuery::Signer(name) => ("trustsigner", name),
        };
        let place = place(kind, &FullName::new("", name), "");
        match bundles {
            Some(bundles) => self.put(&place, &Kept::TrustBundles(query.clone(), bundles.clone())),
            None => self.files.remove(&place),
        }
    }

    pub(crate) fn claim(&self, name: &FullName, claim: Option<&Claim>) {
        let place = place("claim", name, "");
        match claim {
            Some(claim) => self.put(&place, &Kept::Claim(name.clone(), Box::new(claim.clone()))),
            None => self.files.remove(&place),
        }
    }

    pub(crate) fn certificate(&self, key: &CertificateKey, issued: Option<&IssuedCertificate>) {
        let name = FullName::new(key.pod.as_str(), &key.volume);
        let place = place("certificate", &name, &key.source.to_string());
        match issued {
            Some(issued) => self.put(&place, &Kept::Certificate(key.clone(), issued.clone())),
            None => self.files.remove(&place),
        }
    }

    /// The services of one namespace.
    pub(crate) fn services(&self, namespace: &str, all: &BTreeMap<FullName, Arc<Service>>) {
        let own = all.iter().filter(|(name, _)| &*name.namespace == namespace);
        let own: Vec<_> = own.map(|(name, it)| (name.clone(), Service::clone(it))).collect();
        let place = place("services", &FullName::new(namespace, ""), "");
        if own.is_empty() {
            self.files.remove(&place);
        } else {
            self.put(&place, &Kept::Services(own));
        }
    }
}

/// Removes what was kept earlier: now nothing is to be, sealed or not.
pub(crate) fn forget(directory: &Path) {
    let path = directory.display();
    match std::fs::remove_dir_all(directory) {
        Ok(()) => tracing::info!(%path, "objects that were kept earlier are removed: none are kept now"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(
            %path, %error,
            "what was kept earlier of the API server's objects, Secrets among them, cannot be removed; remove it"
        ),
    }
}

/// A file name for an object: names may be longer than file names may be.
fn place(kind: &str, name: &FullName, more: &str) -> String {
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    // FNV-1a, 128 bits: no secret is in a name, and the seal holds for this place alone.
    for byte in [kind, &name.namespace, &name.name, more].join("/").bytes() {
        hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    format!("{kind}-{hash:032x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn objects_come_back_with_their_key_and_are_forgotten_without_it() {
        let dir = tempfile::tempdir().unwrap();
        let now = Timestamp::from_second(1000).unwrap();
        let key = || Arc::new(SealKey::open(&dir.path().join("key")).unwrap());
        let state = dir.path().join("state");
        let (kept, empty, problems) = KeptObjects::open(&state, key(), now).unwrap();
        assert_eq!((empty, problems), (Objects::default(), Vec::new()));
        let name = FullName::new("default", "a");
        let secret =
            Secret { string_data: Some([("k".to_owned(), "hidden".to_owned())].into()), ..Secret::default() };
        kept.secret(&name, Some(&secret));
        kept.config_map(&name, Some(&ConfigMap::default()));
        kept.config_map(&FullName::new("default", "b"), Some(&ConfigMap::default()));
        kept.config_map(&FullName::new("default", "b"), None);
        let token = |pod: &str| TokenKey { pod: pod.into(), audience: "x".into(), expiration_seconds: 600 };
        let good =
            |second| ServiceToken { token: "t".into(), expires: Timestamp::from_second(second).unwrap() };
        kept.token(&token("u1"), Some(&good(2000)));
        kept.token(&token("u2"), Some(&good(1001)));
        let certificate =
            |volume: &str| CertificateKey { pod: "u1".into(), volume: volume.into(), source: 0 };
        let issued = |second| IssuedCertificate {
            key: "hidden".into(),
            chain: "c".into(),
            refresh_at: now,
            expires: Timestamp::from_second(second).unwrap(),
        };
        kept.certificate(&certificate("good"), Some(&issued(2000)));
        kept.certificate(&certificate("over"), Some(&issued(1001)));
        kept.certificate(&certificate("gone"), Some(&issued(2000)));
        kept.certificate(&certificate("gone"), None);
        let services = BTreeMap::from([
            (name.clone(), Arc::new(Service::default())),
            (FullName::new("other", "a"), Arc::new(Service::default())),
        ]);
        kept.services("default", &services);
        kept.files.run(async {}).await;
        for entry in std::fs::read_dir(&state).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            assert!(!text.contains("hidden") && !text.contains("default"), "{text}");
        }
        let later = Timestamp::from_second(1500).unwrap();
        let (_, objects, _) = KeptObjects::open(&state, key(), later).unwrap();
        assert_eq!(objects.secrets.get(&name).map(|it| &**it), Some(&secret));
        assert_eq!(objects.config_maps.keys().collect::<Vec<_>>(), [&name]);
        assert_eq!(objects.tokens.keys().collect::<Vec<_>>(), [&token("u1")], "one has expired");
        assert_eq!(objects.certificates.keys().collect::<Vec<_>>(), [&certificate("good")]);
        assert_eq!(objects.certificates[&certificate("good")].issued, Some(issued(2000)));
        assert_eq!(objects.services.keys().collect::<Vec<_>>(), [&name]);

        // After a reboot.
        std::fs::remove_file(dir.path().join("key")).unwrap();
        let (kept, objects, problems) = KeptObjects::open(&state, key(), later).unwrap();
        assert_eq!((objects, problems), (Objects::default(), Vec::new()));
        kept.files.run(async {}).await;
        assert_eq!(std::fs::read_dir(&state).unwrap().count(), 0, "what nobody can open is not kept");

        // When nothing is to be kept any more.
        kept.secret(&name, Some(&secret));
        kept.files.run(async {}).await;
        assert!(state.exists());
        forget(&state);
        assert!(!state.exists());
        forget(&state);
    }
}
