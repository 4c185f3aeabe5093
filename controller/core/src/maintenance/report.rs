//! The status of a maintenance.

use drydock_api::maintenance::{FINALIZER, Group, NodeMaintenance, NodeMaintenanceStatus, PendingPod, PodReference};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::Condition};

use super::{
    ObservedMaintenance, joined,
    maintenance_lease::{self, LeaseFailure},
    node_changes,
    pods::{PodDrain, RemainingPod, StayReason},
};
use crate::conditions::{ConditionStatus, condition, find, holds, whole_seconds};

/// Condition: the node is empty; if it is not, the reason shows why the maintenance waits or has failed.
pub const DRAINED: &str = "Drained";
/// Condition: the node is closed to new pods.
pub const CORDONED: &str = "Cordoned";
/// Condition: Drydock holds the node's Lease.
pub const LEASE_HELD: &str = "LeaseHeld";

/// Reason of [`LEASE_HELD`]: another client holds the Lease, and the maintenance waits for it.
const HELD_BY_OTHER: &str = "HeldByOther";
/// Reason of [`LEASE_HELD`]: the API server refuses to renew the Lease. After ten minutes, the Lease is lost.
const RENEWAL_FAILED: &str = "RenewalFailed";
/// Reason of [`LEASE_HELD`]: the API server is overloaded or fails, so that the Lease is renewed later.
const RENEWAL_DELAYED: &str = "RenewalDelayed";
/// Reason of [`LEASE_HELD`]: the Lease could not be acquired.
const ACQUISITION_FAILED: &str = "AcquisitionFailed";
/// Reason of [`DRAINED`]: the maintenance has ended and its node is restored.
const ENDED: &str = "Ended";
/// Maximum number of pods in the message of a condition.
const NAMED: usize = 3;
/// A node that is not empty this long after its evictions began is logged as overdue. The operators' drain aborts, logs
/// and restarts after this time.
const OVERDUE_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// Phase of a maintenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaintenancePhase {
    /// The node is being drained.
    Running,
    /// The node is empty.
    Succeeded,
    /// The maintenance failed.
    Failed,
}

impl MaintenancePhase {
    /// Returns the API's string.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// Returns the phase in a status.
    pub fn of(status: &NodeMaintenanceStatus) -> Option<Self> {
        let phase = status.phase.as_deref()?;
        [Self::Running, Self::Succeeded, Self::Failed]
            .into_iter()
            .find(|known| known.as_str() == phase)
    }
}

/// Why a maintenance failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaintenanceFailure {
    /// The node does not exist. The maintenance continues once the node exists again.
    NodeNotFound,
    /// Another maintenance of the node is in force. This maintenance begins when the other one is deleted.
    AnotherMaintenance,
    /// Another client holds the Lease of the node, or its renewal was refused for too long.
    LeaseLost,
    /// The node was not empty in time.
    TimedOut,
}

impl MaintenanceFailure {
    /// All reasons.
    pub const ALL: [Self; 4] = [
        Self::NodeNotFound,
        Self::AnotherMaintenance,
        Self::LeaseLost,
        Self::TimedOut,
    ];

    /// Returns the stable string.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NodeNotFound => "NodeNotFound",
            Self::AnotherMaintenance => "AnotherMaintenance",
            Self::LeaseLost => "LeaseLost",
            Self::TimedOut => "TimedOut",
        }
    }

    /// Returns why a maintenance has failed; `None` if it has not. Other implementations report the reason in
    /// `lastError` only.
    pub fn of(status: &NodeMaintenanceStatus) -> Option<Self> {
        if MaintenancePhase::of(status) != Some(MaintenancePhase::Failed) {
            return None;
        }
        let reason = find(&status.conditions, DRAINED).map(|drained| drained.reason.as_str());
        let known = Self::ALL.into_iter().find(|failure| Some(failure.as_str()) == reason);
        let by_lease = || {
            let error = status.last_error.as_deref().unwrap_or_default();
            if error.starts_with("maintenance failed: lease") {
                Self::LeaseLost
            } else {
                Self::NodeNotFound
            }
        };
        Some(known.unwrap_or_else(by_lease))
    }

    /// Returns whether the failure lasts until the object is deleted.
    pub fn is_final(self) -> bool {
        matches!(self, Self::LeaseLost | Self::TimedOut)
    }
}

