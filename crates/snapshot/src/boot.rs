//! Whether the machine was started anew since mainstay last ran.

use std::path::Path;

use jiff::Timestamp;
use mainstay_checkpoint::{Durability, File, Loaded, ensure_directory};
use mainstay_types::{Event, EventKind, EventSink, EventTarget};
use serde::{Deserialize, Serialize};

/// The boot in which mainstay last ran.
#[derive(Serialize, Deserialize)]
struct Boot {
    boot_id: String,
}

/// Tells of a reboot, in upstream's words, if `boot_id` is not the one in `file`, and keeps it there. A machine that
/// tells no boot ID is no evidence of anything. Blocks on the disk; meant for the start.
///
/// Returns what went wrong with the file; the node does without it.
pub fn note_boot(file: &Path, node_name: &str, boot_id: &str, events: &EventSink) -> Vec<String> {
    if boot_id.is_empty() {
        return Vec::new();
    }
    // Flushed: the file is there for the moments after a power failure.
    let file = File::new(file, "boot", 1, Durability::PowerFailure);
    let mut problems = Vec::new();
    match file.load::<Boot>() {
        Loaded::Good(before) if before.boot_id == boot_id => return problems,
        Loaded::Good(_) => {
            let message = format!("Node {node_name} has been rebooted, boot id: {boot_id}");
            let (target, kind, reason) = (EventTarget::Node, EventKind::Warning, "Rebooted".into());
            events.send(Event { target, kind, reason, message, time: Timestamp::now() });
        }
        Loaded::Absent => {}
        Loaded::SetAside(bad) => problems.push(bad.to_string()),
    }
    let directory = file.path().parent().unwrap_or(Path::new("."));
    let kept =
        ensure_directory(directory, 0o700).and_then(|()| file.write(&Boot { boot_id: boot_id.to_owned() }));
    problems.extend(kept.err().map(|error| error.to_string()));
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_boot_is_told_of_and_only_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mainstay/boot.json");
        let (events, mut receiver) = EventSink::bounded(8);
        let mut told = |boot_id| {
            let problems = note_boot(&file, "n", boot_id, &events);
            let event = receiver.try_recv().ok();
            (problems.len(), event.map(|event| event.message))
        };
        assert_eq!(told("a"), (0, None), "the first start is no reboot");
        assert_eq!(told("a"), (0, None));
        assert_eq!(told(""), (0, None), "nothing is known");
        assert_eq!(told("b"), (0, Some("Node n has been rebooted, boot id: b".into())));
        assert_eq!(told("b"), (0, None));
        std::fs::write(&file, "{").unwrap();
        assert_eq!(told("c"), (1, None), "a file that cannot be used tells nothing");
        assert_eq!(told("d"), (0, Some("Node n has been rebooted, boot id: d".into())));
    }
}
