//! Reconciliation of one NodeMaintenance, which drains a node and keeps it empty.
//!
//! ```text
//!  finalizer ─▶ begun: records the node's earlier state ─▶ Lease ─▶ label, taints, cordon ─▶ pods
//!                                                                                            │
//!        ┌────────── late pods, uncordoned by hand: done again ──────────┐      none is left ▼
//!        └────────────────────────────────────────────────── Running ◀───┴───────────── Succeeded
//!  deleted, timed out, Lease lost ─▶ restored: label, taints, cordon, condition, Lease ─▶ finalizer, or Failed
//! ```
//!
//! [`next`] returns the single next action, derived from the present state alone. So a restarted controller continues
//! where the previous one stopped, and manual changes are noticed.
//!
//! - [`pods`]: which pods have to leave, and how far each is.
//! - [`attempt`]: the API server's response to an eviction.
//! - [`pod_pdbs`]: which PDBs protect a pod.
//! - [`maintenance_lease`]: the lock on the node.
//! - [`node_changes`]: the changes to a node in maintenance, and how they are undone.
//! - [`conflicts`]: which of two maintenances of a node counts.
//! - [`report`]: the status.

pub mod attempt;
pub mod conflicts;
pub mod maintenance_lease;
pub mod node_changes;
pub mod pod_pdbs;
pub mod pods;
pub mod report;
pub mod reservation;

use std::{fmt::Display, sync::Arc};

use drydock_api::maintenance::{FINALIZER, Group, NodeMaintenance, NodeMaintenanceStatus};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod},
};
use serde_json::Value;

use attempt::Attempt;
use maintenance_lease::{LeaseFailure, LeaseRelease, LeaseState, LeaseWrite};
use node_changes::MaintenanceStage;
use pods::{EvictionTarget, PodContext};
use report::{MaintenanceFailure, MaintenancePhase};

/// The controller's observations of a maintenance and its node.
#[derive(Clone, Copy)]
pub struct ObservedMaintenance<'a> {
    /// The current time.
    pub now: Timestamp,
    /// API group of the object.
    pub group: Group,
    /// The object.
    pub object: &'a NodeMaintenance,
    /// The node; `None` if the API server confirms that it does not exist.
    pub node: Option<&'a Node>,
    /// The node's Lease.
    pub lease: Option<&'a Lease>,
    /// Why the last write of the Lease failed, if it did.
    pub lease_failure: Option<&'a LeaseFailure>,
    /// Whether another maintenance of the same node counts, instead of this one.
    pub has_conflict: bool,
    /// All pods of the node; `None` before the first list.
    pub pods: Option<&'a [Arc<Pod>]>,
    /// Whether the watch of pods has no problem, so that a pod that is not among `pods` does not exist. Before the first
    /// list, the list is in flight.
    pub pods_are_current: bool,
    /// Other known state for the pods.
    pub known: PodContext<'a>,
    /// Returns the result of the last eviction of the pod with this UID.
    pub attempts: &'a dyn Fn(&str) -> Option<Attempt>,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaintenanceEvent {
    /// Whether the event is recorded on the Node, not on the maintenance.
    pub on_node: bool,
    /// Whether an administrator may have to act.
    pub warning: bool,
    /// Reason of the event.
    pub reason: &'static str,
    /// Human-readable message of the event.
    pub message: String,
}

impl MaintenanceEvent {
    /// Returns the event that a maintenance began.
    pub fn begun() -> Self {
        Self::on_maintenance(false, "BeginMaintenance", "Begin a node maintenance")
    }

    /// Returns the event that the node is empty.
    pub fn succeeded() -> Self {
        Self::on_maintenance(false, "SucceedMaintenance", "Node maintenance was succeeded")
    }

    /// Returns the event that the maintenance is over.
    pub fn removed() -> Self {
        Self::on_maintenance(false, "RemovedMaintenance", "Removed a node maintenance")
    }

    /// Returns the event that the maintenance failed.
    pub fn failed() -> Self {
        Self::on_maintenance(true, "FailedMaintenance", "Failed a node maintenance")
    }

    /// Returns the event that the node is schedulable again.
    pub fn uncordoned() -> Self {
        Self {
            on_node: true,
            warning: false,
            reason: "UncordonNode",
            message: "Uncordon a node".into(),
        }
    }

    /// Returns the event that the node was uncordoned during the maintenance, and was cordoned again.
    pub fn cordoned_again() -> Self {
        Self::on_maintenance(
            true,
            "CordonedAgain",
            "The node was uncordoned during its maintenance, so the node was cordoned again; delete the \
             NodeMaintenance to make the node schedulable",
        )
    }

    fn on_maintenance(warning: bool, reason: &'static str, message: &str) -> Self {
        Self {
            on_node: false,
            warning,
            reason,
            message: message.into(),
        }
    }
}

