//! A container's environment.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_cri::v1::KeyValue;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, EnvVarSource, FileKeySelector, ObjectFieldSelector, Pod, ResourceFieldSelector,
    Secret,
};
use mainstay_types::{FullName, Objects, PodExt as _, Quantity};

use super::{
    ContainerContext, ResourceList, SpecError,
    container::key_value,
    expand::{MAX_EXPANDED_BYTES, MAX_PROGRAM_BYTES, expand},
    resources::{limit, pod_level_limit, request},
    services::service_variables,
};

/// The contents of files that `fileKeyRef` refers to, by volume and path. A file that is not there has no entry.
pub type EnvFiles = BTreeMap<(String, String), String>;

/// The files (volume and path) that must be read before the container's environment can be made.
pub fn env_file_refs(container: &Container) -> impl Iterator<Item = (&str, &str)> {
    let sources = container.env.iter().flatten().filter_map(|env| env.value_from.as_ref());
    sources.filter_map(|source| {
        source.file_key_ref.as_ref().map(|file| (file.volume_name.as_str(), file.path.as_str()))
    })
}

/// Labels or annotations as the downward API shows them: sorted `key="value"` lines, quoted as Go does.
#[must_use]
pub fn format_map(map: &BTreeMap<String, String>) -> String {
    map.iter().map(|(key, value)| format!("{key}={}", go_quote(value))).collect::<Vec<_>>().join("\n")
}

/// The environment, in the order of the spec: device plugins, `envFrom`, `env`, then services.
///
/// # Errors
/// When it refers to something that is missing.
pub fn environment(
    pod: &Pod,
    container: &Container,
    context: &ContainerContext<'_>,
) -> Result<Vec<KeyValue>, SpecError> {
    let mut variables = Variables { left: MAX_PROGRAM_BYTES, ..Variables::default() };
    let services = service_variables(pod, context.objects);
    for source in container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        if let Some(reference) = &source.config_map_ref {
            if let Some(object) = config_map(context.objects, pod, &reference.name, reference.optional)? {
                for (key, value) in object.data.iter().flatten() {
                    variables.set(container, format!("{prefix}{key}"), value.clone())?;
                }
            }
        } else if let Some(reference) = &source.secret_ref
            && let Some(object) = secret(context.objects, pod, &reference.name, reference.optional)?
        {
            for key in secret_keys(&object) {
                let value = secret_text(pod, &reference.name, &object, key)?.unwrap_or_default();
                variables.set(container, format!("{prefix}{key}"), value)?;
            }
        }
    }
    for variable in container.env.iter().flatten() {
        let value = match (variable.value.as_deref().unwrap_or_default(), &variable.value_from) {
            ("", Some(source)) => resolve(pod, container, source, context)?,
            (value, _) => {
                let lookup =
                    |name: &str| variables.get(name).or_else(|| services.get(name).map(String::as_str));
                let too_long =
                    || SpecError::TooLong { what: format!("the environment variable {}", variable.name) };
                Some(expand(value, MAX_EXPANDED_BYTES, lookup).ok_or_else(too_long)?)
            }
        };
        if let Some(value) = value {
            variables.set(container, variable.name.clone(), value)?;
        }
    }
    for (name, value) in services {
        // The pod's own word wins.
        if variables.get(&name).is_none() {
            variables.set(container, name, value)?;
        }
    }
    let granted = context.grants.envs.iter().map(|(key, value)| key_value(key, value));
    Ok(granted.chain(variables.list).collect())
}

/// Variables in the order of their first setting.
#[derive(Default)]
struct Variables {
    list: Vec<KeyValue>,
    places: HashMap<String, usize>,
    /// Bytes that there is still room for.
    left: usize,
}

impl Variables {
    fn get(&self, name: &str) -> Option<&str> {
        self.places.get(name).and_then(|place| self.list.get(*place)).map(|variable| variable.value.as_str())
    }

