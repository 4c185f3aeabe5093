//! The sides of a migration.

use drydock_api::kubevirt::{
    VirtualMachineInstanceMigration,
    migration::{MigrationSource, MigrationTarget},
};

/// Returns the source side, once it is named.
pub fn source(migration: &VirtualMachineInstanceMigration) -> Option<&MigrationSource> {
    let source = migration.status.as_ref()?.source.as_ref()?;
    source.node.is_some().then_some(source)
}

/// Returns the target side, once it is named.
pub fn target(migration: &VirtualMachineInstanceMigration) -> Option<&MigrationTarget> {
    let target = migration.status.as_ref()?.target.as_ref()?;
    target.node.is_some().then_some(target)
}
