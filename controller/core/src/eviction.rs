//! Decides about evictions of launcher pods.
//!
//! ```text
//!  pod ended, or no launcher ─▶ allowed          strategy │ migratable │ not migratable      │ not known yet
//!  VMI gone, over, or moved ──▶ allowed          ─────────┼────────────┼─────────────────────┼──────────────
//!  target of a migration ─────▶ refused          None     │ allowed    │ allowed             │ allowed
//!  state unknown ─────────────▶ refused          Possible │ mark, 429  │ allowed             │ mark, 429 for GRACE
//!                                                Migrate  │ mark, 429  │ 429 (or: fallback)  │ mark, 429
//!                                                External │ mark, 429  │ mark, 429           │ mark, 429
//! ```
//!
//! If no other node can take a guest with the strategy `LiveMigrateIfPossible` or with the fallback, its eviction is
//! allowed some seconds after it was marked ([`no_target`]).
//!
//! The texts are KubeVirt's, byte for byte, because drainers and the descheduler compare them. Two differences to
//! KubeVirt: An eviction is allowed when the VMI is provably gone (KubeVirt refuses it for ever) or has moved
//! elsewhere. And a VMI whose migratability is not reported yet is neither killed nor refused for ever.
//!
//! Caches may be stale, and not all to the same degree: they may show a guest where it was before it arrived in this
//! very pod, while they already show its migration as over. So a state that may have changed since is confirmed with
//! the API server before it allows an eviction ([`Allowed::AsShown`]). Final states need no confirmation: an ended pod
//! stays ended, and a guest that has migrated away from a pod never returns to it.

pub mod descheduler;
pub mod evacuation_request;
pub mod holding;
pub mod no_target;
pub mod own_pdb;
pub mod pdbs;
pub mod preconditions;
pub mod strategy;
#[cfg(test)]
mod tests;

use std::time::Duration;

use drydock_api::{
    hyperconverged::EvictionStrategy,
    kubevirt::{
        Phase, VirtualMachineInstance,
        names::{APP, EVACUATION_FALLBACK, RESTART, VIRT_LAUNCHER, conditions as types},
    },
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::{
    conditions::ConditionStatus,
    instance::ending::ended,
    pod_state::{created_at, is_final},
    vm_conditions::find,
};

/// Time after its pod's creation for which a VMI's migratability may be unknown. Agents report it within a moment after
/// the guest has started; a minute covers the slowest start observed.
pub const GRACE: Duration = Duration::from_secs(60);

/// An object, or the kind of its absence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup<T> {
    /// The object exists.
    There(T),
    /// The API server confirmed that the object does not exist.
    Absent,
    /// The object could not be read.
    Unknown,
}

/// Whether a guest can be migrated, as its agent reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Migratable {
    /// The guest can be migrated.
    Yes,
    /// The guest cannot be migrated.
    No {
        /// CamelCase reason.
        reason: String,
        /// Human-readable message.
        message: String,
    },
    /// The agent has not reported yet whether the guest can be migrated.
    NotKnown,
}

impl Migratable {
    /// Reads the `LiveMigratable` condition of a VMI.
    pub fn of(instance: &VirtualMachineInstance) -> Self {
        let conditions = instance.status.as_ref().map(|status| status.conditions.as_slice());
        match find(conditions.unwrap_or_default(), types::LIVE_MIGRATABLE) {
            Some(condition) if condition.status == ConditionStatus::True.as_str() => Self::Yes,
            Some(condition) if condition.status == ConditionStatus::False.as_str() => Self::No {
                reason: condition.reason.clone().unwrap_or_default(),
                message: condition.message.clone().unwrap_or_default(),
            },
            _ => Self::NotKnown,
        }
    }
}

