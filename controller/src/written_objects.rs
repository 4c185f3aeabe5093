//! What this process has written itself, which a watch shows a moment later.
//!
//! ```text
//!  remember ──▶ written ──▶ newest
//!  watch ─ hear ─▶ forgets what it has shown
//! ```

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use drydock_runtime::{Cache, Change, Key, has_shown, newer};
use kube::ResourceExt;

/// The newest states of objects that the API server has answered to this process's writes. Clones share them.
#[derive(Debug)]
pub(crate) struct OwnWrites<K>(Arc<Mutex<HashMap<Key, Box<K>>>>);

impl<K> Default for OwnWrites<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K> Clone for OwnWrites<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: ResourceExt + Clone> OwnWrites<K> {
    /// The newest that is known of an object; `None` if the watch shows none.
    pub(crate) fn newest(&self, key: &Key, cache: &Cache<K>) -> Option<K> {
        let watched = cache.get(key).map(Arc::unwrap_or_clone);
        let written = self.lock().get(key).map(|written| (**written).clone());
        newer(watched, written)
    }

    /// Remembers what the API server answered to a write, unless the watch has shown it already, or shows no more what
    /// was written to.
    pub(crate) fn remember(&self, key: &Key, answer: K, cache: &Cache<K>) {
        let mut written = self.lock();
        // Asked with the lock held: what the cache gets after this is heard after this.
        if cache.get(key).is_none_or(|watched| has_shown(&*watched, &answer)) {
            return;
        }
        if written.get(key).is_none_or(|before| !has_shown(&**before, &answer)) {
            written.insert(key.clone(), Box::new(answer));
        }
    }

    /// The watch has shown a change: it is called with each, once the cache has it.
    pub(crate) fn hear(&self, change: &Change<K>) {
        let Change::Object { key, old, new } = change else {
            return;
        };
        let mut written = self.lock();
        let Some(before) = written.get(key) else { return };
        let is_over = match (new, old) {
            (Some(new), _) => has_shown(&**new, &**before),
            (None, old) => old.as_ref().is_none_or(|old| old.uid() == before.uid()),
        };
        if is_over {
            written.remove(key);
        }
    }

    /// The object is on its way out: there is nothing more to write.
    pub(crate) fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Box<K>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        let written = OwnWrites::default();
        let cache = Cache::filled([at("5", "u")]);
        written.remember(&key(), at("7", "u"), &cache);
        assert_eq!(version(written.newest(&key(), &cache)), "7");
        // Answers may come in another order than the writes were done in.
        written.remember(&key(), at("6", "u"), &cache);
        assert_eq!(version(written.newest(&key(), &cache)), "7");
        written.hear(&change(Some(at("5", "u")), Some(at("6", "u"))));
        assert_eq!(
            version(written.newest(&key(), &cache)),
            "7",
            "it is shown something older"
        );
        written.hear(&change(Some(at("6", "u")), Some(at("7", "u"))));
        assert!(written.lock().is_empty());
        assert_eq!(version(written.newest(&key(), &cache)), "5");
    }

    #[test]
    fn nothing_is_kept_of_what_has_been_shown_has_gone_or_is_another() {
        let written = OwnWrites::default();
        // The watch was faster than the answer.
        written.remember(&key(), at("7", "u"), &Cache::filled([at("7", "u")]));
        written.remember(&key(), at("7", "u"), &Cache::filled([at("9", "new")]));
        assert!(written.lock().is_empty());
        written.remember(&key(), at("7", "u"), &Cache::filled([]));
        assert!(written.lock().is_empty());
        let cache = Cache::filled([at("5", "u")]);
        for (old, new, left) in [
            (Some(at("3", "before")), None, 1),
            (Some(at("5", "u")), None, 0),
            (Some(at("5", "u")), Some(at("9", "new")), 0),
        ] {
            written.remember(&key(), at("7", "u"), &cache);
            written.hear(&change(old, new));
            assert_eq!(written.lock().len(), left);
        }
        written.remember(&key(), at("7", "u"), &cache);
        written.forget(&key());
        assert!(written.lock().is_empty());
    }
}
