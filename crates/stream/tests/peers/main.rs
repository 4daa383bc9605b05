//! The crate against upstream's own code: client-go's executors and port-forwarder call a server that is built on it, and
//! it calls the streaming server of container runtimes. `cargo xtask tools streamclient` builds both.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod client;
mod forward;
mod kit;
mod server;
