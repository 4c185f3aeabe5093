//! Converts what libvirt, the tunnel and the object report to the input of decisions.

use drydock_api::{kubevirt::VirtualMachineInstanceMigration, launcher::Outcome};
use drydock_core::{
    domain::domain_name,
    instance::ending::ended,
    migration::{
        hand_over::Proof,
        source::{Job, SourceDomain, SourceTunnel},
        target::{TargetDomain, TargetTunnel},
    },
};
use drydock_host::domain::{CallError, JobInfo, JobOperation, PausedReason, RunningReason, ShutOffReason, State};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::tunnel::{
    local::{Reply, Role, SessionState},
    tunnels::Tunnels,
};

/// Returns the UID of the pod of that side.
pub(super) fn pod_uid(migration: &VirtualMachineInstanceMigration, role: Role) -> Option<&str> {
    let status = migration.status.as_ref()?;
    match role {
        Role::Source => status.source.as_ref()?.pod_uid.as_deref(),
        Role::Target => status.target.as_ref()?.pod_uid.as_deref(),
        Role::Unknown => None,
    }
}

/// Returns the name of the libvirt domain that moves.
pub(super) fn domain_of(migration: &VirtualMachineInstanceMigration) -> String {
    domain_name(&migration.namespace().unwrap_or_default(), &migration.spec.vmi_name)
}

/// Returns the state of the guest at its source.
pub(super) fn source_domain(state: &Result<State, CallError>) -> SourceDomain {
    match state {
        Ok(State::Running(_) | State::Blocked | State::PmSuspended) => SourceDomain::Running,
        Ok(State::Paused(PausedReason::Migration)) => SourceDomain::Leaving,
        Ok(State::Paused(PausedReason::PostCopy | PausedReason::PostCopyFailed)) => SourceDomain::PostCopy,
        Ok(State::Paused(_)) => SourceDomain::Paused,
        Ok(State::ShutOff(ShutOffReason::Migrated)) => SourceDomain::Left,
        // Its QEMU is about to end, because the guest shuts down or because it has left. Which of the two is known
        // only after QEMU has ended.
        Ok(State::ShuttingDown) => SourceDomain::Unknown,
        // A restarted libvirtd has lost the reason. The pod's end reveals it.
        Ok(State::ShutOff(ShutOffReason::Unknown(_)) | State::NoState | State::Unknown { .. }) | Err(_) => {
            SourceDomain::Unknown
        }
        Ok(State::ShutOff(_) | State::Crashed(_)) => SourceDomain::Ended,
    }
}

/// Returns the state of the guest at its source according to the end of its pod; `None` if the pod has not ended.
pub(super) fn source_by_pod(pod: &Pod) -> Option<SourceDomain> {
    Some(match ended(pod)?.outcome {
        Some(Outcome::Migrated) => SourceDomain::Left,
        Some(Outcome::Unknown) => SourceDomain::Unknown,
        _ => SourceDomain::Ended,
    })
}

/// Returns the job of a domain at its source.
pub(super) fn job(info: &Result<Option<JobInfo>, CallError>) -> Job {
    match info {
        Err(_) => Job::Unknown,
        Ok(Some(job)) if job.is_active() && job.operation == JobOperation::OutgoingMigration => Job::Outgoing,
        Ok(_) => Job::None,
    }
}

