//! The controller's next steps for one migration.
//!
//! ```text
//!           place           pod ready        slot            target prepared     source moves it
//!  Pending ───────▶ Scheduling ─────▶ Scheduled ─▶ PreparingTarget ─▶ TargetReady ─▶ Running
//!     │                 │                │               │                 │            │
//!     └── aborted, overdue, pod lost ────┴───────────────┘                 └── abort ───┤
//!                  Failed ◀──────── the source keeps the guest, or nothing arrived ─────┤
//!               Succeeded ◀───────── runs on the target, has left the source, VMI moved ┘
//! ```
//!
//! Until the source has reported `Migrating`, nothing can move, so the controller may end a migration by itself. After
//! that it requests an abort (`abort`) and waits for the report of a side: the source reports that the guest stayed, or
//! the target reports that nothing arrived and nothing will. Phases are written with the resourceVersion on which the
//! decision was based. So two controllers, or one with a stale cache, cannot conflict, and a final phase is not written
//! once the source has begun. A source that begins after the final phase finds no target: the target admits the source
//! only after its report, and sees the final phase with it.

use drydock_api::kubevirt::migration::{MigrationPhase, SourceState, TargetState};

use super::record::MigrationRecord;

/// The state of the VMI that is to be migrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Instance {
    /// It is unknown whether the VMI exists.
    Unknown,
    /// The API server confirmed that the VMI does not exist.
    Missing,
    /// The VMI has ended, or is being deleted.
    Ended,
    /// The guest of the VMI does not run yet.
    NotRunning,
    /// The VMI is not live-migratable.
    NotMigratable,
    /// The guest runs on the source node.
    Running,
    /// The VMI is already on the target node.
    Moved,
}

/// The state of the target pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetPodState {
    /// The caches contain no target pod, and the API server has not been queried.
    Unknown,
    /// The API server confirmed that the pod does not exist.
    Missing,
    /// The pod is being scheduled, or its containers are starting.
    Coming,
    /// The containers of the pod run.
    Ready,
    /// The kubelet rejected the pod before a container existed, and another pod may be created
    /// ([`rejected`](super::rejected)).
    Rejected,
    /// The pod is being deleted.
    Leaving,
    /// The pod has ended.
    Over,
}

/// The state of the source pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourcePod {
    /// The pod may still run.
    Alive,
    /// The pod has ended and reported that its guest has migrated away.
    Left,
    /// The pod has ended for another reason.
    Over,
}

/// The controller's view of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterView {
    /// The state recorded in the object.
    pub record: MigrationRecord,
    /// Another migration of the same VMI precedes this one ([`is_preceded`](super::observed::is_preceded)).
    pub another: bool,
    /// State of the VMI.
    pub instance: Instance,
    /// State of the target pod.
    pub target_pod: TargetPodState,
    /// State of the source pod.
    pub source_pod: SourcePod,
    /// The source node is gone for good.
    pub source_node_gone: bool,
    /// The target node is gone for good.
    pub target_node_gone: bool,
    /// The queue has granted the creation of a target pod.
    pub may_place: bool,
    /// The queue has granted a slot.
    pub has_slot: bool,
    /// The deadline of the current phase has passed.
    pub overdue: bool,
    /// The finalizer is present.
    pub has_finalizer: bool,
}

/// Why a migration has failed or is aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MigrationFailure {
    /// Another migration of the same VMI is older, or has begun, and has not ended.
    AnotherMigration,
    /// The VMI does not exist.
    InstanceMissing,
    /// The VMI has ended.
    InstanceEnded,
    /// The VMI is not live-migratable.
    NotMigratable,
    /// The migration was deleted.
    Canceled,
    /// A deadline of the migration has passed.
    Overdue,
    /// The target pod was deleted.
    PodRemoved,
    /// The target pod has ended.
    PodEnded,
    /// The target cannot run the guest.
    TargetRefused,
    /// The target lost its session or its copy of the guest before the guest had arrived.
    TargetLost,
    /// The guest stayed on the source, which reports the reason.
    GuestStayed,
    /// The guest has ended on the source.
    GuestEnded,
    /// The source node was lost together with the guest.
    SourceNodeGone,
    /// The guest had left the source and was lost on the target.
    LostOnTarget,
}

impl MigrationFailure {
    /// Returns the stable CamelCase reason.
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

    /// Returns a human-readable sentence, identical to KubeVirt's where KubeVirt has one. A side's own message is
    /// appended to it.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::AnotherMigration => "another migration of the VMI has not ended",
            Self::InstanceMissing => "vmi does not exist.",
            Self::InstanceEnded => "vmi shutdown during migration.",
            Self::NotMigratable => "the VMI cannot be live migrated",
            Self::Canceled => "Migration failed due to being canceled",
            Self::Overdue => "the migration took too long",
            Self::PodRemoved => "target pod was removed during active migration.",
            Self::PodEnded => "target pod shutdown during migration",
            Self::TargetRefused => "the target cannot run the guest",
            Self::TargetLost => "the target was lost before the guest had arrived",
            Self::GuestStayed => "source node reported migration failed",
            Self::GuestEnded => "the guest ended before it had moved",
            Self::SourceNodeGone => "the source node was deleted or is out of service; the guest is lost",
            Self::LostOnTarget => "the target was lost after the guest had left the source",
        }
    }
}

