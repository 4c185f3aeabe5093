//! What the controller does about one migration.
//!
//! ```text
//!           place           pod ready        slot            target prepared     source moves it
//!  Pending ───────▶ Scheduling ─────▶ Scheduled ─▶ PreparingTarget ─▶ TargetReady ─▶ Running
//!     │                 │                │               │                 │            │
//!     └── given up, too late, pod lost ──┴───────────────┘                 └── abort ───┤
//!                  Failed ◀──────── the source keeps the guest, or nothing arrived ─────┤
//!               Succeeded ◀──── runs on the target, has left the source, instance moved ┘
//! ```
//!
//! Until the source has said that it moves the guest nothing can move, so the controller may end a
//! migration by itself. From then on it asks (`abort`) and waits for the word of a side: the source's that
//! the guest stayed, or the target's that nothing arrived and nothing will. Phases are written with the
//! version of the object that was looked at, so that two controllers, or one with an old cache, cannot
//! disagree, and an end is not written once the source has begun. A source that begins after an end
//! finds no target: that lets it in by what it has said, and sees the end with it.

use drydock_api::kubevirt::migration::{MigrationPhase, SourceState, TargetState};

use super::record::Record;

/// The instance that is to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Instance {
    /// It cannot be said whether there is one.
    Unknown,
    /// The API server says that there is none.
    Missing,
    /// It has ended, or is being deleted.
    Ended,
    /// Its guest does not run yet.
    NotRunning,
    /// It cannot be migrated.
    NotMigratable,
    /// It runs on its node, from which it is to move.
    Running,
    /// It is on the target.
    Moved,
}

/// The pod that the guest is to arrive in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetPod {
    /// The caches do not show one, and the API server has not been asked.
    Unknown,
    /// The API server says that there is none.
    Missing,
    /// It is on its way to a node, or its containers are on their way.
    Coming,
    /// Its containers run.
    Ready,
    /// Its kubelet rejected it before a container existed, and there may be another
    /// ([`rejected`](super::rejected)).
    Rejected,
    /// It is being deleted.
    Leaving,
    /// It has ended.
    Over,
}

/// The pod that the guest comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourcePod {
    /// It may run.
    Alive,
    /// It has ended, and says that its guest has left.
    Left,
    /// It has ended otherwise.
    Over,
}

/// What the controller sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterView {
    /// What the object says.
    pub record: Record,
    /// There is an older migration of the instance that is not over.
    pub another: bool,
    /// The instance.
    pub instance: Instance,
    /// The target's pod.
    pub target_pod: TargetPod,
    /// The source's pod.
    pub source_pod: SourcePod,
    /// The source's node is gone for good.
    pub source_node_gone: bool,
    /// The target's node is gone for good.
    pub target_node_gone: bool,
    /// It may have a pod now.
    pub may_place: bool,
    /// It has a slot.
    pub has_slot: bool,
    /// The deadline of its phase has passed.
    pub overdue: bool,
    /// Its finalizer is there.
    pub has_finalizer: bool,
}

/// Why a migration has failed, or is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// Another migration of the instance is older.
    AnotherMigration,
    /// There is no such instance.
    InstanceMissing,
    /// The instance has ended.
    InstanceEnded,
    /// It cannot be migrated.
    NotMigratable,
    /// It was deleted.
    Canceled,
    /// A deadline has passed.
    Overdue,
    /// The target's pod was deleted.
    PodRemoved,
    /// The target's pod has ended.
    PodEnded,
    /// The target cannot run the guest.
    TargetRefused,
    /// The target lost its session or its guest before it had it.
    TargetLost,
    /// The guest stayed on the source, which says why.
    GuestStayed,
    /// The guest has ended on the source.
    GuestEnded,
    /// The source's node was lost, and the guest with it.
    SourceNodeGone,
    /// The guest had left the source, and was lost on the target.
    LostOnTarget,
}

