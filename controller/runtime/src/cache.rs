//! The local cache of a watch.

mod stored_object;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use parking_lot::RwLock;
#[cfg(any(test, feature = "fake"))]
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::{Notify, watch};

pub(crate) use stored_object::{StorageFormat, StoredObject};

/// Identifies an object of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The namespace; `None` for cluster-scoped kinds.
    pub namespace: Option<Box<str>>,
    /// The object's name.
    pub name: Box<str>,
}

impl Key {
    /// Creates the key of a cluster-scoped object.
    pub fn cluster(name: &str) -> Self {
        Self {
            namespace: None,
            name: name.into(),
        }
    }

    /// Creates the key of a namespaced object.
    pub fn namespaced(namespace: &str, name: &str) -> Self {
        Self {
            namespace: Some(namespace.into()),
            name: name.into(),
        }
    }

    /// Returns the key of the object of this name in the same namespace.
    pub fn beside(&self, name: &str) -> Self {
        Self {
            namespace: self.namespace.clone(),
            name: name.into(),
        }
    }

    /// Returns the key of an object from the API server.
    pub fn of(object: &impl Resource) -> Self {
        Self::of_meta(object.meta())
    }

    pub(crate) fn of_meta(meta: &ObjectMeta) -> Self {
        Self {
            namespace: meta.namespace.as_deref().map(Into::into),
            name: meta.name.as_deref().unwrap_or_default().into(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// The reason why a watch currently receives nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchProblem {
    /// The API server does not serve the kind: its CRD is not installed, or no longer.
    KindMissing,
    /// This process is not allowed to watch the kind.
    Forbidden,
    /// Any other error, as text.
    Failing(String),
}

impl fmt::Display for WatchProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KindMissing => f.write_str("the API server does not serve this kind"),
            Self::Forbidden => f.write_str("this process may not watch this kind"),
            Self::Failing(why) => f.write_str(why),
        }
    }
}

/// The reliability of the content of the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncState {
    /// Whether at least one complete list was received.
    pub synced: bool,
    /// The problem that prevents watch events from arriving; `None` if the watch works. With a problem, the cache may
    /// be stale.
    pub problem: Option<WatchProblem>,
}

impl SyncState {
    /// Returns whether the cache is synced and its watch works.
    pub fn is_clear(&self) -> bool {
        self.synced && self.problem.is_none()
    }

    /// Returns whether the API server has responded: with a complete list, or that it does not serve the kind.
    pub fn has_response(&self) -> bool {
        self.synced || self.problem == Some(WatchProblem::KindMissing)
    }
}

/// A change that a watch delivers.
#[derive(Debug)]
pub enum CacheChange<K> {
    /// An object was added, modified or removed. Between two lists every change is delivered; after a list, the
    /// differences between its result and the cache.
    Object {
        /// The object's key.
        key: Key,
        /// The previous state in the cache, if any.
        old: Option<Arc<K>>,
        /// The new state; `None` if the object was deleted or no longer matches the selector.
        new: Option<Arc<K>>,
    },
    /// An object exists but cannot be decoded. Its previous state stays in the cache.
    Unreadable {
        /// The object's key.
        key: Key,
    },
    /// The reliability of the cache has changed.
    SyncState(SyncState),
}

/// Wakes one loop on a change. A notification that no task waits for is stored; several are stored as one.
#[derive(Clone, Debug, Default)]
pub struct Trigger(Arc<Notify>);

impl Trigger {
    /// Creates a trigger without a pending notification.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes the waiting task, or the next one to wait.
    pub fn notify(&self) {
        self.0.notify_one();
    }

    /// Waits for a notification since the last return of this function. Cancel-safe.
    ///
    /// # Assumptions
    /// Only one task waits; of two tasks, only one would be woken.
    pub async fn notified(&self) {
        self.0.notified().await;
    }
}

/// The objects of one kind that match a watch, as last received. Clones share one cache.
///
/// # Guarantees
/// - The cache is empty before the first complete list; each later list replaces its content atomically.
/// - [`unreadable`](Self::unreadable) lists objects that cannot be decoded. Their last readable state stays in the
///   cache, since they have not been deleted.
///
/// # Caveats
/// **Absence proves nothing.** The list may come from an API server cache that lags behind, the watch may be broken,
/// and with a field or label selector an object also disappears when it merely stops matching. Before a destructive
/// action on the grounds that an object does not exist, query the API server.
pub struct Cache<K>(Arc<CacheState<K>>);