/// State of the Lease to be reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseReport {
    /// Drydock holds the Lease.
    Held,
    /// This other client holds the Lease.
    HeldByOther(String),
    /// The Lease cannot be written.
    Failing {
        /// Why the Lease cannot be written.
        failure: LeaseFailure,
        /// Whether a write has failed since the last report.
        is_new: bool,
    },
}

/// Returns whether the status reports that Drydock held the Lease before.
pub fn held_lease(status: &NodeMaintenanceStatus) -> bool {
    let fails = |held: &Condition| [RENEWAL_FAILED, RENEWAL_DELAYED].contains(&held.reason.as_str());
    holds(&status.conditions, LEASE_HELD) || find(&status.conditions, LEASE_HELD).is_some_and(fails)
}

/// Returns since when every renewal of a Lease that was held has been refused.
pub fn lease_refused_since(status: &NodeMaintenanceStatus) -> Option<Timestamp> {
    let held = find(&status.conditions, LEASE_HELD)?;
    (held.reason == RENEWAL_FAILED).then_some(held.last_transition_time.0)
}

/// Returns the reported reason why the Lease cannot be written, and when to try again; `None` if the next attempt is
/// due.
///
/// There is one attempt in each interval of [`maintenance_lease::RETRY`]. Reports of pods that are written in between
/// do not delay it further.
pub fn lease_failure(status: &NodeMaintenanceStatus, now: Timestamp) -> Option<(LeaseFailure, Timestamp)> {
    let held = find(&status.conditions, LEASE_HELD)?;
    if ![RENEWAL_FAILED, RENEWAL_DELAYED, ACQUISITION_FAILED].contains(&held.reason.as_str()) {
        return None;
    }
    let (since, every) = (
        held.last_transition_time.0.as_second(),
        maintenance_lease::RETRY.as_secs(),
    );
    let interval = |time: Timestamp| (time.as_second() - since).div_euclid(every);
    let current = interval(now);
    if interval(status.last_update.as_ref()?.0) != current {
        return None;
    }
    let next = Timestamp::from_second(since + (current + 1) * every).ok()?;
    let failure = LeaseFailure {
        why: held.message.clone(),
        is_refused: held.reason != RENEWAL_DELAYED,
    };
    Some((failure, next))
}

/// Returns whether the maintenance has not changed the node, since it waits for the Lease.
pub fn is_untouched(seen: &ObservedMaintenance<'_>, before: &NodeMaintenanceStatus, node: &Node) -> bool {
    let held = find(&before.conditions, LEASE_HELD);
    let waits = held.is_some_and(|held| [HELD_BY_OTHER, ACQUISITION_FAILED].contains(&held.reason.as_str()));
    // The node may be closed by this maintenance, which then lost the Lease before it reported that, or by the operator
    // that had begun the maintenance.
    let drain_taint = seen.group.drain_taint();
    let is_closed = node_changes::own_taints(node, seen.group)
        .iter()
        .any(|key| key == drain_taint)
        && !before.taints_before.iter().any(|key| key == drain_taint);
    waits && !is_closed && maintenance_lease::release(seen.group, seen.lease).is_none()
}

/// Records the state of a node again that other clients changed while the maintenance waited for the Lease. Returns
/// `None` if the recorded state is still true.
pub fn recorded_again(
    seen: &ObservedMaintenance<'_>,
    before: &NodeMaintenanceStatus,
    node: &Node,
) -> Option<NodeMaintenanceStatus> {
    let mut after = before.clone();
    record(&mut after, seen.group, node);
    // This change is not a report: `last_update` stays, so that the Lease is written at once.
    (is_untouched(seen, before, node) && after != *before).then_some(after)
}