/// A step of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClusterStep {
    /// Reads from the API server whether the target pod exists.
    Confirm,
    /// Creates the target pod.
    CreatePod,
    /// Deletes the target pod.
    DeletePod,
    /// Writes the phase. [`MigrationPhase::PreparingTarget`] is written together with both sides.
    Enter(MigrationPhase),
    /// Writes the phase `Failed` with this reason.
    Fail(MigrationFailure),
    /// Requests both sides to abort the migration.
    Abort(MigrationFailure),
    /// Records in the object that the source node is gone for good.
    RecordSourceGone,
    /// Removes the finalizer.
    RemoveFinalizer,
}

/// The location of a guest, according to its migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GuestLocation {
    /// The guest is on the source, or no side has reported otherwise.
    Source,
    /// The guest is on the target and no longer on the source: `status.nodeName` must name the target.
    Target,
}

/// Returns on which side of a migration the guest is.
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
        // The source's agent has promised never to resume the guest, and the target cannot run it any more.
        || (released && lost_there);
    if left && (arrived || lost_there) {
        GuestLocation::Target
    } else {
        GuestLocation::Source
    }
}

/// Returns the controller's steps in order; none while it waits. Each step is idempotent.
pub fn step(view: &ClusterView) -> Vec<ClusterStep> {
    if view.record.is_unknown() {
        return Vec::new();
    }
    match view.record.phase {
        None if view.another => vec![ClusterStep::Fail(MigrationFailure::AnotherMigration)],
        None => vec![ClusterStep::Enter(MigrationPhase::Pending)],
        Some(MigrationPhase::Succeeded | MigrationPhase::Failed) => over(view),
        Some(MigrationPhase::Pending | MigrationPhase::Scheduling | MigrationPhase::Scheduled) => before(view),
        Some(MigrationPhase::PreparingTarget | MigrationPhase::TargetReady | MigrationPhase::Running) => moving(view),
        Some(MigrationPhase::Unknown) => Vec::new(),
    }
}

/// Steps for the phases in which the agents do not act yet.
fn before(view: &ClusterView) -> Vec<ClusterStep> {
    let fail = |failure| vec![ClusterStep::Fail(failure)];
    if view.record.deleted {
        return fail(MigrationFailure::Canceled);
    }
    match view.instance {
        Instance::Missing => return fail(MigrationFailure::InstanceMissing),
        Instance::Ended => return fail(MigrationFailure::InstanceEnded),
        Instance::NotMigratable => return fail(MigrationFailure::NotMigratable),
        Instance::Moved | Instance::Unknown | Instance::NotRunning | Instance::Running => {}
    }
    let phase = view.record.phase;
    // The watch may show an older migration after this one was queued.
    if view.another {
        return fail(MigrationFailure::AnotherMigration);
    }
    if view.overdue {
        return fail(MigrationFailure::Overdue);
    }
    match view.target_pod {
        TargetPodState::Over => fail(MigrationFailure::PodEnded),
        TargetPodState::Leaving if phase != Some(MigrationPhase::Pending) => fail(MigrationFailure::PodRemoved),
        TargetPodState::Missing if phase != Some(MigrationPhase::Pending) => fail(MigrationFailure::PodRemoved),
        TargetPodState::Unknown if phase != Some(MigrationPhase::Pending) => vec![ClusterStep::Confirm],
        TargetPodState::Missing | TargetPodState::Unknown | TargetPodState::Rejected
            if view.may_place && view.instance == Instance::Running =>
        {
            vec![ClusterStep::CreatePod]
        }
        TargetPodState::Missing | TargetPodState::Unknown | TargetPodState::Rejected | TargetPodState::Leaving => {
            Vec::new()
        }
        // Enters every phase in order, even if it is over at once.
        TargetPodState::Coming | TargetPodState::Ready if phase == Some(MigrationPhase::Pending) => {
            vec![ClusterStep::Enter(MigrationPhase::Scheduling)]
        }
        TargetPodState::Coming => Vec::new(),
        TargetPodState::Ready if phase < Some(MigrationPhase::Scheduled) => {
            vec![ClusterStep::Enter(MigrationPhase::Scheduled)]
        }
        TargetPodState::Ready if view.has_slot && view.instance == Instance::Running => {
            vec![ClusterStep::Enter(MigrationPhase::PreparingTarget)]
        }
        TargetPodState::Ready => Vec::new(),
    }
}

