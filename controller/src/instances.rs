//! All instances: one watch that the tasks and the admission share.
//!
//! A watch is a moment behind what this process does itself. So what was made counts as there until
//! the watch has shown it, and what was deleted as on its way out.
//!
//! ```text
//!  watch ──▶ cache ───────────────┬─▶ for_each
//!    └─ shown ─▶ forgets ─┐       ├─▶ get, of_set
//!  made(), deleted() ──▶ ours ────┘
//! ```

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use drydock_api::kubevirt::VirtualMachineInstance;
use drydock_core::eviction::{mark, strategy::clear_filled_in};
use drydock_runtime::{Change, Key, Listing, Watch, Watches, clock::Instant};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Client, ResourceExt};

use crate::{assume_cache::AssumeCache, machine_task::prune_annotations};

/// So long an instance that was made is believed to be there though no watch has shown it. One that
/// was gone before a watch could show it would be waited for in vain; asking for it anew costs
/// nothing but an answer that it exists.
const SHOWN_WITHIN: Duration = Duration::from_secs(30);

/// Instances, and which replica set controls which. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Instances {
    pub(crate) objects: AssumeCache<VirtualMachineInstance>,
    ours: Arc<Mutex<Ours>>,
}

/// What the cache does not say.
#[derive(Debug, Default)]
struct Ours {
    /// Instances by the UID of the replica set that controls them.
    of_sets: HashMap<String, BTreeSet<Key>>,
    /// What was made and has not been shown, and until when it counts as there.
    made: BTreeMap<Key, (Arc<VirtualMachineInstance>, Instant)>,
    /// Instances by the node that they are on.
    on_nodes: HashMap<String, BTreeSet<Key>>,
    /// Instances that are marked to leave a node.
    marked: BTreeSet<Key>,
    /// UIDs of what was deleted and is shown as if it were not.
    deleted: BTreeSet<String>,
}

impl Instances {
    /// Starts watching; `told` hears of each change.
    pub(crate) fn start(
        client: &Client,
        watches: &Watches,
        mut told: impl FnMut(&Change<VirtualMachineInstance>) + Send + 'static,
    ) -> Self {
        let ours = Arc::new(Mutex::new(Ours::default()));
        let observed = Arc::clone(&ours);
        let watch = Watch::<VirtualMachineInstance>::all(client.clone(), "virtual machine instances")
            .listing(Listing::Streamed)
            .packed();
        let objects = AssumeCache::start(watches, watch, prune, move |change| {
            lock(&observed).observe(change);
            told(change);
        });
        Self { objects, ours }
    }

    /// Those that a test says there are.
    #[cfg(test)]
    pub(crate) fn filled(instances: impl IntoIterator<Item = VirtualMachineInstance>) -> Self {
        let objects = AssumeCache::filled(instances);
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

    /// The keys of all instances that the watch has shown, in no order.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.objects.shown().keys()
    }

    /// Calls `visit` with each instance that the watch has shown, in no order. Changes wait
    /// meanwhile: keep it short.
    pub(crate) fn for_each(&self, visit: impl FnMut(&Key, &Arc<VirtualMachineInstance>)) {
        self.objects.shown().for_each(visit);
    }

    /// The instance of this name.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<VirtualMachineInstance>> {
        self.objects.shown().get(key).or_else(|| lock(&self.ours).made_now(key))
    }

    /// The instances that the replica set with this UID controls.
    pub(crate) fn of_set(&self, uid: &str) -> Vec<Arc<VirtualMachineInstance>> {
        let mut ours = lock(&self.ours);
        let keys: Vec<Key> = ours.of_sets.get(uid).into_iter().flatten().cloned().collect();
        keys.iter()
            .filter_map(|key| self.objects.shown().get(key).or_else(|| ours.made_now(key)))
            // A name can change hands.
            .filter(|instance| controller(instance).is_some_and(|owner| owner.uid == uid))
            .collect()
    }

    /// The instances that are on this node, or were when they ended.
    pub(crate) fn on_node(&self, node: &str) -> Vec<Key> {
        let ours = lock(&self.ours);
        ours.on_nodes.get(node).into_iter().flatten().cloned().collect()
    }

    /// The instances that are marked to leave a node.
    pub(crate) fn marked(&self) -> Vec<Key> {
        lock(&self.ours).marked.iter().cloned().collect()
    }

    /// This process has made an instance.
    pub(crate) fn made(&self, mut instance: VirtualMachineInstance) {
        prune(&mut instance);
        let key = Key::of(&instance);
        let mut ours = lock(&self.ours);
        // The watch may have been faster.
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

    /// This process has deleted the instance with this UID.
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

    /// Whether this process has deleted the instance with this UID though it is not shown so yet.
    pub(crate) fn is_deleted(&self, uid: &str) -> bool {
        lock(&self.ours).deleted.contains(uid)
    }
}

impl Ours {
    /// Keeps account of a change that the watch has shown.
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
        if mark::of(instance).is_some() {
            self.marked.insert(key.clone());
        }
        if let Some(uid) = set_of(instance) {
            self.of_sets.entry(uid).or_default().insert(key.clone());
        }
    }

    fn unindex(&mut self, key: &Key, instance: &VirtualMachineInstance) {
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

/// The node that an instance is on.
pub(crate) fn node_of(instance: &VirtualMachineInstance) -> Option<&str> {
    instance.status.as_ref()?.node_name.as_deref()
}

/// What controls an instance.
pub(crate) fn controller(instance: &VirtualMachineInstance) -> Option<&OwnerReference> {
    let owners = instance.metadata.owner_references.as_ref()?;
    owners.iter().find(|owner| owner.controller == Some(true))
}

/// The UID of the replica set that controls an instance.
fn set_of(instance: &VirtualMachineInstance) -> Option<String> {
    let owner = controller(instance)?;
    (owner.kind == "VirtualMachineInstanceReplicaSet").then(|| owner.uid.clone())
}

/// The replica sets that a change of an instance concerns.
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

/// Drops what is kept by others for themselves.
fn prune(instance: &mut VirtualMachineInstance) {
    instance.metadata.managed_fields = None;
    // By an annotation that is dropped.
    clear_filled_in(instance);
    prune_annotations(&mut instance.metadata.annotations);
}

#[cfg(test)]
mod tests;
