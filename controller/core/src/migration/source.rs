//! What the agent of a migration's source does next.
//!
//! ```text
//!  (nothing) ──target prepared──▶ Migrating ──▶ libvirt moves the guest
//!      │                              │
//!      │ given up              ┌──────┴────────────── stands still to leave ─────────────┐
//!      ▼                       ▼                      │ reply read      │ no job, and     │ QEMU ended
//!    Stayed ◀── libvirt let it run on             Released ◀────────────┘ target complete ▼
//!                                                     └──── libvirt: stopped, migrated ▶ Stopped
//! ```
//!
//! A guest that stands still with no job, while the target has not said that it is complete, is said to
//! be `Halted`: the target answers, and it goes to `Released`, or back to `Stayed`. Before it is said to
//! stay, the session is closed, since a call of an earlier process may still be on its way to libvirt.
//!
//! libvirt resumes the source when the target's last reply is lost, although the target holds the
//! whole guest. So the target is only told to go on by proof that nothing resumes the source any
//! more: libvirt has read that reply, or has stopped the guest as migrated, or the guest has ended
//! while it stood still, or libvirtd was lost while it stood still (a new one leaves it so) and this
//! agent has promised, on the object, never to resume it.
//!
//! A source that hears from its tunnel that the target has taken the guest over, before libvirt has stopped it
//! here, says both in one word, `HandedOver` instead of `Stopped`.
//!
//! A guest that was switched to post-copy can never go on here either: it is `Released` at once. What is here of
//! it is not touched until the target has said `Running`, which it says once all of the guest is there.
//!
//! What is said on the object is said before it is acted upon: `Migrating` before libvirt is asked,
//! so that a migration is begun at most once; `Released` before the target is told.

use drydock_api::kubevirt::migration::{SourceState, TargetState};

use super::{hand_over::Proof, record::Record};

/// The guest on its source, as libvirt says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceDomain {
    /// libvirt does not say.
    Unknown,
    /// It runs.
    Running,
    /// Its user has paused it.
    Paused,
    /// It stands still so that the rest of it can be moved, or that the target can begin.
    Leaving,
    /// It was switched to post-copy and stands still for good: the target runs it, and needs what of it is
    /// here until it says that it has all of it.
    PostCopy,
    /// It has left: stopped as migrated.
    Left,
    /// It has ended otherwise.
    Ended,
}

/// A job of libvirt's on a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Job {
    /// libvirt does not say.
    Unknown,
    /// There is none.
    None,
    /// The guest is being moved away.
    Outgoing,
}

/// The call by which libvirt was asked to move the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// This process has not called; one before it may have.
    Unknown,
    /// This process has said that the guest is about to move, or has tried to say so, and has not called yet.
    Due,
    /// It has no answer yet.
    Pending,
    /// It has failed.
    Failed,
    /// It has succeeded.
    Succeeded,
}

/// The tunnel's session on the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceTunnel {
    /// The tunnel does not answer.
    Unknown,
    /// It has no such session.
    Missing,
    /// It has.
    Open {
        /// It knows its peer.
        paired: bool,
        /// libvirt has read the target's last reply.
        reply_read: bool,
        /// The target has said that it took over.
        acknowledged: bool,
    },
}

/// What the source's agent sees: first the object and the tunnel, then the domain, its job, and the domain
/// once more, until both readings of the domain agree. A job that was read before the guest stood still
/// says nothing of it; a tunnel without session lets nothing through after that.
///
/// Of its own side it knows what it said last, or what the API server, not a cache, said when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceView {
    /// What the object says.
    pub record: Record,
    /// The guest.
    pub domain: SourceDomain,
    /// Its job.
    pub job: Job,
    /// The call.
    pub call: Call,
    /// The tunnel.
    pub tunnel: SourceTunnel,
    /// This process has seen every event of the domain since it stood still to leave, and none by
    /// which it went on.
    pub stood_still: bool,
}

impl SourceView {
    /// libvirt was not asked to move the guest for this migration: `Migrating` is said before that, and this
    /// process still has to ask when it was the one to say it.
    pub fn has_not_begun(&self) -> bool {
        match self.record.source {
            None => true,
            Some(SourceState::Migrating) => self.call == Call::Due,
            _ => false,
        }
    }

    /// The guest is being moved or was moved. If this migration has not begun, that is another one, which was
    /// begun while this agent did not hear that this one was given up.
    fn shows_another(&self) -> bool {
        match self.domain {
            SourceDomain::Leaving | SourceDomain::PostCopy | SourceDomain::Left => true,
            SourceDomain::Running | SourceDomain::Paused => self.job == Job::Outgoing,
            SourceDomain::Unknown | SourceDomain::Ended => false,
        }
    }
}

