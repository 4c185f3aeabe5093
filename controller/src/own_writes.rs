//! What this process has written itself, which a watch shows a moment later.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use drydock_runtime::{Cache, Key, newer};
use kube::ResourceExt;

/// The newest states of objects that the API server has answered to this process's writes.
#[derive(Debug)]
pub(crate) struct OwnWrites<K>(Mutex<HashMap<Key, K>>);

impl<K> Default for OwnWrites<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: ResourceExt + Clone> OwnWrites<K> {
    /// The newest that is known of an object; `None` if the watch shows none.
    pub(crate) fn newest(&self, key: &Key, cache: &Cache<K>) -> Option<K> {
        let mut written = self.lock();
        let watched = cache.get(key).map(Arc::unwrap_or_clone);
        let version = watched.as_ref().and_then(ResourceExt::resource_version);
        let newest = newer(watched, written.get(key).cloned());
        // Once the watch has caught up, there is nothing to remember.
        if newest.as_ref().and_then(ResourceExt::resource_version) == version {
            written.remove(key);
        }
        newest
    }

    /// Remembers what the API server answered to a write.
    pub(crate) fn remember(&self, key: &Key, answer: K) {
        let mut written = self.lock();
        if let Some(newest) = newer(Some(answer), written.remove(key)) {
            written.insert(key.clone(), newest);
        }
    }

    /// The object is on its way out: there is nothing more to write.
    pub(crate) fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, K>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
