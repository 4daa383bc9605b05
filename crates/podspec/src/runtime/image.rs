//! Image names: the grammar of distribution's `reference` package, by which upstream judges them.

use std::fmt;

const DEFAULT_DOMAIN: &str = "docker.io";
const LEGACY_DOMAIN: &str = "index.docker.io";
const OFFICIAL_PREFIX: &str = "library/";
const DEFAULT_TAG: &str = "latest";
const MAX_TAG_CHARS: usize = 128;
const MAX_PATH_CHARS: usize = 255;

/// An image's name, taken apart and with Docker Hub's short forms completed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageName {
    /// Registry host and port; empty for the rare name whose first part looks like a host but cannot be one.
    domain: String,
    /// The path within the registry.
    path: String,
    /// The tag, if written.
    tag: Option<String>,
    /// The digest, if written.
    digest: Option<String>,
}

/// Why a text is not an image's name. A container with such an image waits with reason `InvalidImageName` and
/// [`Self::waiting_message`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("couldn't parse image name {image:?}: {why}")]
pub struct ImageNameError {
    image: String,
    why: String,
}

impl ImageNameError {
    /// The waiting reason.
    pub const REASON: &'static str = "InvalidImageName";

    /// The waiting message, in upstream's words.
    #[must_use]
    pub fn waiting_message(&self) -> String {
        format!("Failed to apply default image tag {:?}: {self}", self.image)
    }
}

impl ImageName {
    /// Parses the name that a container's spec has.
    ///
    /// # Errors
    /// When it is not of the form `[registry[:port]/]path[:tag][@digest]`.
    pub fn parse(image: &str) -> Result<Self, ImageNameError> {
        Self::parse_normalized(image).map_err(|why| ImageNameError { image: image.to_owned(), why })
    }

    /// The name to pull: as written in the spec, with `:latest` where neither tag nor digest is given. It is not
    /// completed with a registry, because which one is meant by a short name is the runtime's to say.
    ///
    /// # Errors
    /// When it is not an image's name.
    pub fn with_default_tag(image: &str) -> Result<String, ImageNameError> {
        let name = Self::parse(image)?;
        if name.tag.is_some() || name.digest.is_some() {
            return Ok(image.to_owned());
        }
        Ok(format!("{image}:{DEFAULT_TAG}"))
    }

