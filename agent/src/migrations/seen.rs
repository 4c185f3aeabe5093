//! Converts the states from libvirt, the tunnel and the object to the input of decisions.

use drydock_api::{kubevirt::VirtualMachineInstanceMigration, launcher::GuestOutcome};
use drydock_core::{
    domain::domain_name,
    instance::ending::ended,
    migration::{
        hand_over::Proof,
        source::{JobState, SourceDomain, SourceTunnel},
        target::{TargetDomain, TargetTunnel},
    },
};
use drydock_host::domain::{CallError, DomainState, JobInfo, JobOperation, PausedReason, RunningReason, ShutOffReason};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::tunnel::{
    local::{ReplyProgress, Role, SessionState},
    tunnels::Tunnels,
};

/// Returns the UID of the pod of the side with this role.
pub(super) fn pod_uid(migration: &VirtualMachineInstanceMigration, role: Role) -> Option<&str> {
    let status = migration.status.as_ref()?;
    match role {
        Role::Source => status.source.as_ref()?.pod_uid.as_deref(),
        Role::Target => status.target.as_ref()?.pod_uid.as_deref(),
        Role::Unknown => None,
    }
}

/// Returns the name of the libvirt domain that migrates.
pub(super) fn domain_of(migration: &VirtualMachineInstanceMigration) -> String {
    domain_name(&migration.namespace().unwrap_or_default(), &migration.spec.vmi_name)
}

/// Returns the state of the guest at its source.
pub(super) fn source_domain(state: &Result<DomainState, CallError>) -> SourceDomain {
    match state {
        Ok(DomainState::Running(_) | DomainState::Blocked | DomainState::PmSuspended) => SourceDomain::Running,
        Ok(DomainState::Paused(PausedReason::Migration)) => SourceDomain::Leaving,
        Ok(DomainState::Paused(PausedReason::PostCopy | PausedReason::PostCopyFailed)) => SourceDomain::PostCopy,
        Ok(DomainState::Paused(_)) => SourceDomain::Paused,
        Ok(DomainState::ShutOff(ShutOffReason::Migrated)) => SourceDomain::Left,
        // The QEMU of the domain is about to end, because the guest shuts down or because it has left. The reason is
        // known only after QEMU has ended.
        Ok(DomainState::ShuttingDown) => SourceDomain::Unknown,
        // A restarted libvirtd has lost the reason. The end of the pod reveals it.
        Ok(DomainState::ShutOff(ShutOffReason::Unknown(_)) | DomainState::NoState | DomainState::Unknown { .. })
        | Err(_) => SourceDomain::Unknown,
        Ok(DomainState::ShutOff(_) | DomainState::Crashed(_)) => SourceDomain::Ended,
    }
}

/// Returns the state of the guest at its source according to the end of the pod; `None` if the pod has not ended.
pub(super) fn source_by_pod(pod: &Pod) -> Option<SourceDomain> {
    Some(match ended(pod)?.outcome {
        Some(GuestOutcome::Migrated) => SourceDomain::Left,
        Some(GuestOutcome::Unknown) => SourceDomain::Unknown,
        _ => SourceDomain::Ended,
    })
}

/// Returns the state of the migration job of a domain at its source.
pub(super) fn job(info: &Result<Option<JobInfo>, CallError>) -> JobState {
    match info {
        Err(_) => JobState::Unknown,
        Ok(Some(job)) if job.is_active() && job.operation == JobOperation::OutgoingMigration => JobState::Outgoing,
        Ok(_) => JobState::None,
    }
}

/// Returns the state of the source's session.
pub(super) fn source_tunnel(tunnels: &Tunnels, migration: &str) -> SourceTunnel {
    match session(tunnels, migration, Role::Source) {
        FoundSession::Unknown => SourceTunnel::Unknown,
        FoundSession::Missing => SourceTunnel::Missing,
        FoundSession::Open(state) => {
            if state.reply == ReplyProgress::Unknown {
                return SourceTunnel::Unknown;
            }
            let reply_read = state.reply == ReplyProgress::Consumed;
            // A session that no longer carries streams still has its observations.
            if state.ended.is_some() && !reply_read {
                return SourceTunnel::Missing;
            }
            SourceTunnel::Open {
                paired: state.paired,
                reply_read,
                acknowledged: state.acknowledged,
            }
        }
    }
}

