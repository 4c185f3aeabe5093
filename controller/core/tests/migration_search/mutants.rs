//! Decisions with one guard left out, each of which the search must find.

use drydock_api::kubevirt::migration::{MigrationPhase, SourceState, TargetState};
use drydock_core::migration::{
    cluster::{ClusterStep, ClusterView, Failure, GuestLocation, SourcePod},
    hand_over::Proof,
    source::{Job, SourceDomain, SourceStep, SourceTunnel, SourceView},
    target::{TargetDomain, TargetStep, TargetTunnel, TargetView},
};

/// One guard that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// The source tells the target as soon as the guest stands still.
    ReleasesWithoutProof,
    /// The source says that it has handed the guest over before its tunnel has heard so.
    HandsOverWithoutHearing,
    /// The source says so of a guest that has not left yet.
    HandsOverWhatHasNotLeft,
    /// The target waits for its source's word for ever, also if the source's node is gone.
    WaitsForItsSource,
    /// The source lets its guest go on though it has said that it will not.
    ResumesWhatItLetGo,
    /// The source lets its guest go on when nobody works on it, whatever the target has.
    ResumesWithoutWordOfTheTarget,
    /// The source says that it stayed while a call of an earlier process may be on its way.
    StaysWithoutClosing,
    /// The source does not say that the guest moves before it asks libvirt.
    StartsWithoutSaying,
    /// The target lets a source in of a migration that was given up.
    PairsThoughGivenUp,
    /// The source takes a guest that ended while it stood still for one that has left.
    TakesAnEndForALeaving,
    /// The source takes a job that it read before the guest stood still for that of now.
    ReadsTheJobFirst,
    /// The source does not say that nothing moves its guest any more.
    NeverHalts,
    /// The target ends what it has without closing the session.
    DestroysWithoutClosing,
    /// The target lets a guest go on as soon as it is complete.
    ResumesWithoutRelease,
    /// The tunnel does.
    TunnelResumesWhatIsComplete,
    /// The source's tunnel says in the pod that the guest has left as soon as it stands still.
    SaysThatItLeftWithoutProof,
    /// The target ends a complete guest when the migration is given up.
    DiscardsWhenGivenUp,
    /// The controller fails it when nothing arrived, though the source may have let go.
    FailsWhenNothingArrives,
    /// The controller fails it when the guest has ended on its source, though its tunnel may have let go.
    FailsWhenTheSourceEnded,
    /// The controller writes whatever the object says meanwhile.
    ControllerWritesWithoutVersion,
    /// The controller takes the finalizer off before the source has settled.
    RemovesTheFinalizerTooEarly,
    /// It has succeeded when the target runs the guest.
    SucceedsBeforeTheSourceStopped,
    /// Too late is too late, also once the guest may move.
    FailsWhenOverdue,
    /// The instance is moved when the target runs the guest.
    MovesBeforeTheSourceStopped,
    /// Nobody is told that the source's node is gone.
    NeverTellsThatTheSourceIsGone,
    /// The controller takes a node for gone whose Node object was deleted, though its agent lives.
    TakesADeletedNodeForGone,
    /// The source ends what it has of a guest that was switched while the target still needs it.
    DestroysWhatIsToFollow,
    /// The target says that a guest that was switched is there before all of it is.
    SaysThatItRunsBeforeItIsThere,
    /// The target ends a guest that was switched and given up.
    DiscardsWhatWasSwitched,
}

impl Mutant {
    /// All of them.
    pub(crate) const ALL: [Self; 29] = [
        Self::ReleasesWithoutProof,
        Self::HandsOverWithoutHearing,
        Self::HandsOverWhatHasNotLeft,
        Self::WaitsForItsSource,
        Self::ResumesWhatItLetGo,
        Self::ResumesWithoutWordOfTheTarget,
        Self::StaysWithoutClosing,
        Self::StartsWithoutSaying,
        Self::PairsThoughGivenUp,
        Self::TakesAnEndForALeaving,
        Self::ReadsTheJobFirst,
        Self::NeverHalts,
        Self::DestroysWithoutClosing,
        Self::ResumesWithoutRelease,
        Self::TunnelResumesWhatIsComplete,
        Self::SaysThatItLeftWithoutProof,
        Self::DiscardsWhenGivenUp,
        Self::FailsWhenNothingArrives,
        Self::FailsWhenTheSourceEnded,
        Self::ControllerWritesWithoutVersion,
        Self::RemovesTheFinalizerTooEarly,
        Self::SucceedsBeforeTheSourceStopped,
        Self::FailsWhenOverdue,
        Self::MovesBeforeTheSourceStopped,
        Self::NeverTellsThatTheSourceIsGone,
        Self::TakesADeletedNodeForGone,
        Self::DestroysWhatIsToFollow,
        Self::SaysThatItRunsBeforeItIsThere,
        Self::DiscardsWhatWasSwitched,
    ];

