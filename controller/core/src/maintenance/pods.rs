//! Which pods have to leave a node, and how far each is.
//!
//! ```text
//!  pod ─┬─ of a DaemonSet that exists, and not finished ──▶ stays
//!       ├─ mirror of a static pod ────────────────────────▶ stays
//!       └─ leaves ─┬─ has a deletion time ─▶ waited for (never evicted again)
//!                  ├─ no eviction yet, or its retry is due ─▶ evicted
//!                  └─ refused ─▶ waits until the obstacle changes, at most 5 s
//! ```
//!
//! The filters and their order are those of `kubectl drain --force --ignore-daemonsets --delete-emptydir-data`: pods
//! with local storage and without a controller leave too. A pod is identified by its UID: another pod of the same
//! name is a different pod.

use std::sync::Arc;

use drydock_api::{controlling_owner, maintenance::Blocker};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};

use super::{
    attempt::{Attempt, EvictionResult},
    pod_pdbs,
};
use crate::pod_state::is_final;

/// Annotation of a pod: the kubelet created the pod from a file, so it is never evicted.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// A pod that still exists this long after its grace period is overdue: the kubelet kills it at the end of that
/// period.
pub const LATE_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// Known state for pods, besides the pods themselves.
#[derive(Clone, Copy)]
pub struct PodContext<'a> {
    /// Returns whether the API server confirms that no DaemonSet with this namespace and name exists.
    pub daemon_set_is_gone: &'a dyn Fn(&str, &str) -> bool,
    /// All PDBs, at least those of the pods' namespaces.
    pub pdbs: &'a [Arc<PodDisruptionBudget>],
}

/// Whether a pod has to leave, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodVerdict {
    /// The pod has to leave.
    Leaves,
    /// A DaemonSet would recreate the pod.
    DaemonSet,
    /// The pod is a mirror pod, created by the kubelet.
    Mirror,
}

/// Why a pod has not left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StayReason {
    /// The eviction of the pod is in progress.
    Evicting,
    /// The pod is terminating, within its grace period.
    Terminating,
    /// The pod's namespace is being deleted, and the pod with it.
    NamespaceTerminating,
    /// A webhook deferred the eviction, for example until a virtual machine has migrated.
    EvictionDeferred,
    /// The pod's grace period is over, and the pod still exists.
    TerminationOverdue,
    /// The pod has ended, and a finalizer keeps the object.
    HeldByFinalizers,
    /// A PodDisruptionBudget blocks the eviction.
    BlockedByPdb,
    /// The eviction failed.
    EvictionFailed,
    /// Several PodDisruptionBudgets match the pod, so Kubernetes never evicts it.
    SeveralPdbs,
    /// The pod is being deleted, and its node does not report whether it has ended.
    NodeUnreachable,
}

impl StayReason {
    /// All reasons, from the least to the most severe.
    pub const ALL: [Self; 10] = [
        Self::Evicting,
        Self::Terminating,
        Self::NamespaceTerminating,
        Self::EvictionDeferred,
        Self::TerminationOverdue,
        Self::HeldByFinalizers,
        Self::BlockedByPdb,
        Self::EvictionFailed,
        Self::SeveralPdbs,
        Self::NodeUnreachable,
    ];

    /// Returns the stable string.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Evicting => "Evicting",
            Self::Terminating => "Terminating",
            Self::NamespaceTerminating => "NamespaceTerminating",
            Self::EvictionDeferred => "EvictionDeferred",
            Self::TerminationOverdue => "TerminationOverdue",
            Self::HeldByFinalizers => "HeldByFinalizers",
            Self::BlockedByPdb => "BlockedByBudget",
            Self::EvictionFailed => "EvictionFailed",
            Self::SeveralPdbs => "SeveralBudgets",
            Self::NodeUnreachable => "NodeUnreachable",
        }
    }
}

/// A pod to be evicted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EvictionTarget {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod, which is a precondition.
    pub uid: String,
    /// Grace period in seconds, if it overrides the pod's own.
    pub grace_period_seconds: Option<i64>,
}

/// A pod that has not left.
#[derive(Clone, Debug, PartialEq)]
pub struct RemainingPod {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Why the pod has not left.
    pub reason: StayReason,
    /// The last message of the API server.
    pub last_message: Option<String>,
    /// The disruption budget that blocks the eviction.
    pub blocker: Option<Blocker>,
    /// When the pod ends at the latest, if it is terminating.
    pub leaves_by: Option<Timestamp>,
}

impl RemainingPod {
    /// Returns the problem, in kubectl's wording; `None` if the pod is leaving as expected.
    pub fn error(&self) -> Option<String> {
        let (name, namespace) = (&self.name, &self.namespace);
        let waited =
            |why: &str| format!("error when waiting for pod {name:?} in namespace {namespace:?} to terminate: {why}");
        match self.reason {
            StayReason::Evicting | StayReason::Terminating | StayReason::NamespaceTerminating => None,
            StayReason::EvictionDeferred
            | StayReason::BlockedByPdb
            | StayReason::EvictionFailed
            | StayReason::SeveralPdbs => {
                let message = self.last_message.as_deref().unwrap_or_default();
                Some(format!("error when evicting pods/{name:?} -n {namespace:?}: {message}"))
            }
            StayReason::TerminationOverdue => Some(waited("the pod's grace period has expired")),
            StayReason::HeldByFinalizers => Some(waited("a finalizer blocks the deletion of the pod")),
            StayReason::NodeUnreachable => Some(waited(
                "the node does not respond, so it is unknown whether the pod has ended; once the node is certainly \
                 powered off, add the taint node.kubernetes.io/out-of-service to the Node, or delete the Node",
            )),
        }
    }
}