    /// What is set again counts twice, which nobody does often enough to mind.
    fn set(&mut self, container: &Container, name: String, value: String) -> Result<(), SpecError> {
        let left = self.left.checked_sub(name.len() + value.len());
        self.left = left.ok_or_else(|| SpecError::TooMuch { container: container.name.clone() })?;
        match self.places.get(&name).and_then(|place| self.list.get_mut(*place)) {
            Some(variable) => variable.value = value,
            None => {
                self.places.insert(name.clone(), self.list.len());
                self.list.push(key_value(name, value));
            }
        }
        Ok(())
    }
}

/// The value of one source; `None` when it is optional and missing.
fn resolve(
    pod: &Pod,
    container: &Container,
    source: &EnvVarSource,
    context: &ContainerContext<'_>,
) -> Result<Option<String>, SpecError> {
    let missing = |kind, name: &str, key: &str, optional| {
        if optional == Some(true) {
            return Ok(None);
        }
        let (namespace, name, key) = (pod.namespace_ref().to_owned(), name.to_owned(), key.to_owned());
        Err(SpecError::KeyNotFound { kind, namespace, name, key })
    };
    if let Some(reference) = &source.field_ref {
        return pod_field(pod, reference, &context.node.host_ips, context.pod_ips).map(Some);
    }
    if let Some(reference) = &source.resource_field_ref {
        return resource_field(pod, container, reference, &context.node.allocatable).map(Some);
    }
    if let Some(reference) = &source.config_map_key_ref {
        let Some(object) = config_map(context.objects, pod, &reference.name, reference.optional)? else {
            return Ok(None);
        };
        return match object.data.as_ref().and_then(|data| data.get(&reference.key)) {
            Some(value) => Ok(Some(value.clone())),
            None => missing("ConfigMap", &reference.name, &reference.key, reference.optional),
        };
    }
    if let Some(reference) = &source.secret_key_ref {
        let Some(object) = secret(context.objects, pod, &reference.name, reference.optional)? else {
            return Ok(None);
        };
        return match secret_text(pod, &reference.name, &object, &reference.key)? {
            Some(value) => Ok(Some(value)),
            None => missing("Secret", &reference.name, &reference.key, reference.optional),
        };
    }
    match &source.file_key_ref {
        Some(reference) => file_value(pod, reference, context.env_files),
        None => Ok(Some(String::new())),
    }
}

fn config_map(
    objects: &Objects,
    pod: &Pod,
    name: &str,
    optional: Option<bool>,
) -> Result<Option<Arc<ConfigMap>>, SpecError> {
    match objects.config_maps.get(&FullName::new(pod.namespace_ref(), name)) {
        Some(object) => Ok(Some(object.clone())),
        None if optional == Some(true) => Ok(None),
        None => Err(SpecError::ConfigMapNotFound { name: name.to_owned() }),
    }
}

fn secret(
    objects: &Objects,
    pod: &Pod,
    name: &str,
    optional: Option<bool>,
) -> Result<Option<Arc<Secret>>, SpecError> {
    match objects.secrets.get(&FullName::new(pod.namespace_ref(), name)) {
        Some(object) => Ok(Some(object.clone())),
        None if optional == Some(true) => Ok(None),
        None => Err(SpecError::SecretNotFound { name: name.to_owned() }),
    }
}

/// All keys, sorted. `stringData` is the write-only form of `data`, which an API server would have folded in.
fn secret_keys(secret: &Secret) -> impl Iterator<Item = &String> {
    let data = secret.data.iter().flat_map(BTreeMap::keys);
    let text = secret.string_data.iter().flat_map(BTreeMap::keys);
    data.chain(text).collect::<std::collections::BTreeSet<_>>().into_iter()
}

fn secret_text(pod: &Pod, name: &str, secret: &Secret, key: &str) -> Result<Option<String>, SpecError> {
    if let Some(text) = secret.string_data.as_ref().and_then(|data| data.get(key)) {
        return Ok(Some(text.clone()));
    }
    let Some(bytes) = secret.data.as_ref().and_then(|data| data.get(key)) else { return Ok(None) };
    match String::from_utf8(bytes.0.clone()) {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(SpecError::SecretNotText {
            namespace: pod.namespace_ref().to_owned(),
            name: name.to_owned(),
            key: key.to_owned(),
        }),
    }
}

