//! The capabilities of a node as found by its agent: shared by the inspection (which fills them in), the decisions
//! (which read them) and the Hypervisor object (which publishes them).
//!
//! No value is a guess: if a source does not respond, its field stays empty.

use std::{collections::BTreeMap, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// Deserializes names and sorts them, so that readers can rely on the order whatever agent has written the names.
fn ascending<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Vec<String>>, D::Error> {
    let mut names = Vec::deserialize(deserializer)?;
    if !names.is_sorted() {
        names.sort_unstable();
    }
    Ok(Arc::new(names))
}

/// Everything known about one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeFacts {
    /// Architecture as Kubernetes names it (`amd64`, `arm64`, `s390x`, ...).
    pub architecture: String,
    /// Release of the running kernel.
    pub kernel: String,
    /// Properties of the processor.
    pub cpu: CpuFacts,
    /// Whether KVM can be used, and if not, why.
    pub kvm: KvmFacts,
    /// Real-time tasks may use the whole CPU (`kernel.sched_rt_runtime_us` is -1).
    pub real_time: bool,
    /// Capabilities of guests according to libvirt and QEMU; absent if they could not be queried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtualization: Option<VirtualizationFacts>,
}

impl NodeFacts {
    /// Returns the number of physical address bits of guests with KVM: libvirt's limit if it is known, else the number
    /// of the processor.
    pub fn guest_address_bits(&self) -> Option<u32> {
        let limit = self
            .virtualization
            .as_ref()
            .and_then(|facts| facts.physical_address_bits);
        limit.or(self.cpu.physical_address_bits)
    }
}

/// The processor, as described by the cpuid instruction and by the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CpuFacts {
    /// Vendor string, for example `GenuineIntel`.
    pub vendor: String,
    /// Marketing name of the processor.
    pub brand: String,
    /// Family of the processor, including the extended part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<u32>,
    /// Model number of the processor, including the extended part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<u32>,
    /// Stepping of the processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stepping: Option<u32>,
    /// Microcode revision as the kernel prints it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub microcode: Option<String>,
    /// Feature flags of the host as the kernel names them.
    // Facts of equal processors share the list in memory.
    pub features: Arc<Vec<String>>,
    /// Number of physical address bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub physical_address_bits: Option<u32>,
    /// The machine is itself a virtual machine.
    pub hypervisor: bool,
    /// Number of CPUs that are online.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub online: Option<u32>,
    /// The time stamp counter as cpuid describes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tsc: Option<CpuidTsc>,
}

/// The time stamp counter as cpuid describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CpuidTsc {
    /// Frequency in Hz where cpuid reports it (leaf 0x15, or a hypervisor's leaf 0x40000010).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_hz: Option<u64>,
    /// The counter runs at one rate in all power states.
    pub invariant: bool,
}

/// KVM on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KvmFacts {
    /// Whether guests can use KVM, and if not, why.
    pub state: KvmState,
    /// Human-readable message, with the system's error if there is one.
    pub message: String,
    /// Parameters of KVM's kernel modules: `module.parameter` to value (`kvm_intel.nested`: `Y`).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// Hyper-V enlightenments by KubeVirt's names (`vpindex`, `synic`, ...).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hyperv: Vec<String>,
}

/// Whether KVM can run guests on the node; each value except `Usable` is a reason why it cannot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum KvmState {
    /// /dev/kvm can be opened for reading and writing, and libvirt finds usable CPU models with KVM.
    Usable,
    /// /dev/kvm does not exist.
    #[default]
    NoDevice,
    /// /dev/kvm exists, but the agent is not permitted to open it for reading and writing.
    NotPermitted,
    /// /dev/kvm exists, but it cannot be opened, or its first call failed.
    OpenFailed,
    /// /dev/kvm can be opened, but libvirt finds no CPU model that a guest could have with KVM.
    NoUsableModel,
    /// A value of a later version; nothing may be inferred from it. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// The virtualization type of guests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum VirtType {
    /// Guests run with hardware virtualization.
    Kvm,
    /// Guests run in emulation (TCG): correct, slow, and with the emulator's CPU features instead of the host's.
    #[default]
    Qemu,
    /// A value of a later version; nothing may be inferred from it. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl VirtType {
    /// Returns libvirt's name of the virt type.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Qemu => "qemu",
            Self::Unknown => "unknown",
        }
    }
}

