//! The states of a guest that is to leave its node, and the stable reasons why the guest is still on the node.

use crate::vm_conditions::POD_TERMINATING;

/// State of a guest that is to leave its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvacuationState {
    /// The guest is to leave, and is not marked yet.
    ToBeMarked,
    /// Nothing prevents the guest's migration, and no migration exists.
    MayGo,
    /// The guest is being migrated.
    Moving(String),
    /// The guest waits.
    Waiting(EvacuationCause, String),
    /// The guest stays until a user intervenes.
    Blocked(EvacuationCause, String),
    /// The guest is being shut down, or will be once it is evicted.
    ShuttingDown(EvacuationCause, String),
}

/// Why a guest is still on a node that is being drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvacuationCause {
    /// The migration of the virtual machine is next, or running.
    Migration,
    /// The migration waits; the reason is that of its own condition `Waiting`.
    Queued(String),
    /// The last migration failed, and the next attempt is not due yet.
    BackOff,
    /// The agent has not reported yet whether the virtual machine can be live migrated.
    NotKnownYet,
    /// A component other than Drydock is to move the virtual machine (eviction strategy `External`).
    External,
    /// The API server rejects the request that would move the virtual machine.
    Refused,
    /// The virtual machine cannot be live migrated; its condition `LiveMigratable` has the reason.
    NotMigratable,
    /// No other node can take the virtual machine; its condition `MigrationTargetAvailable` has the reason.
    NoTarget,
    /// All attempts to migrate the virtual machine have failed.
    CannotEvacuate,
    /// The node is only cordoned: nothing has requested the virtual machine to leave.
    NotRequested,
    /// A PodDisruptionBudget that is not Drydock's allows no eviction of the pod now.
    DisruptionBudget,
    /// The virtual machine is being deleted.
    Deleted,
    /// The pod is being deleted, which shuts the virtual machine down.
    PodTerminating,
    /// The eviction strategy does not protect the virtual machine: its eviction shuts it down.
    NotProtected,
    /// The virtual machine cannot be migrated: its eviction shuts it down, and it is started on another node.
    Restart,
}

impl EvacuationCause {
    /// Returns the stable reason.
    pub fn reason(&self) -> &str {
        match self {
            Self::Migration => "Migration",
            Self::Queued(reason) => reason,
            Self::BackOff => "BackOff",
            Self::NotKnownYet => "LiveMigratableUnknown",
            Self::External => "External",
            Self::Refused => "Refused",
            Self::NotMigratable => "NotMigratable",
            Self::NoTarget => "NoTargetAvailable",
            Self::CannotEvacuate => "CannotEvacuate",
            Self::NotRequested => "NotRequested",
            Self::DisruptionBudget => "DisruptionBudget",
            Self::Deleted => "Deleted",
            Self::PodTerminating => POD_TERMINATING,
            Self::NotProtected => "ShutDownWhenEvicted",
            Self::Restart => "RestartWhenEvicted",
        }
    }
}
