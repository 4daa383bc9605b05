//! Keys for pods' certificates, and the proof that one has them.

//!
//! ring makes what most ask for. What it does not make comes from RustCrypto: RSA keys, with which ring then signs, so that nothing here
//! computes with them what could be measured from outside; and P-521, of which ring knows nothing.

use std::{fmt::Display, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use mainstay_task::{Lane, LaneError};
use p521::{
    SecretKey,
    ecdsa::{Signature, SigningKey, signature::Signer as _},
    pkcs8::{EncodePrivateKey as _, EncodePublicKey as _},
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, SignatureAlgorithm};
use rsa::{
    RsaPrivateKey,
    rand_core::OsRng,
    traits::{PrivateKeyParts as _, PublicKeyParts as _},
};

/// A large prime takes a second or several of a processor: one key after the other, beside everything else.
static RSA: Lane = Lane::new(1);
/// How long somebody waits for his turn and his key before he begins anew.
const TURN: Duration = Duration::from_secs(600);

/// Why there is no key.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PodKeyError {
    /// It is none that the API server of this release knows.
    #[error(
        "keys of type {0} are not known here; set keyType to RSA3072, RSA4096, ECDSAP256, ECDSAP384, ECDSAP521 or ED25519"
    )]
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

/// `ecdsa-with-SHA512`, as in RFC 5758.
const ECDSA_SHA512: [u8; 12] = [0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x04];

impl PodKey {
    /// Makes one of a kind that `podCertificate.keyType` may name, where it holds up nobody. Cancel safe: one that is being made when
    /// nobody waits for it any more is dropped.
    pub(super) async fn make(key_type: &str) -> Result<Self, PodKeyError> {
        if !key_type.starts_with("RSA") {
            return Self::new(key_type);
        }
        loop {
            let wanted = key_type.to_owned();
            match RSA.run(TURN, move || Self::new(&wanted)).await {
                Ok(made) => return made,
                // Others are having theirs made, or the machine is slow.
                Err(LaneError::Full | LaneError::Late) => {}
                Err(error @ LaneError::Interrupted) => return Err(PodKeyError::making(key_type, error)),
            }
        }
    }

    /// Makes one; blocks for seconds if it is an RSA key.
    fn new(key_type: &str) -> Result<Self, PodKeyError> {
        let generate = |algorithm: &'static SignatureAlgorithm| {
            let key =
                KeyPair::generate_for(algorithm).map_err(|error| PodKeyError::making(key_type, error))?;
            let request = empty_request(&key).map_err(|error| PodKeyError::making(key_type, error))?;
            let bare = if key_type == "ED25519" { first_version(key.serialized_der()) } else { None };
            Ok(Self { pem: pem(bare.as_deref().unwrap_or(key.serialized_der())), request })
        };
        match key_type {
            "ECDSAP256" => generate(&rcgen::PKCS_ECDSA_P256_SHA256),
            "ECDSAP384" => generate(&rcgen::PKCS_ECDSA_P384_SHA384),
            "ED25519" => generate(&rcgen::PKCS_ED25519),
            "ECDSAP521" => Self::p521(),
            "RSA3072" => Self::rsa(key_type, 3072),
            "RSA4096" => Self::rsa(key_type, 4096),
            other => Err(PodKeyError::KeyType(other.to_owned())),
        }
    }

    fn rsa(key_type: &str, bits: usize) -> Result<Self, PodKeyError> {
        let failed = |error: &dyn Display| PodKeyError::making(key_type, error);
        let made = RsaPrivateKey::new(&mut OsRng, bits).map_err(|error| failed(&error))?;
        // The larger prime first, as OpenSSL has it: not every library reads them the other way round.
        let mut primes = made.primes().to_vec();
        primes.sort_unstable_by(|a, b| b.cmp(a));
        let key =
            RsaPrivateKey::from_components(made.n().clone(), made.e().clone(), made.d().clone(), primes);
        let key = key.map_err(|error| failed(&error))?;
        let der = key.to_pkcs8_der().map_err(|error| failed(&error))?;
        let signing = KeyPair::try_from(der.as_bytes()).map_err(|error| failed(&error))?;
        let request = empty_request(&signing).map_err(|error| failed(&error))?;
        Ok(Self { pem: pem(der.as_bytes()), request })
    }

    fn p521() -> Result<Self, PodKeyError> {
        let failed = |error: &dyn Display| PodKeyError::making("ECDSAP521", error);
        let key = SecretKey::random(&mut OsRng);
        let der = key.to_pkcs8_der().map_err(|error| failed(&error))?;
        let public = key.public_key().to_public_key_der().map_err(|error| failed(&error))?;
        let signing = SigningKey::from_bytes(&key.to_bytes()).map_err(|error| failed(&error))?;
        // The first version, nobody's name, the key, and no attributes (RFC 2986, section 4.1).
        let wish = element(0x30, &[&[0x02, 0x01, 0x00], &[0x30, 0x00], public.as_bytes(), &[0xa0, 0x00]]);
        let signature: Signature = signing.try_sign(&wish).map_err(|error| failed(&error))?;
        let signature = element(0x03, &[&[0x00], signature.to_der().as_bytes()]);
        let request = element(0x30, &[&wish, &ECDSA_SHA512, &signature]);
        Ok(Self { pem: pem(der.as_bytes()), request })
    }
}

