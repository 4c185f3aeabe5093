//! What the agent of a migration's target does next.
//!
//! ```text
//!   (nothing) ──CPU fits, tunnel listens──▶ Prepared ──libvirt, through the tunnel──▶ incoming
//!       │ does not fit                          │ given up                               │ whole
//!       ▼                                       ▼                                        ▼
//!    Refused                                  Gone ◀── the source keeps the guest ── Complete
//!                                                                                        │ released
//!                                                                         Ended ◀── Running
//! ```
//!
//! A guest that was switched to post-copy runs here before it is complete (`Incoming` → post-copy → `Running`),
//! and nothing is done or said until it is.
//!
//! That a guest runs here is said by its source, where that is about to say that the guest has left (`HandedOver`).
//!
//! A guest that is complete is resumed by the tunnel or by this agent, whoever hears first that the
//! source has let go. It is ended only when the source keeps it, and after the session is closed, so
//! that no release is on its way.

use drydock_api::kubevirt::migration::{MigrationPhase, SourceState, TargetState};

use super::record::Record;

/// The guest on its target, as libvirt says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetDomain {
    /// libvirt does not say.
    Unknown,
    /// libvirt has never had all of it: there is no such domain.
    Absent,
    /// It is on its way.
    Incoming,
    /// All of it is here, and it stands still.
    Complete,
    /// It runs, and a part of it is still on the source: nothing of either side may be lost.
    PostCopy,
    /// It runs, and all of it is here.
    Running,
    /// It was complete, or ran, and has ended.
    Over,
}

/// The tunnel's session on the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetTunnel {
    /// The tunnel does not answer.
    Unknown,
    /// It has no such session.
    Missing,
    /// It has.
    Open {
        /// It knows its peer.
        paired: bool,
        /// It has heard that the source lets go.
        released: bool,
        /// It has let the guest go on, or left it paused as its user wants.
        taken_over: bool,
    },
}

/// What the target's agent sees: first the object and the tunnel, then the guest, since a tunnel without
/// session resumes nothing after that; and if the guest is over, the tunnel once more, since it may have
/// been told to let the guest go on meanwhile.
///
/// Of its own side it knows what it said last, or what the API server, not a cache, said when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetView {
    /// What the object says.
    pub record: Record,
    /// The tunnel.
    pub tunnel: TargetTunnel,
    /// The guest.
    pub domain: TargetDomain,
    /// Whether the guest can run here, if that was asked.
    pub fits: Option<bool>,
    /// The source has not said for a while that it has handed the guest over that runs here.
    pub source_is_late: bool,
}

/// One thing that the target's agent does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetStep {
    /// libvirt is asked whether the guest can run here.
    Check,
    /// A session of the tunnel is opened.
    Prepare,
    /// The session is told its peer.
    Pair,
    /// The object is told.
    Say(TargetState),
    /// The guest is shown to run here: Services send to its pod. The source is about to tell the object.
    Show,
    /// The guest goes on here, unless its user had paused it.
    TakeOver,
    /// The session is closed.
    Close,
    /// What is here of the guest is ended.
    Destroy,
}

/// What the target's agent does, in this order; none if it waits. Each is safe to repeat.
pub fn step(view: &TargetView) -> Vec<TargetStep> {
    if view.record.is_unknown() {
        return Vec::new();
    }
    match view.domain {
        // Without the source it would be lost, so it is not said to be here before all of it is.
        TargetDomain::Unknown | TargetDomain::PostCopy => Vec::new(),
        TargetDomain::Running => running(view),
        TargetDomain::Over => over(view),
        TargetDomain::Complete => complete(view),
        TargetDomain::Incoming if is_kept_by_source(view) || is_disowned(view) || is_halted(view) => discard(view),
        TargetDomain::Incoming => pair(view),
        TargetDomain::Absent => absent(view),
    }
}

fn running(view: &TargetView) -> Vec<TargetStep> {
    match view.record.target {
        None | Some(TargetState::Prepared | TargetState::Complete) if view.record.has_failed() => Vec::new(),
        None | Some(TargetState::Prepared | TargetState::Complete) if is_about_to_be_told(view) => {
            vec![TargetStep::Show]
        }
        None | Some(TargetState::Prepared | TargetState::Complete) => {
            vec![TargetStep::Say(TargetState::Running)]
        }
        Some(TargetState::Running) if view.record.is_over() => close(view),
        _ => Vec::new(),
    }
}

