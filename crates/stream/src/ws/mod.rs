//! WebSocket (RFC 6455), without extensions, and what Kubernetes sends in its messages.
//!
//! Messages are handed on as they arrive and never collected, except base64 ones, which are short. So a message has no
//! limit of its own; a stream's buffer is the limit.

mod channels;
mod connection;
mod frame;
mod handshake;
mod utf8;

pub use channels::{Channels, Codec};
pub use connection::{Closer, connect, tunnel};
pub use frame::{CloseCode, WsError};
pub use handshake::{accept_key, new_key};

pub(crate) use frame::Control;

/// The parser, for fuzzing.
#[doc(hidden)]
pub mod fuzz {
    pub use super::frame::fuzz_frames as frames;
}
