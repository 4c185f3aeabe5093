//! The controller's part of a migration's status.

use drydock_api::kubevirt::{
    Condition, VirtualMachineInstanceMigration,
    migration::{
        MigrationAbort, MigrationConfiguration, MigrationMode, MigrationPhase, MigrationPhaseTransition,
        MigrationSource, MigrationState, MigrationTarget, VirtualMachineInstanceMigrationStatus,
    },
};
use jiff::Timestamp;

use super::{
    cluster::MigrationFailure,
    named_sides::Sides,
    record::has_arrived,
    waiting::{WAITING, Waiting},
};
use crate::{
    conditions::{ConditionStatus, whole_seconds},
    vm_conditions::condition,
};

/// Condition type: an abort was requested. KubeVirt's name.
pub const ABORT_REQUESTED: &str = "migrationAbortRequested";

/// Condition type: the guest runs on its target, and a part of its memory is still on its source.
pub const POST_COPY: &str = "PostCopy";
/// Reason of [`POST_COPY`], and of the side that has detected it: the memory on the source can no longer arrive.
pub const POST_COPY_BROKEN: &str = "PostCopyBroken";
/// Message for [`POST_COPY_BROKEN`].
pub const POST_COPY_BROKEN_MESSAGE: &str = "the connection that transfers the remaining memory of the guest broke after the switch to post-copy: the guest \
     is stopped and cannot continue; delete the VirtualMachineInstance to end the guest on both nodes";
/// Reason of [`POST_COPY`]: the memory that is still on the source is being transferred.
const SWITCHED: &str = "Switched";

/// A change to the controller's part of the status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatusChange {
    /// Phases to enter, in order.
    pub enter: Vec<MigrationPhase>,
    /// Node on which the guest runs, if known.
    pub source_node: Option<String>,
    /// Both sides, together with [`MigrationPhase::PreparingTarget`].
    pub sides: Option<Sides>,
    /// The failure, with a side's message.
    pub fail: Option<(MigrationFailure, String)>,
    /// Reason of the exceeded deadline, if it is reported instead of the failure's own.
    pub deadline: Option<&'static str>,
    /// The reason of an abort, with details.
    pub abort: Option<(MigrationFailure, String)>,
    /// The source node is gone for good.
    pub source_gone: bool,
    /// The reason why the migration waits; `None` if it does not wait.
    pub waiting: Option<Waiting>,
}

impl StatusChange {
    /// Enters a phase. A success also enters the phases after `before` that were over within a moment, and so were not
    /// written by themselves.
    pub fn enter(&mut self, before: Option<MigrationPhase>, phase: MigrationPhase) {
        if phase == MigrationPhase::Succeeded {
            let skipped = [MigrationPhase::TargetReady, MigrationPhase::Running];
            self.enter
                .extend(skipped.into_iter().filter(|phase| Some(*phase) > before));
        }
        self.enter.push(phase);
    }
}

/// Returns whether a phase is written before anything else is planned: both sides act on the written phase.
pub fn is_written_at_once(phase: MigrationPhase) -> bool {
    matches!(
        phase,
        MigrationPhase::PreparingTarget | MigrationPhase::Succeeded | MigrationPhase::Failed
    )
}

