//! The next steps of the agent on a migration's source node.
//!
//! ```text
//!  (nothing) ──target prepared──▶ Migrating ──▶ libvirt moves the guest
//!      │                              │
//!      │ aborted               ┌──────┴────────────── paused for hand-over ──────────────┐
//!      ▼                       ▼                      │ reply read      │ no job, and     │ QEMU ended
//!    Stayed ◀── libvirt resumes it                Released ◀────────────┘ target complete ▼
//!                                                     └──── libvirt: stopped, migrated ▶ Stopped
//! ```
//!
//! If the guest is paused with no job while the target has not reported `Complete`, the source reports `Halted`. The
//! target responds, and the source goes to `Released`, or back to `Stayed`. The session is closed before `Stayed` is
//! reported, because a call of an earlier process may not have reached libvirt yet.
//!
//! A guest that its user has paused stays paused until the hand-over and after it, so its state shows neither. If
//! libvirtd was lost, the source goes to `Halted` with it, too. `Released` follows from the same proofs.
//!
//! libvirt resumes the source when the target's last reply is lost, although the target holds the whole guest. So the
//! target is released only by proof that nothing resumes the source any more. One of these must hold:
//!
//! - libvirt has read that reply.
//! - libvirt has stopped the guest as migrated.
//! - The guest has ended while paused for the hand-over.
//! - libvirtd was lost while the guest was paused (a new one leaves it paused), and this agent has promised, on the
//!   object, never to resume it.
//!
//! If the tunnel reports that the target has taken over before libvirt has stopped the guest on the source, the source
//! reports both facts in one state, `HandedOver` instead of `Stopped`. If libvirt was faster, the source waits for that
//! report of the tunnel for a moment ([`SourceView::target_is_late`]).
//!
//! A guest that was switched to post-copy can never resume on the source either, so it is `Released` at once. Its
//! source QEMU is left alone until the target has reported `Running`, which it does once all of the guest has arrived.
//!
//! A state is written to the object before it is acted upon: `Migrating` before libvirt is called, so that a migration
//! is started at most once, and `Released` before the target is notified.

pub mod stayed;

use std::time::Duration;

use drydock_api::kubevirt::migration::{SourceState, TargetState};

use super::{hand_over::Proof, record::MigrationRecord};

/// Time after which the target's acknowledgement is late. A tunnel sends it within milliseconds after it has resumed the
/// guest. Short, because a guest whose tunnel cannot release it stands still for this long.
pub const TARGET_IS_LATE_AFTER: Duration = Duration::from_millis(100);

/// State of the guest on its source, as libvirt reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceDomain {
    /// libvirt does not report a state.
    Unknown,
    /// The guest runs.
    Running,
    /// The user has paused the guest.
    Paused,
    /// The guest is paused so that the rest of it can be moved, or the target can start.
    Leaving,
    /// The guest was switched to post-copy and is paused for good. The target runs the guest, and needs the pages that
    /// are still on the source until it reports that it has all of them.
    PostCopy,
    /// The guest has left: libvirt stopped it as migrated.
    Left,
    /// The guest has ended for another reason.
    Ended,
}

/// State of libvirt's job on the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobState {
    /// libvirt does not report the state of the job.
    Unknown,
    /// No job is running.
    None,
    /// An outgoing migration is running.
    Outgoing,
}

/// State of the libvirt call that migrates the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MigrateCall {
    /// This process has not made the call; an earlier process may have.
    Unknown,
    /// This process has written `Migrating`, or has tried to, and has not made the call yet.
    Due,
    /// The call has not returned yet.
    Pending,
    /// The call has failed.
    Failed,
    /// The call has ended without a response of libvirt.
    Lost,
    /// The call has succeeded.
    Succeeded,
}

/// State of the tunnel's session on the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceTunnel {
    /// The tunnel does not respond.
    Unknown,
    /// The tunnel has no session for this migration.
    Missing,
    /// The tunnel has a session.
    Open {
        /// The session knows its peer.
        paired: bool,
        /// libvirt has read the target's last reply.
        reply_read: bool,
        /// The target has acknowledged that it took over.
        acknowledged: bool,
    },
}

