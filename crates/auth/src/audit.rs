//! The audit log: a line for each refusal and each privileged call, in bounded number and length where strangers cause them.

use std::{
    borrow::Cow,
    fmt,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use http::StatusCode;

use crate::{Attributes, Identity};

/// So many refusals are written at once,
const BURST: f64 = 50.0;
/// and so many each second; further ones are counted. A line is written by the thread that serves, so that whoever can make
/// it write without end can make everybody wait.
const PER_SECOND: f64 = 5.0;
/// So much is shown of what a stranger chose, in bytes,
const SHOWN: usize = 256;
/// and so much of what somebody did who was let in: a command is not hidden behind blanks.
const SHOWN_OF_DEEDS: usize = 16 << 10;

/// Where refusals go. Those of strangers are counted apart from those of known users, so that the former do not hide the latter.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    strangers: Throttle,
    known: Throttle,
}

impl Audit {
    /// Nobody knows who asks.
    pub(crate) fn stranger(&self, address: Option<IpAddr>, what: &str, status: StatusCode, why: &str) {
        if self.strangers.pass(Instant::now()) {
            let (address, what, why) = (Shown(address), short(what), short(why));
            tracing::warn!(target: "audit", %address, request = &*what, decision = "refused", status = status.as_u16(), why = &*why);
        }
        self.settle();
    }

    /// Somebody may not do what he asks for.
    pub(crate) fn refused(
        &self,
        who: &Identity,
        address: Option<IpAddr>,
        what: &str,
        status: StatusCode,
        why: &str,
    ) {
        if self.known.pass(Instant::now()) {
            let (address, user, what, why) = (Shown(address), short(&who.user), short(what), short(why));
            tracing::warn!(target: "audit", user = &*user, groups = ?who.groups, %address, request = &*what, decision = "refused", status = status.as_u16(), why = &*why);
        }
        self.settle();
    }

    /// Somebody was let through.
    pub(crate) fn allowed(
        &self,
        who: &Identity,
        address: Option<IpAddr>,
        what: &str,
        attributes: &Attributes,
        why: &str,
    ) {
        let (address, user, what) = (Shown(address), short(&who.user), beginning(what, SHOWN_OF_DEEDS));
        if attributes.is_privileged() {
            tracing::info!(target: "audit", user = &*user, groups = ?who.groups, %address, request = &*what, decision = "allowed", why);
        } else {
            tracing::debug!(target: "audit", user = &*user, %address, request = &*what, decision = "allowed", why);
        }
        self.settle();
    }

    /// Tells of what was not written, as soon as there is room for a line again.
    fn settle(&self) {
        let now = Instant::now();
        for (throttle, whose) in [(&self.strangers, "strangers"), (&self.known, "known users")] {
            if let Some(more) = throttle.held_back(now) {
                tracing::warn!(target: "audit", decision = "refused", more, "further requests of {whose} were refused and are not written one by one");
            }
        }
    }
}

/// A privileged call through the unix socket, whose mode is its guard: who made it, as the kernel says.
pub fn by_socket(user: Option<u32>, process: Option<i32>, what: &str) {
    let what = beginning(what, SHOWN_OF_DEEDS);
    tracing::info!(target: "audit", uid = user, pid = process, request = &*what, decision = "allowed", why = "the unix socket is its owner's");
}

/// The beginning of a text, and how much is missing. What it is made of is the client's choice: as a text it is quoted in the
/// log, so that no line can be forged.
fn short(text: &str) -> Cow<'_, str> {
    beginning(text, SHOWN)
}

fn beginning(text: &str, most: usize) -> Cow<'_, str> {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    match text.get(..end) {
        Some(beginning) if end < text.len() => {
            Cow::Owned(format!("{beginning}… and {} bytes more", text.len() - end))
        }
        _ => Cow::Borrowed(text),
    }
}

struct Shown(Option<IpAddr>);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("local"),
        }
    }
}

/// How many lines there may be, and how many there were not.
#[derive(Debug)]
struct Throttle(Mutex<Bucket>);

#[derive(Debug)]
struct Bucket {
    level: f64,
    at: Option<Instant>,
    held_back: u64,
}

impl Default for Throttle {
    fn default() -> Self {
        Self(Mutex::new(Bucket { level: BURST, at: None, held_back: 0 }))
    }
}

impl Throttle {
    /// Whether there is room for a line; if not, it is counted.
    fn pass(&self, now: Instant) -> bool {
        let mut bucket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let passes = bucket.take(now);
        if !passes {
            bucket.held_back += 1;
        }
        passes
    }

    /// How many were not written, if that can be said now.
    fn held_back(&self, now: Instant) -> Option<u64> {
        let mut bucket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if bucket.held_back == 0 || !bucket.take(now) {
            return None;
        }
        Some(std::mem::take(&mut bucket.held_back))
    }
}

impl Bucket {
    fn take(&mut self, now: Instant) -> bool {
        let since = self.at.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        self.at = Some(now);
        self.level = (self.level + since * PER_SECOND).min(BURST);
        if self.level < 1.0 {
            return false;
        }
        self.level -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_is_counted_and_told_of_once() {
        let (throttle, start) = (Throttle::default(), Instant::now());
        let written = (0..10_000).filter(|_| throttle.pass(start)).count();
        assert_eq!(written, 50);
        assert_eq!(throttle.held_back(start), None, "not before there is room");
        let later = start + Duration::from_secs(1);
        assert_eq!(throttle.held_back(later), Some(9950));
        assert_eq!(throttle.held_back(later), None);
        let written = (0..100).filter(|_| throttle.pass(later)).count();
        assert_eq!(written, 4);
    }

    #[test]
    fn long_paths_are_cut_between_characters() {
        assert_eq!(short("GET /pods"), "GET /pods");
        let long = "ä".repeat(1000);
        let cut = short(&long);
        assert_eq!(cut, format!("{}… and 1744 bytes more", "ä".repeat(128)));
        let long = format!("a{long}");
        let cut = short(&long);
        assert!(cut.starts_with(&format!("a{}…", "ä".repeat(127))), "{cut}");
    }
}
