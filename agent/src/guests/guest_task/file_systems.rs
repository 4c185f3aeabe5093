//! Freezes and thaws the file systems of a guest. [`drydock_core::guest::freeze`] defines how the state is recorded.

use std::{num::NonZeroU32, time::Duration};

use drydock_api::{
    kubevirt::VirtualMachineInstanceStatus,
    node_api::{NodeApiRefusal, RefusalReason},
};
use drydock_core::{
    guest::{
        freeze::{self, EarlierFreeze},
        own_part,
    },
    guest_agent::{self, Replies},
};
use drydock_host::domain::DomainHandle;
use drydock_runtime::{Key, Severity, chain, clock};
use tokio::time::timeout;
use tracing::{info, warn};

use super::{ConnectedGuest, GuestTask, publish_event, status_report};
use crate::guests::commands::{FileSystems, failed};

/// Pause before a failed thaw is retried.
const THAW_AGAIN: Duration = Duration::from_secs(5);
/// Maximum number of attempts to write a record that conflicts with other writes.
const ATTEMPTS: u32 = 5;
/// Time limit for the watch to show the write of another client after a conflict.
const SHOWN_AFTER: Duration = Duration::from_secs(2);

impl GuestTask {
    /// Executes the request of a user.
    pub(super) async fn change_file_systems(
        &mut self,
        handle: &DomainHandle,
        known: &mut ConnectedGuest,
        requested: FileSystems,
    ) -> Result<(), NodeApiRefusal> {
        match requested {
            FileSystems::Freeze(thaw_after) => self.freeze(handle, known, thaw_after).await,
            FileSystems::Thaw => self.thaw(handle, known).await,
        }
    }

    /// Freezes the file systems, and thaws them again if the freeze fails. File systems that are already frozen are
    /// left unchanged, as in KubeVirt.
    async fn freeze(
        &mut self,
        handle: &DomainHandle,
        known: &mut ConnectedGuest,
        thaw_after: Option<NonZeroU32>,
    ) -> Result<(), NodeApiRefusal> {
        match freeze::earlier(&self.instance().status.unwrap_or_default(), clock::now()) {
            EarlierFreeze::None => {}
            EarlierFreeze::Lasts if are_frozen(handle).await? => return Ok(()),
            EarlierFreeze::Lasts => {}
            EarlierFreeze::ThawDue => handle.thaw().await.map_err(|error| failed(&error))?,
        }
        known.is_thawed = false;
        known.thaw_again = None;
        let after = thaw_after.map(|seconds| Duration::from_secs(u64::from(seconds.get())));
        let thaw_at = after.and_then(|after| clock::now().checked_add(after).ok());
        self.record(|status| freeze::set(status, thaw_at)).await?;
        let Err(error) = handle.freeze().await else {
            return Ok(());
        };
        // Some file systems may be frozen, now or soon. If the thaw fails too, it is due from now on until it succeeds.
        if let Err(refusal) = self.thaw(handle, known).await {
            warn!(
                vmi = %Key::of(&self.instance()),
                error = refusal.message,
                "could not thaw the guest's file systems"
            );
            let due = clock::now();
            self.record(|status| freeze::set(status, Some(due))).await?;
        }
        Err(failed(&error))
    }

    async fn thaw(&mut self, handle: &DomainHandle, known: &mut ConnectedGuest) -> Result<(), NodeApiRefusal> {
        handle.thaw().await.map_err(|error| failed(&error))?;
        // If the record cannot be written now, the next report writes it.
        known.is_thawed = true;
        self.record(freeze::clear).await?;
        known.is_thawed = false;
        Ok(())
    }

    /// Returns the time at which the file systems must be thawed, if they are frozen for a limited time.
    pub(super) fn thaw_due(&self, known: &mut ConnectedGuest) -> Option<clock::Instant> {
        let seen = self.seen.borrow();
        let written = self.written.as_ref().and_then(|instance| instance.status.as_ref());
        // The clone of the whole VMI is only needed while the file systems are frozen.
        let frozen = [seen.instance.status.as_ref(), written]
            .into_iter()
            .flatten()
            .any(freeze::is_frozen);
        drop(seen);
        let at = frozen.then(|| self.instance().status.as_ref().and_then(freeze::thaw_at))??;
        let due = match known.thaw {
            Some((recorded, due)) if recorded == at => due,
            _ => clock::Instant::now() + clock::until(at, clock::now()),
        };
        known.thaw = Some((at, due));
        Some(known.thaw_again.map_or(due, |again| again.max(due)))
    }

    /// Thaws file systems whose freeze has expired.
    pub(super) async fn thaw_at_last(&mut self, handle: &DomainHandle, known: &mut ConnectedGuest) {
        let (instance, first) = (self.instance(), known.thaw_again.is_none());
        match self.thaw(handle, known).await {
            Ok(()) => {
                known.thaw_again = None;
                info!(
                    vmi = %Key::of(&instance),
                    "file systems thawed because the freeze has expired"
                );
                let note = "The guest's file systems were thawed because the freeze has expired.";
                publish_event(&self.shared.events, &instance, Severity::Normal, "Thawed", note.into());
            }
            Err(refusal) => {
                known.thaw_again = Some(clock::Instant::now() + THAW_AGAIN);
                if first {
                    let note = format!("The guest's file systems are still frozen: {}", refusal.message);
                    warn!(
                        vmi = %Key::of(&instance),
                        error = refusal.message,
                        "could not thaw the guest's file systems"
                    );
                    publish_event(&self.shared.events, &instance, Severity::Warning, "ThawFailed", note);
                }
            }
        }
    }

    /// Applies `change` to the agent's part of the status, and writes it.
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
                    // Another client has written first, and the watch will show its write.
                    let _ = timeout(SHOWN_AFTER, self.seen.changed()).await;
                }
                Err(error) => {
                    let message = format!("could not record the state of the file systems: {}", chain(&error));
                    return Err(NodeApiRefusal::new(RefusalReason::Failed, message));
                }
            }
        }
    }
}

/// Returns whether the file systems are frozen, according to the guest agent.
async fn are_frozen(handle: &DomainHandle) -> Result<bool, NodeApiRefusal> {
    let reply = handle
        .agent_command(&guest_agent::message(guest_agent::FREEZE_STATUS))
        .await
        .map_err(|error| failed(&error))?;
    let mut replies = Replies::default();
    replies.add(guest_agent::FREEZE_STATUS, &reply);
    replies.is_frozen().ok_or_else(|| {
        let message = format!("the guest agent's reply to {} is invalid", guest_agent::FREEZE_STATUS);
        NodeApiRefusal::new(RefusalReason::Failed, message)
    })
}
