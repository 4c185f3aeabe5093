//! Conditions of a Node that is being drained.

use k8s_openapi::api::core::v1::Pod;

use crate::{
    conditions::ConditionStatus,
    maintenance::pods::{PodVerdict, verdict},
    pod_state::is_final,
};

use super::DrainingNode;

/// Whether a node is safe to power off: nothing is on it that a drain would have to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Nothing is left on the node that a drain would move: it is safe to power off.
    Yes,
    /// No drain is requested, and new pods may arrive at any time.
    NotRequested,
    /// Virtual machines are on the node.
    GuestsLeft(usize),
    /// Virtual machines are migrating to the node.
    GuestsArriving(usize),
    /// Other pods are on the node that a drain would evict.
    PodsLeft(usize),
    /// It is not known yet which pods are on the node.
    NotKnown,
}

impl Drained {
    /// Returns the status of the condition.
    pub fn status(self) -> ConditionStatus {
        match self {
            Self::Yes => ConditionStatus::True,
            Self::NotKnown => ConditionStatus::Unknown,
            Self::NotRequested | Self::GuestsLeft(_) | Self::GuestsArriving(_) | Self::PodsLeft(_) => {
                ConditionStatus::False
            }
        }
    }

    /// Returns the reason of the condition: KEP-5683's, where it defines one.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Yes => "DrainCompleted",
            Self::NotRequested => "NotRequested",
            Self::GuestsLeft(_) => "VirtualMachinesLeft",
            Self::GuestsArriving(_) => "VirtualMachinesArriving",
            Self::PodsLeft(_) => "PodsLeft",
            Self::NotKnown => "PodsUnknown",
        }
    }

    /// Returns the human-readable message. It contains no counts, so it changes as rarely as the reason.
    pub fn message(self) -> &'static str {
        match self {
            Self::Yes => "nothing is left on the node that a drain would move: the node is safe to power off",
            Self::NotRequested => "the node accepts new pods",
            Self::GuestsLeft(_) => "virtual machines are on the node, as listed in the Hypervisor of the same name",
            Self::GuestsArriving(_) => "virtual machines are migrating to the node",
            Self::PodsLeft(_) => "the node has pods that a drain would evict",
            Self::NotKnown => "the pods on the node are not known yet",
        }
    }
}

/// Returns whether a drain would have to wait for a pod: it exists, has not ended, and neither a DaemonSet nor the
/// kubelet itself would create it again (the rules of `kubectl drain`).
pub fn counts(pod: &Pod) -> bool {
    !is_final(pod) && verdict(pod, &|_, _| false) == PodVerdict::Leaves
}

/// Returns whether a node is safe to power off.
pub(super) fn drained(node: &DrainingNode<'_>) -> Drained {
    if !node.marks.cordoned && node.marks.own_request().is_none() {
        Drained::NotRequested
    } else if !node.guests.is_empty() {
        Drained::GuestsLeft(node.guests.len())
    } else if node.arriving > 0 {
        Drained::GuestsArriving(node.arriving)
    } else {
        match node.evictable {
            Some(0) => Drained::Yes,
            Some(pods) => Drained::PodsLeft(pods),
            None => Drained::NotKnown,
        }
    }
}