    /// The registry's host and port: `docker.io` for short names.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.domain
    }

    /// The path in the registry, such as `library/busybox`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Registry and path, without tag and digest: what credentials are looked up by.
    #[must_use]
    pub fn repository(&self) -> String {
        if self.domain.is_empty() { self.path.clone() } else { format!("{}/{}", self.domain, self.path) }
    }

    /// The tag; `latest` when neither tag nor digest is written.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        match (&self.tag, &self.digest) {
            (None, None) => Some(DEFAULT_TAG),
            (tag, _) => tag.as_deref(),
        }
    }

    /// The digest, such as `sha256:…`.
    #[must_use]
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    fn parse_normalized(image: &str) -> Result<Self, String> {
        if image.len() == 64 && image.bytes().all(is_lower_hex) {
            return Err(format!(
                "invalid repository name ({image}), cannot specify 64-byte hexadecimal strings"
            ));
        }
        let (domain, remainder) = split_domain(image);
        let remote = remainder.split(':').next().unwrap_or_default();
        if remote.to_lowercase() != remote {
            return Err(format!("invalid reference format: repository name ({remote}) must be lowercase"));
        }
        let full = format!("{domain}/{remainder}");
        let name = match Self::parse_full(&full) {
            Some(name) => name,
            None if Self::parse_full(&full.to_lowercase()).is_some() => {
                return Err("repository name must be lowercase".to_owned());
            }
            None => return Err("invalid reference format".to_owned()),
        };
        if name.path.len() > MAX_PATH_CHARS {
            return Err(format!("repository name must not be more than {MAX_PATH_CHARS} characters"));
        }
        if let Some(digest) = &name.digest {
            check_digest(digest)?;
        }
        Ok(name)
    }

    /// `domain/path[:tag][@digest]` by form alone.
    fn parse_full(text: &str) -> Option<Self> {
        let (name_and_tag, digest) = match text.split_once('@') {
            Some((before, digest)) => (before, Some(digest)),
            None => (text, None),
        };
        // A colon before the last slash belongs to a port.
        let (name, tag) = match name_and_tag.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (name_and_tag, None),
        };
        if !tag.is_none_or(is_tag) || !digest.is_none_or(is_digest_form) {
            return None;
        }
        let is_path = |path: &str| path.split('/').all(is_path_component);
        let (domain, path) = match name.split_once('/') {
            Some((domain, path)) if is_domain(domain) && is_path(path) => (domain, path),
            _ if is_path(name) => ("", name),
            _ => return None,
        };
        Some(Self {
            domain: domain.to_owned(),
            path: path.to_owned(),
            tag: tag.map(str::to_owned),
            digest: digest.map(str::to_owned),
        })
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository())?;
        if let Some(tag) = self.tag() {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// Tells a registry's host from the first part of a path, and completes Docker Hub's short forms.
fn split_domain(image: &str) -> (&str, String) {
    let (domain, remainder) = match image.split_once('/') {
        None => (DEFAULT_DOMAIN, image),
        Some((LEGACY_DOMAIN, rest)) => (DEFAULT_DOMAIN, rest),
        Some((first, rest))
            if first == "localhost" || first.contains(['.', ':']) || first.to_lowercase() != first =>
        {
            (first, rest)
        }
        Some(_) => (DEFAULT_DOMAIN, image),
    };
    if domain == DEFAULT_DOMAIN && !remainder.contains('/') {
        return (domain, format!("{OFFICIAL_PREFIX}{remainder}"));
    }
    (domain, remainder.to_owned())
}

fn is_domain(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        // The colons of an IPv6 address stand in brackets.
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    let is_number = |port: &str| !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit());
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
    };
    let is_address =
        |inner: &str| !inner.is_empty() && inner.bytes().all(|c| c.is_ascii_hexdigit() || c == b':');
    let is_host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(inner) => is_address(inner),
        None => host.split('.').all(is_label),
    };
    is_host && port.is_none_or(is_number)
}

/// Runs of lower-case letters and digits, parted by one dot, one or two underscores, or any number of dashes.
fn is_path_component(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if !text.starts_with(is_word) || !text.ends_with(is_word) {
        return false;
    }
    text.split(is_word)
        .all(|separator| matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|c| c == b'-'))
}

fn is_tag(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.starts_with(is_word)
        && text.len() <= MAX_TAG_CHARS
        && text.chars().all(|c| is_word(c) || c == '.' || c == '-')
}

fn is_digest_form(text: &str) -> bool {
    let Some((algorithm, hex)) = text.split_once(':') else { return false };
    let is_name = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic()) && part.bytes().all(|c| c.is_ascii_alphanumeric())
    };
    algorithm.split(['-', '_', '+', '.']).all(is_name)
        && hex.len() >= 32
        && hex.bytes().all(|c| c.is_ascii_hexdigit())
}

fn check_digest(digest: &str) -> Result<(), String> {
    let (algorithm, hex) = digest.split_once(':').unwrap_or((digest, ""));
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ if algorithm.to_lowercase() != algorithm => return Err("invalid checksum digest format".to_owned()),
        _ => return Err("unsupported digest algorithm".to_owned()),
    };
    if hex.len() != length {
        return Err("invalid checksum digest length".to_owned());
    }
    if !hex.bytes().all(is_lower_hex) {
        return Err("invalid checksum digest format".to_owned());
    }
    Ok(())
}

fn is_lower_hex(c: u8) -> bool {
    matches!(c, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests;