fn record(status: &mut NodeMaintenanceStatus, group: Group, node: &Node) {
    status.node_was_unschedulable = Some(node_changes::is_unschedulable(node));
    status.label_before = node_changes::label(node).map(str::to_owned);
    status.taints_before = node_changes::own_taints(node, group);
}

/// Returns whether the status reports that the node was closed.
pub fn was_cordoned(status: &NodeMaintenanceStatus) -> bool {
    holds(&status.conditions, CORDONED)
}

/// Begins a maintenance: the node's earlier state is recorded before the node is changed.
pub fn begun(seen: &ObservedMaintenance<'_>, before: &NodeMaintenanceStatus, node: &Node) -> NodeMaintenanceStatus {
    // Another implementation closed the node itself, and would uncordon it regardless of its earlier state.
    let adopted = before.start_time.is_none()
        && matches!(
            MaintenancePhase::of(before),
            Some(MaintenancePhase::Running | MaintenancePhase::Succeeded)
        );
    let mut after = NodeMaintenanceStatus {
        phase: Some(MaintenancePhase::Running.as_str().into()),
        start_time: Some(whole_seconds(seen.now)),
        node_uid: node.metadata.uid.clone(),
        ..NodeMaintenanceStatus::default()
    };
    if adopted {
        after.node_was_unschedulable = Some(false);
        (after.total_pods, after.eviction_pods) = (before.total_pods, before.eviction_pods);
        after.drain_progress = before.drain_progress;
    } else {
        record(&mut after, seen.group, node);
    }
    let message = "the original state of the node is recorded; the node has not been changed yet";
    after.conditions = vec![condition(
        &before.conditions,
        DRAINED,
        ConditionStatus::False,
        "Starting",
        message,
        seen.now,
    )];
    written(after, seen.now)
}

/// Reports that the node is closed and pods are leaving. `drain` is `None` while the pods are unknown.
pub fn running(
    seen: &ObservedMaintenance<'_>,
    before: &NodeMaintenanceStatus,
    lease: &LeaseReport,
    drain: Option<&PodDrain>,
) -> NodeMaintenanceStatus {
    let mut after = before.clone();
    let new_condition = |type_: &str, status: ConditionStatus, reason: &str, message: String| {
        condition(&before.conditions, type_, status, reason, message, seen.now)
    };
    let is_empty = drain.is_some_and(|drain| drain.pending.is_empty()) && seen.pods_are_current;
    let pending = drain.map_or(&[][..], |drain| &drain.pending);
    if let Some(drain) = drain {
        count(&mut after, drain);
        list(&mut after, &before.pods, pending, seen.now);
    }
    let mut errors: Vec<String> = pending.iter().filter_map(RemainingPod::error).collect();
    let lease_condition = lease_condition(&mut after, before, lease, seen.now, &mut errors);
    after.last_error = joined(&errors);
    let (status, reason, message) = if is_empty {
        (
            ConditionStatus::True,
            DRAINED,
            "every pod that had to leave the node has left".to_owned(),
        )
    } else if drain.is_none() || pending.is_empty() {
        let message = "the pods on the node are not known yet, or the watch of pods is interrupted";
        (ConditionStatus::False, "PodsUnknown", message.to_owned())
    } else {
        let worst = pending
            .iter()
            .map(|pending| pending.reason)
            .max()
            .unwrap_or(StayReason::Evicting);
        (ConditionStatus::False, worst.as_str(), waiting_message(pending))
    };
    after.conditions = vec![
        new_condition(DRAINED, status, reason, message),
        new_condition(
            CORDONED,
            ConditionStatus::True,
            CORDONED,
            "the node accepts only new pods that tolerate its taints".into(),
        ),
        lease_condition,
    ];
    let phase = if is_empty {
        MaintenancePhase::Succeeded
    } else {
        MaintenancePhase::Running
    };
    after.phase = Some(phase.as_str().into());
    if is_empty {
        after.drain_progress = Some(100);
        after.completion_time = after.completion_time.or_else(|| Some(whole_seconds(seen.now)));
    }
    after
}

