//! A client of the API server, made for a node agent: few connections, bounded answers, a deadline over everything.
//!
//! [`Client::open`] reads a kubeconfig and speaks to the server that it names: typed requests ([`Client::get`], [`Client::list`],
//! [`Client::create`], [`Client::replace`], [`Client::patch`], [`Client::delete`]) and [`Client::watch`], all in JSON. Files that a
//! kubeconfig names (authority, client certificate and key, token) are read again when they change. [`reflect`] keeps a picture
//! of a set of objects current.
//!
//! Requests share one HTTP/2 connection, on which pings find out that nobody is there any more. kube-apiserver allows 100
//! streams on a connection and a watch holds one for minutes, so beyond 80 another connection is made; what is left of the
//! 100 is for requests, which thus never wait behind watches, also when no other connection can be had. Each request goes to
//! the oldest connection with room, and one that is left without streams goes when a request finds room before it. A server
//! that speaks only HTTP/1.1 gets a connection per request in flight. A server that cannot be reached is tried again with
//! growing pauses, and meanwhile requests that need a new connection fail at once with the reason.
//!
//! What it does not do: no protobuf, no discovery, no proxies but those that the kubeconfig names, no retries of requests that
//! the server has seen (callers know what may be repeated: [`ApiError::is_transient`]). It owns no state of the node.
//!
//! Tasks: one per connection, in the group given to [`Client::open`]; a reflector runs in its caller's task.

#![forbid(unsafe_code)]

mod client;
mod connect;
mod connection;
mod credentials;
mod error;
mod exec;
mod kubeconfig;
mod limit;
mod readable;
mod reflect;
mod tls;
mod tokens;
mod validity;

pub use client::{Client, Patch, Query, Scope};
pub use error::ApiError;
pub use kubeconfig::KubeconfigError;
pub use limit::Rate;
pub use readable::{Listing, Unreadable};
pub use reflect::{Change, Reflected, reflect};
pub use tokens::{bound_token, renew_token_after};
pub use validity::span as certificate_span;

#[cfg(test)]
mod tests;
