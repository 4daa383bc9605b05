//! TLS of the secure port: which certificate is shown, which versions and ciphers are spoken, and what a client's
//! certificate means in the handshake (nothing: each request is judged by it later).

mod self_signed;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use mainstay_apiserver::certificate_span;
use mainstay_auth::{Guard, ReloadError, Reloaded};
use mainstay_types::CertificateCounts;
use rustls::{
    DigitallySignedStruct, DistinguishedName, NamedGroup, ServerConfig, SignatureScheme,
    SupportedProtocolVersion,
    client::danger::HandshakeSignatureValid,
    crypto::{
        CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
    },
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
    server::{
        ClientHello, ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};

#[cfg(test)]
pub(crate) use self_signed::pem;
pub use self_signed::{SelfSignedError, ensure as ensure_self_signed};

/// What is configured about TLS.
#[derive(Clone, Debug, Default)]
pub struct TlsSettings {
    /// The certificate chain, in PEM.
    pub certificate: PathBuf,
    /// Its key, in PEM.
    pub key: PathBuf,
    /// `tlsMinVersion`: `VersionTLS12`, `VersionTLS13`; empty for 1.2. Older ones are not spoken.
    pub min_version: String,
    /// `tlsCipherSuites`, by their IANA names; empty for all that are sound. They concern TLS 1.2 only, as in Go.
    pub cipher_suites: Vec<String>,
    /// `tlsCurvePreferences`, by their numbers; empty for all.
    pub curves: Vec<i32>,
    /// Where it is counted what becomes of the certificate.
    pub counts: Arc<CertificateCounts>,
}

/// TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate or its key.
    #[error("cannot serve TLS: {0}; check tlsCertFile and tlsPrivateKeyFile")]
    Certificate(#[from] ReloadError),
    /// None of the ciphers is there.
    #[error(
        "tlsCipherSuites: none of them is offered by this build ({known} are); leave the field out for all of these"
    )]
    Ciphers {
        /// Those that are.
        known: String,
    },
    /// None of the curves is there.
    #[error(
        "tlsCurvePreferences: none of them is offered by this build (23, 24 and 29 are); leave the field out"
    )]
    Curves,
    /// The library refuses.
    #[error("cannot serve TLS")]
    Library(#[from] rustls::Error),
}

/// TLS of the secure port, ready for handshakes.
#[derive(Debug)]
pub struct Tls {
    config: Arc<ServerConfig>,
    chain: Arc<Reloaded<Arc<CertifiedKey>>>,
}

impl Tls {
    /// What the next handshake is made with. The certificate is the newest one.
    pub(crate) async fn fresh(&self) -> Arc<ServerConfig> {
        self.chain.refresh().await;
        Arc::clone(&self.config)
    }
}

/// Makes the configuration of the secure port. The certificate is read again when its file or its key's
/// changes.
///
/// # Errors
/// [`TlsError`].
pub fn tls_config(settings: &TlsSettings, guard: &Guard) -> Result<Arc<Tls>, TlsError> {
    let provider = Arc::new(provider(settings)?);
    let (key, loader) = (settings.key.clone(), Arc::clone(&provider));
    let counts = Arc::clone(&settings.counts);
    let parse = move |pem: &[u8]| {
        let read = certified(pem, &key, &loader);
        match &read {
            Ok(read) => counts.in_force(shortest_span(&read.cert), Timestamp::now()),
            // Counted at each look that finds it so: the counter rises as long as nobody mends it.
            Err(_) => counts.errors.add(),
        }
        read
    };
    let chain = Arc::new(Reloaded::open_with(&settings.certificate, &settings.key, parse)?);
    let verifier = AnyCertificate {
        asks: guard.authorities().is_some(),
        algorithms: provider.signature_verification_algorithms,
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions(&settings.min_version))?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(Shown(Arc::clone(&chain))));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(Tls { config: Arc::new(config), chain }))
}

/// 1.2 and 1.3, from the smallest that is allowed.
static VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS13, &rustls::version::TLS12];

fn versions(min: &str) -> &'static [&'static SupportedProtocolVersion] {
    let (newest, _) = VERSIONS.split_at(1);
    if min == "VersionTLS13" { newest } else { &VERSIONS }
}

