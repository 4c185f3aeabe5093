//! What the controller does about one NodeMaintenance: a node is emptied and kept empty.
//!
//! ```text
//!  finalizer ─▶ begun: how the node was is written down ─▶ Lease ─▶ label, taints, cordon ─▶ pods
//!                                                                                            │
//!        ┌────────── late pods, uncordoned by hand: done again ──────────┐      none is left ▼
//!        └────────────────────────────────────────────────── Running ◀───┴───────────── Succeeded
//!  deleted, timed out, Lease lost ─▶ given back: label, taints, cordon, condition, Lease ─▶ finalizer, or Failed
//! ```
//!
//! [`next`] says the one thing that is to be done next, from what there is now alone. So a
//! controller that starts again goes on where another was, and what somebody changes by hand is
//! noticed.
//!
//! - [`pods`]: which pods have to leave, and how far each is.
//! - [`answer`]: what the API server said to an eviction.
//! - [`budgets`]: which disruption budgets guard a pod.
//! - [`lease`]: the lock on the node.
//! - [`node`]: what a node in maintenance looks like, and how it is given back.
//! - [`conflicts`]: which of two maintenances of a node counts.
//! - [`report`]: the status.

pub mod answer;
pub mod budgets;
pub mod conflicts;
pub mod lease;
pub mod node;
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

use answer::Attempt;
use lease::{LeaseState, LeaseWrite, Release};
use pods::{Known, Target};
use report::{Failure, Phase};

/// What the controller sees of a maintenance and of its node.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    /// The time.
    pub now: Timestamp,
    /// Of which group the object is.
    pub group: Group,
    /// The object.
    pub object: &'a NodeMaintenance,
    /// The node; `None` if the API server says that there is none.
    pub node: Option<&'a Node>,
    /// The node's Lease.
    pub lease: Option<&'a Lease>,
    /// What the API server said when the Lease could not be written just now.
    pub lease_failure: Option<&'a str>,
    /// Another maintenance of the same node counts, not this one.
    pub has_rival: bool,
    /// All pods of the node; `None` if they are not known.
    pub pods: Option<&'a [Arc<Pod>]>,
    /// News of pods come in, so that a pod that is not among `pods` is not there.
    pub pods_are_current: bool,
    /// What else is known of pods.
    pub known: Known<'a>,
    /// How the last eviction of the pod with this UID went.
    pub attempts: &'a dyn Fn(&str) -> Option<Attempt>,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// It is on the Node, not on the maintenance.
    pub on_node: bool,
    /// Somebody may have to do something.
    pub warning: bool,
    /// Its reason.
    pub reason: &'static str,
    /// What happened.
    pub message: String,
}

impl Event {
    /// A maintenance began.
    pub fn begun() -> Self {
        Self::on_maintenance(false, "BeginMaintenance", "Begin a node maintenance")
    }

    /// The node is empty.
    pub fn succeeded() -> Self {
        Self::on_maintenance(false, "SucceedMaintenance", "Node maintenance was succeeded")
    }

    /// The maintenance is over.
    pub fn removed() -> Self {
        Self::on_maintenance(false, "RemovedMaintenance", "Removed a node maintenance")
    }

    /// The maintenance failed.
    pub fn failed() -> Self {
        Self::on_maintenance(true, "FailedMaintenance", "Failed a node maintenance")
    }

    /// The node takes pods again.
    pub fn uncordoned() -> Self {
        Self {
            on_node: true,
            warning: false,
            reason: "UncordonNode",
            message: "Uncordon a node".into(),
        }
    }

    /// Somebody uncordoned the node, or took off its taints, while it was in maintenance.
    pub fn cordoned_again() -> Self {
        Self::on_maintenance(
            true,
            "CordonedAgain",
            "The node had been opened to new pods during its maintenance, so it was closed again; delete the maintenance to open it",
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

/// The one thing that is to be done next.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Nothing, until something changes or the time has come.
    Wait,
    /// The object gets our finalizer.
    AddFinalizer,
    /// The object loses our finalizer, and is gone.
    RemoveFinalizer,
    /// The status is written before anything else is done.
    Report(Box<NodeMaintenanceStatus>),
    /// The Lease is made or changed.
    WriteLease(Box<LeaseWrite>),
    /// The Lease is let go.
    ReleaseLease(Release),
    /// The node is changed by this merge patch, to which its resource version has to be added.
    WriteNode(Value),
    /// The node's condition that it is in maintenance.
    WriteCondition(bool),
    /// Pods are evicted. The status is written if there is one.
    Evict(Vec<Target>, Option<Box<NodeMaintenanceStatus>>),
}

/// What is to be done next, what is said once it is done, and when to look again if nothing changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// To be done.
    pub next: Next,
    /// Said once it is done.
    pub events: Vec<Event>,
    /// When to look again.
    pub wake: Option<Timestamp>,
}

impl Turn {
    fn only(next: Next) -> Self {
        Self::told(next, Vec::new())
    }

