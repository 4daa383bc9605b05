//! Certificates for tests: an authority of one's own and what it signs.

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SignatureAlgorithm,
};
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

/// An authority; its certificates are as good as it says.
pub struct Authority {
    /// Its own certificate, in PEM.
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// What a certificate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// Servers show it.
    Server,
    /// Clients show it.
    Client,
}

/// What a certificate says.
#[derive(Debug, Clone)]
pub struct CertificateWish<'a> {
    /// The common name.
    pub name: &'a str,
    /// The organizations.
    pub organizations: &'a [&'a str],
    /// DNS names and addresses.
    pub names: &'a [&'a str],
    /// What it is for.
    pub usage: Usage,
    /// Whether its time is over.
    pub expired: bool,
    /// When it is good, in seconds since 1970; for long, if nothing is said.
    pub life: Option<Range<u64>>,
}

impl<'a> CertificateWish<'a> {
    /// A client's, good for now.
    #[must_use]
    pub fn client(name: &'a str, organizations: &'a [&'a str]) -> Self {
        Self { name, organizations, names: &[], usage: Usage::Client, expired: false, life: None }
    }
}

/// A certificate and its key, in PEM.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// The certificate.
    pub certificate: String,
    /// The key, PKCS #8.
    pub key: String,
}

impl Authority {
    /// A new one.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn new(name: &str) -> Result<Self> {
        let key = KeyPair::generate().context("no key")?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let own = params.self_signed(&key).context("no certificate")?;
        Ok(Self { pem: pem("CERTIFICATE", own.der()), issuer: Issuer::new(params, key) })
    }

    /// Signs a certificate with a new key.
    ///
    /// # Errors
    /// When a name cannot stand in a certificate.
    pub fn issue(&self, wish: &CertificateWish<'_>) -> Result<Certificate> {
        let key = KeyPair::generate().context("no key")?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if !wish.name.is_empty() {
            params.distinguished_name.push(DnType::CommonName, wish.name);
        }
        for organization in wish.organizations {
            params.distinguished_name.push(DnType::OrganizationName, *organization);
        }
        for name in wish.names {
            params.subject_alt_names.push(match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName((*name).try_into().context("not a name")?),
            });
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match wish.usage {
            Usage::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Usage::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        if wish.expired {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        }
        if let Some(life) = &wish.life {
            set_life(&mut params, life);
        }
        let made = params.signed_by(&key, &self.issuer).context("no certificate")?;
        Ok(Certificate {
            certificate: pem("CERTIFICATE", made.der()),
            key: pem("PRIVATE KEY", key.serialized_der()),
        })
    }

    /// Signs a certificate for the key that has signed a PKCS #10 request (in DER), good between two times in seconds since 1970; in PEM.
    ///
    /// # Errors
    /// When it is no such request, or one with a key of another kind than pods have.
    pub fn sign(&self, request: &[u8], name: &str, life: &Range<u64>) -> Result<String> {
        let key = RequestKey::of(request).context("no PKCS #10 request of a key that is known here")?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        set_life(&mut params, life);
        let made = params.signed_by(&key, &self.issuer).context("no certificate")?;
        Ok(pem("CERTIFICATE", made.der()))
    }
}

fn set_life(params: &mut CertificateParams, life: &Range<u64>) {
    let at = |seconds| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    (params.not_before, params.not_after) = (at(life.start), at(life.end));
}

/// The public key of a request.
struct RequestKey {
    bits: Vec<u8>,
    algorithm: &'static SignatureAlgorithm,
}

impl RequestKey {
    fn of(request: &[u8]) -> Option<Self> {
        let kinds: [(&[u8], &'static SignatureAlgorithm); 3] = [
            (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07], &rcgen::PKCS_ECDSA_P256_SHA256),
            (&[0x2b, 0x81, 0x04, 0x00, 0x22], &rcgen::PKCS_ECDSA_P384_SHA384),
            (&[0x2b, 0x65, 0x70], &rcgen::PKCS_ED25519),
        ];
        let (signed, _) = element(element(request)?.0)?;
        let (_version, rest) = element(signed)?;
        let (_subject, rest) = element(rest)?;
        let (algorithm, rest) = element(element(rest)?.0)?;
        let (bits, _) = element(rest)?;
        let (_, algorithm) = kinds.into_iter().find(|(oid, _)| algorithm.ends_with(oid))?;
        // The first byte says how many bits of the last are not used: none.
        Some(Self { bits: bits.get(1..)?.to_vec(), algorithm })
    }
}

impl PublicKeyData for RequestKey {
    fn der_bytes(&self) -> &[u8] {
        &self.bits
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.algorithm
    }
}

/// What is in the first element of some DER, and what follows it.
fn element(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let first = usize::from(*der.get(1)?);
    let (length, start) = if first < 128 {
        (first, 2)
    } else {
        let bytes = der.get(2..2 + first - 128)?;
        (bytes.iter().fold(0, |sum, byte| (sum << 8) | usize::from(*byte)), 2 + first - 128)
    };
    der.get(start..)?.split_at_checked(length)
}

fn pem(label: &str, der: &[u8]) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let encoded = STANDARD.encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in encoded.as_bytes().chunks(64) {
        text.push_str(&String::from_utf8_lossy(line));
        text.push('\n');
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}