/// The single next action.
#[derive(Clone, Debug, PartialEq)]
pub enum MaintenanceStep {
    /// Nothing, until something changes or the wake-up time has come.
    Wait,
    /// Add our finalizer to the object.
    AddFinalizer,
    /// Remove our finalizer, so that the object is deleted.
    RemoveFinalizer,
    /// Write the status before anything else is done.
    Report(Box<NodeMaintenanceStatus>),
    /// Create or change the Lease.
    WriteLease(Box<LeaseWrite>),
    /// Release the Lease.
    ReleaseLease(LeaseRelease),
    /// Change the node with this merge patch, to which its resourceVersion has to be added.
    WriteNode(Value),
    /// Write the node's condition for a stage of its maintenance.
    WriteCondition(MaintenanceStage),
    /// Evict pods. Also write the status, if there is one.
    Evict(Vec<EvictionTarget>, Option<Box<NodeMaintenanceStatus>>),
}

/// The next action, the events to record after it, and when to reconcile again if nothing changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// The action.
    pub next: MaintenanceStep,
    /// Events to record once the action is done.
    pub events: Vec<MaintenanceEvent>,
    /// When to reconcile again.
    pub wake: Option<Timestamp>,
}

impl Turn {
    fn only(next: MaintenanceStep) -> Self {
        Self::with_events(next, Vec::new())
    }

    fn with_events(next: MaintenanceStep, events: Vec<MaintenanceEvent>) -> Self {
        Self {
            next,
            events,
            wake: None,
        }
    }
}

/// Returns the next action for a maintenance.
pub fn next(seen: &ObservedMaintenance<'_>) -> Turn {
    let before = seen.object.status.clone().unwrap_or_default();
    if seen.object.metadata.deletion_timestamp.is_some() {
        return ending(seen, &before);
    }
    let failure = MaintenanceFailure::of(&before);
    if failure.is_some_and(MaintenanceFailure::is_final) {
        return failed(seen, &before);
    }
    if seen.has_conflict {
        return fail(seen, &before, MaintenanceFailure::AnotherMaintenance, None);
    }
    if !has_finalizer(seen.object) {
        return Turn::with_events(MaintenanceStep::AddFinalizer, vec![MaintenanceEvent::begun()]);
    }
    let Some(node) = seen.node else {
        let release = maintenance_lease::release(seen.group, seen.lease).filter(|_| is_touched(&before));
        return match release {
            Some(release) => Turn::only(MaintenanceStep::ReleaseLease(release)),
            None => fail(seen, &before, MaintenanceFailure::NodeNotFound, None),
        };
    };
    let is_new = before.start_time.is_none() || before.node_uid != node.metadata.uid;
    if is_new || failure.is_some() {
        return Turn::only(MaintenanceStep::Report(Box::new(report::begun(seen, &before, node))));
    }
    let deadline = deadline(seen.object, &before);
    if deadline.is_some_and(|deadline| deadline <= seen.now) {
        return fail(seen, &before, MaintenanceFailure::TimedOut, None);
    }
    let mut turn = hold(seen, &before, node);
    let overdue = report::overdue_at(&before).filter(|overdue| *overdue > seen.now);
    turn.wake = turn.wake.into_iter().chain(deadline).chain(overdue).min();
    turn
}

/// Locks, closes and drains the node.
fn hold(seen: &ObservedMaintenance<'_>, before: &NodeMaintenanceStatus, node: &Node) -> Turn {
    let (lease, wake) = match lock(seen, before, node) {
        Ok(locked) => locked,
        Err(turn) => return turn,
    };
    if let Some(patch) = node_changes::closed(node, seen.group) {
        let again = report::was_cordoned(before) && !node_changes::is_unschedulable(node);
        let events = again.then(MaintenanceEvent::cordoned_again).into_iter().collect();
        return Turn::with_events(MaintenanceStep::WriteNode(patch), events);
    }
    if node_changes::in_progress(node) != Some(true) {
        return Turn::only(MaintenanceStep::WriteCondition(MaintenanceStage::InProgress));
    }
    let mut turn = empty(seen, before, node, &lease);
    turn.wake = turn.wake.into_iter().chain(wake).min();
    turn
}

