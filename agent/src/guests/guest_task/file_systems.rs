//! Freezes and thaws the file systems of a guest. How the state is recorded is in [`drydock_core::guest::freeze`].

use std::{num::NonZeroU32, time::Duration};

use drydock_api::{
    kubevirt::VirtualMachineInstanceStatus,
    node_api::{NodeApiRefusal, RefusalReason},
};
use drydock_core::{
    access_credentials,
    guest::{freeze, own_part},
    guest_agent::{self, Replies},
};
use drydock_host::domain::DomainHandle;
use drydock_runtime::{Key, Severity, chain, clock};
use tokio::time::timeout;
use tracing::{info, warn};

use super::{ConnectedGuest, GuestTask, publish_event, status_report};
use crate::guests::commands::{FileSystems, failed};

/// Pause before a thaw that has failed is tried again.
const THAW_AGAIN: Duration = Duration::from_secs(5);
/// Maximum number of attempts to write a record that conflicts with other writes.
const ATTEMPTS: u32 = 5;
/// How long the watch may take to show the write of another client after a conflict.
const SHOWN_AFTER: Duration = Duration::from_secs(2);

impl GuestTask {
    /// Carries out a user's request.
    pub(super) async fn change_file_systems(
        &mut self,
        handle: &DomainHandle,
        requested: FileSystems,
    ) -> Result<(), NodeApiRefusal> {
        match requested {
            FileSystems::Freeze(thaw_after) => self.freeze(handle, thaw_after).await,
            FileSystems::Thaw => self.thaw(handle).await,
        }
    }

    /// Freezes the file systems, and thaws them again if that fails. File systems that are already frozen are left
    /// unchanged, as in KubeVirt.
    async fn freeze(&mut self, handle: &DomainHandle, thaw_after: Option<NonZeroU32>) -> Result<(), NodeApiRefusal> {
        if self.instance().status.as_ref().is_some_and(freeze::is_frozen) {
            return Ok(());
        }
        let after = thaw_after.map(|seconds| Duration::from_secs(u64::from(seconds.get())));
        let thaw_at = after.and_then(|after| clock::now().checked_add(after).ok());
        self.record(|status| freeze::set(status, thaw_at)).await?;
        let Err(error) = handle.freeze().await else {
            return Ok(());
        };
        // Some of them may be frozen. If this fails too, the record stays, and the thaw is tried again.
        if let Err(refusal) = self.thaw(handle).await {
            warn!(
                vmi = %Key::of(&self.instance()),
                error = refusal.message,
                "file systems not thawed"
            );
        }
        Err(failed(&error))
    }

    async fn thaw(&mut self, handle: &DomainHandle) -> Result<(), NodeApiRefusal> {
        handle.thaw().await.map_err(|error| failed(&error))?;
        self.record(freeze::clear).await
    }

    /// Returns when the file systems are to be thawed, if they are frozen for a limited time.
    pub(super) fn thaw_due(&self, known: &ConnectedGuest) -> Option<clock::Instant> {
        let seen = self.seen.borrow();
        let written = self.written.as_ref().and_then(|instance| instance.status.as_ref());
        // The clone of the whole instance is only needed while there is something to thaw.
        let frozen = [seen.instance.status.as_ref(), written]
            .into_iter()
            .flatten()
            .any(freeze::is_frozen);
        drop(seen);
        let at = frozen.then(|| self.instance().status.as_ref().and_then(freeze::thaw_at))??;
        let due = clock::Instant::now() + clock::until(at, clock::now());
        Some(known.thaw_again.map_or(due, |again| again.max(due)))
    }

    /// Thaws file systems whose freeze has expired.
    pub(super) async fn thaw_at_last(&mut self, handle: &DomainHandle, known: &mut ConnectedGuest) {
        let (instance, first) = (self.instance(), known.thaw_again.is_none());
        match self.thaw(handle).await {
            Ok(()) => {
                known.thaw_again = None;
                info!(
                    vmi = %Key::of(&instance),
                    "file systems thawed at the end of their time"
                );
                let note = "The guest's file systems were thawed at the end of their time.";
                publish_event(&self.shared.events, &instance, Severity::Normal, "Thawed", note.into());
            }
            Err(refusal) => {
                known.thaw_again = Some(clock::Instant::now() + THAW_AGAIN);
                if first {
                    let note = format!("The guest's file systems are still frozen: {}", refusal.message);
                    warn!(
                        vmi = %Key::of(&instance),
                        error = refusal.message,
                        "file systems not thawed"
                    );
                    publish_event(&self.shared.events, &instance, Severity::Warning, "ThawFailed", note);
                }
            }
        }
    }

    /// Reads from the guest agent whether it has the commands that KubeVirt requires and, if the file systems are recorded
    /// as frozen, whether they still are.
    pub(super) async fn inquire(&self, handle: &DomainHandle, known: &mut ConnectedGuest) -> Option<bool> {
        let instance = self.instance();
        let frozen = instance.status.as_ref().is_some_and(freeze::is_frozen);
        let mut replies = Replies::default();
        for command in [Some(guest_agent::INFO), frozen.then_some(guest_agent::FREEZE_STATUS)] {
            let Some(command) = command else { continue };
            if let Ok(reply) = handle.agent_command(&guest_agent::message(command)).await {
                replies.add(command, &reply);
            }
        }
        known.is_thawed |= replies.is_frozen() == Some(false);
        replies.is_supported(&access_credentials::required_commands(&instance.spec))
    }

    /// Writes the agent's part of the status, changed by `change`.
    async fn record(&mut self, change: impl Fn(&mut VirtualMachineInstanceStatus)) -> Result<(), NodeApiRefusal> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let instance = self.instance();
            let before = instance.status.clone().unwrap_or_default();
            let mut wanted = own_part(&before, clock::now());
            change(&mut wanted);
            self.shared.metrics.wrote("instance");
            match status_report::status(&self.shared.client, &instance, &wanted).await {
                Ok(instance) => {
                    self.written = Some(instance);
                    return Ok(());
                }
                Err(kube::Error::Api(status)) if status.is_conflict() && attempt < ATTEMPTS => {
                    // Another writer was faster, and the watch is about to show it.
                    let _ = timeout(SHOWN_AFTER, self.seen.changed()).await;
                }
                Err(error) => {
                    let message = format!("the state of the file systems was not recorded: {}", chain(&error));
                    return Err(NodeApiRefusal::new(RefusalReason::Failed, message));
                }
            }
        }
    }
}
