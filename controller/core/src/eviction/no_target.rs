//! Decides when a guest is shut down because no other node can take it: a guest with the strategy
//! `LiveMigrateIfPossible`, or with `LiveMigrate` and the fallback ([`may_restart`]).
//!
//! ```text
//!  marked to leave ──┐
//!  no target since ──┴─▶ the later of both + SETTLED ─▶ its eviction is allowed, and its PDB is deleted
//!      └─ a target appears, it moves, or its evacuation request is removed ─▶ it stays protected
//! ```
//!
//! `MigrationTargetAvailable` is false only if no node has room for the guest alone. So other guests of the same drain
//! that wait for placement do not cause a shutdown; nor do pods that are being deleted, which take no room. The delay
//! covers short outages: a restart of a node's kubelet, an update of an agent.

use std::time::Duration;

use drydock_api::{
    hyperconverged::EvictionStrategy,
    kubevirt::{VirtualMachineInstance, names::conditions::MIGRATION_TARGET_AVAILABLE},
};
use jiff::Timestamp;

use super::{Migratable, evacuation_request, may_restart};
use crate::{conditions::ConditionStatus, vm_conditions::find};

/// Time without a possible target node after which a guest is shut down instead: three attempts of `kubectl drain`,
/// which retries every 5 s.
pub const SETTLED: Duration = Duration::from_secs(15);
/// Reason of the condition while the guest's CPU is unknown. This reason implies nothing about other nodes.
const NOT_KNOWN: &str = "GuestCPUUnknown";

/// Returns from when on a guest may be shut down because no other node can take it; `None` if it may not.
pub fn shut_down_from(instance: &VirtualMachineInstance, strategy: EvictionStrategy) -> Option<Timestamp> {
    if !may_restart(instance, strategy) || Migratable::of(instance) != Migratable::Yes {
        return None;
    }
    let status = instance.status.as_ref()?;
    let here = status.node_name.as_deref()?;
    let mark = evacuation_request::evacuation(instance).filter(|_| evacuation_request::of(instance) == Some(here))?;
    let condition = find(&status.conditions, MIGRATION_TARGET_AVAILABLE)
        .filter(|condition| condition.status == ConditionStatus::False.as_str())
        .filter(|condition| condition.reason.as_deref() != Some(NOT_KNOWN))?;
    let state = status.migration_state.as_ref();
    let is_moving = state.is_some_and(|state| !state.has_ended());
    let is_elsewhere_too = status.active_pods.values().any(|node| node != here);
    if is_moving || is_elsewhere_too {
        return None;
    }
    let since = condition.last_transition_time?;
    since.max(mark.requested_at).checked_add(SETTLED).ok()
}

/// Returns whether a guest may be shut down by now because no other node can take it.
pub fn is_shut_down(instance: &VirtualMachineInstance, strategy: EvictionStrategy, now: Timestamp) -> bool {
    shut_down_from(instance, strategy).is_some_and(|from| from <= now)
}
