//! Writes to migrations: status, events, finalizer and deletion.

use drydock_api::{
    CONTROLLER_FIELD_MANAGER,
    kubevirt::{VirtualMachineInstanceMigration, migration::MigrationPhase, names::MIGRATION_FINALIZER},
};
use drydock_core::migration::{
    retention::oldest_first,
    sides::target,
    status::{StatusChange, after, differs, failure_message},
};
use drydock_runtime::{Key, Severity, apply_status, version_of};
use jiff::Timestamp;
use kube::{ResourceExt, api::Patch};
use serde_json::json;
use tracing::info;

use super::MigrationTask;
use crate::{
    migrations::instance_of,
    requests::{deleting, patching, unless_changed, unless_missing, without_finalizer},
};

impl MigrationTask {
    /// Writes the controller's part of the status, if the migration has not changed since it was read.
    pub(super) async fn write(
        &self,
        key: &Key,
        migration: &VirtualMachineInstanceMigration,
        change: &StatusChange,
        now: Timestamp,
    ) -> kube::Result<()> {
        let wanted = after(migration, change, now);
        if !differs(migration, &wanted) {
            return Ok(());
        }
        let metadata = version_of(migration);
        let stored = apply_status(&self.context.api(key), metadata, CONTROLLER_FIELD_MANAGER, wanted).await?;
        self.context.migrations.objects.remember(key, stored);
        self.announce(migration, change);
        Ok(())
    }

    /// Publishes the events of a write.
    fn announce(&self, migration: &VirtualMachineInstanceMigration, change: &StatusChange) {
        if let Some((failure, detail)) = &change.fail {
            let note = failure_message(*failure, detail);
            info!(migration = %Key::of(migration), migration_uid = migration.metadata.uid, reason = failure.reason(), "{note}");
            self.events
                .record(migration, Severity::Warning, "FailedMigration", note);
        }
        // The preparation of the target has no event here, because the agent reports it.
        if change.enter.contains(&MigrationPhase::Succeeded) {
            let node = target(migration)
                .and_then(|side| side.node.as_deref())
                .unwrap_or_default();
            info!(migration = %Key::of(migration), migration_uid = migration.metadata.uid, node, "migration succeeded");
            let note = "Source node reported migration succeeded";
            self.events
                .record(migration, Severity::Normal, "SuccessfulMigration", note);
        }
    }

    pub(super) async fn remove_finalizer(
        &self,
        key: &Key,
        migration: &VirtualMachineInstanceMigration,
    ) -> kube::Result<()> {
        let finalizers = without_finalizer(migration, MIGRATION_FINALIZER);
        let patch = json!({"metadata": {
            "uid": migration.uid(), "finalizers": finalizers, "resourceVersion": migration.resource_version(),
        }});
        let result = self
            .context
            .api::<VirtualMachineInstanceMigration>(key)
            .patch(&migration.name_any(), &patching(), &Patch::Merge(patch))
            .await;
        self.context.migrations.objects.forget(key);
        unless_missing(result).map(drop)
    }

    /// Deletes the oldest ended migrations of an instance that are due.
    pub(super) async fn forget_old(&self, key: &Key, migration: &VirtualMachineInstanceMigration) -> kube::Result<()> {
        let ended = oldest_first(
            self.context.migrations.of_instance(&instance_of(key, migration)),
            migration,
        );
        for old in ended.iter().take(self.trimming.due(key, ended.len())) {
            self.delete(&Key::of(old.as_ref()), old).await?;
        }
        Ok(())
    }

    pub(super) async fn delete(&self, key: &Key, migration: &VirtualMachineInstanceMigration) -> kube::Result<()> {
        // The watch may not show the deletion of the migration yet.
        let newest = self.context.migrations.objects.newest(key);
        if newest.is_none_or(|newest| newest.metadata.deletion_timestamp.is_some()) {
            return Ok(());
        }
        let parameters = deleting(migration.uid());
        let response = self.context.api(key).delete(&migration.name_any(), &parameters).await;
        // The migration exists until its finalizer is removed.
        if let Some(stored) = unless_changed(response)?
            && let Some(deleted) = stored.left()
        {
            self.context.migrations.objects.remember(key, deleted);
        }
        Ok(())
    }
}