/// The pods of a node, and the actions for them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodDrain {
    /// Number of pods.
    pub total: usize,
    /// Pods that have not left, by namespace and name.
    pub pending: Vec<RemainingPod>,
    /// Pods to evict now.
    pub evict: Vec<EvictionTarget>,
    /// When to reconcile again.
    pub wake: Option<Timestamp>,
}

/// Returns whether a pod has to leave. `daemon_set_is_gone` is called for pods of DaemonSets only.
pub fn verdict(pod: &Pod, daemon_set_is_gone: &dyn Fn(&str, &str) -> bool) -> PodVerdict {
    if let Some((namespace, name)) = daemon_set(pod) {
        // Pods of a deleted DaemonSet would not be recreated, and finished pods do not run.
        if !is_final(pod) && !daemon_set_is_gone(namespace, name) {
            return PodVerdict::DaemonSet;
        }
    }
    let annotations = pod.metadata.annotations.as_ref();
    if annotations.is_some_and(|annotations| annotations.contains_key(MIRROR)) {
        return PodVerdict::Mirror;
    }
    PodVerdict::Leaves
}

/// Returns the namespace and name of the DaemonSet that controls a pod.
pub fn daemon_set(pod: &Pod) -> Option<(&str, &str)> {
    let owner = controlling_owner(&pod.metadata)?;
    (owner.kind == "DaemonSet").then_some((pod.metadata.namespace.as_deref()?, &owner.name))
}

/// Returns the actions for the pods of a node.
pub fn drain(
    pods: &[Arc<Pod>],
    known: &PodContext<'_>,
    attempts: &dyn Fn(&str) -> Option<Attempt>,
    unreachable: bool,
    grace_period_seconds: Option<i64>,
    now: Timestamp,
) -> PodDrain {
    let mut drain = PodDrain {
        total: pods.len(),
        ..PodDrain::default()
    };
    for pod in pods {
        if verdict(pod, known.daemon_set_is_gone) != PodVerdict::Leaves {
            continue;
        }
        let attempt = attempts(pod.metadata.uid.as_deref().unwrap_or_default());
        let (pending, due) = judge(pod, known, attempt.as_ref(), unreachable, now);
        match due {
            Due::Evict => drain.evict.push(EvictionTarget {
                namespace: pending.namespace.clone(),
                name: pending.name.clone(),
                uid: pod.metadata.uid.clone().unwrap_or_default(),
                grace_period_seconds,
            }),
            Due::WakeAt(at) => drain.wake = Some(drain.wake.map_or(at, |wake| wake.min(at))),
            Due::Wait => {}
        }
        drain.pending.push(pending);
    }
    let place = |pending: &RemainingPod| (pending.namespace.clone(), pending.name.clone());
    drain.pending.sort_by_key(place);
    drain.evict.sort();
    drain
}

/// The due action for a pod.
enum Due {
    Evict,
    WakeAt(Timestamp),
    Wait,
}

fn judge(
    pod: &Pod,
    known: &PodContext<'_>,
    attempt: Option<&Attempt>,
    unreachable: bool,
    now: Timestamp,
) -> (RemainingPod, Due) {
    let mut pending = RemainingPod {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        reason: StayReason::Evicting,
        last_message: None,
        blocker: None,
        leaves_by: None,
    };
    if let Some(ends) = &pod.metadata.deletion_timestamp {
        let late = ends.0.checked_add(LATE_AFTER).unwrap_or(ends.0);
        let is_held = pod
            .metadata
            .finalizers
            .as_ref()
            .is_some_and(|finalizers| !finalizers.is_empty());
        // The kubelet sets the grace period to 0 once the pod has ended.
        let is_let_go = pod.metadata.deletion_grace_period_seconds == Some(0);
        let due = if is_held && is_let_go {
            pending.reason = StayReason::HeldByFinalizers;
            Due::Wait
        } else if unreachable {
            pending.reason = StayReason::NodeUnreachable;
            Due::Wait
        } else if now < late {
            (pending.reason, pending.leaves_by) = (StayReason::Terminating, Some(ends.0));
            Due::WakeAt(late)
        } else if is_held {
            pending.reason = StayReason::HeldByFinalizers;
            Due::Wait
        } else {
            pending.reason = StayReason::TerminationOverdue;
            Due::Wait
        };
        return (pending, due);
    }
    let Some(attempt) = attempt else {
        return (pending, Due::Evict);
    };
    if let Some(result) = &attempt.result {
        pending.reason = match result {
            EvictionResult::Accepted | EvictionResult::Gone => StayReason::Evicting,
            EvictionResult::BlockedByPdb(_) => StayReason::BlockedByPdb,
            EvictionResult::Deferred(_) => StayReason::EvictionDeferred,
            EvictionResult::SeveralPdbs(_) => StayReason::SeveralPdbs,
            EvictionResult::NamespaceTerminating(_) => StayReason::NamespaceTerminating,
            EvictionResult::Failed(_) => StayReason::EvictionFailed,
        };
        pending.last_message = result.text().map(Into::into);
        if matches!(result, EvictionResult::BlockedByPdb(_) | EvictionResult::SeveralPdbs(_)) {
            pending.blocker = pod_pdbs::blocker(known.pdbs, pod, result.text().unwrap_or_default());
        }
    }
    let due = match attempt.retry(now) {
        None => Due::Wait,
        Some(at) if at <= now => Due::Evict,
        Some(at) => Due::WakeAt(at),
    };
    (pending, due)
}

#[cfg(test)]
mod tests;
