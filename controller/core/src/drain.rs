//! How nodes are emptied of virtual machines: one plan for all of them.
//!
//! ```text
//!  taint, NodeMaintenance ─▶ mark all that should move ─┐
//!  eviction ─▶ webhook marks one                        ▼
//!                                            marked guests ─▶ [`guest::state`] ─▶ Blocked  (and why)
//!                  asker gone, guest gone ─▶ mark taken away                   ├▶ Waiting  (for what)
//!                                                                              ├▶ Moving
//!                                                                              └▶ may go ─▶ [`order`] ─▶ migration
//! ```
//!
//! A plain cordon moves nothing: it only says that nothing new is to come. But what is evicted on a
//! cordoned node is taken for a part of one drain, and is called off when the node is uncordoned.

pub mod estimate;
pub mod guest;
pub mod node;
mod order;
pub mod preview;
mod target;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use drydock_api::{
    hyperconverged::EvictionStrategy,
    hypervisor::{DrainStatus, RemainingGuest, RemainingState},
    kubevirt::{
        VirtualMachineInstance, VirtualMachineInstanceMigration,
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
    configuration::Migrations,
    eviction::mark,
    migration::deadlines::Attempts,
    placement::{Outlook, keeps_off},
};
use estimate::Rate;
use guest::{Situation, State};

pub use target::{Competing, competing};

/// The taint that a NodeMaintenance sets (that of its operator).
pub const MAINTENANCE_TAINT: &str = "medik8s.io/drain";
/// An eviction alone belongs to a cordon of its node that is seen within this time. `kubectl drain`
/// cordons before it evicts, but the watches that show both are not in step.
pub const CORDON_SEEN_WITHIN: Duration = Duration::from_secs(10);
/// At most this many guests are listed by name in `status.drain.remaining`.
const MAX_GUESTS_LISTED: usize = 100;

/// What a Node says about being emptied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeMarks {
    /// It is cordoned.
    pub cordoned: bool,
    /// It has the drain taint.
    pub tainted: bool,
    /// It is in maintenance.
    pub in_maintenance: bool,
}

impl NodeMarks {
    /// What a Node says; `key` is the drain taint's, whose effect has to be NoSchedule.
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

    /// The node itself asks for all guests to go.
    fn asks(self) -> Option<DrainRequest> {
        if self.in_maintenance {
            Some(DrainRequest::Maintenance)
        } else {
            self.tainted.then_some(DrainRequest::Taint)
        }
    }

    /// Who asked for a guest to go still wants that.
    fn holds(self, by: DrainRequest) -> bool {
        match by {
            // What is not known may still want it.
            DrainRequest::Eviction | DrainRequest::Unknown => true,
            DrainRequest::Cordon => self.cordoned || self.asks().is_some(),
            DrainRequest::Taint | DrainRequest::Maintenance => self.asks().is_some(),
        }
    }
}

/// Whether a guest must not go to a node because it is being emptied, or is about to be, and nothing else
/// keeps a pod with these tolerations off it.
pub fn must_be_left(node: &Node, key: &str, maintenance_requested: bool, tolerations: &[Toleration]) -> bool {
    (maintenance_requested || NodeMarks::of(node, key) != NodeMarks::default()) && !keeps_off(node, tolerations)
}

/// What is known when a plan is made.
#[derive(Clone, Copy, Debug)]
pub struct Cluster<'a> {
    /// The time.
    pub now: Timestamp,
    /// The nodes that are being emptied, or that marked guests are on.
    pub nodes: &'a [DrainingNode<'a>],
    /// The limits of migrations.
    pub limits: &'a Migrations,
    /// How failed migrations are followed by others.
    pub attempts: Attempts,
    /// How fast guests have moved so far.
    pub rate: Option<Rate>,
}

/// A node with the guests that are on it.
#[derive(Clone, Debug)]
pub struct DrainingNode<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it says.
    pub marks: NodeMarks,
    /// The guests that are on it.
    pub guests: Vec<Guest<'a>>,
    /// Guests are about to arrive on it.
    pub arriving: usize,
    /// Other pods on it that a drain would evict; `None` if nobody knows.
    pub evictable: Option<usize>,
    /// What was reported last.
    pub before: Option<&'a DrainStatus>,
}

/// A guest on a node.
#[derive(Clone, Debug)]
pub struct Guest<'a> {
    /// The instance.
    pub instance: &'a VirtualMachineInstance,
    /// What an eviction does.
    pub strategy: EvictionStrategy,
    /// When its pod was made.
    pub made: Option<Timestamp>,
    /// Its migrations.
    pub migrations: Vec<Arc<VirtualMachineInstanceMigration>>,
    /// What was last done about it was refused.
    pub refused: Option<Refused>,
    /// Name of somebody else's PodDisruptionBudget that allows no eviction of its pod now.
    pub held_by: Option<String>,
    /// Whether there is room for it elsewhere, beside the others that leave.
    pub outlook: Outlook,
    /// Digest of what decides about its next migration, if the last one has failed.
    pub circumstances: Option<String>,
}

