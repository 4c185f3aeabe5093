//! Summaries of migrations, for failure messages.

use drydock_api::kubevirt::VirtualMachineInstanceMigration;

/// Returns the state of a migration in one line, for failure messages.
pub fn summary(migration: &VirtualMachineInstanceMigration) -> String {
    let status = migration.status.clone().unwrap_or_default();
    let state = status.migration_state.unwrap_or_default();
    let (source, target) = (status.source.unwrap_or_default(), status.target.unwrap_or_default());
    format!(
        "{:?} {:?} ({:?}); source {:?} {:?} {:?} ({:?}); target {:?} {:?} ({:?})",
        status.phase,
        status.reason,
        state.failure_reason,
        source.state,
        source.mode,
        source.reason,
        source.message,
        target.state,
        target.reason,
        target.message
    )
}
