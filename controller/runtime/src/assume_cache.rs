//! A cache for a kind of which this process writes objects.
//!
//! The cache combines the state that a watch shows, which lags a moment behind, with the API server's responses to this
//! process's writes. kube-scheduler uses the same method: it assumes a write, and confirms it by the resourceVersion.
//!
//! ```text
//!  watch ──▶ prune ──▶ cache ─────────────▶ shown ──┬─▶ newest   also after a patch
//!    ├─ drops responses that it has shown ─┐        ├─▶ get      also after a creation
//!    └─ indexes                            │        └─▶ by       objects by an index
//!  response to a patch ────▶ remember ─────┤
//!  response to a creation ─▶ created ──────┤ (expires as if the object had been deleted)
//!  response to a deletion ─▶ deleted ──────┴──────────▶ is_deleted
//! ```

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

use crate::{
    Cache, CacheChange, Index, Key, Process, Watch, WatchStarter,
    clock::{self, Instant},
    has_shown, latest_state,
    resource_version::version,
};

/// Objects of one kind. Clones share the cache.
pub struct AssumeCache<K> {
    cache: Cache<K>,
    prune: SharedPrune<K>,
    indexes: Vec<Index<K>>,
    assumed: Arc<Mutex<Assumed<K>>>,
    on_change: SharedHandler<K>,
    process: Process,
}

/// Clears unused fields of an object.
type SharedPrune<K> = Arc<dyn Fn(&mut K) + Send + Sync>;

/// Handles changes of the watch, and the expiry of created objects that the watch has not shown in time.
type SharedHandler<K> = Arc<Mutex<dyn FnMut(&CacheChange<K>) + Send>>;

/// Default time for which a created object counts as existing although the watch has not shown it.
///
/// The time is longer than a watch lags behind. An object that was deleted before the watch could show it is never
/// shown: this happens if the watch lists anew in the meantime.
pub const ASSUMED_FOR: Duration = Duration::from_secs(10);

/// Responses to this process's writes that the watch has not shown yet.
#[derive(Debug)]
struct Assumed<K> {
    /// Newest states of patched objects.
    patched: HashMap<Key, Box<K>>,
    /// Created objects that still count as existing.
    created: HashMap<Key, Arc<K>>,
    /// UIDs of deleted objects.
    deleted: HashSet<String>,
}

impl<K> Default for Assumed<K> {
    fn default() -> Self {
        Self {
            patched: HashMap::new(),
            created: HashMap::new(),
            deleted: HashSet::new(),
        }
    }
}

impl<K> Clone for AssumeCache<K> {
    fn clone(&self) -> Self {
        Self {
            cache: self.cache.clone(),
            prune: Arc::clone(&self.prune),
            indexes: self.indexes.clone(),
            assumed: Arc::clone(&self.assumed),
            on_change: Arc::clone(&self.on_change),
            process: self.process.clone(),
        }
    }
}

impl<K: fmt::Debug> fmt::Debug for AssumeCache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AssumeCache")
            .field("cache", &self.cache)
            .field("assumed", &self.assumed)
            .finish_non_exhaustive()
    }
}