impl DrainingNode<'_> {
    /// Whether a guest of this node is to leave it.
    pub fn leaves(&self, guest: &Guest<'_>) -> bool {
        self.marks.asks().is_some() || mark::of(guest.instance) == Some(self.name)
    }
}

impl Guest<'_> {
    /// Namespace and name of the instance.
    fn key(&self) -> (&str, &str) {
        let metadata = &self.instance.metadata;
        (
            metadata.namespace.as_deref().unwrap_or_default(),
            metadata.name.as_deref().unwrap_or_default(),
        )
    }
}

/// That the API server has refused a step: by a quota, a webhook or a policy of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What it says.
    pub message: String,
    /// When a step about that guest is tried again.
    pub again_at: Timestamp,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Each of these once.
    pub steps: Vec<Step>,
    /// What is reported of each node, in the order of the nodes.
    pub reports: Vec<Report>,
    /// The guests, by namespace and name, about which something is to be done that has been refused.
    pub refused: BTreeSet<(String, String)>,
    /// When the plan is to be made anew though nothing has changed.
    pub wake: Option<Timestamp>,
}

/// What is reported of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The node.
    pub node: String,
    /// How it is being emptied; `None`: it is not.
    pub drain: Option<DrainStatus>,
    /// It is being emptied, and something is left.
    pub in_progress: bool,
    /// Whether it is safe to switch it off.
    pub drained: node::Drained,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// An instance is marked to leave its node, or its mark changes.
    Mark {
        /// Namespace of the instance.
        namespace: String,
        /// Its name.
        name: String,
        /// The node.
        node: String,
        /// What the mark says.
        evacuation: Evacuation,
    },
    /// The mark of an instance is taken away.
    Unmark {
        /// Namespace of the instance.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A migration is made.
    Migrate {
        /// Namespace of the instance.
        namespace: String,
        /// Its name.
        name: String,
        /// The node that it leaves.
        node: String,
        /// How urgent it is.
        priority: MigrationPriority,
        /// Its place among those that are as urgent.
        order: usize,
    },
    /// A migration that has not begun is called off.
    Cancel {
        /// Namespace of the instance and of the migration.
        namespace: String,
        /// Name of the instance.
        instance: String,
        /// Name of the migration.
        name: String,
        /// Its UID.
        uid: String,
    },
}

impl Step {
    /// Namespace and name of the instance that it is about.
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

/// The plan for all nodes that are being emptied. Carried out in full and made again, it does nothing
/// until something changes.
pub fn plan(cluster: &Cluster<'_>) -> Plan {
    let mut plan = Plan::default();
    let mut candidates = Vec::new();
    let mut reports = Vec::new();
    for node in cluster.nodes {
        let mut told = Vec::new();
        let mut askers: Vec<DrainRequest> = node.marks.asks().into_iter().collect();
        for guest in &node.guests {
            let mut situation = guest::situation(guest, node.marks, cluster.attempts, cluster.now);
            let may_go = situation.state == Some(State::MayGo);
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
            askers.extend(situation.asker);
            told.push((guest, situation));
        }
        askers.sort_unstable();
        askers.dedup();
        reports.push((node, askers, told));
    }
    let going = order::next(candidates, cluster);
    plan.steps
        .extend(going.iter().enumerate().map(|(order, candidate)| candidate.step(order)));
    plan.reports = reports
        .into_iter()
        .map(|(node, askers, told)| report(node, askers, &told, cluster))
        .collect();
    // An estimate that has passed is made anew.
    let drains = plan.reports.iter().filter_map(|report| report.drain.as_ref());
    let ends = drains.filter_map(|drain| drain.estimated_end.as_ref()).map(|end| end.0);
    plan.wake = earlier(plan.wake, ends.min());
    plan
}

fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}

/// What is reported of a node.
fn report(
    node: &DrainingNode<'_>,
    askers: Vec<DrainRequest>,
    told: &[(&Guest<'_>, Situation)],
    cluster: &Cluster<'_>,
) -> Report {
    let drained = node::drained(node);
    let asked = !askers.is_empty();
    let left: Vec<(&Guest<'_>, RemainingGuest)> = told
        .iter()
        .filter_map(|(guest, situation)| Some((*guest, situation.remaining(guest)?)))
        .collect();
    // What was moved off a cordoned node stays to be read until it is uncordoned.
    let before = node
        .before
        .filter(|before| asked || (node.marks.cordoned && before.total > 0));
    // A cordon alone empties nothing, but what is on the node has to leave before it can be switched off.
    let listed = node.marks.cordoned && !left.is_empty();
    let drain = (asked || before.is_some() || listed).then(|| {
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
        // One that has ended and begins again is another.
        let again = over_before.is_some() && !is_over;
        // Nor is one that is requested the cordon before it.
        let begins = asked && before.is_some_and(|before| before.requested_by.is_empty());
        let since = before.filter(|_| !again && !begins);
        DrainStatus {
            requested_by: if asked {
                askers
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
    Report {
        node: node.name.into(),
        in_progress: asked && !left.is_empty(),
        drain,
        drained,
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
