//! What should run on this node: pods, config maps and secrets from files and from a URL, as one [`DesiredState`].
//!
//! It reads `staticPodPath` (inotify and a periodic look) and `staticPodURL`, rules over every document, keeps the last
//! good version of each on disk, gives static pods an identity that survives restarts of mainstay, and publishes the
//! whole through a `watch` channel. A generation is published only when something changed, and a pod that did not
//! change keeps its pointer.
//!
//! What it does not do: it starts and stops nothing, asks the runtime nothing (it reads the [`ObservedState`] once, to
//! find pods that another kubelet left), and does not mount or resolve the objects it publishes.
//!
//! Tasks, all in the group given to [`Sources::start`]: `sources` (the one owner of the state), `manifest records` (writes
//! to `<root>/mainstay/manifests`), `manifest verdicts` (writes since when each ruling stands), and `static pod URL` when one
//! is configured; with an API server `api source` (listens to the node's pods and its Node object), `api objects` (to what they
//! need) and `api records` (writes to `<root>/mainstay/api`). Besides them, the inotify reader's thread.
//!
//! Channels in: [`Evidence`], and [`Wish`]es (64 at most; a sender waits when there are more). A pod that was measured to
//! be over a storage limit of its own gets a wish too. Out:
//! `watch<DesiredState>`, and events into the [`EventSink`].
//!
//! [`DesiredState`]: mainstay_types::DesiredState
//! [`ObservedState`]: mainstay_types::ObservedState
//! [`EventSink`]: mainstay_types::EventSink

#![forbid(unsafe_code)]

mod actor;
mod api;
mod book;
mod config;
mod delivered;
mod entry;
mod files;
mod inotify;
mod kept_objects;
mod objects;
mod records;
mod url;
mod verdicts;

pub use actor::{Evidence, Sources, Wish};
pub use config::{SourcesConfig, SourcesError, UrlSource};
