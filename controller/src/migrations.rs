//! All migrations: one watch, shared by the tasks and the admission.
//!
//! ```text
//!  watch ──▶ cache ───────────────────────┬─▶ for_each
//!    └─ by instance ──▶ index ────────────┼─▶ of_instance, is_moving
//!  created by this process, not yet shown ┘
//! ```

mod metrics;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use drydock_api::kubevirt::{VirtualMachineInstanceMigration, migration::MigrationPhase};
use drydock_core::migration::record::Record;
use drydock_runtime::{Change, Key, Listing, Watch, Watches, clock};
use kube::{Client, ResourceExt};

use crate::assume_cache::{AssumeCache, prune_annotations};
pub(crate) use metrics::MigrationMetrics;

/// How long a migration that this process has created counts although the watch does not show it: longer than a watch
/// lags behind. A migration that was created and deleted while the watch was broken is never shown.
const MADE_COUNTS_FOR: Duration = Duration::from_secs(10);

/// Migrations, indexed by the instance that each moves. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Migrations {
    pub(crate) objects: AssumeCache<VirtualMachineInstanceMigration>,
    index: Arc<Mutex<Index>>,
}

/// Keys of migrations, by the criteria of queries. Some ended migrations of each instance are kept, so that a large
/// cluster has very many migrations, of which few matter.
#[derive(Debug, Default)]
struct Index {
    /// By the instance that they move.
    by_instance: HashMap<Key, BTreeSet<Key>>,
    /// Migrations that are not over.
    unfinished: BTreeSet<Key>,
    /// Migrations that have succeeded since the last query for them.
    succeeded: BTreeSet<Key>,
    /// By instance, the last migration that this process has created, until the watch shows it, and when that was.
    made: HashMap<Key, (Arc<VirtualMachineInstanceMigration>, clock::Instant)>,
}

impl Migrations {
    /// Starts watching; `on_change` is called with each change.
    pub(crate) fn start(
        client: &Client,
        watches: &Watches,
        mut on_change: impl FnMut(&Change<VirtualMachineInstanceMigration>) + Send + 'static,
    ) -> Self {
        let index = Arc::new(Mutex::new(Index::default()));
        let observed = Arc::clone(&index);
        let watch =
            Watch::<VirtualMachineInstanceMigration>::all(client.clone(), "migrations").listing(Listing::Streamed);
        let objects = AssumeCache::start(watches, watch, prune, move |change| {
            lock(&observed).observe(change);
            on_change(change);
        });
        Self { objects, index }
    }

    /// Creates a cache with the given migrations.
    #[cfg(test)]
    pub(crate) fn filled(migrations: impl IntoIterator<Item = VirtualMachineInstanceMigration>) -> Self {
        let objects = AssumeCache::filled(migrations);
        let mut index = Index::default();
        objects
            .shown()
            .for_each(|key, migration| index.add(key, None, migration));
        Self {
            objects,
            index: Arc::new(Mutex::new(index)),
        }
    }

    /// Waits until the caches are synced.
    pub(crate) async fn wait_until_synced(&self) {
        self.objects.shown().wait_until_synced().await;
    }

    /// Calls `visit` with each migration, in no order. Changes wait meanwhile: keep it short.
    pub(crate) fn for_each(&self, visit: impl FnMut(&Key, &Arc<VirtualMachineInstanceMigration>)) {
        self.objects.shown().for_each(visit);
    }

    /// Returns the migrations that move this instance, whatever their phase, by name. A migration that this process
    /// has just created comes last.
    pub(crate) fn of_instance(&self, instance: &Key) -> Vec<Arc<VirtualMachineInstanceMigration>> {
        let index = lock(&self.index);
        let keys = index.by_instance.get(instance).into_iter().flatten();
        let shown = keys
            .filter_map(|key| self.objects.shown().get(key))
            // A name can pass to a migration of another instance.
            .filter(|migration| *migration.spec.vmi_name == *instance.name);
        let made = index.made.get(instance);
        let made = made.filter(|(_, at)| at.elapsed() < MADE_COUNTS_FOR);
        shown.chain(made.map(|(migration, _)| Arc::clone(migration))).collect()
    }

    /// Remembers a migration that this process has created, or found already created, until the watch shows it:
    /// otherwise a reconcile before that would create another one.
    pub(crate) fn remember_made(&self, mut migration: VirtualMachineInstanceMigration) {
        prune(&mut migration);
        let key = Key::of(&migration);
        let mut index = lock(&self.index);
        // Read with the lock held: any later change of the cache is observed after this.
        let shown = self.objects.shown().get(&key);
        if shown.is_none_or(|shown| shown.uid() != migration.uid()) {
            let instance = instance_of(&key, &migration);
            index
                .made
                .insert(instance, (Arc::new(migration), clock::Instant::now()));
        }
    }