/// The view of the source's agent. It reads the object and the tunnel first, then the domain, its job, and the domain
/// again, until both readings of the domain agree. A job state that was read before the guest was paused proves nothing
/// afterwards. A tunnel without a session passes nothing on from then on.
///
/// The agent takes its own side from its last report, or, after a start, from the API server instead of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceView {
    /// The state recorded in the object.
    pub record: MigrationRecord,
    /// State of the guest.
    pub domain: SourceDomain,
    /// State of libvirt's job on the guest's domain.
    pub job: JobState,
    /// State of the call that migrates the guest.
    pub call: MigrateCall,
    /// State of the tunnel's session.
    pub tunnel: SourceTunnel,
    /// The guest was paused for the hand-over until its end: this process has seen every domain event from its pause to
    /// its end, and no resume event.
    pub stood_still: bool,
    /// The guest has left, but the target has not acknowledged that within [`TARGET_IS_LATE_AFTER`].
    pub target_is_late: bool,
    /// libvirt's job has sent nothing, and is to end ([`unsent`](super::unsent)).
    pub is_stuck: bool,
}

impl SourceView {
    /// Returns whether libvirt was not called for this migration. `Migrating` is written before the call. If this
    /// process wrote it, the call may still be due.
    pub fn has_not_begun(&self) -> bool {
        match self.record.source {
            None => true,
            Some(SourceState::Migrating) => self.call == MigrateCall::Due,
            _ => false,
        }
    }

    /// Returns whether the guest is being moved or was moved. If this migration has not begun, the guest moves by
    /// another migration, which began before this agent learned that this one was aborted.
    fn shows_another(&self) -> bool {
        match self.domain {
            SourceDomain::Leaving | SourceDomain::PostCopy | SourceDomain::Left => true,
            SourceDomain::Running | SourceDomain::Paused => self.job == JobState::Outgoing,
            SourceDomain::Unknown | SourceDomain::Ended => false,
        }
    }
}

/// A step of the source's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceStep {
    /// Opens a session of the tunnel.
    Prepare,
    /// Sets the peer of the session.
    Pair,
    /// Writes this state to the object.
    Report(SourceState),
    /// Calls libvirt to migrate the guest.
    Start,
    /// Requests libvirt to abort the migration.
    Abort,
    /// Resumes the paused guest on the source.
    Resume,
    /// Releases the guest through the tunnel, so that the target may resume it.
    Release(Proof),
    /// Destroys the rest of a guest that runs on the target.
    Destroy,
    /// Closes the session.
    Close,
}

/// Returns the time until the target's acknowledgement is late, given the time since the guest was first observed to
/// have left; `None` if it has not left.
pub fn target_is_late_in(left_for: Option<Duration>) -> Option<Duration> {
    left_for.map(|left_for| TARGET_IS_LATE_AFTER.saturating_sub(left_for))
}

/// Returns the steps of the source's agent in order; none while it waits. Each step is idempotent.
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
            vec![SourceStep::Report(SourceState::Stayed)]
        } else {
            Vec::new()
        };
    }
    match view.domain {
        SourceDomain::Unknown => Vec::new(),
        SourceDomain::Left => gone(view, Proof::SourceStopped),
        SourceDomain::Ended => ended(view),
        SourceDomain::PostCopy => in_post_copy(view),
        SourceDomain::Leaving => leaving(view),
        SourceDomain::Paused => paused(view),
        SourceDomain::Running => alive(view),
    }
}

/// Steps when the guest has left, or cannot come back. Repeats the release until the target has taken over.
fn gone(view: &SourceView, proof: Proof) -> Vec<SourceStep> {
    if view.record.source == Some(SourceState::Stopped) {
        return release(view, proof);
    }
    if is_about_to_be_acknowledged(view) {
        return Vec::new();
    }
    let stopped = if has_handed_over(view) {
        SourceState::HandedOver
    } else {
        SourceState::Stopped
    };
    let mut steps = vec![SourceStep::Report(stopped)];
    steps.extend(release(view, proof));
    steps
}

/// Returns whether the target has acknowledged the hand-over to this tunnel and leaves the report to this side. The
/// target does not wait for a source whose state is past `Migrating`.
fn has_handed_over(view: &SourceView) -> bool {
    view.record.source == Some(SourceState::Migrating)
        && matches!(view.tunnel, SourceTunnel::Open { acknowledged: true, .. })
}

