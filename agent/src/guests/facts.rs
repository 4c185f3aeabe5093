//! Converts the description of a domain from libvirt to the input of decisions.

use drydock_api::kubevirt::status::{GuestCpu, GuestOsInfo};
use drydock_core::guest::{GuestAgent, GuestState, PauseCause, start::FoundDomain};
use drydock_host::domain::{self, AddressBits, DomainState, GuestInfo, PausedReason, ShutOffReason};

/// Returns whether a guest runs, according to the state of its domain.
///
/// `None` means that the last report stays in force until the guest continues on either node or has ended. This applies
/// to a guest that is paused in order to migrate or has migrated, because its migration reports it. It also applies to
/// a guest whose QEMU is about to end, because libvirt reports this state for a guest that is still arriving too.
pub(super) fn guest_state(state: DomainState) -> Option<GuestState> {
    Some(match state {
        DomainState::Paused(PausedReason::Migration | PausedReason::PostCopy | PausedReason::PostCopyFailed)
        | DomainState::ShuttingDown
        | DomainState::ShutOff(ShutOffReason::Migrated) => return None,
        DomainState::Running(_) | DomainState::Blocked => GuestState::Running,
        DomainState::Paused(reason) => GuestState::Paused(match reason {
            PausedReason::User | PausedReason::StartingUp => PauseCause::User,
            PausedReason::IoError => PauseCause::IoError,
            other => PauseCause::Other(other.as_str()),
        }),
        DomainState::PmSuspended => GuestState::Paused(PauseCause::Other("asleep")),
        DomainState::NoState | DomainState::ShutOff(_) | DomainState::Crashed(_) | DomainState::Unknown { .. } => {
            GuestState::Off
        }
    })
}

/// Converts the state of a domain. `state` is `None` if there is no domain.
///
/// For a domain that is only defined, libvirt gives no reason, which is 0. Other unknown numbers are reasons of a later
/// libvirt.
pub(super) fn found_domain(state: Option<DomainState>) -> FoundDomain {
    match state {
        None => FoundDomain::Absent,
        Some(DomainState::ShutOff(ShutOffReason::Unknown(0))) => FoundDomain::Defined,
        Some(_) => FoundDomain::HasRun,
    }
}

/// Converts the CPU of a guest.
///
/// The result contains the features that the guest has beyond its model, and the features of the model that it lacks.
/// `host_bits` is the number of physical address bits on this node.
pub(super) fn guest_cpu(cpu: &domain::LiveCpu, host_bits: Option<u32>) -> GuestCpu {
    let address_bits = match cpu.address_bits {
        None => None,
        Some(AddressBits::Emulated(bits)) => Some(bits),
        // Only the limit applies if the host's number is unknown: a guest cannot have more bits than the limit.
        Some(AddressBits::OfHost(limit)) => [limit, host_bits].into_iter().flatten().min(),
    };
    let with = |lacks: bool| {
        cpu.features
            .iter()
            .filter(|(_, policy)| ["disable", "forbid"].contains(&policy.as_str()) == lacks)
            .map(|(name, _)| name.clone())
            .collect()
    };
    GuestCpu {
        model: cpu.model.clone(),
        vendor: cpu.vendor.clone(),
        required: with(false),
        disabled: with(true),
        physical_address_bits: address_bits,
    }
}

