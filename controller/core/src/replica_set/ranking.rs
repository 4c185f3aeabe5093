//! Which instances a set deletes first when it has too many.

use std::cmp::Reverse;

use drydock_api::kubevirt::{Phase, VirtualMachineInstance, names::conditions as types};
use jiff::Timestamp;

use super::conditions_of;
use crate::vm_conditions::holds;

/// Usefulness of an instance; the lowest rank is deleted first: not on a node, not running, not ready, younger.
pub(super) type Rank = (bool, u8, bool, Reverse<Timestamp>, String);

/// Returns the rank of an instance. Ranks are unique, so that repeated calls give the same order.
pub(super) fn rank(instance: &VirtualMachineInstance) -> Rank {
    let placed = instance
        .status
        .as_ref()
        .is_some_and(|status| status.node_name.is_some());
    let progress = match instance.phase().unwrap_or_default() {
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
