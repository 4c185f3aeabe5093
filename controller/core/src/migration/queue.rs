//! Which migrations may go next.
//!
//! ```text
//!            placement budget                slot: cluster, source node, target node
//!  Waiting ────────────────▶ Placing ──▶ Placed ─────────────────────────▶ Holding ──▶ finished
//!  (no target pod)       (pod on its way)  (pod's containers are ready)   (the guest moves)
//! ```
//!
//! A slot is charged only once the target pod is ready, so that a pod that finds no node or cannot
//! pull its image holds up nobody. (KubeVirt charges it from the pod's creation: five such pods
//! stop all migrations of a cluster.) Target pods are made a little ahead of the slots, because a
//! slot that is free while its pod starts is a slot lost, and only a little, because each takes a
//! guest's memory on a node a second time:
//!
//! - Of each source node as many may be placed as may run from it, beside those that run: one is
//!   ready for every slot that frees. More than that cannot run soon, whatever else frees.
//! - In the cluster as many as may run at once, for the same reason.
//! - What is held up by something other than that limit (no node takes the pod; the target node
//!   is busy) does not count, or a few hopeless pods would stop the rest. All together are at most
//!   [`TARGET_POD_OVERCOMMIT`] times as many, so that hopeless pods do not pile up either.
//!
//! Those that wait go by urgency, then age, then UID. One that cannot go because of its own nodes
//! lets others pass, except that the first that has waited for longer than [`MAX_OVERTAKING`] keeps what
//! is free on its nodes: it needs room on two at once, and those behind it, of which there may be
//! ever new ones, could otherwise take now one and now the other for ever.
//!
//! Nothing here takes a slot away: where a limit is lowered, those that run go on, and none is
//! added until enough of them have finished.

mod entry;
mod reservations;
mod wait;

use std::collections::BTreeMap;

use drydock_api::kubevirt::{VirtualMachineInstanceMigration, migration::MigrationPriority};
use jiff::{SignedDuration, Timestamp};

use super::purpose::{EVACUATION, Purpose};
use crate::configuration::Migrations;

pub use entry::entry;
pub use reservations::Reservations;
pub use wait::{Reason, Wait};

/// How long a migration with a ready target pod lets others pass that take what it needs.
///
/// Some times as long as a migration mostly takes: shorter would hold slots back without need.
pub const MAX_OVERTAKING: SignedDuration = SignedDuration::from_mins(5);

/// How many times as many target pods there may be when some of them are held up.
pub const TARGET_POD_OVERCOMMIT: usize = 2;

/// Annotation of a migration that empties a node: its place in the plan of the drain, among those that
/// were made at the same time. Only the controller makes such migrations.
pub const ORDER: &str = "drydock.dev/drain-order";

/// The place of a migration among those that are as urgent and as old.
pub fn order(migration: &VirtualMachineInstanceMigration) -> u32 {
    let annotations = migration.metadata.annotations.as_ref();
    let text = annotations
        .filter(|all| all.contains_key(EVACUATION))
        .and_then(|all| all.get(ORDER));
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// How urgent a migration is beside others that wait, with KubeVirt's weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Urgency {
    /// Nobody said.
    #[default]
    None = 0,
    /// The cluster tidies up.
    SystemMaintenance = 20,
    /// Somebody waits for it.
    UserTriggered = 50,
    /// A node is being emptied.
    SystemCritical = 100,
}

impl Urgency {
    /// What the migration's priority says; without one, what it is for.
    pub fn of(migration: &VirtualMachineInstanceMigration) -> Self {
        match (migration.spec.priority, Purpose::of(migration)) {
            (Some(MigrationPriority::SystemCritical), _) | (None, Purpose::Evacuation) => Self::SystemCritical,
            (Some(MigrationPriority::UserTriggered), _) | (None, Purpose::WorkloadUpdate) => Self::UserTriggered,
            (Some(MigrationPriority::SystemMaintenance), _) => Self::SystemMaintenance,
            (None, Purpose::Asked) => Self::None,
        }
    }
}

