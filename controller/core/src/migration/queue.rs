//! Decides which migrations may proceed next.
//!
//! ```text
//!            placement budget                slot: cluster, source node, target node
//!  Waiting ────────────────▶ Placing ──▶ Placed ─────────────────────────▶ Holding ──▶ finished
//!  (no target pod)       (pod on its way)  (pod's containers are ready)   (the guest moves)
//! ```
//!
//! A slot is charged only once the target pod is ready, so a pod that finds no node or cannot pull its image blocks no
//! other migration. (KubeVirt charges the slot from the pod's creation: five such pods stop all migrations of a
//! cluster.) Target pods are created slightly ahead of the slots, because a slot that is free while its pod starts is
//! wasted. They are created only slightly ahead, because each takes a guest's memory on a second node:
//!
//! - Per source node, as many target pods without a slot are allowed as migrations may run from it: one pod is ready
//!   for every slot that becomes free. More could not run soon in any case.
//! - In the cluster, as many are allowed as migrations may run at once, for the same reason.
//! - Pods with an obstacle other than that limit (no node takes the pod; the target node is busy) do not count, or a
//!   few hopeless pods would stop the rest. All pods together are limited to [`TARGET_POD_OVERCOMMIT`] times the limit,
//!   so hopeless pods do not pile up either.
//!
//! Waiting migrations are ordered by urgency, then age, then UID. A migration that is blocked by the limits of its own
//! nodes can be overtaken. But the first migration that waits for longer than [`MAX_OVERTAKING`] reserves the free
//! slots of its nodes: it needs slots on two nodes at once, and a steady supply of later migrations could otherwise
//! take one or the other for ever.
//!
//! Slots are never revoked: when a limit is lowered, running migrations continue, and none starts until enough of them
//! have finished.

mod entry;
mod reservations;
mod wait;

use std::collections::BTreeMap;

use drydock_api::kubevirt::{VirtualMachineInstanceMigration, migration::MigrationPriority};
use jiff::{SignedDuration, Timestamp};

use super::purpose::{EVACUATION, MigrationPurpose};
use crate::configuration::MigrationSettings;

pub use entry::entry;
pub use reservations::Reservations;
pub use wait::{Wait, WaitReason};

/// Time for which a migration whose target pod is ready may be overtaken by others that use the slots it needs. After
/// that, slots are reserved for the migration.
///
/// A few times the duration of a typical migration; a smaller value would leave slots idle.
pub const MAX_OVERTAKING: SignedDuration = SignedDuration::from_mins(5);

/// Limit of all target pods, as a multiple of the normal limit, when some of them are held up.
pub const TARGET_POD_OVERCOMMIT: usize = 2;

/// Annotation of a migration that evacuates a node: its position in the drain plan among migrations created at the same
/// time.
///
/// Only the controller creates such migrations.
pub const ORDER: &str = "drydock.dev/drain-order";

/// Returns a migration's position among migrations of the same urgency and age.
pub fn order(migration: &VirtualMachineInstanceMigration) -> u32 {
    let annotations = migration.metadata.annotations.as_ref();
    let text = annotations
        .filter(|all| all.contains_key(EVACUATION))
        .and_then(|all| all.get(ORDER));
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Urgency of a migration relative to other waiting ones, with KubeVirt's weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Urgency {
    /// No priority is set.
    #[default]
    None = 0,
    /// Background maintenance of the cluster.
    SystemMaintenance = 20,
    /// A user waits for the migration.
    UserTriggered = 50,
    /// A node is being drained.
    SystemCritical = 100,
}

impl Urgency {
    /// Returns the urgency from the migration's priority, or from its purpose if no priority is set.
    pub fn of(migration: &VirtualMachineInstanceMigration) -> Self {
        match (migration.spec.priority, MigrationPurpose::of(migration)) {
            (Some(MigrationPriority::SystemCritical), _) | (None, MigrationPurpose::Evacuation) => Self::SystemCritical,
            (Some(MigrationPriority::UserTriggered), _) | (None, MigrationPurpose::WorkloadUpdate) => {
                Self::UserTriggered
            }
            (Some(MigrationPriority::SystemMaintenance), _) => Self::SystemMaintenance,
            (None, MigrationPurpose::UserRequest) => Self::None,
        }
    }
}

/// An unfinished migration in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedMigration {
    /// UID of the object; unique among the entries.
    pub uid: String,
    /// Namespace and name, for the caller that carries out a grant.
    pub name: String,
    /// Urgency of the migration.
    pub urgency: Urgency,
    /// Creation time of the object, in whole seconds.
    pub created: Timestamp,
    /// Position among migrations created in the same second.
    pub order: u32,
    /// Node on which the guest runs.
    pub source: String,
    /// Stage of the migration in the queue.
    pub stage: QueueStage,
}

