//! The effects of one reconcile of a migration so far, and the status that it will write.

use drydock_api::kubevirt::{VirtualMachineInstance, migration::MigrationPhase};
use drydock_core::migration::{
    record::MigrationRecord,
    status::{StatusChange, is_written_at_once},
};

use crate::reconciler::ReconcileError;

/// Action that follows a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The state has changed, so the next steps are planned.
    Plan,
    /// The status is written.
    Write,
    /// The migration is deleted.
    Deleted,
}

/// The effects of one reconcile.
pub(super) struct Execution {
    /// State that the status will record.
    pub(super) record: MigrationRecord,
    /// Changes of the status to write.
    pub(super) change: StatusChange,
    /// Error of the creation of the target pod.
    pub(super) failed: Option<ReconcileError>,
}

impl Execution {
    /// Starts with the recorded state.
    pub(super) fn new(record: MigrationRecord, instance: Option<&VirtualMachineInstance>) -> Self {
        Self {
            record,
            change: StatusChange {
                source_node: instance.and_then(|instance| instance.status.as_ref()?.node_name.clone()),
                ..StatusChange::default()
            },
            failed: None,
        }
    }

    /// Enters a phase.
    pub(super) fn enter(&mut self, phase: MigrationPhase) -> After {
        self.change.enter(self.record.phase, phase);
        self.record.phase = Some(phase);
        if is_written_at_once(phase) {
            After::Write
        } else {
            After::Plan
        }
    }
}
