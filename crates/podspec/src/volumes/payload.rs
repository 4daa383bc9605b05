//! What is in configMap, secret, downwardAPI and projected volumes.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, KeyToPath, Pod, PodCertificateProjection, Volume, VolumeProjection,
};
use mainstay_types::{CertificateKey, FullName, Objects, PodExt as _};

use super::{Contents, VolumeContext, VolumeSpecError, contents::Object, trust};
use crate::{
    references::{certificate_key, claim_name, same, token_key, trust_query},
    runtime::{SpecError, pod_field, resource_field},
};

/// The most that a ConfigMap or Secret may hold.
const DATA_MAX_BYTES: usize = 1 << 20;
/// The most that a volume may hold of what is made for it alone: tokens, certificates, trust bundles, the downward API. Each of its items may
/// show 256 KiB of annotations, and there is no bound on items.
const MADE_MAX_BYTES: usize = 8 << 20;
const NAME_MAX_BYTES: usize = 255;
/// As Linux has it.
pub(super) const PATH_MAX_BYTES: usize = 4096;
/// How many names a file's path in a volume may have. Kubernetes has no bound, and nobody has use for more.
pub const MAX_PATH_PARTS: usize = 64;
const DEFAULT_MODE: u32 = 0o644;

/// The files of a volume, by path in it. May hold secrets: never log it.
pub type Payload = BTreeMap<String, PayloadFile>;

/// One file.
#[derive(Clone, PartialEq, Eq)]
pub struct PayloadFile {
    /// What is in it.
    pub contents: Contents,
    /// Permission bits.
    pub mode: u32,
    /// Who owns it; root, if nobody is named.
    pub owner: Option<u32>,
}

impl std::fmt::Debug for PayloadFile {
    /// Its contents may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PayloadFile({} bytes, {:o})", self.contents.bytes().len(), self.mode)
    }
}

/// The payload of a volume whose contents we write; `None` for other kinds.
pub(super) fn payload(
    pod: &Pod,
    volume: &Volume,
    context: &VolumeContext<'_>,
) -> Result<Option<Payload>, VolumeSpecError> {
    let mut draft = Draft { pod, context, files: Payload::new(), made_bytes: 0 };
    if let Some(source) = &volume.config_map {
        let mode = bits(source.default_mode, DEFAULT_MODE);
        draft.config_map(&source.name, source.items.as_deref(), source.optional, mode)?;
    } else if let Some(source) = &volume.secret {
        let mode = bits(source.default_mode, DEFAULT_MODE);
        let name = source.secret_name.as_deref().unwrap_or_default();
        draft.secret(name, source.items.as_deref(), source.optional, mode)?;
    } else if let Some(source) = &volume.downward_api {
        let mode = bits(source.default_mode, DEFAULT_MODE);
        draft.downward(source.items.as_deref().unwrap_or_default(), mode)?;
    } else if let Some(source) = &volume.projected {
        let mode = bits(source.default_mode, DEFAULT_MODE);
        for (place, projection) in source.sources.iter().flatten().enumerate() {
            match &projection.pod_certificate {
                Some(source) => {
                    let key = certificate_key(pod, &volume.name, place);
                    draft.certificate(source, &key, mode)?;
                }
                None => draft.projection(projection, mode)?,
            }
        }
    } else {
        return Ok(None);
    }
    draft.check_directories()?;
    Ok(Some(draft.files))
}

fn bits(mode: Option<i32>, default: u32) -> u32 {
    mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(default) & 0o777
}

/// The user that every container of the pod runs as by its spec; `None` if one does not say or they differ (upstream:
/// FsUserFrom in `pkg/volume/util/util.go`).
fn only_user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec_ref();
    let of_pod = spec.security_context.as_ref().and_then(|context| context.run_as_user);
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let mut users =
        containers.map(|it| it.security_context.as_ref().and_then(|own| own.run_as_user).or(of_pod));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok())?
}