/// Returns the controller's complete part of the status after a change. Server-side apply would remove fields that are
/// left out.
pub fn after(
    migration: &VirtualMachineInstanceMigration,
    change: &StatusChange,
    now: Timestamp,
) -> VirtualMachineInstanceMigrationStatus {
    let before = migration.status.clone().unwrap_or_default();
    let failed = change.fail.as_ref();
    let phase = failed
        .map(|_| MigrationPhase::Failed)
        .or(change.enter.last().copied())
        .or(before.phase);
    let abort = change.abort.as_ref().map(|(failure, detail)| MigrationAbort {
        reason: failure.reason().into(),
        message: failure_message(*failure, detail),
    });
    let mut after = VirtualMachineInstanceMigrationStatus {
        phase,
        reason: failed.map_or_else(
            || {
                before
                    .reason
                    .clone()
                    .filter(|_| phase.is_some_and(MigrationPhase::is_final))
            },
            |(failure, _)| Some(change.deadline.unwrap_or(failure.reason()).into()),
        ),
        phase_transition_timestamps: transitions(&before, change.enter.iter().copied().chain(phase), now),
        conditions: Vec::new(),
        migration_state: None,
        guest: before.guest.clone(),
        abort: before.abort.clone().or(abort),
        source_gone: before.source_gone || change.source_gone,
        source_node: before.source_node.clone(),
        source: before.source.as_ref().map(|side| MigrationSource {
            node: side.node.clone(),
            pod: side.pod.clone(),
            pod_uid: side.pod_uid.clone(),
            ..MigrationSource::default()
        }),
        target: before.target.as_ref().map(|side| MigrationTarget {
            node: side.node.clone(),
            pod: side.pod.clone(),
            pod_uid: side.pod_uid.clone(),
            ..MigrationTarget::default()
        }),
    };
    let mut configuration = before
        .migration_state
        .as_ref()
        .and_then(|state| state.migration_configuration.clone());
    if let Some(sides) = &change.sides {
        after.source = Some(sides.named_source());
        after.target = Some(sides.named_target());
        after.guest = Some(sides.guest.clone());
        configuration = Some(sides.configuration.clone());
    }
    if !before.phase.is_some_and(MigrationPhase::is_final) {
        let named = after.source.as_ref().and_then(|side| side.node.clone());
        let known = named.or_else(|| change.source_node.clone());
        after.source_node = known.or(after.source_node);
    }
    let waiting = change.waiting.as_ref();
    after.conditions = conditions(migration, &after, waiting, now);
    after.migration_state = state(migration, &after, failed, configuration, now);
    after
}

/// Returns the conditions of a migration with the phase and the abort of `after`.
fn conditions(
    migration: &VirtualMachineInstanceMigration,
    after: &VirtualMachineInstanceMigrationStatus,
    waiting: Option<&Waiting>,
    now: Timestamp,
) -> Vec<Condition> {
    let before = migration.status.clone().unwrap_or_default();
    let over = after.phase.is_some_and(MigrationPhase::is_final);
    let mut conditions = Vec::new();
    let mut hold = |type_: &str, reason: &str, message: &str| {
        conditions.push(condition(
            &before.conditions,
            type_,
            ConditionStatus::True,
            reason,
            message,
            now,
        ));
    };
    if let Some(waiting) = waiting.filter(|_| !over) {
        hold(WAITING, &waiting.reason, &waiting.message);
    }
    if let Some(abort) = &after.abort {
        hold(ABORT_REQUESTED, &abort.reason, &abort.message);
    } else if migration.metadata.deletion_timestamp.is_some() {
        hold(ABORT_REQUESTED, "Deleted", "the migration was deleted");
    }
    if let Some((reason, message)) = post_copy(&before).filter(|_| !over) {
        hold(POST_COPY, reason, &message);
    }
    conditions
}

/// Returns whether a side has reported that post-copy is broken.
pub fn post_copy_is_reported_broken(reported: &VirtualMachineInstanceMigrationStatus) -> bool {
    let source = reported.source.as_ref().and_then(|source| source.reason.as_deref());
    let target = reported.target.as_ref().and_then(|target| target.reason.as_deref());
    [source, target].contains(&Some(POST_COPY_BROKEN))
}

/// Returns reason and message of the condition [`POST_COPY`], until all memory has arrived.
fn post_copy(reported: &VirtualMachineInstanceMigrationStatus) -> Option<(&'static str, String)> {
    if post_copy_is_reported_broken(reported) {
        return Some((POST_COPY_BROKEN, POST_COPY_BROKEN_MESSAGE.into()));
    }
    let switched = reported
        .source
        .as_ref()
        .is_some_and(|source| source.mode == Some(MigrationMode::PostCopy));
    let arrived = has_arrived(reported);
    let message = "the guest runs on the target, and a part of its memory is still on the source: until all memory has \
                   arrived, the guest is lost if the connection breaks or either pod ends; the migration can be \
                   neither aborted nor reversed";
    (switched && !arrived).then(|| (SWITCHED, message.into()))
}

/// Returns a failure's sentence, with a side's message appended.
pub fn failure_message(failure: MigrationFailure, detail: &str) -> String {
    if detail.is_empty() {
        failure.sentence().into()
    } else {
        format!("{}: {detail}", failure.sentence().trim_end_matches('.'))
    }
}

