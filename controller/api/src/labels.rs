//! Label keys on Node objects.
//!
//! Three groups have rules of their own: CPU labels ([`OWNED_PREFIXES`], [`OWNED_KEYS`]), readiness
//! ([`READINESS_KEYS`]) and the launcher pods of the node ([`GUEST`]). An agent may write these and no others; the
//! admission policy `drydock-agent-nodes` lists the same keys.
//!
//! Keys and values are KubeVirt's node-labeller contract; `cpu-minimum` is Drydock's own. A key is *owned* if it
//! starts with one of [`OWNED_PREFIXES`] (each ends in `/`) or equals one of [`OWNED_KEYS`]. The labeller adds,
//! changes and removes only owned keys.

use crate::removal::UNINSTALL;

/// Prefix: CPU features that guests on this node can have, beyond those of the minimum CPU model.
pub const CPU_FEATURE: &str = "cpu-feature.node.kubevirt.io/";
/// Prefix: CPU models that guests on this node can have.
pub const CPU_MODEL: &str = "cpu-model.node.kubevirt.io/";
/// Prefix: CPU models of guests that were started on another node and can run on this node.
pub const CPU_MODEL_MIGRATION: &str = "cpu-model-migration.node.kubevirt.io/";
/// Prefix: the model that libvirt uses for `host-model` guests on this node.
pub const HOST_MODEL: &str = "host-model-cpu.node.kubevirt.io/";
/// Prefix: features that a `host-model` guest of this node needs beyond the minimum CPU model.
pub const HOST_MODEL_REQUIRED_FEATURE: &str = "host-model-required-features.node.kubevirt.io/";
/// Prefix: the CPU's vendor as libvirt names it.
pub const CPU_VENDOR: &str = "cpu-vendor.node.kubevirt.io/";
/// Prefix of the two time stamp counter labels.
pub const CPU_TIMER: &str = "cpu-timer.node.kubevirt.io/";
/// Frequency of the time stamp counter in Hz.
pub const TSC_FREQUENCY: &str = "cpu-timer.node.kubevirt.io/tsc-frequency";
/// Whether the time stamp counter can be scaled for guests: `true` or `false`.
pub const TSC_SCALABLE: &str = "cpu-timer.node.kubevirt.io/tsc-scalable";
/// Prefix: Hyper-V enlightenments that KVM offers.
pub const HYPERV: &str = "hyperv.node.kubevirt.io/";
/// Prefix: machine types of the native architecture.
pub const MACHINE_TYPE: &str = "machine-type.node.kubevirt.io/";
/// Prefix: the node has every feature of this CPU model, which is the configured minimum.
///
/// These features get no labels of their own; workloads that need one of them select on this key.
pub const CPU_MINIMUM: &str = "cpu-minimum.node.drydock.dev/";
/// The host model is an obsolete model.
pub const OBSOLETE_HOST_MODEL: &str = "node-labeller.kubevirt.io/obsolete-host-model";
/// Real-time tasks may use the whole CPU.
pub const REALTIME: &str = "kubevirt.io/realtime";
/// AMD SEV guests can run.
pub const SEV: &str = "kubevirt.io/sev";
/// AMD SEV-ES guests can run.
pub const SEV_ES: &str = "kubevirt.io/sev-es";
/// AMD SEV-SNP guests can run.
pub const SEV_SNP: &str = "kubevirt.io/sev-snp";
/// IBM Secure Execution guests can run.
pub const SECURE_EXECUTION: &str = "kubevirt.io/s390-pv";
/// Intel TDX guests can run.
pub const TDX: &str = "kubevirt.io/tdx";
/// Guests of architecture amd64 can run (feature gate `CrossArchitectureVirtualization`).
pub const VM_ARCH_AMD64: &str = "kubevirt.io/vm-arch-amd64";
/// Guests of architecture arm64 can run (feature gate `CrossArchitectureVirtualization`).
pub const VM_ARCH_ARM64: &str = "kubevirt.io/vm-arch-arm64";
/// Guests of architecture s390x can run (feature gate `CrossArchitectureVirtualization`).
pub const VM_ARCH_S390X: &str = "kubevirt.io/vm-arch-s390x";

