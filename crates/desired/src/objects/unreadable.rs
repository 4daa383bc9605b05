//! Objects that the API server has and that cannot be read here: told to the pods that wait for them.

use jiff::Timestamp;
use mainstay_apiserver::{Change, Unreadable};
use mainstay_types::{Event, EventKind, EventTarget, FullName};

use super::ApiObjects;

/// What of a change cannot be read.
pub(super) fn of<T>(change: &Change<T>) -> Option<&Unreadable> {
    match change {
        Change::Listed(list) => list.unreadable.first(),
        Change::Unreadable(object) => Some(object),
        Change::Applied(_) | Change::Deleted(_) | Change::Interrupted(_) => None,
    }
}

/// The event's reason.
pub(crate) const REASON: &str = "UnreadableObject";

impl ApiObjects {
    /// Says so to each pod that refers to the object, once for each version of it. It has been looked up: nobody waits for it
    /// any longer, and what was known of it before holds.
    pub(super) fn tell_unreadable(&self, kind: &'static str, name: &FullName, object: &Unreadable) {
        let mut known = self.known();
        let looked_up = match kind {
            "ConfigMap" => known.config_maps.insert(name.clone()),
            "Secret" => known.secrets.insert(name.clone()),
            _ => known.runtime_classes.insert(name.name.to_string()),
        };
        let told = known.unreadable.insert((kind, name.clone()), object.version.clone());
        if told.as_ref() != Some(&object.version) {
            // What the parser says may quote the contents.
            let problem =
                if kind == "Secret" { "it does not have a Secret's form" } else { object.problem.as_str() };
            tracing::warn!(kind, %name, problem, "an object of the API server cannot be read");
            let message =
                format!("{kind} {:?} cannot be read, and is as it was before: {problem}", &*name.name);
            let refers = known.wanted.iter().filter(|(_, wanted)| match kind {
                "ConfigMap" => wanted.references.config_maps.contains(name),
                "Secret" => wanted.references.secrets.contains(name),
                _ => wanted.references.runtime_class.as_deref() == Some(&*name.name),
            });
            for (uid, wanted) in refers {
                self.events.send(Event {
                    target: EventTarget::Pod {
                        uid: uid.clone(),
                        full_name: wanted.full_name.clone(),
                        field_path: None,
                    },
                    kind: EventKind::Warning,
                    reason: REASON.into(),
                    message: message.clone(),
                    time: Timestamp::now(),
                });
            }
        }
        drop(known);
        if looked_up {
            self.news.notify_one();
        }
    }
}
