//! When a node will be empty, by what was measured.

use std::{sync::Arc, time::Duration};

use drydock_api::{
    hypervisor::{RemainingGuest, RemainingState},
    kubevirt::{VirtualMachineInstance, VirtualMachineInstanceMigration},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    Cluster, Guest,
    guest::{Why, memory},
};
use crate::{
    conditions::whole_seconds,
    configuration::Migrations,
    migration::{
        purpose::EVACUATION,
        queue::{Reason, order},
        record::Record,
    },
};

/// An estimate is not told anew for a change of less than one part in so many of what is left.
const ESTIMATE_HYSTERESIS: u32 = 5;
/// Nor for less than this.
const ESTIMATE_MIN_CHANGE: Duration = Duration::from_secs(5);

/// How fast guests move, of all migrations that were measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// Migrations.
    pub count: u32,
    /// Time that they took, all together.
    pub time: Duration,
    /// Memory of their guests in bytes, all together.
    pub bytes: u64,
}

impl Rate {
    /// Adds one.
    pub fn add(&mut self, time: Duration, bytes: u64) {
        self.count = self.count.saturating_add(1);
        self.time = self.time.saturating_add(time);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// How long a guest of this size will take. Half of the mean time is counted for every guest, half
    /// by its size: what was measured may have been of one size, which says nothing about the shares.
    fn expected(&self, bytes: u64) -> Option<Duration> {
        let (count, mean) = (self.count.max(1), self.mean()?);
        let mean_bytes = (self.bytes / u64::from(count)).max(1);
        #[allow(clippy::cast_precision_loss, reason = "an estimate needs no more than 52 bits")]
        let share = bytes as f64 / mean_bytes as f64;
        Some(mean.mul_f64((0.5 + 0.5 * share).min(1000.0)))
    }

    /// How long one takes of a guest of which nothing is known.
    fn mean(&self) -> Option<Duration> {
        self.time.checked_div(self.count)
    }
}

/// What moves at a time: each takes the place that is free first.
struct Lanes(Vec<Duration>);

impl Lanes {
    /// All of them free, for so many guests of one node.
    fn new(limits: &Migrations, guests: usize) -> Self {
        let lanes = limits.outbound_per_node.min(limits.per_cluster).max(1);
        let lanes = usize::try_from(lanes).unwrap_or(usize::MAX).min(guests.max(1));
        Self(vec![Duration::ZERO; lanes])
    }

