//! The next steps of the agent on a migration's target node.
//!
//! ```text
//!   (nothing) ──CPU fits, tunnel listens──▶ Prepared ──libvirt, through the tunnel──▶ incoming
//!       │ does not fit                          │ aborted                                │ whole
//!       ▼                                       ▼                                        ▼
//!    Refused                                  Gone ◀── the source keeps the guest ── Complete
//!                                                                                        │ released
//!                                                                         Ended ◀── Running
//! ```
//!
//! A guest that was switched to post-copy runs on the target before it is complete (`Incoming` → post-copy →
//! `Running`). Nothing is done or reported until the guest is complete.
//!
//! The source reports that the guest runs on the target if it is about to report the guest's departure (`HandedOver`).
//!
//! A complete guest is resumed by the tunnel or by this agent, whichever learns first that the source has released it.
//! A guest is destroyed only when the source keeps it, and after the session is closed, so that no release is in
//! flight.

pub mod target_refusal;

use std::time::Duration;

use drydock_api::kubevirt::migration::{MigrationPhase, SourceState, TargetState};

use super::record::MigrationRecord;

/// A complete guest is resumed within milliseconds. The guest is reported as complete only if it still waits after this
/// time.
pub const COMPLETE_FOR: Duration = Duration::from_secs(1);
/// Time after which the source's report is late. A source reports that it has handed the guest over once its QEMU has
/// ended, which takes a few tenths of a second.
pub const SOURCE_IS_LATE_AFTER: Duration = Duration::from_secs(2);

/// State of the guest on its target, as libvirt reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetDomain {
    /// libvirt does not report a state.
    Unknown,
    /// libvirt never had all of the guest, and the domain does not exist.
    Absent,
    /// The guest is being received.
    Incoming,
    /// All of the guest has arrived, and it is paused.
    Complete,
    /// The guest runs, and a part of its memory is still on the source. Neither side may be lost.
    PostCopy,
    /// The guest runs, and all of it has arrived.
    Running,
    /// The guest was complete, or ran, and has ended.
    Over,
}

/// State of the tunnel's session on the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetTunnel {
    /// The tunnel does not respond.
    Unknown,
    /// The tunnel has no session for this migration.
    Missing,
    /// The tunnel has a session.
    Open {
        /// The session knows its peer.
        paired: bool,
        /// The session has received the source's release.
        released: bool,
        /// The session has resumed the guest, or left it paused as its user wants.
        taken_over: bool,
    },
}

/// The view of the target's agent. It reads the object and the tunnel first, then the guest: a tunnel without a session
/// resumes nothing from then on. If the guest is over, it reads the tunnel again, because a release may have arrived
/// meanwhile.
///
/// The agent takes its own side from its last report, or, after a start, from the API server instead of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetView {
    /// The state recorded in the object.
    pub record: MigrationRecord,
    /// State of the tunnel's session.
    pub tunnel: TargetTunnel,
    /// State of the guest.
    pub domain: TargetDomain,
    /// Whether the guest can run on this node, if that was checked.
    pub fits: Option<bool>,
    /// The guest runs on the target, but the source has not reported `HandedOver` within [`SOURCE_IS_LATE_AFTER`].
    pub source_is_late: bool,
}

/// A step of the target's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetStep {
    /// Checks with libvirt whether the guest can run on this node.
    Check,
    /// Opens a session of the tunnel.
    Prepare,
    /// Sets the peer of the session.
    Pair,
    /// Writes this state to the object.
    Report(TargetState),
    /// Makes the pod ready, so that Services route to it. The source is about to report that the guest runs on the
    /// target.
    Show,
    /// Resumes the guest, unless its user had paused it.
    TakeOver,
    /// Closes the session.
    Close,
    /// Destroys the guest on the target.
    Destroy,
}

/// Returns the steps of the target's agent in order; none while it waits. Each step is idempotent.
pub fn step(view: &TargetView) -> Vec<TargetStep> {
    if view.record.is_unknown() {
        return Vec::new();
    }
    match view.domain {
        // The guest would be lost without the source, so it is not reported before all of it has arrived.
        TargetDomain::Unknown | TargetDomain::PostCopy => Vec::new(),
        TargetDomain::Running => running(view),
        TargetDomain::Over => over(view),
        TargetDomain::Complete => complete(view),
        TargetDomain::Incoming if is_kept_by_source(view) || is_disowned(view) || is_halted(view) => discard(view),
        TargetDomain::Incoming => pair(view),
        TargetDomain::Absent => absent(view),
    }
}

/// Returns how long the agent waits before it executes `first`, the first of its steps; `None` if it does not wait.
/// `complete_for` is the time since the guest was first seen complete.
pub fn postponed(first: TargetStep, complete_for: Duration) -> Option<Duration> {
    let left = COMPLETE_FOR.saturating_sub(complete_for);
    (first == TargetStep::Report(TargetState::Complete) && !left.is_zero()).then_some(left)
}

/// Returns the time until the source's report is late, given the time since the target pod was made ready, if it was.
pub fn source_is_late_in(shown_for: Option<Duration>) -> Duration {
    SOURCE_IS_LATE_AFTER.saturating_sub(shown_for.unwrap_or_default())
}

fn running(view: &TargetView) -> Vec<TargetStep> {
    match view.record.target {
        None | Some(TargetState::Prepared | TargetState::Complete) if view.record.has_failed() => Vec::new(),
        None | Some(TargetState::Prepared | TargetState::Complete) if is_about_to_be_reported(view) => {
            vec![TargetStep::Show]
        }
        None | Some(TargetState::Prepared | TargetState::Complete) => {
            vec![TargetStep::Report(TargetState::Running)]
        }
        Some(TargetState::Running) if view.record.is_over() => close(view),
        _ => Vec::new(),
    }
}