impl<K: Resource + Clone + 'static> AssumeCache<K> {
    /// Starts the watch.
    ///
    /// Before `on_change` is called with a change, the responses that the change has shown are dropped, and `indexes`
    /// are updated. `prune` clears unused fields, both of watched objects and of responses. If the watch does not show
    /// a created object in time, `on_change` is called as for its deletion.
    pub fn start(
        watches: &WatchStarter,
        watch: Watch<K>,
        prune: impl Fn(&mut K) + Send + Sync + 'static,
        indexes: &[Index<K>],
        on_change: impl FnMut(&CacheChange<K>) + Send + 'static,
    ) -> Self
    where
        K: DeserializeOwned + fmt::Debug + Send + Sync,
        K::DynamicType: Clone + fmt::Debug,
    {
        let (prune, assumed): (SharedPrune<K>, _) = (Arc::new(prune), Arc::<Mutex<Assumed<K>>>::default());
        let of_watch = Arc::clone(&prune);
        let on_change: SharedHandler<K> = Arc::new(Mutex::new(on_change));
        let (observed, followers, shown) = (Arc::clone(&assumed), indexes.to_vec(), Arc::clone(&on_change));
        let watch = watch.prune(move |object| of_watch(object)).on_change(move |change| {
            observed.lock().observe(change, &followers);
            (*shown.lock())(change);
        });
        Self {
            cache: watches.start(watch),
            prune,
            indexes: indexes.to_vec(),
            assumed,
            on_change,
            process: watches.process().clone(),
        }
    }

    /// Creates a cache with the given objects, for tests of its readers.
    #[cfg(any(test, feature = "fake"))]
    pub fn filled(objects: impl IntoIterator<Item = K>) -> Self {
        Self::of_cache(Cache::filled(objects), &[])
    }

    /// Creates a cache with the content of another one, for tests of its readers.
    #[cfg(any(test, feature = "fake"))]
    pub fn of_cache(cache: Cache<K>, indexes: &[Index<K>]) -> Self {
        for index in indexes {
            index.fill(&cache);
        }
        Self {
            cache,
            prune: Arc::new(|_: &mut K| {}),
            indexes: indexes.to_vec(),
            assumed: Arc::default(),
            on_change: Arc::new(Mutex::new(|_: &CacheChange<K>| {})),
            process: Process::new(),
        }
    }

    /// Replaces the objects that the watch shows, for tests of its readers.
    #[cfg(any(test, feature = "fake"))]
    pub fn show(&self, objects: impl IntoIterator<Item = K>) {
        self.cache.show(objects, |change| self.observe(change));
    }

    /// Handles a change like one from the watch, for tests of its readers. The cache itself does not change.
    pub fn observe(&self, change: &CacheChange<K>) {
        self.assumed.lock().observe(change, &self.indexes);
    }

    /// Returns the cache of the watch.
    pub fn shown(&self) -> &Cache<K> {
        &self.cache
    }

    /// Returns the newest known state of an object, including this process's own patches; `None` if the watch shows no
    /// such object.
    pub fn newest(&self, key: &Key) -> Option<K> {
        let watched = self.cache.get(key).map(Arc::unwrap_or_clone);
        let response = self
            .assumed
            .lock()
            .patched
            .get(key)
            .map(|response| (**response).clone());
        latest_state(watched, response)
    }

    /// Returns an object as the watch shows it, or else as this process has created it.
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.cache.get(key).or_else(|| self.assumed(key))
    }

    /// Returns the objects that an index has under this value.
    ///
    /// The objects that the watch shows come first, then the created objects that it has not shown yet.
    pub fn by(&self, index: &Index<K>, value: &str) -> Vec<Arc<K>> {
        let (mut objects, mut assumed) = (Vec::new(), Vec::new());
        for key in index.keys(value) {
            match self.cache.get(&key) {
                Some(shown) => objects.push(shown),
                None => assumed.extend(self.assumed(&key)),
            }
        }
        objects.append(&mut assumed);
        // In the meantime, the name may belong to another object, with another value.
        objects.retain(|object| index.is_found(value, object));
        objects
    }

    /// Records the response to a patch.
    ///
    /// The response is ignored if the watch has shown it already, or no longer shows the patched object.
    pub fn remember(&self, key: &Key, mut response: K) {
        (self.prune)(&mut response);
        let mut assumed = self.assumed.lock();
        // Read with the lock held: any later change of the cache is observed after this.
        if self
            .cache
            .get(key)
            .is_none_or(|watched| has_shown(&*watched, &response))
        {
            return;
        }
        let patched = &mut assumed.patched;
        if patched.get(key).is_none_or(|before| !has_shown(&**before, &response)) {
            patched.insert(key.clone(), Box::new(response));
        }
    }

    /// Records the response to a creation, and returns the object as the cache has it.
    ///
    /// The created object counts as existing for at most `counts_for`. The response is ignored if the watch has shown
    /// the object already.
    pub fn created(&self, mut response: K, counts_for: Duration) -> Arc<K>
    where
        K: Send + Sync,
    {
        (self.prune)(&mut response);
        let key = Key::of(&response);
        let mut assumed = self.assumed.lock();
        // Read with the lock held: any later change of the cache is observed after this.
        if let Some(shown) = self.cache.get(&key).filter(|shown| shown.uid() == response.uid()) {
            return shown;
        }
        for index in &self.indexes {
            index.add(&key, &response);
        }
        let (object, until) = (Arc::new(response), Instant::now() + counts_for);
        assumed.created.insert(key.clone(), Arc::clone(&object));
        let (cache, created) = (self.clone(), Arc::clone(&object));
        self.process.spawn_to_the_end("expiry of a created object", async move {
            clock::sleep_until_instant(Some(until)).await;
            cache.expire(key, created);
        });
        object
    }

    /// Records that this process has deleted the object with this UID, unless the watch has shown the deletion already.
    pub fn deleted(&self, key: &Key, uid: &str) {
        let mut assumed = self.assumed.lock();
        // Read with the lock held: any later change of the cache is observed after this.
        let shown = self.cache.get(key);
        let is_news = shown
            .is_some_and(|shown| shown.meta().uid.as_deref() == Some(uid) && shown.meta().deletion_timestamp.is_none());
        if is_news || assumed.created.contains_key(key) {
            assumed.deleted.insert(uid.into());
        }
    }

    /// Returns whether this process has deleted the object with this UID and the watch does not show the deletion yet.
    pub fn is_deleted(&self, uid: &str) -> bool {
        self.assumed.lock().deleted.contains(uid)
    }

    /// Drops the response to a patch of an object that is about to be deleted: this process no longer writes the
    /// object.
    pub fn forget(&self, key: &Key) {
        self.assumed.lock().patched.remove(key);
    }

    /// Returns an object that this process has created and the watch has not shown yet.
    fn assumed(&self, key: &Key) -> Option<Arc<K>> {
        self.assumed.lock().created.get(key).cloned()
    }

    /// Handles a created object that the watch has not shown in time as if it had been deleted.
    fn expire(&self, key: Key, created: Arc<K>) {
        let mut assumed = self.assumed.lock();
        let is_assumed = |object: &Arc<K>| Arc::ptr_eq(object, &created);
        if !assumed.created.get(&key).is_some_and(is_assumed) {
            return;
        }
        assumed.created.remove(&key);
        assumed
            .deleted
            .remove(created.meta().uid.as_deref().unwrap_or_default());
        // The watch may show an earlier object with this name.
        let shown = self.cache.get(&key);
        for index in &self.indexes {
            index.remove(&key, &created);
            if let Some(shown) = &shown {
                index.add(&key, shown);
            }
        }
        drop(assumed);
        let (old, new) = (Some(created), shown);
        (*self.on_change.lock())(&CacheChange::Object { key, old, new });
    }
}

