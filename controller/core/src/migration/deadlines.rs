//! How long each part of a migration may take, and when one that Drydock makes itself is tried again.
//!
//! ```text
//!  target pod made ──▶ ready ──▶ both sides prepare ──▶ the guest begins to move ──▶ moves ──▶ hand-over
//!   └ 300 s without a node        └ 240 s                └ 240 s                     (convergence)  └ 30 s
//!   └ 900 s in all                                                                     then only told
//! ```
//!
//! A deadline that passes aborts the migration, which is safe as long as the guest has not left.
//! In the hand-over it proves nothing about either side, so it is only reported there.

mod attempts;

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use crate::configuration::Problem;

pub use attempts::{Attempts, Failures, Retry};

/// Annotation of a migration: seconds that its target pod may be without a node (KubeVirt's name).
pub const UNSCHEDULABLE_SECONDS: &str = "kubevirt.io/migrationUnschedulablePodTimeoutSeconds";
/// Annotation of a migration: seconds that its target pod may take until it is ready (KubeVirt's name).
pub const PENDING_SECONDS: &str = "kubevirt.io/migrationPendingPodTimeoutSeconds";

/// Reason of a migration whose target pod got a node and did not run there in time.
pub const TARGET_POD_NOT_READY: &str = "TargetPodNotReady";

/// The longest time that an annotation may give. After a day a waiting pod is forgotten, not waited for.
const LONGEST_SECONDS: u64 = 24 * 60 * 60;

/// How long each part of a migration may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// A target pod without a node. Default: 300 s (KubeVirt's `defaultUnschedulablePendingTimeoutSeconds`).
    pub unschedulable: Duration,
    /// A target pod from when it was made until its containers are ready. Default: 900 s (KubeVirt's
    /// `defaultCatchAllPendingTimeoutSeconds`).
    pub pending: Duration,
    /// From the slot until both sides are prepared. Default: 240 s, which a launcher of KubeVirt
    /// waits for its guest (`--qemu-timeout`); KubeVirt has no limit of the migration itself here.
    pub preparing: Duration,
    /// From then until the guest begins to move. Default: 240 s, for the same reason: long enough
    /// for an agent that is just being replaced.
    pub starting: Duration,
    /// From when the guest may go on until it does. Default: 30 s, after which libvirt takes a
    /// silent connection for dead (`keepalive_interval` 5 s, `keepalive_count` 5).
    pub hand_over: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            unschedulable: Duration::from_secs(300),
            pending: Duration::from_secs(900),
            preparing: Duration::from_secs(240),
            starting: Duration::from_secs(240),
            hand_over: Duration::from_secs(30),
        }
    }
}

/// A part of a migration that has a deadline. While the guest moves
/// [`convergence`](super::convergence) decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Its target pod is on its way.
    TargetPod(TargetPod),
    /// Both sides prepare (phase `PreparingTarget`).
    Preparing,
    /// Both are prepared, and the guest does not move yet (phase `TargetReady`).
    Starting,
    /// The guest has left the source for good, and does not run on the target yet.
    HandOver,
}

/// What counts of a target pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetPod {
    /// The scheduler has found no node for it (condition `PodScheduled` is False).
    pub unschedulable: bool,
    /// Its containers are ready.
    pub ready: bool,
}

/// When a part of a migration has taken too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// When.
    pub at: Timestamp,
    /// What follows.
    pub then: Consequence,
    /// Why, in one CamelCase word.
    pub reason: &'static str,
    /// The same for people, as it is true from then on.
    pub sentence: String,
}

impl Deadline {
    /// Whether it has passed.
    pub fn has_passed(&self, now: Timestamp) -> bool {
        now >= self.at
    }
}

/// What follows when a deadline has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Consequence {
    /// The migration is given up; the guest stays where it is.
    Abort,
    /// It is told, and nothing else: nobody can tell from the time alone where the guest may run.
    Report,
}

impl Deadlines {
    /// These with what the migration's own annotations say, and what is wrong with them. A value
    /// that is not allowed changes nothing.
    pub fn with_annotations(self, annotations: &BTreeMap<String, String>) -> (Self, Vec<Problem>) {
        let mut own = self;
        let mut problems = Vec::new();
        for (key, field) in [
            (UNSCHEDULABLE_SECONDS, &mut own.unschedulable),
            (PENDING_SECONDS, &mut own.pending),
        ] {
            let Some(text) = annotations.get(key) else {
                continue;
            };
            match seconds(text) {
                Some(value) => *field = value,
                None => problems.push(Problem::new(
                    format!("metadata.annotations[{key}]"),
                    text,
                    format!("whole seconds from 1 to {LONGEST_SECONDS}"),
                )),
            }
        }
        (own, problems)
    }

    /// When the part that began at `since` has taken too long: a target pod when it was made, other
    /// parts when they were reached. `None`: no limit is running.
    ///
    /// `annotations` are the migration's, as in [`Self::with_annotations`].
    pub fn deadline(&self, part: Part, since: Timestamp, annotations: &BTreeMap<String, String>) -> Option<Deadline> {
        let (own, _) = self.with_annotations(annotations);
        let (limit, then, reason, words) = match part {
            Part::TargetPod(TargetPod { ready: true, .. }) => return None,
            Part::TargetPod(TargetPod {
                unschedulable: true, ..
            }) if own.unschedulable <= own.pending => (
                own.unschedulable,
                Consequence::Abort,
                "TargetPodUnschedulable",
                "no node took the target pod",
            ),
            Part::TargetPod(_) => (
                own.pending,
                Consequence::Abort,
                TARGET_POD_NOT_READY,
                "the target pod was not ready",
            ),
            Part::Preparing => (
                own.preparing,
                Consequence::Abort,
                "PreparationTimedOut",
                "source and target were not both prepared",
            ),
            Part::Starting => (
                own.starting,
                Consequence::Abort,
                "StartTimedOut",
                "both sides were prepared, and the guest did not begin to move",
            ),
            Part::HandOver => (
                own.hand_over,
                Consequence::Report,
                "HandOverStalled",
                "the guest has left its source and did not run on its target",
            ),
        };
        Some(Deadline {
            at: after(since, limit),
            then,
            reason,
            sentence: format!("{words} within {} s", limit.as_secs_f64()),
        })
    }
}

/// A number of seconds in the form and range that annotations may have.
fn seconds(text: &str) -> Option<Duration> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let value: u64 = digits.then(|| text.parse().ok()).flatten()?;
    (1..=LONGEST_SECONDS)
        .contains(&value)
        .then(|| Duration::from_secs(value))
}

/// A time so long after another, at most the last that can be told.
fn after(since: Timestamp, wait: Duration) -> Timestamp {
    since.checked_add(wait).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