/// Returns whether the source is about to report that the guest runs on the target. The source's tunnel learns that
/// from the target's tunnel, and the source's agent reports it together with the guest's end on the source, for which
/// the migration waits anyway: one write instead of two. The target's tunnel may not have recorded yet that it has
/// resumed the guest.
fn is_about_to_be_reported(view: &TargetView) -> bool {
    matches!(view.tunnel, TargetTunnel::Open { .. })
        && view.record.source == Some(SourceState::Migrating)
        && !view.record.source_gone
        && !view.source_is_late
}

fn absent(view: &TargetView) -> Vec<TargetStep> {
    let record = &view.record;
    // A source that has released the guest had sent all of its data. The guest was lost after a switch to post-copy,
    // before it was complete.
    let lost = record.source_has_let_go();
    let given_up = lost || record.is_given_up() || record.source_gone || is_halted(view) || is_kept_by_source(view);
    match record.target {
        Some(TargetState::Refused | TargetState::Gone | TargetState::Ended) => close(view),
        None if given_up => vec![TargetStep::Report(TargetState::Gone)],
        None if record.phase != Some(MigrationPhase::PreparingTarget) => Vec::new(),
        None => match (view.fits, view.tunnel) {
            (None, _) => vec![TargetStep::Check],
            (Some(false), _) => vec![TargetStep::Report(TargetState::Refused)],
            (Some(true), TargetTunnel::Unknown) => Vec::new(),
            (Some(true), TargetTunnel::Missing) => vec![TargetStep::Prepare],
            (Some(true), TargetTunnel::Open { .. }) => vec![TargetStep::Report(TargetState::Prepared)],
        },
        Some(TargetState::Running) => vec![TargetStep::Report(TargetState::Ended)],
        Some(TargetState::Unknown) => Vec::new(),
        Some(TargetState::Prepared | TargetState::Complete) => match view.tunnel {
            TargetTunnel::Unknown => Vec::new(),
            // Nothing can arrive any more.
            TargetTunnel::Missing => vec![TargetStep::Report(TargetState::Gone)],
            TargetTunnel::Open { .. } if given_up => vec![TargetStep::Close],
            TargetTunnel::Open { .. } => pair(view),
        },
    }
}

fn complete(view: &TargetView) -> Vec<TargetStep> {
    let taken_over = matches!(view.tunnel, TargetTunnel::Open { taken_over: true, .. });
    let released = matches!(view.tunnel, TargetTunnel::Open { released: true, .. });
    match view.record.target {
        // The user keeps the guest paused.
        Some(TargetState::Running) if view.record.is_over() => close(view),
        Some(TargetState::Running | TargetState::Ended) => Vec::new(),
        _ if is_disowned(view) => discard(view),
        _ if taken_over => vec![TargetStep::Report(TargetState::Running)],
        _ if released || view.record.source_has_let_go() => vec![TargetStep::TakeOver],
        _ if is_kept_by_source(view) || view.record.source_gone => discard(view),
        Some(TargetState::Complete) => Vec::new(),
        _ => vec![TargetStep::Report(TargetState::Complete)],
    }
}

fn over(view: &TargetView) -> Vec<TargetStep> {
    let never_ran = !view.record.source_has_let_go()
        && view.record.target != Some(TargetState::Running)
        && matches!(view.tunnel, TargetTunnel::Open { released: false, .. });
    match view.record.target {
        Some(TargetState::Refused | TargetState::Gone | TargetState::Ended) => close(view),
        // Before `Gone` is reported, a release that is in flight must find no session.
        _ if never_ran => vec![TargetStep::Close, TargetStep::Report(TargetState::Gone)],
        _ if matches!(view.tunnel, TargetTunnel::Unknown) => Vec::new(),
        _ if is_kept_by_source(view) && view.record.target != Some(TargetState::Running) => {
            vec![TargetStep::Report(TargetState::Gone)]
        }
        _ => vec![TargetStep::Report(TargetState::Ended)],
    }
}

/// Returns whether the guest stays on its source, or has ended on it. The copy on the target is useless then.
fn is_kept_by_source(view: &TargetView) -> bool {
    matches!(view.record.source, Some(SourceState::Stayed | SourceState::Ended)) || view.record.has_failed()
}

/// Returns whether nothing more comes from the source, which waits for the report whether the whole guest has arrived.
fn is_halted(view: &TargetView) -> bool {
    view.record.source == Some(SourceState::Halted)
}

/// Returns whether the target has reported that it has no guest and will not run one. The other parties rely on that
/// report.
fn is_disowned(view: &TargetView) -> bool {
    matches!(view.record.target, Some(TargetState::Refused | TargetState::Gone))
}

fn discard(view: &TargetView) -> Vec<TargetStep> {
    match view.tunnel {
        TargetTunnel::Unknown => Vec::new(),
        TargetTunnel::Open { .. } => vec![TargetStep::Close],
        TargetTunnel::Missing => vec![TargetStep::Destroy],
    }
}

fn close(view: &TargetView) -> Vec<TargetStep> {
    match view.tunnel {
        TargetTunnel::Open { .. } => vec![TargetStep::Close],
        _ => Vec::new(),
    }
}

/// Sets the session's peer. The source publishes its key together with its report that it begins. A migration that was
/// aborted before that gets no peer, so a source that has not seen the abort cannot start it.
fn pair(view: &TargetView) -> Vec<TargetStep> {
    let known = view.record.source.is_some();
    match view.tunnel {
        TargetTunnel::Open { paired: false, .. } if known => vec![TargetStep::Pair],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