/// Returns the state of the guest at its target. `may_be_incomplete`: whether the guest may have been switched to
/// post-copy, and the rest of its memory may still be at the source.
pub(super) fn target_domain(state: &Result<DomainState, CallError>, may_be_incomplete: bool) -> TargetDomain {
    match state {
        Err(CallError::NoDomain) => TargetDomain::Absent,
        // The QEMU of the domain is about to end. libvirt also reports this for a guest that is still arriving and has
        // never run.
        Ok(DomainState::ShuttingDown) => TargetDomain::Unknown,
        Err(_) | Ok(DomainState::NoState | DomainState::Unknown { .. }) => TargetDomain::Unknown,
        // libvirt reports this reason once the complete guest has arrived. Before that, the domain is paused for
        // another reason: starting up or migrating.
        Ok(DomainState::Paused(PausedReason::User)) => TargetDomain::Complete,
        Ok(
            DomainState::Running(RunningReason::PostCopy | RunningReason::PostCopyFailed)
            | DomainState::Paused(PausedReason::PostCopy | PausedReason::PostCopyFailed),
        ) => TargetDomain::PostCopy,
        // An error of a disk pauses the guest as soon as it runs. The reason replaces the one of a switch to post-copy.
        Ok(DomainState::Paused(reason)) if reason.follows_a_run() && may_be_incomplete => TargetDomain::PostCopy,
        Ok(DomainState::Paused(reason)) if reason.follows_a_run() => TargetDomain::Running,
        Ok(DomainState::Paused(_)) => TargetDomain::Incoming,
        Ok(DomainState::Running(_) | DomainState::Blocked | DomainState::PmSuspended) => TargetDomain::Running,
        Ok(DomainState::ShutOff(_) | DomainState::Crashed(_)) => TargetDomain::Over,
    }
}

/// Returns whether the post-copy connection for the rest of a guest is broken.
///
/// libvirt cannot recover the connection over Unix sockets (its own recovery crashes the target's daemon), so the guest
/// can never continue.
pub(super) fn post_copy_is_broken(state: &Result<DomainState, CallError>) -> bool {
    matches!(
        state,
        Ok(DomainState::Running(RunningReason::PostCopyFailed) | DomainState::Paused(PausedReason::PostCopyFailed))
    )
}

/// Returns the state of the guest at its target according to the end of the pod; `None` if the pod has not ended.
pub(super) fn target_by_pod(pod: &Pod) -> Option<TargetDomain> {
    let ended = ended(pod)?;
    Some(match ended.outcome {
        Some(GuestOutcome::NotStarted) => TargetDomain::Absent,
        Some(GuestOutcome::Unknown) => TargetDomain::Unknown,
        _ => TargetDomain::Over,
    })
}

/// Returns the state of the target's session.
pub(super) fn target_tunnel(tunnels: &Tunnels, migration: &str) -> TargetTunnel {
    match session(tunnels, migration, Role::Target) {
        FoundSession::Unknown => TargetTunnel::Unknown,
        FoundSession::Missing => TargetTunnel::Missing,
        FoundSession::Open(state) if state.released == Some(Proof::Unknown) => TargetTunnel::Unknown,
        FoundSession::Open(state) => TargetTunnel::Open {
            paired: state.paired,
            released: state.released.is_some(),
            taken_over: state.resumed,
        },
    }
}

enum FoundSession {
    Unknown,
    Missing,
    Open(SessionState),
}

