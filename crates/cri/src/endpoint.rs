//! Where the runtime listens.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use crate::EndpointError;

/// A unix socket of a CRI runtime, as written in `containerRuntimeEndpoint`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    path: PathBuf,
}

impl Endpoint {
    /// Reads `unix:///run/containerd/containerd.sock`; a bare absolute path is taken as well.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let path = text.strip_prefix("unix://").unwrap_or(text);
        if path.contains("://") {
            return Err(EndpointError::NotUnix(text.to_owned()));
        }
        if !path.starts_with('/') {
            return Err(EndpointError::NotAbsolute(text.to_owned()));
        }
        Ok(Self { path: path.into() })
    }

    /// The socket's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        assert_eq!(Endpoint::parse("unix:///run/x.sock").unwrap().path(), Path::new("/run/x.sock"));
        assert_eq!(Endpoint::parse("/run/x.sock").unwrap().to_string(), "unix:///run/x.sock");
        assert_eq!(
            Endpoint::parse("tcp://127.0.0.1:1"),
            Err(EndpointError::NotUnix("tcp://127.0.0.1:1".into()))
        );
        assert_eq!(Endpoint::parse("x.sock"), Err(EndpointError::NotAbsolute("x.sock".into())));
        assert_eq!(Endpoint::parse(""), Err(EndpointError::NotAbsolute(String::new())));
    }
}
