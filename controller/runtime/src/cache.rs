//! What a watch knows of one kind.

mod kept;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};
use tokio::sync::{Notify, watch};

pub(crate) use kept::{Kept, Packing};

/// Names one object of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Where it is, unless the kind is of the whole cluster.
    pub namespace: Option<Box<str>>,
    /// What it is called.
    pub name: Box<str>,
}

impl Key {
    /// An object of a kind that is of the whole cluster.
    pub fn cluster(name: &str) -> Self {
        Self {
            namespace: None,
            name: name.into(),
        }
    }

    /// An object in a namespace.
    pub fn namespaced(namespace: &str, name: &str) -> Self {
        Self {
            namespace: Some(namespace.into()),
            name: name.into(),
        }
    }

    /// The key of an object that the API server sent.
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

/// Why a watch does not get anything at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The API server does not serve the kind: its definition is not installed (any more).
    KindMissing,
    /// This process may not watch it.
    Forbidden,
    /// Anything else, in words.
    Failing(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KindMissing => f.write_str("the API server does not serve this kind"),
            Self::Forbidden => f.write_str("this process may not watch it"),
            Self::Failing(why) => f.write_str(why),
        }
    }
}

/// How far what the cache holds can be relied on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncState {
    /// Whether the objects were listed completely, at least once.
    pub synced: bool,
    /// What keeps news from coming in, if anything does. What the cache holds may be old then.
    pub problem: Option<Problem>,
}

impl SyncState {
    /// Whether everything was listed and changes come in.
    pub fn is_clear(&self) -> bool {
        self.synced && self.problem.is_none()
    }

    /// Whether the API server has said what there is: objects, or that there is no such kind.
    pub fn is_answered(&self) -> bool {
        self.synced || self.problem == Some(Problem::KindMissing)
    }
}

/// One thing that a watch found changed.
#[derive(Debug)]
pub enum Change<K> {
    /// An object was added, changed or removed. Between two lists changes are told one by one; at a list, those that it
    /// showed by comparison.
    Object {
        /// Which.
        key: Key,
        /// As it was known before, if it was.
        old: Option<Arc<K>>,
        /// As it is now; none if it is gone or no longer matches what is watched.
        new: Option<Arc<K>>,
    },
    /// An object is there, but cannot be read. What was known of it before stays in the cache.
    Unreadable {
        /// Which.
        key: Key,
    },
    /// What the cache holds can be relied on more, or less, than before.
    SyncState(SyncState),
}

/// Wakes one loop when something changed. What happens while nobody waits is remembered, once.
#[derive(Clone, Debug, Default)]
pub struct Trigger(Arc<Notify>);

impl Trigger {
    /// Nothing has happened yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Something happened.
    pub fn notify(&self) {
        self.0.notify_one();
    }

    /// Waits until something has happened since the last time that this returned. Safe to drop and call again.
    ///
    /// # Assumptions
    /// One task waits; of two, only one would be woken.
    pub async fn notified(&self) {
        self.0.notified().await;
    }
}

/// The objects of one kind that match a watch, as last heard. Clones are the same cache.
///
/// # Guarantees
/// - Before the first complete list it is empty; each later list replaces everything at once.
/// - An object that cannot be read is named in [`unreadable`](Self::unreadable); its last readable state stays, since
///   nothing says that it is gone.
///
/// # Caveats
/// **Absence is no proof.** The list may come from a cache of the API server that lags behind, a watch may be broken,
/// and under a field or label selector an object also leaves when it merely no longer matches. Who destroys something
/// because an object is not here asks the API server first.
pub struct Cache<K>(Arc<Shared<K>>);

struct Shared<K> {
    held: RwLock<Held<K>>,
    sight: watch::Sender<SyncState>,
    packing: Packing<K>,
}

struct Held<K> {
    objects: HashMap<Key, Kept<K>>,
    unreadable: BTreeMap<Key, String>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self::keeping(Packing::Whole)
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
    /// An empty one that keeps objects in this way.
    pub(crate) fn keeping(packing: Packing<K>) -> Self {
        let held = Held {
            objects: HashMap::new(),
            unreadable: BTreeMap::new(),
        };
        Self(Arc::new(Shared {
            held: RwLock::new(held),
            sight: watch::Sender::default(),
            packing,
        }))
    }

