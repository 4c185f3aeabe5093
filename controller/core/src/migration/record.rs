//! The state of a migration as its objects show it, reduced to the facts that decisions depend on.

use drydock_api::kubevirt::{
    VirtualMachineInstanceMigration,
    migration::{MigrationPhase, SourceState, TargetState, VirtualMachineInstanceMigrationStatus},
};

use jiff::Timestamp;

use super::convergence::is_given_up_for;

/// The state recorded in a VirtualMachineInstanceMigration: the contract between controller and agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MigrationRecord {
    /// The phase; `None` before the controller's first reconcile.
    pub phase: Option<MigrationPhase>,
    /// The object is being deleted, which aborts the migration.
    pub deleted: bool,
    /// The controller has requested an abort.
    pub abort: bool,
    /// The source node is gone for good, with everything that ran there.
    pub source_gone: bool,
    /// The source has aborted the migration on its own. A loss reported by the target is then a consequence of that.
    pub gave_up: bool,
    /// State of the source. Never [`SourceState::HandedOver`], which describes both sides.
    pub source: Option<SourceState>,
    /// State of the target, reported by the target itself or by the source.
    pub target: Option<TargetState>,
}

impl MigrationRecord {
    /// Reads the record of an object.
    pub fn of(migration: &VirtualMachineInstanceMigration) -> Self {
        let status = migration.status.as_ref();
        let (source, target) = status.map(sides).unwrap_or_default();
        Self {
            phase: status.and_then(|status| status.phase),
            deleted: migration.metadata.deletion_timestamp.is_some(),
            abort: status.is_some_and(|status| status.abort.is_some()),
            source_gone: status.is_some_and(|status| status.source_gone),
            gave_up: status
                .and_then(|status| status.source.as_ref()?.reason.as_deref())
                .is_some_and(is_given_up_for),
            source,
            target,
        }
    }

    /// Updates the record with a state reported by the source.
    pub fn apply_source_state(&mut self, source: SourceState) {
        (self.source, self.target) = both(Some(source), self.target);
    }

    /// Returns whether a field has a value that only a later version knows. Nothing is done for or about such a
    /// migration until the value changes or that version runs again.
    pub fn is_unknown(&self) -> bool {
        self.phase == Some(MigrationPhase::Unknown)
            || self.source == Some(SourceState::Unknown)
            || self.target == Some(TargetState::Unknown)
    }

    /// Returns whether nothing of the migration may start any more.
    pub fn is_given_up(&self) -> bool {
        self.deleted || self.abort || self.is_over()
    }

    /// Returns whether the phase is final.
    pub fn is_over(&self) -> bool {
        self.phase.is_some_and(MigrationPhase::is_final)
    }

    /// Returns whether the migration has failed: the guest does not run on the target, and never will.
    pub fn has_failed(&self) -> bool {
        self.phase == Some(MigrationPhase::Failed)
    }

    /// Returns whether both sides are named, so that the agents act.
    pub fn has_sides(&self) -> bool {
        self.phase.is_some_and(|phase| phase >= MigrationPhase::PreparingTarget)
    }

    /// Returns whether the migration was reconciled before and waits for its turn: its sides are not named.
    pub fn is_queued(&self) -> bool {
        self.phase.is_some() && !self.has_sides()
    }

    /// Returns whether the source reports that the guest's fate on the source is final: nothing there waits for a
    /// decision.
    pub fn source_is_settled(&self) -> bool {
        matches!(
            self.source,
            Some(SourceState::Stopped | SourceState::Stayed | SourceState::Ended)
        )
    }

    /// Returns whether the source's agent may still have to resume the guest, for which it needs the object although
    /// the migration has failed. After a success there is nothing to resume, also if the source has never reported its
    /// end.
    pub fn awaits_source(&self) -> bool {
        self.has_failed() && self.source.is_some() && !self.source_is_settled()
    }

    /// Returns whether the migration was deleted, and is kept for the agent of its source.
    pub fn is_kept_for_source(&self) -> bool {
        self.deleted && self.awaits_source()
    }

    /// Returns whether the target reports that the guest's fate on the target is final.
    pub fn target_is_settled(&self) -> bool {
        matches!(
            self.target,
            Some(TargetState::Running | TargetState::Refused | TargetState::Gone | TargetState::Ended)
        )
    }

    /// Returns whether the source has reported that the guest will never run on the source again.
    pub fn source_has_let_go(&self) -> bool {
        matches!(self.source, Some(SourceState::Released | SourceState::Stopped))
    }
}

/// Returns when a migration first reached a phase, in whole seconds.
pub fn reached_at(migration: &VirtualMachineInstanceMigration, phase: MigrationPhase) -> Option<Timestamp> {
    let mut transitions = migration.status.as_ref()?.phase_transition_timestamps.iter();
    let reached = transitions.find(|transition| transition.phase == phase)?;
    Some(reached.phase_transition_timestamp)
}

/// Returns whether one of the sides reports that the guest runs on the target.
pub(super) fn has_arrived(status: &VirtualMachineInstanceMigrationStatus) -> bool {
    sides(status).1 == Some(TargetState::Running)
}

fn sides(status: &VirtualMachineInstanceMigrationStatus) -> (Option<SourceState>, Option<TargetState>) {
    let source = status.source.as_ref().and_then(|side| side.state);
    let target = status.target.as_ref().and_then(|side| side.state);
    both(source, target)
}

