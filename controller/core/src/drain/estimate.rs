//! Estimates when a node will be empty, from measured migrations.

use std::{sync::Arc, time::Duration};

use drydock_api::{
    hypervisor::{RemainingGuest, RemainingState},
    kubevirt::{
        VirtualMachineInstance, VirtualMachineInstanceMigration,
        migration::{MigrationPhase, MigrationPhaseTransition},
    },
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{DrainInput, DrainedGuest, guest_steps::memory, order::rank, state::EvacuationCause};
use crate::{
    conditions::whole_seconds,
    configuration::MigrationSettings,
    migration::{
        purpose::EVACUATION,
        queue::{WaitReason, order},
        record::MigrationRecord,
    },
};

/// Hysteresis: estimates that change by less than 1/`ESTIMATE_HYSTERESIS` of the remaining time are not written.
const ESTIMATE_HYSTERESIS: u32 = 5;
/// Estimates that change by less than this are not written either.
const ESTIMATE_MIN_CHANGE: Duration = Duration::from_secs(5);

/// Resolution of timestamps in a migration's status. Transitions that are this close may have happened at once.
const TIMESTAMP_RESOLUTION: Duration = Duration::from_secs(1);

/// Minimum number of measured migrations for deriving the size-dependent share of a duration from them.
const MIN_FITTED: u32 = 4;
/// Minimum variance of the sizes, relative to the square of their mean, for deriving that share: guests of nearly one
/// size imply nothing about the share.
const MIN_SPREAD: f64 = 0.01;

/// Speed of all measured migrations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DrainRate {
    /// Number of measured migrations.
    pub count: u32,
    /// Total duration of the migrations.
    pub time: Duration,
    /// Total memory of the migrated guests, in bytes.
    pub bytes: u64,
    /// Sum of the squares of the guests' memory, in MiB².
    squares: f64,
    /// Sum of the products of a guest's memory and its migration's duration, in MiB·s.
    products: f64,
    /// Total time from creation until the guest moved, over all migrations that did not wait for a slot.
    lead: Duration,
    /// Number of migrations that did not wait for a slot.
    leads: u32,
}

impl DrainRate {
    /// Adds a succeeded migration of a guest with this amount of memory, in bytes. A migration without its times is left out.
    pub fn add_migration(&mut self, migration: &VirtualMachineInstanceMigration, bytes: u64) {
        let status = migration.status.as_ref();
        let state = status.and_then(|status| status.migration_state.as_ref());
        let Some((start, end)) = state.and_then(|state| Some((state.start_timestamp?, state.end_timestamp?))) else {
            return;
        };
        self.add(end.duration_since(start).unsigned_abs(), bytes);
        let transitions = status.map_or(&[][..], |status| &status.phase_transition_timestamps);
        if let Some(created) = &migration.metadata.creation_timestamp
            && !waited_for_slot(transitions)
        {
            self.lead = self.lead.saturating_add(start.duration_since(created.0).unsigned_abs());
            self.leads = self.leads.saturating_add(1);
        }
    }

    /// Adds a migration.
    pub fn add(&mut self, time: Duration, bytes: u64) {
        self.count = self.count.saturating_add(1);
        self.time = self.time.saturating_add(time);
        self.bytes = self.bytes.saturating_add(bytes);
        let size = mebibytes(bytes);
        self.squares += size * size;
        self.products += size * time.as_secs_f64();
    }

    /// Returns the expected duration for a guest of this size: a fixed part and one proportional to the size.
    fn expected(&self, bytes: u64) -> Option<Duration> {
        let mean = self.mean()?;
        let mean_size = mebibytes(self.bytes / u64::from(self.count.max(1))).max(1.0);
        let share = self.proportional_share(mean_size, mean.as_secs_f64());
        let size = mebibytes(bytes) / mean_size;
        Some(mean.mul_f64((1.0 - share + share * size).min(1000.0)))
    }