impl Failure {
    /// Stable CamelCase reason.
    pub fn reason(self) -> &'static str {
        match self {
            Self::AnotherMigration => "AnotherMigration",
            Self::InstanceMissing => "InstanceMissing",
            Self::InstanceEnded => "InstanceEnded",
            Self::NotMigratable => "NotMigratable",
            Self::Canceled => "Canceled",
            Self::Overdue => "DeadlineExceeded",
            Self::PodRemoved => "TargetPodRemoved",
            Self::PodEnded => "TargetPodEnded",
            Self::TargetRefused => "TargetRefused",
            Self::TargetLost => "TargetLost",
            Self::GuestStayed => "GuestStayed",
            Self::GuestEnded => "GuestEnded",
            Self::SourceNodeGone => "SourceNodeGone",
            Self::LostOnTarget => "LostOnTarget",
        }
    }

    /// A sentence for people; KubeVirt's where it has one. What a side has said is put after it.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::AnotherMigration => "an older migration of the VMI is not over",
            Self::InstanceMissing => "vmi does not exist.",
            Self::InstanceEnded => "vmi shutdown during migration.",
            Self::NotMigratable => "the VMI cannot be live migrated",
            Self::Canceled => "Migration failed due to being canceled",
            Self::Overdue => "it took too long",
            Self::PodRemoved => "target pod was removed during active migration.",
            Self::PodEnded => "target pod shutdown during migration",
            Self::TargetRefused => "the target cannot run the guest",
            Self::TargetLost => "the target was lost before the guest had arrived",
            Self::GuestStayed => "source node reported migration failed",
            Self::GuestEnded => "the guest ended before it had moved",
            Self::SourceNodeGone => "the source's node is gone for good, and the guest with it",
            Self::LostOnTarget => "the guest had left its source when the target was lost",
        }
    }
}

/// One thing that the controller does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClusterStep {
    /// The API server is asked whether the target's pod exists.
    Confirm,
    /// The target's pod is made.
    CreatePod,
    /// The target's pod is deleted.
    DeletePod,
    /// The phase is written. [`MigrationPhase::PreparingTarget`] is written together with the two
    /// sides.
    Enter(MigrationPhase),
    /// It has failed.
    Fail(Failure),
    /// Both sides are told to give it up.
    Abort(Failure),
    /// Both sides are told that the source's node is gone for good.
    TellSourceGone,
    /// The finalizer is taken off.
    RemoveFinalizer,
}

/// Where a guest is, as far as a migration tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GuestLocation {
    /// On the source, or nobody has said otherwise.
    Source,
    /// On the target, and not on the source any more: `status.nodeName` names the target.
    Target,
}

/// Where the instance of a migration is.
pub fn guest_location(view: &ClusterView) -> GuestLocation {
    let record = &view.record;
    if record.is_unknown() {
        return GuestLocation::Source;
    }
    let arrived = record.target == Some(TargetState::Running);
    let lost_there = matches!(record.target, Some(TargetState::Ended | TargetState::Gone)) || view.target_node_gone;
    let over_here = view.source_pod == SourcePod::Over || view.source_node_gone;
    let released = record.source == Some(SourceState::Released);
    let left = record.source == Some(SourceState::Stopped)
        || view.source_pod == SourcePod::Left
        || (over_here && (released || arrived))
        // Its agent has promised never to let it go on, and the target cannot any more.
        || (released && lost_there);
    if left && (arrived || lost_there) {
        GuestLocation::Target
    } else {
        GuestLocation::Source
    }
}

/// What the controller does, in this order; none if it waits. Each is safe to repeat.
pub fn step(view: &ClusterView) -> Vec<ClusterStep> {
    if view.record.is_unknown() {
        return Vec::new();
    }
    match view.record.phase {
        None if view.another => vec![ClusterStep::Fail(Failure::AnotherMigration)],
        None => vec![ClusterStep::Enter(MigrationPhase::Pending)],
        Some(MigrationPhase::Succeeded | MigrationPhase::Failed) => over(view),
        Some(MigrationPhase::Pending | MigrationPhase::Scheduling | MigrationPhase::Scheduled) => before(view),
        Some(MigrationPhase::PreparingTarget | MigrationPhase::TargetReady | MigrationPhase::Running) => moving(view),
        Some(MigrationPhase::Unknown) => Vec::new(),
    }
}

