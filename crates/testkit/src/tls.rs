//! HTTPS for tests, as a client and as a server; blocking.

use crate::{Authority, Certificate};
use anyhow::{Context, Result};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::sync::Arc;

/// A client that trusts the certificates in a PEM text, and shows a certificate if it is given one.
///
/// # Errors
/// When something in there is not PEM.
pub fn tls_client(trusted: &str, shown: Option<&Certificate>) -> Result<Arc<ClientConfig>> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("no TLS")?
        .with_root_certificates(roots(trusted)?);
    let config = match shown {
        None => builder.with_no_client_auth(),
        Some(shown) => {
            let (chain, key) = parse(shown)?;
            builder.with_client_auth_cert(chain, key).context("the certificate cannot be shown")?
        }
    };
    Ok(Arc::new(config))
}

/// A server that shows a certificate and takes clients' ones of an authority, or none.
pub(crate) fn tls_server(shown: &Certificate, clients: &Authority) -> Result<Arc<ServerConfig>> {
    let provider = Arc::new(ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots(&clients.pem)?), provider.clone())
            .allow_unauthenticated()
            .build()
            .context("no verifier")?;
    let (chain, key) = parse(shown)?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("no TLS")?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .context("the certificate cannot be shown")?;
    Ok(Arc::new(config))
}

fn roots(pem: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(certificate.context("not PEM")?).context("not an authority")?;
    }
    Ok(roots)
}

fn parse(shown: &Certificate) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let chain = CertificateDer::pem_slice_iter(shown.certificate.as_bytes());
    let chain = chain.collect::<Result<_, _>>().context("the certificate is not PEM")?;
    let key = PrivateKeyDer::from_pem_slice(shown.key.as_bytes()).context("the key is not PEM")?;
    Ok((chain, key))
}
