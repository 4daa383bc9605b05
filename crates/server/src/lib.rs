//! The HTTP server: a window into the node, for people and programs on it.
//!
//! [`bind`] takes the addresses, [`Bound::serve`] answers on them:
//!
//! | listener | serves |
//! | --- | --- |
//! | unix socket, mode 0600 | everything |
//! | TLS port | everything, to those whom the guard lets through |
//! | read-only TCP port | the common set; upstream's "disabled" answers for its debug endpoints |
//! | healthz TCP port | `/healthz` and `/healthz/ping` |
//!
//! What there is stands in one table (`table/rows.rs`), from which routing, `/openapi/v3` and `docs/api.md` come.
//!
//! Paths, codes, texts and headers of upstream's endpoints are those of its 1.37 (`pkg/kubelet/server/server.go`).
//!
//! What it does not do: it decides nothing about pods and asks no manager. Who may pass on the secure port is the auth crate's
//! to say; the socket is root's by its mode, and the plain ports carry what upstream's do. Handlers that read look at the newest snapshot, the event store
//! and log files; before the first complete snapshot they answer 503, never a part. Those that act in containers ask the runtime
//! ([`ActingConfig`]), and change no desired state.
//!
//! Tasks: one per listener and one per connection, in the task group given to [`Bound::serve`]; streams are part of their
//! connection's task, an exec, attach or port-forward is one of its own. Memory is bounded: connections are counted, bodies are produced as fast as they are taken, and a
//! client that takes nothing for too long is let go.

#![forbid(unsafe_code)]

mod acting;
mod answer;
mod body;
mod cadvisor;
mod call;
mod choice;
mod connection;
mod container_logs;
mod deed;
mod door;
mod exposition;
mod form;
mod health;
mod listen;
mod local_api;
mod log_query;
mod metrics;
mod node;
mod node_logs;
mod openapi;
mod own_families;
mod own_metrics;
mod pods;
mod process;
mod profiles;
mod representation;
mod request;
mod resource_metrics;
mod resources;
mod route;
mod selector;
mod stats;
mod summary;
mod table;
mod tls;
mod watch;

pub use acting::ActingConfig;
pub use choice::FamilyChoice;
pub use listen::{Bound, SecureConfig, ServeError, ServerConfig, bind};
pub use node_logs::NodeLogs;
pub use own_families::Facts;
pub use process::{ConfigPage, Process, Verbosity};
pub use route::{Disks, ServerState};
pub use table::Switches;
pub use tls::{SelfSignedError, Tls, TlsError, TlsSettings, ensure_self_signed, tls_config};

/// The reader of request targets without a connection, for fuzzing.
#[doc(hidden)]
pub mod fuzz {
    use crate::{form, log_query::LogQuery, own_families, request};

    /// Reads the kernel's files about a process; what came of it, in words.
    #[must_use]
    pub fn process(text: &str) -> String {
        own_families::formats(text)
    }

    /// Reads a path with its query; what came of it, in words. Panics if cleaning a path leaves a way out of it.
    #[must_use]
    pub fn request(target: &str) -> String {
        let (path, query) =
            target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
        let cleaned = request::clean(path);
        assert!(cleaned.starts_with('/') || cleaned.is_empty(), "{path:?} became {cleaned:?}");
        assert!(!cleaned.split('/').any(|part| matches!(part, "." | "..")), "{path:?} became {cleaned:?}");
        assert_eq!(request::clean(&cleaned), cleaned, "cleaned once and twice");
        let quoted = request::quoted(path);
        assert!(quoted.len() >= path.len() + 2, "{quoted}");
        let form = (form::problem(query.unwrap_or_default()), form::is_form(path));
        let query = request::Query::parse(query);
        let logs = LogQuery::parse(&query, jiff::Timestamp::UNIX_EPOCH);
        let escapes = if request::unescape(path, false).is_some() { "readable" } else { "broken" };
        format!("{escapes} {form:?} {} {logs:?}", if query.switch("watch") { "watch" } else { "list" })
    }
}

#[cfg(test)]
mod tests;