impl<K: Resource> Assumed<K> {
    /// Drops the responses that a change has shown, and updates the indexes. The cache already contains the change.
    fn observe(&mut self, change: &CacheChange<K>, indexes: &[Index<K>]) {
        let CacheChange::Object { key, old, new } = change else {
            return;
        };
        self.confirm_patch(key, old.as_deref(), new.as_deref());
        self.confirm_deletion(old.as_deref(), new.as_deref());
        let both = || old.iter().chain(new);
        let created = self.created.get(key).cloned();
        if let Some(created) = &created
            && both().any(|object| object.meta().uid == created.meta().uid || version(&**object) > version(&**created))
        {
            self.created.remove(key);
            for index in indexes {
                index.remove(key, created);
            }
        }
        for index in indexes {
            index.observe(change);
            // A change of an earlier object with this name removes the key from the index entries that both objects
            // share.
            if let Some(created) = self.created.get(key) {
                index.add(key, created);
            }
        }
    }

    fn confirm_patch(&mut self, key: &Key, old: Option<&K>, new: Option<&K>) {
        let Some(response) = self.patched.get(key) else { return };
        let is_over = match (new, old) {
            (Some(new), _) => has_shown(new, &**response),
            (None, old) => old.is_none_or(|old| old.meta().uid == response.meta().uid),
        };
        if is_over {
            self.patched.remove(key);
        }
    }

