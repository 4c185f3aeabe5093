//! Drains virtual machines from nodes: one plan for all nodes.
//!
//! ```text
//!  taint, NodeMaintenance ─▶ mark all that must move ─┐
//!  eviction ─▶ webhook marks one                      ▼
//!                                            marked guests ─▶ [`guest::state`] ─▶ Blocked  (and why)
//!           requester gone, guest gone ─▶ mark removed                          ├▶ Waiting  (for what)
//!                                                                               ├▶ Moving
//!                                                                               └▶ may go ─▶ [`order`] ─▶ migration
//! ```
//!
//! A plain cordon moves nothing: it only keeps new pods away. But evictions on a cordoned node count as parts of one
//! drain, which is canceled when the node is uncordoned.

mod drain_target;
pub mod estimate;
pub mod guest_steps;
pub mod node_conditions;
mod order;
pub mod preview;
pub mod state;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use drydock_api::{
    hyperconverged::EvictionStrategy,
    hypervisor::{DrainStatus, RemainingGuest, RemainingState},
    kubevirt::{
        Phase, VirtualMachineInstance, VirtualMachineInstanceMigration,
        migration::MigrationPriority,
        status::{DrainRequest, Evacuation},
    },
};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, Toleration},
    apimachinery::pkg::apis::meta::v1::Time,
};

use crate::{
    conditions::whole_seconds,
    configuration::MigrationSettings,
    eviction::evacuation_request,
    migration::deadlines::Attempts,
    placement::{DepartureOutlook, keeps_off},
};
use estimate::DrainRate;
use guest_steps::Situation;
use state::EvacuationState;

pub use drain_target::{Competing, competing};
pub use order::chains;

/// Taint of a node: the node is in maintenance, requested in the group `nodemaintenance.medik8s.io`; without value,
/// effect NoSchedule.
pub const MAINTENANCE_TAINT: &str = "medik8s.io/drain";
/// An eviction without other request belongs to a cordon of its node that is observed within this time. `kubectl drain`
/// cordons before it evicts, but the watches for both are not synchronized.
pub const CORDON_SEEN_WITHIN: Duration = Duration::from_secs(10);
/// A drain that ends within this time is reported by the Hypervisor alone, because every kubelet, scheduler and
/// controller watches Nodes. Times of drains are in whole seconds, so the effective limit is between three and four
/// seconds.
const SHORT: Duration = Duration::from_secs(4);
/// Maximum number of guests that are listed by name in `status.drain.remaining`.
const MAX_GUESTS_LISTED: usize = 100;

/// The drain-related state of a Node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeMarks {
    /// Whether the node is cordoned.
    pub cordoned: bool,
    /// Whether the node has the drain taint.
    pub tainted: bool,
    /// Whether the node is in maintenance.
    pub in_maintenance: bool,
}

impl NodeMarks {
    /// Reads the state of a Node. `key` is the key of the drain taint, whose effect must be NoSchedule.
    pub fn of(node: &Node, key: &str) -> Self {
        let spec = node.spec.as_ref();
        let has = |key: &str| {
            let taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
            taints
                .iter()
                .any(|taint| taint.key == key && taint.effect == "NoSchedule")
        };
        Self {
            cordoned: spec.and_then(|spec| spec.unschedulable) == Some(true),
            tainted: has(key),
            in_maintenance: has(MAINTENANCE_TAINT),
        }
    }

    /// Returns the node's own request for all guests to leave, if there is one.
    fn own_request(self) -> Option<DrainRequest> {
        if self.in_maintenance {
            Some(DrainRequest::Maintenance)
        } else {
            self.tainted.then_some(DrainRequest::Taint)
        }
    }

    /// Returns whether the given request for a guest to leave is still in force.
    fn holds(self, by: DrainRequest) -> bool {
        match by {
            // An unknown requester may still want the guest to leave.
            DrainRequest::Eviction | DrainRequest::Unknown => true,
            DrainRequest::Cordon => self.cordoned || self.own_request().is_some(),
            DrainRequest::Taint | DrainRequest::Maintenance => self.own_request().is_some(),
        }
    }
}

/// Returns whether a guest must not go to a node only because the node is being drained or is about to be: the
/// scheduler itself would not keep a pod with these tolerations off the node.
pub fn must_be_left(node: &Node, key: &str, maintenance_requested: bool, tolerations: &[Toleration]) -> bool {
    (maintenance_requested || NodeMarks::of(node, key) != NodeMarks::default()) && !keeps_off(node, tolerations)
}

