//! What the objects say of a migration, without what no decision depends on.

use drydock_api::kubevirt::{
    VirtualMachineInstanceMigration,
    migration::{MigrationPhase, SourceState, TargetState, VirtualMachineInstanceMigrationStatus},
};

use super::convergence::is_given_up_for;

/// What a VirtualMachineInstanceMigration says: the agreement between controller and agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Record {
    /// The phase; `None` if nobody has looked at it yet.
    pub phase: Option<MigrationPhase>,
    /// The object is being deleted, which gives the migration up.
    pub deleted: bool,
    /// The controller gives it up.
    pub abort: bool,
    /// The source's node is gone for good, and whatever ran there.
    pub source_gone: bool,
    /// The source has given it up by itself: what the target lost, it lost for that.
    pub gave_up: bool,
    /// How far the source is: never [`SourceState::HandedOver`], which says something of both.
    pub source: Option<SourceState>,
    /// How far the target is, by its own word or its source's.
    pub target: Option<TargetState>,
}

impl Record {
    /// What an object says.
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

    /// Takes in what the source says.
    pub fn hear_source(&mut self, said: SourceState) {
        (self.source, self.target) = both(Some(said), self.target);
    }

    /// A part of it says something that only a later version knows. Nothing is done for such a migration, and nothing
    /// about it, until it says something else or that version is back.
    pub fn is_unknown(&self) -> bool {
        self.phase == Some(MigrationPhase::Unknown)
            || self.source == Some(SourceState::Unknown)
            || self.target == Some(TargetState::Unknown)
    }

    /// Nothing of it is to begin any more.
    pub fn is_given_up(&self) -> bool {
        self.deleted || self.abort || self.is_over()
    }

    /// Its phase is final.
    pub fn is_over(&self) -> bool {
        self.phase.is_some_and(MigrationPhase::is_final)
    }

    /// It has failed: the guest does not run on the target, and never will.
    pub fn has_failed(&self) -> bool {
        self.phase == Some(MigrationPhase::Failed)
    }

    /// Both sides are named, so that agents act.
    pub fn has_sides(&self) -> bool {
        self.phase.is_some_and(|phase| phase >= MigrationPhase::PreparingTarget)
    }

    /// The guest is where it stays, as its source says: nothing of it waits there for a decision.
    pub fn source_is_settled(&self) -> bool {
        matches!(
            self.source,
            Some(SourceState::Stopped | SourceState::Stayed | SourceState::Ended)
        )
    }

    /// The same of the target.
    pub fn target_is_settled(&self) -> bool {
        matches!(
            self.target,
            Some(TargetState::Running | TargetState::Refused | TargetState::Gone | TargetState::Ended)
        )
    }

    /// The source has said that the guest will never run there again.
    pub fn source_has_let_go(&self) -> bool {
        matches!(self.source, Some(SourceState::Released | SourceState::Stopped))
    }
}

/// The guest runs on the target, as one of the sides says.
pub(super) fn has_arrived(status: &VirtualMachineInstanceMigrationStatus) -> bool {
    sides(status).1 == Some(TargetState::Running)
}

fn sides(status: &VirtualMachineInstanceMigrationStatus) -> (Option<SourceState>, Option<TargetState>) {
    let source = status.source.as_ref().and_then(|side| side.state);
    let target = status.target.as_ref().and_then(|side| side.state);
    both(source, target)
}

/// How far both sides are by what each has said. What a target has said since it took the guest over counts more than
/// its source's word that it did.
fn both(source: Option<SourceState>, target: Option<TargetState>) -> (Option<SourceState>, Option<TargetState>) {
    match (source, target) {
        (Some(SourceState::HandedOver), None | Some(TargetState::Prepared | TargetState::Complete)) => {
            (Some(SourceState::Stopped), Some(TargetState::Running))
        }
        (Some(SourceState::HandedOver), said) => (Some(SourceState::Stopped), said),
        said => said,
    }
}

/// A record of which a part says something that only a later version knows.
#[cfg(test)]
pub(super) fn any_unknown_record() -> impl proptest::strategy::Strategy<Value = Record> {
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

/// Any record that objects can say.
#[cfg(test)]
pub(super) fn any_record() -> impl proptest::strategy::Strategy<Value = Record> {
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
            |(phase, [deleted, abort, source_gone, gave_up], source, target)| Record {
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
        cluster::{self, ClusterView, GuestLocation, Instance, SourcePod, TargetPod, guest_location},
        source::{self, Call, Job, SourceDomain, SourceTunnel, SourceView},
        target::{self, TargetDomain, TargetTunnel, TargetView},
    };

    proptest! {
        /// The search of all that can happen checks the same of each world that it reaches.
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
                job: Job::None,
                call: Call::Failed,
                tunnel: if open {
                    SourceTunnel::Open { paired: flag, reply_read: flag, acknowledged: late }
                } else {
                    SourceTunnel::Missing
                },
                stood_still: flag,
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
                target_pod: if flag { TargetPod::Ready } else { TargetPod::Over },
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
