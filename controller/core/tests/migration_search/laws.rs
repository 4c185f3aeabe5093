//! The invariants of every state, and the definition of a good end.

use drydock_api::kubevirt::migration::MigrationPhase;
use drydock_core::migration::{
    cluster::{SourcePod, TargetPodState},
    source::SourceDomain,
    target::TargetDomain,
};

use super::world::{Move, Node, SearchWorld};

/// A violated invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The guest runs on both nodes.
    RunsTwice,
    /// The guest resumes from a state after which it ran elsewhere.
    ResumedOldState,
    /// The last copy of a guest that should live is destroyed.
    DestroyedOnlyCopy,
    /// The VMI names the target while the source may still run the guest.
    MovedTooEarly,
    /// The migration has succeeded, but the guest has not run on the target or may run on the source.
    SucceededWithoutGuest,
    /// The migration has failed, but the guest runs on the target.
    FailedWhileItRunsThere,
    /// A phase follows a later one: its slot would be granted twice.
    WentBack,
    /// The object is deleted while the guest on the source waits for a decision.
    GoneTooEarly,
    /// No further event leads to a good end.
    NeverEnds,
}

/// Returns the invariant that a state violates, if any.
pub(crate) fn broken(world: &SearchWorld) -> Option<Broken> {
    if world.runs_here() && world.runs_there() {
        return Some(Broken::RunsTwice);
    }
    if world.runs_here() && world.ran_there {
        return Some(Broken::ResumedOldState);
    }
    if world.moved && world.lives_here() && world.here == SourceDomain::Running {
        return Some(Broken::MovedTooEarly);
    }
    if world.api.has_failed() && world.runs_there() && !world.moved {
        return Some(Broken::FailedWhileItRunsThere);
    }
    if !world.exists() && (world.here == SourceDomain::Leaving && world.lives_here()) && !world.ran_there {
        return Some(Broken::GoneTooEarly);
    }
    None
}

/// Returns whether the migration is over, nothing is left behind, and the guest runs where the VMI names it, or was
/// struck.
pub(crate) fn is_settled(world: &SearchWorld) -> bool {
    // The loss is reported, and only the user can decide that nothing of the guest is worth keeping.
    if world.is_stuck() && world.struck {
        return !world.api.is_over();
    }
    let phase = world.api.phase;
    if !world.api.is_over() || (world.api.deleted && world.finalizer) {
        return false;
    }
    let down = world.source_node == Node::Down
        || world.target_node == Node::Down
        || world.source_deleted
        || world.target_deleted;
    let at_work = world.source_session.is_some() || world.target_session.is_some() || world.move_ != Move::None;
    let waits = (matches!(world.here, SourceDomain::Leaving | SourceDomain::PostCopy) && world.source_node == Node::Up)
        || (matches!(world.there, TargetDomain::Incoming | TargetDomain::Complete) && world.target_node == Node::Up)
        || (world.target_pod == TargetPodState::Leaving && world.target_node == Node::Up);
    if down || at_work || waits {
        return false;
    }
    let empty_pod = phase == Some(MigrationPhase::Failed)
        && !world.moved
        && world.target_node == Node::Up
        && matches!(world.target_pod, TargetPodState::Coming | TargetPodState::Ready);
    if empty_pod {
        return false;
    }
    if world.lives_here() {
        return phase == Some(MigrationPhase::Failed) && !world.moved;
    }
    if world.runs_there() {
        return phase == Some(MigrationPhase::Succeeded) && world.moved;
    }
    // The guest runs nowhere. The end of a VMI is visible only through the pod or the node that it names.
    let reported = if world.moved {
        world.target_pod != TargetPodState::Ready || world.target_node == Node::Gone
    } else {
        world.source_pod == SourcePod::Over || world.source_node == Node::Gone
    };
    world.struck && (reported || world.ended)
}