/// Returns whether this tunnel is about to release the guest or has done so, and the target's acknowledgement is about
/// to arrive. The target leaves the report to this side meanwhile: one write instead of two.
fn is_about_to_be_acknowledged(view: &SourceView) -> bool {
    let is_carried = matches!(
        view.tunnel,
        SourceTunnel::Open {
            paired: true,
            acknowledged: false,
            ..
        }
    );
    let migrated_away = view.domain == SourceDomain::Left && view.record.source == Some(SourceState::Migrating);
    is_carried && migrated_away && !view.target_is_late
}

/// Steps when the guest has ended and libvirt does not report that it has left.
fn ended(view: &SourceView) -> Vec<SourceStep> {
    match view.record.source {
        Some(SourceState::Released | SourceState::Stopped) => gone(view, Proof::SourceStopped),
        Some(SourceState::Migrating | SourceState::Halted) if reply_read(view) => gone(view, Proof::SourceStopped),
        // The guest was paused until its end. If the target has all of it, that copy is its last state.
        Some(SourceState::Migrating) if view.stood_still => vec![SourceStep::Report(SourceState::Halted)],
        Some(SourceState::Halted) => match view.record.target {
            Some(TargetState::Complete | TargetState::Running | TargetState::Ended) => gone(view, Proof::SourceStopped),
            Some(TargetState::Gone | TargetState::Refused) => vec![SourceStep::Report(SourceState::Ended)],
            _ if view.record.is_over() => vec![SourceStep::Report(SourceState::Ended)],
            _ => Vec::new(),
        },
        // The guest may have resumed after the pause, so the target's copy may be outdated.
        _ => vec![SourceStep::Report(SourceState::Ended)],
    }
}

/// Steps while the guest is paused for the hand-over.
fn leaving(view: &SourceView) -> Vec<SourceStep> {
    let record = &view.record;
    if record.source_has_let_go() {
        let mut steps = release(view, Proof::SourceGone);
        // Nothing needs the rest of the guest on the source. The guest belongs to the target, whatever happened to it
        // on the target.
        let taken = matches!(record.target, Some(TargetState::Running | TargetState::Ended)) || record.is_over();
        if view.job == JobState::None && taken {
            steps.push(SourceStep::Destroy);
        }
        return steps;
    }
    // The target has taken over, and libvirt is about to stop the guest on the source.
    if view.job == JobState::Outgoing && has_handed_over(view) {
        return Vec::new();
    }
    if reply_read(view) {
        return released(view, Proof::ReplyConsumed);
    }
    match (view.job, record.target) {
        (JobState::Unknown, _) => Vec::new(),
        (JobState::Outgoing, _) if record.is_given_up() => vec![SourceStep::Abort],
        (JobState::Outgoing, _) => Vec::new(),
        // libvirtd was lost meanwhile, and nothing continues by itself.
        (JobState::None, Some(TargetState::Complete | TargetState::Running | TargetState::Ended))
            if !record.has_failed() =>
        {
            vec![SourceStep::Report(SourceState::Released)]
        }
        (JobState::None, Some(TargetState::Gone | TargetState::Refused)) => vec![SourceStep::Resume],
        (JobState::None, _) if record.has_failed() => orphaned(view),
        (JobState::None, _) if record.source == Some(SourceState::Halted) => Vec::new(),
        (JobState::None, _) => vec![SourceStep::Report(SourceState::Halted)],
    }
}

/// Steps when the target is gone for good without a report. Its guest ran there only if this tunnel had released it. A
/// tunnel that was lost has no record of that.
fn orphaned(view: &SourceView) -> Vec<SourceStep> {
    match view.tunnel {
        SourceTunnel::Unknown => Vec::new(),
        SourceTunnel::Open { .. } => vec![SourceStep::Resume],
        SourceTunnel::Missing => vec![SourceStep::Destroy],
    }
}

