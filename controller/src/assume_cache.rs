//! Objects of a kind that this process writes: the state that a watch shows, which lags a moment behind, combined
//! with the API server's responses to this process's writes.
//!
//! ```text
//!  watch ──▶ prune ──▶ cache ────────▶ shown ──┐
//!    └─ drops responses it has shown ─┐        ├─▶ newest
//!  responses ──▶ prune ──▶ remember ──┴────────┘
//! ```

use std::{
    collections::HashMap,
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use drydock_runtime::{Cache, Change, Key, Watch, Watches, has_shown, newer};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

/// Objects of one kind. Clones share the cache.
#[derive(Debug)]
pub(crate) struct AssumeCache<K> {
    cache: Cache<K>,
    prune: fn(&mut K),
    answers: Answers<K>,
}

/// The newest states of objects in the API server's responses to this process's writes.
type Answers<K> = Arc<Mutex<HashMap<Key, Box<K>>>>;

impl<K> Clone for AssumeCache<K> {
    fn clone(&self) -> Self {
        Self {
            cache: self.cache.clone(),
            prune: self.prune,
            answers: Arc::clone(&self.answers),
        }
    }
}

impl<K: Resource + Clone> AssumeCache<K> {
    /// Starts the watch. Responses that a change has shown are dropped before `told` is called with the change.
    /// `prune` clears unused fields, both of watched objects and of responses.
    pub(crate) fn start(
        watches: &Watches,
        watch: Watch<K>,
        prune: fn(&mut K),
        mut told: impl FnMut(&Change<K>) + Send + 'static,
    ) -> Self
    where
        K: DeserializeOwned + Debug + Send + Sync + 'static,
        K::DynamicType: Clone + Debug,
    {
        let answers = Answers::default();
        let shown = Arc::clone(&answers);
        let watch = watch.prune(prune).on_change(move |change| {
            forget_what_is_shown(&mut lock(&shown), change);
            told(change);
        });
        Self {
            cache: watches.start(watch),
            prune,
            answers,
        }
    }

    /// Creates a cache with the given objects.
    #[cfg(test)]
    pub(crate) fn filled(objects: impl IntoIterator<Item = K>) -> Self {
        Self {
            cache: Cache::filled(objects),
            prune: |_| {},
            answers: Answers::default(),
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
        let answer = lock(&self.answers).get(key).map(|answer| (**answer).clone());
        newer(watched, answer)
    }

    /// Remembers the API server's response to a write, unless the watch has shown it already, or no longer shows the
    /// object that was written.
    pub(crate) fn remember(&self, key: &Key, mut answer: K) {
        (self.prune)(&mut answer);
        let mut answers = lock(&self.answers);
        // Read with the lock held: any later change of the cache is observed after this.
        if self.cache.get(key).is_none_or(|watched| has_shown(&*watched, &answer)) {
            return;
        }
        if answers.get(key).is_none_or(|before| !has_shown(&**before, &answer)) {
            answers.insert(key.clone(), Box::new(answer));
        }
    }

    /// Drops the response for an object that is about to be deleted: nothing more is written to it.
    pub(crate) fn forget(&self, key: &Key) {
        lock(&self.answers).remove(key);
    }
}

/// Drops a response that a change has made obsolete. The cache already contains the change.
fn forget_what_is_shown<K: Resource>(answers: &mut HashMap<Key, Box<K>>, change: &Change<K>) {
    let Change::Object { key, old, new } = change else {
        return;
    };
    let Some(answer) = answers.get(key) else { return };
    let is_over = match (new, old) {
        (Some(new), _) => has_shown(&**new, &**answer),
        (None, old) => old.as_ref().is_none_or(|old| old.uid() == answer.uid()),
    };
    if is_over {
        answers.remove(key);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        let hear = |change| forget_what_is_shown(&mut lock(&objects.answers), &change);
        objects.remember(&key(), at("7", "u"));
        assert_eq!(version(objects.newest(&key())), "7");
        // Responses may arrive in another order than the writes were made.
        objects.remember(&key(), at("6", "u"));
        assert_eq!(version(objects.newest(&key())), "7");
        hear(change(Some(at("5", "u")), Some(at("6", "u"))));
        assert_eq!(version(objects.newest(&key())), "7", "it is shown something older");
        hear(change(Some(at("6", "u")), Some(at("7", "u"))));
        assert!(lock(&objects.answers).is_empty());
        assert_eq!(version(objects.newest(&key())), "5");
    }

    #[test]
    fn assumed_objects_are_dropped_once_shown_gone_or_replaced() {
        // The watch was faster than the response, or the name belongs to another object or to none by now.
        for shown in [Some(at("7", "u")), Some(at("9", "new")), None] {
            let objects = AssumeCache::filled(shown);
            objects.remember(&key(), at("7", "u"));
            assert!(lock(&objects.answers).is_empty());
        }
        let objects = AssumeCache::filled([at("5", "u")]);
        for (old, new, left) in [
            (Some(at("3", "before")), None, 1),
            (Some(at("5", "u")), None, 0),
            (Some(at("5", "u")), Some(at("9", "new")), 0),
        ] {
            objects.remember(&key(), at("7", "u"));
            forget_what_is_shown(&mut lock(&objects.answers), &change(old, new));
            assert_eq!(lock(&objects.answers).len(), left);
        }
        objects.remember(&key(), at("7", "u"));
        objects.forget(&key());
        assert!(lock(&objects.answers).is_empty());
    }

    #[test]
    fn api_response_is_pruned_like_watched_objects() {
        let mut objects = AssumeCache::filled([at("5", "u")]);
        objects.prune = |object| object.data = None;
        let mut answer = at("7", "u");
        answer.data = Some([("a".to_owned(), "b".to_owned())].into());
        objects.remember(&key(), answer);
        assert_eq!(objects.newest(&key()), Some(at("7", "u")));
    }
}
