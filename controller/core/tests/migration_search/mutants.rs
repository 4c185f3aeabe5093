//! Decisions with one guard removed, each of which the search must detect.

use drydock_api::kubevirt::migration::{MigrationPhase, SourceState, TargetState};
use drydock_core::migration::{
    cluster::{ClusterStep, ClusterView, GuestLocation, MigrationFailure, SourcePod},
    hand_over::Proof,
    source::{JobState, SourceDomain, SourceStep, SourceTunnel, SourceView},
    target::{TargetDomain, TargetStep, TargetTunnel, TargetView},
};

/// A removed guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// The source releases the target as soon as the guest is paused.
    ReleasesWithoutProof,
    /// The source reports `HandedOver` before its tunnel has received the acknowledgement.
    HandsOverUnacknowledged,
    /// The source reports `HandedOver` for a guest that has not left yet.
    HandsOverWhatHasNotLeft,
    /// The target waits for its source's report for ever, even if the source's node is gone.
    WaitsForItsSource,
    /// The source waits for its target's acknowledgement for ever.
    WaitsForItsTarget,
    /// The source resumes its guest although it has released it.
    ResumesWhatItLetGo,
    /// The source resumes its guest when no job is running, whatever the target has.
    ResumesIgnoringTheTarget,
    /// The source reports `Stayed` while a call of an earlier process may be on its way.
    StaysWithoutClosing,
    /// The source does not report `Migrating` before it calls libvirt.
    StartsUnreported,
    /// The target admits the source of a migration that was aborted.
    PairsThoughGivenUp,
    /// The source treats a guest that ended while paused as migrated away.
    TakesAnEndForALeaving,
    /// The source treats a job that it read before the guest was paused as current.
    ReadsTheJobFirst,
    /// The source does not report `Halted`.
    NeverHalts,
    /// The source treats a guest that its user has paused, and of which libvirt has no job, as a guest that stays.
    KeepsAPausedGuest,
    /// The target destroys its copy without closing the session.
    DestroysWithoutClosing,
    /// The target resumes a guest as soon as it is complete.
    ResumesWithoutRelease,
    /// The same for the tunnel.
    TunnelResumesWhatIsComplete,
    /// The source's tunnel records in the pod that the guest has left as soon as it is paused.
    RecordsTheLeavingWithoutProof,
    /// The target destroys a complete guest when the migration is aborted.
    DiscardsWhenGivenUp,
    /// The controller fails the migration when nothing arrived, although the source may have released the guest.
    FailsWhenNothingArrives,
    /// The controller fails the migration when the guest has ended on its source, although its tunnel may have released
    /// it.
    FailsWhenTheSourceEnded,
    /// The controller ignores concurrent writes to the object.
    ControllerWritesWithoutVersion,
    /// The controller removes the finalizer before the source has settled.
    RemovesTheFinalizerTooEarly,
    /// The migration succeeds as soon as the target runs the guest.
    SucceedsBeforeTheSourceStopped,
    /// A passed deadline fails the migration even when the guest may already move.
    FailsWhenOverdue,
    /// The VMI is moved as soon as the target runs the guest.
    MovesBeforeTheSourceStopped,
    /// The loss of the source's node is never recorded.
    NeverRecordsTheLossOfTheSource,
    /// The controller considers a node gone whose Node object was deleted, although its agent is alive.
    TakesADeletedNodeForGone,
    /// The source destroys its part of a switched guest while the target still needs it.
    DestroysWhatIsToFollow,
    /// The target reports a switched guest as running before all of it is there.
    ReportsRunningTooEarly,
    /// The target destroys a switched guest when the migration is aborted.
    DiscardsWhatWasSwitched,
    /// An agent carries out a user's command for a guest that the instance names on another node.
    CommandsReachEitherNode,
}

