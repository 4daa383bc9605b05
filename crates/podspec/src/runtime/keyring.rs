//! Registry credentials from pull secrets, matched to images as upstream's keyring does.

use std::{collections::BTreeMap, fmt};

use base64::Engine as _;
use k8s_cri::v1::AuthConfig;
use k8s_openapi::api::core::v1::Secret;
use mainstay_types::FullName;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::ImageName;

const DOCKER_HUB_KEY: &str = "index.docker.io";

/// Why a pull secret or docker configuration cannot be used. Never carries any of its contents.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyringError {
    /// It is not JSON of the right form.
    #[error(
        "{origin} is not a docker configuration (JSON problem at line {line}, column {column}); write it with `kubectl create secret docker-registry` or copy a config.json"
    )]
    Json {
        /// `secret ns/name key`, or what else was read.
        origin: String,
        /// Where.
        line: usize,
        /// Where.
        column: usize,
    },
    /// An `auth` field is not `base64(username:password)`.
    #[error(
        "{origin}: the auth field of {registry:?} cannot be read; it must be base64 of username:password"
    )]
    Auth {
        /// `secret ns/name key`, or what else was read.
        origin: String,
        /// The entry.
        registry: String,
    },
}

/// Credentials by registry and path.
#[derive(Clone, Default)]
pub struct Keyring {
    by_place: BTreeMap<String, Vec<Credential>>,
}

/// One way to log in. Its `Debug` shows no part of it but where it came from.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    username: String,
    password: String,
    email: String,
    source: Option<FullName>,
}

#[derive(Deserialize)]
struct ConfigJson {
    #[serde(default)]
    auths: Option<BTreeMap<String, Entry>>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
    #[serde(default)]
    email: Option<String>,
    #[serde(default)]
    auth: Option<String>,
}

impl Keyring {
    /// The credentials of pull secrets of type `kubernetes.io/dockerconfigjson` and `kubernetes.io/dockercfg`. Secrets
    /// of other types are passed over.
    ///
    /// # Errors
    /// When a secret of these types cannot be read; as with upstream, then none is used.
    pub fn from_secrets<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Result<Self, KeyringError> {
        let mut keyring = Self::default();
        for secret in secrets {
            let key = match secret.type_.as_deref() {
                Some("kubernetes.io/dockerconfigjson") => ".dockerconfigjson",
                Some("kubernetes.io/dockercfg") => ".dockercfg",
                _ => continue,
            };
            let text = secret.string_data.as_ref().and_then(|data| data.get(key)).map(String::as_bytes);
            let data = || secret.data.as_ref()?.get(key).map(|bytes| bytes.0.as_slice());
            let Some(bytes) = text.or_else(data).filter(|bytes| !bytes.is_empty()) else { continue };
            let source = FullName::new(
                secret.metadata.namespace.as_deref().unwrap_or_default(),
                secret.metadata.name.as_deref().unwrap_or_default(),
            );
            let origin = format!("secret {source} key {key}");
            let entries = if key == ".dockerconfigjson" {
                parse::<ConfigJson>(bytes, &origin)?.auths.unwrap_or_default()
            } else {
                parse::<Option<BTreeMap<String, Entry>>>(bytes, &origin)?.unwrap_or_default()
            };
            keyring.add(entries, &origin, Some(&source))?;
        }
        Ok(keyring)
    }

    /// The node's own credentials, from the contents of a docker `config.json`. `origin` names it in errors.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn from_config_json(bytes: &[u8], origin: &str) -> Result<Self, KeyringError> {
        let mut keyring = Self::default();
        keyring.add(parse::<ConfigJson>(bytes, origin)?.auths.unwrap_or_default(), origin, None)?;
        Ok(keyring)
    }

    /// What a credential provider answered: user name and password by registry and path.
    #[must_use]
    pub fn from_provider(auth: BTreeMap<String, (String, String)>) -> Self {
        let mut keyring = Self::default();
        for (registry, (username, password)) in auth {
            let credential = Credential { username, password, email: String::new(), source: None };
            keyring.by_place.entry(place_key(&registry)).or_default().push(credential);
        }
        keyring
    }

    /// The credentials to try for an image, the most specific place first; empty when there are none.
    #[must_use]
    pub fn lookup(&self, image: &ImageName) -> Vec<Credential> {
        let repository = image.repository();
        let target = Place::parse(&repository);
        let matching = self.by_place.iter().rev().filter(|(place, _)| Place::parse(place).covers(&target));
        let found: Vec<Credential> = matching.flat_map(|(_, credentials)| credentials).cloned().collect();
        if found.is_empty() && is_docker_hub(&repository) {
            return self.by_place.get(DOCKER_HUB_KEY).cloned().unwrap_or_default();
        }
        found
    }

    fn add(
        &mut self,
        entries: BTreeMap<String, Entry>,
        origin: &str,
        source: Option<&FullName>,
    ) -> Result<(), KeyringError> {
        for (registry, entry) in entries {
            let mut username = entry.username.unwrap_or_default();
            let mut password = entry.password.unwrap_or_default();
            if let Some(auth) = entry.auth.filter(|auth| !auth.is_empty()) {
                (username, password) = decode_auth(&auth).ok_or_else(|| KeyringError::Auth {
                    origin: origin.to_owned(),
                    registry: registry.clone(),
                })?;
            }
            let email = entry.email.unwrap_or_default();
            let credential = Credential { username, password, email, source: source.cloned() };
            self.by_place.entry(place_key(&registry)).or_default().push(credential);
        }
        Ok(())
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.by_place).finish()
    }
}

