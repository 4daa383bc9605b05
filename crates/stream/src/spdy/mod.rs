//! SPDY/3.1, as far as Kubernetes uses it: many streams with headers on one connection, both roles.
//!
//! What it leaves out, because no peer uses it: pushed streams, priorities, credentials, HTTP inside. Flow control follows
//! what peers do, see [`Session`].

mod dictionary;
mod frame;
mod headers;
mod session;

pub use frame::{FrameError, ResetStatus};
pub use headers::Headers;
pub use session::{Incoming, Session};

pub(crate) use frame::{Control, DEFAULT_WINDOW, MAX_STREAM_ID};

/// The parsers, for fuzzing.
#[doc(hidden)]
pub mod fuzz {
    use super::frame::{Control, FRAME_HEADER_BYTES, FrameHeader, ResetStatus, encode_data};
    use super::headers::{HeaderDecoder, HeaderEncoder, Headers};

    /// One frame of each kind.
    #[must_use]
    pub fn example() -> Vec<u8> {
        let mut headers = Headers::default();
        headers.insert("streamtype", "stdout");
        headers.insert("requestid", "0");
        let mut encoder = HeaderEncoder::default();
        let mut out = Vec::new();
        for control in [
            Control::Settings(vec![(4, 100), (7, 65536)]),
            Control::SynStream { stream: 1, fin: false, headers: headers.clone() },
            Control::SynReply { stream: 1, fin: false, headers },
            Control::WindowUpdate { stream: 1, delta: 4096 },
            Control::Headers { stream: 1, fin: false },
            Control::Ping(1),
            Control::RstStream { stream: 1, status: ResetStatus(5) },
            Control::GoAway { last_good_stream: 1, status: 0 },
        ] {
            control.encode(&mut encoder, &mut out);
        }
        encode_data(1, true, b"data", &mut out);
        out
    }

    /// Reads frames one after another until the bytes end or are wrong; how many there were.
    pub fn frames(mut bytes: &[u8]) -> usize {
        let mut decoder = HeaderDecoder::new(4096);
        let mut count = 0;
        while let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>() {
            let (length, control) = match FrameHeader::parse(*header) {
                Ok(FrameHeader::Data { length, .. }) => (length, None),
                Ok(FrameHeader::Control { kind, flags, length }) => (length, Some((kind, flags))),
                Err(_) => return count,
            };
            let Some((payload, rest)) = rest.split_at_checked(length) else { return count };
            if let Some((kind, flags)) = control
                && Control::parse(kind, flags, payload, &mut decoder).is_err()
            {
                return count;
            }
            count += 1;
            bytes = rest;
        }
        count
    }
}