/// Agents know nothing of it yet.
fn before(view: &ClusterView) -> Vec<ClusterStep> {
    let fail = |failure| vec![ClusterStep::Fail(failure)];
    if view.record.deleted {
        return fail(Failure::Canceled);
    }
    match view.instance {
        Instance::Missing => return fail(Failure::InstanceMissing),
        Instance::Ended => return fail(Failure::InstanceEnded),
        Instance::NotMigratable => return fail(Failure::NotMigratable),
        Instance::Moved | Instance::Unknown | Instance::NotRunning | Instance::Running => {}
    }
    let phase = view.record.phase;
    if view.overdue {
        return fail(Failure::Overdue);
    }
    match view.target_pod {
        TargetPod::Over => fail(Failure::PodEnded),
        TargetPod::Leaving if phase != Some(MigrationPhase::Pending) => fail(Failure::PodRemoved),
        TargetPod::Missing if phase != Some(MigrationPhase::Pending) => fail(Failure::PodRemoved),
        TargetPod::Unknown if phase != Some(MigrationPhase::Pending) => vec![ClusterStep::Confirm],
        TargetPod::Missing | TargetPod::Unknown | TargetPod::Rejected
            if view.may_place && view.instance == Instance::Running =>
        {
            vec![ClusterStep::CreatePod]
        }
        TargetPod::Missing | TargetPod::Unknown | TargetPod::Rejected | TargetPod::Leaving => Vec::new(),
        // No phase is left out, however short it was.
        TargetPod::Coming | TargetPod::Ready if phase == Some(MigrationPhase::Pending) => {
            vec![ClusterStep::Enter(MigrationPhase::Scheduling)]
        }
        TargetPod::Coming => Vec::new(),
        TargetPod::Ready if phase < Some(MigrationPhase::Scheduled) => {
            vec![ClusterStep::Enter(MigrationPhase::Scheduled)]
        }
        TargetPod::Ready if view.has_slot && view.instance == Instance::Running => {
            vec![ClusterStep::Enter(MigrationPhase::PreparingTarget)]
        }
        TargetPod::Ready => Vec::new(),
    }
}

