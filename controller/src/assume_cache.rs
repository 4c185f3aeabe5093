//! Objects of a kind that this process writes: the state that a watch shows, which lags a moment behind, combined
//! with the API server's responses to this process's writes.
//!
//! ```text
//!  watch ──▶ prune ──▶ cache ────────▶ shown ──┐
//!    └─ drops responses it has shown ─┐        ├─▶ newest
//!  responses ──▶ prune ──▶ remember ──┴────────┘
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use drydock_core::launcher_pod::LAST_APPLIED;
use drydock_runtime::{Cache, Change, Key, Watch, Watches, has_shown, newer};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

/// Objects of one kind. Clones share the cache.
#[derive(Debug)]
pub(crate) struct AssumeCache<K> {
    cache: Cache<K>,
    prune: fn(&mut K),
    responses: Responses<K>,
}

/// The newest states of objects in the API server's responses to this process's writes.
type Responses<K> = Arc<Mutex<HashMap<Key, Box<K>>>>;

impl<K> Clone for AssumeCache<K> {
    fn clone(&self) -> Self {
        Self {
            cache: self.cache.clone(),
            prune: self.prune,
            responses: Arc::clone(&self.responses),
        }
    }
}

impl<K: Resource + Clone> AssumeCache<K> {
    /// Starts the watch. Responses that a change has shown are dropped before `on_change` is called with the change.
    /// `prune` clears unused fields, both of watched objects and of responses.
    pub(crate) fn start(
        watches: &Watches,
        watch: Watch<K>,
        prune: fn(&mut K),
        mut on_change: impl FnMut(&Change<K>) + Send + 'static,
    ) -> Self
    where
        K: DeserializeOwned + Debug + Send + Sync + 'static,
        K::DynamicType: Clone + Debug,
    {
        let responses = Responses::default();
        let shown = Arc::clone(&responses);
        let watch = watch.prune(prune).on_change(move |change| {
            forget_what_is_shown(&mut lock(&shown), change);
            on_change(change);
        });
        Self {
            cache: watches.start(watch),
            prune,
            responses,
        }
    }

    /// Creates a cache with the given objects.
    #[cfg(test)]
    pub(crate) fn filled(objects: impl IntoIterator<Item = K>) -> Self {
        Self::of_cache(Cache::filled(objects))
    }

    /// Creates a cache with the given objects, packed.
    #[cfg(test)]
    pub(crate) fn filled_packed(objects: impl IntoIterator<Item = K>) -> Self
    where
        K: serde::Serialize + DeserializeOwned,
    {
        Self::of_cache(Cache::filled_packed(objects))
    }

    #[cfg(test)]
    fn of_cache(cache: Cache<K>) -> Self {
        Self {
            cache,
            prune: |_| {},
            responses: Responses::default(),
        }
    }

    /// Returns the cache of the watch.
    pub(crate) fn shown(&self) -> &Cache<K> {
        &self.cache
    }

    /// Returns the newest known state of an object, including this process's own writes; `None` if the watch shows no
    /// such object.
    pub(crate) fn newest(&self, key: &Key) -> Option<K> {
        let watched = self.cache.get(key).map(Arc::unwrap_or_clone);
        let response = lock(&self.responses).get(key).map(|response| (**response).clone());
        newer(watched, response)
    }

    /// Remembers the API server's response to a write, unless the watch has shown it already, or no longer shows the
    /// object that was written.
    pub(crate) fn remember(&self, key: &Key, mut response: K) {
        (self.prune)(&mut response);
        let mut responses = lock(&self.responses);
        // Read with the lock held: any later change of the cache is observed after this.
        if self
            .cache
            .get(key)
            .is_none_or(|watched| has_shown(&*watched, &response))
        {
            return;
        }
        if responses.get(key).is_none_or(|before| !has_shown(&**before, &response)) {
            responses.insert(key.clone(), Box::new(response));
        }
    }