    /// Returns which share of the mean duration is proportional to the size: the slope of the least squares through all
    /// measured migrations, or one half if they are few or of one size.
    fn proportional_share(&self, mean_size: f64, mean_time: f64) -> f64 {
        let count = f64::from(self.count);
        let variance = self.squares / count - mean_size * mean_size;
        if self.count < MIN_FITTED || variance < MIN_SPREAD * mean_size * mean_size || mean_time <= 0.0 {
            return 0.5;
        }
        let slope = (self.products / count - mean_size * mean_time) / variance;
        (slope * mean_size / mean_time).clamp(0.0, 1.0)
    }

    /// Returns the expected time from the creation of a migration until its guest moves, if a slot is free: its target
    /// pod starts meanwhile. Zero if nothing was measured.
    fn lead(&self) -> Duration {
        self.lead.checked_div(self.leads).unwrap_or_default()
    }

    /// Returns the expected duration for a guest of unknown size.
    fn mean(&self) -> Option<Duration> {
        self.time.checked_div(self.count)
    }
}

/// Returns whether a migration waited for a slot: before its target pod was created, or while the pod was ready. A
/// migration without these transitions counts as waiting.
fn waited_for_slot(transitions: &[MigrationPhaseTransition]) -> bool {
    let at = |phase: MigrationPhase| {
        let mut transitions = transitions.iter();
        let found = transitions.find(|transition| transition.phase == phase)?;
        Some(found.phase_transition_timestamp)
    };
    [
        (MigrationPhase::Pending, MigrationPhase::Scheduling),
        (MigrationPhase::Scheduled, MigrationPhase::PreparingTarget),
    ]
    .into_iter()
    .any(|(from, to)| match (at(from), at(to)) {
        (Some(from), Some(to)) => to.duration_since(from).unsigned_abs() > TIMESTAMP_RESOLUTION,
        _ => true,
    })
}

#[allow(clippy::cast_precision_loss, reason = "an estimate needs no more than 52 bits")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Parallel migrations: each guest takes the lane that is free first.
struct Lanes(Vec<Duration>);

impl Lanes {
    /// Creates free lanes for this number of guests of one node.
    fn new(limits: &MigrationSettings, guests: usize) -> Self {
        let lanes = limits.outbound_per_node.min(limits.per_cluster).max(1);
        let lanes = usize::try_from(lanes).unwrap_or(usize::MAX).min(guests.max(1));
        Self(vec![Duration::ZERO; lanes])
    }

    /// Adds a guest that takes this long, and returns when it will have moved.
    fn next(&mut self, takes: Duration) -> Duration {
        // There is at least one lane.
        let Some(free) = self.0.iter_mut().min() else {
            return takes;
        };
        *free = free.saturating_add(takes);
        *free
    }
}

/// Returns whether the departure of a guest can be estimated: it moves, or waits only for its turn.
fn is_predictable(guest: &RemainingGuest) -> bool {
    match guest.state {
        RemainingState::Moving => true,
        RemainingState::Waiting => {
            guest.reason == EvacuationCause::Migration.reason() || WaitReason::is_one(&guest.reason)
        }
        RemainingState::Blocked | RemainingState::ShuttingDown | RemainingState::Unknown => false,
    }
}

