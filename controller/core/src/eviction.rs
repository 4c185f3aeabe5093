//! What an eviction of a launcher pod is answered.
//!
//! ```text
//!  pod ended, or no launcher ─▶ allowed          strategy │ migratable │ not migratable      │ not known yet
//!  instance gone, over, moved ─▶ allowed         ─────────┼────────────┼─────────────────────┼──────────────
//!  target of a migration ─────▶ refused          None     │ allowed    │ allowed             │ allowed
//!  anything not known ────────▶ refused          Possible │ mark, 429  │ allowed             │ mark, 429 for GRACE
//!                                                Migrate  │ mark, 429  │ 429 (or: fallback)  │ mark, 429
//!                                                External │ mark, 429  │ mark, 429           │ mark, 429
//! ```
//!
//! Where no other node can take a guest that is migrated only if that is possible, its eviction is allowed some
//! seconds after it was marked ([`no_target`]).
//!
//! The texts are KubeVirt's, byte for byte, because drainers and the descheduler compare them. What
//! KubeVirt does not do: an eviction is allowed when the instance is provably gone (KubeVirt refuses
//! it for ever) or has moved elsewhere, and an instance of which nobody has said yet whether it can
//! be migrated is neither killed nor refused for ever.
//!
//! A cache may be behind, and one kind's further than another's: a guest is shown where it was before it
//! came into this very pod, while its migration is shown to be over. So what may have been otherwise
//! since is confirmed by the API server before it speaks for letting a pod go ([`Allowed::AsShown`]): what
//! ends stays ended, and a guest that has left a pod by a migration never comes back into it.

pub mod budget;
pub mod budgets;
pub mod descheduler;
pub mod holding;
pub mod mark;
pub mod no_target;
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

use crate::{conditions::Status, instance::ending::ended, vm_conditions::find};

/// How long after its pod was made an instance may leave open whether it can be migrated. Agents say
/// so within a moment after the guest has started; a minute covers the slowest start that was seen.
pub const GRACE: Duration = Duration::from_secs(60);

/// An object, or what is known of its absence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known<T> {
    /// It is there.
    There(T),
    /// The API server says that there is none.
    Absent,
    /// Nobody could say.
    Unknown,
}

/// Whether a guest can be migrated, as its agent says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Migratable {
    /// It can.
    Yes,
    /// It cannot.
    No {
        /// CamelCase reason.
        reason: String,
        /// For people.
        message: String,
    },
    /// Nobody has said yet.
    NotKnown,
}

impl Migratable {
    /// What an instance says of itself.
    pub fn of(instance: &VirtualMachineInstance) -> Self {
        let conditions = instance.status.as_ref().map(|status| status.conditions.as_slice());
        match find(conditions.unwrap_or_default(), types::LIVE_MIGRATABLE) {
            Some(condition) if condition.status == Status::True.as_str() => Self::Yes,
            Some(condition) if condition.status == Status::False.as_str() => Self::No {
                reason: condition.reason.clone().unwrap_or_default(),
                message: condition.message.clone().unwrap_or_default(),
            },
            _ => Self::NotKnown,
        }
    }
}

/// What is known when an eviction is to be answered.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The time.
    pub now: Timestamp,
    /// The pod.
    pub pod: &'a Pod,
    /// The instance that it was made for.
    pub instance: Known<&'a VirtualMachineInstance>,
    /// Its strategy, or that of the cluster where it has none.
    pub strategy: EvictionStrategy,
    /// A migration that has not ended is to bring the guest into this pod, or may be.
    pub is_target: bool,
}

/// The answer to an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It may be evicted.
    Allow(Allowed),
    /// It may not; nothing is to be done.
    Refuse(Refusal),
    /// It may not, and the instance is marked so that it moves.
    Mark,
}

/// How long what lets a pod go stays true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// For good: it may be believed wherever it was read.
    ForGood,
    /// As long as pod and instance are as they are shown: a cache may show what was before, so that the API server is to
    /// be asked.
    AsShown,
}

/// Why a pod may not be evicted. [`Refusal::text`] is what is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is not known whether there is such an instance.
    InstanceUnknown,
    /// A guest is about to arrive in it.
    TargetPod,
    /// Its instance is marked already.
    InProgress,
    /// Its instance has just been marked.
    Triggered,
    /// Its instance is to be migrated and cannot be.
    NotMigratable,
    /// Its instance could not be marked.
    NotMarked,
    /// The Eviction could not be read.
    Unreadable,
}

