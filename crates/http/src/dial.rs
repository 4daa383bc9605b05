//! A connection on which the caller speaks HTTP itself, to upgrade it.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use crate::error::Phase;
use crate::exchange::connect;
use crate::url::Url;
use crate::{HttpError, Verify, tls};

/// Something that bytes go through in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection to a server.
pub struct Dialled {
    /// The bytes.
    pub io: Box<dyn Duplex>,
    /// What stands in the `Host` header.
    pub authority: String,
    /// What stands in the request line: path and query.
    pub target: String,
}

impl std::fmt::Debug for Dialled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dialled({}{})", self.authority, self.target)
    }
}

/// Connects to the host of an `http://` or `https://` URL (one without a scheme is taken as `http://`), with TLS in the second case. Cancel
/// safe: dropping it closes the connection.
///
/// # Errors
/// If the host cannot be resolved or reached, TLS fails, or the deadline passes.
pub async fn dial(url: &str, verify: Verify, deadline: Duration) -> Result<Dialled, HttpError> {
    let phase = AtomicU8::new(Phase::Resolve as u8);
    match tokio::time::timeout(deadline, dial_without_deadline(url, verify, &phase)).await {
        Ok(dialled) => dialled,
        Err(_) => {
            let phase = Phase::from_number(phase.load(Ordering::Relaxed)).words();
            Err(HttpError::Timeout { url: url.to_owned(), deadline, phase })
        }
    }
}

async fn dial_without_deadline(url: &str, verify: Verify, phase: &AtomicU8) -> Result<Dialled, HttpError> {
    let url = if url.contains("://") { Url::parse(url)? } else { Url::parse(&format!("http://{url}"))? };
    let connection = connect("runtime", &url, phase).await?;
    let io: Box<dyn Duplex> = if url.https {
        phase.store(Phase::Tls as u8, Ordering::Relaxed);
        let failed = |source| HttpError::Tls { url: url.to_string(), source };
        let name =
            ServerName::try_from(url.host.clone()).map_err(|error| failed(std::io::Error::other(error)))?;
        let connector = TlsConnector::from(tls::config(verify).await.map_err(failed)?);
        Box::new(connector.connect(name, connection).await.map_err(failed)?)
    } else {
        Box::new(connection)
    };
    Ok(Dialled { io, authority: url.authority, target: url.target })
}
