//! Counts of what exists at the moment, by a key, such as the open connections of each address.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

/// The number of [guards](CountGuard) of each key. Clones share the counts.
#[derive(Clone, Debug)]
pub struct Counts<K: Ord>(Arc<Mutex<BTreeMap<K, usize>>>);

/// Counts as one of its key until it is dropped.
#[derive(Debug)]
#[must_use = "the count of the key decreases when this guard is dropped"]
pub struct CountGuard<K: Ord> {
    counts: Counts<K>,
    key: K,
}

impl<K: Ord> Default for Counts<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Ord + Clone> Counts<K> {
    /// Increments the count of `key`.
    pub fn add(&self, key: K) -> CountGuard<K> {
        *self.0.lock().entry(key.clone()).or_default() += 1;
        CountGuard {
            counts: self.clone(),
            key,
        }
    }

    /// Increments the count of `key`; `None` if the count has reached `limit`.
    pub fn add_below(&self, limit: usize, key: K) -> Option<CountGuard<K>> {
        let mut counts = self.0.lock();
        let count = counts.get(&key).copied().unwrap_or_default();
        if count >= limit {
            return None;
        }
        counts.insert(key.clone(), count + 1);
        drop(counts);
        Some(CountGuard {
            counts: self.clone(),
            key,
        })
    }

    /// Returns the keys that have guards, with their counts.
    pub fn all(&self) -> BTreeMap<K, usize> {
        self.0.lock().clone()
    }
}

impl<K: Ord> CountGuard<K> {
    /// Returns the key.
    pub fn key(&self) -> &K {
        &self.key
    }
}

impl<K: Ord> Drop for CountGuard<K> {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock();
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn count_is_limited_until_a_guard_is_dropped() {
        let counts = Counts::default();
        let first = counts.add("a");
        let second = counts.add_below(2, "a").unwrap();
        assert!(counts.add_below(2, "a").is_none());
        let other = counts.add_below(2, "b").unwrap();
        assert_eq!(counts.all(), [("a", 2), ("b", 1)].into());
        drop((first, other));
        assert_eq!(counts.all(), [("a", 1)].into());
        drop(second);
        assert!(counts.all().is_empty());
        assert!(counts.add_below(0, "a").is_none());
    }
}