impl Refusal {
    /// The stable word, for metrics and logs.
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

    /// What is answered (KubeVirt's words). `detail` is what went wrong, where something did.
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

    /// Whether the pod may be evicted soon, so that waiting for that is worth while.
    pub fn may_pass(self) -> bool {
        matches!(self, Self::InProgress | Self::Triggered)
    }
}

/// Whether a pod is a launcher by its labels. Others are never looked at.
pub fn is_launcher(pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get(APP))
        .is_some_and(|value| value == VIRT_LAUNCHER)
}

/// What an eviction of a pod is answered.
pub fn answer(asked: &Asked<'_>) -> Answer {
    let pod = asked.pod;
    // One that is on its way out anyway loses nothing by being told so again.
    if !is_launcher(pod) || ended(pod).is_some() || is_over(pod) || pod.metadata.deletion_timestamp.is_some() {
        return Answer::Allow(Allowed::ForGood);
    }
    let instance = match asked.instance {
        Known::There(instance) => instance,
        Known::Absent => return Answer::Allow(Allowed::ForGood),
        Known::Unknown => return Answer::Refuse(Refusal::InstanceUnknown),
    };
    if is_finished(instance) {
        return Answer::Allow(Allowed::ForGood);
    }
    let allow = |for_good| match for_good {
        true => Answer::Allow(Allowed::ForGood),
        false => Answer::Allow(Allowed::AsShown),
    };
    if is_elsewhere(instance, pod) {
        return if asked.is_target {
            Answer::Refuse(Refusal::TargetPod)
        } else {
            allow(has_left(instance, pod))
        };
    }
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    if !wants_mark(instance, asked.strategy, made(pod), asked.now) {
        return match (asked.strategy, Migratable::of(instance)) {
            (EvictionStrategy::LiveMigrate, _) if !falls_back(instance) => Answer::Refuse(Refusal::NotMigratable),
            (strategy, _) => allow(strategy == EvictionStrategy::None),
        };
    }
    if mark::of(instance).is_some_and(|marked| Some(marked) == node) {
        return if no_target::is_shut_down(instance, asked.strategy, asked.now) {
            allow(false)
        } else {
            Answer::Refuse(Refusal::InProgress)
        };
    }
    Answer::Mark
}

/// Whether an instance is marked, rather than shut down, when its pod is evicted. `made` is when the
/// pod was.
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

/// When an instance whose pod was made at this time has had its [`GRACE`].
pub fn grace_end(made: Option<Timestamp>) -> Option<Timestamp> {
    made?.checked_add(GRACE).ok()
}

/// When a pod was made.
pub fn made(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// Whether an instance that should be migrated and cannot be may be shut down instead.
pub fn falls_back(instance: &VirtualMachineInstance) -> bool {
    let annotations = instance.metadata.annotations.as_ref();
    let value = annotations.and_then(|annotations| annotations.get(EVACUATION_FALLBACK));
    value.is_some_and(|value| value == RESTART)
}

/// Whether nothing of an instance is to be protected any more.
pub fn is_finished(instance: &VirtualMachineInstance) -> bool {
    let phase = instance.status.as_ref().and_then(|status| status.phase);
    instance.metadata.deletion_timestamp.is_some() || phase.is_some_and(Phase::is_final)
}

/// An instance is on another node than a pod of it: it has left it, or is about to arrive.
pub fn is_elsewhere(instance: &VirtualMachineInstance, pod: &Pod) -> bool {
    let here = instance.status.as_ref().and_then(|status| status.node_name.as_deref());
    here.is_some() && here != pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref())
}

/// The guest of a pod has moved away from it, and never comes back: the newest migration has taken it from there.
pub fn has_left(instance: &VirtualMachineInstance, pod: &Pod) -> bool {
    let state = instance
        .status
        .as_ref()
        .and_then(|status| status.migration_state.as_ref());
    let left = state.is_some_and(|state| state.completed && !state.failed && state.source_pod == pod.metadata.name);
    left && pod.metadata.name.is_some() && is_elsewhere(instance, pod)
}

/// The kubelet says that a pod is over.
fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
