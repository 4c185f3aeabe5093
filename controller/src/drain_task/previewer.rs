//! What emptying a node would do, and how fast guests have moved until now.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use drydock_api::kubevirt::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use drydock_core::{
    drain::{Cluster, DrainingNode, Guest, NodeMarks, estimate::Rate, preview},
    eviction::made,
    migration::deadlines::Attempts,
};
use drydock_runtime::{Key, clock};

use crate::{
    instances::Instances,
    launchers::Launchers,
    migrations::{Migrations, instance_of},
};

/// Says what emptying a node would do, from the caches alone: any replica can.
#[derive(Clone)]
pub(crate) struct Previewer {
    pub(super) instances: Instances,
    pub(super) migrations: Migrations,
    pub(super) launchers: Launchers,
    measured: Arc<Measured>,
}

impl Previewer {
    pub(crate) fn new(instances: Instances, migrations: Migrations, launchers: Launchers) -> Self {
        Self {
            instances,
            migrations,
            launchers,
            measured: Arc::default(),
        }
    }

    /// A line for all guests of the node, and one for each.
    pub(crate) fn lines(&self, name: &str) -> Vec<String> {
        let keys = self.instances.on_node(name);
        let there: Vec<_> = keys
            .iter()
            .filter_map(|key| Some((key, self.instances.get(key)?)))
            .collect();
        let guests = there
            .iter()
            .map(|(key, instance)| guest(&self.launchers, instance, self.migrations.of_instance(key)));
        let node = DrainingNode {
            name,
            marks: NodeMarks::default(),
            guests: guests.collect(),
            arriving: 0,
            evictable: None,
            before: None,
        };
        preview::preview(
            &node,
            &Cluster {
                now: clock::now(),
                nodes: &[],
                limits: &self.launchers.configuration.get().migrations,
                attempts: Attempts::default(),
                rate: self.rate(),
            },
        )
    }

    /// How fast guests have moved until now.
    pub(super) fn rate(&self) -> Option<Rate> {
        self.measured.learn(&self.migrations, &self.instances);
        self.measured.rate()
    }
}

/// A guest as a plan and a preview see it.
pub(super) fn guest<'a>(
    launchers: &Launchers,
    instance: &'a VirtualMachineInstance,
    migrations: Vec<Arc<VirtualMachineInstanceMigration>>,
) -> Guest<'a> {
    Guest {
        instance,
        strategy: launchers.eviction_strategy(instance),
        made: launchers.of(instance).iter().filter_map(|pod| made(pod)).min(),
        migrations,
        refused: None,
    }
}

/// How fast guests have moved, as far as migrations are kept.
#[derive(Debug, Default)]
struct Measured(Mutex<Rate>);

impl Measured {
    /// Takes account of migrations that have succeeded.
    fn learn(&self, migrations: &Migrations, instances: &Instances) {
        for migration in migrations.take_succeeded() {
            let Some(took) = took(&migration) else { continue };
            let guest = instances.get(&instance_of(&Key::of(migration.as_ref()), &migration));
            let bytes = guest.map_or(0, |guest| drydock_core::drain::guest::memory(&guest));
            self.rate_now().add(took, bytes);
        }
    }

    fn rate(&self) -> Option<Rate> {
        let rate = *self.rate_now();
        (rate.count > 0).then_some(rate)
    }

    fn rate_now(&self) -> MutexGuard<'_, Rate> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a migration that has succeeded took in all.
fn took(migration: &VirtualMachineInstanceMigration) -> Option<Duration> {
    let state = migration.status.as_ref()?.migration_state.as_ref()?;
    let (from, to) = (migration.metadata.creation_timestamp.as_ref()?.0, state.end_timestamp?);
    Some(to.duration_since(from).unsigned_abs())
}
