//! The details that are reported about a failure.

use std::sync::Arc;

use drydock_api::kubevirt::{VirtualMachineInstanceMigration, migration::TargetState};
use k8s_openapi::api::core::v1::Pod;

use super::{
    cluster::MigrationFailure,
    deadlines::{PhaseDeadline, TARGET_POD_NOT_READY},
    target_pods::pod_of,
};
use crate::instance::ending::ended;

/// Returns details beyond the failure itself: the message of a side, or the `deadline` that has passed.
pub fn detail(
    failure: MigrationFailure,
    migration: &VirtualMachineInstanceMigration,
    pods: &[Arc<Pod>],
    deadline: Option<&PhaseDeadline>,
) -> String {
    let status = migration.status.clone().unwrap_or_default();
    let source = status.source.unwrap_or_default();
    let target = status.target.unwrap_or_default();
    let message = match failure {
        MigrationFailure::Overdue => deadline.map(|deadline| deadline.sentence.clone()),
        MigrationFailure::GuestStayed | MigrationFailure::GuestEnded => {
            let refused = target.message.filter(|_| target.state == Some(TargetState::Refused));
            refused.or(source.message)
        }
        // If the target was lost without a message, the error of the source's libvirt explains it.
        MigrationFailure::TargetLost => target.message.or(source.message),
        MigrationFailure::TargetRefused | MigrationFailure::LostOnTarget => target.message,
        MigrationFailure::PodEnded => pod_of(migration, pods)
            .and_then(|pod| ended(pod))
            .map(|ended| ended.message),
        MigrationFailure::AnotherMigration
        | MigrationFailure::InstanceMissing
        | MigrationFailure::InstanceEnded
        | MigrationFailure::NotMigratable
        | MigrationFailure::Canceled
        | MigrationFailure::PodRemoved
        | MigrationFailure::SourceNodeGone => None,
    };
    message.unwrap_or_default()
}

/// Returns the reason to report instead of the failure's own, if any: the next attempt depends on whether the target
/// pod got a node and did not run there.
pub fn reason(failure: MigrationFailure, deadline: Option<&PhaseDeadline>) -> Option<&'static str> {
    let deadline = deadline.filter(|_| failure == MigrationFailure::Overdue)?;
    (deadline.reason == TARGET_POD_NOT_READY).then_some(TARGET_POD_NOT_READY)
}

#[cfg(test)]
mod tests;
