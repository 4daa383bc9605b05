//! Keys for pods' certificates, and the proof that one has them.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, SignatureAlgorithm};

/// Why there is no key.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PodKeyError {
    /// The API server knows it, and the cryptography here does not.
    #[error("keys of type {0} cannot be made here; set keyType to ECDSAP256, ECDSAP384 or ED25519")]
    KeyType(String),
    /// No random numbers, for example.
    #[error("a key of type {key_type} cannot be made: {problem}")]
    Making {
        /// What was wanted.
        key_type: String,
        /// What the library said.
        problem: String,
    },
}

/// A key that nobody else has.
pub(super) struct PodKey {
    /// In PEM (PKCS #8). Never logged.
    pub(super) pem: String,
    /// A PKCS #10 request that is signed with it and says nothing else, in DER (upstream's are empty as well).
    pub(super) request: Vec<u8>,
}

/// Before the 32 bytes of an Ed25519 key in the first version of PKCS #8 (RFC 8410, section 7).
const ED25519: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

impl PodKey {
    /// Makes one of a kind that `podCertificate.keyType` may name.
    pub(super) fn new(key_type: &str) -> Result<Self, PodKeyError> {
        let algorithm: &SignatureAlgorithm = match key_type {
            "ECDSAP256" => &rcgen::PKCS_ECDSA_P256_SHA256,
            "ECDSAP384" => &rcgen::PKCS_ECDSA_P384_SHA384,
            "ED25519" => &rcgen::PKCS_ED25519,
            // RSA3072, RSA4096, ECDSAP521: ring makes none of them.
            other => return Err(PodKeyError::KeyType(other.to_owned())),
        };
        let failed = |error: rcgen::Error| PodKeyError::Making {
            key_type: key_type.to_owned(),
            problem: error.to_string(),
        };
        let key = KeyPair::generate_for(algorithm).map_err(failed)?;
        let mut wish = CertificateParams::default();
        wish.distinguished_name = DistinguishedName::new();
        let request = wish.serialize_request(&key).map_err(failed)?;
        let der = if key_type == "ED25519" { first_version(key.serialized_der()) } else { None };
        Ok(Self { pem: pem(der.as_deref().unwrap_or(key.serialized_der())), request: request.der().to_vec() })
    }
}

/// ring writes Ed25519 keys with their public halves (the second version of PKCS #8), which not every library reads.
fn first_version(der: &[u8]) -> Option<Vec<u8>> {
    // The same beginning, but for lengths and version.
    let middle = ED25519.get(5..)?;
    let bare = der.get(5..16)? == middle;
    bare.then(|| Some([&ED25519, der.get(16..48)?].concat()))?
}

fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines = text.as_bytes().chunks(64).map(String::from_utf8_lossy);
    let body: String = lines.map(|line| format!("{line}\n")).collect();
    format!("-----BEGIN PRIVATE KEY-----\n{body}-----END PRIVATE KEY-----\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_each_kind() {
        let rows = [
            ("ECDSAP256", Some(&rcgen::PKCS_ECDSA_P256_SHA256 as &SignatureAlgorithm)),
            ("ECDSAP384", Some(&rcgen::PKCS_ECDSA_P384_SHA384)),
            ("ED25519", Some(&rcgen::PKCS_ED25519)),
            ("ECDSAP521", None),
            ("RSA3072", None),
            ("RSA4096", None),
            ("", None),
        ];
        for (key_type, expected) in rows {
            let made = PodKey::new(key_type);
            let Some(algorithm) = expected else {
                let error = made.err().unwrap();
                assert!(error.to_string().contains("set keyType to ECDSAP256"), "{key_type}: {error}");
                continue;
            };
            let made = made.unwrap();
            let body: String = made.pem.lines().filter(|line| !line.starts_with('-')).collect();
            let der = STANDARD.decode(body).unwrap();
            // It is read back, and is the key that signed the request.
            let read = KeyPair::try_from(der.clone()).unwrap();
            assert_eq!(read.algorithm(), algorithm, "{key_type}");
            let public = rcgen::PublicKeyData::der_bytes(&read);
            assert!(made.request.windows(public.len()).any(|part| part == public), "{key_type}");
            if key_type == "ED25519" {
                assert_eq!((der.len(), der.get(..16)), (48, Some(&ED25519[..])));
            }
        }
    }
}