/// Locks the node. Returns the state of its Lease, and when to renew or write it.
///
/// # Errors
/// The action that comes before any change of the node.
fn lock(
    seen: &ObservedMaintenance<'_>,
    before: &NodeMaintenanceStatus,
    node: &Node,
) -> Result<(report::LeaseReport, Option<Timestamp>), Turn> {
    let held_before = report::held_lease(before);
    let exists = match maintenance_lease::judge(seen.lease, seen.now) {
        LeaseState::Held { renew } => return Ok((report::LeaseReport::Held, Some(renew))),
        LeaseState::HeldByOther { holder, until } => {
            if held_before {
                return Err(fail(seen, before, MaintenanceFailure::LeaseLost, Some(&holder)));
            }
            let waiting = report::LeaseReport::HeldByOther(holder);
            // Leases of the older group are not watched, since their namespace also contains Leases of any other
            // kind.
            let retry = seen.now.checked_add(maintenance_lease::RETRY).ok();
            let retry = retry.filter(|_| seen.group == Group::KubeVirt);
            let wake = retry.into_iter().chain([until]).min();
            return Err(wait_for_lease(seen, before, node, &waiting, wake));
        }
        LeaseState::ToWrite { exists } => exists,
    };
    let (failure, is_new, retry) = match (seen.lease_failure, report::lease_failure(before, seen.now)) {
        (Some(failure), _) => (
            failure.clone(),
            true,
            seen.now.checked_add(maintenance_lease::RETRY).ok(),
        ),
        (None, Some((failure, retry))) => (failure, false, Some(retry)),
        (None, None) => {
            let next = match report::recorded_again(seen, before, node) {
                Some(status) => MaintenanceStep::Report(Box::new(status)),
                None => MaintenanceStep::WriteLease(Box::new(maintenance_lease::write(
                    seen.group, seen.lease, exists, node, seen.now,
                ))),
            };
            return Err(Turn::only(next));
        }
    };
    let is_lost = maintenance_lease::is_lost(&failure, report::lease_refused_since(before), seen.now);
    let failing = report::LeaseReport::Failing { failure, is_new };
    if !held_before {
        return Err(wait_for_lease(seen, before, node, &failing, retry));
    }
    if is_lost {
        return Err(fail(seen, before, MaintenanceFailure::LeaseLost, None));
    }
    Ok((failing, retry))
}

/// Evicts pods and reports the progress.
fn empty(
    seen: &ObservedMaintenance<'_>,
    before: &NodeMaintenanceStatus,
    node: &Node,
    lease: &report::LeaseReport,
) -> Turn {
    if seen.pods.is_none() && seen.pods_are_current && succeeded(before) {
        // A new leader keeps the report of the previous one until its first list of pods, which triggers the next plan.
        return Turn::only(MaintenanceStep::Wait);
    }
    let grace = seen.object.spec.grace_period_seconds;
    let drain = seen.pods.map(|pods| {
        pods::drain(
            pods,
            &seen.known,
            seen.attempts,
            node_changes::is_unreachable(node),
            grace,
            seen.now,
        )
    });
    let after = report::running(seen, before, lease, drain.as_ref());
    let (mut targets, mut wake) = (Vec::new(), None);
    if let Some(drain) = drain {
        (targets, wake) = (drain.evict, drain.wake);
    }
    let (status, later) = report::worth_writing(before, after, seen.now);
    let events = match &status {
        Some(status) if succeeded(status) && !succeeded(before) => vec![MaintenanceEvent::succeeded()],
        _ => Vec::new(),
    };
    let next = match (targets.is_empty(), status) {
        (true, None) => MaintenanceStep::Wait,
        (_, status) => MaintenanceStep::Evict(targets, status.map(Box::new)),
    };
    Turn {
        next,
        events,
        wake: wake.into_iter().chain(later).min(),
    }
}

fn succeeded(status: &NodeMaintenanceStatus) -> bool {
    MaintenancePhase::of(status) == Some(MaintenancePhase::Succeeded)
}

/// Waits for a Lease that another holder has, or that cannot be written: the node is not changed meanwhile.
fn wait_for_lease(
    seen: &ObservedMaintenance<'_>,
    before: &NodeMaintenanceStatus,
    node: &Node,
    lease: &report::LeaseReport,
    wake: Option<Timestamp>,
) -> Turn {
    if !node_changes::is_planned(node) {
        return Turn::only(MaintenanceStep::WriteCondition(MaintenanceStage::Planned));
    }
    let after = report::waiting_for_lease(seen, before, lease);
    let (status, later) = report::worth_writing(before, after, seen.now);
    Turn {
        next: status.map_or(MaintenanceStep::Wait, |status| {
            MaintenanceStep::Evict(Vec::new(), Some(Box::new(status)))
        }),
        events: Vec::new(),
        wake: wake.into_iter().chain(later).min(),
    }
}

/// Handles a maintenance that has failed for good: restores the node, and does nothing else.
fn failed(seen: &ObservedMaintenance<'_>, before: &NodeMaintenanceStatus) -> Turn {
    // A maintenance without a start time was begun, and undone, by another implementation.
    if before.completion_time.is_some() || before.start_time.is_none() {
        return Turn::only(MaintenanceStep::Wait);
    }
    give_back(seen, before).unwrap_or_else(|| {
        let mut after = before.clone();
        report::completed(&mut after, seen.now);
        Turn::only(MaintenanceStep::Report(Box::new(after)))
    })
}