/// Returns whether a change of an instance matters to drains: its phase, node, evacuation request, deletion, generation
/// or the status of a condition has changed.
pub fn concerns(old: Option<&VirtualMachineInstance>, new: Option<&VirtualMachineInstance>) -> bool {
    // Nothing is cloned, because this function is called for each change of each instance.
    fn seen(instance: &VirtualMachineInstance) -> impl PartialEq {
        let status = instance.status.as_ref();
        let conditions = status.into_iter().flat_map(|status| &status.conditions);
        (
            status.and_then(|status| status.phase),
            status.and_then(|status| status.node_name.as_ref()),
            status.and_then(|status| status.evacuation_node_name.as_ref()),
            status.and_then(|status| status.evacuation.as_ref()),
            instance.metadata.deletion_timestamp.is_some(),
            instance.metadata.generation,
            conditions
                .map(|condition| (&condition.type_, &condition.status))
                .collect::<Vec<_>>(),
        )
    }
    old.map(seen) != new.map(seen)
}

/// Returns whether an instance is among the guests of a node for a drain. A guest that has ended is no longer on the
/// node, but its evacuation request has to be removed.
pub fn is_of_drain(instance: &VirtualMachineInstance, node: &str) -> bool {
    let is_over = instance.phase().is_some_and(Phase::is_final);
    instance.node_name() == Some(node) && (!is_over || evacuation_request::of(instance).is_some())
}

/// Returns whether the newest state of an instance has the node and the evacuation request that were observed.
pub fn is_same_request(observed: &VirtualMachineInstance, newest: &VirtualMachineInstance) -> bool {
    fn request(instance: &VirtualMachineInstance) -> impl PartialEq + '_ {
        let status = instance.status.as_ref();
        status.map(|status| (&status.node_name, &status.evacuation_node_name, &status.evacuation))
    }
    observed.metadata.uid == newest.metadata.uid && request(observed) == request(newest)
}

/// Inputs of a plan.
#[derive(Clone, Copy, Debug)]
pub struct DrainInput<'a> {
    /// The current time.
    pub now: Timestamp,
    /// Nodes that are being drained, or that have marked guests.
    pub nodes: &'a [DrainingNode<'a>],
    /// The limits of migrations.
    pub limits: &'a MigrationSettings,
    /// The retry policy for failed migrations.
    pub attempts: Attempts,
    /// The measured speed of migrations so far.
    pub rate: Option<DrainRate>,
}

/// A node with its guests.
#[derive(Clone, Debug)]
pub struct DrainingNode<'a> {
    /// Name of the node.
    pub name: &'a str,
    /// Drain-related state of the node.
    pub marks: NodeMarks,
    /// The guests on the node.
    pub guests: Vec<DrainedGuest<'a>>,
    /// Number of guests that are about to arrive on the node.
    pub arriving: usize,
    /// Number of other pods on the node that a drain would evict; `None` if unknown.
    pub evictable: Option<usize>,
    /// The last reported status.
    pub before: Option<&'a DrainStatus>,
}

/// A guest on a node.
#[derive(Clone, Debug)]
pub struct DrainedGuest<'a> {
    /// The VMI.
    pub instance: &'a VirtualMachineInstance,
    /// The eviction strategy in force.
    pub strategy: EvictionStrategy,
    /// Creation time of the guest's pod.
    pub made: Option<Timestamp>,
    /// Migrations of the guest.
    pub migrations: Vec<Arc<VirtualMachineInstanceMigration>>,
    /// The API server's refusal of the last step for the guest.
    pub refused: Option<DrainRefusal>,
    /// Name of a foreign PodDisruptionBudget that allows no eviction of the guest's pod now.
    pub held_by: Option<String>,
    /// Whether another node has room for the guest, in addition to the other guests that leave.
    pub outlook: DepartureOutlook,
    /// Digest of the circumstances that affect the guest's next migration, if the last one has failed.
    pub circumstances: Option<String>,
}

impl DrainingNode<'_> {
    /// Returns whether a guest of this node is to leave it.
    pub fn leaves(&self, guest: &DrainedGuest<'_>) -> bool {
        self.marks.own_request().is_some() || evacuation_request::of(guest.instance) == Some(self.name)
    }
}

