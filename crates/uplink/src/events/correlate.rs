//! What is to be told of an event, by what has been told already. No I/O, and the time is given.
//!
//! The rules and their numbers are those of client-go's `EventCorrelator` (`tools/record/events_cache.go`): equal events are counted in one
//! object; those of one reason that come in ever new words are combined in one; and an object that has much to say is heard less.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    time::Duration,
};

use mainstay_snapshot::text_without_ids;
use mainstay_types::EventRecord;
use tokio::time::Instant;

/// So many wordings of similar events are told, each by itself; the next ones are combined.
const WORDINGS: usize = 9;
/// After so long without a similar one all is as it was.
const SIMILAR_FOR: Duration = Duration::from_secs(600);
/// What combined events say before the newest message.
const COMBINED: &str = "(combined from similar events): ";
/// The longest message that the API server takes.
const MAX_MESSAGE: usize = 1024;
/// One object's events: so many at once, and one more each five minutes.
const OBJECT_BURST: f64 = 25.0;
const OBJECT_REFILL: Duration = Duration::from_secs(300);
/// How many events, kinds of events and objects are remembered.
const REMEMBERED: usize = 1024;

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Object {
    kind: String,
    namespace: String,
    name: String,
    uid: String,
}

/// What makes events similar.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Likeness {
    object: Object,
    kind: String,
    reason: String,
}

/// What makes two records the same event of the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    likeness: Likeness,
    /// The wording and the part of the object; nothing of the kind for those that are combined.
    own: Option<(String, Option<String>)>,
}

/// What to tell the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Telling {
    /// To be given to [`Correlator::told`] when that is done.
    pub(super) key: Key,
    /// The event that is there already.
    pub(super) known: Option<String>,
    /// How often it has happened.
    pub(super) count: u32,
    /// What it says.
    pub(super) message: String,
    /// Others are in it, and its message is another each time.
    pub(super) combined: bool,
}

/// What is remembered.
#[derive(Debug, Default)]
pub(super) struct Correlator {
    similar: Remembered<Likeness, Similar>,
    told: Remembered<Key, Told>,
    buckets: HashMap<Object, (f64, Instant)>,
}

/// An event in the API server; without a name, one that is told of within others.
#[derive(Clone, Debug)]
struct Told {
    name: Option<String>,
    count: u32,
}

#[derive(Debug)]
struct Similar {
    wordings: VecDeque<String>,
    last: Instant,
}

impl Correlator {
    /// What to tell of a record; `None` if its object has said too much.
    pub(super) fn judge(&mut self, record: &EventRecord, now: Instant) -> Option<Telling> {
        let object = Object {
            kind: record.object_kind.clone(),
            namespace: record.namespace.clone(),
            name: record.name.clone(),
            uid: record.uid.clone(),
        };
        let likeness =
            Likeness { object: object.clone(), kind: record.kind.clone(), reason: record.reason.clone() };
        let wording = text_without_ids(&record.message);
        let combined = self.is_one_too_many(&likeness, &wording, now);
        if !self.may_say(object, now) {
            return None;
        }
        let own = Key { likeness: likeness.clone(), own: Some((wording, record.field_path.clone())) };
        let before = self.told.get(&own).cloned();
        if !combined {
            // One that counts less than before is another, after the node's own records were lost.
            let known = before.filter(|told| told.count < record.count).and_then(|told| told.name);
            let (count, message) = (record.count, shortened(&record.message));
            return Some(Telling { key: own, known, count, message, combined });
        }
        let more = before.map_or(1, |told| record.count.saturating_sub(told.count).max(1));
        let name = self.told.get(&own).and_then(|told| told.name.clone());
        self.told.put(own, Told { name, count: record.count });
        let key = Key { likeness, own: None };
        let (known, count) = match self.told.get(&key) {
            Some(told) => (told.name.clone(), told.count.saturating_add(more)),
            None => (None, more),
        };
        let message = shortened(&format!("{COMBINED}{}", record.message));
        Some(Telling { key, known, count, message, combined })
    }