/// Converts the report of a guest agent. `is_supported` is whether the agent has the commands that KubeVirt requires.
pub(super) fn guest_agent(info: GuestInfo, is_supported: Option<bool>) -> GuestAgent {
    let os = info.os;
    GuestAgent {
        os: GuestOsInfo {
            name: os.name,
            kernel_release: os.kernel_release,
            version: os.version,
            pretty_name: os.pretty_name,
            version_id: os.version_id,
            kernel_version: os.kernel_version,
            machine: os.machine,
            id: os.id,
        },
        interfaces: info
            .interfaces
            .into_iter()
            .map(|interface| (interface.name, interface.mac))
            .collect(),
        is_unsupported: is_supported == Some(false),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use drydock_host::domain::{CrashedReason, RunningReason};

    use super::*;

    #[test]
    fn every_state_is_running_paused_over_or_unknown() {
        for (state, expected) in [
            (DomainState::Running(RunningReason::Booted), Some(GuestState::Running)),
            (
                DomainState::Paused(PausedReason::User),
                Some(GuestState::Paused(PauseCause::User)),
            ),
            (
                DomainState::Paused(PausedReason::IoError),
                Some(GuestState::Paused(PauseCause::IoError)),
            ),
            (DomainState::ShutOff(ShutOffReason::Shutdown), Some(GuestState::Off)),
            (DomainState::Crashed(CrashedReason::Panicked), Some(GuestState::Off)),
            (DomainState::Unknown { state: 99, reason: 0 }, Some(GuestState::Off)),
            (DomainState::ShuttingDown, None),
            (DomainState::Paused(PausedReason::Migration), None),
            (DomainState::Paused(PausedReason::PostCopy), None),
            (DomainState::Paused(PausedReason::PostCopyFailed), None),
            (DomainState::ShutOff(ShutOffReason::Migrated), None),
        ] {
            assert_eq!(guest_state(state), expected, "{state:?}");
        }
    }

    #[test]
    fn domain_without_a_reason_was_only_defined() {
        for (state, expected) in [
            (None, FoundDomain::Absent),
            (
                Some(DomainState::ShutOff(ShutOffReason::Unknown(0))),
                FoundDomain::Defined,
            ),
            (
                Some(DomainState::ShutOff(ShutOffReason::Unknown(99))),
                FoundDomain::HasRun,
            ),
            (Some(DomainState::ShutOff(ShutOffReason::Shutdown)), FoundDomain::HasRun),
            (Some(DomainState::ShutOff(ShutOffReason::Failed)), FoundDomain::HasRun),
            (Some(DomainState::ShutOff(ShutOffReason::Migrated)), FoundDomain::HasRun),
            (Some(DomainState::Running(RunningReason::Booted)), FoundDomain::HasRun),
            (Some(DomainState::Paused(PausedReason::StartingUp)), FoundDomain::HasRun),
            (Some(DomainState::ShuttingDown), FoundDomain::HasRun),
            (Some(DomainState::NoState), FoundDomain::HasRun),
            (Some(DomainState::Unknown { state: 99, reason: 0 }), FoundDomain::HasRun),
        ] {
            assert_eq!(found_domain(state), expected, "{state:?}");
        }
    }

    #[test]
    fn features_are_separated_by_policy() {
        let cpu = domain::LiveCpu {
            model: "EPYC".into(),
            vendor: None,
            features: BTreeMap::from([
                ("avx2".to_owned(), "require".to_owned()),
                ("svm".to_owned(), "disable".to_owned()),
                ("monitor".to_owned(), "forbid".to_owned()),
            ]),
            ..domain::LiveCpu::default()
        };
        let cpu_facts = guest_cpu(&cpu, None);
        assert_eq!(cpu_facts.required, ["avx2"]);
        assert_eq!(cpu_facts.disabled, ["monitor", "svm"]);
    }

    #[test]
    fn address_bits_are_the_least_of_host_and_limit() {
        use AddressBits::{Emulated, OfHost};
        for (reported, host, expected) in [
            (None, Some(52), None),
            (Some(Emulated(42)), Some(52), Some(42)),
            (Some(OfHost(Some(46))), Some(52), Some(46)),
            (Some(OfHost(Some(52))), Some(46), Some(46)),
            (Some(OfHost(None)), Some(46), Some(46)),
            (Some(OfHost(Some(46))), None, Some(46)),
            (Some(OfHost(None)), None, None),
        ] {
            let cpu = domain::LiveCpu {
                address_bits: reported,
                ..domain::LiveCpu::default()
            };
            assert_eq!(
                guest_cpu(&cpu, host).physical_address_bits,
                expected,
                "{reported:?} {host:?}"
            );
        }
    }
}
