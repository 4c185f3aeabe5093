//! Which instances are on their way to another node, as their migrations say.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use drydock_api::kubevirt::{VirtualMachineInstanceMigration, migration::MigrationPhase};
use drydock_runtime::{Cache, Change, Key, Watch, Watches};
use kube::Client;

/// Migrations that are under way, by the instance that moves.
pub(crate) struct Moving {
    migrations: Cache<VirtualMachineInstanceMigration>,
    by_instance: Arc<Mutex<HashMap<Key, BTreeSet<Key>>>>,
}

impl Moving {
    /// Starts watching; `told` hears of each instance that begins or ends to move.
    pub(crate) fn start(client: &Client, watches: &Watches, told: impl Fn(Key) + Send + 'static) -> Self {
        let by_instance = Arc::new(Mutex::new(HashMap::new()));
        let index = Arc::clone(&by_instance);
        let watch = Watch::<VirtualMachineInstanceMigration>::all(client.clone(), "migrations of machines")
            .prune(|migration| {
                migration.metadata.managed_fields = None;
                migration.metadata.annotations = None;
                migration.metadata.labels = None;
                if let Some(status) = &mut migration.status {
                    let phase = status.phase;
                    *status = drydock_api::kubevirt::migration::VirtualMachineInstanceMigrationStatus {
                        phase,
                        ..Default::default()
                    };
                }
            })
            .on_change(move |change| {
                let mut index = index.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(instance) = observe(&mut index, change) {
                    told(instance);
                }
            });
        Self {
            migrations: watches.start(watch),
            by_instance,
        }
    }

    /// None, for tests.
    #[cfg(test)]
    pub(crate) fn nothing() -> Self {
        Self {
            migrations: Cache::filled([]),
            by_instance: Arc::default(),
        }
    }

    /// Waits until the API server has said everything once.
    pub(crate) async fn answered(&self) {
        self.migrations.answered().await;
    }

    /// Whether this instance is on its way to another node.
    pub(crate) fn is_moving(&self, instance: &Key) -> bool {
        let index = self.by_instance.lock().unwrap_or_else(PoisonError::into_inner);
        index.contains_key(instance)
    }
}

/// Keeps account of a change. Returns the instance, if it has begun or ended to move.
fn observe(index: &mut HashMap<Key, BTreeSet<Key>>, change: &Change<VirtualMachineInstanceMigration>) -> Option<Key> {
    let Change::Object { key, old, new } = change else {
        return None;
    };
    let migration = new.as_ref().or(old.as_ref())?;
    let instance = Key {
        namespace: key.namespace.clone(),
        name: migration.spec.vmi_name.as_str().into(),
    };
    let before = index.contains_key(&instance);
    if new.as_ref().is_some_and(|migration| is_under_way(migration)) {
        index.entry(instance.clone()).or_default().insert(key.clone());
    } else if let Some(keys) = index.get_mut(&instance) {
        keys.remove(key);
        if keys.is_empty() {
            index.remove(&instance);
        }
    }
    (before != index.contains_key(&instance)).then_some(instance)
}

/// Whether the move itself has begun: one that waits for its turn or for a pod has not.
fn is_under_way(migration: &VirtualMachineInstanceMigration) -> bool {
    use MigrationPhase::{Failed, Pending, PreparingTarget, Running, Scheduled, Scheduling, Succeeded, TargetReady};
    match migration.status.as_ref().and_then(|status| status.phase) {
        Some(PreparingTarget | TargetReady | Running) => true,
        None | Some(Pending | Scheduling | Scheduled | Succeeded | Failed) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn migration(phase: &str) -> Option<Arc<VirtualMachineInstanceMigration>> {
        Some(Arc::new(
            serde_json::from_value(json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
                "metadata": {"name": "m1", "namespace": "default"},
                "spec": {"vmiName": "vm1"}, "status": {"phase": phase},
            }))
            .unwrap(),
        ))
    }

    #[test]
    fn an_instance_moves_from_the_preparation_to_the_end() {
        let mut index = HashMap::new();
        let (key, vm) = (Key::namespaced("default", "m1"), Key::namespaced("default", "vm1"));
        let mut tell = |old, new| {
            let change = Change::Object {
                key: key.clone(),
                old,
                new,
            };
            observe(&mut index, &change)
        };
        assert_eq!(tell(None, migration("Scheduled")), None);
        assert_eq!(
            tell(migration("Scheduled"), migration("PreparingTarget")),
            Some(vm.clone())
        );
        assert_eq!(tell(migration("PreparingTarget"), migration("Running")), None);
        assert_eq!(tell(migration("Running"), migration("Succeeded")), Some(vm.clone()));
        assert_eq!(tell(None, migration("Running")), Some(vm.clone()));
        assert_eq!(tell(migration("Running"), None), Some(vm));
    }
}