/// Inputs for the decision about an eviction.
#[derive(Clone, Copy, Debug)]
pub struct EvictionInput<'a> {
    /// The current time.
    pub now: Timestamp,
    /// The pod to evict.
    pub pod: &'a Pod,
    /// The VMI for which the pod was created.
    pub instance: Lookup<&'a VirtualMachineInstance>,
    /// The VMI's eviction strategy, or the cluster's where the VMI has none.
    pub strategy: EvictionStrategy,
    /// Whether an unfinished migration is, or may be, to bring the guest into this pod.
    pub is_target: bool,
}

/// The decision about an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionDecision {
    /// The pod may be evicted.
    Allow(Allowed),
    /// The pod may not be evicted; no action follows.
    Refuse(EvictionRefusal),
    /// The pod may not be evicted. The VMI is marked for evacuation, so that it moves.
    Mark,
}

/// The validity of the reason for an allowed eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// The reason holds for good: it may be trusted wherever it was read.
    ForGood,
    /// The reason holds as long as pod and VMI are in the given state. A cache may show an older state, so the API
    /// server must confirm it.
    AsShown,
}

/// Why a pod may not be evicted. [`EvictionRefusal::text`] is the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionRefusal {
    /// It is unknown whether the VMI of the pod exists.
    InstanceUnknown,
    /// The pod is the target of a migration.
    TargetPod,
    /// The VMI is already marked to leave its node.
    InProgress,
    /// The VMI has just been marked to leave its node.
    Triggered,
    /// The eviction strategy requires that the VMI is migrated, and the VMI cannot be migrated.
    NotMigratable,
    /// The VMI could not be marked to leave its node.
    NotMarked,
    /// The Eviction object could not be parsed.
    Unreadable,
}

impl EvictionRefusal {
    /// Returns the stable reason for metrics and logs.
    pub fn reason(self) -> &'static str {
        match self {
            Self::InstanceUnknown => "InstanceUnknown",
            Self::TargetPod => "TargetPod",
            Self::InProgress => "InProgress",
            Self::Triggered => "Triggered",
            Self::NotMigratable => "NotMigratable",
            Self::NotMarked => "NotMarked",
            Self::Unreadable => "Unreadable",
        }
    }

    /// Returns the response text (KubeVirt's). `detail` is the error, if there is one.
    pub fn text(self, namespace: &str, instance: &str, detail: &str) -> String {
        match self {
            Self::InstanceUnknown => format!("kubevirt failed getting the vmi: {detail}"),
            Self::TargetPod => "Eviction request for target Pod".into(),
            Self::InProgress => {
                format!("Evacuation in progress: Eviction triggered evacuation of VMI \"{namespace}/{instance}\"")
            }
            Self::Triggered => format!("Eviction triggered evacuation of VMI \"{namespace}/{instance}\""),
            Self::NotMigratable => {
                format!("VMI {instance} is configured with an eviction strategy but is not live-migratable")
            }
            Self::NotMarked => format!("kubevirt failed marking the vmi for eviction: {detail}"),
            Self::Unreadable => format!("failed to parse the eviction object: {detail}"),
        }
    }

    /// Returns whether the pod may be evicted soon, so that waiting is worthwhile.
    pub fn may_pass(self) -> bool {
        matches!(self, Self::InProgress | Self::Triggered)
    }
}

/// Returns whether a pod is a launcher by its labels. Other pods are ignored.
pub fn is_launcher(pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get(APP))
        .is_some_and(|value| value == VIRT_LAUNCHER)
}