/// Returns whether applying `wanted` would change `migration`.
pub fn differs(migration: &VirtualMachineInstanceMigration, wanted: &VirtualMachineInstanceMigrationStatus) -> bool {
    let current = migration.status.clone().unwrap_or_default();
    let names = |source: &Option<MigrationSource>| {
        source
            .as_ref()
            .map(|side| [side.node.clone(), side.pod.clone(), side.pod_uid.clone()])
    };
    // The reports of the sides alone are no reason for a write. They are copied with the next change.
    let state = |status: &VirtualMachineInstanceMigrationStatus| {
        let state = status.migration_state.clone().unwrap_or_default();
        (state.completed, state.failure_reason, state.abort_status)
    };
    !(current.phase == wanted.phase
        && current.reason == wanted.reason
        && current.conditions == wanted.conditions
        && state(&current) == state(wanted)
        && current.abort == wanted.abort
        && current.source_gone == wanted.source_gone
        && current.source_node == wanted.source_node
        && names(&current.source) == names(&wanted.source))
}

fn transitions(
    before: &VirtualMachineInstanceMigrationStatus,
    phases: impl Iterator<Item = MigrationPhase>,
    now: Timestamp,
) -> Vec<MigrationPhaseTransition> {
    let mut all = before.phase_transition_timestamps.clone();
    // Values of a later version cannot be written back unchanged.
    all.retain(|transition| transition.phase != MigrationPhase::Unknown);
    let began = before.source.as_ref().and_then(|source| source.start_timestamp);
    for phase in phases {
        if !all.iter().any(|transition| transition.phase == phase) {
            let reported_at = match phase {
                MigrationPhase::TargetReady | MigrationPhase::Running => began,
                _ => None,
            };
            all.push(MigrationPhaseTransition {
                phase,
                phase_transition_timestamp: reported_at.unwrap_or_else(|| whole_seconds(now).0),
            });
        }
    }
    all
}

/// Returns KubeVirt's `migrationState`; `None` before the sides are named.
fn state(
    migration: &VirtualMachineInstanceMigration,
    after: &VirtualMachineInstanceMigrationStatus,
    failed: Option<&(MigrationFailure, String)>,
    configuration: Option<MigrationConfiguration>,
    now: Timestamp,
) -> Option<MigrationState> {
    let reported = migration.status.clone().unwrap_or_default();
    let before = reported.migration_state.clone().unwrap_or_default();
    let named = after.source.as_ref().filter(|side| side.node.is_some());
    if named.is_none() && failed.is_none() && reported.migration_state.is_none() {
        return None;
    }
    let over = after.phase.is_some_and(MigrationPhase::is_final);
    let source = reported.source.clone().unwrap_or_default();
    let target = reported.target.clone().unwrap_or_default();
    let aborted = migration.metadata.deletion_timestamp.is_some() || after.abort.is_some();
    Some(MigrationState {
        migration_uid: migration.metadata.uid.clone(),
        // The target prepares from here on. The source reports when the guest itself began to move.
        start_timestamp: before
            .start_timestamp
            .or_else(|| named.is_some().then(|| whole_seconds(now).0)),
        end_timestamp: before.end_timestamp.or_else(|| over.then(|| whole_seconds(now).0)),
        mode: source.mode,
        source_node: named.and_then(|side| side.node.clone()),
        source_pod: named.and_then(|side| side.pod.clone()),
        target_node: after.target.as_ref().and_then(|side| side.node.clone()),
        target_pod: after.target.as_ref().and_then(|side| side.pod.clone()),
        target_node_address: target.address.clone(),
        target_node_domain_detected: has_arrived(&reported),
        completed: over,
        failed: after.phase == Some(MigrationPhase::Failed),
        failure_reason: failed
            .map(|(failure, detail)| failure_message(*failure, detail))
            .or(before.failure_reason),
        abort_requested: aborted,
        abort_status: aborted.then(|| {
            match after.phase {
                Some(MigrationPhase::Failed) => "Succeeded",
                Some(MigrationPhase::Succeeded) => "Failed",
                _ => "Aborting",
            }
            .into()
        }),
        migration_configuration: configuration,
    })
}

#[cfg(test)]
mod tests;
