//! The reason why a migration waits, and the time when it is reconciled again without a change.

use drydock_api::kubevirt::{VirtualMachineInstanceMigration, migration::MigrationPhase};
use jiff::Timestamp;

use super::{
    awaited_agent::AwaitedAgent,
    deadlines::PhaseDeadline,
    queue::Wait,
    record::MigrationRecord,
    rejected::{ATTEMPTS, Rejected, TARGET_POD_REJECTED},
};
use crate::{
    launcher_pod::pending::{Hindrance, NOT_SCHEDULED, StartingPod},
    vm_conditions::find,
};

/// Condition type: the migration waits; the reason names the cause.
pub const WAITING: &str = "Waiting";
/// Reason of [`WAITING`]: a ResourceQuota rejects the target pod. KubeVirt's name.
const REJECTED_BY_QUOTA: &str = "RejectedByResourceQuota";
/// Reason of [`WAITING`]: the API server rejects the target pod for another reason.
const FAILED_CREATE: &str = "FailedCreate";

/// The reason why a migration waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// CamelCase reason.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
}

impl Waiting {
    /// Returns the wait after the API server has rejected the target pod with this text.
    pub fn of_refusal(text: &str) -> Self {
        // Quota and other admission plugins return the same code and reason. KubeVirt compares this text, too.
        let quota = text.contains("exceeded quota");
        Self {
            reason: if quota { REJECTED_BY_QUOTA } else { FAILED_CREATE }.into(),
            message: text.into(),
        }
    }

    /// Returns the wait for a target pod that does not start.
    pub fn of_target_pod(hindrance: &Hindrance) -> Self {
        let reason = match hindrance.reason.as_str() {
            NOT_SCHEDULED => "TargetPodNotScheduled",
            _ if hindrance.unscheduled => "TargetPodUnschedulable",
            reason => reason,
        };
        Self {
            reason: reason.into(),
            message: hindrance.message.clone(),
        }
    }

    /// Returns the wait for the next target pod after the kubelet rejected the previous one.
    pub fn of_rejection(rejected: &Rejected) -> Self {
        Self {
            reason: TARGET_POD_REJECTED.into(),
            message: format!(
                "the kubelet rejected the target pod, and another target pod follows ({} of {ATTEMPTS}): {}",
                rejected.count + 1,
                rejected.message
            ),
        }
    }

    /// Returns whether a reason means that the API server rejects the target pod.
    pub fn is_refusal(reason: &str) -> bool {
        [REJECTED_BY_QUOTA, FAILED_CREATE].contains(&reason)
    }

    /// Returns the wait that the condition of a migration reports.
    pub fn reported(migration: &VirtualMachineInstanceMigration) -> Option<Self> {
        let reported = find(&migration.status.as_ref()?.conditions, WAITING)?;
        Some(Self {
            reason: reported.reason.clone().unwrap_or_default(),
            message: reported.message.clone().unwrap_or_default(),
        })
    }
}

/// The observed obstacles that hold a migration back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Obstacles<'a> {
    /// The API server's message when it last refused the target pod, and when the next attempt is due.
    pub refused: Option<(&'a str, Timestamp)>,
    /// The kubelet rejected the target pod, and another follows.
    pub rejected: Option<&'a Rejected>,
    /// State of the target pod, while it starts.
    pub starting: Option<&'a StartingPod>,
    /// The migration's wait in the queue.
    pub queued: Option<Wait>,
    /// The deadline of the migration's phase.
    pub deadline: Option<&'a PhaseDeadline>,
    /// The agent for which the migration waits once its sides are named.
    pub awaited: Option<&'a AwaitedAgent>,
}

impl Obstacles<'_> {
    /// Returns the wait of a migration in this state, with a message that changes only when the reason does.
    pub fn waiting(&self, record: &MigrationRecord, now: Timestamp) -> Option<Waiting> {
        if let Some((message, _)) = self.refused {
            return Some(Waiting::of_refusal(message));
        }
        if record.has_sides() {
            return self.late_agent(record, now);
        }
        if let Some(rejected) = self.rejected {
            return Some(Waiting::of_rejection(rejected));
        }
        let hindrance = self.starting.and_then(|pod| pod.hindrance.as_ref());
        if let Some(hindrance) = hindrance.filter(|_| record.phase == Some(MigrationPhase::Scheduling)) {
            return Some(Waiting::of_target_pod(hindrance));
        }
        self.queued.map(|wait| Waiting {
            reason: wait.reason.as_str().into(),
            message: wait.to_string(),
        })
    }

    /// Returns the wait for an agent that is late in the phase of this record.
    fn late_agent(&self, record: &MigrationRecord, now: Timestamp) -> Option<Waiting> {
        let late = self
            .awaited
            .filter(|awaited| record.phase == Some(awaited.phase) && awaited.late_from <= now)?;
        Some(Waiting {
            reason: late.reason.into(),
            message: late.message.clone(),
        })
    }

    /// Returns when the first of these obstacles may begin or end without a change: the deadline passes, an agent is
    /// late, the target pod is due for a check, or another attempt to create it is due.
    pub fn reconcile_at(&self, now: Timestamp) -> Option<Timestamp> {
        let later = [
            self.deadline.map(|deadline| deadline.at),
            self.rejected.map(|rejected| rejected.again_at),
            self.refused.map(|(_, again_at)| again_at),
            self.awaited.map(|awaited| awaited.late_from),
        ];
        let later = later.into_iter().flatten().filter(|at| now < *at);
        later.chain(self.starting.and_then(|pod| pod.wake)).min()
    }
}

#[cfg(test)]
mod tests;
