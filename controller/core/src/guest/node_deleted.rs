//! The actions of an agent for a guest when the node's Node object is deleted while the agent runs.
//!
//! The controller starts the guest elsewhere once the agent has reported its end, or once the agent is unresponsive.
//! So the agent ends the guest before it can count as unresponsive, whether or not its token is still valid:
//!
//! ```text
//!  0 s      the Node is deleted: a watch shows it, and a list of the API server confirms it
//!  at once  the power button is pressed, again and again
//!  15 s     the guest is destroyed                                       SHUTDOWN_WITHIN
//!  25 s     libvirt has killed a QEMU that did not end on request        DESTROYED_WITHIN
//!  30 s     at the earliest, the Lease is stale: its last renewal was
//!           up to 10 s before the deletion                               STALE_AFTER - RENEW_EVERY
//!  40 s     at the earliest, Kubernetes deletes the pods of the node,
//!           also the agent's own, whose token is invalid from then on    POD_GC_QUARANTINE
//! ```
//!
//! An agent that was already unresponsive when the Node was deleted ends no guests until it learns of the deletion:
//! in that case the deletion is the administrator's confirmation that the node is off.

use std::time::Duration;

use drydock_api::{
    kubevirt::{Phase, VirtualMachineInstance},
    leases::{RENEW_EVERY, STALE_AFTER},
};

/// Time limit for the shutdown of a guest. The grace period of its pod may be shorter.
pub const SHUTDOWN_WITHIN: Duration = Duration::from_secs(15);
/// Time limit for libvirt to destroy a guest: libvirt requests QEMU to end, and kills it after 10 s
/// (`qemuProcessKill`).
pub const DESTROYED_WITHIN: Duration = Duration::from_secs(10);
/// Time for which kube-controller-manager keeps pods whose node has no Node object (`quarantineTime` of its pod garbage
/// collector).
pub const POD_GC_QUARANTINE: Duration = Duration::from_secs(40);
/// Interval between two presses of the power button: a guest that is booting misses one.
pub const PRESS_AGAIN: Duration = Duration::from_secs(5);
/// Time left after a guest has been destroyed at the latest: for the confirmation and the report.
pub const MARGIN: Duration = Duration::from_secs(5);

const _: () = {
    let ended = SHUTDOWN_WITHIN.as_secs() + DESTROYED_WITHIN.as_secs() + MARGIN.as_secs();
    assert!(
        ended <= STALE_AFTER.as_secs() - RENEW_EVERY.as_secs(),
        "a guest may run on when its agent counts as unresponsive"
    );
    assert!(
        ended <= POD_GC_QUARANTINE.as_secs(),
        "the end of a guest cannot be reported with the token of a deleted pod"
    );
};

/// State of a guest with respect to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestEndState {
    /// The guest has never run in this pod, or has ended.
    Over,
    /// The guest runs on another node, or its migration decides where it continues.
    Left,
    /// The guest runs.
    Running,
    /// The guest is being migrated to another node.
    Leaving,
    /// The guest exists and does not run, or libvirt does not report whether it runs.
    Still,
}

/// Returns the state of a guest of which the libvirt of a named pod has no domain. `recorded` is whether the instance
/// names the pod as the one in which its guest runs.
pub fn without_domain(phase: Phase, recorded: bool) -> GuestEndState {
    // A migration may bring the guest at any time, and the controller relies on the report that nothing runs in this
    // pod.
    let is_awaited = phase >= Phase::Running && !recorded;
    if is_awaited {
        GuestEndState::Left
    } else {
        GuestEndState::Over
    }
}

/// Returns the state of an instance's guest of which the libvirt of the pod with this UID has no domain.
pub fn without_domain_in(instance: &VirtualMachineInstance, pod_uid: &str) -> GuestEndState {
    let status = instance.status.as_ref();
    let drydock = status.and_then(|status| status.drydock.as_ref());
    let recorded = drydock.and_then(|drydock| drydock.pod_uid.as_deref()) == Some(pod_uid);
    let phase = status.and_then(|status| status.phase).unwrap_or_default();
    without_domain(phase, recorded)
}

