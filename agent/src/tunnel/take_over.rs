//! Takes over an arriving guest: waits for its release, and resumes it once it is complete.
//!
//! ```text
//!  release over the control channel ─┐
//!  libvirt's events ─────────────────┴▶ state ─▶ core's TargetSide::step ─▶ resume ─▶ acknowledged
//! ```
//!
//! The connection to the pod's libvirt is opened when the session is paired. After the release, only two short calls
//! are therefore needed before the guest continues.

use std::sync::Arc;

use drydock_core::migration::hand_over::{GuestHere, HandOverStep, TakenOver};
use drydock_runtime::{Backoff, Process};
use tracing::{Instrument, info, warn};

use super::{
    guest_access::{IncomingGuest, MAX_RETRY_INTERVAL, RETRY_INTERVAL},
    session::TunnelSession,
};

/// Takes over the guest of a session until the session is closed.
pub(super) fn start(session: &Arc<TunnelSession>, process: &Process) {
    let guest = session.guests.incoming(&session.folder, &session.spec.domain);
    let session = Arc::clone(session);
    let span = session.span();
    let taking_over = async move {
        let closed = session.closed.clone();
        closed.run_until_cancelled(take_over(&session, guest)).await;
    };
    process.spawn("guest that arrives", taking_over.instrument(span));
}

/// Waits for the release, resumes the guest, and returns once the guest has been taken over.
async fn take_over(session: &TunnelSession, mut guest: Box<dyn IncomingGuest>) {
    let mut facts = session.facts();
    let mut pause = Backoff::new(RETRY_INTERVAL, MAX_RETRY_INTERVAL);
    let mut seen = guest.state().await;
    loop {
        let target = facts.borrow_and_update().target;
        if target.release().is_some() {
            seen = guest.state().await;
        }
        match target.step(seen) {
            HandOverStep::Wait => {
                let trouble = target.release().and_then(|_| waits_for(seen));
                session.update(|facts| facts.trouble = trouble.map(str::to_owned));
                tokio::select! {
                    () = guest.changed() => {}
                    _ = facts.changed() => {}
                }
            }
            HandOverStep::Resume => match guest.resume().await {
                Ok(()) => taken_over(session, TakenOver::Resumed),
                // The node's agent resumes the guest as well, and may be faster.
                Err(_) if guest.state().await == GuestHere::HasRun => taken_over(session, TakenOver::Resumed),
                Err(error) => {
                    warn!(
                        migration_uid = session.spec.migration,
                        error, "the guest cannot be resumed, retrying"
                    );
                    session.update(|facts| facts.trouble = Some(format!("the guest cannot be resumed: {error}")));
                    tokio::time::sleep(pause.delay()).await;
                }
            },
            HandOverStep::TakeOver(how) => taken_over(session, how),
            // The task of the control channel sends the acknowledgement.
            HandOverStep::Acknowledge(_) => return,
        }
    }
}

fn taken_over(session: &TunnelSession, how: TakenOver) {
    info!(migration_uid = session.spec.migration, how = ?how, "guest taken over");
    session.update(|facts| {
        facts.trouble = None;
        facts.target.take_over(how);
    });
}

/// Returns the reason why a released guest still waits, as a message for users.
fn waits_for(guest: GuestHere) -> Option<&'static str> {
    match guest {
        GuestHere::Unknown => Some("the guest is released, but its state is unknown"),
        GuestHere::Absent => Some("the guest is released, but does not exist on this node"),
        GuestHere::Incoming => Some("the guest is released, but has not arrived completely"),
        GuestHere::Complete | GuestHere::HasRun => None,
    }
}
