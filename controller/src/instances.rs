//! The cache of all instances. The tasks and the admission share one watch.
//!
//! A watch shows the writes of this process with a delay. Therefore a created instance counts as existing until the
//! watch has shown it, and a deleted one counts as being deleted.

use std::{sync::Arc, time::Duration};

use drydock_api::{controlling_owner, kubevirt::VirtualMachineInstance};
use drydock_core::eviction::{evacuation_request, strategy::clear_filled_in};
use drydock_runtime::{AssumeCache, CacheChange, Index, Key, ListMode, Watch, WatchStarter};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;

use crate::pruning::prune_metadata;

/// Time for which a created instance counts as existing although the watch has not shown it. If the instance was
/// deleted before the watch could show it, the watch never will. Creating the instance again costs one request, to
/// which the API server responds that it exists.
const SHOWN_WITHIN: Duration = Duration::from_secs(30);

/// Instances, and the indexes that find them. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Instances {
    pub(crate) objects: AssumeCache<VirtualMachineInstance>,
    indexes: InstanceIndexes,
}

#[derive(Clone, Debug)]
struct InstanceIndexes {
    /// Instances by the UID of the replica set that controls them.
    of_sets: Index<VirtualMachineInstance>,
    /// Instances by the node that they are on.
    on_nodes: Index<VirtualMachineInstance>,
    /// Instances that have not ended, or whose deletion has not been completed, because a finalizer may wait until a
    /// node is confirmed to be off.
    unfinished: Index<VirtualMachineInstance>,
    /// Instances that are marked to leave a node.
    marked: Index<VirtualMachineInstance>,
}

impl InstanceIndexes {
    fn new() -> Self {
        Self {
            of_sets: Index::by(|instance| set_of(instance).map(|set| set.uid.clone())),
            on_nodes: Index::by(|instance| instance.node_name().map(str::to_owned)),
            unfinished: Index::by(|instance| is_unfinished(instance).then(String::new)),
            marked: Index::by(|instance| evacuation_request::of(instance).map(|_| String::new())),
        }
    }

    fn all(&self) -> [Index<VirtualMachineInstance>; 4] {
        let Self {
            of_sets,
            on_nodes,
            unfinished,
            marked,
        } = self.clone();
        [of_sets, on_nodes, unfinished, marked]
    }
}

impl Instances {
    /// Starts watching; `on_change` is called with each change.
    pub(crate) fn start(
        client: &Client,
        watches: &WatchStarter,
        on_change: impl FnMut(&CacheChange<VirtualMachineInstance>) + Send + 'static,
    ) -> Self {
        let indexes = InstanceIndexes::new();
        let watch = Watch::<VirtualMachineInstance>::all(client.clone(), "virtual machine instances")
            .listing(ListMode::Streamed)
            .compressed();
        Self {
            objects: AssumeCache::start(watches, watch, prune, &indexes.all(), on_change),
            indexes,
        }
    }

    /// Creates a cache with the given instances.
    #[cfg(test)]
    pub(crate) fn filled(instances: impl IntoIterator<Item = VirtualMachineInstance>) -> Self {
        let indexes = InstanceIndexes::new();
        Self {
            objects: AssumeCache::of_cache(drydock_runtime::Cache::filled_compressed(instances), &indexes.all()),
            indexes,
        }
    }

    /// Waits until the cache is synced.
    pub(crate) async fn wait_until_synced(&self) {
        self.objects.shown().wait_until_synced().await;
    }

    /// Returns the keys of all instances that the watch has shown, in no order.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.objects.shown().keys()
    }

    /// Returns the keys of up to `count` instances after `last`, sorted by namespace and name, that have not ended or
    /// are being deleted. A change of nodes concerns all of these.
    pub(crate) fn unfinished_after(&self, last: Option<&Key>, count: usize) -> Vec<Key> {
        self.indexes.unfinished.page("", last, count)
    }

    /// Returns the instances of a namespace that have not ended or are being deleted, by name.
    pub(crate) fn unfinished_in(&self, namespace: &str) -> Vec<Key> {
        self.indexes.unfinished.in_namespace("", namespace)
    }

    /// Returns the instance with this key.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<VirtualMachineInstance>> {
        self.objects.get(key)
    }

    /// Returns the instances that the replica set with this UID controls.
    pub(crate) fn of_set(&self, uid: &str) -> Vec<Arc<VirtualMachineInstance>> {
        self.objects.by(&self.indexes.of_sets, uid)
    }

    /// Returns the instances that are on this node, or were on it when they ended.
    pub(crate) fn on_node(&self, node: &str) -> Vec<Key> {
        self.indexes.on_nodes.keys(node)
    }

    /// Returns the instances that are marked to leave a node.
    pub(crate) fn marked(&self) -> Vec<Key> {
        self.indexes.marked.keys("")
    }

    /// Records that this process has created an instance.
    pub(crate) fn created(&self, instance: VirtualMachineInstance) {
        self.objects.created(instance, SHOWN_WITHIN);
    }

    /// Records that this process has deleted the instance with this UID.
    pub(crate) fn deleted(&self, key: &Key, uid: &str) {
        self.objects.deleted(key, uid);
    }

    /// Returns whether this process has deleted the instance with this UID and the watch does not show that yet.
    pub(crate) fn is_deleted(&self, uid: &str) -> bool {
        self.objects.is_deleted(uid)
    }
}

/// Returns whether an instance has not ended, or is being deleted.
fn is_unfinished(instance: &VirtualMachineInstance) -> bool {
    let phase = instance.phase();
    !phase.unwrap_or_default().is_final() || instance.metadata.deletion_timestamp.is_some()
}

/// Returns the replica set that controls an instance.
fn set_of(instance: &VirtualMachineInstance) -> Option<&OwnerReference> {
    controlling_owner(&instance.metadata).filter(|owner| owner.kind == "VirtualMachineInstanceReplicaSet")
}

/// Returns the replica sets that a change of an instance concerns.
pub(crate) fn sets_of_change(change: &CacheChange<VirtualMachineInstance>) -> Vec<Key> {
    let CacheChange::Object { key, old, new } = change else {
        return Vec::new();
    };
    let owners = old.iter().chain(new).filter_map(|instance| set_of(instance));
    let mut sets: Vec<Key> = owners.map(|owner| key.beside(&owner.name)).collect();
    sets.dedup();
    sets
}

/// Removes metadata that only its writers use.
fn prune(instance: &mut VirtualMachineInstance) {
    // This call reads an annotation that the next one removes.
    clear_filled_in(instance);
    prune_metadata(&mut instance.metadata);
}

#[cfg(test)]
mod tests;
