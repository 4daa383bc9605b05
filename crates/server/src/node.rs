//! `/node`: this node as a v1 Node, from the snapshot.

use std::sync::Arc;

use mainstay_types::{NodeSnapshot, NodeView};
use tokio::sync::watch;

use crate::{
    answer::{self, Answer},
    body::{Body, Slot},
    call::Call,
    route::App,
    watch::{BOOKMARK_PERIOD, event},
};

pub(crate) fn serve(app: &App, call: &Call<'_>) -> Answer {
    let Some(view) = app.snapshot().and_then(|snapshot| snapshot.node.clone()) else {
        return answer::not_ready();
    };
    if !call.query.switch("watch") {
        return app.node.get(view.version, || view.json.clone()).answer(call.headers);
    }
    let (snapshots, shutdown, base) = (app.state.snapshot.clone(), app.shutdown.clone(), app.version_base());
    answer::json_stream(Body::told(|slot| async move {
        shutdown.run_until_signalled(tell(snapshots, base, &slot)).await;
    }))
}

/// Tells the node as it is, then each change; a client that is slow skips to the newest.
async fn tell(mut snapshots: watch::Receiver<Option<Arc<NodeSnapshot>>>, base: u64, slot: &Slot) {
    let mut told: Option<Arc<NodeView>> = None;
    loop {
        let newest = snapshots.borrow_and_update().as_ref().and_then(|snapshot| snapshot.node.clone());
        if let Some(newest) =
            newest.filter(|newest| told.as_ref().is_none_or(|told| told.version != newest.version))
        {
            let kind = if told.is_none() { "ADDED" } else { "MODIFIED" };
            slot.put(event(kind, newest.json.strip_suffix(b"\n").unwrap_or(&newest.json))).await;
            told = Some(newest);
        }
        // Cancel safe: `changed` only marks the value as seen, and it is read right after.
        tokio::select! {
            changed = snapshots.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = tokio::time::sleep(BOOKMARK_PERIOD) => {
                let version = base + told.as_ref().map_or(0, |told| told.version);
                let line = format!(
                    "{{\"type\":\"BOOKMARK\",\"object\":{{\"kind\":\"Node\",\"apiVersion\":\"v1\",\"metadata\":{{\"resourceVersion\":\"{version}\"}},\"spec\":{{}},\"status\":{{}}}}}}\n"
                );
                slot.put(line.into()).await;
            }
        }
    }
}
