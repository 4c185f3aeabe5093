//! Whether a node accepts virtual machines, and whether its kubelet pins CPUs.

use drydock_api::facts::{KvmState, NodeFacts, VirtType};

use crate::labels;

/// Whether a node accepts virtual machines, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeReadiness {
    /// The node accepts virtual machines, with hardware virtualization.
    Ready,
    /// The node accepts virtual machines in emulation, which the configuration allows.
    ReadyByEmulation,
    /// The capabilities of the node have not been inspected yet.
    NotInspected,
    /// Guests of the node's architecture are not supported.
    ArchitectureNotSupported,
    /// KVM cannot be used, and the configuration does not allow emulation.
    KvmUnavailable(KvmState),
}

impl NodeReadiness {
    /// Returns the readiness of a node with these facts.
    pub fn of(facts: Option<&NodeFacts>, use_emulation: bool) -> Self {
        let Some(facts) = facts else { return Self::NotInspected };
        if !labels::is_supported(&facts.architecture) {
            return Self::ArchitectureNotSupported;
        }
        match &facts.virtualization {
            None => Self::NotInspected,
            Some(virtualization) if virtualization.virt_type == VirtType::Kvm => Self::Ready,
            Some(_) if use_emulation => Self::ReadyByEmulation,
            Some(_) => Self::KvmUnavailable(facts.kvm.state),
        }
    }

    /// Returns whether virtual machines are accepted.
    pub fn accepts(self) -> bool {
        matches!(self, Self::Ready | Self::ReadyByEmulation)
    }

    /// Returns the reason of the condition `Ready`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::ReadyByEmulation => "ReadyByEmulation",
            Self::NotInspected => "NotInspected",
            Self::ArchitectureNotSupported => "ArchitectureNotSupported",
            Self::KvmUnavailable(_) => "KVMUnavailable",
        }
    }

    /// Returns the condition's message.
    pub fn sentence(self) -> String {
        match self {
            Self::Ready => "virtual machines can run on this node".into(),
            Self::ReadyByEmulation => {
                "virtual machines can run on this node by emulation, which is slow: KVM cannot be used and the \
                 configuration allows emulation"
                    .into()
            }
            Self::NotInspected => {
                "the virtualization capabilities of this node are not known, so the node accepts no virtual machines"
                    .into()
            }
            Self::ArchitectureNotSupported => "guests of this architecture are not supported".into(),
            Self::KvmUnavailable(state) => {
                format!(
                    "{}, and the configuration does not allow emulation",
                    kvm_sentence(state)
                )
            }
        }
    }
}

/// Returns the reason of the condition `KVMAvailable`.
pub fn kvm_reason(state: KvmState) -> &'static str {
    match state {
        KvmState::Usable => "KVMUsable",
        KvmState::NoDevice => "NoKVMDevice",
        KvmState::NotPermitted => "KVMNotPermitted",
        KvmState::OpenFailed => "KVMOpenFailed",
        KvmState::NoUsableModel => "NoUsableCPUModel",
        KvmState::Unknown => "Unknown",
    }
}

/// Returns the message about the state of KVM.
pub fn kvm_sentence(state: KvmState) -> &'static str {
    match state {
        KvmState::Usable => "KVM can be used",
        KvmState::NoDevice => "/dev/kvm does not exist",
        KvmState::NotPermitted => "the agent is not permitted to open /dev/kvm for reading and writing",
        KvmState::OpenFailed => "/dev/kvm exists but does not work",
        KvmState::NoUsableModel => {
            "/dev/kvm can be opened, but libvirt finds no CPU model that guests can use with KVM"
        }
        KvmState::Unknown => "the state of KVM is not known to this version",
    }
}

/// Returns whether the kubelet's state file shows that it pins CPUs: its JSON has `policyName: static`. A file that
/// cannot be parsed counts as a kubelet that pins none.
pub fn pins_cpus(state_file: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(state_file)
        .is_ok_and(|state| state.get("policyName").and_then(serde_json::Value::as_str) == Some("static"))
}

#[cfg(test)]
mod tests {
    use drydock_api::facts::{KvmFacts, VirtualizationFacts};

    use super::*;

    #[test]
    fn the_table_of_readiness() {
        let facts = |architecture: &str, virt_type: Option<VirtType>| NodeFacts {
            architecture: architecture.into(),
            kvm: KvmFacts {
                state: KvmState::NoDevice,
                ..KvmFacts::default()
            },
            virtualization: virt_type.map(|virt_type| VirtualizationFacts {
                virt_type,
                ..Default::default()
            }),
            ..NodeFacts::default()
        };
        let no_kvm = NodeReadiness::KvmUnavailable(KvmState::NoDevice);
        for (facts, emulation, expected) in [
            (None, true, NodeReadiness::NotInspected),
            (Some(facts("amd64", None)), true, NodeReadiness::NotInspected),
            (Some(facts("amd64", Some(VirtType::Kvm))), false, NodeReadiness::Ready),
            (
                Some(facts("amd64", Some(VirtType::Qemu))),
                true,
                NodeReadiness::ReadyByEmulation,
            ),
            (Some(facts("amd64", Some(VirtType::Qemu))), false, no_kvm),
            (
                Some(facts("riscv64", None)),
                true,
                NodeReadiness::ArchitectureNotSupported,
            ),
        ] {
            assert_eq!(NodeReadiness::of(facts.as_ref(), emulation), expected);
        }
        assert!(!no_kvm.accepts());
        assert!(no_kvm.sentence().contains("/dev/kvm does not exist"));
    }

    #[test]
    fn only_the_static_policy_pins_cpus() {
        for (text, expected) in [
            (r#"{"policyName":"static","defaultCpuSet":"0-1"}"#, true),
            (r#"{"policyName":"none"}"#, false),
            ("{}", false),
            ("garbage", false),
            ("", false),
        ] {
            assert_eq!(pins_cpus(text), expected, "{text}");
        }
    }
}
