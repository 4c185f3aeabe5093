//! Ends a guest whose Node object was deleted while this agent is alive.

use std::path::Path;

use drydock_api::{
    kubevirt::{Phase, VirtualMachineInstance},
    launcher::{LIBVIRT_SOCKET, READY_FILE, RUN_VOLUME},
};
use drydock_core::{
    domain::domain_name,
    guest::{
        self,
        node_deleted::{self, DeletionStep, GuestEndState},
    },
    instance::ending::EndedGuest,
    launcher_pod::grace_period,
};
use drydock_host::{
    domain::{
        CallDeadlines, CallError, DomainEvents, DomainHandle, DomainState, PausedReason, ShutOffReason, ShutdownBy,
    },
    pod_folder::{FolderError, PodFolder},
};
use drydock_runtime::{Severity, chain, clock};
use kube::ResourceExt;
use tracing::{info, warn};

use super::{AfterServing, GuestTask, GuestTaskError, READY_BYTES};
use crate::guests::status_report::publish_event;

impl GuestTask {
    /// Shuts a guest down and reports its end. Destroys the guest if the shutdown takes too long.
    ///
    /// `since` is the time at which the deletion of the Node was confirmed.
    pub(super) async fn end_with_node(
        &mut self,
        pod_uid: &str,
        since: clock::Instant,
    ) -> Result<AfterServing, GuestTaskError> {
        let instance = self.instance();
        if is_reported(&instance, pod_uid) {
            return Ok(AfterServing::OnChange);
        }
        let kubelet = self.shared.kubelet.clone();
        let folder = PodFolder::new(&kubelet, pod_uid, RUN_VOLUME)?;
        match folder.read(READY_FILE, READY_BYTES) {
            Ok(_) => {}
            // Without a ready libvirt, no guest was started, and no guest is started after this report.
            Err(FolderError::NotThere { .. }) if is_empty(&instance, &kubelet, pod_uid) => {
                self.report_end(pod_uid, None).await;
                return Ok(AfterServing::OnChange);
            }
            Err(error) => return Err(error.into()),
        }
        let namespace = instance.namespace().unwrap_or_default();
        let name = domain_name(&namespace, &instance.name_any());
        let connected = tokio::select! {
            connected = DomainHandle::connect_when_open(&folder, LIBVIRT_SOCKET, &name, CallDeadlines::default()) => connected,
            gone = folder.disappeared() => {
                gone.map_err(GuestTaskError::Watch)?;
                self.report_end(pod_uid, None).await;
                return Ok(AfterServing::OnChange);
            }
            _ = self.seen.changed() => return Ok(AfterServing::Again),
        };
        let (handle, mut events) = connected?;
        let vmi = format!("{namespace}/{}", instance.name_any());
        let mut pressed = None;
        loop {
            let passed = clock::Instant::now().saturating_duration_since(since);
            let step = node_deleted::step(&node_deleted::ObservedDeletion {
                guest: guest(&handle, node_deleted::without_domain_in(&self.instance(), pod_uid)).await?,
                passed,
                grace: grace_period(&instance.spec),
                pressed,
            });
            let wake = match step {
                DeletionStep::Report => {
                    info!(
                        vmi,
                        node = self.shared.node,
                        "the guest has ended because its Node was deleted"
                    );
                    self.report_end(pod_uid, None).await;
                    return Ok(AfterServing::OnChange);
                }
                DeletionStep::PressPowerButton => {
                    if pressed.is_none() {
                        self.announce(&instance, &vmi);
                    }
                    pressed = Some(passed);
                    press_power_button(&handle, &vmi).await;
                    continue;
                }
                DeletionStep::Destroy => {
                    destroy(&handle, &vmi, &self.shared.node).await?;
                    continue;
                }
                DeletionStep::Wait(until) => until.map(|until| since + until),
            };
            if let Some(then) = self.change(&mut events, wake).await {
                return Ok(then);
            }
        }
    }

    /// Waits for an event of the guest, a change of its objects or the time `wake`.
    ///
    /// Returns the next step of the task if the guest must no longer be ended over this connection.
    async fn change(&mut self, events: &mut DomainEvents, wake: Option<clock::Instant>) -> Option<AfterServing> {
        tokio::select! {
            event = events.recv() => event.is_none().then_some(AfterServing::Again),
            changed = self.seen.changed() => match changed {
                Err(_) => Some(AfterServing::OnChange),
                Ok(()) if self.seen.borrow_and_update().node_deleted.is_none() => Some(AfterServing::Again),
                Ok(()) => None,
            },
            () = clock::sleep_until_instant(wake) => None,
        }
    }

