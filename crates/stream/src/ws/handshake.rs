//! The keys of the opening handshake.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};

/// What RFC 6455 appends to every key.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The `Sec-WebSocket-Accept` that answers a `Sec-WebSocket-Key`.
pub fn accept_key(key: &str) -> String {
    let mut hash = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    hash.update(key.as_bytes());
    hash.update(GUID.as_bytes());
    STANDARD.encode(hash.finish())
}

/// A new `Sec-WebSocket-Key` for a request.
pub fn new_key() -> String {
    STANDARD.encode(random::<16>())
}

/// Random bytes. Masks and keys protect careless proxies, not secrets: a system without randomness gives zeros.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if SystemRandom::new().fill(&mut bytes).is_err() {
        tracing::warn!("the system gives no random bytes");
    }
    bytes
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_answer_of_the_rfc() {
        assert_eq!(super::accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_ne!(super::new_key(), super::new_key());
        assert_eq!(super::new_key().len(), 24);
    }
}