fn session(tunnels: &Tunnels, migration: &str, role: Role) -> FoundSession {
    let known = tunnels.sessions();
    let known = known.borrow();
    match known.sessions.get(migration) {
        Some(session) if session.state.role == role => FoundSession::Open(session.state.clone()),
        Some(session) if session.state.role == Role::Unknown => FoundSession::Unknown,
        _ if known.is_complete => FoundSession::Missing,
        _ => FoundSession::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use drydock_host::domain::CrashedReason;

    use super::*;

    #[test]
    fn source_state_follows_libvirt_state() {
        use SourceDomain as D;
        for (state, expected) in [
            (DomainState::Running(RunningReason::Booted), D::Running),
            (DomainState::Running(RunningReason::MigrationCanceled), D::Running),
            (DomainState::PmSuspended, D::Running),
            (DomainState::Paused(PausedReason::User), D::Paused),
            (DomainState::Paused(PausedReason::IoError), D::Paused),
            (DomainState::Paused(PausedReason::Migration), D::Leaving),
            (DomainState::Paused(PausedReason::PostCopy), D::PostCopy),
            (DomainState::Paused(PausedReason::PostCopyFailed), D::PostCopy),
            (DomainState::ShuttingDown, D::Unknown),
            (DomainState::ShutOff(ShutOffReason::Migrated), D::Left),
            (DomainState::ShutOff(ShutOffReason::Shutdown), D::Ended),
            (DomainState::ShutOff(ShutOffReason::Destroyed), D::Ended),
            (DomainState::ShutOff(ShutOffReason::Unknown(0)), D::Unknown),
            (DomainState::Crashed(CrashedReason::Panicked), D::Ended),
            (DomainState::NoState, D::Unknown),
            (DomainState::Unknown { state: 99, reason: 0 }, D::Unknown),
        ] {
            assert_eq!(source_domain(&Ok(state)), expected, "{state}");
        }
        assert_eq!(source_domain(&Err(CallError::NoDomain)), D::Unknown);
    }

    #[test]
    fn target_guest_is_running_only_if_reported_by_libvirt() {
        use TargetDomain as D;
        for (state, expected) in [
            (DomainState::Running(RunningReason::Unpaused), D::Running),
            (DomainState::Running(RunningReason::Migrated), D::Running),
            (DomainState::PmSuspended, D::Running),
            (DomainState::Running(RunningReason::PostCopy), D::PostCopy),
            (DomainState::Running(RunningReason::PostCopyFailed), D::PostCopy),
            (DomainState::Paused(PausedReason::PostCopy), D::PostCopy),
            (DomainState::Paused(PausedReason::PostCopyFailed), D::PostCopy),
            (DomainState::Paused(PausedReason::User), D::Complete),
            (DomainState::Paused(PausedReason::StartingUp), D::Incoming),
            (DomainState::Paused(PausedReason::Migration), D::Incoming),
            (DomainState::ShuttingDown, D::Unknown),
            (DomainState::ShutOff(ShutOffReason::Destroyed), D::Over),
            (DomainState::Crashed(CrashedReason::Panicked), D::Over),
            (DomainState::NoState, D::Unknown),
            (DomainState::Unknown { state: 99, reason: 0 }, D::Unknown),
        ] {
            for may_be_incomplete in [false, true] {
                assert_eq!(target_domain(&Ok(state), may_be_incomplete), expected, "{state}");
            }
        }
        assert_eq!(target_domain(&Err(CallError::NoDomain), false), D::Absent);
    }

    #[test]
    fn target_guest_with_a_disk_error_has_run() {
        use TargetDomain as D;
        for (reason, complete, may_be_incomplete) in [
            (PausedReason::IoError, D::Running, D::PostCopy),
            (PausedReason::Watchdog, D::Running, D::PostCopy),
            (PausedReason::Crashed, D::Running, D::PostCopy),
            (PausedReason::ApiError, D::Incoming, D::Incoming),
            (PausedReason::Unknown(99), D::Incoming, D::Incoming),
        ] {
            let state = Ok(DomainState::Paused(reason));
            assert_eq!(target_domain(&state, false), complete, "{reason:?}");
            assert_eq!(target_domain(&state, true), may_be_incomplete, "{reason:?}");
        }
    }
}