/// The source's tunnel hears from this one that the guest runs here, and its agent says so together with its own end,
/// which the migration waits for anyway: one write for two.
fn is_about_to_be_told(view: &TargetView) -> bool {
    let told = matches!(view.tunnel, TargetTunnel::Open { taken_over: true, .. });
    told && view.record.source == Some(SourceState::Migrating) && !view.record.source_gone && !view.source_is_late
}

fn absent(view: &TargetView) -> Vec<TargetStep> {
    let record = &view.record;
    // A source that has let go had sent all that it sends: it was lost on its way, after a switch to post-copy.
    let lost = record.source_has_let_go();
    let given_up = lost || record.is_given_up() || record.source_gone || is_halted(view) || is_kept_by_source(view);
    match record.target {
        Some(TargetState::Refused | TargetState::Gone | TargetState::Ended) => close(view),
        None if given_up => vec![TargetStep::Say(TargetState::Gone)],
        None if record.phase != Some(MigrationPhase::PreparingTarget) => Vec::new(),
        None => match (view.fits, view.tunnel) {
            (None, _) => vec![TargetStep::Check],
            (Some(false), _) => vec![TargetStep::Say(TargetState::Refused)],
            (Some(true), TargetTunnel::Unknown) => Vec::new(),
            (Some(true), TargetTunnel::Missing) => vec![TargetStep::Prepare],
            (Some(true), TargetTunnel::Open { .. }) => vec![TargetStep::Say(TargetState::Prepared)],
        },
        Some(TargetState::Running) => vec![TargetStep::Say(TargetState::Ended)],
        Some(TargetState::Unknown) => Vec::new(),
        Some(TargetState::Prepared | TargetState::Complete) => match view.tunnel {
            TargetTunnel::Unknown => Vec::new(),
            // Nothing can arrive any more.
            TargetTunnel::Missing => vec![TargetStep::Say(TargetState::Gone)],
            TargetTunnel::Open { .. } if given_up => vec![TargetStep::Close],
            TargetTunnel::Open { .. } => pair(view),
        },
    }
}

fn complete(view: &TargetView) -> Vec<TargetStep> {
    let taken_over = matches!(view.tunnel, TargetTunnel::Open { taken_over: true, .. });
    let released = matches!(view.tunnel, TargetTunnel::Open { released: true, .. });
    match view.record.target {
        // Its user keeps it paused.
        Some(TargetState::Running) if view.record.is_over() => close(view),
        Some(TargetState::Running | TargetState::Ended) => Vec::new(),
        _ if is_disowned(view) => discard(view),
        _ if taken_over => vec![TargetStep::Say(TargetState::Running)],
        _ if released || view.record.source_has_let_go() => vec![TargetStep::TakeOver],
        _ if is_kept_by_source(view) || view.record.source_gone => discard(view),
        Some(TargetState::Complete) => Vec::new(),
        _ => vec![TargetStep::Say(TargetState::Complete)],
    }
}

fn over(view: &TargetView) -> Vec<TargetStep> {
    let never_ran = !view.record.source_has_let_go()
        && view.record.target != Some(TargetState::Running)
        && matches!(view.tunnel, TargetTunnel::Open { released: false, .. });
    match view.record.target {
        Some(TargetState::Refused | TargetState::Gone | TargetState::Ended) => close(view),
        // A release that is on its way must find no session before nothing is said to have run.
        _ if never_ran => vec![TargetStep::Close, TargetStep::Say(TargetState::Gone)],
        _ if matches!(view.tunnel, TargetTunnel::Unknown) => Vec::new(),
        _ if is_kept_by_source(view) && view.record.target != Some(TargetState::Running) => {
            vec![TargetStep::Say(TargetState::Gone)]
        }
        _ => vec![TargetStep::Say(TargetState::Ended)],
    }
}

/// The guest stays on its source, or has ended there: what is here is of no use.
fn is_kept_by_source(view: &TargetView) -> bool {
    matches!(view.record.source, Some(SourceState::Stayed | SourceState::Ended)) || view.record.has_failed()
}

/// Nothing more comes from the source, which waits to be told whether all of the guest is here.
fn is_halted(view: &TargetView) -> bool {
    view.record.source == Some(SourceState::Halted)
}

/// It has been said that nothing is here and nothing will run here, which the others rely on.
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

/// The source's key comes with its word that it begins. A migration that was given up before that is not given a peer,
/// so that nothing comes of a source that had not heard of it.
fn pair(view: &TargetView) -> Vec<TargetStep> {
    let known = view.record.source.is_some();
    match view.tunnel {
        TargetTunnel::Open { paired: false, .. } if known => vec![TargetStep::Pair],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