/// The agent of this node is ready to run virtual machines: `true` or `false`.
pub const SCHEDULABLE: &str = "kubevirt.io/schedulable";
/// The kubelet pins CPUs (static CPU manager policy): `true` or `false`.
pub const CPU_MANAGER: &str = "kubevirt.io/cpumanager";
/// Guests on this node can have a network: `true` or `false`. Launcher pods of guests with a network select on it.
pub const GUEST_NETWORK: &str = "drydock.dev/guest-network";

/// Prefix: a launcher pod that is bound to this node and has not ended. The rest of the key is the value of the pod's
/// label `drydock.dev/launcher`.
///
/// The pod's required node affinity accepts a node with this label regardless of its other labels, so that a restarted
/// kubelet admits the pod again.
pub const GUEST: &str = "guest.node.drydock.dev/";

/// The value of labels that are either present or absent.
pub const TRUE: &str = "true";
/// The opposite of [`TRUE`], for labels with two values.
pub const FALSE: &str = "false";

/// Key prefixes that belong to the labeller.
pub const OWNED_PREFIXES: [&str; 10] = [
    CPU_FEATURE,
    CPU_MODEL,
    CPU_MODEL_MIGRATION,
    HOST_MODEL,
    HOST_MODEL_REQUIRED_FEATURE,
    CPU_VENDOR,
    CPU_TIMER,
    HYPERV,
    MACHINE_TYPE,
    CPU_MINIMUM,
];

/// Keys that belong to the labeller, in addition to those with [`OWNED_PREFIXES`].
pub const OWNED_KEYS: [&str; 10] = [
    OBSOLETE_HOST_MODEL,
    REALTIME,
    SEV,
    SEV_ES,
    SEV_SNP,
    SECURE_EXECUTION,
    TDX,
    VM_ARCH_AMD64,
    VM_ARCH_ARM64,
    VM_ARCH_S390X,
];

/// Keys that state whether the node is ready for virtual machines; the agent writes them even if CPU labels are
/// frozen.
pub const READINESS_KEYS: [&str; 3] = [SCHEDULABLE, CPU_MANAGER, GUEST_NETWORK];

/// Returns whether the labeller owns `key`. Only exact keys and prefixes match, so that look-alikes such as
/// `kubevirt.io/sev-custom` or `cpu-model.node.kubevirt.io.example/x` remain foreign.
pub fn is_owned(key: &str) -> bool {
    OWNED_KEYS.contains(&key) || OWNED_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

/// Returns whether the label `key` on a node was set by any part of Drydock.
///
/// The label of a NodeMaintenance is not included: it is removed when the maintenance ends.
pub fn is_of_drydock(key: &str) -> bool {
    is_owned(key) || READINESS_KEYS.contains(&key) || key.starts_with(GUEST) || key == UNINSTALL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_each_part_of_drydock_are_known() {
        let written = [
            "cpu-feature.node.kubevirt.io/avx2",
            "kubevirt.io/sev",
            "kubevirt.io/schedulable",
            "kubevirt.io/cpumanager",
            "drydock.dev/guest-network",
            "guest.node.drydock.dev/5b0a",
            "drydock.dev/uninstall",
        ];
        assert_eq!(written.into_iter().find(|key| !is_of_drydock(key)), None);
        let foreign = [
            "kubernetes.io/hostname",
            "kubevirt.io/schedulable-not",
            "guest.node.drydock.dev",
            "remediation.medik8s.io/exclude-from-remediation",
        ];
        assert_eq!(foreign.into_iter().find(|key| is_of_drydock(key)), None);
    }

    #[test]
    fn owned_keys_are_exact_and_similar_keys_are_foreign() {
        for owned in [
            "cpu-model.node.kubevirt.io/Haswell",
            "cpu-vendor.node.kubevirt.io/Intel",
            "cpu-minimum.node.drydock.dev/Penryn",
            "kubevirt.io/s390-pv",
            "kubevirt.io/sev",
        ] {
            assert!(is_owned(owned), "{owned}");
        }
        for foreign in [
            "kubevirt.io/schedulable",
            "kubevirt.io/sev-custom",
            "kubevirt.io/sevx",
            "cpu-model.node.kubevirt.io.evil/Haswell",
            "x.cpu-model.node.kubevirt.io/Haswell",
            "cpu-model.node.kubevirt.io",
            "node-labeller.kubevirt.io/other",
            "guest.node.drydock.dev/5b0a",
            "scheduling.node.kubevirt.io/tsc-frequency-1",
        ] {
            assert!(!is_owned(foreign), "{foreign}");
        }
    }
}
