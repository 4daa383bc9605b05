//! Port forwarding: connections to ports of a pod, each as a stream of data and a text of what went wrong.
//!
//! [`serve_spdy`], [`serve_tunnel`] and [`serve_websocket`] are the end that has the pod; [`Forwarder`] is the one that wants
//! to reach it. Source: `k8s.io/cri-streaming/pkg/streaming/portforward` v0.37.

mod client;
mod pairs;
mod server;

pub use client::{Forwarded, Forwarder};
pub use server::{serve_spdy, serve_tunnel, serve_websocket};

const PORT: &str = "port";
const REQUEST_ID: &str = "requestid";
const STREAM_TYPE: &str = "streamtype";
const DATA: &str = "data";
const ERROR: &str = "error";

#[cfg(test)]
mod tests;
