//! The rate at which guests have migrated so far.

use std::sync::Arc;

use drydock_core::drain::{estimate::DrainRate, guest_steps::memory};
use drydock_runtime::Key;
use parking_lot::Mutex;

use crate::{
    instances::Instances,
    migrations::{Migrations, instance_of},
};

/// Learns from succeeded migrations that still exist. Clones share the measurements.
#[derive(Clone)]
pub(crate) struct MigrationRate {
    instances: Instances,
    migrations: Migrations,
    measured: Arc<Mutex<DrainRate>>,
}

impl MigrationRate {
    pub(crate) fn new(instances: Instances, migrations: Migrations) -> Self {
        Self {
            instances,
            migrations,
            measured: Arc::default(),
        }
    }

    /// Returns how fast guests have migrated; `None` if none has.
    pub(crate) fn rate(&self) -> Option<DrainRate> {
        for migration in self.migrations.take_succeeded() {
            let guest = self
                .instances
                .get(&instance_of(&Key::of(migration.as_ref()), &migration));
            let bytes = guest.map_or(0, |guest| memory(&guest));
            self.measured.lock().add_migration(&migration, bytes);
        }
        let rate = *self.measured.lock();
        (rate.count > 0).then_some(rate)
    }

    /// Adds a migration that took `took`, of a guest with `bytes` bytes of memory.
    #[cfg(test)]
    pub(crate) fn learned(self, took: std::time::Duration, bytes: u64) -> Self {
        self.measured.lock().add(took, bytes);
        self
    }
}