/// Returns when the last of these guests will have moved in the order in which they go, always after `now`. `None` if
/// nothing was measured yet, or if the departure of any guest cannot be estimated, for example because it moves for longer
/// than expected.
pub(super) fn end(left: &[(&DrainedGuest<'_>, RemainingGuest)], cluster: &DrainInput<'_>) -> Option<Time> {
    let rate = cluster.rate?;
    if !left.iter().all(|(_, guest)| is_predictable(guest)) {
        return None;
    }
    let mut lanes = Lanes::new(cluster.limits, left.len());
    let mut longest = Duration::ZERO;
    let mut ordered: Vec<(&DrainedGuest<'_>, EstimateInput)> = left
        .iter()
        .map(|(guest, _)| (*guest, EstimateInput::of(guest.instance, guest.migrations.clone())))
        .collect();
    ordered.sort_by_cached_key(|(guest, leaving)| (leaving.rank(), leaving.migration.is_none().then(|| rank(guest))));
    let all: Vec<EstimateInput> = ordered.into_iter().map(|(_, leaving)| leaving).collect();
    for leaving in &all {
        let expected = leaving.bytes.and_then(|bytes| rate.expected(bytes))?;
        let takes = match leaving.moves_since() {
            Some(since) => expected.saturating_sub(cluster.now.duration_since(since).unsigned_abs()),
            None => expected,
        };
        // The migration takes longer than expected; how much longer is unknown.
        if takes.is_zero() {
            return None;
        }
        longest = longest.max(lanes.next(takes));
    }
    let longest = longest.saturating_add(until_first_moves(&all, rate, cluster.now));
    // Rounded up, because an estimate must not lie in the past.
    let at = cluster.now.checked_add(longest.max(Duration::from_nanos(1))).ok()?;
    let up = at.checked_add(Duration::from_nanos(999_999_999)).ok()?;
    Some(Time(whole_seconds(up).0))
}

/// Returns how long it takes until the first of these guests moves: its target pod has to start. The target pods of the
/// other guests start while the first guest moves.
fn until_first_moves(leaving: &[EstimateInput], rate: DrainRate, now: Timestamp) -> Duration {
    if leaving.iter().any(|guest| guest.moves_since().is_some()) {
        return Duration::ZERO;
    }
    let migrations = leaving.iter().filter_map(|guest| guest.migration.as_ref());
    let created = migrations.filter_map(|migration| migration.metadata.creation_timestamp.as_ref());
    let passed = created
        .map(|created| now.duration_since(created.0).unsigned_abs())
        .max();
    rate.lead().saturating_sub(passed.unwrap_or_default())
}

/// A guest that is to leave its node: input for the estimate of when it has left.
#[derive(Clone, Debug)]
pub struct EstimateInput {
    /// Memory of the guest in bytes; `None`: the average is assumed.
    pub bytes: Option<u64>,
    /// The guest's unfinished migration, if it has one.
    pub migration: Option<Arc<VirtualMachineInstanceMigration>>,
}

impl EstimateInput {
    /// Creates the entry for a guest with these migrations.
    pub fn of(instance: &VirtualMachineInstance, migrations: Vec<Arc<VirtualMachineInstanceMigration>>) -> Self {
        let mut migrations = migrations.into_iter();
        Self {
            bytes: Some(memory(instance)),
            migration: migrations.find(|migration| !MigrationRecord::of(migration).is_over()),
        }
    }

    /// Returns the guest of an unfinished migration, if that migration evacuates `node`.
    pub fn by(migration: Arc<VirtualMachineInstanceMigration>, node: &str) -> Option<Self> {
        let annotations = migration.metadata.annotations.as_ref();
        let of = annotations.and_then(|annotations| annotations.get(EVACUATION));
        of.is_some_and(|of| of == node).then_some(Self {
            bytes: None,
            migration: Some(migration),
        })
    }

    /// Returns since when the guest moves.
    fn moves_since(&self) -> Option<Timestamp> {
        let status = self.migration.as_ref()?.status.as_ref()?;
        status.migration_state.as_ref()?.start_timestamp
    }

    /// Returns the sort key: moving guests first, then the order of their migrations in the queue.
    fn rank(&self) -> impl Ord + use<> {
        let migration = self.migration.as_ref();
        (
            self.moves_since().is_none(),
            migration.is_none(),
            migration.map(|migration| {
                let metadata = &migration.metadata;
                let created = metadata.creation_timestamp.as_ref().map(|time| time.0);
                (created, order(migration), metadata.uid.clone())
            }),
        )
    }
}

/// Returns how long it takes until a guest has left its node, which `others` leave, too. `None` if nothing was measured
/// yet, or if the migration takes longer than expected. Other guests without a migration leave after this guest.
pub fn time_left(
    own: &EstimateInput,
    others: &[EstimateInput],
    rate: Option<DrainRate>,
    limits: &MigrationSettings,
    now: Timestamp,
) -> Option<Duration> {
    let rate = rate?;
    let left = |guest: &EstimateInput| {
        let expected = guest.bytes.map_or_else(|| rate.mean(), |bytes| rate.expected(bytes))?;
        let since = guest.moves_since().unwrap_or(now);
        Some(expected.saturating_sub(now.duration_since(since).unsigned_abs()))
    };
    let mut before: Vec<&EstimateInput> = others.iter().filter(|other| other.rank() < own.rank()).collect();
    before.sort_by_key(|one| one.rank());
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

/// Returns the estimate to report. The reported estimate is kept until it is clearly wrong, so that it does not change
/// every second.
pub(super) fn steady(reported: Option<Time>, newest: Option<Time>, now: Timestamp) -> Option<Time> {
    let (Some(before), Some(after)) = (&reported, &newest) else {
        return newest;
    };
    if before.0 <= now {
        return newest;
    }
    let change = before.0.duration_since(after.0).unsigned_abs();
    let left = after.0.duration_since(now).unsigned_abs();
    if change <= ESTIMATE_MIN_CHANGE.max(left / ESTIMATE_HYSTERESIS) {
        reported
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

    /// A guest with a GiB of memory, whose migration has this position and has moved for `since` seconds, if at all.
    fn leaving(order: u32, since: Option<i64>) -> EstimateInput {
        let began = since.map(|seconds| (now() - jiff::SignedDuration::from_secs(seconds)).to_string());
        let migration = json!({
            "metadata": {
                "name": format!("m{order}"), "uid": format!("m{order}"), "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {"kubevirt.io/evacuationMigration": "a", "drydock.dev/drain-order": order.to_string()},
            },
            "spec": {"vmiName": format!("g{order}")},
            "status": {"phase": "Running", "migrationState": began.map(|began| json!({"startTimestamp": began}))},
        });
        EstimateInput {
            bytes: Some(1 << 30),
            migration: Some(Arc::new(serde_json::from_value(migration).unwrap())),
        }
    }

    #[test]
    fn duration_depends_on_size_as_measured() {
        let expected = |measured: &[(u64, u64)], gibibytes: u64| {
            let mut rate = DrainRate::default();
            for (seconds, size) in measured {
                rate.add(Duration::from_secs(*seconds), size << 30);
            }
            rate.expected(gibibytes << 30).map(|time| time.as_secs_f64().round())
        };
        for (measured, size, seconds) in [
            (&[][..], 1, None),
            // Of one size: half of the duration is fixed.
            (&[(10, 2); 8], 2, Some(10.0)),
            (&[(10, 2); 8], 4, Some(15.0)),
            // Too few of several sizes: the mean is 11 s for 2 GiB.
            (&[(6, 1), (11, 2), (16, 3)], 4, Some(17.0)),
            // One second fixed, five for each GiB.
            (&[(6, 1), (11, 2), (16, 3), (21, 4)], 8, Some(41.0)),
            // Nothing depends on the size, or less than nothing.
            (&[(10, 1), (10, 2), (10, 3), (10, 4)], 8, Some(10.0)),
            (&[(13, 1), (11, 2), (9, 3), (7, 4)], 8, Some(10.0)),
            // All of it does, and more: no duration is negative.
            (&[(1, 2), (1, 2), (9, 4), (9, 4)], 1, Some(2.0)),
        ] {
            assert_eq!(expected(measured, size), seconds, "{measured:?} {size}");
        }
    }

    #[test]
    fn first_guest_waits_for_the_target_pod() {
        // Each migration was created at 0 s and moved for ten seconds.
        let succeeded = |pending: u8, scheduling: u8, scheduled: u8, preparing: u8, start: u8| {
            let at = |second: u8| format!("2026-01-01T00:00:{second:02}Z");
            let phases = [
                ("Pending", pending),
                ("Scheduling", scheduling),
                ("Scheduled", scheduled),
                ("PreparingTarget", preparing),
            ];
            let transitions: Vec<_> = phases
                .iter()
                .map(|(phase, second)| json!({"phase": phase, "phaseTransitionTimestamp": at(*second)}))
                .collect();
            serde_json::from_value::<VirtualMachineInstanceMigration>(json!({
                "metadata": {"name": "m", "creationTimestamp": at(0)}, "spec": {"vmiName": "g"},
                "status": {
                    "phaseTransitionTimestamps": transitions,
                    "migrationState": {"startTimestamp": at(start), "endTimestamp": at(start + 10)},
                },
            }))
            .unwrap()
        };
        let mut rate = DrainRate::default();
        for migration in [
            succeeded(0, 0, 2, 2, 2),
            succeeded(0, 1, 3, 4, 4),
            // These waited for a slot: with and without a target pod.
            succeeded(0, 0, 2, 12, 12),
            succeeded(0, 10, 12, 12, 12),
        ] {
            rate.add_migration(&migration, 1 << 30);
        }
        // The times of its phases are unknown.
        let mut moved = succeeded(0, 0, 1, 1, 1);
        moved.status.as_mut().unwrap().phase_transition_timestamps.clear();
        rate.add_migration(&moved, 1 << 30);
        let mut unfinished = succeeded(0, 0, 1, 1, 1);
        unfinished
            .status
            .as_mut()
            .unwrap()
            .migration_state
            .as_mut()
            .unwrap()
            .end_timestamp = None;
        rate.add_migration(&unfinished, 1 << 30);
        assert_eq!((rate.count, rate.mean()), (5, Some(Duration::from_secs(10))));
        let waits = |leaving: &[EstimateInput], now: &str| {
            until_first_moves(leaving, rate, format!("2026-01-01T00:{now}Z").parse().unwrap()).as_secs()
        };
        let none = EstimateInput {
            bytes: None,
            migration: None,
        };
        for (leaving, now, expected) in [
            (vec![none.clone()], "01:40", 3),
            // Its migration was created at 00:00:00.
            (vec![none.clone(), leaving(0, None)], "00:02", 1),
            (vec![leaving(0, None)], "01:40", 0),
            (vec![none, leaving(0, Some(4))], "01:40", 0),
        ] {
            assert_eq!(waits(&leaving, now), expected, "{leaving:?} {now}");
        }
    }

    #[test]
    fn guest_estimate_includes_guests_that_go_before() {
        let mut rate = DrainRate::default();
        rate.add(Duration::from_secs(10), 1 << 30);
        let limits = Configuration::default().migrations;
        let without_migration = EstimateInput {
            bytes: Some(1 << 30),
            migration: None,
        };
        let seconds = |own: &EstimateInput, others: &[EstimateInput]| {
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
            // Guests without a migration come last.
            (
                without_migration.clone(),
                vec![leaving(0, None), leaving(1, None)],
                Some(20),
            ),
            (
                leaving(0, None),
                vec![without_migration.clone(), without_migration],
                Some(10),
            ),
            // The migration takes longer than expected, so the end is unknown.
            (leaving(0, Some(11)), vec![], None),
            // The overdue guest may finish at any moment.
            (
                leaving(2, None),
                vec![leaving(0, Some(11)), leaving(1, Some(1))],
                Some(10),
            ),
        ] {
            assert_eq!(seconds(&own, &others), expected, "{own:?} {others:?}");
        }
        assert_eq!(time_left(&leaving(0, None), &[], None, &limits, now()), None);
        // Only the other guest's migration is known, so its size is assumed to be average.
        rate.add(Duration::from_secs(30), 3 << 30);
        let other = leaving(0, None).migration.unwrap();
        assert!(EstimateInput::by(Arc::clone(&other), "b").is_none());
        let others = [
            EstimateInput::by(Arc::clone(&other), "a").unwrap(),
            EstimateInput::by(other, "a").unwrap(),
        ];
        let left = time_left(&leaving(1, None), &others, Some(rate), &limits, now());
        assert_eq!(left.map(|left| left.as_secs()), Some(20 + 15));
    }
}
