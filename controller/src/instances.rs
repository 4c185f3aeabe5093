//! All instances: one watch, shared by the tasks and the admission.
//!
//! A watch lags a moment behind the requests of this process. So a created instance counts as existing until the
//! watch has shown it, and a deleted one counts as being deleted.
//!
//! ```text
//!  watch ──▶ cache ───────────────┬─▶ keys
//!    ├─ shown ─▶ indexes ─────────┼─▶ unfinished_after, on_node, marked
//!    └─ shown ─▶ forgets ─┐       ├─▶ get, of_set
//!  made(), deleted() ──▶ ours ────┘
//! ```

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use drydock_api::kubevirt::VirtualMachineInstance;
use drydock_core::eviction::{mark, strategy::clear_filled_in};
use drydock_runtime::{Change, Key, Listing, Watch, Watches, clock::Instant};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Client, ResourceExt};

use crate::assume_cache::{AssumeCache, prune_annotations};

/// How long a created instance counts as existing although the watch has not shown it. An instance that was deleted
/// before the watch could show it would be waited for in vain. Creating it again costs nothing but a response that it
/// exists.
const SHOWN_WITHIN: Duration = Duration::from_secs(30);

/// Instances, indexed by the replica set that controls each. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Instances {
    pub(crate) objects: AssumeCache<VirtualMachineInstance>,
    ours: Arc<Mutex<Ours>>,
}

/// What the cache does not contain.
#[derive(Debug, Default)]
struct Ours {
    /// Instances by the UID of the replica set that controls them.
    of_sets: HashMap<String, BTreeSet<Key>>,
    /// Created instances that the watch has not shown yet, and until when they count as existing.
    made: BTreeMap<Key, (Arc<VirtualMachineInstance>, Instant)>,
    /// Instances by the node that they are on.
    on_nodes: HashMap<String, BTreeSet<Key>>,
    /// Instances that have not ended.
    unfinished: BTreeSet<Key>,
    /// Instances that are marked to leave a node.
    marked: BTreeSet<Key>,
    /// UIDs of deleted instances that the watch still shows as not deleted.
    deleted: BTreeSet<String>,
}

impl Instances {
    /// Starts watching; `on_change` is called with each change.
    pub(crate) fn start(
        client: &Client,
        watches: &Watches,
        mut on_change: impl FnMut(&Change<VirtualMachineInstance>) + Send + 'static,
    ) -> Self {
        let ours = Arc::new(Mutex::new(Ours::default()));
        let observed = Arc::clone(&ours);
        let watch = Watch::<VirtualMachineInstance>::all(client.clone(), "virtual machine instances")
            .listing(Listing::Streamed)
            .packed();
        let objects = AssumeCache::start(watches, watch, prune, move |change| {
            lock(&observed).observe(change);
            on_change(change);
        });
        Self { objects, ours }
    }

    /// Creates a cache with the given instances.
    #[cfg(test)]
    pub(crate) fn filled(instances: impl IntoIterator<Item = VirtualMachineInstance>) -> Self {
        let objects = AssumeCache::filled_packed(instances);
        let mut ours = Ours::default();
        objects.shown().for_each(|key, instance| {
            ours.observe(&Change::Object {
                key: key.clone(),
                old: None,
                new: Some(Arc::clone(instance)),
            });
        });
        Self {
            objects,
            ours: Arc::new(Mutex::new(ours)),
        }
    }

    /// Waits until the caches are synced.
    pub(crate) async fn wait_until_synced(&self) {
        self.objects.shown().wait_until_synced().await;
    }

    /// Returns the keys of all instances that the watch has shown, in no order.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.objects.shown().keys()
    }

    /// Returns up to `count` instances that have not ended, by namespace and name, those after `last`. A change of nodes
    /// concerns all of these.
    pub(crate) fn unfinished_after(&self, last: Option<&Key>, count: usize) -> Vec<Key> {
        let ours = lock(&self.ours);
        let after = last.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = ours.unfinished.range::<Key, _>((after, Bound::Unbounded));
        rest.take(count).cloned().collect()
    }

    /// Returns the instances of a namespace that have not ended, by name.
    pub(crate) fn unfinished_in(&self, namespace: &str) -> Vec<Key> {
        let ours = lock(&self.ours);
        let first = Key::namespaced(namespace, "");
        let from_first = ours.unfinished.range(first..);
        from_first
            .take_while(|key| key.namespace.as_deref() == Some(namespace))
            .cloned()
            .collect()
    }

    /// Returns the instance of this name.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<VirtualMachineInstance>> {
        self.objects.shown().get(key).or_else(|| lock(&self.ours).made_now(key))
    }

    /// Returns the instances that the replica set with this UID controls.
    pub(crate) fn of_set(&self, uid: &str) -> Vec<Arc<VirtualMachineInstance>> {
        let mut ours = lock(&self.ours);
        let keys: Vec<Key> = ours.of_sets.get(uid).into_iter().flatten().cloned().collect();
        keys.iter()
            .filter_map(|key| self.objects.shown().get(key).or_else(|| ours.made_now(key)))
            // A name can pass to an instance with another owner.
            .filter(|instance| controller(instance).is_some_and(|owner| owner.uid == uid))
            .collect()
    }

    /// Returns the instances that are on this node, or were when they ended.
    pub(crate) fn on_node(&self, node: &str) -> Vec<Key> {
        let ours = lock(&self.ours);
        ours.on_nodes.get(node).into_iter().flatten().cloned().collect()
    }

    /// Returns the instances that are marked to leave a node.
    pub(crate) fn marked(&self) -> Vec<Key> {
        lock(&self.ours).marked.iter().cloned().collect()
    }

    /// Records that this process has created an instance.
    pub(crate) fn made(&self, mut instance: VirtualMachineInstance) {
        prune(&mut instance);
        let key = Key::of(&instance);
        let mut ours = lock(&self.ours);
        // The watch may have shown it already.
        if self
            .objects
            .shown()
            .get(&key)
            .is_some_and(|seen| seen.uid() == instance.uid())
        {
            return;
        }
        ours.index(&key, &instance);
        ours.made
            .insert(key, (Arc::new(instance), Instant::now() + SHOWN_WITHIN));
    }

    /// Records that this process has deleted the instance with this UID.
    pub(crate) fn deleted(&self, key: &Key, uid: &str) {
        let mut ours = lock(&self.ours);
        let shown = self.objects.shown().get(key);
        let is_news = shown.is_some_and(|shown| {
            shown.metadata.uid.as_deref() == Some(uid) && shown.metadata.deletion_timestamp.is_none()
        });
        if is_news || ours.made.contains_key(key) {
            ours.deleted.insert(uid.into());
        }
    }

    /// Returns whether this process has deleted the instance with this UID and the watch does not show that yet.
    pub(crate) fn is_deleted(&self, uid: &str) -> bool {
        lock(&self.ours).deleted.contains(uid)
    }
}