    /// Reports that a pod has no guest any more and gets none, with the end of its guest if it is known.
    pub(super) async fn report_end(&mut self, pod_uid: &str, ending: Option<&EndedGuest>) {
        let instance = self.instance();
        let before = instance.status.clone().unwrap_or_default();
        let wanted = guest::with_ended_pod(&before, pod_uid, ending, clock::now());
        let written = self.write(&instance, &wanted).await;
        self.remember(written);
    }

    fn announce(&self, instance: &VirtualMachineInstance, vmi: &str) {
        let node = &self.shared.node;
        warn!(vmi, node, "shutting down the guest because its Node was deleted");
        let note = format!("Node {node} was deleted: the guest is shut down and may start on another node afterwards.");
        publish_event(&self.shared.events, instance, Severity::Warning, "NodeDeleted", note);
    }
}

/// Presses the guest's power button. If this fails, a later step presses it again or destroys the guest.
async fn press_power_button(handle: &DomainHandle, vmi: &str) {
    if let Err(error) = handle.shutdown(ShutdownBy::PowerButton).await {
        warn!(vmi, error = %chain(&error), "could not press the guest's power button");
    }
}

async fn destroy(handle: &DomainHandle, vmi: &str, node: &str) -> Result<(), CallError> {
    warn!(vmi, node, "the guest did not shut down in time, and is destroyed");
    match handle.destroy().await {
        // The guest has ended in the meantime.
        Ok(()) | Err(CallError::NoDomain) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the state of the guest according to libvirt. `without_domain` is the result if libvirt has no domain.
async fn guest(handle: &DomainHandle, without_domain: GuestEndState) -> Result<GuestEndState, CallError> {
    let state = match handle.state().await {
        Ok(state) => state,
        Err(CallError::NoDomain) => return Ok(without_domain),
        Err(error) => return Err(error),
    };
    if let Some(end) = by_state_alone(state) {
        return Ok(end);
    }
    Ok(match (handle.job().await, state) {
        (Err(CallError::NoDomain), _) => without_domain,
        (Err(error), _) => return Err(error),
        (Ok(Some(_)), _) => GuestEndState::Leaving,
        (Ok(None), DomainState::Running(_) | DomainState::Blocked) => GuestEndState::Running,
        (Ok(None), _) => GuestEndState::Still,
    })
}

/// Returns the state of a guest that cannot run on this node again; `None` if its job decides.
fn by_state_alone(state: DomainState) -> Option<GuestEndState> {
    match state {
        DomainState::ShutOff(ShutOffReason::Migrated) => Some(GuestEndState::Left),
        // The guest runs on its target, which reads the rest of its memory from this node.
        DomainState::Paused(PausedReason::PostCopy | PausedReason::PostCopyFailed) => Some(GuestEndState::Left),
        DomainState::ShutOff(_) => Some(GuestEndState::Over),
        _ => None,
    }
}

fn is_reported(instance: &VirtualMachineInstance, pod_uid: &str) -> bool {
    let drydock = instance.status.as_ref().and_then(|status| status.drydock.as_ref());
    drydock.is_some_and(|drydock| drydock.ended_pods.iter().any(|uid| uid == pod_uid))
}

/// Returns whether a pod certainly has no guest, given that its launcher never reported that it is ready.
///
/// This is the case if no guest was reported as running, or if the kubelet has removed the pod's folder, which it does
/// after the pod's containers have ended.
fn is_empty(instance: &VirtualMachineInstance, kubelet: &Path, pod_uid: &str) -> bool {
    let phase = instance.phase();
    let pods = kubelet.join("pods");
    pods.is_dir() && (phase.unwrap_or_default() < Phase::Running || !pods.join(pod_uid).exists())
}

#[cfg(test)]
mod tests {
    use drydock_host::{domain::RunningReason, fake::fake_guest::FakeLibvirt};

    use super::*;

    #[tokio::test]
    async fn guest_without_a_domain_has_the_state_of_the_instance() {
        let (handle, _events) = FakeLibvirt::default().connect("shop_web").await.unwrap();
        for state in [GuestEndState::Over, GuestEndState::Left] {
            assert_eq!(guest(&handle, state).await, Ok(state));
        }
    }

    #[test]
    fn guest_in_post_copy_counts_as_left() {
        for (state, expected) in [
            (DomainState::Paused(PausedReason::PostCopy), Some(GuestEndState::Left)),
            (
                DomainState::Paused(PausedReason::PostCopyFailed),
                Some(GuestEndState::Left),
            ),
            (DomainState::ShutOff(ShutOffReason::Migrated), Some(GuestEndState::Left)),
            (DomainState::ShutOff(ShutOffReason::Crashed), Some(GuestEndState::Over)),
            (DomainState::Paused(PausedReason::Migration), None),
            (DomainState::Paused(PausedReason::User), None),
            (DomainState::Running(RunningReason::Booted), None),
        ] {
            assert_eq!(by_state_alone(state), expected, "{state:?}");
        }
    }
}
