//! Which instances a set parts with first, when it has too many.

use std::cmp::Reverse;

use drydock_api::kubevirt::{Phase, VirtualMachineInstance, names::conditions as types};
use jiff::Timestamp;

use super::{conditions_of, phase};
use crate::vm_conditions::holds;

/// How useful an instance is, those first that are deleted first: not on a node, not running, not
/// ready, younger.
pub(super) type Rank = (bool, u8, bool, Reverse<Timestamp>, String);

/// The rank of an instance. No two have the same, so that asking twice gives the same answer.
pub(super) fn rank(instance: &VirtualMachineInstance) -> Rank {
    let placed = instance
        .status
        .as_ref()
        .is_some_and(|status| status.node_name.is_some());
    let progress = match phase(instance).unwrap_or_default() {
        Phase::Unknown | Phase::Succeeded | Phase::Failed => 0,
        Phase::Pending => 1,
        Phase::Scheduling => 2,
        Phase::Scheduled => 3,
        Phase::Running => 4,
    };
    let made = instance.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (
        placed,
        progress,
        holds(conditions_of(instance), types::READY),
        Reverse(made.unwrap_or(Timestamp::MAX)),
        instance.metadata.name.clone().unwrap_or_default(),
    )
}
