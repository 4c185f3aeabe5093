//! Phases that may be over within a moment, and are not written by themselves.

use std::{sync::Arc, time::Duration};

use drydock_api::kubevirt::{VirtualMachineInstanceMigration, migration::MigrationPhase};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::{
    queue::WaitReason, record::reached_at, sides::source, status::StatusChange, target_pods::pod_of, waiting::Waiting,
};

/// A phase that is over within this time is recorded, but not written by itself. Times of phases are in whole seconds,
/// so the effective limit is between two and three seconds.
pub const STATUS_COALESCE: Duration = Duration::from_secs(3);

/// Returns the time by which a phase has to be written that may be over within a moment: the guest moves, or its target
/// pod starts. Until then, no component can act on the phase. Returns `None` if anything else has changed, since such a
/// change is written at once.
pub fn may_be_over_by(
    migration: &VirtualMachineInstanceMigration,
    change: &StatusChange,
    pods: &[Arc<Pod>],
    now: Timestamp,
) -> Option<Timestamp> {
    if change.abort.is_some() || change.source_gone || change.fail.is_some() {
        return None;
    }
    let reported = Waiting::reported(migration);
    // While the target pod starts, neither the limit that the migration waits for nor the end of the wait is news: both
    // may change soon.
    let is_its_turn = reported
        .as_ref()
        .is_none_or(|reported| WaitReason::is_one(&reported.reason));
    let is_news = match change.enter.as_slice() {
        [.., MigrationPhase::Scheduling] if is_its_turn => {
            let waiting = change.waiting.as_ref();
            waiting.is_some_and(|waiting| !WaitReason::is_one(&waiting.reason))
        }
        _ => change.waiting != reported,
    };
    if is_news {
        return None;
    }
    let began = match change.enter.as_slice() {
        [MigrationPhase::TargetReady] => reached_at(migration, MigrationPhase::PreparingTarget)?,
        [.., MigrationPhase::Running] => source(migration)?.start_timestamp?,
        [.., MigrationPhase::Scheduling] => pod_of(migration, pods)?.metadata.creation_timestamp.as_ref()?.0,
        _ => return None,
    };
    // A time in the future comes from a clock that is ahead, and would defer the write by as much.
    let until = began.checked_add(STATUS_COALESCE).ok()?;
    (began <= now && now < until).then_some(until)
}

#[cfg(test)]
mod tests;