/// Returns the state of both sides from their reports. A state that the target has reported since it took over takes
/// precedence over the source's `HandedOver`.
fn both(source: Option<SourceState>, target: Option<TargetState>) -> (Option<SourceState>, Option<TargetState>) {
    match (source, target) {
        (Some(SourceState::HandedOver), None | Some(TargetState::Prepared | TargetState::Complete)) => {
            (Some(SourceState::Stopped), Some(TargetState::Running))
        }
        (Some(SourceState::HandedOver), reported) => (Some(SourceState::Stopped), reported),
        reported => reported,
    }
}

/// A record in which one field has a value that only a later version knows.
#[cfg(test)]
pub(super) fn any_unknown_record() -> impl proptest::strategy::Strategy<Value = MigrationRecord> {
    use proptest::prelude::*;
    (any_record(), 0..3).prop_map(|(mut record, part)| {
        match part {
            0 => record.phase = Some(MigrationPhase::Unknown),
            1 => record.source = Some(SourceState::Unknown),
            _ => record.target = Some(TargetState::Unknown),
        }
        record
    })
}

/// Any record that objects can contain.
#[cfg(test)]
pub(super) fn any_record() -> impl proptest::strategy::Strategy<Value = MigrationRecord> {
    use proptest::{option, prelude::*, sample::select};
    let phase = select(vec![
        MigrationPhase::Pending,
        MigrationPhase::Scheduling,
        MigrationPhase::Scheduled,
        MigrationPhase::PreparingTarget,
        MigrationPhase::TargetReady,
        MigrationPhase::Running,
        MigrationPhase::Succeeded,
        MigrationPhase::Failed,
    ]);
    let source = SourceState::ALL.into_iter();
    let source = select(
        source
            .filter(|state| *state != SourceState::HandedOver)
            .collect::<Vec<_>>(),
    );
    let target = select(TargetState::ALL.to_vec());
    (
        option::of(phase),
        any::<[bool; 4]>(),
        option::of(source),
        option::of(target),
    )
        .prop_map(
            |(phase, [deleted, abort, source_gone, gave_up], source, target)| MigrationRecord {
                phase,
                deleted,
                abort,
                source_gone,
                gave_up,
                source,
                target,
            },
        )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::migration::{
        cluster::{self, ClusterView, GuestLocation, Instance, SourcePod, TargetPodState, guest_location},
        source::{self, JobState, MigrateCall, SourceDomain, SourceTunnel, SourceView},
        target::{self, TargetDomain, TargetTunnel, TargetView},
    };

    #[test]
    fn migration_is_queued_from_the_first_phase_until_the_sides() {
        use MigrationPhase::{Failed, Pending, PreparingTarget, Running, Scheduled, Scheduling, Succeeded};
        for (phase, expected) in [
            (None, false),
            (Some(Pending), true),
            (Some(Scheduling), true),
            (Some(Scheduled), true),
            (Some(PreparingTarget), false),
            (Some(Running), false),
            (Some(Succeeded), false),
            (Some(Failed), false),
        ] {
            let record = MigrationRecord {
                phase,
                ..MigrationRecord::default()
            };
            assert_eq!(record.is_queued(), expected, "{phase:?}");
        }
    }

    proptest! {
        /// `migration_search` checks the same property for each state that it reaches.
        #[test]
        fn unknown_values_make_every_party_wait(
            record in any_unknown_record(),
            domain in prop::sample::select(vec![
                SourceDomain::Running,
                SourceDomain::Leaving,
                SourceDomain::PostCopy,
                SourceDomain::Left,
                SourceDomain::Ended,
            ]),
            there in prop::sample::select(vec![
                TargetDomain::Absent,
                TargetDomain::Incoming,
                TargetDomain::Complete,
                TargetDomain::Running,
                TargetDomain::Over,
            ]),
            [open, flag, late] in any::<[bool; 3]>(),
        ) {
            let source = SourceView {
                record,
                domain,
                job: JobState::None,
                call: MigrateCall::Failed,
                tunnel: if open {
                    SourceTunnel::Open { paired: flag, reply_read: flag, acknowledged: late }
                } else {
                    SourceTunnel::Missing
                },
                stood_still: flag,
                target_is_late: late,
                is_stuck: flag,
            };
            prop_assert_eq!(source::step(&source), []);
            let target = TargetView {
                record,
                tunnel: if open {
                    TargetTunnel::Open { paired: flag, released: flag, taken_over: late }
                } else {
                    TargetTunnel::Missing
                },
                domain: there,
                fits: Some(flag),
                source_is_late: late,
            };
            prop_assert_eq!(target::step(&target), []);
            let cluster = ClusterView {
                record,
                another: flag,
                instance: if open { Instance::Moved } else { Instance::Running },
                target_pod: if flag { TargetPodState::Ready } else { TargetPodState::Over },
                source_pod: if late { SourcePod::Left } else { SourcePod::Alive },
                source_node_gone: open,
                target_node_gone: flag,
                may_place: true,
                has_slot: true,
                overdue: true,
                has_finalizer: true,
            };
            prop_assert_eq!(cluster::step(&cluster), []);
            prop_assert_eq!(guest_location(&cluster), GuestLocation::Source);
        }
    }
}