impl QueuedMigration {
    /// Returns the sort key; lower entries go first.
    fn rank(&self) -> impl Ord + '_ {
        (
            std::cmp::Reverse(self.urgency),
            self.created,
            self.order,
            self.uid.as_str(),
        )
    }
}

/// Stage of a migration in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueStage {
    /// The migration has no target pod.
    Waiting,
    /// The migration has no target pod: the API server refuses the pod, and the next attempt is not due yet. Meanwhile,
    /// the migration uses no placement budget.
    Refused,
    /// The migration's target pod is being scheduled or started.
    Placing {
        /// Whether an obstacle holds the pod up: no node takes it, or its image or a volume is unavailable.
        held_up: bool,
    },
    /// The containers of the migration's target pod are ready, and the migration has no slot.
    Placed {
        /// Node of the target pod.
        target: String,
        /// Since when the migration waits for a slot.
        ready: Timestamp,
    },
    /// The migration has a slot.
    Holding {
        /// Node of the target pod.
        target: String,
    },
}

/// Granted and waiting migrations. Each list is in queue order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// UIDs of migrations that may create their target pod.
    pub place: Vec<String>,
    /// UIDs of migrations that get a slot.
    pub slots: Vec<String>,
    /// UIDs of migrations that wait for a target pod or a slot, and the reason. A migration that may create its pod, or
    /// whose pod is starting, also waits if no slot is free for it now.
    pub waiting: Vec<(String, Wait)>,
}

/// Returns which migrations may proceed next. The result is the same for the same entries in any order, and for the
/// same limits.
///
/// Counts only `entries`. Callers that act on the result must use [`Reservations::grant`].
pub fn grants(limits: &MigrationSettings, entries: &[QueuedMigration], now: Timestamp) -> Grants {
    let mut order: Vec<&QueuedMigration> = entries.iter().collect();
    order.sort_by(|one, other| one.rank().cmp(&other.rank()));
    let mut slots = Slots::taken(limits, entries);
    let mut granted = Vec::new();
    let mut refused = BTreeMap::new();
    let mut kept = false;
    for entry in &order {
        let QueueStage::Placed { target, ready } = &entry.stage else {
            continue;
        };
        let Some(reason) = slots.refuse(&entry.source, target) else {
            slots.take(&entry.source, target);
            granted.push(entry.uid.clone());
            continue;
        };
        refused.insert(entry.uid.as_str(), reason);
        let own = matches!(reason, WaitReason::SourceNodeLimit(_) | WaitReason::TargetNodeLimit(_));
        if own && !kept && now.duration_since(*ready) > MAX_OVERTAKING {
            slots.keep(&entry.source, target);
            kept = true;
        }
    }
    let mut places = PlacementBudget::taken(limits, &order, &refused);
    let mut place = Vec::new();
    let mut waiting = Vec::new();
    for entry in order {
        let reason = match &entry.stage {
            QueueStage::Waiting => places.refuse(&entry.source).or_else(|| {
                places.add(&entry.source, Counted::Fully);
                place.push(entry.uid.clone());
                slots.refuse_any_target(&entry.source)
            }),
            // The migration's condition has the API server's reason.
            QueueStage::Refused => None,
            // Kubernetes reports the obstacle that holds the pod up.
            QueueStage::Placing { held_up } => slots.refuse_any_target(&entry.source).filter(|_| !held_up),
            QueueStage::Placed { .. } | QueueStage::Holding { .. } => refused.get(entry.uid.as_str()).copied(),
        };
        if let Some(reason) = reason {
            let wait = Wait::new(reason, waiting.len() + 1);
            waiting.push((entry.uid.clone(), wait));
        }
    }
    Grants {
        place,
        slots: granted,
        waiting,
    }
}

/// Slots in use.
struct Slots<'a> {
    limits: &'a MigrationSettings,
    cluster: usize,
    sources: BTreeMap<&'a str, usize>,
    targets: BTreeMap<&'a str, usize>,
}

impl<'a> Slots<'a> {
    fn taken(limits: &'a MigrationSettings, entries: &'a [QueuedMigration]) -> Self {
        let mut slots = Self {
            limits,
            cluster: 0,
            sources: BTreeMap::new(),
            targets: BTreeMap::new(),
        };
        for entry in entries {
            if let QueueStage::Holding { target } = &entry.stage {
                slots.take(&entry.source, target);
            }
        }
        slots
    }

    fn take(&mut self, source: &'a str, target: &'a str) {
        self.cluster += 1;
        self.keep(source, target);
    }

