//! When a node will be empty, by what was measured.

use std::time::Duration;

use drydock_api::hypervisor::{RemainingGuest, RemainingState};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Cluster, Guest, guest::memory};
use crate::conditions::whole_seconds;

/// An estimate is not told anew for a change of less than one part in so many of what is left.
const STEADY: u32 = 5;
/// Nor for less than this.
const LEAST: Duration = Duration::from_secs(5);

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
        let count = self.count.max(1);
        let mean = self.time.checked_div(count)?;
        let mean_bytes = (self.bytes / u64::from(count)).max(1);
        #[allow(clippy::cast_precision_loss, reason = "an estimate needs no more than 52 bits")]
        let share = bytes as f64 / mean_bytes as f64;
        (self.count > 0).then(|| mean.mul_f64((0.5 + 0.5 * share).min(1000.0)))
    }
}

/// When the last of these will have moved; `None` if nothing was measured yet, or not all of them move.
pub(super) fn end(left: &[(&Guest<'_>, RemainingGuest)], cluster: &Cluster<'_>) -> Option<Time> {
    let rate = cluster.rate?;
    let lanes = cluster.limits.outbound_per_node.min(cluster.limits.per_cluster).max(1);
    let mut free = vec![Duration::ZERO; usize::try_from(lanes).unwrap_or(usize::MAX).min(left.len().max(1))];
    for (guest, told) in left {
        if told.state == RemainingState::ShuttingDown {
            continue;
        }
        let takes = rate.expected(memory(guest.instance))?;
        // What moves is half done, as far as nothing better is known.
        let takes = if told.state == RemainingState::Moving {
            takes / 2
        } else {
            takes
        };
        let next = free.iter_mut().min()?;
        *next += takes;
    }
    let longest = free.into_iter().max()?;
    let at = cluster.now.checked_add(longest).ok()?;
    Some(Time(whole_seconds(at).0))
}

/// The estimate to tell: what was told stays until it is clearly wrong, so that it is no news each
/// second.
pub(super) fn steady(told: Option<Time>, newest: Option<Time>, now: Timestamp) -> Option<Time> {
    let (Some(before), Some(after)) = (&told, &newest) else {
        return newest;
    };
    let change = before.0.duration_since(after.0).unsigned_abs();
    let left = after.0.duration_since(now).unsigned_abs();
    if change <= LEAST.max(left / STEADY) {
        told
    } else {
        newest
    }
}
