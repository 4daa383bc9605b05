//! Against a real TLS server on a real socket.

mod reflector;
mod requests;
pub(crate) mod server;
mod streams;