    /// Drops the response for an object that is about to be deleted: nothing more is written to it.
    pub(crate) fn forget(&self, key: &Key) {
        lock(&self.responses).remove(key);
    }
}

/// Drops a response that a change has made obsolete. The cache already contains the change.
fn forget_what_is_shown<K: Resource>(responses: &mut HashMap<Key, Box<K>>, change: &Change<K>) {
    let Change::Object { key, old, new } = change else {
        return;
    };
    let Some(response) = responses.get(key) else { return };
    let is_over = match (new, old) {
        (Some(new), _) => has_shown(&**new, &**response),
        (None, old) => old.as_ref().is_none_or(|old| old.uid() == response.uid()),
    };
    if is_over {
        responses.remove(key);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes kubectl's copy of the object, which takes as much memory as the object itself.
pub(crate) fn prune_annotations(annotations: &mut Option<BTreeMap<String, String>>) {
    if let Some(annotations) = annotations {
        annotations.remove(LAST_APPLIED);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn at(version: &str, uid: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some("a".into());
        object.metadata.resource_version = Some(version.into());
        object.metadata.uid = Some(uid.into());
        object
    }

    fn key() -> Key {
        Key::cluster("a")
    }

    fn change(old: Option<ConfigMap>, new: Option<ConfigMap>) -> Change<ConfigMap> {
        Change::Object {
            key: key(),
            old: old.map(Arc::new),
            new: new.map(Arc::new),
        }
    }

    fn version(object: Option<ConfigMap>) -> String {
        object
            .and_then(|object| object.metadata.resource_version)
            .unwrap_or_default()
    }

    #[test]
    fn what_was_written_counts_until_the_watch_has_shown_it() {
        let objects = AssumeCache::filled([at("5", "u")]);
        let apply = |change| forget_what_is_shown(&mut lock(&objects.responses), &change);
        objects.remember(&key(), at("7", "u"));
        assert_eq!(version(objects.newest(&key())), "7");
        // Responses may arrive in another order than the writes were made.
        objects.remember(&key(), at("6", "u"));
        assert_eq!(version(objects.newest(&key())), "7");
        apply(change(Some(at("5", "u")), Some(at("6", "u"))));
        assert_eq!(version(objects.newest(&key())), "7", "it is shown something older");
        apply(change(Some(at("6", "u")), Some(at("7", "u"))));
        assert!(lock(&objects.responses).is_empty());
        assert_eq!(version(objects.newest(&key())), "5");
    }

    #[test]
    fn assumed_objects_are_dropped_once_shown_gone_or_replaced() {
        // The watch was faster than the response, or the name belongs to another object or to none by now.
        for shown in [Some(at("7", "u")), Some(at("9", "new")), None] {
            let objects = AssumeCache::filled(shown);
            objects.remember(&key(), at("7", "u"));
            assert!(lock(&objects.responses).is_empty());
        }
        let objects = AssumeCache::filled([at("5", "u")]);
        for (old, new, left) in [
            (Some(at("3", "before")), None, 1),
            (Some(at("5", "u")), None, 0),
            (Some(at("5", "u")), Some(at("9", "new")), 0),
        ] {
            objects.remember(&key(), at("7", "u"));
            forget_what_is_shown(&mut lock(&objects.responses), &change(old, new));
            assert_eq!(lock(&objects.responses).len(), left);
        }
        objects.remember(&key(), at("7", "u"));
        objects.forget(&key());
        assert!(lock(&objects.responses).is_empty());
    }

    #[test]
    fn api_response_is_pruned_like_watched_objects() {
        let mut objects = AssumeCache::filled([at("5", "u")]);
        objects.prune = |object| object.data = None;
        let mut response = at("7", "u");
        response.data = Some([("a".to_owned(), "b".to_owned())].into());
        objects.remember(&key(), response);
        assert_eq!(objects.newest(&key()), Some(at("7", "u")));
    }
}