/// The agent's observations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedDeletion {
    /// The guest.
    pub guest: GuestEndState,
    /// Time since the deletion of the Node was confirmed.
    pub passed: Duration,
    /// Grace period of the guest's pod.
    pub grace: Duration,
    /// Last press of the power button, as time since the confirmation.
    pub pressed: Option<Duration>,
}

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionStep {
    /// Report the end of the guest.
    Report,
    /// Press the guest's power button.
    PressPowerButton,
    /// Destroy the guest.
    Destroy,
    /// Do nothing until something changes or this time has passed since the confirmation.
    Wait(Option<Duration>),
}

/// Returns the next action for a guest whose Node was deleted.
pub fn step(observed: &ObservedDeletion) -> DeletionStep {
    let end = SHUTDOWN_WITHIN.min(observed.grace);
    match observed.guest {
        GuestEndState::Over => DeletionStep::Report,
        GuestEndState::Left => DeletionStep::Wait(None),
        GuestEndState::Running | GuestEndState::Leaving | GuestEndState::Still if observed.passed >= end => {
            DeletionStep::Destroy
        }
        // A leaving guest is being migrated to a node where it may run; a paused guest does not react to the button.
        GuestEndState::Leaving | GuestEndState::Still => DeletionStep::Wait(Some(end)),
        GuestEndState::Running => match observed.pressed.map(|pressed| pressed + PRESS_AGAIN) {
            Some(again) if observed.passed < again => DeletionStep::Wait(Some(again.min(end))),
            _ => DeletionStep::PressPowerButton,
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pod_that_awaits_a_guest_is_not_over() {
        for (status, expected) in [
            (json!({}), GuestEndState::Over),
            (json!({"phase": "Scheduled"}), GuestEndState::Over),
            (json!({"phase": "Running"}), GuestEndState::Left),
            (
                json!({"phase": "Running", "drydock": {"podUID": "source"}}),
                GuestEndState::Left,
            ),
            (
                json!({"phase": "Running", "drydock": {"podUID": "p"}}),
                GuestEndState::Over,
            ),
        ] {
            let instance = json!({"metadata": {}, "spec": {"domain": {"devices": {}}}, "status": status});
            let found = without_domain_in(&serde_json::from_value(instance).unwrap(), "p");
            assert_eq!(found, expected, "{status}");
        }
    }

    #[test]
    fn guest_of_deleted_node_is_ended_in_time() {
        let s = Duration::from_secs;
        let long = s(180);
        for (guest, passed, grace, pressed, wanted) in [
            (GuestEndState::Running, s(0), long, None, DeletionStep::PressPowerButton),
            (
                GuestEndState::Running,
                s(1),
                long,
                Some(s(0)),
                DeletionStep::Wait(Some(s(5))),
            ),
            (
                GuestEndState::Running,
                s(5),
                long,
                Some(s(0)),
                DeletionStep::PressPowerButton,
            ),
            (
                GuestEndState::Running,
                s(11),
                long,
                Some(s(10)),
                DeletionStep::Wait(Some(SHUTDOWN_WITHIN)),
            ),
            (
                GuestEndState::Running,
                SHUTDOWN_WITHIN,
                long,
                Some(s(10)),
                DeletionStep::Destroy,
            ),
            (GuestEndState::Running, s(3), s(3), Some(s(0)), DeletionStep::Destroy),
            (GuestEndState::Running, s(0), s(0), None, DeletionStep::Destroy),
            (
                GuestEndState::Leaving,
                s(0),
                long,
                None,
                DeletionStep::Wait(Some(SHUTDOWN_WITHIN)),
            ),
            (
                GuestEndState::Leaving,
                SHUTDOWN_WITHIN,
                long,
                None,
                DeletionStep::Destroy,
            ),
            (
                GuestEndState::Still,
                s(2),
                long,
                Some(s(0)),
                DeletionStep::Wait(Some(SHUTDOWN_WITHIN)),
            ),
            (GuestEndState::Still, s(600), long, None, DeletionStep::Destroy),
            (GuestEndState::Left, s(600), long, None, DeletionStep::Wait(None)),
            (GuestEndState::Over, s(0), long, None, DeletionStep::Report),
            (GuestEndState::Over, s(600), s(0), Some(s(0)), DeletionStep::Report),
        ] {
            let observed = ObservedDeletion {
                guest,
                passed,
                grace,
                pressed,
            };
            assert_eq!(step(&observed), wanted, "{observed:?}");
        }
    }
}