    /// When the next guest will have moved, that takes so long.
    fn next(&mut self, takes: Duration) -> Duration {
        // There is one at least.
        let Some(free) = self.0.iter_mut().min() else {
            return takes;
        };
        *free = free.saturating_add(takes);
        *free
    }
}

/// Whether it can be estimated when a guest will have left: it moves, or waits for nothing but its turn.
fn is_predictable(guest: &RemainingGuest) -> bool {
    match guest.state {
        RemainingState::Moving => true,
        RemainingState::Waiting => guest.reason == Why::Migration.reason() || Reason::is_one(&guest.reason),
        RemainingState::Blocked | RemainingState::ShuttingDown | RemainingState::Unknown => false,
    }
}

/// When the last of these will have moved, always after `now`; `None` if nothing was measured yet, or it is not known of
/// any of them when it will leave, also because it moves for longer than was to be expected.
pub(super) fn end(left: &[(&Guest<'_>, RemainingGuest)], cluster: &Cluster<'_>) -> Option<Time> {
    let rate = cluster.rate?;
    if !left.iter().all(|(_, guest)| is_predictable(guest)) {
        return None;
    }
    let mut lanes = Lanes::new(cluster.limits, left.len());
    let mut longest = Duration::ZERO;
    for (guest, _) in left {
        let expected = rate.expected(memory(guest.instance))?;
        let leaving = Leaving::of(guest.instance, guest.migrations.clone());
        let takes = match leaving.moves_since() {
            Some(since) => expected.saturating_sub(cluster.now.duration_since(since).unsigned_abs()),
            None => expected,
        };
        // It takes longer than it should: nothing is known of how much longer.
        if takes.is_zero() {
            return None;
        }
        longest = longest.max(lanes.next(takes));
    }
    // Rounded up, as a time that has passed is no estimate.
    let at = cluster.now.checked_add(longest.max(Duration::from_nanos(1))).ok()?;
    let up = at.checked_add(Duration::from_nanos(999_999_999)).ok()?;
    Some(Time(whole_seconds(up).0))
}

/// A guest that is to leave its node, for whoever waits for one of them.
#[derive(Clone, Debug)]
pub struct Leaving {
    /// Its memory in bytes; `None`: as much as most have.
    pub bytes: Option<u64>,
    /// Its migration that is not over, if it has one.
    pub migration: Option<Arc<VirtualMachineInstanceMigration>>,
}

impl Leaving {
    /// A guest with these migrations.
    pub fn of(instance: &VirtualMachineInstance, migrations: Vec<Arc<VirtualMachineInstanceMigration>>) -> Self {
        let mut migrations = migrations.into_iter();
        Self {
            bytes: Some(memory(instance)),
            migration: migrations.find(|migration| !Record::of(migration).is_over()),
        }
    }

    /// The guest of a migration that is not over, if that empties this node.
    pub fn by(migration: Arc<VirtualMachineInstanceMigration>, node: &str) -> Option<Self> {
        let annotations = migration.metadata.annotations.as_ref();
        let of = annotations.and_then(|annotations| annotations.get(EVACUATION));
        of.is_some_and(|of| of == node).then_some(Self {
            bytes: None,
            migration: Some(migration),
        })
    }

    /// Since when it moves.
    fn moves_since(&self) -> Option<Timestamp> {
        let status = self.migration.as_ref()?.status.as_ref()?;
        status.migration_state.as_ref()?.start_timestamp
    }

    /// Whoever moves comes first, then whose migration the queue takes first.
    fn rank(&self) -> impl Ord + '_ {
        let migration = self.migration.as_ref();
        (
            self.moves_since().is_none(),
            migration.is_none(),
            migration.map(|migration| {
                let metadata = &migration.metadata;
                let created = metadata.creation_timestamp.as_ref().map(|time| time.0);
                (created, order(migration), metadata.uid.as_deref())
            }),
        )
    }
}

/// How long it will take until a guest has left its node that `others` leave, too; `None` if nothing was measured yet,
/// or it takes longer than it should. Others that have no migration yet go after it.
pub fn time_left(
    own: &Leaving,
    others: &[Leaving],
    rate: Option<Rate>,
    limits: &Migrations,
    now: Timestamp,
) -> Option<Duration> {
    let rate = rate?;
    let left = |guest: &Leaving| {
        let expected = guest.bytes.map_or_else(|| rate.mean(), |bytes| rate.expected(bytes))?;
        let since = guest.moves_since().unwrap_or(now);
        Some(expected.saturating_sub(now.duration_since(since).unsigned_abs()))
    };
    let mut before: Vec<&Leaving> = others.iter().filter(|other| other.rank() < own.rank()).collect();
    before.sort_by(|one, other| one.rank().cmp(&other.rank()));
    let mut lanes = Lanes::new(limits, before.len() + 1);
    for other in before {
        lanes.next(left(other)?);
    }
    let own_left = left(own)?;
    if own.moves_since().is_some() {
        return Some(own_left).filter(|left| !left.is_zero());
    }
    Some(lanes.next(own_left))
}

/// The estimate to tell: what was told stays until it is clearly wrong, so that it is no news each
/// second.
pub(super) fn steady(told: Option<Time>, newest: Option<Time>, now: Timestamp) -> Option<Time> {
    let (Some(before), Some(after)) = (&told, &newest) else {
        return newest;
    };
    if before.0 <= now {
        return newest;
    }
    let change = before.0.duration_since(after.0).unsigned_abs();
    let left = after.0.duration_since(now).unsigned_abs();
    if change <= ESTIMATE_MIN_CHANGE.max(left / ESTIMATE_HYSTERESIS) {
        told
    } else {
        newest
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::configuration::Configuration;

    fn now() -> Timestamp {
        "2026-01-01T00:01:40Z".parse().unwrap()
    }

    /// A guest of a GiB whose migration has this place, and moves since so many seconds if it does.
    fn leaving(order: u32, since: Option<i64>) -> Leaving {
        let began = since.map(|seconds| (now() - jiff::SignedDuration::from_secs(seconds)).to_string());
        let migration = json!({
            "metadata": {
                "name": format!("m{order}"), "uid": format!("m{order}"), "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {"kubevirt.io/evacuationMigration": "a", "drydock.dev/drain-order": order.to_string()},
            },
            "spec": {"vmiName": format!("g{order}")},
            "status": {"phase": "Running", "migrationState": began.map(|began| json!({"startTimestamp": began}))},
        });
        Leaving {
            bytes: Some(1 << 30),
            migration: Some(Arc::new(serde_json::from_value(migration).unwrap())),
        }
    }

    #[test]
    fn a_guest_waits_for_those_that_go_before_it() {
        let mut rate = Rate::default();
        rate.add(Duration::from_secs(10), 1 << 30);
        let limits = Configuration::default().migrations;
        let unasked = Leaving {
            bytes: Some(1 << 30),
            migration: None,
        };
        let seconds = |own: &Leaving, others: &[Leaving]| {
            time_left(own, others, Some(rate), &limits, now()).map(|left| left.as_secs())
        };
        // Two at a time, ten seconds each.
        let moving = [leaving(0, Some(4)), leaving(1, Some(7))];
        for (own, others, expected) in [
            (leaving(0, None), vec![], Some(10)),
            (leaving(0, None), vec![leaving(1, None), leaving(2, None)], Some(10)),
            (leaving(2, None), vec![leaving(1, None), leaving(0, None)], Some(20)),
            (
                leaving(4, None),
                (0..4).map(|order| leaving(order, None)).collect(),
                Some(30),
            ),
            (leaving(2, None), moving.to_vec(), Some(13)),
            (leaving(3, None), [&moving[..], &[leaving(2, None)]].concat(), Some(16)),
            (
                leaving(0, Some(4)),
                vec![leaving(1, Some(9)), leaving(2, Some(9))],
                Some(6),
            ),
            // Whose migration is not yet made, comes last.
            (unasked.clone(), vec![leaving(0, None), leaving(1, None)], Some(20)),
            (leaving(0, None), vec![unasked.clone(), unasked], Some(10)),
            // Longer than it should: nobody knows.
            (leaving(0, Some(11)), vec![], None),
            // That one may end at any moment.
            (
                leaving(2, None),
                vec![leaving(0, Some(11)), leaving(1, Some(1))],
                Some(10),
            ),
        ] {
            assert_eq!(seconds(&own, &others), expected, "{own:?} {others:?}");
        }
        assert_eq!(time_left(&leaving(0, None), &[], None, &limits, now()), None);
        // Of another one its migration alone is known: it takes as long as most.
        rate.add(Duration::from_secs(30), 3 << 30);
        let other = leaving(0, None).migration.unwrap();
        assert!(Leaving::by(Arc::clone(&other), "b").is_none());
        let others = [
            Leaving::by(Arc::clone(&other), "a").unwrap(),
            Leaving::by(other, "a").unwrap(),
        ];
        let left = time_left(&leaving(1, None), &others, Some(rate), &limits, now());
        assert_eq!(left.map(|left| left.as_secs()), Some(20 + 15));
    }
}
