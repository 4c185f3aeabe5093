//! What one reconcile of a migration has executed so far, and the status that it will write.

use drydock_api::kubevirt::migration::MigrationPhase;
use drydock_core::migration::{
    cluster::{ClusterView, TargetPodState},
    record::MigrationRecord,
    status::StatusChange,
};
use jiff::Timestamp;

use super::observe::ObservedMigration;
use crate::reconciler::ReconcileError;

/// What follows a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The state has changed: plan again.
    Plan,
    /// Write the status.
    Write,
    /// The migration is deleted.
    Deleted,
}

/// The effects of one reconcile.
pub(super) struct Execution {
    /// The state that the status will record.
    pub(super) record: MigrationRecord,
    /// The status to write.
    pub(super) change: StatusChange,
    /// When this process created the target pod, if the watch does not show it yet.
    pub(super) made: Option<Timestamp>,
    /// Why the target pod could not be created now.
    pub(super) failed: Option<ReconcileError>,
}

impl Execution {
    /// Starts with the recorded state.
    pub(super) fn new(record: MigrationRecord, observed: &ObservedMigration, made: Option<Timestamp>) -> Self {
        let instance = observed.instance.as_ref();
        Self {
            record,
            change: StatusChange {
                source_node: instance.and_then(|instance| instance.status.as_ref()?.node_name.clone()),
                ..StatusChange::default()
            },
            made,
            failed: None,
        }
    }

    /// Returns an observation with what was executed since.
    pub(super) fn observed(&self, mut seen: ClusterView) -> ClusterView {
        seen.record = self.record;
        if self.made.is_some() {
            seen.target_pod = TargetPodState::Coming;
        }
        seen
    }

    /// Enters a phase.
    pub(super) fn enter(&mut self, phase: MigrationPhase) -> After {
        if phase == MigrationPhase::Succeeded {
            // Phases that were over within a moment were not written by themselves.
            let skipped = [MigrationPhase::TargetReady, MigrationPhase::Running];
            let before = self.record.phase;
            let skipped = skipped.into_iter().filter(|phase| Some(*phase) > before);
            self.change.enter.extend(skipped);
        }
        self.record.phase = Some(phase);
        self.change.enter.push(phase);
        match phase {
            // Both sides act on the written phase, so it is written before anything else is read.
            MigrationPhase::PreparingTarget | MigrationPhase::Succeeded | MigrationPhase::Failed => After::Write,
            _ => After::Plan,
        }
    }
}