/// The sides are named, and the guest may move at any time once the target is prepared.
fn moving(view: &ClusterView) -> Vec<ClusterStep> {
    let record = &view.record;
    let fail = |failure| vec![ClusterStep::Fail(failure)];
    if guest_location(view) == GuestLocation::Target {
        return match (view.instance, record.target) {
            (Instance::Moved | Instance::Missing | Instance::Ended, Some(TargetState::Running))
                if !view.target_node_gone =>
            {
                vec![ClusterStep::Enter(MigrationPhase::Succeeded)]
            }
            (Instance::Moved | Instance::Missing | Instance::Ended, _) => fail(Failure::LostOnTarget),
            // The instance is told first: whoever sees the end sees it where it is.
            _ => Vec::new(),
        };
    }
    if record.target == Some(TargetState::Running) {
        // The source is about to stop; whatever else is wished comes too late.
        return Vec::new();
    }
    if record.source == Some(SourceState::Stayed) {
        return fail(given_up(view).unwrap_or(match record.target {
            Some(TargetState::Refused) => Failure::TargetRefused,
            Some(TargetState::Gone) if !record.gave_up => Failure::TargetLost,
            _ => Failure::GuestStayed,
        }));
    }
    if record.source == Some(SourceState::Ended) {
        // It may have ended after its tunnel had let go: what the target has decides.
        let waits = matches!(record.target, Some(TargetState::Prepared | TargetState::Complete));
        return match view.target_pod {
            _ if !(waits && target_may_run(view)) => fail(Failure::GuestEnded),
            TargetPod::Unknown => vec![ClusterStep::Confirm],
            _ => Vec::new(),
        };
    }
    let begun = record.source.is_some();
    let nothing_arrives = match record.target {
        Some(TargetState::Refused) => Some(Failure::TargetRefused),
        Some(TargetState::Gone) => Some(Failure::TargetLost),
        _ => None,
    };
    if let Some(failure) = nothing_arrives
        && (!begun || view.source_node_gone)
    {
        return fail(given_up(view).unwrap_or(failure));
    }
    // Both copies are lost.
    if view.source_node_gone && (view.target_node_gone || record.target == Some(TargetState::Ended)) {
        return fail(Failure::SourceNodeGone);
    }
    if view.target_node_gone && record.source == Some(SourceState::Halted) {
        return fail(Failure::TargetLost);
    }
    // The source may have let go all the same: its word counts.
    let reason = given_up(view).or(nothing_arrives);
    if let Some(failure) = reason.filter(|_| !begun) {
        return fail(failure);
    }
    let mut steps = Vec::new();
    if view.source_node_gone && !record.source_gone {
        steps.push(ClusterStep::TellSourceGone);
    }
    if let Some(failure) = reason.filter(|_| !record.abort && !record.source_has_let_go()) {
        steps.push(ClusterStep::Abort(failure));
    }
    let next = match record.phase {
        Some(MigrationPhase::PreparingTarget) if begun || record.target == Some(TargetState::Prepared) => {
            Some(MigrationPhase::TargetReady)
        }
        Some(MigrationPhase::TargetReady) if begun => Some(MigrationPhase::Running),
        _ => None,
    };
    steps.extend(next.map(ClusterStep::Enter));
    steps
}

/// The target has a pod in which a guest may run. The last pod of an instance ends before the instance goes.
fn target_may_run(view: &ClusterView) -> bool {
    !view.target_node_gone
        && view.instance != Instance::Missing
        && !matches!(
            view.target_pod,
            TargetPod::Over | TargetPod::Rejected | TargetPod::Missing
        )
}

/// Why a migration that has sides is given up, if it is.
fn given_up(view: &ClusterView) -> Option<Failure> {
    if view.record.deleted {
        return Some(Failure::Canceled);
    }
    match view.instance {
        Instance::Missing => return Some(Failure::InstanceMissing),
        Instance::Ended => return Some(Failure::InstanceEnded),
        _ => {}
    }
    match view.source_pod {
        SourcePod::Over => return Some(Failure::GuestEnded),
        SourcePod::Left | SourcePod::Alive => {}
    }
    match view.target_pod {
        TargetPod::Over | TargetPod::Rejected => return Some(Failure::PodEnded),
        TargetPod::Leaving | TargetPod::Missing => return Some(Failure::PodRemoved),
        TargetPod::Unknown | TargetPod::Coming | TargetPod::Ready => {}
    }
    if view.source_node_gone {
        return Some(Failure::SourceNodeGone);
    }
    if view.target_node_gone {
        return Some(Failure::TargetLost);
    }
    view.overdue.then_some(Failure::Overdue)
}

/// It is over; its sides may still have to settle.
fn over(view: &ClusterView) -> Vec<ClusterStep> {
    let record = &view.record;
    let mut steps = Vec::new();
    let pod = matches!(view.target_pod, TargetPod::Coming | TargetPod::Ready);
    let nothing = record.target == Some(TargetState::Gone);
    let empty =
        record.target != Some(TargetState::Running) && (nothing || guest_location(view) == GuestLocation::Source);
    if record.has_failed() && pod && empty {
        steps.push(ClusterStep::DeletePod);
    }
    // An agent that still has to let its guest go on needs the object for it.
    let source = record.source.is_none()
        || record.source_is_settled()
        || view.source_pod != SourcePod::Alive
        || view.source_node_gone;
    if record.deleted && view.has_finalizer && source {
        steps.push(ClusterStep::RemoveFinalizer);
    }
    steps
}

#[cfg(test)]
mod tests;