    /// It shows only where a guest may be switched to post-copy.
    pub(crate) fn needs_post_copy(self) -> bool {
        matches!(
            self,
            Self::DestroysWhatIsToFollow | Self::SaysThatItRunsBeforeItIsThere | Self::DiscardsWhatWasSwitched
        )
    }

    /// How many faults it takes until it shows.
    pub(crate) fn faults(self) -> u8 {
        match self {
            Self::FailsWhenTheSourceEnded | Self::SaysThatItLeftWithoutProof | Self::PairsThoughGivenUp => 2,
            _ => 1,
        }
    }

    /// What the source does.
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
            Some(Self::DestroysWhatIsToFollow) if view.domain == SourceDomain::PostCopy => vec![SourceStep::Destroy],
            Some(Self::ReleasesWithoutProof) if still && open && moving => {
                vec![SourceStep::Release(Proof::SourceGone)]
            }
            Some(Self::HandsOverWithoutHearing) if moving && steps.contains(&SourceStep::Say(SourceState::Stopped)) => {
                vec![SourceStep::Say(SourceState::HandedOver)]
            }
            Some(Self::HandsOverWhatHasNotLeft)
                if still && moving && matches!(view.tunnel, SourceTunnel::Open { acknowledged: true, .. }) =>
            {
                vec![SourceStep::Say(SourceState::HandedOver)]
            }
            Some(Self::ResumesWhatItLetGo) if still && view.job == Job::None && !moving => vec![SourceStep::Resume],
            Some(Self::ResumesWithoutWordOfTheTarget) if still && view.job == Job::None && moving => {
                vec![SourceStep::Resume]
            }
            Some(Self::NeverHalts) if steps == [SourceStep::Say(SourceState::Halted)] => Vec::new(),
            Some(Self::StaysWithoutClosing) if moving && steps == [SourceStep::Close] => {
                vec![SourceStep::Say(SourceState::Stayed)]
            }
            Some(Self::StartsWithoutSaying) if steps == [SourceStep::Say(SourceState::Migrating)] => {
                vec![SourceStep::Start]
            }
            Some(Self::TakesAnEndForALeaving) if view.domain == SourceDomain::Ended && moving => {
                let domain = SourceDomain::Left;
                step(&SourceView { domain, ..*view })
            }
            _ => steps,
        }
    }

    /// What the target does.
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
            Some(Self::SaysThatItRunsBeforeItIsThere) if view.domain == TargetDomain::PostCopy => {
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

    /// What the controller does.
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
                vec![ClusterStep::Fail(Failure::TargetLost)]
            }
            Some(Self::FailsWhenTheSourceEnded) if moving && record.source == Some(SourceState::Ended) => {
                vec![ClusterStep::Fail(Failure::GuestEnded)]
            }
            Some(Self::RemovesTheFinalizerTooEarly) if record.is_over() && record.deleted && view.has_finalizer => {
                vec![ClusterStep::RemoveFinalizer]
            }
            Some(Self::SucceedsBeforeTheSourceStopped) if moving && record.target == Some(TargetState::Running) => {
                vec![ClusterStep::Enter(MigrationPhase::Succeeded)]
            }
            Some(Self::FailsWhenOverdue) if moving && view.overdue => vec![ClusterStep::Fail(Failure::Overdue)],
            Some(Self::NeverTellsThatTheSourceIsGone) => {
                steps.retain(|step| *step != ClusterStep::TellSourceGone);
                steps
            }
            _ => steps,
        }
    }

    /// Where the guest is said to be.
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