impl Credential {
    /// What the runtime is given. The message's own `Debug` shows the password: do not log it.
    #[must_use]
    pub fn auth_config(&self) -> AuthConfig {
        AuthConfig {
            username: self.username.clone(),
            password: self.password.clone(),
            ..AuthConfig::default()
        }
    }

    /// The Secret that it came from; `None` when it is the node's own.
    #[must_use]
    pub fn source(&self) -> Option<&FullName> {
        self.source.as_ref()
    }

    /// The `credentialHash` of an image pull record: SHA-256 of Go's JSON of it, in hex.
    #[must_use]
    pub fn hash(&self) -> String {
        #[derive(serde::Serialize)]
        struct Record<'a> {
            #[serde(skip_serializing_if = "str::is_empty")]
            username: &'a str,
            #[serde(skip_serializing_if = "str::is_empty")]
            password: &'a str,
            #[serde(skip_serializing_if = "str::is_empty")]
            email: &'a str,
        }
        let record = Record { username: &self.username, password: &self.password, email: &self.email };
        let digest = Sha256::digest(super::gojson::go_json(&record));
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Whether a credential provider is asked about an image: `pattern` is one of its `matchImages`, matched as registries are.
#[must_use]
pub fn matches_image(pattern: &str, image: &ImageName) -> bool {
    let bare =
        pattern.strip_prefix("https://").or_else(|| pattern.strip_prefix("http://")).unwrap_or(pattern);
    Place::parse(bare).covers(&Place::parse(&image.repository()))
}

/// serde's own message may quote values, so only the position is kept.
fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8], origin: &str) -> Result<T, KeyringError> {
    serde_json::from_slice(bytes).map_err(|error| KeyringError::Json {
        origin: origin.to_owned(),
        line: error.line(),
        column: error.column(),
    })
}

fn decode_auth(auth: &str) -> Option<(String, String)> {
    use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
    let auth: String = auth.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let padded = auth.trim_end().ends_with('=');
    let bytes = if padded { STANDARD.decode(auth) } else { STANDARD_NO_PAD.decode(auth) }.ok()?;
    let text = String::from_utf8(bytes).ok()?;
    text.split_once(':').map(|(username, password)| (username.to_owned(), password.to_owned()))
}

/// An entry's host and path. `https://` and the API's `/v1/` and `/v2/` are noise that docker's own files have.
fn place_key(registry: &str) -> String {
    let bare =
        registry.strip_prefix("https://").or_else(|| registry.strip_prefix("http://")).unwrap_or(registry);
    let bare = bare.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = match bare.find('/') {
        Some(at) => bare.split_at(at),
        None => (bare, ""),
    };
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    // `/v1/` becomes `/`, `/v1/x` becomes `/x`, but `/v1` stays.
    let without_api =
        ["/v1", "/v2"].iter().find_map(|api| path.strip_prefix(api).filter(|rest| rest.starts_with('/')));
    let path = without_api.unwrap_or(path);
    if path == "/" { host.to_owned() } else { format!("{host}{path}") }
}

/// A host, taken apart, with a path.
struct Place<'a> {
    labels: Vec<&'a str>,
    port: &'a str,
    path: &'a str,
}

impl<'a> Place<'a> {
    fn parse(text: &'a str) -> Self {
        let (host, path) = match text.find('/') {
            Some(at) => text.split_at(at),
            None => (text, ""),
        };
        let (host, port) = match host.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host.trim_matches(['[', ']']), port),
            _ => (host, ""),
        };
        Self { labels: host.split('.').collect(), port, path }
    }

    /// Same number of labels, each matching (`*` may stand in a label), same port, and a path that begins alike.
    fn covers(&self, target: &Self) -> bool {
        self.port == target.port
            && self.labels.len() == target.labels.len()
            && target.path.starts_with(self.path)
            && self.labels.iter().zip(&target.labels).all(|(glob, label)| glob_matches(glob, label))
    }
}

/// Whether a host's label matches one in which `*` stands for any run of characters. (Other wildcards cannot be in a
/// registry's name: upstream reads it as a URL.)
fn glob_matches(glob: &str, label: &str) -> bool {
    let Some((head, tail)) = glob.split_once('*') else { return glob == label };
    let Some(mut rest) = label.strip_prefix(head) else { return false };
    let mut pieces: Vec<&str> = tail.split('*').collect();
    let last = pieces.pop().unwrap_or_default();
    // The earliest place for each piece leaves the most for those behind it.
    for piece in pieces {
        match rest.split_once(piece) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Whether an image comes from Docker Hub, by docker's rule of thumb.
fn is_docker_hub(repository: &str) -> bool {
    match repository.split_once('/') {
        None => !repository.is_empty(),
        Some(("docker.io" | "index.docker.io", _)) => true,
        Some((first, _)) => !first.is_empty() && !first.contains(['.', ':']),
    }
}

#[cfg(test)]
mod tests;
