//! The measured rate of migrations so far.

use std::sync::Arc;

use drydock_core::drain::{estimate::DrainRate, guest_steps::memory};
use drydock_runtime::Key;
use parking_lot::Mutex;

use crate::{
    instances::Instances,
    migrations::{Migrations, instance_of},
};

/// Measures the rate of succeeded migrations that still exist. Clones share the measurements.
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

    /// Returns the measured rate of migrations. Returns `None` if no migration has succeeded.
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

    /// Adds a migration of a guest with `bytes` bytes of memory that took the time `took`.
    #[cfg(test)]
    pub(crate) fn learned(self, took: std::time::Duration, bytes: u64) -> Self {
        self.measured.lock().add(took, bytes);
        self
    }
}
