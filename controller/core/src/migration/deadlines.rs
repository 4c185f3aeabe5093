//! Deadlines for the phases of a migration, and the retries of automatic migrations.
//!
//! ```text
//!  target pod created ──▶ ready ──▶ target prepared ──▶ guest starts to move ──▶ moving ──▶ hand-over
//!  └ 300 s without a node           └ 240 s             └ 240 s                  (convergence)
//!  └ 900 s in total
//! ```
//!
//! A deadline that passes aborts the migration, which is safe as long as the guest has not left. The hand-over has no
//! deadline: the elapsed time does not show where the guest may run.

mod attempts;

use std::{collections::BTreeMap, time::Duration};

use drydock_api::kubevirt::{VirtualMachineInstanceMigration, migration::MigrationPhase};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::record::{MigrationRecord, reached_at};
use crate::{configuration::InvalidValue, pod_state::created_at};

pub use attempts::{Attempts, Failures, Retry};

/// Annotation of a migration: seconds for which its target pod may have no node (KubeVirt's name).
pub const UNSCHEDULABLE_SECONDS: &str = "kubevirt.io/migrationUnschedulablePodTimeoutSeconds";
/// Annotation of a migration: seconds until its target pod must be ready (KubeVirt's name).
pub const PENDING_SECONDS: &str = "kubevirt.io/migrationPendingPodTimeoutSeconds";

/// Reason of a failed migration: its target pod did not become ready in time, although the scheduler did not report that no
/// node suits it.
pub const TARGET_POD_NOT_READY: &str = "TargetPodNotReady";

/// Maximum for these annotations, in seconds. A pod that has waited for a day is assumed to be forgotten.
const LONGEST_SECONDS: u64 = 24 * 60 * 60;

/// Deadlines for the phases of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseDeadlines {
    /// Time for which a target pod may have no node. Default: 300 s (KubeVirt's
    /// `defaultUnschedulablePendingTimeoutSeconds`).
    pub unschedulable: Duration,
    /// From the creation of a target pod until its containers are ready. Default: 900 s (KubeVirt's
    /// `defaultCatchAllPendingTimeoutSeconds`).
    pub pending: Duration,
    /// From the slot until the target is prepared. Default: 240 s, for which a KubeVirt launcher waits for its guest
    /// (`--qemu-timeout`). KubeVirt itself has no limit for this phase of a migration.
    pub preparing: Duration,
    /// From the prepared target until the guest starts to move. Default: 240 s, as for `preparing`. Long enough for an
    /// agent that is being replaced.
    pub starting: Duration,
}

impl Default for PhaseDeadlines {
    fn default() -> Self {
        Self {
            unschedulable: Duration::from_secs(300),
            pending: Duration::from_secs(900),
            preparing: Duration::from_secs(240),
            starting: Duration::from_secs(240),
        }
    }
}

/// A phase of a migration that has a deadline. While the guest moves, [`convergence`](super::convergence) and
/// [`unsent`](super::unsent) decide instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum DeadlinePhase {
    /// The target pod is being scheduled or started.
    TargetPod {
        /// Whether the scheduler has found no node for the pod (condition `PodScheduled` is False).
        unschedulable: bool,
    },
    /// The target prepares (phase `PreparingTarget`).
    Preparing,
    /// The target is prepared, and the guest does not move yet (phase `TargetReady`).
    Starting,
}

/// The deadline of a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseDeadline {
    /// When the deadline passes.
    pub at: Timestamp,
    /// CamelCase reason.
    pub reason: &'static str,
    /// Human-readable message, valid once the deadline has passed.
    pub sentence: String,
}

impl PhaseDeadline {
    /// Returns whether the deadline has passed.
    pub fn has_passed(&self, now: Timestamp) -> bool {
        now >= self.at
    }
}

impl PhaseDeadlines {
    /// Returns these deadlines with the overrides in a migration's annotations, and the invalid annotations. An invalid
    /// value changes nothing.
    pub fn with_annotations(self, annotations: &BTreeMap<String, String>) -> (Self, Vec<InvalidValue>) {
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
                None => problems.push(InvalidValue::new(
                    format!("metadata.annotations[{key}]"),
                    text,
                    format!("whole seconds from 1 to {LONGEST_SECONDS}"),
                )),
            }
        }
        (own, problems)
    }

    /// Returns the deadline of the phase that began at `since`: for a target pod its creation, for other phases their
    /// transition.
    ///
    /// `annotations` are the migration's, as in [`Self::with_annotations`].
    fn deadline(&self, part: DeadlinePhase, since: Timestamp, annotations: &BTreeMap<String, String>) -> PhaseDeadline {
        let (own, _) = self.with_annotations(annotations);
        let (limit, reason, message) = match part {
            DeadlinePhase::TargetPod { unschedulable: true } if own.unschedulable <= own.pending => (
                own.unschedulable,
                "TargetPodUnschedulable",
                "the target pod was not scheduled",
            ),
            DeadlinePhase::TargetPod { .. } => (own.pending, TARGET_POD_NOT_READY, "the target pod was not ready"),
            DeadlinePhase::Preparing => (
                own.preparing,
                "PreparationTimedOut",
                "the agent of the target node did not prepare the target",
            ),
            DeadlinePhase::Starting => (
                own.starting,
                "StartTimedOut",
                "the target was prepared, but the agent of the source node did not start to move the guest",
            ),
        };
        PhaseDeadline {
            at: after(since, limit),
            reason,
            sentence: format!("{message} within {} s", limit.as_secs_f64()),
        }
    }

    /// Returns the deadline of the phase that a migration is in; `None` if no limit applies. `pod` is its target pod,
    /// and `unschedulable`, whether the scheduler has found no node for the pod.
    pub fn of_migration(
        &self,
        migration: &VirtualMachineInstanceMigration,
        pod: Option<&Pod>,
        unschedulable: bool,
    ) -> Option<PhaseDeadline> {
        let record = MigrationRecord::of(migration);
        let phase = record.phase?;
        let since = reached_at(migration, phase)?;
        let (part, since) = match phase {
            MigrationPhase::Scheduling => (
                DeadlinePhase::TargetPod { unschedulable },
                created_at(pod?).unwrap_or(since),
            ),
            // The guest moves, although the phase may not show it yet.
            _ if record.source.is_some() => return None,
            MigrationPhase::PreparingTarget => (DeadlinePhase::Preparing, since),
            MigrationPhase::TargetReady => (DeadlinePhase::Starting, since),
            _ => return None,
        };
        let annotations = migration.metadata.annotations.as_ref();
        Some(self.deadline(part, since, annotations.unwrap_or(&BTreeMap::new())))
    }
}

/// Parses seconds in the form and range allowed in annotations.
fn seconds(text: &str) -> Option<Duration> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let value: u64 = digits.then(|| text.parse().ok()).flatten()?;
    (1..=LONGEST_SECONDS)
        .contains(&value)
        .then(|| Duration::from_secs(value))
}

/// Returns `since` plus `wait`, limited to the latest representable time.
pub(crate) fn after(since: Timestamp, wait: Duration) -> Timestamp {
    since.checked_add(wait).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