/// A migration that has not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// UID of the object, which no other entry has.
    pub uid: String,
    /// Namespace and name, for whoever carries out what is granted.
    pub name: String,
    /// How urgent it is.
    pub urgency: Urgency,
    /// When the object was made, in whole seconds.
    pub created: Timestamp,
    /// Its place among those that were made in the same second.
    pub order: u32,
    /// Node that the guest runs on.
    pub source: String,
    /// How far it is.
    pub stage: Stage,
}

impl Entry {
    /// What comes first, goes first.
    fn rank(&self) -> impl Ord + '_ {
        (
            std::cmp::Reverse(self.urgency),
            self.created,
            self.order,
            self.uid.as_str(),
        )
    }
}

/// How far a migration is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has no target pod.
    Waiting,
    /// It has no target pod: the API server refuses that, and the next attempt is not due yet. It takes no place from
    /// others meanwhile.
    Refused,
    /// Its target pod is on its way.
    Placing {
        /// Something holds the pod up: no node takes it, its image or a volume cannot be had.
        held_up: bool,
    },
    /// Its target pod's containers are ready, and it has no slot.
    Placed {
        /// Node of the target pod.
        target: String,
        /// Since when.
        ready: Timestamp,
    },
    /// It has a slot.
    Holding {
        /// Node of the target pod.
        target: String,
    },
}

/// What may be done next. Each list is in the order of the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// UIDs of those that may make their target pod.
    pub place: Vec<String>,
    /// UIDs of those that get a slot.
    pub slots: Vec<String>,
    /// UIDs of those that wait for one or the other, and what for. One that may make its pod, or has one on its way,
    /// waits too if there would be no slot for it now.
    pub waiting: Vec<(String, Wait)>,
}

/// Who may go next. The same for the same entries in any order, and for the same limits.
///
/// It counts only what `entries` say: [`Reservations::grant`] is the door for whoever acts on the
/// answer.
pub fn grants(limits: &Migrations, entries: &[Entry], now: Timestamp) -> Grants {
    let mut order: Vec<&Entry> = entries.iter().collect();
    order.sort_by(|one, other| one.rank().cmp(&other.rank()));
    let mut slots = Slots::taken(limits, entries);
    let mut granted = Vec::new();
    let mut refused = BTreeMap::new();
    let mut kept = false;
    for entry in &order {
        let Stage::Placed { target, ready } = &entry.stage else {
            continue;
        };
        let Some(reason) = slots.refuse(&entry.source, target) else {
            slots.take(&entry.source, target);
            granted.push(entry.uid.clone());
            continue;
        };
        refused.insert(entry.uid.as_str(), reason);
        let own = matches!(reason, Reason::SourceNodeLimit(_) | Reason::TargetNodeLimit(_));
        if own && !kept && now.duration_since(*ready) > MAX_OVERTAKING {
            slots.keep(&entry.source, target);
            kept = true;
        }
    }
    let mut places = Places::taken(limits, &order, &refused);
    let mut place = Vec::new();
    let mut waiting = Vec::new();
    for entry in order {
        let reason = match &entry.stage {
            Stage::Waiting => places.refuse(&entry.source).or_else(|| {
                places.add(&entry.source, Counted::Fully);
                place.push(entry.uid.clone());
                slots.refuse_any_target(&entry.source)
            }),
            // Its condition names the API server's reason.
            Stage::Refused => None,
            // What holds its pod up is Kubernetes' to report.
            Stage::Placing { held_up } => slots.refuse_any_target(&entry.source).filter(|_| !held_up),
            Stage::Placed { .. } | Stage::Holding { .. } => refused.get(entry.uid.as_str()).copied(),
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

/// The slots that are taken.
struct Slots<'a> {
    limits: &'a Migrations,
    cluster: usize,
    sources: BTreeMap<&'a str, usize>,
    targets: BTreeMap<&'a str, usize>,
}

impl<'a> Slots<'a> {
    fn taken(limits: &'a Migrations, entries: &'a [Entry]) -> Self {
        let mut slots = Self {
            limits,
            cluster: 0,
            sources: BTreeMap::new(),
            targets: BTreeMap::new(),
        };
        for entry in entries {
            if let Stage::Holding { target } = &entry.stage {
                slots.take(&entry.source, target);
            }
        }
        slots
    }

    fn take(&mut self, source: &'a str, target: &'a str) {
        self.cluster += 1;
        self.keep(source, target);
    }

    /// Lets nobody else have what is free on these nodes. The cluster needs no such thing: with
    /// the node's slot one of the cluster's frees too, and whoever is first takes both.
    fn keep(&mut self, source: &'a str, target: &'a str) {
        *self.sources.entry(source).or_default() += 1;
        *self.targets.entry(target).or_default() += 1;
    }

    /// Why there is no slot, wherever the guest goes.
    fn refuse_any_target(&self, source: &str) -> Option<Reason> {
        if self.sources.get(source).copied().unwrap_or(0) >= count(self.limits.outbound_per_node) {
            Some(Reason::SourceNodeLimit(self.limits.outbound_per_node))
        } else if self.cluster >= count(self.limits.per_cluster) {
            Some(Reason::ClusterLimit(self.limits.per_cluster))
        } else {
            None
        }
    }

    /// Why there is no slot. The nodes come first, because what they say changes less often.
    fn refuse(&self, source: &str, target: &str) -> Option<Reason> {
        let anyway = self.refuse_any_target(source);
        let of_target = self.targets.get(target).copied().unwrap_or(0);
        if !matches!(anyway, Some(Reason::SourceNodeLimit(_))) && of_target >= count(self.limits.inbound_per_node) {
            return Some(Reason::TargetNodeLimit(self.limits.inbound_per_node));
        }
        anyway
    }
}

/// How a target pod counts against a budget.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// It may soon get a slot, or has one.
    Fully,
    /// Something else holds it up.
    HeldUp,
}

/// Target pods against a limit.
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

/// The placement budget that is taken.
struct Places<'a> {
    limits: &'a Migrations,
    /// Those that have a slot.
    holding: usize,
    /// Those that have a target pod and no slot.
    cluster: Pods,
    /// Those that have a target pod, with a slot or without.
    sources: BTreeMap<&'a str, Pods>,
}