impl DrainedGuest<'_> {
    /// Returns namespace and name of the VMI.
    fn key(&self) -> (&str, &str) {
        let metadata = &self.instance.metadata;
        (
            metadata.namespace.as_deref().unwrap_or_default(),
            metadata.name.as_deref().unwrap_or_default(),
        )
    }
}

/// The API server's refusal of a step, because of a quota, a webhook or a policy of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainRefusal {
    /// The API server's message.
    pub message: String,
    /// When a step for the guest is retried.
    pub again_at: Timestamp,
}

/// Steps to take and reports to write.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeDrainPlan {
    /// Steps, each to be executed once.
    pub steps: Vec<DrainStep>,
    /// One report per node, in the order of the nodes.
    pub reports: Vec<DrainReport>,
    /// Guests, by namespace and name, with a pending step that has been refused.
    pub refused: BTreeSet<(String, String)>,
    /// When to plan again without a change.
    pub wake: Option<Timestamp>,
}

impl NodeDrainPlan {
    /// Returns the next time after `now` at which a Node is to report that it is being drained.
    pub fn reported_at(&self, now: Timestamp) -> Option<Timestamp> {
        let reported = self.reports.iter().filter_map(DrainReport::node_reports_from);
        reported.filter(|at| *at > now).min()
    }
}

/// The report about a node.
#[derive(Clone, Debug, PartialEq)]
pub struct DrainReport {
    /// Name of the node.
    pub node: String,
    /// Status of the drain; `None` if the node is not being drained.
    pub drain: Option<DrainStatus>,
    /// Whether the node is being drained and still has guests.
    pub in_progress: bool,
    /// Whether it is safe to power the node off.
    pub drained: node_conditions::Drained,
}

impl DrainReport {
    /// Returns the time from which on the Node reports that it is being drained; `None` if no drain is in progress.
    pub fn node_reports_from(&self) -> Option<Timestamp> {
        let drain = self.drain.as_ref().filter(|_| self.in_progress)?;
        drain.started_at.0.checked_add(SHORT).ok()
    }
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum DrainStep {
    /// Marks a VMI to leave its node, or updates its evacuation request.
    Mark {
        /// Namespace of the VMI.
        namespace: String,
        /// Name of the VMI.
        name: String,
        /// Name of the node that the VMI is to leave.
        node: String,
        /// Contents of the evacuation request.
        evacuation: Evacuation,
    },
    /// Removes the evacuation request of a VMI.
    Unmark {
        /// Namespace of the VMI.
        namespace: String,
        /// Name of the VMI.
        name: String,
    },
    /// Creates a migration.
    Migrate {
        /// Namespace of the VMI.
        namespace: String,
        /// Name of the VMI.
        name: String,
        /// The node that the guest leaves.
        node: String,
        /// Priority of the migration.
        priority: MigrationPriority,
        /// Position among migrations of the same priority.
        order: usize,
    },
    /// Cancels a migration that has not begun.
    Cancel {
        /// Namespace of the VMI and of the migration.
        namespace: String,
        /// Name of the VMI.
        instance: String,
        /// Name of the migration.
        name: String,
        /// UID of the migration.
        uid: String,
    },
}

impl DrainStep {
    /// Returns whether the step only reports a result, and does not move a guest.
    pub fn is_report(&self) -> bool {
        matches!(self, Self::Unmark { .. })
    }