/// A field of the pod as the downward API shows it.
pub(crate) fn pod_field(
    pod: &Pod,
    reference: &ObjectFieldSelector,
    host_ips: &[String],
    pod_ips: &[String],
) -> Result<String, SpecError> {
    match reference.api_version.as_deref() {
        None | Some("" | "v1") => {}
        Some(other) => return Err(SpecError::FieldVersion(other.to_owned())),
    }
    let path = reference.field_path.as_str();
    let none = BTreeMap::new();
    let (labels, annotations) = (pod.metadata.labels.as_ref().unwrap_or(&none), pod.annotations_map());
    if let Some((map, key)) =
        path.strip_suffix("']").and_then(|path| path.split_once("['")).filter(|(map, _)| !map.is_empty())
    {
        // A key that no label can have is simply not there; validation has told about it.
        return match map {
            "metadata.labels" => Ok(labels.get(key).cloned().unwrap_or_default()),
            "metadata.annotations" => Ok(annotations.get(key).cloned().unwrap_or_default()),
            _ => Err(SpecError::FieldSubscript(path.to_owned())),
        };
    }
    let host_ips = || if host_ips.is_empty() { Err(SpecError::NoHostIp) } else { Ok(host_ips) };
    let spec = pod.spec_ref();
    match path {
        "metadata.name" => Ok(pod.name_ref().to_owned()),
        "metadata.namespace" => Ok(pod.namespace_ref().to_owned()),
        "metadata.uid" => Ok(pod.uid_ref().to_owned()),
        "metadata.labels" => Ok(format_map(labels)),
        "metadata.annotations" => Ok(format_map(annotations)),
        "spec.nodeName" | "spec.host" => Ok(spec.node_name.clone().unwrap_or_default()),
        "spec.serviceAccountName" => Ok(spec.service_account_name.clone().unwrap_or_default()),
        "status.hostIP" => host_ips().map(|ips| ips.first().cloned().unwrap_or_default()),
        "status.hostIPs" => host_ips().map(|ips| ips.join(",")),
        "status.podIP" => Ok(pod_ips.first().cloned().unwrap_or_default()),
        "status.podIPs" => Ok(pod_ips.join(",")),
        "spec.restartPolicy" | "spec.schedulerName" | "status.phase" => {
            Err(SpecError::FieldPath(path.to_owned()))
        }
        _ => Err(SpecError::FieldLabel(path.to_owned())),
    }
}

/// A container's amount divided by the divisor, rounded up, as the downward API shows it.
pub(crate) fn resource_field(
    pod: &Pod,
    container: &Container,
    reference: &ResourceFieldSelector,
    allocatable: &ResourceList,
) -> Result<String, SpecError> {
    // Limits stand in for missing ones of the container itself and of regular ones, but not of init containers that
    // are referred to by name: upstream leaves those at 0.
    let (container, defaulted) = match reference.container_name.as_deref() {
        None | Some("") => (container, true),
        Some(name) => {
            let spec = pod.spec_ref();
            let named = |list: &'_ Container| list.name == name;
            if let Some(regular) = spec.containers.iter().find(|c| named(c)) {
                (regular, true)
            } else {
                let init = spec.init_containers.iter().flatten().find(|c| named(c));
                (init.ok_or_else(|| SpecError::NoSuchContainer(name.to_owned()))?, false)
            }
        }
    };
    let unsupported = || SpecError::ContainerResource(reference.resource.clone());
    let (list, name) = reference.resource.split_once('.').ok_or_else(unsupported)?;
    let overcommitted = matches!(name, "cpu" | "memory" | "ephemeral-storage");
    if !overcommitted && !name.starts_with("hugepages-") {
        return Err(unsupported());
    }
    let amount = match list {
        "requests" => request(container, name),
        "limits" => limit(container, name).filter(|amount| !amount.is_zero()).or_else(|| {
            if !defaulted || !overcommitted {
                return None;
            }
            pod_level_limit(pod, name).or_else(|| allocatable.get(name).copied())
        }),
        _ => return Err(unsupported()),
    };
    let amount = amount.unwrap_or(Quantity::ZERO);
    let divisor = reference.divisor.as_ref().and_then(|divisor| Quantity::parse(&divisor.0).ok());
    let divisor = divisor.filter(|divisor| *divisor > Quantity::ZERO).unwrap_or(Quantity::whole(1));
    let (amount, divisor) =
        if name == "cpu" { (amount.milli(), divisor.milli()) } else { (amount.value(), divisor.value()) };
    let quotient = amount.div_euclid(divisor).saturating_add(i64::from(amount.rem_euclid(divisor) != 0));
    Ok(quotient.to_string())
}

