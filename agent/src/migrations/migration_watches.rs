//! The watches for migrations from and to this node.
//!
//! The API server selects these migrations, so that other migrations cause no traffic.

use std::sync::Arc;

use drydock_api::kubevirt::VirtualMachineInstanceMigration;
use drydock_runtime::{Cache, Trigger, Watch, WatchStarter};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;

use crate::{guests::LauncherPods, tunnel::local::Role};

/// Caches of the migrations from and to this node.
pub(crate) struct MigrationWatches {
    from: Cache<VirtualMachineInstanceMigration>,
    to: Cache<VirtualMachineInstanceMigration>,
    pods: LauncherPods,
    changed: Trigger,
}

impl MigrationWatches {
    /// Starts watching the migrations of `node`. Changes of `pods` notify `changed` too.
    pub(crate) fn start(
        client: &Client,
        watches: &WatchStarter,
        node: &str,
        pods: LauncherPods,
        changed: Trigger,
    ) -> Self {
        let side = |name: &'static str, field: &str| {
            Watch::<VirtualMachineInstanceMigration>::all(client.clone(), name)
                .optional()
                .fields(format!("status.{field}.node={node}"))
                .wakes(&changed)
        };
        Self {
            from: watches.start(side("migrations from here", "source")),
            to: watches.start(side("migrations to here", "target")),
            pods,
            changed,
        }
    }

    /// Creates synced caches that contain these migrations.
    #[cfg(test)]
    pub(super) fn filled(
        from: impl IntoIterator<Item = VirtualMachineInstanceMigration>,
        to: impl IntoIterator<Item = VirtualMachineInstanceMigration>,
    ) -> Self {
        Self {
            from: Cache::filled(from),
            to: Cache::filled(to),
            pods: LauncherPods::filled([]),
            changed: Trigger::new(),
        }
    }

    /// Waits until the caches are synced.
    pub(crate) async fn wait_until_synced(&self) {
        tokio::join!(
            self.from.wait_until_synced(),
            self.to.wait_until_synced(),
            self.pods.wait_until_synced()
        );
    }

    /// Waits for a change since the last call.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the migrations in which this node has the role.
    pub(crate) fn migrations(&self, role: Role) -> Vec<Arc<VirtualMachineInstanceMigration>> {
        match role {
            Role::Source => self.from.all(),
            Role::Target => self.to.all(),
            Role::Unknown => Vec::new(),
        }
    }

    /// Returns the launcher pod with this UID, if it is on this node.
    pub(crate) fn pod(&self, uid: &str) -> Option<Arc<Pod>> {
        self.pods.with_uid(uid)
    }
}