/// Reports that the Lease is not available yet, so that the node is not changed.
pub fn waiting_for_lease(
    seen: &ObservedMaintenance<'_>,
    before: &NodeMaintenanceStatus,
    lease: &LeaseReport,
) -> NodeMaintenanceStatus {
    let mut after = before.clone();
    let mut errors = Vec::new();
    let lease = lease_condition(&mut after, before, lease, seen.now, &mut errors);
    after.last_error = joined(&errors);
    let drained = condition(
        &before.conditions,
        DRAINED,
        ConditionStatus::False,
        "WaitingForLease",
        lease.message.clone(),
        seen.now,
    );
    after.conditions = vec![drained, lease];
    after
}

/// Reports that the maintenance has failed. `detail` is the holder of the Lease.
pub fn failed(
    seen: &ObservedMaintenance<'_>,
    before: &NodeMaintenanceStatus,
    failure: MaintenanceFailure,
    detail: Option<&str>,
) -> NodeMaintenanceStatus {
    let node = super::node_name(seen.object);
    let mut after = before.clone();
    let error = match failure {
        MaintenanceFailure::NodeNotFound => format!("nodes \"{node}\" not found"),
        MaintenanceFailure::AnotherMaintenance => {
            format!("invalid nodeName, a NodeMaintenance for node {node} already exists")
        }
        MaintenanceFailure::LeaseLost => {
            let attempts = before.error_on_lease_count.unwrap_or_default().max(1);
            let holder = detail.map_or_else(String::new, |holder| format!("; {holder} holds the Lease"));
            format!("maintenance failed: lease could not be extended after {attempts} attempts{holder}")
        }
        MaintenanceFailure::TimedOut => {
            let limit = seen.object.spec.timeout.as_deref().unwrap_or_default();
            let why = before.last_error.as_deref().map(str::to_owned).or_else(|| {
                let drained = find(&before.conditions, DRAINED)?;
                Some(drained.message.clone())
            });
            format!(
                "maintenance failed: the node was not empty after {limit}: {}",
                why.unwrap_or_default()
            )
        }
    };
    after.phase = Some(MaintenancePhase::Failed.as_str().into());
    let drained = condition(
        &before.conditions,
        DRAINED,
        ConditionStatus::False,
        failure.as_str(),
        error.clone(),
        seen.now,
    );
    after.conditions.retain(|condition| condition.type_ == LEASE_HELD);
    after.conditions.insert(0, drained);
    after.last_error = Some(error);
    after.estimated_end = None;
    // The completion time is set once the node has been restored; after some failures there is nothing to restore.
    after.completion_time = None;
    if !failure.is_final() {
        completed(&mut after, seen.now);
    }
    written(after, seen.now)
}

/// Marks the maintenance as completed: nothing is left to be done or undone.
pub fn completed(status: &mut NodeMaintenanceStatus, now: Timestamp) {
    status.completion_time = Some(whole_seconds(now));
    status.last_update = Some(whole_seconds(now));
    status.conditions.retain(|condition| condition.type_ != LEASE_HELD);
}

