//! The HTTP server: a window into the node, for people and programs on it.
//!
//! [`bind`] takes the addresses, [`Bound::serve`] answers on them:
//!
//! | listener | serves |
//! | --- | --- |
//! | unix socket, mode 0600 | everything below |
//! | read-only TCP port | `/pods`, `/healthz*`; upstream's "disabled" answers for its debug endpoints |
//! | healthz TCP port | `/healthz` and `/healthz/ping` |
//!
//! | path | answer |
//! | --- | --- |
//! | `/pods` | the `PodList`, from bytes that the snapshot keeps |
//! | `/pods?watch=true` | lines `{"type":"ADDED\|MODIFIED\|DELETED","object":POD}`: all pods, then a `BOOKMARK`, then what changes |
//! | `/runningpods/` | what runs, by the runtime's word |
//! | `/containerLogs/{namespace}/{pod}/{container}` | a container's log |
//! | `/healthz`, `/healthz/{ping,log,syncloop}` | whether mainstay itself is well |
//! | `/mainstay/v1/events?after=N&watch=true&pod=NAMESPACE/NAME` | what happened: `{"newest":N,"items":[EVENT…]}`, or with `watch` lines `{"type":"ADDED\|MODIFIED","object":EVENT}`; an `N` above the newest sequence (mainstay was restarted) counts as 0 |
//! | `/mainstay/v1/manifests` | what became of each file, and which pod came from where |
//! | `/mainstay/v1/node` | name, version, runtime and counts |
//!
//! Paths, codes, texts and headers of upstream's endpoints are those of its 1.37 (`pkg/kubelet/server/server.go`).
//!
//! What it does not do: it authenticates nobody (the socket's mode does, and the ports carry nothing that upstream's
//! read-only port does not), it changes nothing, and it asks nobody. Handlers look at the newest snapshot, the event store
//! and log files; before the first complete snapshot they answer 503, never a part.
//!
//! Tasks: one per listener and one per connection, in the task group given to [`Bound::serve`]; streams are part of their
//! connection's task. Memory is bounded: connections are counted, bodies are produced as fast as they are taken, and a
//! client that takes nothing for too long is let go.

#![forbid(unsafe_code)]

mod answer;
mod body;
mod connection;
mod container_logs;
mod health;
mod listen;
mod local_api;
mod log_query;
mod pods;
mod request;
mod route;

pub use listen::{Bound, ServeError, ServerConfig, bind};
pub use route::ServerState;

#[cfg(test)]
mod tests;
