//! The cache of all migrations. The tasks and the admission share one watch.
//!
//! ```text
//!  watch ──▶ cache ───────────────────────┬─▶ for_each
//!    └─ by instance ──▶ index ────────────┼─▶ of_instance, is_moving
//!  created by this process, not yet shown ┘
//! ```

mod metrics;

use std::{collections::BTreeSet, sync::Arc};

use drydock_api::kubevirt::{VirtualMachineInstanceMigration, migration::MigrationPhase};
use drydock_core::migration::record::MigrationRecord;
use drydock_runtime::{ASSUMED_FOR, AssumeCache, CacheChange, Index, Key, ListMode, Watch, WatchStarter};
use kube::Client;
use parking_lot::Mutex;

use crate::pruning::prune_metadata;
pub(crate) use metrics::MigrationMetrics;

/// Migrations, and the indexes that find them. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Migrations {
    pub(crate) objects: AssumeCache<VirtualMachineInstanceMigration>,
    indexes: MigrationIndexes,
    /// Migrations that have succeeded and have not been taken yet.
    succeeded: Arc<Mutex<BTreeSet<Key>>>,
}

/// Indexes of migrations. Some ended migrations of each instance are kept, so a large cluster has a large number of
/// migrations, of which only a few are relevant.
#[derive(Clone, Debug)]
struct MigrationIndexes {
    /// Migrations by the instance that they move.
    by_instance: Index<VirtualMachineInstanceMigration>,
    /// Migrations that have not ended.
    unfinished: Index<VirtualMachineInstanceMigration>,
    /// Failed migrations that are being deleted and are kept for the agents of their source nodes.
    kept: Index<VirtualMachineInstanceMigration>,
}

impl MigrationIndexes {
    fn new() -> Self {
        Self {
            by_instance: Index::by(|migration| Some(instance_of(&Key::of(migration), migration).to_string())),
            unfinished: Index::by(|migration| (!MigrationRecord::of(migration).is_over()).then(String::new)),
            kept: Index::by(|migration| MigrationRecord::of(migration).is_kept_for_source().then(String::new)),
        }
    }

    fn all(&self) -> [Index<VirtualMachineInstanceMigration>; 3] {
        [self.by_instance.clone(), self.unfinished.clone(), self.kept.clone()]
    }
}

impl Migrations {
    /// Starts watching; `on_change` is called with each change.
    pub(crate) fn start(
        client: &Client,
        watches: &WatchStarter,
        mut on_change: impl FnMut(&CacheChange<VirtualMachineInstanceMigration>) + Send + 'static,
    ) -> Self {
        let (indexes, succeeded) = (MigrationIndexes::new(), Arc::<Mutex<BTreeSet<Key>>>::default());
        let observed = Arc::clone(&succeeded);
        let watch =
            Watch::<VirtualMachineInstanceMigration>::all(client.clone(), "migrations").listing(ListMode::Streamed);
        let objects = AssumeCache::start(watches, watch, prune, &indexes.all(), move |change| {
            observe_success(&mut observed.lock(), change);
            on_change(change);
        });
        Self {
            objects,
            indexes,
            succeeded,
        }
    }

    /// Creates a cache with the given migrations.
    #[cfg(test)]
    pub(crate) fn filled(migrations: impl IntoIterator<Item = VirtualMachineInstanceMigration>) -> Self {
        let (indexes, mut succeeded) = (MigrationIndexes::new(), BTreeSet::new());
        let objects = AssumeCache::of_cache(drydock_runtime::Cache::filled(migrations), &indexes.all());
        objects.shown().for_each(|key, migration| {
            let change = CacheChange::Object {
                key: key.clone(),
                old: None,
                new: Some(Arc::clone(migration)),
            };
            observe_success(&mut succeeded, &change);
        });
        Self {
            objects,
            indexes,
            succeeded: Arc::new(Mutex::new(succeeded)),
        }
    }

    /// Waits until the caches are synced.
    pub(crate) async fn wait_until_synced(&self) {
        self.objects.shown().wait_until_synced().await;
    }

    /// Calls `visit` with each migration, in no particular order. Changes of the cache wait in the meantime, so `visit`
    /// has to be fast.
    pub(crate) fn for_each(&self, visit: impl FnMut(&Key, &Arc<VirtualMachineInstanceMigration>)) {
        self.objects.shown().for_each(visit);
    }

    /// Returns the migrations of this instance in any phase, sorted by name. A migration that this process has just
    /// created comes last.
    pub(crate) fn of_instance(&self, instance: &Key) -> Vec<Arc<VirtualMachineInstanceMigration>> {
        self.objects.by(&self.indexes.by_instance, &instance.to_string())
    }

    /// Like [`Self::of_instance`], including writes of this process that the watch does not show yet.
    pub(crate) fn newest_of_instance(&self, instance: &Key) -> Vec<Arc<VirtualMachineInstanceMigration>> {
        let shown = self.of_instance(instance).into_iter();
        shown
            .map(|migration| {
                self.objects
                    .newest(&Key::of(migration.as_ref()))
                    .map_or(migration, Arc::new)
            })
            .collect()
    }

    /// Records a migration that this process has created, or has found already created, until the watch shows it.
    /// Otherwise a reconcile before that would create another one.
    pub(crate) fn remember_made(&self, migration: VirtualMachineInstanceMigration) {
        self.objects.created(migration, ASSUMED_FOR);
    }