    fn confirm_deletion(&mut self, old: Option<&K>, new: Option<&K>) {
        for object in old.into_iter().chain(new) {
            let uid = object.meta().uid.as_deref().unwrap_or_default();
            let stays = new
                .is_some_and(|new| new.meta().uid.as_deref() == Some(uid) && new.meta().deletion_timestamp.is_none());
            if !stays {
                self.deleted.remove(uid);
            }
        }
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

    fn change(old: Option<ConfigMap>, new: Option<ConfigMap>) -> CacheChange<ConfigMap> {
        CacheChange::Object {
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
    fn write_counts_until_the_watch_catches_up() {
        let objects = AssumeCache::filled([at("5", "u")]);
        let apply = |change| objects.observe(&change);
        objects.remember(&key(), at("7", "u"));
        assert_eq!(version(objects.newest(&key())), "7");
        // The responses may arrive in another order than the API server executed the writes.
        objects.remember(&key(), at("6", "u"));
        assert_eq!(version(objects.newest(&key())), "7");
        apply(change(Some(at("5", "u")), Some(at("6", "u"))));
        assert_eq!(version(objects.newest(&key())), "7", "it is shown something older");
        apply(change(Some(at("6", "u")), Some(at("7", "u"))));
        assert!(objects.assumed.lock().patched.is_empty());
        assert_eq!(version(objects.newest(&key())), "5");
    }

    #[test]
    fn assumed_objects_are_dropped_once_shown_gone_or_replaced() {
        // The watch has shown the patched state before the response arrived, or the name belongs to another object, or
        // to none.
        for shown in [Some(at("7", "u")), Some(at("9", "new")), None] {
            let objects = AssumeCache::filled(shown);
            objects.remember(&key(), at("7", "u"));
            assert!(objects.assumed.lock().patched.is_empty());
        }
        let objects = AssumeCache::filled([at("5", "u")]);
        for (old, new, left) in [
            (Some(at("3", "before")), None, 1),
            (Some(at("5", "u")), None, 0),
            (Some(at("5", "u")), Some(at("9", "new")), 0),
        ] {
            objects.remember(&key(), at("7", "u"));
            objects.observe(&change(old, new));
            assert_eq!(objects.assumed.lock().patched.len(), left);
        }
        objects.remember(&key(), at("7", "u"));
        objects.forget(&key());
        assert!(objects.assumed.lock().patched.is_empty());
    }

    #[test]
    fn api_response_is_pruned_like_watched_objects() {
        let mut objects = AssumeCache::filled([at("5", "u")]);
        objects.prune = Arc::new(|object: &mut ConfigMap| object.data = None);
        let mut response = at("7", "u");
        response.data = Some([("a".to_owned(), "b".to_owned())].into());
        objects.remember(&key(), response);
        assert_eq!(objects.newest(&key()), Some(at("7", "u")));
    }

    /// Waits until objects that were created before no longer count as existing.
    async fn expired() {
        tokio::time::sleep(ASSUMED_FOR + Duration::from_millis(1)).await;
    }

    /// Returns an object with this value in its data.
    fn with_value(name: &str, uid: &str, value: &str) -> ConfigMap {
        let mut object = at("5", uid);
        object.metadata.name = Some(name.into());
        object.data = Some([("value".to_owned(), value.to_owned())].into());
        object
    }

    fn names(objects: &[Arc<ConfigMap>]) -> Vec<String> {
        objects.iter().map(|object| object.name_any()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn created_object_is_found_until_shown_or_expired() {
        let by_value = Index::by(|object: &ConfigMap| object.data.as_ref()?.get("value").cloned());
        let cache = Cache::filled([with_value("b", "1", "x")]);
        let objects = AssumeCache::of_cache(cache, std::slice::from_ref(&by_value));
        for name in ["a", "c", "d"] {
            objects.created(with_value(name, name, "x"), ASSUMED_FOR);
        }
        // The object that the watch shows comes first.
        assert_eq!(names(&objects.by(&by_value, "x")), ["b", "a", "c", "d"]);
        let change_of = |name: &str, old: Option<ConfigMap>, new: Option<ConfigMap>| CacheChange::Object {
            key: Key::cluster(name),
            old: old.map(Arc::new),
            new: new.map(Arc::new),
        };
        // The watch shows the creation and the deletion of "a", and the deletion of an earlier object with the name
        // "c".
        objects.observe(&change_of("a", None, Some(with_value("a", "a", "x"))));
        objects.observe(&change_of("a", Some(with_value("a", "a", "x")), None));
        objects.observe(&change_of("c", Some(with_value("c", "before", "x")), None));
        assert_eq!(names(&objects.by(&by_value, "x")), ["b", "c", "d"]);
        assert!(objects.get(&Key::cluster("a")).is_none() && objects.get(&Key::cluster("c")).is_some());
        // The watch shows a later object with the name "d": it has skipped the deletion of the created object.
        let mut later = with_value("d", "later", "y");
        later.metadata.resource_version = Some("9".into());
        objects.observe(&change_of("d", None, Some(later)));
        assert_eq!(by_value.keys("x"), ["b", "c"].map(Key::cluster));
        expired().await;
        assert_eq!(names(&objects.by(&by_value, "x")), ["b"]);
        assert_eq!(by_value.keys("x"), [Key::cluster("b")]);
        // The watch has shown the object before the response arrived.
        objects.created(with_value("b", "1", "x"), ASSUMED_FOR);
        assert!(objects.assumed.lock().created.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn deletion_counts_until_shown_by_the_watch() {
        let objects = AssumeCache::filled([at("5", "u")]);
        objects.deleted(&key(), "u");
        objects.observe(&change(Some(at("5", "u")), Some(at("6", "u"))));
        assert!(objects.is_deleted("u"), "other changes have no effect");
        let mut leaving = at("7", "u");
        leaving.metadata.deletion_timestamp = serde_json::from_str("\"2026-01-01T00:00:00Z\"").unwrap();
        for shown in [
            change(Some(at("5", "u")), Some(leaving)),
            change(Some(at("5", "u")), None),
            change(Some(at("5", "u")), Some(at("9", "new"))),
        ] {
            objects.deleted(&key(), "u");
            objects.observe(&shown);
            assert!(!objects.is_deleted("u"), "{shown:?}");
        }
        // The deletion of an object that the watch does not show is not recorded.
        objects.deleted(&Key::cluster("x"), "x");
        objects.deleted(&key(), "another");
        assert!(!objects.is_deleted("x") && !objects.is_deleted("another"));
        // The deletion of a created object that the watch never shows is recorded only until the object expires.
        objects.created(with_value("b", "b", "x"), ASSUMED_FOR);
        objects.deleted(&Key::cluster("b"), "b");
        assert!(objects.is_deleted("b"));
        expired().await;
        assert!(objects.get(&Key::cluster("b")).is_none() && !objects.is_deleted("b"));
    }

    #[tokio::test(start_paused = true)]
    async fn created_object_never_shown_expires_like_a_deleted_one() {
        let mut objects = AssumeCache::filled([at("5", "before")]);
        let (changes, mut received) = tokio::sync::mpsc::unbounded_channel();
        objects.on_change = Arc::new(Mutex::new(move |change: &CacheChange<ConfigMap>| {
            let CacheChange::Object { key, old, new } = change else {
                panic!("{change:?}");
            };
            let uid = |object: &Option<Arc<ConfigMap>>| object.as_ref().and_then(|object| object.uid());
            changes.send((key.to_string(), uid(old), uid(new))).unwrap();
        }));
        for name in ["a", "b", "c"] {
            objects.created(with_value(name, name, "x"), ASSUMED_FOR);
        }
        objects.observe(&CacheChange::Object {
            key: Key::cluster("b"),
            old: None,
            new: Some(Arc::new(with_value("b", "b", "x"))),
        });
        expired().await;
        let mut expected = vec![("a", "a", Some("before")), ("c", "c", None)];
        while let Ok((key, old, new)) = received.try_recv() {
            let found = expected
                .iter()
                .position(|row| *row == (key.as_str(), old.as_deref().unwrap_or_default(), new.as_deref()));
            expected.remove(found.unwrap_or_else(|| panic!("{key}: {old:?} {new:?}")));
        }
        assert!(expected.is_empty(), "{expected:?}");
    }
}
