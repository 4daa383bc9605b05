//! Certificates for tests: an authority of one's own and what it signs.

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use std::net::IpAddr;

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
}

impl<'a> CertificateWish<'a> {
    /// A client's, good for now.
    #[must_use]
    pub fn client(name: &'a str, organizations: &'a [&'a str]) -> Self {
        Self { name, organizations, names: &[], usage: Usage::Client, expired: false }
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
        let made = params.signed_by(&key, &self.issuer).context("no certificate")?;
        Ok(Certificate {
            certificate: pem("CERTIFICATE", made.der()),
            key: pem("PRIVATE KEY", key.serialized_der()),
        })
    }
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