/// Returns the decision about an eviction of a pod.
pub fn decide(input: &EvictionInput<'_>) -> EvictionDecision {
    let pod = input.pod;
    // A pod that is already being deleted may be evicted again.
    if !is_launcher(pod) || ended(pod).is_some() || is_final(pod) || pod.metadata.deletion_timestamp.is_some() {
        return EvictionDecision::Allow(Allowed::ForGood);
    }
    let instance = match input.instance {
        Lookup::There(instance) => instance,
        Lookup::Absent => return EvictionDecision::Allow(Allowed::ForGood),
        Lookup::Unknown => return EvictionDecision::Refuse(EvictionRefusal::InstanceUnknown),
    };
    if is_finished(instance) {
        return EvictionDecision::Allow(Allowed::ForGood);
    }
    let allow = |for_good| match for_good {
        true => EvictionDecision::Allow(Allowed::ForGood),
        false => EvictionDecision::Allow(Allowed::AsShown),
    };
    if is_elsewhere(instance, pod) {
        return if input.is_target {
            EvictionDecision::Refuse(EvictionRefusal::TargetPod)
        } else {
            allow(migrated_away(instance, pod))
        };
    }
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    if !wants_mark(instance, input.strategy, created_at(pod), input.now) {
        return match (input.strategy, Migratable::of(instance)) {
            (EvictionStrategy::LiveMigrate, _) if !falls_back(instance) => {
                EvictionDecision::Refuse(EvictionRefusal::NotMigratable)
            }
            (strategy, _) => allow(strategy == EvictionStrategy::None),
        };
    }
    if evacuation_request::of(instance).is_some_and(|marked| Some(marked) == node) {
        return if no_target::is_shut_down(instance, input.strategy, input.now) {
            allow(false)
        } else {
            EvictionDecision::Refuse(EvictionRefusal::InProgress)
        };
    }
    EvictionDecision::Mark
}

/// Returns whether a VMI is marked, rather than shut down, when its pod is evicted. `made` is the pod's creation time.
pub fn wants_mark(
    instance: &VirtualMachineInstance,
    strategy: EvictionStrategy,
    made: Option<Timestamp>,
    now: Timestamp,
) -> bool {
    match (strategy, Migratable::of(instance)) {
        (EvictionStrategy::None, _) => false,
        (EvictionStrategy::External, _) | (_, Migratable::Yes) => true,
        (_, Migratable::No { .. }) => false,
        (_, Migratable::NotKnown) => grace_end(made).is_none_or(|end| now < end),
    }
}

/// Returns when the [`GRACE`] of a pod created at `made` ends.
pub fn grace_end(made: Option<Timestamp>) -> Option<Timestamp> {
    made?.checked_add(GRACE).ok()
}

/// Returns whether a VMI that should be migrated and cannot be may be shut down instead.
pub fn falls_back(instance: &VirtualMachineInstance) -> bool {
    let annotations = instance.metadata.annotations.as_ref();
    let value = annotations.and_then(|annotations| annotations.get(EVACUATION_FALLBACK));
    value.is_some_and(|value| value == RESTART)
}

/// Returns whether a VMI is shut down where no node can take it.
pub fn may_restart(instance: &VirtualMachineInstance, strategy: EvictionStrategy) -> bool {
    match strategy {
        EvictionStrategy::LiveMigrateIfPossible => true,
        EvictionStrategy::LiveMigrate => falls_back(instance),
        EvictionStrategy::None | EvictionStrategy::External => false,
    }
}

/// Returns whether a VMI needs no protection any more.
pub fn is_finished(instance: &VirtualMachineInstance) -> bool {
    let phase = instance.phase();
    instance.metadata.deletion_timestamp.is_some() || phase.is_some_and(Phase::is_final)
}

/// Returns whether a VMI is on another node than its pod: it has left the pod, or is about to arrive.
pub fn is_elsewhere(instance: &VirtualMachineInstance, pod: &Pod) -> bool {
    let here = instance.node_name();
    here.is_some() && here != pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref())
}

/// Returns whether the guest of a pod has migrated away and never returns: the newest migration moved it out of this
/// pod.
pub fn migrated_away(instance: &VirtualMachineInstance, pod: &Pod) -> bool {
    let state = instance
        .status
        .as_ref()
        .and_then(|status| status.migration_state.as_ref());
    let left = state.is_some_and(|state| state.completed && !state.failed && state.source_pod == pod.metadata.name);
    left && pod.metadata.name.is_some() && is_elsewhere(instance, pod)
}