/// Facts from libvirt and QEMU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualizationFacts {
    /// Virtualization type of the guests that these facts describe.
    pub virt_type: VirtType,
    /// Machine type for which libvirt was queried.
    pub machine: String,
    /// Version of libvirt.
    pub libvirt_version: String,
    /// Version of QEMU.
    pub qemu_version: String,
    /// Vendor of the CPU as libvirt names it (`Intel`, `AMD`, `IBM`); empty if it names none.
    pub vendor: String,
    /// CPU of guests with `host-model`; absent where libvirt does not support `host-model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_model: Option<HostModel>,
    /// All CPU models that libvirt knows on the node, usable or not.
    // Nodes with equal lists of models, features or machine types share these lists in memory.
    pub models: Arc<Vec<CpuModel>>,
    /// All CPU features that a guest can have, in ascending order: the expanded baseline of the host.
    #[serde(deserialize_with = "ascending")]
    pub features: Arc<Vec<String>>,
    /// CPU features that guests could have if the node did not mask them. None of them is in `features`. Empty in the
    /// facts of earlier agents, which do not report such features.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub withheld: Vec<String>,
    /// Machine types of the native architecture, including aliases.
    pub machine_types: Arc<Vec<MachineType>>,
    /// Whether a guest can have the host's own CPU without the features that cannot be migrated (`on` in libvirt's
    /// `hostPassthroughMigratable`). Absent if libvirt does not report it, and in the facts of earlier agents, which do
    /// not read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_passthrough_migratable: Option<bool>,
    /// Maximum number of physical address bits of a guest (`maxphysaddr` of the host model). Absent if libvirt does not
    /// report it, and in the facts of earlier agents, which do not read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub physical_address_bits: Option<u32>,
    /// The host's time stamp counter as libvirt measured it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tsc: Option<TscCounter>,
    /// CPU topology of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<HostTopology>,
    /// Support for confidential computing.
    pub confidential: ConfidentialFacts,
}

/// The CPU of guests with `host-model` on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostModel {
    /// Named CPU model on which the host model is based.
    pub name: String,
    /// libvirt's `fallback` attribute: `allow` or `forbid`.
    pub fallback: String,
    /// Features that the host model has in addition to the named model.
    pub required: Vec<String>,
    /// Features of the named model that the host model lacks.
    pub disabled: Vec<String>,
}

/// A CPU model that libvirt knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CpuModel {
    /// Name of the model.
    pub name: String,
    /// Whether a guest on the node can have the model.
    pub usable: Usable,
    /// Versioned model of which the name is an alias.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canonical: Option<String>,
    /// The model is deprecated: QEMU will remove it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deprecated: bool,
    /// Vendor of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Features that the model needs and that guests on the node cannot have: the reason why the model is not usable.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<String>,
}

/// Value of libvirt's attribute `usable` of a CPU model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Usable {
    /// A guest can have the model.
    Yes,
    /// A guest cannot have the model.
    No,
    /// libvirt does not know whether a guest can have the model; KubeVirt's rule counts the model as usable. Values of
    /// later versions are read as this value.
    #[default]
    #[serde(other)]
    Unknown,
}

/// A machine type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineType {
    /// Name of the machine type.
    pub name: String,
    /// Versioned machine type of which the name is an alias.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canonical: Option<String>,
    /// The machine type is deprecated: QEMU will remove it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deprecated: bool,
}

/// The time stamp counter as libvirt measured it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TscCounter {
    /// Frequency in Hz.
    pub frequency_hz: u64,
    /// Guests can have another frequency than the host.
    pub scalable: bool,
}

/// CPU topology of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostTopology {
    /// Number of sockets.
    pub sockets: u32,
    /// Number of cores per socket, in all of its dies and clusters together.
    pub cores: u32,
    /// Number of threads per core.
    pub threads: u32,
    /// Number of NUMA cells.
    pub numa_cells: u32,
}

/// Confidential computing as libvirt reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfidentialFacts {
    /// AMD SEV, if supported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sev: Option<SevFacts>,
    /// AMD SEV-SNP is supported.
    pub sev_snp: bool,
    /// Intel TDX is supported.
    pub tdx: bool,
    /// IBM Secure Execution is supported.
    pub secure_execution: bool,
}

/// AMD SEV.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SevFacts {
    /// Position of the encryption bit in a page table entry.
    pub cbitpos: u32,
    /// Number of physical address bits that are lost with memory encryption.
    pub reduced_phys_bits: u32,
    /// Maximum number of SEV guests at the same time.
    pub max_guests: u32,
    /// Maximum number of SEV-ES guests at the same time. SEV-ES is supported if the number is not 0.
    pub max_es_guests: u32,
}

/// Fingerprint of the host's state on which the facts depend. When a part of it changes, the agent inspects the host
/// again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct FactsFingerprint(pub BTreeMap<String, String>);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn features_are_sorted_regardless_of_the_writer() {
        let read = |features: &[&str]| {
            let facts: VirtualizationFacts = serde_json::from_value(json!({"features": features})).unwrap();
            facts.features.to_vec()
        };
        assert_eq!(read(&["sse2", "aes", "nx"]), ["aes", "nx", "sse2"]);
        assert_eq!(read(&["aes", "nx"]), ["aes", "nx"]);
        assert_eq!(read(&[]), [""; 0]);
        assert!(VirtualizationFacts::default().features.is_empty());
    }
}