    fn told(next: Next, events: Vec<Event>) -> Self {
        Self {
            next,
            events,
            wake: None,
        }
    }
}

/// What to do next about a maintenance.
pub fn next(seen: &Seen<'_>) -> Turn {
    let before = seen.object.status.clone().unwrap_or_default();
    if seen.object.metadata.deletion_timestamp.is_some() {
        return ending(seen, &before);
    }
    let failure = Failure::of(&before);
    if failure.is_some_and(Failure::is_final) {
        return failed(seen, &before);
    }
    if seen.has_rival {
        return fail(seen, &before, Failure::AnotherMaintenance, None);
    }
    if !has_finalizer(seen.object) {
        return Turn::told(Next::AddFinalizer, vec![Event::begun()]);
    }
    let Some(node) = seen.node else {
        let release = lease::release(seen.group, seen.lease).filter(|_| is_touched(&before));
        return match release {
            Some(release) => Turn::only(Next::ReleaseLease(release)),
            None => fail(seen, &before, Failure::NodeNotFound, None),
        };
    };
    let is_new = before.start_time.is_none() || before.node_uid != node.metadata.uid;
    if is_new || failure.is_some() {
        return Turn::only(Next::Report(Box::new(report::begun(seen, &before, node))));
    }
    let deadline = deadline(seen.object, &before);
    if deadline.is_some_and(|deadline| deadline <= seen.now) {
        return fail(seen, &before, Failure::TimedOut, None);
    }
    let mut turn = hold(seen, &before, node);
    let overdue = report::overdue_at(&before).filter(|overdue| *overdue > seen.now);
    turn.wake = turn.wake.into_iter().chain(deadline).chain(overdue).min();
    turn
}

/// The node is locked, closed and emptied.
fn hold(seen: &Seen<'_>, before: &NodeMaintenanceStatus, node: &Node) -> Turn {
    let held_before = report::held_lease(before);
    let (wake, lease) = match lease::judge(seen.lease, seen.now) {
        LeaseState::Held { renew } => (Some(renew), report::LeaseReport::Held),
        LeaseState::HeldByOther { holder, until } => {
            if held_before {
                return fail(seen, before, Failure::LeaseLost, Some(&holder));
            }
            let waiting = report::LeaseReport::HeldByOther(holder);
            // Leases of the older group are not watched, since they share a namespace with any others.
            let retry = seen.now.checked_add(lease::RETRY).ok();
            let retry = retry.filter(|_| seen.group == Group::KubeVirt);
            return wait_for_lease(seen, before, &waiting, retry.into_iter().chain([until]).min());
        }
        LeaseState::ToWrite { exists } => match seen.lease_failure {
            None => {
                let write = lease::write(seen.group, seen.lease, exists, node, seen.now);
                return Turn::only(Next::WriteLease(Box::new(write)));
            }
            Some(why) => {
                let failing = report::LeaseReport::Failing(why.to_owned());
                let retry = seen.now.checked_add(lease::RETRY).ok();
                if !held_before {
                    return wait_for_lease(seen, before, &failing, retry);
                }
                if report::lease_failing_since(before).is_some_and(|since| lease::is_lost(since, seen.now)) {
                    return fail(seen, before, Failure::LeaseLost, None);
                }
                (retry, failing)
            }
        },
    };
    if let Some(patch) = node::closed(node, seen.group) {
        let again = report::was_cordoned(before) && !node::is_unschedulable(node);
        let events = again.then(Event::cordoned_again).into_iter().collect();
        return Turn::told(Next::WriteNode(patch), events);
    }
    if node::in_progress(node) != Some(true) {
        return Turn::only(Next::WriteCondition(true));
    }
    let mut turn = empty(seen, before, node, &lease);
    turn.wake = turn.wake.into_iter().chain(wake).min();
    turn
}

/// Pods are evicted, and it is said how far that is.
fn empty(seen: &Seen<'_>, before: &NodeMaintenanceStatus, node: &Node, lease: &report::LeaseReport) -> Turn {
    let grace = seen.object.spec.grace_period_seconds;
    let drain = seen.pods.map(|pods| {
        pods::drain(
            pods,
            &seen.known,
            seen.attempts,
            node::is_unreachable(node),
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
    let succeeds = |status: &NodeMaintenanceStatus| {
        Phase::of(status) == Some(Phase::Succeeded) && Phase::of(before) != Phase::of(status)
    };
    let events = match &status {
        Some(status) if succeeds(status) => vec![Event::succeeded()],
        _ => Vec::new(),
    };
    let next = match (targets.is_empty(), status) {
        (true, None) => Next::Wait,
        (_, status) => Next::Evict(targets, status.map(Box::new)),
    };
    Turn {
        next,
        events,
        wake: wake.into_iter().chain(later).min(),
    }
}

/// Another one has the Lease, or it cannot be had: nothing is done to the node meanwhile.
fn wait_for_lease(
    seen: &Seen<'_>,
    before: &NodeMaintenanceStatus,
    lease: &report::LeaseReport,
    wake: Option<Timestamp>,
) -> Turn {
    let after = report::waiting_for_lease(seen, before, lease);
    let (status, later) = report::worth_writing(before, after, seen.now);
    Turn {
        next: status.map_or(Next::Wait, |status| Next::Evict(Vec::new(), Some(Box::new(status)))),
        events: Vec::new(),
        wake: wake.into_iter().chain(later).min(),
    }
}

/// A maintenance that has failed for good: the node is given back, and nothing more.
fn failed(seen: &Seen<'_>, before: &NodeMaintenanceStatus) -> Turn {
    // One without a start was begun, and given back, by another implementation.
    if before.completion_time.is_some() || before.start_time.is_none() {
        return Turn::only(Next::Wait);
    }
    give_back(seen, before).unwrap_or_else(|| {
        let mut after = before.clone();
        report::completed(&mut after, seen.now);
        Turn::only(Next::Report(Box::new(after)))
    })
}

/// A deleted maintenance: the node is given back unless that is done, and the object goes.
fn ending(seen: &Seen<'_>, before: &NodeMaintenanceStatus) -> Turn {
    if !has_finalizer(seen.object) {
        return Turn::only(Next::Wait);
    }
    let last = || match report::ended(seen.object, before, seen.now) {
        Some(status) => Turn::only(Next::Report(Box::new(status))),
        None => Turn::told(Next::RemoveFinalizer, vec![Event::removed()]),
    };
    if !is_touched(before) {
        return last();
    }
    give_back(seen, before).unwrap_or_else(last)
}

/// Whether a maintenance is over, though its object is still there: it was deleted, its node has been given back, and
/// only finalizers of others keep it.
pub fn is_over(object: &NodeMaintenance) -> bool {
    object.metadata.deletion_timestamp.is_some() && !has_finalizer(object)
}

/// What is still to be undone of a maintenance that has begun.
fn give_back(seen: &Seen<'_>, before: &NodeMaintenanceStatus) -> Option<Turn> {
    // Another Node of the same name is none of ours.
    let node = seen
        .node
        .filter(|node| before.node_uid.is_none() || node.metadata.uid == before.node_uid);
    if let Some(node) = node {
        let was = node::Before::of(before);
        if let Some(opened) = node::opened(node, seen.group, &was) {
            let uncordons = !was.cordoned && node::is_unschedulable(node);
            let events = uncordons.then(Event::uncordoned).into_iter().collect();
            return Some(Turn::told(Next::WriteNode(opened), events));
        }
        if node::in_progress(node) == Some(true) {
            return Some(Turn::only(Next::WriteCondition(false)));
        }
    }
    lease::release(seen.group, seen.lease).map(|release| Turn::only(Next::ReleaseLease(release)))
}

/// The maintenance fails, and says why, unless it has said that already.
fn fail(seen: &Seen<'_>, before: &NodeMaintenanceStatus, failure: Failure, detail: Option<&str>) -> Turn {
    if Failure::of(before) == Some(failure) {
        return Turn::only(Next::Wait);
    }
    let after = report::failed(seen, before, failure, detail);
    Turn::told(Next::Report(Box::new(after)), vec![Event::failed()])
}

/// Whether something may have been done to the node that is not undone.
pub fn is_touched(status: &NodeMaintenanceStatus) -> bool {
    let given_back = Phase::of(status) == Some(Phase::Failed) && status.completion_time.is_some();
    // Another implementation that began it wrote no start time.
    (status.start_time.is_some() || Phase::of(status).is_some_and(|phase| phase != Phase::Failed)) && !given_back
}

/// Whether its deletion waits for us.
pub fn has_finalizer(object: &NodeMaintenance) -> bool {
    let finalizers = object.metadata.finalizers.as_deref().unwrap_or_default();
    finalizers.iter().any(|finalizer| finalizer == FINALIZER)
}

/// Until when the node has to be empty, as long as it never was.
fn deadline(object: &NodeMaintenance, status: &NodeMaintenanceStatus) -> Option<Timestamp> {
    let start = status.start_time.as_ref()?;
    let limit = timeout(object).filter(|_| status.completion_time.is_none())?;
    start.0.checked_add(limit).ok()
}

/// How long emptying the node may take. The schema lets nothing through that cannot be read.
pub fn timeout(object: &NodeMaintenance) -> Option<SignedDuration> {
    object.spec.timeout.as_deref()?.parse().ok()
}

/// The name of the node.
pub fn node_name(object: &NodeMaintenance) -> &str {
    &object.spec.node_name
}

/// Kubernetes' and kubectl's texts of several errors: one as it is, more in brackets.
fn joined(errors: &[impl Display]) -> Option<String> {
    const TOLD: usize = 10;
    match errors {
        [] => None,
        [error] => Some(error.to_string()),
        errors => {
            let mut told: Vec<String> = errors.iter().take(TOLD).map(ToString::to_string).collect();
            if errors.len() > TOLD {
                told.push(format!("and {} more", errors.len() - TOLD));
            }
            Some(format!("[{}]", told.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests;
