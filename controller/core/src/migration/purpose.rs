//! What a migration is for, as KubeVirt marks it.

use drydock_api::kubevirt::VirtualMachineInstanceMigration;

/// Annotation of a migration that empties a node (KubeVirt's name). Its value is the node.
pub const EVACUATION: &str = "kubevirt.io/evacuationMigration";
/// Annotation of a migration that brings a guest into a newer pod (KubeVirt's name).
pub const WORKLOAD_UPDATE: &str = "kubevirt.io/workloadUpdateMigration";

/// What a migration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// Somebody asked for it.
    Asked,
    /// Its guest's node is being emptied.
    Evacuation,
    /// Its guest is to run in a newer pod.
    WorkloadUpdate,
}

impl Purpose {
    /// What the annotations say. One with both empties a node.
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
            Self::Asked
        }
    }

    /// Whether Drydock makes such migrations itself, and so has to know when to stop.
    pub fn is_automatic(self) -> bool {
        self != Self::Asked
    }
}