fn has_fs_group(pod: &Pod) -> bool {
    pod.spec_ref().security_context.as_ref().is_some_and(|context| context.fs_group.is_some())
}

struct Draft<'a> {
    pod: &'a Pod,
    context: &'a VolumeContext<'a>,
    files: Payload,
    /// Bytes of files that are not an object's own: these are made for the volume, and held for it alone.
    made_bytes: usize,
}

impl Draft<'_> {
    fn projection(&mut self, source: &VolumeProjection, mode: u32) -> Result<(), VolumeSpecError> {
        if let Some(source) = &source.config_map {
            self.config_map(&source.name, source.items.as_deref(), source.optional, mode)
        } else if let Some(source) = &source.secret {
            self.secret(&source.name, source.items.as_deref(), source.optional, mode)
        } else if let Some(source) = &source.downward_api {
            self.downward(source.items.as_deref().unwrap_or_default(), mode)
        } else if let Some(source) = &source.cluster_trust_bundle {
            let contents = trust::anchors(source, self.context.objects)?;
            // As with tokens, though there is nothing secret in it (upstream's).
            let (mode, owner) = self.personal(mode);
            self.put_owned(&|| "the trust bundle".to_owned(), &source.path, contents.into(), mode, owner)
        } else if let Some(source) = &source.service_account_token {
            let key = token_key(self.pod, source.audience.as_deref(), source.expiration_seconds);
            match self.context.objects.tokens.get(&key) {
                Some(token) => {
                    let (mode, owner) = self.personal(mode);
                    let what = || "the service account token".to_owned();
                    self.put_owned(&what, &source.path, token.token.clone().into_bytes().into(), mode, owner)
                }
                None => Err(VolumeSpecError::NoToken {
                    account: self.pod.spec_ref().service_account_name.clone().unwrap_or_default(),
                }),
            }
        } else {
            Ok(())
        }
    }

    /// The mode and owner of what is nobody's but its user's, if it is certain who that is. With an fsGroup the group reads it too: the
    /// writer adds that.
    fn personal(&self, mode: u32) -> (u32, Option<u32>) {
        let owner = only_user(self.pod);
        (if owner.is_some() || has_fs_group(self.pod) { 0o600 } else { mode }, owner)
    }

    fn certificate(
        &mut self,
        source: &PodCertificateProjection,
        key: &CertificateKey,
        mode: u32,
    ) -> Result<(), VolumeSpecError> {
        let known = self.context.objects.certificates.get(key);
        let Some(issued) = known.and_then(|known| known.issued.as_ref()) else {
            let problem = known.map(|known| known.problem.as_str()).filter(|problem| !problem.is_empty());
            let problem = problem.unwrap_or("it has not been issued yet").to_owned();
            return Err(VolumeSpecError::NoCertificate { signer: source.signer_name.clone(), problem });
        };
        let (mode, owner) = self.personal(mode);
        let files = [
            (&source.credential_bundle_path, format!("{}{}", issued.key, issued.chain)),
            (&source.key_path, issued.key.clone()),
            (&source.certificate_chain_path, issued.chain.clone()),
        ];
        for (path, text) in files {
            if let Some(path) = path.as_deref().filter(|path| !path.is_empty()) {
                let what = || "the pod certificate".to_owned();
                self.put_owned(&what, path, text.into_bytes().into(), mode, owner)?;
            }
        }
        Ok(())
    }

    fn config_map(
        &mut self,
        name: &str,
        items: Option<&[KeyToPath]>,
        optional: Option<bool>,
        mode: u32,
    ) -> Result<(), VolumeSpecError> {
        let found = self.context.objects.config_maps.get(&FullName::new(self.pod.namespace_ref(), name));
        let object = found.map(|object| Object::ConfigMap(Arc::clone(object)));
        self.keys(Kind::CONFIG_MAP, name, object, items, optional, mode)
    }

    fn secret(
        &mut self,
        name: &str,
        items: Option<&[KeyToPath]>,
        optional: Option<bool>,
        mode: u32,
    ) -> Result<(), VolumeSpecError> {
        let found = self.context.objects.secrets.get(&FullName::new(self.pod.namespace_ref(), name));
        let object = found.map(|object| Object::Secret(Arc::clone(object)));
        self.keys(Kind::SECRET, name, object, items, optional, mode)
    }

    fn keys(
        &mut self,
        kind: Kind,
        name: &str,
        object: Option<Object>,
        items: Option<&[KeyToPath]>,
        optional: Option<bool>,
        mode: u32,
    ) -> Result<(), VolumeSpecError> {
        let optional = optional == Some(true);
        let Some(object) = object else {
            if optional {
                return Ok(());
            }
            let (namespace, name) = (self.pod.namespace_ref().to_owned(), name.to_owned());
            return Err(VolumeSpecError::NotFound { kind: kind.object, namespace, name });
        };
        let keys = object.keys();
        let bytes = keys.iter().filter_map(|key| object.value(key)).map(<[u8]>::len).sum();
        if bytes > DATA_MAX_BYTES {
            let (kind, name, max) = (kind.object, name.to_owned(), DATA_MAX_BYTES);
            return Err(VolumeSpecError::TooLarge { kind, name, bytes, max });
        }
        let what = || format!("{} {name:?}", kind.object);
        match items.filter(|items| !items.is_empty()) {
            None => {
                for key in keys {
                    self.put(&what, key, object.contents(key), mode)?;
                }
            }
            Some(items) => {
                for item in items {
                    match object.value(&item.key) {
                        Some(_) => {
                            let contents = object.contents(&item.key);
                            self.put(&what, &item.path, contents, bits(item.mode, mode))?;
                        }
                        None if optional => {}
                        None => {
                            return Err(VolumeSpecError::NoSuchKey {
                                kind: kind.object,
                                what: kind.key,
                                name: name.to_owned(),
                                key: item.key.clone(),
                            });
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn downward(&mut self, files: &[DownwardAPIVolumeFile], mode: u32) -> Result<(), VolumeSpecError> {
        let pod = self.pod;
        for file in files {
            let text = if let Some(reference) = &file.field_ref {
                // Volumes show what never changes without the pod: not its addresses.
                if !reference.field_path.starts_with("metadata.") {
                    return Err(SpecError::FieldPath(reference.field_path.clone()).into());
                }
                pod_field(pod, reference, &[], &[])?
            } else if let Some(reference) = &file.resource_field_ref {
                let name = reference.container_name.as_deref().unwrap_or_default();
                let (_, container) =
                    pod.container(name).ok_or_else(|| SpecError::NoSuchContainer(name.to_owned()))?;
                resource_field(pod, container, reference, &self.context.node.allocatable)?
            } else {
                String::new()
            };
            let contents = text.into_bytes().into();
            self.put(&|| "the downward API".to_owned(), &file.path, contents, bits(file.mode, mode))?;
        }
        Ok(())
    }

    fn put(
        &mut self,
        what: &dyn Fn() -> String,
        path: &str,
        contents: Contents,
        mode: u32,
    ) -> Result<(), VolumeSpecError> {
        self.put_owned(what, path, contents, mode, None)
    }

    fn put_owned(
        &mut self,
        what: &dyn Fn() -> String,
        path: &str,
        contents: Contents,
        mode: u32,
        owner: Option<u32>,
    ) -> Result<(), VolumeSpecError> {
        if let Some(why) = path_problem(path) {
            return Err(VolumeSpecError::Path { what: what(), path: path.to_owned(), why });
        }
        if contents.is_own() {
            self.made_bytes = self.made_bytes.saturating_add(contents.bytes().len());
            if self.made_bytes > MADE_MAX_BYTES {
                return Err(VolumeSpecError::TooMuchMade { what: what(), max: MADE_MAX_BYTES });
            }
        }
        // `a//b/./c` is `a/b/c`: two spellings of one file are one file.
        let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        self.files.insert(parts.join("/"), PayloadFile { contents, mode, owner });
        Ok(())
    }

    fn check_directories(&self) -> Result<(), VolumeSpecError> {
        for path in self.files.keys() {
            let mut at = path.as_str();
            while let Some((parent, _)) = at.rsplit_once('/') {
                if self.files.contains_key(parent) {
                    return Err(VolumeSpecError::FileAndDirectory { path: parent.to_owned() });
                }
                at = parent;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Kind {
    object: &'static str,
    key: &'static str,
}

impl Kind {
    const CONFIG_MAP: Self = Self { object: "configmap", key: "config" };
    const SECRET: Self = Self { object: "secret", key: "secret" };
}

/// What keeps a path from being a file in a volume.
pub(crate) fn path_problem(path: &str) -> Option<&'static str> {
    let mut parts = path.split('/');
    if path.is_empty() || parts.clone().all(|part| part.is_empty() || part == ".") {
        Some("is empty")
    } else if path.starts_with('/') {
        Some("is absolute")
    } else if parts.clone().any(|part| part == "..") {
        Some("contains '..'")
    } else if path.starts_with("..") || path.trim_start_matches("./").starts_with("..") {
        Some("begins with '..'")
    } else if path.len() > PATH_MAX_BYTES {
        Some("is longer than 4096 bytes")
    } else if parts.clone().count() > MAX_PATH_PARTS {
        Some("lies more than 64 directories deep")
    } else if parts.any(|part| part.len() > NAME_MAX_BYTES) {
        Some("has a name longer than 255 bytes")
    } else if path.contains('\0') {
        Some("contains a NUL byte")
    } else {
        None
    }
}

/// Whether a pod has volumes whose contents follow their sources while it runs.
#[must_use]
pub fn has_live_volumes(pod: &Pod) -> bool {
    pod.spec_ref().volumes.iter().flatten().any(|volume| {
        volume.config_map.is_some()
            || volume.secret.is_some()
            || volume.downward_api.is_some()
            || volume.projected.is_some()
    })
}

/// Whether a ConfigMap, Secret, token, trust bundle, certificate or claim that the pod's volumes show is another in `new` than in `old`.
#[must_use]
pub fn objects_differ(pod: &Pod, old: &Objects, new: &Objects) -> bool {
    let namespace = pod.namespace_ref();
    let config_map = |name: &str| {
        let name = FullName::new(namespace, name);
        !same(old.config_maps.get(&name), new.config_maps.get(&name))
    };
    let secret = |name: &str| {
        let name = FullName::new(namespace, name);
        !same(old.secrets.get(&name), new.secrets.get(&name))
    };
    pod.spec_ref().volumes.iter().flatten().any(|volume| {
        volume.config_map.as_ref().is_some_and(|source| config_map(&source.name))
            || volume.secret.as_ref().and_then(|source| source.secret_name.as_deref()).is_some_and(secret)
            || claim_name(pod, volume).is_some_and(|name| !same(old.claims.get(&name), new.claims.get(&name)))
            || volume.projected.iter().flat_map(|source| source.sources.iter().flatten()).enumerate().any(
                |(place, source)| {
                    let certificate =
                        source.pod_certificate.as_ref().map(|_| certificate_key(pod, &volume.name, place));
                    let token = source
                        .service_account_token
                        .as_ref()
                        .map(|source| token_key(pod, source.audience.as_deref(), source.expiration_seconds));
                    let trust = source.cluster_trust_bundle.as_ref().and_then(trust_query);
                    token.is_some_and(|key| !same(old.tokens.get(&key), new.tokens.get(&key)))
                        || trust
                            .is_some_and(|it| !same(old.trust_bundles.get(&it), new.trust_bundles.get(&it)))
                        || certificate
                            .is_some_and(|it| !same(old.certificates.get(&it), new.certificates.get(&it)))
                        || source.config_map.as_ref().is_some_and(|source| config_map(&source.name))
                        || source.secret.as_ref().is_some_and(|source| secret(&source.name))
                },
            )
    })
}

#[cfg(test)]
mod tests;
