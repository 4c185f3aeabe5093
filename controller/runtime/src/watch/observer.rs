//! Processes the events of one watch: neither waits nor uses the network.

use super::{ErrorLabels, NameLabel, OnChange, Prune, Watch, WatchMetrics, failure::classify};
use crate::{
    ReadyHandle,
    cache::{Cache, CacheChange, Key, StoredObject, SyncState, WatchProblem},
    clock,
    tolerant_decode::TolerantDecode,
};
use kube::{Resource, runtime::watcher};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// Applies the events of a watch to its cache, and notifies the subscribers.
pub(super) struct Observer<K> {
    name: &'static str,
    optional: bool,
    prune: Prune<K>,
    on_change: Vec<OnChange<K>>,
    cache: Cache<K>,
    listing: ListInProgress<K>,
    ready: Option<ReadyHandle>,
    metrics: WatchMetrics,
}

/// A list whose objects are being received.
struct ListInProgress<K> {
    objects: HashMap<Key, StoredObject<K>>,
    unreadable: BTreeMap<Key, String>,
}

impl<K> Default for ListInProgress<K> {
    fn default() -> Self {
        Self {
            objects: HashMap::new(),
            unreadable: BTreeMap::new(),
        }
    }
}

impl<K: Resource> Observer<K> {
    pub(super) fn new(watch: Watch<K>, cache: Cache<K>, ready: Option<ReadyHandle>, metrics: WatchMetrics) -> Self {
        let Watch {
            api: _,
            acceptance: _,
            name,
            fields: _,
            labels: _,
            listing: _,
            format: _,
            optional,
            prune,
            on_change,
        } = watch;
        Self {
            name,
            optional,
            prune,
            on_change,
            cache,
            listing: ListInProgress::default(),
            ready,
            metrics,
        }
    }

    /// Returns the name of the watch.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Processes an event. Returns whether the event shows that the API server responds.
    pub(super) fn observe(&mut self, event: watcher::Event<TolerantDecode<K>>) -> bool {
        match event {
            // This event only announces that a list is about to be requested.
            watcher::Event::Init => {
                self.listing = ListInProgress::default();
                return false;
            }
            watcher::Event::InitApply(object) => self.listed(object),
            watcher::Event::InitDone => {
                self.list_complete();
                self.sees(true, None);
            }
            watcher::Event::Apply(object) => {
                self.applied(object);
                self.sees_again();
            }
            watcher::Event::Delete(object) => {
                self.deleted(&object);
                self.sees_again();
            }
        }
        true
    }

    /// Processes an error; the watch will be retried.
    pub(super) fn failed(&mut self, error: &watcher::Error) {
        let failure = classify(error);
        self.metrics
            .errors
            .get_or_create(&ErrorLabels {
                watch: self.name,
                error: failure.name,
            })
            .inc();
        tracing::debug!(watch = self.name, error = %crate::chain(error), "watch error");
        let Some(problem) = failure.problem else { return };
        if problem == WatchProblem::KindMissing && self.optional {
            self.release();
        }
        let synced = self.cache.sync_state().synced;
        self.sees(synced, Some(problem));
    }

    fn listed(&mut self, object: TolerantDecode<K>) {
        match object {
            TolerantDecode::Readable(mut object) => {
                let key = Key::of(object.as_ref());
                // Objects already in the cache are reused, so that a new list does not double the memory.
                let known = self.cache.kept(&key).filter(|known| {
                    let known = known.open();
                    known.is_some_and(|known| same_version(known.as_ref(), object.as_ref()))
                });
                let object = known.unwrap_or_else(|| {
                    (self.prune)(&mut object);
                    self.cache.stored_form(Arc::from(object))
                });
                self.listing.objects.insert(key, object);
            }
            TolerantDecode::Unreadable { reason, metadata } => {
                let key = Key::of_meta(&metadata);
                if let Some(last) = self.cache.kept(&key) {
                    self.listing.objects.insert(key.clone(), last);
                }
                self.listing.unreadable.insert(key, reason);
            }
        }
    }