    /// Returns namespace and name of the VMI that the step is about.
    pub fn instance(&self) -> (&str, &str) {
        match self {
            Self::Cancel {
                namespace, instance, ..
            } => (namespace, instance),
            Self::Mark { namespace, name, .. }
            | Self::Unmark { namespace, name }
            | Self::Migrate { namespace, name, .. } => (namespace, name),
        }
    }
}

/// Returns the plan for all nodes that are being drained. Once a plan is carried out completely, planning again returns
/// no steps until something changes.
pub fn plan(cluster: &DrainInput<'_>) -> NodeDrainPlan {
    let mut plan = NodeDrainPlan::default();
    let mut candidates = Vec::new();
    let mut reports = Vec::new();
    for node in cluster.nodes {
        let mut situations = Vec::new();
        let mut requesters: Vec<DrainRequest> = node.marks.own_request().into_iter().collect();
        for guest in &node.guests {
            let mut situation = guest_steps::situation(guest, node.marks, cluster.attempts, cluster.now);
            let may_go = situation.state == Some(EvacuationState::MayGo);
            let waits_until = situation.held_up(guest, cluster.now);
            situation.account_for(guest, node.marks, cluster.now);
            if guest.refused.is_some() && (may_go || !situation.steps.is_empty()) {
                let (namespace, name) = guest.key();
                plan.refused.insert((namespace.into(), name.into()));
            }
            if waits_until.is_none() {
                plan.steps.extend(situation.steps.iter().cloned());
                candidates.extend(may_go.then(|| order::Candidate::of(node, guest)));
            }
            plan.wake = earlier(plan.wake, earlier(situation.wake, waits_until));
            requesters.extend(situation.requester);
            situations.push((guest, situation));
        }
        requesters.sort_unstable();
        requesters.dedup();
        reports.push((node, requesters, situations));
    }
    let going = order::next(candidates, cluster);
    plan.steps
        .extend(going.iter().enumerate().map(|(order, candidate)| candidate.step(order)));
    plan.reports = reports
        .into_iter()
        .map(|(node, requesters, situations)| report(node, requesters, &situations, cluster))
        .collect();
    // Plans again when an estimate has passed.
    let drains = plan.reports.iter().filter_map(|report| report.drain.as_ref());
    let ends = drains.filter_map(|drain| drain.estimated_end.as_ref()).map(|end| end.0);
    plan.wake = earlier(plan.wake, ends.min());
    plan
}

fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}

/// Returns the report about a node.
fn report(
    node: &DrainingNode<'_>,
    requesters: Vec<DrainRequest>,
    situations: &[(&DrainedGuest<'_>, Situation)],
    cluster: &DrainInput<'_>,
) -> DrainReport {
    let drained = node_conditions::drained(node);
    let requested = !requesters.is_empty();
    let left: Vec<(&DrainedGuest<'_>, RemainingGuest)> = situations
        .iter()
        .filter_map(|(guest, situation)| Some((*guest, situation.remaining(guest)?)))
        .collect();
    // The status of a past drain is kept on a cordoned node until it is uncordoned.
    let before = node
        .before
        .filter(|before| requested || (node.marks.cordoned && before.total > 0));
    // A cordon alone moves nothing, but the guests on the node have to leave before it can be powered off.
    let listed = node.marks.cordoned && !left.is_empty();
    let drain = (requested || before.is_some() || listed).then(|| {
        let count = |state| number(left.iter().filter(|(_, guest)| guest.state == state).count());
        let is_over = left.is_empty();
        let now = Time(whole_seconds(cluster.now).0);
        let estimated = estimate::end(&left, cluster).filter(|_| !is_over);
        let mut remaining: Vec<RemainingGuest> = left.iter().map(|(_, guest)| guest.clone()).collect();
        remaining.sort_by(|one, other| {
            (one.state, &one.namespace, &one.name).cmp(&(other.state, &other.namespace, &other.name))
        });
        remaining.truncate(MAX_GUESTS_LISTED);
        let over_before = before.and_then(|before| before.finished_at.clone());
        // A drain that restarts after completion is a new drain.
        let again = over_before.is_some() && !is_over;
        // A requested drain is also distinct from the cordon before it.
        let begins = requested && before.is_some_and(|before| before.requested_by.is_empty());
        let since = before.filter(|_| !again && !begins);
        DrainStatus {
            requested_by: if requested {
                requesters
            } else {
                before.map(|before| before.requested_by.clone()).unwrap_or_default()
            },
            started_at: since.map_or_else(|| now.clone(), |before| before.started_at.clone()),
            finished_at: is_over.then(|| over_before.unwrap_or_else(|| now.clone())),
            estimated_end: estimate::steady(
                since.and_then(|before| before.estimated_end.clone()),
                estimated,
                cluster.now,
            ),
            total: since.map_or(0, |before| before.total).max(number(left.len())),
            left: number(left.len()),
            moving: count(RemainingState::Moving),
            waiting: count(RemainingState::Waiting),
            blocked: count(RemainingState::Blocked),
            shutting_down: count(RemainingState::ShuttingDown),
            remaining,
        }
    });
    DrainReport {
        node: node.name.into(),
        in_progress: requested && !left.is_empty(),
        drain,
        drained,
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