impl Mutant {
    /// All mutants.
    pub(crate) const ALL: [Self; 32] = [
        Self::ReleasesWithoutProof,
        Self::HandsOverUnacknowledged,
        Self::HandsOverWhatHasNotLeft,
        Self::WaitsForItsSource,
        Self::WaitsForItsTarget,
        Self::ResumesWhatItLetGo,
        Self::ResumesIgnoringTheTarget,
        Self::StaysWithoutClosing,
        Self::StartsUnreported,
        Self::PairsThoughGivenUp,
        Self::TakesAnEndForALeaving,
        Self::ReadsTheJobFirst,
        Self::NeverHalts,
        Self::KeepsAPausedGuest,
        Self::DestroysWithoutClosing,
        Self::ResumesWithoutRelease,
        Self::TunnelResumesWhatIsComplete,
        Self::RecordsTheLeavingWithoutProof,
        Self::DiscardsWhenGivenUp,
        Self::FailsWhenNothingArrives,
        Self::FailsWhenTheSourceEnded,
        Self::ControllerWritesWithoutVersion,
        Self::RemovesTheFinalizerTooEarly,
        Self::SucceedsBeforeTheSourceStopped,
        Self::FailsWhenOverdue,
        Self::MovesBeforeTheSourceStopped,
        Self::NeverRecordsTheLossOfTheSource,
        Self::TakesADeletedNodeForGone,
        Self::DestroysWhatIsToFollow,
        Self::ReportsRunningTooEarly,
        Self::DiscardsWhatWasSwitched,
        Self::CommandsReachEitherNode,
    ];

    /// Returns whether the mutant shows only where a guest may be switched to post-copy.
    pub(crate) fn needs_post_copy(self) -> bool {
        matches!(
            self,
            Self::DestroysWhatIsToFollow | Self::ReportsRunningTooEarly | Self::DiscardsWhatWasSwitched
        )
    }

    /// Returns whether the mutant shows only with a guest that its user has paused.
    pub(crate) fn needs_paused_guest(self) -> bool {
        self == Self::KeepsAPausedGuest
    }

    /// Returns the number of faults that the mutant needs to show.
    pub(crate) fn faults(self) -> u8 {
        match self {
            Self::FailsWhenTheSourceEnded
            | Self::RecordsTheLeavingWithoutProof
            | Self::PairsThoughGivenUp
            | Self::CommandsReachEitherNode => 2,
            _ => 1,
        }
    }

    /// The source's steps.
    pub(crate) fn source(
        mutant: Option<Self>,
        view: &SourceView,
        step: fn(&SourceView) -> Vec<SourceStep>,
    ) -> Vec<SourceStep> {
        let steps = step(view);
        let open = matches!(view.tunnel, SourceTunnel::Open { .. });
        let still = view.domain == SourceDomain::Leaving;
        let moving = view.record.source == Some(SourceState::Migrating);
        match mutant {
            Some(Self::WaitsForItsTarget) => step(&SourceView {
                target_is_late: false,
                ..*view
            }),
            Some(Self::DestroysWhatIsToFollow) if view.domain == SourceDomain::PostCopy => vec![SourceStep::Destroy],
            Some(Self::ReleasesWithoutProof) if still && open && moving => {
                vec![SourceStep::Release(Proof::SourceGone)]
            }
            Some(Self::HandsOverUnacknowledged)
                if moving && steps.contains(&SourceStep::Report(SourceState::Stopped)) =>
            {
                vec![SourceStep::Report(SourceState::HandedOver)]
            }
            Some(Self::HandsOverWhatHasNotLeft)
                if still && moving && matches!(view.tunnel, SourceTunnel::Open { acknowledged: true, .. }) =>
            {
                vec![SourceStep::Report(SourceState::HandedOver)]
            }
            Some(Self::ResumesWhatItLetGo) if still && view.job == JobState::None && !moving => {
                vec![SourceStep::Resume]
            }
            Some(Self::ResumesIgnoringTheTarget) if still && view.job == JobState::None && moving => {
                vec![SourceStep::Resume]
            }
            Some(Self::KeepsAPausedGuest)
                if view.domain == SourceDomain::Paused && view.job == JobState::None && moving =>
            {
                let domain = SourceDomain::Running;
                step(&SourceView { domain, ..*view })
            }
            Some(Self::NeverHalts) if steps == [SourceStep::Report(SourceState::Halted)] => Vec::new(),
            Some(Self::StaysWithoutClosing) if moving && steps == [SourceStep::Close] => {
                vec![SourceStep::Report(SourceState::Stayed)]
            }
            Some(Self::StartsUnreported) if steps == [SourceStep::Report(SourceState::Migrating)] => {
                vec![SourceStep::Start]
            }
            Some(Self::TakesAnEndForALeaving) if view.domain == SourceDomain::Ended && moving => {
                let domain = SourceDomain::Left;
                step(&SourceView { domain, ..*view })
            }
            _ => steps,
        }
    }

