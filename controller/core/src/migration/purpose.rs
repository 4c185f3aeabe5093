//! The purpose of a migration, from KubeVirt's annotations.

use drydock_api::kubevirt::VirtualMachineInstanceMigration;

/// Annotation of a migration that evacuates a node: name of the node (KubeVirt's name).
pub const EVACUATION: &str = "kubevirt.io/evacuationMigration";
/// Annotation of a migration: it moves a guest into a newer pod (KubeVirt's name).
pub const WORKLOAD_UPDATE: &str = "kubevirt.io/workloadUpdateMigration";

/// The purpose of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MigrationPurpose {
    /// A user requested the migration.
    UserRequest,
    /// The guest's node is being drained.
    Evacuation,
    /// The guest is to run in a newer pod.
    WorkloadUpdate,
}

impl MigrationPurpose {
    /// Returns the purpose from the annotations. A migration with both annotations evacuates a node.
    pub fn of(migration: &VirtualMachineInstanceMigration) -> Self {
        let has = |key: &str| {
            let annotations = migration.metadata.annotations.as_ref();
            annotations.is_some_and(|annotations| annotations.contains_key(key))
        };
        if has(EVACUATION) {
            Self::Evacuation
        } else if has(WORKLOAD_UPDATE) {
            Self::WorkloadUpdate
        } else {
            Self::UserRequest
        }
    }
}
