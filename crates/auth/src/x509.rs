//! Client certificates: checked against a bundle of authorities, then read for user and groups.

use std::{collections::BTreeMap, sync::Arc};

use rustls::{
    RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use sha2::{Digest, Sha256};

use crate::{Identity, der};

/// Under this key the user's `extra` tells which certificate it was.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// Authorities whose certificates are accepted.
#[derive(Clone, Debug)]
pub struct Authorities {
    verifier: Arc<dyn ClientCertVerifier>,
}

/// A bundle that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// It is not PEM.
    #[error("it is not PEM: {0}")]
    Pem(rustls::pki_types::pem::Error),
    /// There is no certificate in it.
    #[error("there is no certificate in it")]
    Empty,
    /// A certificate that cannot be an authority.
    #[error("a certificate in it cannot be used as an authority: {0}")]
    Authority(String),
}

/// A certificate that says nothing about who sent it.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// Not issued by an authority, expired, or not for clients.
    #[error("the client certificate is not accepted: {0}")]
    Rejected(rustls::Error),
    /// Its subject cannot be read.
    #[error("the client certificate's subject cannot be read")]
    Subject,
    /// Its subject has a user ID that is empty, or several.
    #[error("the client certificate's subject has an empty user ID, or more than one")]
    Uid,
}

impl Authorities {
    /// Reads a bundle in PEM form.
    ///
    /// # Errors
    /// [`BundleError`]; the caller knows the file's name.
    pub fn from_pem(pem: &[u8]) -> Result<Self, BundleError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(BundleError::Pem)?;
            roots.add(certificate).map_err(|error| BundleError::Authority(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(BundleError::Empty);
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| BundleError::Authority(error.to_string()))?;
        Ok(Self { verifier })
    }

    /// The verifier, which also knows the names of the authorities to hint at in a handshake.
    #[must_use]
    pub fn verifier(&self) -> &Arc<dyn ClientCertVerifier> {
        &self.verifier
    }

    /// Who sent this chain (their own certificate first); `None` when it names nobody.
    ///
    /// # Errors
    /// [`CertificateError`].
    pub fn identify(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<Option<Identity>, CertificateError> {
        let Some((leaf, intermediates)) = chain.split_first() else { return Ok(None) };
        self.verifier.verify_client_cert(leaf, intermediates, now).map_err(CertificateError::Rejected)?;
        let subject = der::subject(leaf).ok_or(CertificateError::Subject)?;
        if subject.uids.len() > 1 || subject.uids.iter().any(String::is_empty) {
            return Err(CertificateError::Uid);
        }
        if subject.common_name.is_empty() {
            return Ok(None);
        }
        let fingerprint: String = Sha256::digest(leaf).iter().map(|byte| format!("{byte:02x}")).collect();
        let extra = BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={fingerprint}")])]);
        let uid = subject.uids.into_iter().next();
        Ok(Some(Identity { user: subject.common_name, uid, groups: subject.organizations, extra }))
    }
}

/// The organizations in a certificate's subject; none when it cannot be read.
#[must_use]
pub fn organizations(certificate: &CertificateDer<'_>) -> Vec<String> {
    der::subject(certificate).map(|subject| subject.organizations).unwrap_or_default()
}

#[cfg(test)]
mod tests;