/// Handles a deleted maintenance: restores the node unless that is done, then removes the finalizer.
fn ending(seen: &ObservedMaintenance<'_>, before: &NodeMaintenanceStatus) -> Turn {
    if !has_finalizer(seen.object) {
        return Turn::only(MaintenanceStep::Wait);
    }
    let last = || match report::ended(seen.object, before, seen.now) {
        Some(status) => Turn::only(MaintenanceStep::Report(Box::new(status))),
        None => Turn::with_events(MaintenanceStep::RemoveFinalizer, vec![MaintenanceEvent::removed()]),
    };
    if !is_touched(before) {
        return last();
    }
    give_back(seen, before).unwrap_or_else(last)
}

/// Returns whether a maintenance is over although its object still exists: it was deleted, its node has been
/// restored, and only foreign finalizers keep it.
pub fn is_over(object: &NodeMaintenance) -> bool {
    object.metadata.deletion_timestamp.is_some() && !has_finalizer(object)
}

/// Returns the next step that undoes a started maintenance, if any is left.
fn give_back(seen: &ObservedMaintenance<'_>, before: &NodeMaintenanceStatus) -> Option<Turn> {
    // Another Node of the same name was never changed by this maintenance.
    let node = seen
        .node
        .filter(|node| before.node_uid.is_none() || node.metadata.uid == before.node_uid);
    if let Some(node) = node {
        let was = node_changes::Before::of(before);
        // Changes that other clients made while the maintenance waited are kept.
        if !report::is_untouched(seen, before, node)
            && let Some(opened) = node_changes::opened(node, seen.group, &was)
        {
            let uncordons = !was.cordoned && node_changes::is_unschedulable(node);
            let events = uncordons.then(MaintenanceEvent::uncordoned).into_iter().collect();
            return Some(Turn::with_events(MaintenanceStep::WriteNode(opened), events));
        }
        if node_changes::is_announced(node) {
            return Some(Turn::only(MaintenanceStep::WriteCondition(MaintenanceStage::Ended)));
        }
    }
    maintenance_lease::release(seen.group, seen.lease).map(|release| Turn::only(MaintenanceStep::ReleaseLease(release)))
}

/// Fails the maintenance and reports the reason, unless that is already reported.
fn fail(
    seen: &ObservedMaintenance<'_>,
    before: &NodeMaintenanceStatus,
    failure: MaintenanceFailure,
    detail: Option<&str>,
) -> Turn {
    if MaintenanceFailure::of(before) == Some(failure) {
        return Turn::only(MaintenanceStep::Wait);
    }
    let after = report::failed(seen, before, failure, detail);
    Turn::with_events(
        MaintenanceStep::Report(Box::new(after)),
        vec![MaintenanceEvent::failed()],
    )
}

/// Returns whether the node may have changes that are not undone.
pub fn is_touched(status: &NodeMaintenanceStatus) -> bool {
    let given_back = MaintenancePhase::of(status) == Some(MaintenancePhase::Failed) && status.completion_time.is_some();
    // Another implementation may have begun the maintenance without writing a start time.
    (status.start_time.is_some() || MaintenancePhase::of(status).is_some_and(|phase| phase != MaintenancePhase::Failed))
        && !given_back
}

/// Returns whether the object has our finalizer, so that its deletion waits for us.
pub fn has_finalizer(object: &NodeMaintenance) -> bool {
    let finalizers = object.metadata.finalizers.as_deref().unwrap_or_default();
    finalizers.iter().any(|finalizer| finalizer == FINALIZER)
}

/// Returns when the node has to be empty; `None` once it has been empty.
fn deadline(object: &NodeMaintenance, status: &NodeMaintenanceStatus) -> Option<Timestamp> {
    let start = status.start_time.as_ref()?;
    let limit = timeout(object).filter(|_| status.completion_time.is_none())?;
    start.0.checked_add(limit).ok()
}

/// Returns how long draining the node may take. The schema refuses values that cannot be parsed.
pub fn timeout(object: &NodeMaintenance) -> Option<SignedDuration> {
    object.spec.timeout.as_deref()?.parse().ok()
}

/// Returns the name of the node.
pub fn node_name(object: &NodeMaintenance) -> &str {
    &object.spec.node_name
}

/// Joins errors as Kubernetes and kubectl do: a single error unchanged, several in brackets.
fn joined(errors: &[impl Display]) -> Option<String> {
    const MAX_LISTED: usize = 10;
    match errors {
        [] => None,
        [error] => Some(error.to_string()),
        errors => {
            let mut listed: Vec<String> = errors.iter().take(MAX_LISTED).map(ToString::to_string).collect();
            if errors.len() > MAX_LISTED {
                listed.push(format!("and {} more", errors.len() - MAX_LISTED));
            }
            Some(format!("[{}]", listed.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests;
