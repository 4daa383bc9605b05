//! Answers that hold for a while, so that not every request becomes a question to the API server.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// As many answers are kept as upstream keeps.
const CAPACITY: usize = 8192;

/// A bounded map whose entries expire. The oldest entry makes room for a new one.
#[derive(Debug)]
pub struct Cache<K, V> {
    entries: Mutex<Entries<K, V>>,
}

#[derive(Debug)]
struct Entries<K, V> {
    map: HashMap<K, (V, Instant)>,
    /// In order of entry; may name keys that are gone or were entered again.
    order: VecDeque<(K, Instant)>,
}

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self { entries: Mutex::new(Entries { map: HashMap::new(), order: VecDeque::new() }) }
    }
}

impl<K: Clone + Eq + Hash, V: Clone> Cache<K, V> {
    /// The answer, if it still holds.
    pub fn get(&self, key: &K, now: Instant) -> Option<V> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.map.get(key).filter(|(_, until)| *until > now).map(|(value, _)| value.clone())
    }

    /// Keeps an answer for so long. Nothing is kept for no time.
    pub fn put(&self, key: K, value: V, ttl: Duration, now: Instant) {
        let Some(until) = now.checked_add(ttl).filter(|until| *until > now) else { return };
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.map.insert(key.clone(), (value, until));
        entries.order.push_back((key, until));
        while entries.map.len() > CAPACITY || entries.order.len() > 2 * CAPACITY {
            let Some((oldest, until)) = entries.order.pop_front() else { return };
            // One that was entered again since has another time, and stays.
            if entries.map.get(&oldest).is_some_and(|(_, held)| *held == until) {
                entries.map.remove(&oldest);
            }
        }
    }

    /// How many are kept, expired ones among them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).map.len()
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_expire_and_are_bounded() {
        let (cache, start) = (Cache::default(), Instant::now());
        let second = Duration::from_secs(1);
        cache.put("a".to_owned(), 1, 2 * second, start);
        cache.put("b".to_owned(), 2, Duration::ZERO, start);
        assert_eq!(cache.get(&"a".to_owned(), start + second), Some(1));
        assert_eq!(cache.get(&"a".to_owned(), start + 2 * second), None);
        assert_eq!(cache.get(&"b".to_owned(), start), None);

        cache.put("a".to_owned(), 3, 9 * second, start);
        for number in 0..CAPACITY {
            cache.put(number.to_string(), 0, second, start);
        }
        assert_eq!(cache.len(), CAPACITY);
        assert_eq!(cache.get(&"a".to_owned(), start), None, "the oldest made room");
        for _ in 0..5 * CAPACITY {
            cache.put("again".to_owned(), 0, second, start);
        }
        assert!(cache.entries.lock().unwrap().order.len() <= 2 * CAPACITY);
    }
}
