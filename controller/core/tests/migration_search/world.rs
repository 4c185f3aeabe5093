//! The true state of a migration: objects, processes, libvirt on both sides, and the knowledge of each party.
//!
//! libvirt is modeled as observed: a source whose last reply is lost resumes, and a source that has read the reply
//! never does; if the source's libvirtd is lost while the guest is paused, the guest stays paused.

use drydock_api::kubevirt::migration::{MigrationPhase, SourceState, TargetState};
use drydock_core::migration::{
    cluster::{ClusterStep, SourcePod, TargetPodState},
    record::MigrationRecord,
    source::{JobState, MigrateCall, SourceDomain, SourceStep, SourceTunnel},
    target::{TargetDomain, TargetStep, TargetTunnel},
};

/// The complete state of one migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SearchWorld {
    /// The object in the API server.
    pub(crate) api: MigrationRecord,
    /// The finalizer is present.
    pub(crate) finalizer: bool,
    /// The VMI's node name is the target's.
    pub(crate) moved: bool,
    /// The user has ended the VMI.
    pub(crate) ended: bool,
    /// The deadline has passed.
    pub(crate) overdue: bool,
    pub(crate) source_pod: SourcePod,
    pub(crate) target_pod: TargetPodState,
    pub(crate) source_node: Node,
    pub(crate) target_node: Node,
    /// The source's Node object was deleted, while its agent is alive.
    pub(crate) source_deleted: bool,
    /// The same for the target.
    pub(crate) target_deleted: bool,
    /// Progress of libvirt's migration.
    pub(crate) move_: Move,
    /// The guest on the source: never unknown.
    pub(crate) here: SourceDomain,
    /// The guest on the target: never unknown.
    pub(crate) there: TargetDomain,
    /// The guest's user has paused it. It stays so on the target, where `Running` then means that it was taken over.
    pub(crate) paused: bool,
    /// The guest has run on the target.
    pub(crate) ran_there: bool,
    /// The guest ran on the source after the target had all of it.
    pub(crate) ran_on: bool,
    /// An event has ended the guest or its node, so it is no bug if the guest runs nowhere.
    pub(crate) struck: bool,
    pub(crate) source_session: Option<SourceSession>,
    pub(crate) target_session: Option<TargetSession>,
    /// The source's tunnel has recorded in the pod that the guest continues elsewhere.
    pub(crate) left: bool,
    /// A release is in flight.
    pub(crate) release: bool,
    pub(crate) source: SourceAgent,
    pub(crate) target: TargetAgent,
    pub(crate) controllers: [Controller; 2],
    /// Number of faults that may still happen.
    pub(crate) faults: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    Up,
    Down,
    /// Down, and confirmed as gone for good.
    Gone,
}

