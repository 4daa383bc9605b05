//! TLS towards the API server, from what the kubeconfig says.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, RootCertStore,
    client::ResolvesClientCert,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::{CertifiedKey, SingleCertAndKey},
};

use crate::{
    credentials::Material,
    kubeconfig::{Authority, Identity},
    validity,
};

/// The authorities in a PEM text; what is wrong with it otherwise.
pub(crate) fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| format!("it is not PEM: {error}"))?;
        roots
            .add(certificate)
            .map_err(|error| format!("a certificate in it cannot be used as an authority: {error}"))?;
    }
    if roots.is_empty() {
        return Err(
            "there is no certificate in it; it must be a PEM file with the cluster's authority".into()
        );
    }
    Ok(roots)
}

/// A client certificate with its key; what is wrong with them otherwise.
pub(crate) fn certified(identity: &Identity) -> Result<CertifiedKey, String> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&identity.certificate)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("the client certificate is not PEM: {error}"))?;
    if chain.is_empty() {
        return Err("there is no client certificate in it".into());
    }
    let key = PrivateKeyDer::from_pem_slice(&identity.key)
        .map_err(|error| format!("its client key cannot be read as PEM: {error}"))?;
    let key = ring::sign::any_supported_type(&key).map_err(|_| {
        "its client key is of a kind that is not supported; use ECDSA, RSA or Ed25519".to_owned()
    })?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        // Some kinds of keys cannot be compared; the server will.
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => Ok(certified),
        Err(error) => Err(format!("the client key does not belong to the client certificate: {error}")),
    }
}

/// The configuration of connections. Loads the machine's root certificates if they are asked for.
pub(crate) async fn config(material: &Material) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match &material.authority {
        Authority::Unchecked => {
            builder.dangerous().with_custom_certificate_verifier(mainstay_http::unchecked_verifier(&provider))
        }
        Authority::Pem(pem, source) => {
            builder.with_root_certificates(roots(pem).map_err(|problem| format!("{source}: {problem}"))?)
        }
        Authority::System => builder
            .with_root_certificates(mainstay_http::system_roots().await.map_err(|error| error.to_string())?),
    };
    let mut config = match &material.identity {
        None => builder.with_no_client_auth(),
        Some(identity) => builder.with_client_cert_resolver(resolver(identity, &provider)?),
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn resolver(identity: &Identity, _provider: &CryptoProvider) -> Result<Arc<dyn ResolvesClientCert>, String> {
    let certified = certified(identity).map_err(|problem| format!("{}: {problem}", identity.source))?;
    Ok(Arc::new(SingleCertAndKey::from(certified)))
}

/// The question to ask when a server breaks off at the sight of a client certificate.
pub(crate) fn doubt(identity: &Identity) -> String {
    let mut text = format!("; does it accept the client certificate of {}?", identity.source);
    if let Some(expired) = validity::expired(&identity.certificate) {
        text.push_str(&format!(" It expired at {expired}."));
    }
    text
}

/// What a failed handshake means, and what to do about it.
pub(crate) fn explain(error: &std::io::Error, material: &Material) -> String {
    let Some(rustls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
        return format!("{error}; is {} really an https server?", material.server);
    };
    let authority = match &material.authority {
        Authority::Pem(_, source) => source.clone(),
        Authority::System | Authority::Unchecked => {
            format!("the machine's root certificates ({} names no certificate-authority)", material.cluster)
        }
    };
    let name = material.server_name.as_deref().unwrap_or(&material.server.host);
    match rustls {
        rustls::Error::InvalidCertificate(problem) => match problem {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
                "its certificate was not signed by {authority}; give the authority that signed it, or is this another server?"
            ),
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                format!("its certificate has expired; renew it there, or set this machine's clock ({rustls})")
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                format!("its certificate is not valid yet; is this machine's clock behind? ({rustls})")
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => format!(
                "its certificate is not for {name:?}; correct server or set tls-server-name in {} ({rustls})",
                material.cluster
            ),
            _ => format!("its certificate is not accepted: {rustls}"),
        },
        rustls::Error::AlertReceived(alert) => {
            let mut text = format!("it refuses us with the alert {alert:?}");
            match &material.identity {
                Some(identity) => text.push_str(&doubt(identity)),
                None => {
                    text.push_str(&format!("; does it want a client certificate? {} has none", material.user))
                }
            }
            text
        }
        rustls::Error::InvalidMessage(_) => {
            format!("it does not speak TLS; is the scheme of server in {} right?", material.cluster)
        }
        other => other.to_string(),
    }
}