impl Ours {
    /// Updates the state with a change from the watch.
    fn observe(&mut self, change: &Change<VirtualMachineInstance>) {
        let Change::Object { key, old, new } = change else {
            return;
        };
        self.made.remove(key);
        for gone in old.iter().chain(new) {
            let uid = gone.metadata.uid.as_deref().unwrap_or_default();
            let stays = new.as_ref().is_some_and(|new| {
                new.metadata.uid.as_deref() == Some(uid) && new.metadata.deletion_timestamp.is_none()
            });
            if !stays {
                self.deleted.remove(uid);
            }
        }
        if let Some(old) = old {
            self.unindex(key, old);
        }
        if let Some(new) = new {
            self.index(key, new);
        }
    }

    fn made_now(&mut self, key: &Key) -> Option<Arc<VirtualMachineInstance>> {
        let (instance, until) = self.made.get(key)?;
        if Instant::now() < *until {
            return Some(Arc::clone(instance));
        }
        let (instance, _) = self.made.remove(key)?;
        self.deleted
            .remove(instance.metadata.uid.as_deref().unwrap_or_default());
        self.unindex(key, &instance);
        None
    }

    fn index(&mut self, key: &Key, instance: &VirtualMachineInstance) {
        if let Some(node) = node_of(instance) {
            self.on_nodes.entry(node.into()).or_default().insert(key.clone());
        }
        if !has_ended(instance) {
            self.unfinished.insert(key.clone());
        }
        if mark::of(instance).is_some() {
            self.marked.insert(key.clone());
        }
        if let Some(uid) = set_of(instance) {
            self.of_sets.entry(uid).or_default().insert(key.clone());
        }
    }

    fn unindex(&mut self, key: &Key, instance: &VirtualMachineInstance) {
        self.unfinished.remove(key);
        self.marked.remove(key);
        if let Some(node) = node_of(instance)
            && let Some(keys) = self.on_nodes.get_mut(node)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.on_nodes.remove(node);
            }
        }
        if let Some(uid) = set_of(instance)
            && let Some(keys) = self.of_sets.get_mut(&uid)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.of_sets.remove(&uid);
            }
        }
    }
}

fn lock(ours: &Mutex<Ours>) -> MutexGuard<'_, Ours> {
    ours.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the node that an instance is on.
pub(crate) fn node_of(instance: &VirtualMachineInstance) -> Option<&str> {
    instance.status.as_ref()?.node_name.as_deref()
}

/// Returns whether an instance has ended.
fn has_ended(instance: &VirtualMachineInstance) -> bool {
    let phase = instance.status.as_ref().and_then(|status| status.phase);
    phase.unwrap_or_default().is_final()
}

/// Returns the owner that controls an instance.
pub(crate) fn controller(instance: &VirtualMachineInstance) -> Option<&OwnerReference> {
    let owners = instance.metadata.owner_references.as_ref()?;
    owners.iter().find(|owner| owner.controller == Some(true))
}

/// Returns the UID of the replica set that controls an instance.
fn set_of(instance: &VirtualMachineInstance) -> Option<String> {
    let owner = controller(instance)?;
    (owner.kind == "VirtualMachineInstanceReplicaSet").then(|| owner.uid.clone())
}

/// Returns the replica sets that a change of an instance concerns.
pub(crate) fn sets_of_change(change: &Change<VirtualMachineInstance>) -> Vec<Key> {
    let Change::Object { key, old, new } = change else {
        return Vec::new();
    };
    let owners = old.iter().chain(new).filter_map(|instance| controller(instance));
    let mut sets: Vec<Key> = owners
        .filter(|owner| owner.kind == "VirtualMachineInstanceReplicaSet")
        .map(|owner| Key {
            namespace: key.namespace.clone(),
            name: owner.name.as_str().into(),
        })
        .collect();
    sets.dedup();
    sets
}

/// Removes metadata that only its writers use.
fn prune(instance: &mut VirtualMachineInstance) {
    instance.metadata.managed_fields = None;
    // This reads an annotation that is removed next.
    clear_filled_in(instance);
    prune_annotations(&mut instance.metadata.annotations);
}

#[cfg(test)]
mod tests;