impl<'a> Places<'a> {
    /// What is taken when those that are ready, and not among `refused`, have their slots.
    fn taken(limits: &'a Migrations, order: &[&'a Entry], refused: &BTreeMap<&str, Reason>) -> Self {
        let mut places = Self {
            limits,
            holding: 0,
            cluster: Pods::default(),
            sources: BTreeMap::new(),
        };
        for entry in order {
            let source = entry.source.as_str();
            match (&entry.stage, refused.get(entry.uid.as_str())) {
                (Stage::Waiting | Stage::Refused, _) => {}
                (Stage::Placing { held_up: true }, _) => places.add(source, Counted::HeldUp),
                (Stage::Placing { held_up: false }, _) => places.add(source, Counted::Fully),
                (Stage::Placed { .. }, Some(Reason::TargetNodeLimit(_))) => places.add(source, Counted::HeldUp),
                (Stage::Placed { .. }, Some(Reason::SourceNodeLimit(_))) => {
                    places.cluster.add(Counted::HeldUp);
                    places.sources.entry(source).or_default().add(Counted::Fully);
                }
                (Stage::Placed { .. }, Some(_)) => places.add(source, Counted::Fully),
                (Stage::Placed { .. }, None) | (Stage::Holding { .. }, _) => {
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

    /// Why no target pod may be made.
    fn refuse(&self, source: &str) -> Option<Reason> {
        let of_source = self.sources.get(source).copied().unwrap_or_default();
        let per_cluster = count(self.limits.per_cluster);
        if of_source.full(count(self.limits.outbound_per_node).saturating_mul(2)) {
            Some(Reason::SourceNodeLimit(self.limits.outbound_per_node))
        } else if !self.cluster.full(per_cluster) {
            None
        } else if self.holding >= per_cluster {
            Some(Reason::ClusterLimit(self.limits.per_cluster))
        } else {
            Some(Reason::PlacementLimit(self.limits.per_cluster))
        }
    }
}

fn count(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
