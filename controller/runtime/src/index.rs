//! Secondary indexes of caches.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    ops::Bound,
    sync::Arc,
};

use parking_lot::Mutex;

use crate::{CacheChange, Key};

/// The keys of objects by the value of a property, ordered by namespace and name. Clones share one index.
pub struct Index<K> {
    property: fn(&K) -> Option<String>,
    keys: Arc<Mutex<HashMap<String, BTreeSet<Key>>>>,
}

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        Self {
            property: self.property,
            keys: Arc::clone(&self.keys),
        }
    }
}

impl<K> fmt::Debug for Index<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.keys.lock().iter().map(|(value, keys)| (value, keys.len())))
            .finish()
    }
}

impl<K> Index<K> {
    /// Creates an empty index.
    ///
    /// `property` returns the value under which an object is found; `None`: the object is not in the index.
    pub fn by(property: fn(&K) -> Option<String>) -> Self {
        Self {
            property,
            keys: Arc::default(),
        }
    }

    /// Updates the index with a change from a watch.
    pub fn observe(&self, change: &CacheChange<K>) {
        let CacheChange::Object { key, old, new } = change else {
            return;
        };
        if let Some(old) = old {
            self.remove(key, old);
        }
        if let Some(new) = new {
            self.add(key, new);
        }
    }

    /// Adds the objects of a cache, for tests of its readers.
    #[cfg(any(test, feature = "fake"))]
    pub fn fill(&self, cache: &crate::Cache<K>) {
        cache.for_each(|key, object| self.add(key, object));
    }

    /// Returns the keys of the objects with this value.
    pub fn keys(&self, value: &str) -> Vec<Key> {
        self.keys.lock().get(value).into_iter().flatten().cloned().collect()
    }

    /// Returns up to `count` keys of the objects with this value, in order, after the key `last`.
    pub fn page(&self, value: &str, last: Option<&Key>, count: usize) -> Vec<Key> {
        let keys = self.keys.lock();
        let after = last.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = keys
            .get(value)
            .into_iter()
            .flat_map(|keys| keys.range::<Key, _>((after, Bound::Unbounded)));
        rest.take(count).cloned().collect()
    }

    /// Returns the keys of the objects in a namespace with this value.
    pub fn in_namespace(&self, value: &str, namespace: &str) -> Vec<Key> {
        let keys = self.keys.lock();
        let first = Key::namespaced(namespace, "");
        let from_first = keys.get(value).into_iter().flat_map(|keys| keys.range(first.clone()..));
        from_first
            .take_while(|key| key.namespace.as_deref() == Some(namespace))
            .cloned()
            .collect()
    }

    /// Returns whether an object is found under this value.
    pub(crate) fn is_found(&self, value: &str, object: &K) -> bool {
        (self.property)(object).as_deref() == Some(value)
    }

    pub(crate) fn add(&self, key: &Key, object: &K) {
        if let Some(value) = (self.property)(object) {
            self.keys.lock().entry(value).or_default().insert(key.clone());
        }
    }

    pub(crate) fn remove(&self, key: &Key, object: &K) {
        let Some(value) = (self.property)(object) else {
            return;
        };
        let mut index = self.keys.lock();
        if let Some(keys) = index.get_mut(&value) {
            keys.remove(key);
            if keys.is_empty() {
                index.remove(&value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn object(namespace: &str, name: &str, value: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some(namespace.into());
        object.metadata.name = Some(name.into());
        object.data = (!value.is_empty()).then(|| [("value".to_owned(), value.to_owned())].into());
        object
    }

    fn by_value() -> Index<ConfigMap> {
        Index::by(|object| object.data.as_ref()?.get("value").cloned())
    }

    fn change(old: Option<ConfigMap>, new: Option<ConfigMap>) -> CacheChange<ConfigMap> {
        CacheChange::Object {
            key: Key::of(new.as_ref().or(old.as_ref()).unwrap()),
            old: old.map(Arc::new),
            new: new.map(Arc::new),
        }
    }

    #[test]
    fn index_follows_changes_and_keeps_nothing_of_deleted_objects() {
        let index = by_value();
        index.observe(&change(None, Some(object("n", "a", "x"))));
        index.observe(&change(None, Some(object("n", "b", "x"))));
        index.observe(&change(None, Some(object("n", "c", ""))));
        assert_eq!(index.keys("x"), ["a", "b"].map(|name| Key::namespaced("n", name)));
        // The value changes; then the object is replaced by another one with the same name and another value.
        index.observe(&change(Some(object("n", "a", "x")), Some(object("n", "a", "y"))));
        assert_eq!(index.keys("x"), [Key::namespaced("n", "b")]);
        assert_eq!(index.keys("y"), [Key::namespaced("n", "a")]);
        index.observe(&change(Some(object("n", "a", "y")), None));
        index.observe(&change(Some(object("n", "b", "x")), Some(object("n", "b", ""))));
        assert!(index.keys.lock().is_empty(), "{index:?}");
    }

    #[test]
    fn pages_continue_after_the_last_key_even_if_deleted() {
        let index = by_value();
        for (namespace, name) in [("b-2", "other"), ("b", "new"), ("b", "running"), ("a", "first")] {
            index.observe(&change(None, Some(object(namespace, name, "x"))));
        }
        let shown = |keys: Vec<Key>| keys.iter().map(Key::to_string).collect::<Vec<_>>();
        assert_eq!(
            shown(index.page("x", None, 9)),
            ["a/first", "b/new", "b/running", "b-2/other"]
        );
        for (last, count, expected) in [
            (("a", "first"), 2, &["b/new", "b/running"][..]),
            (("b", "running"), 2, &["b-2/other"]),
            (("b", "middle"), 1, &["b/new"]),
            (("b-2", "other"), 2, &[]),
        ] {
            let last = Key::namespaced(last.0, last.1);
            assert_eq!(shown(index.page("x", Some(&last), count)), expected, "{last}");
        }
        assert_eq!(shown(index.in_namespace("x", "b")), ["b/new", "b/running"]);
        assert_eq!(shown(index.in_namespace("x", "c")), [""; 0]);
        assert_eq!(shown(index.in_namespace("y", "b")), [""; 0]);
    }
}
