//! TLS as a client.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OnceCell;

use crate::Verify;

/// How HTTP/2 is called when protocols are agreed on.
pub(crate) const HTTP2: &[u8] = b"h2";

/// The same for those who speak HTTP/2, too. Most of it is shared.
pub(crate) fn offering_http2(config: &ClientConfig) -> ClientConfig {
    let mut config = config.clone();
    config.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
    config
}

/// The configuration for a way of checking certificates; made once for each.
pub(crate) async fn config(verify: Verify) -> io::Result<Arc<ClientConfig>> {
    static SYSTEM: OnceCell<Arc<ClientConfig>> = OnceCell::const_new();
    static UNCHECKED: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    match verify {
        Verify::SystemRoots => {
            let config =
                SYSTEM.get_or_try_init(|| async { with_roots(system_roots().await?).map(Arc::new) }).await?;
            Ok(config.clone())
        }
        Verify::Nothing => {
            if let Some(config) = UNCHECKED.get() {
                return Ok(config.clone());
            }
            let config = Arc::new(without_verification()?);
            Ok(UNCHECKED.get_or_init(|| config).clone())
        }
    }
}

/// The certificates that the machine trusts; those that cannot be read are left out.
fn load_system_roots() -> RootCertStore {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::debug!(%error, "some root certificates cannot be read");
    }
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        tracing::warn!(
            "the machine has no root certificates, so no https server is trusted; install ca-certificates"
        );
    }
    roots
}

pub(crate) fn with_roots(roots: RootCertStore) -> io::Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn without_verification() -> io::Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    Ok(builder
        .dangerous()
        .with_custom_certificate_verifier(unchecked_verifier(&provider()))
        .with_no_client_auth())
}

/// The certificates that the machine trusts, for clients of their own. Loads them on a blocking thread.
///
/// # Errors
/// When that thread cannot be had.
pub async fn system_roots() -> io::Result<RootCertStore> {
    tokio::task::spawn_blocking(load_system_roots).await.map_err(io::Error::other)
}

/// Accepts any server, for clients that were told to.
#[must_use]
pub fn unchecked_verifier(provider: &CryptoProvider) -> Arc<dyn ServerCertVerifier> {
    Arc::new(TrustsAnyone { schemes: provider.signature_verification_algorithms.supported_schemes() })
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// For [`Verify::Nothing`].
#[derive(Debug)]
struct TrustsAnyone {
    schemes: Vec<SignatureScheme>,
}

impl ServerCertVerifier for TrustsAnyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.clone()
    }
}

/// A connection that remembers the first bytes it received, to tell a plain HTTP server from a broken TLS one.
#[derive(Debug)]
pub(crate) struct Sniffed<S> {
    inner: S,
    first: Arc<std::sync::Mutex<Vec<u8>>>,
}

/// What a [`Sniffed`] connection has received first.
#[derive(Debug)]
pub(crate) struct FirstBytes(Arc<std::sync::Mutex<Vec<u8>>>);

const PLAIN_HTTP: &[u8] = b"HTTP/";

impl<S> Sniffed<S> {
    pub(crate) fn new(inner: S) -> (Self, FirstBytes) {
        let first = Arc::default();
        (Self { inner, first: Arc::clone(&first) }, FirstBytes(first))
    }
}

impl FirstBytes {
    pub(crate) fn are_plain_http(&self) -> bool {
        self.0.lock().is_ok_and(|first| first.as_slice() == PLAIN_HTTP)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Sniffed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let poll = Pin::new(&mut self.inner).poll_read(context, buffer);
        if let Ok(mut first) = self.first.lock()
            && first.len() < PLAIN_HTTP.len()
        {
            let missing = PLAIN_HTTP.len() - first.len();
            first.extend(buffer.filled().iter().skip(before).take(missing));
        }
        poll
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Sniffed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