/// One thing that the source's agent does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceStep {
    /// A session of the tunnel is opened.
    Prepare,
    /// The session is told its peer.
    Pair,
    /// The object is told.
    Say(SourceState),
    /// libvirt is asked to move the guest.
    Start,
    /// libvirt is asked to give up moving it.
    Abort,
    /// The guest that stands still goes on here.
    Resume,
    /// The tunnel tells the target that the guest may go on there.
    Release(Proof),
    /// What is left of a guest that runs on the target is ended.
    Destroy,
    /// The session is closed.
    Close,
}

/// What the source's agent does, in this order; none if it waits. Each is safe to repeat.
pub fn step(view: &SourceView) -> Vec<SourceStep> {
    let record = &view.record;
    if record.is_unknown() {
        return Vec::new();
    }
    let open = matches!(view.tunnel, SourceTunnel::Open { .. });
    let settled = matches!(record.source, Some(SourceState::Stayed | SourceState::Ended));
    if settled || (record.is_over() && record.source_is_settled()) {
        return if open { vec![SourceStep::Close] } else { Vec::new() };
    }
    if view.has_not_begun() && view.shows_another() {
        return if record.is_given_up() {
            vec![SourceStep::Say(SourceState::Stayed)]
        } else {
            Vec::new()
        };
    }
    match view.domain {
        SourceDomain::Unknown => Vec::new(),
        SourceDomain::Left => gone(view, Proof::SourceStopped),
        SourceDomain::Ended => ended(view),
        SourceDomain::PostCopy => switched(view),
        SourceDomain::Leaving => leaving(view),
        SourceDomain::Running | SourceDomain::Paused => alive(view),
    }
}

/// The guest has left, or cannot come back. The target is told until it has taken over.
fn gone(view: &SourceView, proof: Proof) -> Vec<SourceStep> {
    if view.record.source == Some(SourceState::Stopped) {
        return release(view, proof);
    }
    let stopped = if has_handed_over(view) {
        SourceState::HandedOver
    } else {
        SourceState::Stopped
    };
    let mut steps = vec![SourceStep::Say(stopped)];
    steps.extend(release(view, proof));
    steps
}

/// The target has told this tunnel that it took the guest over, and leaves it to this side to say so. A source
/// that has said more than `Migrating` is not waited for.
fn has_handed_over(view: &SourceView) -> bool {
    view.record.source == Some(SourceState::Migrating)
        && matches!(view.tunnel, SourceTunnel::Open { acknowledged: true, .. })
}

/// The guest has ended, and libvirt does not say that it has left.
fn ended(view: &SourceView) -> Vec<SourceStep> {
    match view.record.source {
        Some(SourceState::Released | SourceState::Stopped) => gone(view, Proof::SourceStopped),
        Some(SourceState::Migrating | SourceState::Halted) if reply_read(view) => gone(view, Proof::SourceStopped),
        // It stood still until its end. If the target has all of it, that is its last state.
        Some(SourceState::Migrating) if view.stood_still => vec![SourceStep::Say(SourceState::Halted)],
        Some(SourceState::Halted) => match view.record.target {
            Some(TargetState::Complete | TargetState::Running | TargetState::Ended) => gone(view, Proof::SourceStopped),
            Some(TargetState::Gone | TargetState::Refused) => vec![SourceStep::Say(SourceState::Ended)],
            _ if view.record.is_over() => vec![SourceStep::Say(SourceState::Ended)],
            _ => Vec::new(),
        },
        // It may have gone on after it stood still; what the target has would be an old state.
        _ => vec![SourceStep::Say(SourceState::Ended)],
    }
}

/// The guest stands still in order to leave.
fn leaving(view: &SourceView) -> Vec<SourceStep> {
    let record = &view.record;
    if record.source_has_let_go() {
        let mut steps = release(view, Proof::SourceGone);
        // Nothing waits for what is left here: the guest is the target's, whatever became of it there.
        let taken = matches!(record.target, Some(TargetState::Running | TargetState::Ended)) || record.is_over();
        if view.job == Job::None && taken {
            steps.push(SourceStep::Destroy);
        }
        return steps;
    }
    // The target has taken it over, and libvirt is about to stop it here.
    if view.job == Job::Outgoing && has_handed_over(view) {
        return Vec::new();
    }
    if reply_read(view) {
        return released(view, Proof::ReplyConsumed);
    }
    match (view.job, record.target) {
        (Job::Unknown, _) => Vec::new(),
        (Job::Outgoing, _) if record.is_given_up() => vec![SourceStep::Abort],
        (Job::Outgoing, _) => Vec::new(),
        // libvirtd was lost meanwhile, and nothing goes on by itself.
        (Job::None, Some(TargetState::Complete | TargetState::Running | TargetState::Ended))
            if !record.has_failed() =>
        {
            vec![SourceStep::Say(SourceState::Released)]
        }
        (Job::None, Some(TargetState::Gone | TargetState::Refused)) => vec![SourceStep::Resume],
        (Job::None, _) if record.has_failed() => orphaned(view),
        (Job::None, _) if record.source == Some(SourceState::Halted) => Vec::new(),
        (Job::None, _) => vec![SourceStep::Say(SourceState::Halted)],
    }
}

