//! Access of the tunnel to guests through their libvirt.
//!
//! The tunnel observes and resumes an arriving guest. For a leaving guest, it only queries whether the guest was
//! switched to post-copy.

use std::{fmt, time::Duration};

use drydock_api::launcher::LIBVIRT_SOCKET;
use drydock_core::migration::hand_over::GuestHere;
use drydock_host::{
    domain::{CallDeadlines, CallError, DomainEvents, DomainHandle, DomainState, PausedReason},
    pod_folder::PodFolder,
};
use drydock_runtime::{Backoff, chain};
use futures::future::BoxFuture;
use tracing::{info, warn};

use super::last_call::GuestLeft;

/// First pause before a call that libvirt refused is retried. The pause doubles with each attempt.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum pause before a call that libvirt refused is retried.
pub(super) const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Access to guests.
pub(super) trait GuestAccess: fmt::Debug + Send + Sync {
    /// Returns the arriving guest of this domain in this pod's folder.
    fn incoming(&self, folder: &PodFolder, domain: &str) -> Box<dyn IncomingGuest>;
    /// Returns the state of the leaving guest of this domain.
    fn leaving<'a>(&'a self, folder: &'a PodFolder, domain: &'a str) -> BoxFuture<'a, GuestLeft>;
}

/// A guest that arrives, or that has not started to arrive yet.
pub(super) trait IncomingGuest: Send {
    /// Returns the state of the guest as libvirt reports it. Waits until libvirt can be called.
    fn state(&mut self) -> BoxFuture<'_, GuestHere>;
    /// Waits until the state may have changed since the last call of `state`. Cancel safe: no change is lost if the
    /// future is dropped.
    fn changed(&mut self) -> BoxFuture<'_, ()>;
    /// Resumes the guest. After an error, it is unknown whether the guest was resumed.
    fn resume(&mut self) -> BoxFuture<'_, Result<(), String>>;
}

/// Access to guests through libvirt.
#[derive(Debug)]
pub(super) struct LibvirtGuests;

impl GuestAccess for LibvirtGuests {
    fn incoming(&self, folder: &PodFolder, domain: &str) -> Box<dyn IncomingGuest> {
        Box::new(LibvirtGuest {
            folder: folder.clone(),
            domain: domain.to_owned(),
            connection: None,
            pause: Backoff::new(RETRY_INTERVAL, MAX_RETRY_INTERVAL),
        })
    }

    fn leaving<'a>(&'a self, folder: &'a PodFolder, domain: &'a str) -> BoxFuture<'a, GuestLeft> {
        Box::pin(async move {
            let querying = async {
                let (guest, _events) =
                    DomainHandle::connect(folder, LIBVIRT_SOCKET, domain, CallDeadlines::default()).await?;
                guest.state().await
            };
            let left = querying.await.map(left_in);
            match &left {
                Ok(left) => info!(domain, ?left, "guest about to continue on its target"),
                Err(error) => warn!(domain, error = %chain(error), "could not read the state of a leaving guest"),
            }
            left.unwrap_or(GuestLeft::Unknown)
        })
    }
}

/// Interprets a state of the source's domain for a leaving guest.
///
/// libvirt never resumes a guest that is paused for post-copy, whatever fails, and rejects requests to resume it.
fn left_in(state: DomainState) -> GuestLeft {
    match state {
        DomainState::Paused(PausedReason::PostCopy | PausedReason::PostCopyFailed) => GuestLeft::Switched,
        DomainState::NoState | DomainState::Unknown { .. } => GuestLeft::Unknown,
        _ => GuestLeft::MayReturn,
    }
}

struct LibvirtGuest {
    folder: PodFolder,
    domain: String,
    connection: Option<(DomainHandle, DomainEvents)>,
    pause: Backoff,
}

impl LibvirtGuest {
    /// Returns the connection, and opens it first if there is none.
    async fn connected(&mut self) -> &mut (DomainHandle, DomainEvents) {
        loop {
            if self.connection.is_some() {
                break;
            }
            let deadlines = CallDeadlines::default();
            match DomainHandle::connect_when_open(&self.folder, LIBVIRT_SOCKET, &self.domain, deadlines).await {
                Ok(connection) => self.connection = Some(connection),
                Err(error) => {
                    warn!(
                        domain = self.domain, error = %chain(&error),
                        "could not connect to the libvirt of an arriving guest, retrying"
                    );
                    tokio::time::sleep(self.pause.delay()).await;
                }
            }
        }
        match &mut self.connection {
            Some(connection) => connection,
            None => unreachable!("the connection was opened above"),
        }
    }

