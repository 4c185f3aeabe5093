//! Common parts of the tasks of both sides of a migration: the latest state of the object, the session of the node's
//! tunnel, and retries.

use std::{sync::Arc, time::Duration};

use drydock_api::kubevirt::VirtualMachineInstanceMigration;
use drydock_host::{
    domain::{CallError, DomainEvent, DomainEvents, DomainHandle, DomainState},
    pod_folder::FolderError,
};
use drydock_runtime::{Backoff, Key, chain, clock, latest_state};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use thiserror::Error;
use tokio::sync::watch;
use tracing::warn;

use super::{SideState, seen, status_patch};
use crate::{
    guests::TaskContext,
    tunnel::{
        client::TunnelError,
        local::{Role, SessionSpec, TunnelPeer},
        tunnels::{KnownSession, Tunnels},
    },
};

/// Minimum and maximum pause after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// Reason why a step could not be executed.
#[derive(Debug, Error)]
pub(super) enum SideError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Tunnel(#[from] TunnelError),
    #[error("this node has no tunnel")]
    NoTunnel,
    #[error("the other side has not reported its identity")]
    NoPeer,
    #[error("the request to the API server failed")]
    Api(#[from] kube::Error),
}

/// Connection to the libvirt in the pod of this side.
pub(super) struct GuestConnection {
    pub(super) handle: DomainHandle,
    pub(super) events: DomainEvents,
}

/// Waits for the next event of a connected guest, or forever if no guest is connected. `None` if the connection has
/// ended.
pub(super) async fn next_event(guest: &mut Option<GuestConnection>) -> Option<DomainEvent> {
    match guest {
        Some(guest) => guest.events.recv().await,
        None => std::future::pending().await,
    }
}

/// State that both roles of a migration's side share.
pub(super) struct Side {
    role: Role,
    pub(super) shared: TaskContext,
    pub(super) tunnels: Tunnels,
    pub(super) seen: watch::Receiver<SideState>,
    /// Latest state that the API server returned for the writes of this side.
    pub(super) written: Option<VirtualMachineInstanceMigration>,
    /// Whether the status that an earlier process wrote still has to be read from the API server.
    read_status: bool,
    /// Whether the pod of this side was removed without an observed end.
    pub(super) gone: bool,
    backoff: Backoff,
}

impl Side {
    /// Creates a side of the migration that `seen` shows.
    ///
    /// `read_status` is whether an earlier process may have served the migration.
    pub(super) fn new(
        role: Role,
        shared: TaskContext,
        tunnels: Tunnels,
        seen: watch::Receiver<SideState>,
        read_status: bool,
    ) -> Self {
        Self {
            role,
            shared,
            tunnels,
            seen,
            written: None,
            read_status,
            gone: false,
            backoff: Backoff::new(RETRY.0, RETRY.1),
        }
    }

    /// Returns the latest known migration, from the watch or from the response to a write of this side.
    pub(super) fn migration(&self) -> VirtualMachineInstanceMigration {
        let seen = self.seen.borrow().migration.as_ref().clone();
        latest_state(Some(seen.clone()), self.written.clone()).unwrap_or(seen)
    }

    /// Returns the pod of this side, if the watch shows it.
    pub(super) fn pod(&self) -> Option<Arc<Pod>> {
        self.seen.borrow().pod.clone()
    }

    /// Reads the status that an earlier process wrote, if an earlier process may have served the migration.
    ///
    /// Returns `false` if the migration no longer exists.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(super) async fn read_written_status(&mut self) -> kube::Result<bool> {
        if self.read_status {
            let now = status_patch::now(&self.shared.client, &self.migration()).await?;
            self.read_status = now.is_none();
            self.written = now.or(self.written.take());
        }
        Ok(!self.read_status)
    }

    /// Reads whether the pod of this side was removed. The watch may show the end and the deletion of the pod at once.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(super) async fn read_whether_gone(&mut self, migration: &VirtualMachineInstanceMigration) -> kube::Result<()> {
        if !self.gone {
            self.gone = status_patch::pod_has_gone(&self.shared, migration, self.role).await?;
        }
        Ok(())
    }

    /// Reports that post-copy is broken, if libvirt reports this state for the guest.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(super) async fn report_broken_post_copy(
        &mut self,
        state: Option<&Result<DomainState, CallError>>,
        migration: &VirtualMachineInstanceMigration,
    ) -> kube::Result<()> {
        if state.is_some_and(seen::post_copy_is_broken) {
            let written = status_patch::report_broken_post_copy(&self.shared, migration, self.role).await?;
            self.written = written.or(self.written.take());
        }
        Ok(())
    }

    /// Returns the time of the next reconcile without an event, given the result of a reconcile.
    ///
    /// Logs only the first of several consecutive failures.
    pub(super) fn next_reconcile(&mut self, result: Result<Option<Duration>, SideError>) -> Option<clock::Instant> {
        let pause = match result {
            Ok(pause) => {
                self.backoff.reset();
                pause
            }
            Err(trouble) => {
                if self.backoff.is_reset() {
                    let (migration, side) = (self.migration(), self.role.as_str());
                    warn!(
                        migration = %Key::of(&migration), migration_uid = migration.metadata.uid,
                        error = %chain(&trouble),
                        "the {side} of the migration failed, retrying"
                    );
                }
                Some(self.backoff.delay())
            }
        };
        pause.map(|pause| clock::Instant::now() + pause)
    }

    /// Returns the specification of this side's session for the tunnel.
    pub(super) fn session_spec(&self, migration: &VirtualMachineInstanceMigration) -> SessionSpec {
        SessionSpec {
            migration: migration.uid().unwrap_or_default(),
            role: self.role,
            pod_uid: seen::pod_uid(migration, self.role).unwrap_or_default().to_owned(),
            domain: seen::domain_of(migration),
        }
    }

    /// Prepares a session of this side in the node's tunnel.
    ///
    /// # Errors
    /// If there is no tunnel, or the tunnel refuses the call.
    pub(super) async fn prepare(&self, migration: &VirtualMachineInstanceMigration) -> Result<(), SideError> {
        let own = self.tunnels.own().ok_or(SideError::NoTunnel)?;
        own.prepare(self.session_spec(migration)).await?;
        Ok(())
    }

    /// Returns the session of a migration, with the tunnel that carries it.
    ///
    /// # Errors
    /// If no tunnel has a session of the migration.
    pub(super) fn session(&self, uid: &str) -> Result<KnownSession, SideError> {
        self.tunnels.session(uid).ok_or(SideError::NoTunnel)
    }

    /// Pairs the session with the other side's tunnel, so that it accepts no other peer.
    ///
    /// # Errors
    /// If the other side has not reported its fingerprint, no tunnel has the session, or the tunnel refuses the call.
    pub(super) async fn pair(
        &self,
        uid: &str,
        fingerprint: Option<String>,
        address: Option<String>,
    ) -> Result<(), SideError> {
        let fingerprint = fingerprint.ok_or(SideError::NoPeer)?;
        self.session(uid)?
            .tunnel
            .pair(uid, TunnelPeer { fingerprint, address })
            .await?;
        Ok(())
    }
}
