//! Reports of the source on the object: its state, and why its guest has stayed.

use drydock_api::kubevirt::{
    VirtualMachineInstanceMigration,
    migration::{MigrationMode, MigrationSource, SourceState},
};
use drydock_core::{
    conditions::whole_seconds,
    migration::{convergence::is_given_up_for, record::MigrationRecord, source::MigrateCall, unsent},
};
use drydock_host::domain::{DomainHandle, DomainState, PausedReason};
use drydock_runtime::{Key, Severity, clock};
use kube::ResourceExt;
use tracing::{info, warn};

use super::{SideError, SourceFailure, SourceTask, is_paused_to_move, status_patch};
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
        // Of a migration that is over, an agent may write only how its side ended.
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
                // The session exists: this call only returns its fingerprint.
                let prepared = session.tunnel.prepare(self.side.session_spec(migration)).await?;
                side.fingerprint = Some(prepared.fingerprint);
                side.start_timestamp = Some(whole_seconds(clock::now()).0);
                side.mode = Some(MigrationMode::PreCopy);
                // Set even if the write fails without a response: libvirt has not been called.
                self.call = MigrateCall::Due;
            }
            SourceState::Stayed => {
                self.resume_if_paused_to_move(migration, handle).await?;
                let (reason, message) = self.why_session_ended(&uid).unwrap_or_else(|| {
                    let (reason, message) = self.why_stayed(migration, before.state);
                    (reason.to_owned(), message)
                });
                side.reason = Some(reason);
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
            // A guest of which a part was lost has not migrated.
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

    /// Resumes a guest that was paused so that it could move, and now stays.
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

    /// Returns why this side's tunnel has ended the session by itself, if it has.
    fn why_session_ended(&self, uid: &str) -> Option<(String, String)> {
        let state = self.side.tunnels.session(uid)?.state;
        let reason = state.ended.filter(|reason| reason == LIBVIRT_NOT_UNDERSTOOD)?;
        Some((reason, state.trouble?))
    }

    /// Records why a stuck job is ended, unless the migration is already given up for another reason.
    pub(super) fn give_up_stuck(&mut self, migration: &VirtualMachineInstanceMigration) {
        let message = unsent::sentence();
        warn!(
            migration = %Key::of(migration), migration_uid = migration.metadata.uid,
            "session of a stuck migration closed"
        );
        if !MigrationRecord::of(migration).is_given_up() {
            let reason = unsent::NOTHING_SENT;
            self.failure = Some(SourceFailure { reason, message });
        }
    }

    fn why_stayed(
        &self,
        migration: &VirtualMachineInstanceMigration,
        before: Option<SourceState>,
    ) -> (&'static str, String) {
        let record = MigrationRecord::of(migration);
        // The target's report that its guest was ended may have come back as an abort meanwhile.
        if let Some(own) = self.failure.as_ref().filter(|failure| is_given_up_for(failure.reason)) {
            return (own.reason, own.message.clone());
        }
        let abort = migration.status.as_ref().and_then(|status| status.abort.clone());
        if let Some(abort) = abort {
            return ("Aborted", format!("Live migration has been aborted: {}", abort.message));
        }
        if record.deleted {
            return ("Aborted", "Live migration has been aborted".into());
        }
        match (&self.failure, before) {
            (Some(failure), _) => (failure.reason, failure.message.clone()),
            (None, Some(SourceState::Migrating | SourceState::Halted)) => (
                "MigrationEnded",
                "the migration ended while this node's agent was away; the guest runs on".into(),
            ),
            _ => ("NotStarted", "the migration was over before it began".into()),
        }
    }
}
