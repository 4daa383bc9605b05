//! `/stats/summary`: what the node, its pods and their containers use, in upstream's words (`stats/v1alpha1`).
//!
//! It is put together from the newest readings, once for each of them, by the first who asks; nothing is collected for a
//! request. Each number has the time at which it was read. Whoever asks for the whole makes disks be looked at more often
//! for a while.

mod shape;

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use jiff::Timestamp;
use mainstay_types::{Filesystems, NodeSnapshot, Samples};

use crate::{
    answer::{self, Answer},
    call::Call,
    form,
    representation::KeptText,
    request::{Query, takes_gzip},
    route::App,
};

const SHORT: &str = "only_cpu_and_memory";

/// The newest texts, with their compressed forms.
#[derive(Debug, Default)]
pub(crate) struct Summaries {
    whole: Mutex<Option<(Version, Arc<KeptText>)>>,
    short: Mutex<Option<(Version, Arc<KeptText>)>>,
}

/// Of which readings a text is.
type Version = (u64, u64);

/// What a summary is made of.
pub(crate) struct Parts<'a> {
    pub(crate) node_name: &'a str,
    pub(crate) samples: &'a Samples,
    pub(crate) disks: &'a Filesystems,
    /// Bytes of memory that the machine has, and how many of them are set aside as huge pages.
    pub(crate) memory: (u64, u64),
    /// Bytes of swap that it has.
    pub(crate) swap_bytes: u64,
    pub(crate) booted: Timestamp,
    pub(crate) process_start: Timestamp,
}

/// `/stats/summary`.
pub(crate) async fn serve(app: &Arc<App>, call: Call<'_>) -> Answer {
    let form = match form::read(call.method, call.headers, call.uri.query(), call.body).await {
        Ok(form) => Query::parse(form.as_deref()).all(SHORT).map(str::to_owned).collect::<Vec<_>>(),
        Err(error) => return internal(&format!("parse form failed: {error}")),
    };
    // Upstream: exactly one, and exactly this.
    let short = form.iter().map(String::as_str).chain(call.query.all(SHORT)).eq(["true"]);
    let Some(snapshot) = app.snapshot() else { return answer::not_ready() };
    let samples = app.state.samples.borrow().clone();
    if samples.root.is_none() {
        return internal("the root cgroup has not been read yet; ask again in a moment");
    }
    let disks = app.state.disks.found.borrow().clone();
    if !short {
        // Full means that a wish is on its way already.
        app.state.disks.wishes.try_send(()).ok();
    }
    let text = app.summaries.of(app, &snapshot, &samples, &disks, short);
    let mut answer = if takes_gzip(call.headers) {
        let Ok(bytes) = text.compressed().await else { return answer::not_compressed() };
        answer::compressed(answer::json(bytes))
    } else {
        answer::json(text.plain().clone())
    };
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

fn internal(error: &str) -> Answer {
    answer::plain(StatusCode::INTERNAL_SERVER_ERROR, format!("Internal Error: {error}"))
}

impl Summaries {
    fn of(
        &self,
        app: &App,
        snapshot: &NodeSnapshot,
        samples: &Samples,
        disks: &Filesystems,
        short: bool,
    ) -> Arc<KeptText> {
        let kept = if short { &self.short } else { &self.whole };
        let version = (samples.generation, if short { 0 } else { disks.generation });
        // Held while the text is made: whoever asks meanwhile waits for it rather than make it too.
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, text)) = kept.as_ref().filter(|(of, _)| *of == version) {
            return Arc::clone(text);
        }
        let huge = snapshot.resources.capacity.iter().filter(|(name, _)| name.starts_with("hugepages-"));
        let bytes = |value: i64| u64::try_from(value).unwrap_or(0);
        let parts = Parts {
            node_name: &snapshot.node_name,
            samples,
            disks,
            memory: (bytes(snapshot.resources.memory_bytes()), huge.map(|(_, it)| bytes(it.value())).sum()),
            swap_bytes: bytes(snapshot.resources.swap_bytes),
            booted: app.booted,
            process_start: app.state.process_start,
        };
        let text = KeptText::new(Bytes::from(shape::json(&parts, short)));
        *kept = Some((version, Arc::clone(&text)));
        text
    }
}

#[cfg(test)]
mod tests;