    /// Interprets the result of a query, and drops the connection if libvirt did not respond.
    fn seen(&mut self, result: Result<DomainState, CallError>) -> GuestHere {
        match result {
            Ok(state) => {
                self.pause.reset();
                of_state(state)
            }
            Err(CallError::NoDomain) => GuestHere::Absent,
            Err(error) => {
                warn!(domain = self.domain, error = %chain(&error), "could not read the state of an arriving guest");
                if !error.is_reply() {
                    self.connection = None;
                }
                GuestHere::Unknown
            }
        }
    }
}

impl IncomingGuest for LibvirtGuest {
    fn state(&mut self) -> BoxFuture<'_, GuestHere> {
        Box::pin(async move {
            let result = self.connected().await.0.state().await;
            self.seen(result)
        })
    }

    fn changed(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if self.connection.is_none() {
                tokio::time::sleep(self.pause.delay()).await;
                self.connected().await;
                return;
            }
            let (_, events) = self.connected().await;
            if events.recv().await.is_none() {
                self.connection = None;
            }
        })
    }

    fn resume(&mut self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let resumed = self.connected().await.0.resume().await;
            match resumed {
                Ok(()) => Ok(()),
                Err(error) => {
                    if !error.is_reply() {
                        self.connection = None;
                    }
                    Err(chain(&error).to_string())
                }
            }
        })
    }
}

/// Interprets a state of the target's domain for a guest that its migration leaves paused (libvirt's
/// `VIR_MIGRATE_PAUSED`).
///
/// The guest is paused as starting up, as migrating or as in post-copy until it is complete, then as paused by a user.
/// States that only occur after the guest was resumed show that it has run. The state of shutting down reveals nothing,
/// because libvirt reports it for any domain whose QEMU is about to end. All other states are unknown too.
fn of_state(state: DomainState) -> GuestHere {
    match state {
        DomainState::Paused(PausedReason::User) => GuestHere::Complete,
        DomainState::Paused(reason) if reason.follows_a_run() => GuestHere::HasRun,
        DomainState::Running(_) | DomainState::Blocked | DomainState::PmSuspended | DomainState::Crashed(_) => {
            GuestHere::HasRun
        }
        DomainState::Paused(PausedReason::Migration | PausedReason::StartingUp | PausedReason::PostCopy) => {
            GuestHere::Incoming
        }
        DomainState::Paused(_) | DomainState::ShuttingDown | DomainState::NoState | DomainState::Unknown { .. } => {
            GuestHere::Unknown
        }
        DomainState::ShutOff(_) => GuestHere::Absent,
    }
}

#[cfg(test)]
mod tests {
    use drydock_host::domain::{RunningReason, ShutOffReason};

    use super::*;

    #[test]
    fn only_a_guest_that_was_switched_cannot_return() {
        for (state, expected) in [
            (DomainState::Paused(PausedReason::PostCopy), GuestLeft::Switched),
            (DomainState::Paused(PausedReason::PostCopyFailed), GuestLeft::Switched),
            (DomainState::Paused(PausedReason::Migration), GuestLeft::MayReturn),
            (DomainState::Paused(PausedReason::User), GuestLeft::MayReturn),
            (DomainState::Running(RunningReason::Booted), GuestLeft::MayReturn),
            (DomainState::ShutOff(ShutOffReason::Migrated), GuestLeft::MayReturn),
            (DomainState::NoState, GuestLeft::Unknown),
            (DomainState::Unknown { state: 99, reason: 0 }, GuestLeft::Unknown),
        ] {
            assert_eq!(left_in(state), expected, "{state}");
        }
    }

    #[test]
    fn guest_is_complete_and_unstarted_only_if_paused_by_user() {
        for (state, expected) in [
            (DomainState::Paused(PausedReason::User), GuestHere::Complete),
            (DomainState::Paused(PausedReason::Migration), GuestHere::Incoming),
            (DomainState::Paused(PausedReason::StartingUp), GuestHere::Incoming),
            (DomainState::Paused(PausedReason::PostCopy), GuestHere::Incoming),
            (DomainState::Paused(PausedReason::PostCopyFailed), GuestHere::Unknown),
            (DomainState::Paused(PausedReason::ApiError), GuestHere::Unknown),
            (DomainState::Paused(PausedReason::Unknown(99)), GuestHere::Unknown),
            (DomainState::Paused(PausedReason::IoError), GuestHere::HasRun),
            (DomainState::Running(RunningReason::Unpaused), GuestHere::HasRun),
            (DomainState::Running(RunningReason::PostCopy), GuestHere::HasRun),
            (DomainState::ShutOff(ShutOffReason::Failed), GuestHere::Absent),
            (DomainState::ShuttingDown, GuestHere::Unknown),
            (DomainState::NoState, GuestHere::Unknown),
            (DomainState::Unknown { state: 99, reason: 0 }, GuestHere::Unknown),
        ] {
            assert_eq!(of_state(state), expected, "{state}");
        }
    }
}
