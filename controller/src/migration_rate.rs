//! How fast guests have moved until now.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use drydock_api::kubevirt::VirtualMachineInstanceMigration;
use drydock_core::drain::{estimate::Rate, guest::memory};
use drydock_runtime::Key;

use crate::{
    instances::Instances,
    migrations::{Migrations, instance_of},
};

/// Learns from migrations that have succeeded, as far as they are kept. Clones share what they have learned.
#[derive(Clone)]
pub(crate) struct MigrationRate {
    instances: Instances,
    migrations: Migrations,
    measured: Arc<Mutex<Rate>>,
}

impl MigrationRate {
    pub(crate) fn new(instances: Instances, migrations: Migrations) -> Self {
        Self {
            instances,
            migrations,
            measured: Arc::default(),
        }
    }

    /// How fast guests have moved; `None` if none has.
    pub(crate) fn rate(&self) -> Option<Rate> {
        for migration in self.migrations.take_succeeded() {
            let Some(took) = took(&migration) else { continue };
            let guest = self
                .instances
                .get(&instance_of(&Key::of(migration.as_ref()), &migration));
            let bytes = guest.map_or(0, |guest| memory(&guest));
            self.measured().add(took, bytes);
        }
        let rate = *self.measured();
        (rate.count > 0).then_some(rate)
    }

    /// With a migration that took so long, of a guest with so many bytes.
    #[cfg(test)]
    pub(crate) fn learned(self, took: Duration, bytes: u64) -> Self {
        self.measured().add(took, bytes);
        self
    }

    fn measured(&self) -> MutexGuard<'_, Rate> {
        self.measured.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a migration that has succeeded held its slot.
fn took(migration: &VirtualMachineInstanceMigration) -> Option<Duration> {
    let state = migration.status.as_ref()?.migration_state.as_ref()?;
    Some(
        state
            .end_timestamp?
            .duration_since(state.start_timestamp?)
            .unsigned_abs(),
    )
}