fn file_value(pod: &Pod, reference: &FileKeySelector, files: &EnvFiles) -> Result<Option<String>, SpecError> {
    let FileKeySelector { key, path, volume_name, optional } = reference;
    if !pod.spec_ref().volumes.iter().flatten().any(|volume| volume.name == *volume_name) {
        return Err(SpecError::EnvFileVolume(volume_name.clone()));
    }
    let unusable = |why: String| SpecError::EnvFile { volume: volume_name.clone(), path: path.clone(), why };
    let text =
        files.get(&(volume_name.clone(), path.clone())).ok_or_else(|| unusable("no such file".to_owned()))?;
    match env_file_key(text, key).map_err(unusable)? {
        Some(value) => Ok(Some(value)),
        None if *optional == Some(true) => Ok(None),
        None => Err(SpecError::EnvFileKey { path: path.clone(), key: key.clone() }),
    }
}

/// Finds `key` in a file of `VAR='value'` lines. An empty value counts as not there. What stands behind the key is not
/// looked at.
fn env_file_key(text: &str, key: &str) -> Result<Option<String>, String> {
    let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    while let Some((at, line)) = lines.next() {
        let line = line.trim_start_matches([' ', '\t']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |what: &str| format!("invalid environment variable format at line {at}: {what}");
        let (name, value) = line.split_once('=').ok_or_else(|| wrong("missing '='"))?;
        if name.trim_end_matches([' ', '\t']).is_empty() {
            return Err(wrong("empty variable name"));
        }
        if name.ends_with([' ', '\t']) {
            return Err(wrong("whitespace before '=' is not allowed"));
        }
        if value.starts_with([' ', '\t']) {
            // As in a shell, this assigns nothing.
            if name == key {
                return Ok(None);
            }
            continue;
        }
        let mut rest =
            value.strip_prefix('\'').ok_or_else(|| wrong("value must be enclosed in single quotes"))?;
        let mut value = String::new();
        let behind = loop {
            if let Some((end, behind)) = rest.split_once('\'') {
                value.push_str(end);
                break behind.trim_start_matches([' ', '\t']);
            }
            value.push_str(rest);
            value.push('\n');
            rest = lines.next().ok_or_else(|| wrong("unclosed single quote"))?.1;
        };
        if !behind.is_empty() && !behind.starts_with('#') {
            return Err(wrong("unexpected content after closing quote"));
        }
        if name == key {
            return Ok(Some(value).filter(|value| !value.is_empty()));
        }
    }
    Ok(None)
}

/// A string literal as Go's `strconv.Quote` writes it.
fn go_quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            ' '..='~' => quoted.push(c),
            '\0'..='\u{1f}' | '\u{7f}' => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
            _ if is_printable(c) => quoted.push(c),
            '\u{80}'..='\u{ffff}' => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => quoted.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    quoted.push('"');
    quoted
}

/// Whether a character shows. The letter in front keeps combining marks, which Go prints, from being escaped.
fn is_printable(c: char) -> bool {
    !format!("a{c}").escape_debug().any(|escaped| escaped == '{')
}

#[cfg(test)]
mod tests;