fn provider(settings: &TlsSettings) -> Result<CryptoProvider, TlsError> {
    let mut provider = ring::default_provider();
    if !settings.cipher_suites.is_empty() {
        let wanted: Vec<&str> = settings.cipher_suites.iter().map(|name| today(name)).collect();
        let known: Vec<String> = provider.cipher_suites.iter().filter_map(tls12_name).collect();
        provider.cipher_suites.retain(|suite| match tls12_name(suite) {
            Some(name) => wanted.contains(&name.as_str()),
            None => true,
        });
        let spoken = provider.cipher_suites.iter().any(|suite| tls12_name(suite).is_some());
        if !spoken && settings.min_version != "VersionTLS13" {
            return Err(TlsError::Ciphers { known: known.join(", ") });
        }
        // Those of TLS 1.3 are always spoken.
        let is_spoken = |name: &str| known.iter().any(|known| known == name) || !name.contains("_WITH_");
        for name in wanted.into_iter().filter(|name| !is_spoken(name)) {
            tracing::warn!(suite = %name, "tlsCipherSuites: this build does not speak it; the others are used");
        }
    }
    if !settings.curves.is_empty() {
        let wanted: Vec<NamedGroup> = settings
            .curves
            .iter()
            .filter_map(|curve| u16::try_from(*curve).ok())
            .map(NamedGroup::from)
            .collect();
        provider.kx_groups.retain(|group| wanted.contains(&group.name()));
        let is_spoken = |name: &NamedGroup| provider.kx_groups.iter().any(|group| group.name() == *name);
        for name in wanted.iter().filter(|name| !is_spoken(name)) {
            tracing::warn!(
                curve = u16::from(*name),
                "tlsCurvePreferences: this build does not speak it; the others are used"
            );
        }
        provider.kx_groups.sort_by_key(|group| wanted.iter().position(|name| *name == group.name()));
        if provider.kx_groups.is_empty() {
            return Err(TlsError::Curves);
        }
    }
    Ok(provider)
}

/// Go's former names of two suites, which hardening guides still print.
fn today(name: &str) -> &str {
    match name {
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305" => "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305" => "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        name => name,
    }
}

/// The IANA name of a TLS 1.2 suite; those of TLS 1.3 cannot be chosen, as in Go.
fn tls12_name(suite: &rustls::SupportedCipherSuite) -> Option<String> {
    match suite {
        rustls::SupportedCipherSuite::Tls12(suite) => suite.common.suite.as_str().map(str::to_owned),
        rustls::SupportedCipherSuite::Tls13(_) => None,
    }
}

fn certified(pem: &[u8], key: &Path, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, String> {
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    if chain.is_empty() {
        return Err("there is no certificate in it".into());
    }
    let failed = |error: &dyn std::fmt::Display| format!("its key {}: {error}", key.display());
    let key_bytes = std::fs::read(key).map_err(|error| failed(&error))?;
    let private = PrivateKeyDer::from_pem_slice(&key_bytes).map_err(|error| failed(&error))?;
    let certified = CertifiedKey::from_der(chain, private, provider).map_err(|error| failed(&error))?;
    Ok(Arc::new(certified))
}

/// The span of the certificate that ends first: clients refuse the chain from then on.
fn shortest_span(chain: &[CertificateDer<'_>]) -> Option<(Timestamp, Timestamp)> {
    let own = certificate_span(chain.first()?)?;
    let ends = chain.iter().filter_map(|certificate| certificate_span(certificate)).map(|(_, end)| end).min();
    Some((own.0, ends.unwrap_or(own.1)))
}

/// Shows the certificate, whatever name the client asks for.
#[derive(Debug)]
struct Shown(Arc<Reloaded<Arc<CertifiedKey>>>);

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&*self.0.get()))
    }
}

/// Asks for a certificate, and takes any or none: a bad one is a 401 to the request, not a broken connection. That the client
/// has the certificate's key is checked.
#[derive(Debug)]
struct AnyCertificate {
    asks: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for AnyCertificate {
    fn offer_client_auth(&self) -> bool {
        self.asks
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // The names would have to be borrowed from what may be read again at any time. Clients send what they have.
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