/// Steps once both sides are named: the guest may move at any time after the target is prepared.
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
            (Instance::Moved | Instance::Missing | Instance::Ended, _) => fail(MigrationFailure::LostOnTarget),
            // The VMI is updated first, so an observer of the final phase sees the VMI on the right node.
            _ => Vec::new(),
        };
    }
    if record.target == Some(TargetState::Running) {
        // The source is about to stop. Any other request comes too late.
        return Vec::new();
    }
    if record.source == Some(SourceState::Stayed) {
        return fail(given_up(view).unwrap_or(match record.target {
            Some(TargetState::Refused) => MigrationFailure::TargetRefused,
            Some(TargetState::Gone) if !record.gave_up => MigrationFailure::TargetLost,
            _ => MigrationFailure::GuestStayed,
        }));
    }
    if record.source == Some(SourceState::Ended) {
        // The guest may have ended after the tunnel had released it. The target's state decides.
        let waits = matches!(record.target, Some(TargetState::Prepared | TargetState::Complete));
        return match view.target_pod {
            _ if !(waits && target_may_run(view)) => fail(MigrationFailure::GuestEnded),
            TargetPodState::Unknown => vec![ClusterStep::Confirm],
            _ => Vec::new(),
        };
    }
    let begun = record.source.is_some();
    let nothing_arrives = match record.target {
        Some(TargetState::Refused) => Some(MigrationFailure::TargetRefused),
        Some(TargetState::Gone) => Some(MigrationFailure::TargetLost),
        _ => None,
    };
    if let Some(failure) = nothing_arrives
        && (!begun || view.source_node_gone)
    {
        return fail(given_up(view).unwrap_or(failure));
    }
    // Both copies are lost.
    if view.source_node_gone && (view.target_node_gone || record.target == Some(TargetState::Ended)) {
        return fail(MigrationFailure::SourceNodeGone);
    }
    if view.target_node_gone && record.source == Some(SourceState::Halted) {
        return fail(MigrationFailure::TargetLost);
    }
    // The source may have released the guest anyway, so its report decides.
    let reason = given_up(view).or(nothing_arrives);
    if let Some(failure) = reason.filter(|_| !begun) {
        return fail(failure);
    }
    let mut steps = Vec::new();
    if view.source_node_gone && !record.source_gone {
        steps.push(ClusterStep::RecordSourceGone);
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

/// Returns whether the target may have a pod in which a guest can run. The last pod of a VMI ends before the VMI is
/// deleted.
fn target_may_run(view: &ClusterView) -> bool {
    !view.target_node_gone
        && view.instance != Instance::Missing
        && !matches!(
            view.target_pod,
            TargetPodState::Over | TargetPodState::Rejected | TargetPodState::Missing
        )
}

/// Returns why a migration with named sides is to be aborted, if at all.
fn given_up(view: &ClusterView) -> Option<MigrationFailure> {
    if view.record.deleted {
        return Some(MigrationFailure::Canceled);
    }
    match view.instance {
        Instance::Missing => return Some(MigrationFailure::InstanceMissing),
        Instance::Ended => return Some(MigrationFailure::InstanceEnded),
        _ => {}
    }
    match view.source_pod {
        SourcePod::Over => return Some(MigrationFailure::GuestEnded),
        SourcePod::Left | SourcePod::Alive => {}
    }
    match view.target_pod {
        TargetPodState::Over | TargetPodState::Rejected => return Some(MigrationFailure::PodEnded),
        TargetPodState::Leaving | TargetPodState::Missing => return Some(MigrationFailure::PodRemoved),
        TargetPodState::Unknown | TargetPodState::Coming | TargetPodState::Ready => {}
    }
    if view.source_node_gone {
        return Some(MigrationFailure::SourceNodeGone);
    }
    if view.target_node_gone {
        return Some(MigrationFailure::TargetLost);
    }
    view.overdue.then_some(MigrationFailure::Overdue)
}

/// Steps after the final phase. The sides may not have settled yet.
fn over(view: &ClusterView) -> Vec<ClusterStep> {
    let record = &view.record;
    let mut steps = Vec::new();
    let pod = matches!(view.target_pod, TargetPodState::Coming | TargetPodState::Ready);
    let nothing = record.target == Some(TargetState::Gone);
    let empty =
        record.target != Some(TargetState::Running) && (nothing || guest_location(view) == GuestLocation::Source);
    if record.has_failed() && pod && empty {
        steps.push(ClusterStep::DeletePod);
    }
    let is_awaited = record.awaits_source() && view.source_pod == SourcePod::Alive && !view.source_node_gone;
    if record.deleted && view.has_finalizer && !is_awaited {
        // The pod may have been created just before the failure. Without the object, the pod would never be deleted,
        // unless the VMI is deleted too.
        let may_leave_pod = record.has_failed() && empty && view.instance != Instance::Missing;
        if may_leave_pod && view.target_pod == TargetPodState::Unknown {
            return vec![ClusterStep::Confirm];
        }
        steps.push(ClusterStep::RemoveFinalizer);
    }
    steps
}

#[cfg(test)]
mod tests;