/// The target is gone for good without a word. Its guest ran there only if this tunnel told it to, which
/// a tunnel that was lost has forgotten.
fn orphaned(view: &SourceView) -> Vec<SourceStep> {
    match view.tunnel {
        SourceTunnel::Unknown => Vec::new(),
        SourceTunnel::Open { .. } => vec![SourceStep::Resume],
        SourceTunnel::Missing => vec![SourceStep::Destroy],
    }
}

/// The guest runs on the target since it was switched to post-copy. libvirt never lets it go on here, whatever
/// becomes of it there; and it ends what is here by itself once the target has all of it, unless the reply
/// that says so is lost.
fn switched(view: &SourceView) -> Vec<SourceStep> {
    if !view.record.source_has_let_go() {
        return vec![SourceStep::Say(SourceState::Released)];
    }
    let mut steps = release(view, Proof::SourceGone);
    let complete = matches!(view.record.target, Some(TargetState::Running | TargetState::Ended));
    // libvirt may still have a job: it waits for a reply that nobody gives any more.
    if complete || view.record.is_over() {
        steps.push(SourceStep::Destroy);
    }
    steps
}

/// The guest runs, or is paused by its user.
fn alive(view: &SourceView) -> Vec<SourceStep> {
    let record = &view.record;
    if record.source_has_let_go() {
        // Somebody else has resumed it. Nothing that runs is ended on a guess.
        return Vec::new();
    }
    match view.job {
        Job::Unknown => return Vec::new(),
        Job::Outgoing if record.is_given_up() => return vec![SourceStep::Abort],
        Job::Outgoing => return Vec::new(),
        Job::None => {}
    }
    match record.source {
        None if record.is_given_up() => vec![SourceStep::Say(SourceState::Stayed)],
        None if !record.has_sides() => Vec::new(),
        None => match view.tunnel {
            SourceTunnel::Unknown => Vec::new(),
            SourceTunnel::Missing => vec![SourceStep::Prepare],
            SourceTunnel::Open { .. } if record.target != Some(TargetState::Prepared) => Vec::new(),
            SourceTunnel::Open { paired: false, .. } => vec![SourceStep::Pair],
            SourceTunnel::Open { .. } => vec![SourceStep::Say(SourceState::Migrating)],
        },
        Some(SourceState::Migrating | SourceState::Halted) => match view.call {
            Call::Due if !record.is_given_up() && record.source == Some(SourceState::Migrating) => {
                vec![SourceStep::Start]
            }
            // libvirt has answered that it moves, or is about to say how it went.
            Call::Pending | Call::Succeeded => Vec::new(),
            // A call of an earlier process may still be on its way to libvirt: it finds no session.
            Call::Due | Call::Failed | Call::Unknown => match view.tunnel {
                SourceTunnel::Unknown => Vec::new(),
                SourceTunnel::Open { .. } => vec![SourceStep::Close],
                SourceTunnel::Missing => vec![SourceStep::Say(SourceState::Stayed)],
            },
        },
        _ => Vec::new(),
    }
}

/// The source lets go: on the object first.
fn released(view: &SourceView, proof: Proof) -> Vec<SourceStep> {
    if view.record.source_has_let_go() {
        release(view, proof)
    } else {
        vec![SourceStep::Say(SourceState::Released)]
    }
}

fn release(view: &SourceView, proof: Proof) -> Vec<SourceStep> {
    match view.tunnel {
        SourceTunnel::Open {
            acknowledged: false,
            reply_read: false,
            ..
        } => vec![SourceStep::Release(proof)],
        _ => Vec::new(),
    }
}

fn reply_read(view: &SourceView) -> bool {
    matches!(view.tunnel, SourceTunnel::Open { reply_read: true, .. })
}

#[cfg(test)]
mod tests;
