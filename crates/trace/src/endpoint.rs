//! Where the collector is, in the words of gRPC.

use std::{os::linux::net::SocketAddrExt as _, path::PathBuf, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// Where collectors listen unless something else is said; also the port of an address without one.
const DEFAULT: &str = "localhost:4317";
const DEFAULT_PORT: u16 = 4317;
const CONNECT: Duration = Duration::from_secs(5);

/// A collector's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Host and port.
    Network(String),
    /// A socket in the file system.
    Path(PathBuf),
    /// A socket without a file.
    Abstract(String),
}

/// An address that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "tracing.endpoint {0:?} is no address of a collector; write host:port, dns:///host:port, unix:///path or unix-abstract:///name"
)]
pub struct TargetError(String);

impl Target {
    /// Reads `tracing.endpoint`.
    ///
    /// # Errors
    /// [`TargetError`] if it is none.
    pub fn parse(text: Option<&str>) -> Result<Self, TargetError> {
        let text = text.unwrap_or(DEFAULT);
        let wrong = || TargetError(text.to_owned());
        // `scheme://authority/rest`; whom to ask for names is the machine's decision, so the authority counts for nothing.
        let rest = |after: &str| match after.strip_prefix("//") {
            Some(after) => after.split_once('/').map(|(_, path)| path.to_owned()),
            None => Some(after.to_owned()),
        };
        if let Some(after) = text.strip_prefix("unix-abstract:") {
            let name = rest(after).filter(|name| !name.is_empty()).ok_or_else(wrong)?;
            return Ok(Self::Abstract(name));
        }
        if let Some(after) = text.strip_prefix("unix:") {
            let path = match after.strip_prefix("//") {
                Some(_) => format!("/{}", rest(after).ok_or_else(wrong)?),
                None => after.to_owned(),
            };
            return if path.trim_matches('/').is_empty() {
                Err(wrong())
            } else {
                Ok(Self::Path(path.into()))
            };
        }
        let host = match text.strip_prefix("dns:") {
            Some(after) => rest(after).ok_or_else(wrong)?,
            None => text.to_owned(),
        };
        // Whatever stands there must be a host, perhaps with a port, and nothing else.
        let uri: Uri = format!("http://{host}").parse().map_err(|_| wrong())?;
        let authority = uri.authority().filter(|it| it.as_str() == host).ok_or_else(wrong)?;
        let after = host.strip_prefix(authority.host()).filter(|_| !authority.host().is_empty());
        match after.ok_or_else(wrong)?.strip_prefix(':').map(str::parse::<u16>) {
            None => Ok(Self::Network(format!("{host}:{DEFAULT_PORT}"))),
            Some(Ok(port)) if port > 0 => Ok(Self::Network(host)),
            Some(_) => Err(wrong()),
        }
    }

    /// A connection that is made with the first call. Plain, as upstream's.
    pub(crate) fn channel(self) -> Result<Channel, TargetError> {
        let plain = || Endpoint::from_static("http://localhost").connect_timeout(CONNECT);
        match self {
            Self::Network(host) => {
                let endpoint =
                    Endpoint::from_shared(format!("http://{host}")).map_err(|_| TargetError(host))?;
                Ok(endpoint.connect_timeout(CONNECT).connect_lazy())
            }
            Self::Path(path) => {
                let path = Arc::new(path);
                Ok(plain().connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
                    let path = Arc::clone(&path);
                    async move { UnixStream::connect(path.as_path()).await.map(TokioIo::new) }
                })))
            }
            Self::Abstract(name) => {
                Ok(plain().connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
                    let name = name.clone();
                    async move {
                        let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
                        // It connects or is refused at once: nothing of the network is between.
                        let stream = std::os::unix::net::UnixStream::connect_addr(&address)?;
                        stream.set_nonblocking(true)?;
                        UnixStream::from_std(stream).map(TokioIo::new)
                    }
                })))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_grpc_reads_them() {
        let network = |host: &str| Some(Target::Network(host.to_owned()));
        for (text, expected) in [
            ("localhost:4317", network("localhost:4317")),
            ("collector", network("collector:4317")),
            ("10.0.0.1:80", network("10.0.0.1:80")),
            ("[::1]:4317", network("[::1]:4317")),
            ("[::1]", network("[::1]:4317")),
            ("dns:collector:1", network("collector:1")),
            ("dns:///collector:1", network("collector:1")),
            ("dns://8.8.8.8/collector:1", network("collector:1")),
            ("unix:/run/otel.sock", Some(Target::Path("/run/otel.sock".into()))),
            ("unix:otel.sock", Some(Target::Path("otel.sock".into()))),
            ("unix:///run/otel.sock", Some(Target::Path("/run/otel.sock".into()))),
            ("unix-abstract:otel", Some(Target::Abstract("otel".into()))),
            ("unix-abstract:///otel", Some(Target::Abstract("otel".into()))),
            ("", None),
            ("http://localhost:4317", None),
            ("localhost:4317/v1/traces", None),
            ("user@localhost:4317", None),
            ("localhost:0", None),
            ("localhost:99999", None),
            ("a b:1", None),
            ("unix:", None),
            ("unix:///", None),
            ("unix-abstract:", None),
            ("dns://only-an-authority", None),
        ] {
            assert_eq!(Target::parse(Some(text)).ok(), expected, "{text}");
        }
        assert_eq!(Target::parse(None).ok(), network("localhost:4317"));
    }
}