    /// Reserves the free slots of these nodes. The cluster limit needs no reservation: when a node's slot becomes free,
    /// a cluster slot does too, and the first in the queue takes both.
    fn keep(&mut self, source: &'a str, target: &'a str) {
        *self.sources.entry(source).or_default() += 1;
        *self.targets.entry(target).or_default() += 1;
    }

    /// Returns why no slot is free for the source, regardless of the target; `None` if one is.
    fn refuse_any_target(&self, source: &str) -> Option<WaitReason> {
        if self.sources.get(source).copied().unwrap_or(0) >= count(self.limits.outbound_per_node) {
            Some(WaitReason::SourceNodeLimit(self.limits.outbound_per_node))
        } else if self.cluster >= count(self.limits.per_cluster) {
            Some(WaitReason::ClusterLimit(self.limits.per_cluster))
        } else {
            None
        }
    }

    /// Returns why there is no slot. Node limits take precedence, because their message changes less often.
    fn refuse(&self, source: &str, target: &str) -> Option<WaitReason> {
        let anyway = self.refuse_any_target(source);
        let of_target = self.targets.get(target).copied().unwrap_or(0);
        if !matches!(anyway, Some(WaitReason::SourceNodeLimit(_))) && of_target >= count(self.limits.inbound_per_node) {
            return Some(WaitReason::TargetNodeLimit(self.limits.inbound_per_node));
        }
        anyway
    }
}

/// The standing of a target pod in the placement budget.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// The pod's migration may get a slot soon, or has one.
    Fully,
    /// An obstacle other than the limit holds the pod up.
    HeldUp,
}

/// Number of target pods that count against a limit.
#[derive(Clone, Copy, Default)]
struct Pods {
    fully: usize,
    all: usize,
}

impl Pods {
    fn add(&mut self, counted: Counted) {
        self.all += 1;
        self.fully += usize::from(counted == Counted::Fully);
    }

    fn full(self, limit: usize) -> bool {
        self.fully >= limit || self.all >= limit.saturating_mul(TARGET_POD_OVERCOMMIT)
    }
}

/// Placement budget in use.
struct PlacementBudget<'a> {
    limits: &'a MigrationSettings,
    /// Migrations with a slot.
    holding: usize,
    /// Migrations with a target pod and no slot.
    cluster: Pods,
    /// Migrations with a target pod, with or without a slot.
    sources: BTreeMap<&'a str, Pods>,
}

impl<'a> PlacementBudget<'a> {
    /// Returns the budget in use once all ready migrations that are not in `refused` have their slots.
    fn taken(
        limits: &'a MigrationSettings,
        order: &[&'a QueuedMigration],
        refused: &BTreeMap<&str, WaitReason>,
    ) -> Self {
        let mut places = Self {
            limits,
            holding: 0,
            cluster: Pods::default(),
            sources: BTreeMap::new(),
        };
        for entry in order {
            let source = entry.source.as_str();
            match (&entry.stage, refused.get(entry.uid.as_str())) {
                (QueueStage::Waiting | QueueStage::Refused, _) => {}
                (QueueStage::Placing { held_up: true }, _) => places.add(source, Counted::HeldUp),
                (QueueStage::Placing { held_up: false }, _) => places.add(source, Counted::Fully),
                (QueueStage::Placed { .. }, Some(WaitReason::TargetNodeLimit(_))) => {
                    places.add(source, Counted::HeldUp);
                }
                (QueueStage::Placed { .. }, Some(WaitReason::SourceNodeLimit(_))) => {
                    places.cluster.add(Counted::HeldUp);
                    places.sources.entry(source).or_default().add(Counted::Fully);
                }
                (QueueStage::Placed { .. }, Some(_)) => places.add(source, Counted::Fully),
                (QueueStage::Placed { .. }, None) | (QueueStage::Holding { .. }, _) => {
                    places.holding += 1;
                    places.sources.entry(source).or_default().add(Counted::Fully);
                }
            }
        }
        places
    }

    fn add(&mut self, source: &'a str, counted: Counted) {
        self.cluster.add(counted);
        self.sources.entry(source).or_default().add(counted);
    }

    /// Returns why no target pod may be created; `None` if one may be created.
    fn refuse(&self, source: &str) -> Option<WaitReason> {
        let of_source = self.sources.get(source).copied().unwrap_or_default();
        let per_cluster = count(self.limits.per_cluster);
        if of_source.full(count(self.limits.outbound_per_node).saturating_mul(2)) {
            Some(WaitReason::SourceNodeLimit(self.limits.outbound_per_node))
        } else if !self.cluster.full(per_cluster) {
            None
        } else if self.holding >= per_cluster {
            Some(WaitReason::ClusterLimit(self.limits.per_cluster))
        } else {
            Some(WaitReason::PlacementLimit(self.limits.per_cluster))
        }
    }
}

fn count(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