/// Returns the state of the source's session.
pub(super) fn source_tunnel(tunnels: &Tunnels, migration: &str) -> SourceTunnel {
    match session(tunnels, migration, Role::Source) {
        Found::Unknown => SourceTunnel::Unknown,
        Found::Missing => SourceTunnel::Missing,
        Found::Open(state) => {
            if state.reply == Reply::Unknown {
                return SourceTunnel::Unknown;
            }
            let reply_read = state.reply == Reply::Consumed;
            // A session that carries nothing any more still has its observations.
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

/// Returns the state of the guest at its target.
pub(super) fn target_domain(state: &Result<State, CallError>) -> TargetDomain {
    match state {
        Err(CallError::NoDomain) => TargetDomain::Absent,
        // Its QEMU is about to end. libvirt also reports this for a guest that is still arriving and has never run.
        Ok(State::ShuttingDown) => TargetDomain::Unknown,
        Err(_) | Ok(State::NoState | State::Unknown { .. }) => TargetDomain::Unknown,
        // libvirt reports this once all of the guest has arrived. Before that, the domain is paused for other
        // reasons: starting up, or migrating.
        Ok(State::Paused(PausedReason::User)) => TargetDomain::Complete,
        Ok(
            State::Running(RunningReason::PostCopy | RunningReason::PostCopyFailed)
            | State::Paused(PausedReason::PostCopy | PausedReason::PostCopyFailed),
        ) => TargetDomain::PostCopy,
        Ok(State::Paused(_)) => TargetDomain::Incoming,
        Ok(State::Running(_) | State::Blocked | State::PmSuspended) => TargetDomain::Running,
        Ok(State::ShutOff(_) | State::Crashed(_)) => TargetDomain::Over,
    }
}

/// Returns whether the connection for the rest of a guest is broken. libvirt has no way to recover it over unix
/// sockets (its own recovery crashes the target's daemon), so such a guest can never continue.
pub(super) fn post_copy_is_broken(state: &Result<State, CallError>) -> bool {
    matches!(
        state,
        Ok(State::Running(RunningReason::PostCopyFailed) | State::Paused(PausedReason::PostCopyFailed))
    )
}

/// Returns the state of the guest at its target according to the end of its pod; `None` if the pod has not ended.
pub(super) fn target_by_pod(pod: &Pod) -> Option<TargetDomain> {
    let ended = ended(pod)?;
    Some(match ended.outcome {
        Some(Outcome::NotStarted) => TargetDomain::Absent,
        Some(Outcome::Unknown) => TargetDomain::Unknown,
        _ => TargetDomain::Over,
    })
}

/// Returns the state of the target's session.
pub(super) fn target_tunnel(tunnels: &Tunnels, migration: &str) -> TargetTunnel {
    match session(tunnels, migration, Role::Target) {
        Found::Unknown => TargetTunnel::Unknown,
        Found::Missing => TargetTunnel::Missing,
        Found::Open(state) if state.released == Some(Proof::Unknown) => TargetTunnel::Unknown,
        Found::Open(state) => TargetTunnel::Open {
            paired: state.paired,
            released: state.released.is_some(),
            taken_over: state.resumed,
        },
    }
}

enum Found {
    Unknown,
    Missing,
    Open(SessionState),
}

fn session(tunnels: &Tunnels, migration: &str, role: Role) -> Found {
    let known = tunnels.sessions();
    let known = known.borrow();
    match known.sessions.get(migration) {
        Some(session) if session.state.role == role => Found::Open(session.state.clone()),
        Some(session) if session.state.role == Role::Unknown => Found::Unknown,
        _ if known.is_complete => Found::Missing,
        _ => Found::Unknown,
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
            (State::Running(RunningReason::Booted), D::Running),
            (State::Running(RunningReason::MigrationCanceled), D::Running),
            (State::PmSuspended, D::Running),
            (State::Paused(PausedReason::User), D::Paused),
            (State::Paused(PausedReason::IoError), D::Paused),
            (State::Paused(PausedReason::Migration), D::Leaving),
            (State::Paused(PausedReason::PostCopy), D::PostCopy),
            (State::Paused(PausedReason::PostCopyFailed), D::PostCopy),
            (State::ShuttingDown, D::Unknown),
            (State::ShutOff(ShutOffReason::Migrated), D::Left),
            (State::ShutOff(ShutOffReason::Shutdown), D::Ended),
            (State::ShutOff(ShutOffReason::Destroyed), D::Ended),
            (State::ShutOff(ShutOffReason::Unknown(0)), D::Unknown),
            (State::Crashed(CrashedReason::Panicked), D::Ended),
            (State::NoState, D::Unknown),
            (State::Unknown { state: 99, reason: 0 }, D::Unknown),
        ] {
            assert_eq!(source_domain(&Ok(state)), expected, "{state}");
        }
        assert_eq!(source_domain(&Err(CallError::NoDomain)), D::Unknown);
    }

    #[test]
    fn target_has_a_running_guest_only_if_libvirt_reports_it() {
        use TargetDomain as D;
        for (state, expected) in [
            (State::Running(RunningReason::Unpaused), D::Running),
            (State::Running(RunningReason::Migrated), D::Running),
            (State::PmSuspended, D::Running),
            (State::Running(RunningReason::PostCopy), D::PostCopy),
            (State::Running(RunningReason::PostCopyFailed), D::PostCopy),
            (State::Paused(PausedReason::PostCopy), D::PostCopy),
            (State::Paused(PausedReason::PostCopyFailed), D::PostCopy),
            (State::Paused(PausedReason::User), D::Complete),
            (State::Paused(PausedReason::StartingUp), D::Incoming),
            (State::Paused(PausedReason::Migration), D::Incoming),
            (State::ShuttingDown, D::Unknown),
            (State::ShutOff(ShutOffReason::Destroyed), D::Over),
            (State::Crashed(CrashedReason::Panicked), D::Over),
            (State::NoState, D::Unknown),
            (State::Unknown { state: 99, reason: 0 }, D::Unknown),
        ] {
            assert_eq!(target_domain(&Ok(state)), expected, "{state}");
        }
        assert_eq!(target_domain(&Err(CallError::NoDomain)), D::Absent);
    }
}
