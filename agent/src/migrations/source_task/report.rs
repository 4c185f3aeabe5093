//! Reports of the source on the object: its state, and the reason if its guest has stayed.

use drydock_api::kubevirt::{
    VirtualMachineInstanceMigration,
    migration::{MigrationMode, MigrationSource, SourceState},
};
use drydock_core::{
    conditions::whole_seconds,
    migration::{
        record::MigrationRecord,
        source::{
            MigrateCall,
            stayed::{SourceFailure, StayedGuest, why_stayed},
        },
        unsent,
    },
};
use drydock_host::domain::{DomainHandle, DomainState, PausedReason};
use drydock_runtime::{Key, Severity, clock};
use kube::ResourceExt;
use tracing::{info, warn};

use super::{SideError, SourceTask, is_paused_to_move, status_patch};
use crate::tunnel::local::LIBVIRT_NOT_UNDERSTOOD;

impl SourceTask {
    /// Reports the state of the source.
    pub(super) async fn report(
        &mut self,
        state: SourceState,
        migration: &VirtualMachineInstanceMigration,
        handle: Option<&DomainHandle>,
    ) -> Result<(), SideError> {
        let before = migration.source().cloned().unwrap_or_default();
        let uid = migration.uid().unwrap_or_default();
        // After the end of a migration, an agent may write only how its side has ended.
        let is_over = MigrationRecord::of(migration).is_over();
        let keep_paused = self.keep_paused.filter(|_| !is_over);
        let mut side = MigrationSource {
            state: Some(state),
            keep_paused: keep_paused.unwrap_or(before.keep_paused),
            ..before.clone()
        };
        match state {
            SourceState::Migrating => {
                let session = self.side.session(&uid)?;
                // The session exists, so this call only returns its fingerprint.
                let prepared = session.tunnel.prepare(self.side.session_spec(migration)).await?;
                side.fingerprint = Some(prepared.fingerprint);
                side.start_timestamp = Some(whole_seconds(clock::now()).0);
                side.mode = Some(MigrationMode::PreCopy);
                // The call is due even if the write fails without a response, because libvirt has not been called.
                self.call = MigrateCall::Due;
            }
            SourceState::Stayed => {
                self.resume_if_paused_to_move(migration, handle).await?;
                let SourceFailure { reason, message } = why_stayed(&StayedGuest {
                    record: MigrationRecord::of(migration),
                    abort: migration.status.as_ref().and_then(|status| status.abort.as_ref()),
                    session: self.session_failure(&uid).as_ref(),
                    failure: self.failure.as_ref(),
                });
                side.reason = Some(reason.into());
                side.message = Some(message);
            }
            SourceState::Released if self.in_post_copy && !is_over => side.mode = Some(MigrationMode::PostCopy),
            SourceState::Halted
            | SourceState::Released
            | SourceState::Stopped
            | SourceState::HandedOver
            | SourceState::Ended
            | SourceState::Unknown => {}
        }
        self.side.written = Some(status_patch::source(&self.side.shared.client, migration, &side).await?);
        info!(migration = %Key::of(migration), migration_uid = migration.metadata.uid, ?state, "source state reported");
        match state {
            SourceState::Stayed => {
                let reason = side.message.unwrap_or_default();
                let note = format!("VirtualMachineInstance migration uid {uid} failed. reason:{reason}");
                status_patch::record_event(&self.side.shared.events, migration, Severity::Warning, "Migrated", note);
            }
            // A guest that has lost a part of its memory does not count as migrated.
            SourceState::Stopped | SourceState::HandedOver if !status_patch::that_post_copy_is_broken(migration) => {
                let target = migration.target().cloned().unwrap_or_default();
                let node = target.node.unwrap_or_default();
                let note = format!("The VirtualMachineInstance migrated to node {node}.");
                status_patch::record_event(&self.side.shared.events, migration, Severity::Normal, "Migrated", note);
            }
            _ => {}
        }
        Ok(())
    }

    /// Resumes a guest that stays at the source and was paused so that it could migrate.
    async fn resume_if_paused_to_move(
        &self,
        migration: &VirtualMachineInstanceMigration,
        handle: Option<&DomainHandle>,
    ) -> Result<(), SideError> {
        if let Some(handle) = handle.filter(|_| is_paused_to_move(migration))
            && matches!(handle.state().await?, DomainState::Paused(PausedReason::User))
        {
            handle.resume().await?;
        }
        Ok(())
    }

    /// Returns the reason if this side's tunnel has ended the session itself.
    fn session_failure(&self, uid: &str) -> Option<SourceFailure> {
        let state = self.side.tunnels.session(uid)?.state;
        state.ended.filter(|reason| reason == LIBVIRT_NOT_UNDERSTOOD)?;
        Some(SourceFailure {
            reason: LIBVIRT_NOT_UNDERSTOOD,
            message: state.trouble?,
        })
    }

    /// Records the reason for ending a stuck job, unless the migration is already being aborted for another reason.
    pub(super) fn give_up_stuck(&mut self, migration: &VirtualMachineInstanceMigration) {
        let message = unsent::sentence();
        warn!(
            migration = %Key::of(migration), migration_uid = migration.metadata.uid,
            "closing the session of a stuck migration"
        );
        if !MigrationRecord::of(migration).is_given_up() {
            let reason = unsent::NOTHING_SENT;
            self.failure = Some(SourceFailure { reason, message });
        }
    }
}