    /// The API server has it, under this name.
    pub(super) fn told(&mut self, telling: Telling, name: String) {
        self.told.put(telling.key, Told { name: Some(name), count: telling.count });
    }

    /// Whether there have been so many wordings of late that this one is not told by itself.
    fn is_one_too_many(&mut self, likeness: &Likeness, wording: &str, now: Instant) -> bool {
        let recent = self.similar.get_mut(likeness).filter(|it| now - it.last <= SIMILAR_FOR);
        let Some(similar) = recent else {
            self.similar.put(likeness.clone(), Similar { wordings: [wording.to_owned()].into(), last: now });
            return false;
        };
        similar.last = now;
        if similar.wordings.iter().any(|known| known == wording) {
            return false;
        }
        let full = similar.wordings.len() >= WORDINGS;
        if full {
            similar.wordings.pop_front();
        }
        similar.wordings.push_back(wording.to_owned());
        full
    }

    /// Whether one more event of this object is to be told.
    fn may_say(&mut self, object: Object, now: Instant) -> bool {
        if self.buckets.len() > REMEMBERED {
            let full = |(left, at): &(f64, Instant)| *left + refill(now - *at) >= OBJECT_BURST;
            self.buckets.retain(|_, bucket| !full(bucket));
        }
        let (left, at) = self.buckets.get(&object).copied().unwrap_or((OBJECT_BURST, now));
        let left = (left + refill(now - at)).min(OBJECT_BURST);
        let may = left >= 1.0;
        self.buckets.insert(object, (if may { left - 1.0 } else { left }, now));
        may
    }
}

fn refill(time: Duration) -> f64 {
    time.as_secs_f64() / OBJECT_REFILL.as_secs_f64()
}

fn shortened(message: &str) -> String {
    message.chars().take(MAX_MESSAGE).collect()
}

/// A map that forgets what came first.
#[derive(Debug)]
struct Remembered<K, V> {
    values: HashMap<K, V>,
    order: VecDeque<K>,
}

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        Self { values: HashMap::new(), order: VecDeque::new() }
    }
}

impl<K: Clone + Eq + Hash, V> Remembered<K, V> {
    fn get(&self, key: &K) -> Option<&V> {
        self.values.get(key)
    }

    fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.values.get_mut(key)
    }

    fn put(&mut self, key: K, value: V) {
        if self.values.insert(key.clone(), value).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.values.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn record(object: &str, reason: &str, message: &str, count: u32) -> EventRecord {
        EventRecord {
            sequence: 0,
            kind: "Warning".into(),
            reason: reason.into(),
            message: message.into(),
            object_kind: "Pod".into(),
            namespace: "default".into(),
            name: object.into(),
            uid: object.into(),
            field_path: None,
            count,
            first_timestamp: Timestamp::UNIX_EPOCH,
            last_timestamp: Timestamp::UNIX_EPOCH,
        }
    }

    /// Judges and tells; says what was done in a few words.
    fn tell(correlator: &mut Correlator, record: &EventRecord, now: Instant) -> String {
        let Some(telling) = correlator.judge(record, now) else { return "nothing".to_owned() };
        let verb = if telling.known.is_some() { "patch" } else { "create" };
        let said = format!("{verb} {} x{}", telling.message, telling.count);
        let name = telling.known.clone().unwrap_or_else(|| telling.message.clone());
        correlator.told(telling, name);
        said
    }

    #[test]
    fn similar_events_are_combined_and_equal_ones_counted() {
        let combined = |text: &str| format!("(combined from similar events): {text}");
        let start = Instant::now();
        let mut correlator = Correlator::default();
        let nine = (1..=9).map(|n| (0, "a", "Failed", format!("m{n}"), 1, format!("create m{n} x1")));
        let rows = nine.chain([
            (1, "a", "Failed", "m9".into(), 2, "patch m9 x2".into()),
            (2, "a", "Failed", "m10".into(), 1, format!("create {} x1", combined("m10"))),
            (3, "a", "Failed", "m11".into(), 1, format!("patch {} x2", combined("m11"))),
            (4, "a", "Failed", "m11".into(), 2, "create m11 x2".into()),
            (5, "a", "Failed", "m12".into(), 1, format!("patch {} x3", combined("m12"))),
            (6, "a", "Other", "m13".into(), 1, "create m13 x1".into()),
            (6, "b", "Failed", "m13".into(), 1, "create m13 x1".into()),
            // m1 was forgotten as a wording of its own; it has happened three times more.
            (7, "a", "Failed", "m1".into(), 4, format!("patch {} x6", combined("m1"))),
            (607, "a", "Failed", "m14".into(), 1, format!("patch {} x7", combined("m14"))),
            (1208, "a", "Failed", "m15".into(), 1, "create m15 x1".into()),
        ]);
        for (second, object, reason, message, count, expected) in rows {
            let now = start + Duration::from_secs(second);
            let said = tell(&mut correlator, &record(object, reason, &message, count), now);
            assert_eq!(said, expected, "{object} {reason} {message} after {second} s");
        }
    }

    #[test]
    fn an_object_that_says_much_is_heard_less() {
        let start = Instant::now();
        let mut correlator = Correlator::default();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut said =
            |object: &str, count, now| tell(&mut correlator, &record(object, "Failed", "m", count), now);
        for count in 1..=25 {
            assert_ne!(said("a", count, at(0)), "nothing", "{count}");
        }
        let rows = [
            ("spent", "a", 26, 1, "nothing"),
            ("spent still", "a", 27, 299, "nothing"),
            ("another object", "b", 1, 299, "create m x1"),
            ("one more, with all that were not told", "a", 28, 301, "patch m x28"),
            ("spent again", "a", 29, 302, "nothing"),
            ("two more after ten minutes", "a", 30, 910, "patch m x30"),
            ("the second of them", "a", 31, 910, "patch m x31"),
            ("and no third", "a", 32, 910, "nothing"),
        ];
        for (row, object, count, second, expected) in rows {
            assert_eq!(said(object, count, at(second)), expected, "{row}");
        }
    }

    #[test]
    fn ids_of_commands_make_no_other_event_and_lost_records_do() {
        let mut correlator = Correlator::default();
        let now = Instant::now();
        let message = |letter: &str| format!("exec \"{}\" failed", letter.repeat(64));
        tell(&mut correlator, &record("a", "Unhealthy", &message("a"), 1), now);
        let second = tell(&mut correlator, &record("a", "Unhealthy", &message("b"), 2), now);
        assert!(second.starts_with("patch") && second.ends_with("x2"), "{second}");
        let anew = tell(&mut correlator, &record("a", "Unhealthy", &message("b"), 1), now);
        assert!(anew.starts_with("create") && anew.ends_with("x1"), "{anew}");
        let long = tell(&mut correlator, &record("a", "Long", &"é".repeat(2000), 1), now);
        assert_eq!(long.chars().count(), "create  x1".len() + MAX_MESSAGE);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut correlator = Correlator::default();
        let now = Instant::now();
        for number in 0..3 * REMEMBERED {
            let name = number.to_string();
            tell(
                &mut correlator,
                &record(&name, "Failed", "m", 1),
                now + Duration::from_secs(300 * number as u64),
            );
        }
        assert_eq!(correlator.told.values.len(), REMEMBERED);
        assert_eq!(correlator.similar.values.len(), REMEMBERED);
        assert!(correlator.buckets.len() <= REMEMBERED + 1);
        let again =
            tell(&mut correlator, &record("0", "Failed", "m", 2), now + Duration::from_secs(3_000_000));
        assert_eq!(again, "create m x2", "long forgotten");
    }
}