    fn list_complete(&mut self) {
        self.metrics.lists.get_or_create(&NameLabel { watch: self.name }).inc();
        let ListInProgress { objects, unreadable } = std::mem::take(&mut self.listing);
        let known = self.cache.unreadable();
        let bad: Vec<_> = unreadable
            .iter()
            .filter(|(key, reason)| known.get(key) != Some(reason))
            .collect();
        let bad: Vec<_> = bad
            .into_iter()
            .map(|(key, reason)| (key.clone(), reason.clone()))
            .collect();
        let mut changed = Vec::new();
        for (key, new) in &objects {
            let old = self.cache.kept(key);
            // An object that is the same allocation was taken over from the cache: it has not changed.
            if !old.as_ref().is_some_and(|old| old.is(new)) {
                changed.push((key.clone(), [old, Some(new.clone())]));
            }
        }
        for key in self.cache.keys() {
            if !objects.contains_key(&key) {
                let old = self.cache.kept(&key);
                changed.push((key, [old, None]));
            }
        }
        self.cache.replace(objects, unreadable);
        for (key, kept) in changed {
            let [old, new] = kept.map(|kept| kept.and_then(|kept| kept.open()));
            self.dispatch(&CacheChange::Object { key, old, new });
        }
        for (key, reason) in bad {
            self.unreadable(key, &reason);
        }
        self.release();
    }

    fn applied(&mut self, object: TolerantDecode<K>) {
        match object {
            TolerantDecode::Readable(mut object) => {
                (self.prune)(&mut object);
                let key = Key::of(object.as_ref());
                let new: Arc<K> = Arc::from(object);
                let old = self.cache.insert(key.clone(), new.clone());
                self.dispatch(&CacheChange::Object {
                    key,
                    old,
                    new: Some(new),
                });
            }
            TolerantDecode::Unreadable { reason, metadata } => {
                let key = Key::of_meta(&metadata);
                if self.cache.cannot_read(key.clone(), &reason) {
                    self.unreadable(key, &reason);
                }
            }
        }
    }

    fn deleted(&mut self, object: &TolerantDecode<K>) {
        let key = Key::of(object);
        let old = self.cache.remove(&key);
        self.dispatch(&CacheChange::Object { key, old, new: None });
    }

    fn unreadable(&mut self, key: Key, reason: &str) {
        tracing::warn!(
            watch = self.name,
            object = %key,
            reason,
            "skipped an object that cannot be decoded as its kind"
        );
        self.metrics
            .unreadable
            .get_or_create(&NameLabel { watch: self.name })
            .inc();
        self.dispatch(&CacheChange::Unreadable { key });
    }

    /// Clears the problem, because an event has arrived.
    pub(super) fn sees_again(&mut self) {
        let synced = self.cache.sync_state().synced;
        self.sees(synced, None);
    }

    fn sees(&mut self, synced: bool, problem: Option<WatchProblem>) {
        let label = NameLabel { watch: self.name };
        // An optional kind that is not installed has no objects, so nothing can be outdated.
        let is_complete = problem.is_none() || self.optional && problem == Some(WatchProblem::KindMissing);
        let failing = i64::from(!is_complete);
        self.metrics.failing.get_or_create(&label).set(failing);
        if is_complete {
            let now = clock::now().as_second();
            self.metrics.last_event.get_or_create(&label).set(now);
        }
        let before = self.cache.sync_state();
        let after = SyncState { synced, problem };
        // The error text may differ with each attempt; a continued failure is not a change.
        if let (Some(WatchProblem::Failing(_)), Some(WatchProblem::Failing(_))) = (&before.problem, &after.problem) {
            return;
        }
        if !self.cache.set_sync_state(after.clone()) {
            return;
        }
        match (&before.problem, &after.problem) {
            (_, Some(WatchProblem::KindMissing)) if self.optional => {
                tracing::info!(watch = self.name, "the API server does not serve this kind (yet)");
            }
            (_, Some(problem)) => tracing::warn!(watch = self.name, %problem, "watch interrupted, retrying"),
            (Some(_), None) => tracing::info!(watch = self.name, objects = self.cache.len(), "watch restored"),
            (None, None) => tracing::info!(watch = self.name, objects = self.cache.len(), "watching"),
        }
        self.dispatch(&CacheChange::SyncState(after));
    }

    fn release(&mut self) {
        if let Some(ready) = self.ready.take() {
            ready.release();
        }
    }

    fn dispatch(&mut self, change: &CacheChange<K>) {
        for callback in &mut self.on_change {
            callback(change);
        }
    }
}

/// Returns whether both are the same state of an object; `kept` may have been pruned.
fn same_version<K: Resource>(kept: &K, listed: &K) -> bool {
    let (kept, listed) = (kept.meta(), listed.meta());
    // Names are reused, versions are not: the UID distinguishes states only after a reset of the API server's storage.
    // A UID that was pruned to save memory is therefore not compared.
    let same_uid = kept.uid.is_none() || kept.uid == listed.uid;
    same_uid && kept.resource_version.is_some() && kept.resource_version == listed.resource_version
}
