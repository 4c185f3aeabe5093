//! What must hold in every world, and when a migration has come to a good end.

use drydock_api::kubevirt::migration::MigrationPhase;
use drydock_core::migration::{
    cluster::{SourcePod, TargetPod},
    source::SourceDomain,
    target::TargetDomain,
};

use super::world::{Move, Node, World};

/// A law that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The guest runs on both nodes.
    RunsTwice,
    /// The guest goes on from a state after which it ran elsewhere.
    ResumedOldState,
    /// The last copy of a guest that was to live is ended.
    DestroyedOnlyCopy,
    /// The instance is said to be on the target while the source may still run it.
    MovedTooEarly,
    /// It is said to have succeeded, and the guest has not run on the target or may run on the source.
    SucceededWithoutGuest,
    /// It is said to have failed, and the guest runs on the target.
    FailedWhileItRunsThere,
    /// A phase follows a later one: its slot would be given twice.
    WentBack,
    /// The object is gone while the guest on the source waits for a decision.
    GoneTooEarly,
    /// Nothing that still happens brings it to a good end.
    NeverEnds,
}

/// The law that a world breaks, if it breaks one.
pub(crate) fn broken(world: &World) -> Option<Broken> {
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

/// It is over, nothing is left behind, and the guest runs where the instance says, or was struck.
pub(crate) fn is_settled(world: &World) -> bool {
    // It has been told, and only its user can say that nothing is worth keeping of it.
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
        || (world.target_pod == TargetPod::Leaving && world.target_node == Node::Up);
    if down || at_work || waits {
        return false;
    }
    let empty_pod = phase == Some(MigrationPhase::Failed)
        && !world.moved
        && world.target_node == Node::Up
        && matches!(world.target_pod, TargetPod::Coming | TargetPod::Ready);
    if empty_pod {
        return false;
    }
    if world.runs_here() {
        return phase == Some(MigrationPhase::Failed) && !world.moved;
    }
    if world.runs_there() {
        return phase == Some(MigrationPhase::Succeeded) && world.moved;
    }
    // It runs nowhere. The instance can only be told to have ended by the pod or the node it names.
    let told = if world.moved {
        world.target_pod != TargetPod::Ready || world.target_node == Node::Gone
    } else {
        world.source_pod == SourcePod::Over || world.source_node == Node::Gone
    };
    world.struck && (told || world.ended)
}