    /// One object.
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.kept(key)?.open()
    }

    /// One object as it is kept.
    pub(crate) fn kept(&self, key: &Key) -> Option<Kept<K>> {
        self.read().objects.get(key).cloned()
    }

    /// An object as this would keep it.
    pub(crate) fn pack(&self, object: Arc<K>) -> Kept<K> {
        self.0.packing.keep(object)
    }

    /// All objects, in no order.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.read().objects.values().filter_map(Kept::open).collect()
    }

    /// The keys of all objects, in no order.
    pub fn keys(&self) -> Vec<Key> {
        self.read().objects.keys().cloned().collect()
    }

    /// Calls `visit` with each object, in no order. Changes wait meanwhile: keep it short.
    pub fn for_each(&self, mut visit: impl FnMut(&Key, &Arc<K>)) {
        for (key, object) in &self.read().objects {
            if let Some(object) = object.open() {
                visit(key, &object);
            }
        }
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    /// Whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.read().objects.is_empty()
    }

    /// The objects that are there but cannot be read, each with the reason.
    pub fn unreadable(&self) -> BTreeMap<Key, String> {
        self.read().unreadable.clone()
    }

    /// How far this can be relied on.
    pub fn sync_state(&self) -> SyncState {
        self.0.sight.borrow().clone()
    }

    /// Waits until the cache is synced: its first list is there, or the API server does not have this kind.
    pub async fn wait_until_synced(&self) -> SyncState {
        let mut sight = self.0.sight.subscribe();
        // An error would mean that the sender is gone, but it is ours.
        sight
            .wait_for(SyncState::is_answered)
            .await
            .map(|sight| sight.clone())
            .unwrap_or_default()
    }

    /// A cache that holds `objects` and is synced: for tests of what reads one.
    pub fn filled(objects: impl IntoIterator<Item = K>) -> Self
    where
        K: Resource,
    {
        let cache = Self::default();
        for object in objects {
            cache.insert(Key::of(&object), Arc::new(object));
        }
        cache.see(SyncState {
            synced: true,
            problem: None,
        });
        cache
    }

    pub(crate) fn insert(&self, key: Key, object: Arc<K>) -> Option<Arc<K>> {
        let kept = self.pack(object);
        let old = {
            let mut held = self.write();
            held.unreadable.remove(&key);
            held.objects.insert(key, kept)
        };
        old?.open()
    }

    pub(crate) fn remove(&self, key: &Key) -> Option<Arc<K>> {
        let old = {
            let mut held = self.write();
            held.unreadable.remove(key);
            held.objects.remove(key)
        };
        old?.open()
    }

    /// Remembers that an object cannot be read; whether that, or the reason, is new.
    pub(crate) fn cannot_read(&self, key: Key, reason: &str) -> bool {
        let before = self.write().unreadable.insert(key, reason.to_owned());
        before.is_none_or(|before| before != reason)
    }

    /// Replaces everything.
    pub(crate) fn replace(&self, objects: HashMap<Key, Kept<K>>, unreadable: BTreeMap<Key, String>) {
        *self.write() = Held { objects, unreadable };
    }

    /// Remembers how far this can be relied on; whether that is new.
    pub(crate) fn see(&self, sight: SyncState) -> bool {
        self.0.sight.send_if_modified(|current| {
            let changed = *current != sight;
            *current = sight;
            changed
        })
    }

    fn read(&self) -> RwLockReadGuard<'_, Held<K>> {
        self.0.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Held<K>> {
        self.0.held.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{Cache, Key, Problem, SyncState, Trigger};
    use k8s_openapi::api::core::v1::ConfigMap;
    use std::time::Duration;

    #[test]
    fn a_key_is_shown_as_people_write_it() {
        assert_eq!(Key::namespaced("drydock", "config").to_string(), "drydock/config");
        assert_eq!(Key::cluster("n1").to_string(), "n1");
    }

    #[test]
    fn a_missing_kind_is_an_answer_and_a_failure_is_none() {
        let sight = |synced, problem| SyncState { synced, problem };
        assert!(sight(false, Some(Problem::KindMissing)).is_answered());
        assert!(!sight(false, Some(Problem::Forbidden)).is_answered());
        assert!(sight(true, Some(Problem::Forbidden)).is_answered());
        assert!(!sight(true, Some(Problem::Forbidden)).is_clear());
        assert!(sight(true, None).is_clear());
    }

    #[test]
    fn an_object_that_becomes_unreadable_keeps_its_last_state() {
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