impl PodKeyError {
    fn making(key_type: &str, problem: impl Display) -> Self {
        Self::Making { key_type: key_type.to_owned(), problem: problem.to_string() }
    }
}

/// A PKCS #10 request that says nothing but whose key it is.
fn empty_request(key: &KeyPair) -> Result<Vec<u8>, rcgen::Error> {
    let mut wish = CertificateParams::default();
    wish.distinguished_name = DistinguishedName::new();
    Ok(wish.serialize_request(key)?.der().to_vec())
}

/// An element of DER: its tag, the length of the rest, and that.
fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let mut whole = vec![tag];
    match content.len().to_be_bytes() {
        [0, 0, 0, 0, 0, 0, 0, short @ 0..0x80] => whole.push(short),
        [0, 0, 0, 0, 0, 0, 0, low] => whole.extend([0x81, low]),
        // What is made here has less than 64 KiB.
        [.., high, low] => whole.extend([0x82, high, low]),
    }
    whole.extend(content);
    whole
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
    use p521::{
        ecdsa::{VerifyingKey, signature::Verifier as _},
        pkcs8::{DecodePrivateKey as _, der::asn1::ObjectIdentifier},
    };

    use super::*;

    fn der(key: &PodKey) -> Vec<u8> {
        let body: String = key.pem.lines().filter(|line| !line.starts_with('-')).collect();
        STANDARD.decode(body).unwrap()
    }

    #[tokio::test]
    async fn keys_of_each_kind_that_ring_reads() {
        let rows = [
            ("ECDSAP256", &rcgen::PKCS_ECDSA_P256_SHA256 as &SignatureAlgorithm),
            ("ECDSAP384", &rcgen::PKCS_ECDSA_P384_SHA384),
            ("ED25519", &rcgen::PKCS_ED25519),
            ("RSA3072", &rcgen::PKCS_RSA_SHA256),
            ("RSA4096", &rcgen::PKCS_RSA_SHA256),
        ];
        for (key_type, algorithm) in rows {
            let made = PodKey::make(key_type).await.unwrap();
            let der = der(&made);
            // It is read back, and is the key that signed the request.
            let read = KeyPair::try_from(der.clone()).unwrap();
            assert_eq!(read.algorithm(), algorithm, "{key_type}");
            let public = rcgen::PublicKeyData::der_bytes(&read);
            assert!(made.request.windows(public.len()).any(|part| part == public), "{key_type}");
            if key_type == "ED25519" {
                assert_eq!((der.len(), der.get(..16)), (48, Some(&ED25519[..])));
            }
            if let Some(bits) = key_type.strip_prefix("RSA") {
                let read = RsaPrivateKey::from_pkcs8_der(&der).unwrap();
                assert_eq!(read.n().bits().to_string(), bits);
                assert!(read.primes()[0] > read.primes()[1], "{key_type}");
            }
        }
    }

    #[tokio::test]
    async fn p521_is_signed_for() {
        let made = PodKey::make("ECDSAP521").await.unwrap();
        let key = SecretKey::from_pkcs8_der(&der(&made)).unwrap();
        let public = key.public_key().to_public_key_der().unwrap();
        // Taken apart again: the wish within the request, the algorithm, and the signature.
        let [0x30, 0x82, high, low, rest @ ..] = &made.request[..] else { panic!("{:?}", made.request) };
        assert_eq!(rest.len(), usize::from(*high) * 256 + usize::from(*low));
        let [0x30, 0x81, length, ..] = rest else { panic!("{rest:?}") };
        let (wish, rest) = rest.split_at(3 + usize::from(*length));
        assert!(wish.windows(public.as_bytes().len()).any(|part| part == public.as_bytes()));
        let (algorithm, signature) = rest.split_at(ECDSA_SHA512.len());
        assert_eq!(algorithm, ECDSA_SHA512);
        let named = ObjectIdentifier::from_bytes(&algorithm[4..]).unwrap();
        assert_eq!(named.to_string(), "1.2.840.10045.4.3.4");
        let [0x03, 0x81, _, 0x00, signature @ ..] = signature else { panic!("{signature:?}") };
        let signature = Signature::from_der(signature).unwrap();
        let verifier = VerifyingKey::from_affine(*key.public_key().as_affine()).unwrap();
        verifier.verify(wish, &signature).unwrap();
    }

    #[tokio::test]
    async fn other_kinds_are_not_known() {
        for key_type in ["", "RSA2048", "RSA", "ECDSAP224", "rsa3072"] {
            let error = PodKey::make(key_type).await.err().unwrap();
            assert!(error.to_string().contains("set keyType to RSA3072"), "{key_type}: {error}");
        }
    }

    #[test]
    fn lengths_of_elements() {
        for (length, head) in
            [(0, &[0x30, 0][..]), (127, &[0x30, 127]), (128, &[0x30, 0x81, 128]), (300, &[0x30, 0x82, 1, 44])]
        {
            let content = vec![7; length];
            let whole = element(0x30, &[&content]);
            assert_eq!((whole.get(..head.len()), whole.len()), (Some(head), head.len() + length));
        }
    }
}