    /// Returns the migrations that the watch shows and that have not ended.
    pub(crate) fn unfinished(&self) -> Vec<Arc<VirtualMachineInstanceMigration>> {
        let keys = self.indexes.unfinished.keys("");
        keys.iter().filter_map(|key| self.objects.shown().get(key)).collect()
    }

    /// Returns the keys of the migrations whose next step may depend on the state of a node. These are the migrations
    /// that have not ended, and those that are being deleted and are kept for the agents of their source nodes.
    pub(crate) fn depending_on_nodes(&self) -> BTreeSet<Key> {
        [&self.indexes.unfinished, &self.indexes.kept]
            .iter()
            .flat_map(|index| index.keys(""))
            .collect()
    }

    /// Returns the migrations that have succeeded since the last call, or existed when this process started.
    pub(crate) fn take_succeeded(&self) -> Vec<Arc<VirtualMachineInstanceMigration>> {
        let keys = std::mem::take(&mut *self.succeeded.lock());
        keys.iter().filter_map(|key| self.objects.shown().get(key)).collect()
    }

    /// Returns the keys of the migrations that a change of their instance concerns. These are the migrations that have
    /// not ended or are kept for the agents of their source nodes, or all migrations if the instance was deleted.
    pub(crate) fn keys_of(&self, instance: &Key, deleted: bool) -> Vec<Key> {
        self.keys_where(instance, |_, record| deleted || is_unsettled(record))
    }

    /// Returns the keys of the migrations that a change of an instance's pod concerns. These are the keys of
    /// [`Self::keys_of`], and the failed migration with the UID `made_for` if the pod is its target. Such a pod has to
    /// be deleted even if the watch showed it only after the failure.
    pub(crate) fn keys_of_pod(&self, instance: &Key, made_for: Option<&str>) -> Vec<Key> {
        self.keys_where(instance, |migration, record| {
            let is_target = made_for.is_some() && migration.metadata.uid.as_deref() == made_for;
            is_unsettled(record) || (is_target && record.has_failed())
        })
    }

    fn keys_where(
        &self,
        instance: &Key,
        concerns: impl Fn(&VirtualMachineInstanceMigration, &MigrationRecord) -> bool,
    ) -> Vec<Key> {
        let migrations = self.of_instance(instance).into_iter();
        migrations
            .filter(|migration| concerns(migration, &MigrationRecord::of(migration)))
            .map(|migration| Key::of(migration.as_ref()))
            .collect()
    }

    /// Returns whether this instance is moving to another node.
    pub(crate) fn is_moving(&self, instance: &Key) -> bool {
        self.of_instance(instance)
            .iter()
            .any(|migration| is_under_way(migration))
    }
}

/// Returns whether a migration has not ended, or is kept for the agent of its source node.
fn is_unsettled(record: &MigrationRecord) -> bool {
    !record.is_over() || record.is_kept_for_source()
}

/// Updates the set of migrations that have succeeded with a change.
fn observe_success(succeeded: &mut BTreeSet<Key>, change: &CacheChange<VirtualMachineInstanceMigration>) {
    let CacheChange::Object { key, old, new } = change else {
        return;
    };
    let has_succeeded = |migration: &Arc<_>| MigrationRecord::of(migration).phase == Some(MigrationPhase::Succeeded);
    match new {
        None => _ = succeeded.remove(key),
        Some(new) if has_succeeded(new) && !old.as_ref().is_some_and(has_succeeded) => {
            _ = succeeded.insert(key.clone());
        }
        Some(_) => {}
    }
}

/// Returns the instance that a migration moves.
pub(crate) fn instance_of(key: &Key, migration: &VirtualMachineInstanceMigration) -> Key {
    key.beside(&migration.spec.vmi_name)
}

/// Returns the instances that a change concerns.
pub(crate) fn instances_of(change: &CacheChange<VirtualMachineInstanceMigration>) -> Vec<Key> {
    let CacheChange::Object { key, old, new } = change else {
        return Vec::new();
    };
    let both = old.iter().chain(new);
    let mut instances: Vec<Key> = both.map(|migration| instance_of(key, migration)).collect();
    instances.dedup();
    instances
}

/// Returns the instances whose move begins or ends with a change.
pub(crate) fn begun_or_ended(change: &CacheChange<VirtualMachineInstanceMigration>) -> Vec<Key> {
    let CacheChange::Object { key, old, new } = change else {
        return Vec::new();
    };
    let moving = |migration: &Option<Arc<VirtualMachineInstanceMigration>>| {
        let migration = migration.as_ref().filter(|migration| is_under_way(migration))?;
        Some(instance_of(key, migration))
    };
    let (before, after) = (moving(old), moving(new));
    if before == after {
        return Vec::new();
    }
    before.into_iter().chain(after).collect()
}

/// Returns whether the transfer itself has been started. It has not while the migration waits for a slot or for a pod.
fn is_under_way(migration: &VirtualMachineInstanceMigration) -> bool {
    use MigrationPhase::{
        Failed, Pending, PreparingTarget, Running, Scheduled, Scheduling, Succeeded, TargetReady, Unknown,
    };
    match migration.phase() {
        Some(PreparingTarget | TargetReady | Running | Unknown) => true,
        None | Some(Pending | Scheduling | Scheduled | Succeeded | Failed) => false,
    }
}

/// Removes metadata that only its writers use.
fn prune(migration: &mut VirtualMachineInstanceMigration) {
    prune_metadata(&mut migration.metadata);
}

#[cfg(test)]
mod tests;