/// Steps when the guest runs on the target after a switch to post-copy. libvirt never resumes it on the source,
/// whatever happens on the target. libvirt destroys the rest on the source by itself once the target has everything,
/// unless the reply that confirms this is lost.
fn in_post_copy(view: &SourceView) -> Vec<SourceStep> {
    if !view.record.source_has_let_go() {
        return vec![SourceStep::Report(SourceState::Released)];
    }
    let mut steps = release(view, Proof::SourceGone);
    let complete = matches!(view.record.target, Some(TargetState::Running | TargetState::Ended));
    // libvirt may still have a job that waits for a reply which never arrives.
    if complete || view.record.is_over() {
        steps.push(SourceStep::Destroy);
    }
    steps
}

/// Steps while the guest is paused by its user. libvirt leaves it paused even if the target has all of it, so its state
/// does not show on which side it is.
fn paused(view: &SourceView) -> Vec<SourceStep> {
    let is_known = reply_read(view) || view.record.source_has_let_go();
    if is_known || may_have_left(view) {
        leaving(view)
    } else {
        alive(view)
    }
}

/// Returns whether a guest that its user has paused may have left: libvirtd was lost, perhaps after it had read the
/// last reply, which the tunnel may not have noticed yet.
fn may_have_left(view: &SourceView) -> bool {
    let (record, target) = (&view.record, view.record.target);
    if view.job != JobState::None || record.has_failed() {
        return false;
    }
    let is_there = matches!(
        target,
        Some(TargetState::Complete | TargetState::Running | TargetState::Ended)
    );
    let is_nowhere = matches!(target, Some(TargetState::Gone | TargetState::Refused));
    match (record.source, view.call) {
        (Some(SourceState::Halted), _) | (Some(SourceState::Migrating), MigrateCall::Lost) => !is_nowhere,
        // A call of an earlier process may not have reached libvirt yet, unless the target has all of the guest.
        (Some(SourceState::Migrating), MigrateCall::Unknown) => is_there,
        _ => false,
    }
}

/// Steps while the guest runs, or is paused by its user and stays.
fn alive(view: &SourceView) -> Vec<SourceStep> {
    let record = &view.record;
    if record.source_has_let_go() {
        // An external caller has resumed the guest. A running guest is never destroyed on a guess.
        return Vec::new();
    }
    match view.job {
        JobState::Unknown => return Vec::new(),
        JobState::Outgoing if view.is_stuck && matches!(view.tunnel, SourceTunnel::Open { .. }) => {
            return vec![SourceStep::Close];
        }
        JobState::Outgoing if record.is_given_up() => return vec![SourceStep::Abort],
        JobState::Outgoing => return Vec::new(),
        JobState::None => {}
    }
    match record.source {
        None if record.is_given_up() => vec![SourceStep::Report(SourceState::Stayed)],
        None if !record.has_sides() => Vec::new(),
        None => match view.tunnel {
            SourceTunnel::Unknown => Vec::new(),
            SourceTunnel::Missing => vec![SourceStep::Prepare],
            SourceTunnel::Open { .. } if record.target != Some(TargetState::Prepared) => Vec::new(),
            SourceTunnel::Open { paired: false, .. } => vec![SourceStep::Pair],
            SourceTunnel::Open { .. } => vec![SourceStep::Report(SourceState::Migrating)],
        },
        Some(SourceState::Migrating | SourceState::Halted) => match view.call {
            MigrateCall::Due if !record.is_given_up() && record.source == Some(SourceState::Migrating) => {
                vec![SourceStep::Start]
            }
            // libvirt has confirmed the migration, or is about to return its result.
            MigrateCall::Pending | MigrateCall::Succeeded => Vec::new(),
            // A call of an earlier process may not have reached libvirt yet. When it does, it finds no session.
            MigrateCall::Due | MigrateCall::Failed | MigrateCall::Lost | MigrateCall::Unknown => match view.tunnel {
                SourceTunnel::Unknown => Vec::new(),
                SourceTunnel::Open { .. } => vec![SourceStep::Close],
                SourceTunnel::Missing => vec![SourceStep::Report(SourceState::Stayed)],
            },
        },
        _ => Vec::new(),
    }
}

/// Writes `Released` to the object first, then releases the guest through the tunnel.
fn released(view: &SourceView, proof: Proof) -> Vec<SourceStep> {
    if view.record.source_has_let_go() {
        release(view, proof)
    } else {
        vec![SourceStep::Report(SourceState::Released)]
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