    /// The target's steps.
    pub(crate) fn target(
        mutant: Option<Self>,
        view: &TargetView,
        step: fn(&TargetView) -> Vec<TargetStep>,
    ) -> Vec<TargetStep> {
        let steps = step(view);
        let complete = view.domain == TargetDomain::Complete;
        match mutant {
            Some(Self::WaitsForItsSource) if view.domain == TargetDomain::Running => {
                let mut view = *view;
                (view.source_is_late, view.record.source_gone) = (false, false);
                step(&view)
            }
            Some(Self::ReportsRunningTooEarly) if view.domain == TargetDomain::PostCopy => {
                let domain = TargetDomain::Running;
                step(&TargetView { domain, ..*view })
            }
            Some(Self::DiscardsWhatWasSwitched)
                if view.domain == TargetDomain::PostCopy && view.record.is_given_up() =>
            {
                vec![TargetStep::Destroy]
            }
            Some(Self::PairsThoughGivenUp)
                if matches!(view.tunnel, TargetTunnel::Open { paired: false, .. })
                    && view.domain == TargetDomain::Absent
                    && view.record.source == Some(SourceState::Migrating) =>
            {
                vec![TargetStep::Pair]
            }
            Some(Self::DestroysWithoutClosing) if complete && steps == [TargetStep::Close] => {
                vec![TargetStep::Destroy]
            }
            Some(Self::ResumesWithoutRelease) if complete && view.record.target == Some(TargetState::Complete) => {
                vec![TargetStep::TakeOver]
            }
            Some(Self::DiscardsWhenGivenUp) if complete && steps.is_empty() && view.record.is_given_up() => {
                match view.tunnel {
                    TargetTunnel::Open { .. } => vec![TargetStep::Close],
                    _ => vec![TargetStep::Destroy],
                }
            }
            _ => steps,
        }
    }

    /// The controller's steps.
    pub(crate) fn cluster(
        mutant: Option<Self>,
        view: &ClusterView,
        step: fn(&ClusterView) -> Vec<ClusterStep>,
    ) -> Vec<ClusterStep> {
        let mut steps = step(view);
        let record = view.record;
        let moving = record.has_sides() && !record.is_over();
        match mutant {
            Some(Self::FailsWhenNothingArrives) if moving && record.target == Some(TargetState::Gone) => {
                vec![ClusterStep::Fail(MigrationFailure::TargetLost)]
            }
            Some(Self::FailsWhenTheSourceEnded) if moving && record.source == Some(SourceState::Ended) => {
                vec![ClusterStep::Fail(MigrationFailure::GuestEnded)]
            }
            Some(Self::RemovesTheFinalizerTooEarly) if record.is_over() && record.deleted && view.has_finalizer => {
                vec![ClusterStep::RemoveFinalizer]
            }
            Some(Self::SucceedsBeforeTheSourceStopped) if moving && record.target == Some(TargetState::Running) => {
                vec![ClusterStep::Enter(MigrationPhase::Succeeded)]
            }
            Some(Self::FailsWhenOverdue) if moving && view.overdue => {
                vec![ClusterStep::Fail(MigrationFailure::Overdue)]
            }
            Some(Self::NeverRecordsTheLossOfTheSource) => {
                steps.retain(|step| *step != ClusterStep::RecordSourceGone);
                steps
            }
            _ => steps,
        }
    }

    /// Where the guest is, according to the migration.
    pub(crate) fn guest_location(
        mutant: Option<Self>,
        view: &ClusterView,
        guest_location: fn(&ClusterView) -> GuestLocation,
    ) -> GuestLocation {
        let mut view = *view;
        if mutant == Some(Self::MovesBeforeTheSourceStopped) && view.record.target == Some(TargetState::Running) {
            view.source_pod = SourcePod::Left;
        }
        guest_location(&view)
    }
}