/// Returns the status of a deleted maintenance whose node has been restored, if a foreign finalizer keeps its object;
/// `None` if nothing keeps it, or if the status already reports that.
pub fn ended(
    object: &NodeMaintenance,
    before: &NodeMaintenanceStatus,
    now: Timestamp,
) -> Option<NodeMaintenanceStatus> {
    let finalizers = object.metadata.finalizers.iter().flatten();
    let foreign: Vec<&str> = finalizers
        .map(String::as_str)
        .filter(|name| *name != FINALIZER)
        .collect();
    let reported = find(&before.conditions, DRAINED).is_some_and(|drained| drained.reason == ENDED);
    if foreign.is_empty() || reported {
        return None;
    }
    let message = format!(
        "the maintenance has ended and the node has been restored; the object exists until its other finalizers are \
         removed: {}",
        foreign.join(", ")
    );
    let mut after = before.clone();
    let drained = condition(&before.conditions, DRAINED, ConditionStatus::False, ENDED, message, now);
    after.conditions = vec![drained];
    (after.last_error, after.estimated_end) = (None, None);
    (after.pending, after.pending_pods) = (None, Vec::new());
    (after.pending_pods_refs, after.pods) = (Vec::new(), Vec::new());
    completed(&mut after, now);
    Some(after)
}

/// Returns when a drain has taken or will have taken [`OVERDUE_AFTER`]; `None` if its evictions have not begun, or if
/// the node is empty.
pub fn overdue_at(status: &NodeMaintenanceStatus) -> Option<Timestamp> {
    let cordoned = find(&status.conditions, CORDONED)?;
    let empties = MaintenancePhase::of(status) == Some(MaintenancePhase::Running) && cordoned.status == "True";
    let since = cordoned.last_transition_time.0;
    since.checked_add(OVERDUE_AFTER).ok().filter(|_| empties)
}

/// Sets the numbers that are determined once, and the progress, which never decreases.
fn count(status: &mut NodeMaintenanceStatus, drain: &PodDrain) {
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let pending = number(drain.pending.len());
    status.total_pods = status.total_pods.or(Some(number(drain.total)));
    let evictable = *status.eviction_pods.get_or_insert(pending);
    if evictable > 0 && pending > 0 {
        let gone = (evictable.saturating_sub(pending).max(0).saturating_mul(100) / evictable).min(99);
        status.drain_progress = Some(status.drain_progress.unwrap_or_default().max(gone));
    }
}

/// Lists the pods that have not left.
fn list(status: &mut NodeMaintenanceStatus, before: &[PendingPod], pending: &[RemainingPod], now: Timestamp) {
    let since = |namespace: &str, name: &str| {
        let known = before.iter().find(|pod| pod.namespace == namespace && pod.name == name);
        known
            .and_then(|pod| pod.pending_since.clone())
            .unwrap_or_else(|| whole_seconds(now))
    };
    status.pending = Some(i64::try_from(pending.len()).unwrap_or(i64::MAX));
    status.pending_pods = pending.iter().map(|pod| pod.name.clone()).collect();
    let reference = |pod: &RemainingPod| PodReference {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
    };
    status.pending_pods_refs = pending.iter().map(reference).collect();
    let pending_pod = |pod: &RemainingPod| PendingPod {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        pending_since: Some(since(&pod.namespace, &pod.name)),
        reason: pod.reason.as_str().into(),
        last_refusal: pod.last_message.clone(),
        blocked_by: pod.blocker.clone(),
    };
    status.pods = pending.iter().map(pending_pod).collect();
    // There is no estimate if any pod may stay forever.
    let ends: Option<Vec<Timestamp>> = pending.iter().map(|pod| pod.leaves_by).collect();
    status.estimated_end = ends.and_then(|ends| ends.into_iter().max()).map(whole_seconds);
}