    /// Returns the migrations that are not over.
    pub(crate) fn unfinished(&self) -> Vec<Arc<VirtualMachineInstanceMigration>> {
        let index = lock(&self.index);
        index
            .unfinished
            .iter()
            .filter_map(|key| self.objects.shown().get(key))
            .collect()
    }

    /// Returns the migrations that have succeeded since the last call, or existed when this process started.
    pub(crate) fn take_succeeded(&self) -> Vec<Arc<VirtualMachineInstanceMigration>> {
        let keys = std::mem::take(&mut lock(&self.index).succeeded);
        keys.iter().filter_map(|key| self.objects.shown().get(key)).collect()
    }

    /// Returns the keys of the migrations of an instance that are not over; all of them if the instance was deleted.
    pub(crate) fn keys_of(&self, instance: &Key, deleted: bool) -> Vec<Key> {
        let migrations = self.of_instance(instance).into_iter();
        migrations
            .filter(|migration| deleted || !Record::of(migration).is_over())
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

impl Index {
    /// Updates the index with a change from the watch.
    fn observe(&mut self, change: &Change<VirtualMachineInstanceMigration>) {
        let Change::Object { key, old, new } = change else {
            return;
        };
        if let Some(old) = old {
            self.remove(key, old);
        }
        for migration in old.iter().chain(new) {
            let instance = instance_of(key, migration);
            if self
                .made
                .get(&instance)
                .is_some_and(|(made, _)| made.uid() == migration.uid())
            {
                self.made.remove(&instance);
            }
        }
        match new {
            Some(new) => self.add(key, old.as_deref(), new),
            None => _ = self.succeeded.remove(key),
        }
    }

    fn add(
        &mut self,
        key: &Key,
        old: Option<&VirtualMachineInstanceMigration>,
        migration: &VirtualMachineInstanceMigration,
    ) {
        let instance = instance_of(key, migration);
        self.by_instance.entry(instance).or_default().insert(key.clone());
        if !Record::of(migration).is_over() {
            self.unfinished.insert(key.clone());
        }
        let has_succeeded = |migration| Record::of(migration).phase == Some(MigrationPhase::Succeeded);
        if has_succeeded(migration) && !old.is_some_and(has_succeeded) {
            self.succeeded.insert(key.clone());
        }
    }

    fn remove(&mut self, key: &Key, migration: &VirtualMachineInstanceMigration) {
        self.unfinished.remove(key);
        let instance = instance_of(key, migration);
        if let Some(keys) = self.by_instance.get_mut(&instance) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_instance.remove(&instance);
            }
        }
    }
}

fn lock(index: &Mutex<Index>) -> MutexGuard<'_, Index> {
    index.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the instance that a migration moves.
pub(crate) fn instance_of(key: &Key, migration: &VirtualMachineInstanceMigration) -> Key {
    Key {
        namespace: key.namespace.clone(),
        name: migration.spec.vmi_name.as_str().into(),
    }
}

/// Returns the instances that a change concerns.
pub(crate) fn instances_of(change: &Change<VirtualMachineInstanceMigration>) -> Vec<Key> {
    let Change::Object { key, old, new } = change else {
        return Vec::new();
    };
    let both = old.iter().chain(new);
    let mut instances: Vec<Key> = both.map(|migration| instance_of(key, migration)).collect();
    instances.dedup();
    instances
}

/// Returns the instances whose move begins or ends with a change.
pub(crate) fn begun_or_ended(change: &Change<VirtualMachineInstanceMigration>) -> Vec<Key> {
    let Change::Object { key, old, new } = change else {
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

/// Returns whether the move itself has begun: not while a migration waits for a slot or for a pod.
fn is_under_way(migration: &VirtualMachineInstanceMigration) -> bool {
    use MigrationPhase::{
        Failed, Pending, PreparingTarget, Running, Scheduled, Scheduling, Succeeded, TargetReady, Unknown,
    };
    match migration.status.as_ref().and_then(|status| status.phase) {
        Some(PreparingTarget | TargetReady | Running | Unknown) => true,
        None | Some(Pending | Scheduling | Scheduled | Succeeded | Failed) => false,
    }
}

/// Removes metadata that only its writers use.
fn prune(migration: &mut VirtualMachineInstanceMigration) {
    migration.metadata.managed_fields = None;
    prune_annotations(&mut migration.metadata.annotations);
}

#[cfg(test)]
mod tests;
