//! Against a real TLS server on a real socket.

mod reflector;
mod requests;
mod server;
mod streams;