fn lease_condition(
    after: &mut NodeMaintenanceStatus,
    before: &NodeMaintenanceStatus,
    lease: &LeaseReport,
    now: Timestamp,
    errors: &mut Vec<String>,
) -> Condition {
    let new_condition = |status: ConditionStatus, reason: &str, message: String| {
        condition(&before.conditions, LEASE_HELD, status, reason, message, now)
    };
    match lease {
        LeaseReport::Held => {
            after.error_on_lease_count = None;
            new_condition(
                ConditionStatus::True,
                "Held",
                "Drydock holds and renews the node's Lease".into(),
            )
        }
        LeaseReport::HeldByOther(holder) => {
            let attempts = before.error_on_lease_count.unwrap_or_default();
            errors.push(format!(
                "failed to obtain a lease that is not owned by us : can't update or invalidate the lease because it is \
                 held by different owner: {holder} errorOnLeaseCount {attempts}"
            ));
            new_condition(
                ConditionStatus::False,
                HELD_BY_OTHER,
                format!("{holder} holds the node's Lease"),
            )
        }
        LeaseReport::Failing { failure, is_new } => {
            if *is_new {
                after.error_on_lease_count = Some(before.error_on_lease_count.unwrap_or_default().saturating_add(1));
            }
            let (status, reason, what) = if held_lease(before) {
                // Each reason has another status, so that the transition time is that of the first refusal.
                let (status, reason) = if failure.is_refused {
                    (ConditionStatus::False, RENEWAL_FAILED)
                } else {
                    (ConditionStatus::Unknown, RENEWAL_DELAYED)
                };
                (
                    status,
                    reason,
                    "failed to extend a lease that used to be owned by us, incrementing error on lease count",
                )
            } else {
                (ConditionStatus::False, ACQUISITION_FAILED, "failed to obtain a lease")
            };
            errors.push(format!("{what}: {}", failure.why));
            new_condition(status, reason, failure.why.clone())
        }
    }
}

/// Returns a message with the pods that the drain waits for, the most severe first.
fn waiting_message(pending: &[RemainingPod]) -> String {
    let mut worst: Vec<&RemainingPod> = pending.iter().collect();
    worst.sort_by_key(|pod| std::cmp::Reverse(pod.reason));
    let named: Vec<String> = worst
        .iter()
        .take(NAMED)
        .map(|pod| {
            let pdb = pod.blocker.as_ref().map_or_else(String::new, |blocker| {
                format!(
                    " {}: {} of {} healthy, {} needed, {} may be evicted",
                    blocker.name,
                    blocker.current_healthy,
                    blocker.expected_pods,
                    blocker.desired_healthy,
                    blocker.disruptions_allowed
                )
            });
            format!("{}/{} ({}{pdb})", pod.namespace, pod.name, pod.reason.as_str())
        })
        .collect();
    let more = match pending.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let pods = if pending.len() == 1 { "pod has" } else { "pods have" };
    format!("{} {pods} not left: {}{more}", pending.len(), named.join(", "))
}

fn written(mut status: NodeMaintenanceStatus, now: Timestamp) -> NodeMaintenanceStatus {
    status.last_update = Some(whole_seconds(now));
    status
}

/// Returns the status to write, or when to check again whether one is to be written. Numbers and lists are written once
/// a second at most; changes that users wait for are written immediately.
pub fn worth_writing(
    before: &NodeMaintenanceStatus,
    after: NodeMaintenanceStatus,
    now: Timestamp,
) -> (Option<NodeMaintenanceStatus>, Option<Timestamp>) {
    let after = NodeMaintenanceStatus {
        last_update: before.last_update.clone(),
        ..after
    };
    if after == *before {
        return (None, None);
    }
    let main = |status: &NodeMaintenanceStatus| {
        let conditions: Vec<_> = status
            .conditions
            .iter()
            .map(|condition| {
                (
                    condition.type_.clone(),
                    condition.status.clone(),
                    condition.reason.clone(),
                )
            })
            .collect();
        (status.phase.clone(), conditions)
    };
    let this_second = whole_seconds(now);
    if main(&after) == main(before) && before.last_update.as_ref() == Some(&this_second) {
        let next = this_second.0.checked_add(SignedDuration::from_secs(1));
        return (None, next.ok());
    }
    (Some(written(after, now)), None)
}