struct CacheState<K> {
    held: RwLock<CachedObjects<K>>,
    sync_state: watch::Sender<SyncState>,
    format: StorageFormat<K>,
}

struct CachedObjects<K> {
    objects: HashMap<Key, StoredObject<K>>,
    unreadable: BTreeMap<Key, String>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self::keeping(StorageFormat::Whole)
    }
}

impl<K> fmt::Debug for Cache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("objects", &self.len())
            .field("sight", &self.sync_state())
            .finish_non_exhaustive()
    }
}

impl<K> Cache<K> {
    /// Creates an empty cache that stores objects as `format` specifies.
    pub(crate) fn keeping(format: StorageFormat<K>) -> Self {
        let held = CachedObjects {
            objects: HashMap::new(),
            unreadable: BTreeMap::new(),
        };
        Self(Arc::new(CacheState {
            held: RwLock::new(held),
            sync_state: watch::Sender::default(),
            format,
        }))
    }

    /// Returns the object with this key.
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.kept(key)?.open()
    }

    /// Returns the object with this key in its stored form.
    pub(crate) fn kept(&self, key: &Key) -> Option<StoredObject<K>> {
        self.0.held.read().objects.get(key).cloned()
    }

    /// Converts an object to the stored form of this cache.
    pub(crate) fn stored_form(&self, object: Arc<K>) -> StoredObject<K> {
        self.0.format.keep(object)
    }

    /// Returns all objects, in arbitrary order.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.0
            .held
            .read()
            .objects
            .values()
            .filter_map(StoredObject::open)
            .collect()
    }

    /// Returns the keys of all objects, in arbitrary order.
    pub fn keys(&self) -> Vec<Key> {
        self.0.held.read().objects.keys().cloned().collect()
    }

    /// Calls `visit` with each object, in arbitrary order. Blocks updates of the cache: `visit` has to be fast.
    pub fn for_each(&self, mut visit: impl FnMut(&Key, &Arc<K>)) {
        for (key, object) in &self.0.held.read().objects {
            if let Some(object) = object.open() {
                visit(key, &object);
            }
        }
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.0.held.read().objects.len()
    }

    /// Returns whether the cache contains no object.
    pub fn is_empty(&self) -> bool {
        self.0.held.read().objects.is_empty()
    }

    /// Returns the objects that exist but cannot be decoded, each with the reason.
    pub fn unreadable(&self) -> BTreeMap<Key, String> {
        self.0.held.read().unreadable.clone()
    }

    /// Returns how reliable the content of the cache is.
    pub fn sync_state(&self) -> SyncState {
        self.0.sync_state.borrow().clone()
    }

    /// Waits until the cache is synced: the first list has arrived, or the API server does not serve this kind.
    pub async fn wait_until_synced(&self) -> SyncState {
        let mut state = self.0.sync_state.subscribe();
        // Waiting cannot fail: the sender exists as long as the cache.
        state
            .wait_for(SyncState::has_response)
            .await
            .map(|state| state.clone())
            .unwrap_or_default()
    }

    /// Creates a synced cache that contains `objects`; for tests of its readers.
    #[cfg(any(test, feature = "fake"))]
    pub fn filled(objects: impl IntoIterator<Item = K>) -> Self
    where
        K: Resource,
    {
        Self::default().fill(objects)
    }

    /// Creates the same cache as [`filled`](Self::filled) with compressed objects, as that of a
    /// [compressed](crate::Watch::compressed) watch stores them.
    #[cfg(any(test, feature = "fake"))]
    pub fn filled_compressed(objects: impl IntoIterator<Item = K>) -> Self
    where
        K: Resource + Serialize + DeserializeOwned,
    {
        Self::keeping(StorageFormat::compressed()).fill(objects)
    }

    /// Replaces the content like a list of the watch, and calls `on_change` with each change; for tests of its readers.
    #[cfg(any(test, feature = "fake"))]
    pub fn show(&self, objects: impl IntoIterator<Item = K>, mut on_change: impl FnMut(&CacheChange<K>))
    where
        K: Resource,
    {
        let mut gone = self.keys();
        for object in objects {
            let (key, new) = (Key::of(&object), Arc::new(object));
            gone.retain(|other| *other != key);
            let old = self.insert(key.clone(), Arc::clone(&new));
            on_change(&CacheChange::Object {
                key,
                old,
                new: Some(new),
            });
        }
        for key in gone {
            let old = self.remove(&key);
            on_change(&CacheChange::Object { key, old, new: None });
        }
    }

    #[cfg(any(test, feature = "fake"))]
    fn fill(self, objects: impl IntoIterator<Item = K>) -> Self
    where
        K: Resource,
    {
        let cache = self;
        for object in objects {
            cache.insert(Key::of(&object), Arc::new(object));
        }
        cache.set_sync_state(SyncState {
            synced: true,
            problem: None,
        });
        cache
    }

    pub(crate) fn insert(&self, key: Key, object: Arc<K>) -> Option<Arc<K>> {
        let kept = self.stored_form(object);
        let old = {
            let mut held = self.0.held.write();
            held.unreadable.remove(&key);
            held.objects.insert(key, kept)
        };
        old?.open()
    }

    pub(crate) fn remove(&self, key: &Key) -> Option<Arc<K>> {
        let old = {
            let mut held = self.0.held.write();
            held.unreadable.remove(key);
            held.objects.remove(key)
        };
        old?.open()
    }

    /// Records that an object cannot be decoded. Returns whether the object or the reason is new.
    pub(crate) fn cannot_read(&self, key: Key, reason: &str) -> bool {
        let before = self.0.held.write().unreadable.insert(key, reason.to_owned());
        before.is_none_or(|before| before != reason)
    }

    /// Replaces the content.
    pub(crate) fn replace(&self, objects: HashMap<Key, StoredObject<K>>, unreadable: BTreeMap<Key, String>) {
        *self.0.held.write() = CachedObjects { objects, unreadable };
    }

    /// Records the reliability of the cache. Returns whether it has changed.
    pub(crate) fn set_sync_state(&self, state: SyncState) -> bool {
        self.0.sync_state.send_if_modified(|current| {
            let changed = *current != state;
            *current = state;
            changed
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Cache, Key, SyncState, Trigger, WatchProblem};
    use k8s_openapi::api::core::v1::ConfigMap;
    use std::time::Duration;

    #[test]
    fn key_is_shown_as_namespace_and_name() {
        assert_eq!(Key::namespaced("drydock", "config").to_string(), "drydock/config");
        assert_eq!(Key::cluster("n1").to_string(), "n1");
    }

    #[test]
    fn missing_kind_is_synced_and_failure_is_not() {
        let state = |synced, problem| SyncState { synced, problem };
        assert!(state(false, Some(WatchProblem::KindMissing)).has_response());
        assert!(!state(false, Some(WatchProblem::Forbidden)).has_response());
        assert!(state(true, Some(WatchProblem::Forbidden)).has_response());
        assert!(!state(true, Some(WatchProblem::Forbidden)).is_clear());
        assert!(state(true, None).is_clear());
    }

    #[test]
    fn unreadable_object_keeps_the_last_readable_state() {
        let mut object = ConfigMap::default();
        object.metadata.name = Some("a".to_owned());
        let cache = Cache::filled([object]);
        let key = Key::cluster("a");
        assert!(cache.cannot_read(key.clone(), "spec: wrong"));
        assert!(!cache.cannot_read(key.clone(), "spec: wrong"), "the same news is none");
        assert!(cache.get(&key).is_some());
        assert_eq!(cache.unreadable()[&key], "spec: wrong");
        cache.remove(&key);
        assert!(cache.unreadable().is_empty() && cache.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_signal_is_remembered_once() {
        let signal = Trigger::new();
        signal.notify();
        signal.notify();
        signal.notified().await;
        assert!(
            tokio::time::timeout(Duration::from_secs(9), signal.notified())
                .await
                .is_err()
        );
    }
}