/// Progress of the migration in the source's libvirt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Move {
    None,
    /// The call is on its way to libvirtd.
    Requested,
    Perform,
    /// The guest is paused, and the rest of it is sent.
    Still,
    /// The target has all of the guest, and the reply that confirms it is in flight.
    Reply,
    /// The reply has been read.
    Read,
    /// The connection broke; libvirt is about to resume the guest.
    Failing,
    /// The guest was switched to post-copy, and the last call is in flight.
    Switched,
    /// The guest runs on the target, and memory follows.
    Follows,
    /// The target has all of the guest, and the reply that confirms it is in flight.
    AllThere,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct SourceSession {
    pub(crate) paired: bool,
    /// The last reply went through, and nothing of it is left in the socket.
    pub(crate) drained: bool,
    /// The tunnel has observed that.
    pub(crate) reply_read: bool,
    pub(crate) proven: bool,
    pub(crate) acknowledged: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TargetSession {
    pub(crate) paired: bool,
    pub(crate) released: bool,
    pub(crate) taken_over: bool,
}

/// A process that reads its view, and then executes one step after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SourceAgent {
    /// The object as last observed, except for the agent's own side, which is always current.
    pub(crate) seen: MigrationRecord,
    /// Updates arrive late. Otherwise the agent sees them at once.
    pub(crate) late: bool,
    pub(crate) tunnel: SourceTunnel,
    /// The domain as it was before the job was read, and the job.
    pub(crate) read: Option<(SourceDomain, Option<JobState>)>,
    pub(crate) call: MigrateCall,
    pub(crate) stood_still: bool,
    pub(crate) todo: [Option<SourceStep>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TargetAgent {
    pub(crate) seen: MigrationRecord,
    /// Updates arrive late. Otherwise the agent sees them at once.
    pub(crate) late: bool,
    pub(crate) tunnel: TargetTunnel,
    pub(crate) fits: Option<bool>,
    pub(crate) todo: [Option<TargetStep>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Controller {
    pub(crate) seen: MigrationRecord,
    pub(crate) todo: [Option<Order>; 3],
    /// No other party has written the object since this controller read it.
    pub(crate) fresh: bool,
    pub(crate) alive: bool,
}

/// An action of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Order {
    Step(ClusterStep),
    /// Sets the VMI's node name to the target's.
    MoveInstance,
}

impl SearchWorld {
    pub(crate) fn new(faults: u8, controllers: usize) -> Self {
        let controller = |alive| Controller {
            seen: MigrationRecord::default(),
            todo: [None; 3],
            fresh: false,
            alive,
        };
        Self {
            api: MigrationRecord::default(),
            finalizer: true,
            moved: false,
            ended: false,
            overdue: false,
            source_pod: SourcePod::Alive,
            target_pod: TargetPodState::Missing,
            source_node: Node::Up,
            target_node: Node::Up,
            source_deleted: false,
            target_deleted: false,
            move_: Move::None,
            here: SourceDomain::Running,
            there: TargetDomain::Absent,
            paused: false,
            ran_there: false,
            ran_on: false,
            struck: false,
            source_session: None,
            target_session: None,
            left: false,
            release: false,
            source: SourceAgent::NEW,
            target: TargetAgent::NEW,
            controllers: [controller(true), controller(controllers > 1)],
            faults,
        }
    }

    /// Both sides are ready and know it, and the source may begin.
    pub(crate) fn ready(faults: u8, controllers: usize) -> Self {
        let mut world = Self::new(faults, controllers);
        world.api.phase = Some(MigrationPhase::PreparingTarget);
        world.api.target = Some(TargetState::Prepared);
        world.target_pod = TargetPodState::Ready;
        world.source_session = Some(SourceSession::default());
        world.target_session = Some(TargetSession::default());
        world.source.tunnel = world.source_tunnel();
        world.target.tunnel = world.target_tunnel();
        world.source.seen = world.api;
        world.target.seen = world.api;
        world.settle();
        world
    }

    /// As [`SearchWorld::ready`], with a guest that its user has paused.
    pub(crate) fn paused(faults: u8) -> Self {
        Self {
            here: SourceDomain::Paused,
            paused: true,
            ..Self::ready(faults, 1)
        }
    }

    /// Returns the state of the guest on the target as libvirt reports it.
    pub(crate) fn reported_there(&self) -> TargetDomain {
        match self.there {
            TargetDomain::Running if self.paused => TargetDomain::Complete,
            there => there,
        }
    }

    /// Returns whether the target is known to have the guest's last state. Only the target's session knows that a
    /// paused guest was taken over, until it is reported.
    pub(crate) fn arrival_is_known(&self) -> bool {
        let is_seen = self.ran_there && (!self.paused || self.api.target_is_settled());
        is_seen || self.api.source_has_let_go()
    }

    /// Returns whether the object exists.
    pub(crate) fn exists(&self) -> bool {
        !self.api.deleted || self.finalizer
    }

    pub(crate) fn job(&self) -> JobState {
        match self.move_ {
            Move::None | Move::Requested => JobState::None,
            _ => JobState::Outgoing,
        }
    }

    pub(crate) fn source_tunnel(&self) -> SourceTunnel {
        self.source_session
            .map_or(SourceTunnel::Missing, |session| SourceTunnel::Open {
                paired: session.paired,
                reply_read: session.reply_read,
                acknowledged: session.acknowledged,
            })
    }

    pub(crate) fn target_tunnel(&self) -> TargetTunnel {
        self.target_session
            .map_or(TargetTunnel::Missing, |session| TargetTunnel::Open {
                paired: session.paired,
                released: session.released,
                taken_over: session.taken_over,
            })
    }

    /// Returns whether both tunnels can communicate.
    pub(crate) fn linked(&self) -> bool {
        self.source_session.is_some_and(|session| session.paired)
            && self.target_session.is_some_and(|session| session.paired)
            && self.source_node == Node::Up
            && self.target_node == Node::Up
    }

    /// Returns whether the guest runs on its source.
    pub(crate) fn runs_here(&self) -> bool {
        self.here == SourceDomain::Running && self.source_node == Node::Up
    }

    /// Returns whether the guest runs on its target.
    pub(crate) fn runs_there(&self) -> bool {
        matches!(self.there, TargetDomain::Running | TargetDomain::PostCopy) && self.target_node == Node::Up
    }

    /// Returns whether memory of a switched guest is missing and can no longer arrive.
    pub(crate) fn is_stuck(&self) -> bool {
        self.there == TargetDomain::PostCopy && self.move_ != Move::Follows && self.target_node == Node::Up
    }

    /// Returns whether the source has a guest that runs, or that can be resumed.
    pub(crate) fn lives_here(&self) -> bool {
        let lives = matches!(
            self.here,
            SourceDomain::Running | SourceDomain::Leaving | SourceDomain::Paused
        );
        lives && self.source_node == Node::Up
    }

    /// Cuts the connection between the tunnels.
    pub(crate) fn cut(&mut self) {
        match self.move_ {
            Move::Perform | Move::Still | Move::Reply => self.move_ = Move::Failing,
            Move::Switched | Move::Follows => self.lose_memory(),
            _ => {}
        }
    }

    /// Loses the missing memory of a switched guest. That is the inherent risk of post-copy, and no bug.
    pub(crate) fn lose_memory(&mut self) {
        self.complete_call(MigrateCall::Failed);
        self.struck = true;
    }

    /// Writes the object as a party other than a controller. The version known to the controllers is outdated then.
    pub(crate) fn write(&mut self, change: impl FnOnce(&mut MigrationRecord)) {
        let before = self.api;
        change(&mut self.api);
        if self.api != before {
            self.controllers
                .iter_mut()
                .for_each(|controller| controller.fresh = false);
        }
    }

    /// Ends the call with this result.
    pub(crate) fn complete_call(&mut self, result: MigrateCall) {
        self.move_ = Move::None;
        if self.source.call == MigrateCall::Pending {
            self.source.call = result;
        }
    }

    /// Applies immediate consequences, and clears values that no longer matter, so that equivalent states are equal.
    pub(crate) fn settle(&mut self) {
        let complete = self.there == TargetDomain::Complete;
        self.ran_on = complete && (self.ran_on || self.runs_here());
        self.ran_there |= matches!(self.there, TargetDomain::Running | TargetDomain::PostCopy);
        match &mut self.target_session {
            Some(session) if !session.released => {}
            _ => self.release = false,
        }
        if let Some(session) = &mut self.source_session {
            session.drained &= !session.reply_read;
        }
        // The record in the pod is void once the pod has ended.
        self.left &= self.source_pod == SourcePod::Alive && self.source_node == Node::Up;
        self.overdue &= !self.api.is_over();
        self.source.stood_still &=
            self.api.source == Some(SourceState::Migrating) && self.here != SourceDomain::Running;
        if self.api.source > Some(SourceState::Migrating) && self.move_ == Move::None {
            self.source.call = MigrateCall::Unknown;
        }
        if self.api.target.is_some() {
            self.target.fits = None;
        }
        self.source_deleted &= self.source_node == Node::Up;
        self.target_deleted &= self.target_node == Node::Up;
        // The agent does not run, or has no object to act on.
        if self.source_node != Node::Up || !self.exists() {
            self.source = SourceAgent {
                late: true,
                ..SourceAgent::NEW
            };
        }
        if self.target_node != Node::Up || !self.exists() {
            self.target = TargetAgent {
                late: true,
                ..TargetAgent::NEW
            };
        }
        if !self.source.late {
            self.source.seen = self.api;
            self.source.tunnel = self.source_tunnel();
        }
        if !self.target.late {
            self.target.seen = self.api;
            self.target.tunnel = self.target_tunnel();
        }
        self.source.seen = seen_by_source(self.source.seen);
        self.target.seen = seen_by_target(self.target.seen);
    }
}

impl SourceAgent {
    const NEW: Self = Self {
        seen: NOTHING,
        late: false,
        tunnel: SourceTunnel::Missing,
        read: None,
        call: MigrateCall::Unknown,
        stood_still: false,
        todo: [None; 2],
    };
}

impl TargetAgent {
    const NEW: Self = Self {
        seen: NOTHING,
        late: false,
        tunnel: TargetTunnel::Missing,
        fits: None,
        todo: [None; 2],
    };
}

const NOTHING: MigrationRecord = MigrationRecord {
    phase: None,
    deleted: false,
    abort: false,
    source_gone: false,
    gave_up: false,
    source: None,
    target: None,
};

/// Clears the fields of a record that neither side uses.
fn seen_by_a_side(record: MigrationRecord) -> MigrationRecord {
    if !record.has_sides() {
        return MigrationRecord::default();
    }
    MigrationRecord {
        // An abort and a deletion have the same effect.
        abort: record.abort || record.deleted,
        deleted: false,
        phase: match record.phase {
            Some(MigrationPhase::Running | MigrationPhase::TargetReady) => Some(MigrationPhase::PreparingTarget),
            phase => phase,
        },
        ..record
    }
}

/// Reduces a record to the fields that the source's agent uses, so that equivalent states are equal. The agent takes
/// its own side from its last report.
pub(crate) fn seen_by_source(record: MigrationRecord) -> MigrationRecord {
    MigrationRecord {
        source_gone: false,
        source: None,
        ..seen_by_a_side(record)
    }
}

/// Reduces a record to the fields that the target's agent uses.
pub(crate) fn seen_by_target(record: MigrationRecord) -> MigrationRecord {
    MigrationRecord {
        source: record.source.map(|state| match state {
            SourceState::Migrating => SourceState::Migrating,
            SourceState::Halted => SourceState::Halted,
            SourceState::Released | SourceState::Stopped | SourceState::HandedOver => SourceState::Released,
            SourceState::Stayed | SourceState::Ended => SourceState::Stayed,
            SourceState::Unknown => SourceState::Unknown,
        }),
        target: None,
        ..seen_by_a_side(record)
    }
}
