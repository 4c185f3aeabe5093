//! The capabilities of a node as found by its agent: shared by the inspection (which fills them in), the decisions
//! (which read them) and the Hypervisor object (which publishes them).
//!
//! Nothing here is a guess: a source that does not respond leaves its field empty.

use std::{collections::BTreeMap, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// Reads names and sorts them, so that a reader can search them whatever agent has written them.
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
    /// The processor's description of itself.
    pub cpu: CpuFacts,
    /// Whether KVM can be used, and why not.
    pub kvm: KvmFacts,
    /// Real-time tasks may use the whole CPU (`kernel.sched_rt_runtime_us` is -1).
    pub real_time: bool,
    /// Capabilities of guests according to libvirt and QEMU; absent if they could not be queried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtualization: Option<VirtualizationFacts>,
}

impl NodeFacts {
    /// Returns the number of bits of a physical address that guests have with KVM: libvirt's limit, or else that of
    /// the processor.
    pub fn guest_address_bits(&self) -> Option<u32> {
        let limit = self
            .virtualization
            .as_ref()
            .and_then(|facts| facts.physical_address_bits);
        limit.or(self.cpu.physical_address_bits)
    }
}

/// The processor, by its own instructions (cpuid) and by the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CpuFacts {
    /// Vendor string, for example `GenuineIntel`.
    pub vendor: String,
    /// Marketing name.
    pub brand: String,
    /// Family, extended part included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<u32>,
    /// Model number, extended part included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<u32>,
    /// Stepping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stepping: Option<u32>,
    /// Microcode revision as the kernel prints it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub microcode: Option<String>,
    /// Feature flags of the host as the kernel names them. Equal processors share them in memory.
    pub features: Arc<Vec<String>>,
    /// Bits of a physical address.
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
    /// Runs at one rate in all power states.
    pub invariant: bool,
}

/// KVM on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KvmFacts {
    /// Whether guests can use it.
    pub state: KvmState,
    /// The same for people, with the system's own error where there is one.
    pub message: String,
    /// Parameters of the kernel modules, `module.parameter` to value (`kvm_intel.nested`: `Y`).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// Hyper-V enlightenments by KubeVirt's names (`vpindex`, `synic`, ...).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hyperv: Vec<String>,
}

/// Whether KVM can run guests here; every value but `Usable` is a reason why not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum KvmState {
    /// Opened for reading and writing, and libvirt finds usable CPU models with it.
    Usable,
    /// There is no /dev/kvm.
    #[default]
    NoDevice,
    /// /dev/kvm is there but this process may not open it for writing.
    NotPermitted,
    /// /dev/kvm is there but opening it or its first call failed.
    OpenFailed,
    /// /dev/kvm opens, but libvirt finds not one CPU model that a guest could have with it.
    NoUsableModel,
    /// A value of a later version, of which nothing is concluded. It is never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// The virtualization type of guests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum VirtType {
    /// By hardware virtualization.
    Kvm,
    /// By emulation (TCG): correct, slow, and with the emulator's CPU features, not the host's.
    #[default]
    Qemu,
    /// A value of a later version, of which nothing is concluded. It is never written.
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
    /// The machine type of the query.
    pub machine: String,
    /// libvirt's version.
    pub libvirt_version: String,
    /// QEMU's version.
    pub qemu_version: String,
    /// Vendor of the CPU as libvirt names it (`Intel`, `AMD`, `IBM`); empty if it names none.
    pub vendor: String,
    /// The CPU of a guest with `host-model`; absent where libvirt does not support it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_model: Option<HostModel>,
    /// All CPU models libvirt knows here, usable or not. Nodes that are alike in this share the list in
    /// memory, as they do the next two.
    pub models: Arc<Vec<CpuModel>>,
    /// All CPU features that a guest can have, in ascending order: the baseline of the host, expanded.
    #[serde(deserialize_with = "ascending")]
    pub features: Arc<Vec<String>>,
    /// Features that a guest could have, but for the node's mask: none of them is in `features`. Empty in the
    /// facts of agents that did not report it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub withheld: Vec<String>,
    /// Machine types of the native architecture, aliases included.
    pub machine_types: Arc<Vec<MachineType>>,
    /// Whether a guest can have the host's own CPU without the features that cannot be migrated
    /// (`on` in libvirt's `hostPassthroughMigratable`). Absent if libvirt does not report it, and in the facts
    /// of agents that did not read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_passthrough_migratable: Option<bool>,
    /// Most bits of a physical address that a guest can have (`maxphysaddr` of the host model). Absent if
    /// libvirt does not report it, and in the facts of agents that did not read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub physical_address_bits: Option<u32>,
    /// The host's time stamp counter as libvirt measured it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tsc: Option<TscCounter>,
    /// CPU topology of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<HostTopology>,
    /// Confidential computing.
    pub confidential: ConfidentialFacts,
}

/// The CPU that `host-model` stands for on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostModel {
    /// The named model it is based on.
    pub name: String,
    /// libvirt's `fallback` attribute: `allow` or `forbid`.
    pub fallback: String,
    /// Features it has beyond the named model.
    pub required: Vec<String>,
    /// Features of the named model that it lacks.
    pub disabled: Vec<String>,
}

/// A CPU model that libvirt knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CpuModel {
    /// Name.
    pub name: String,
    /// Whether a guest on this node can have it.
    pub usable: Usable,
    /// The versioned model of which this name is an alias.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canonical: Option<String>,
    /// QEMU will drop it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deprecated: bool,
    /// Vendor of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Features it needs that guests cannot have here: why it is not usable.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<String>,
}

/// libvirt's `usable` attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Usable {
    /// A guest can have the model.
    Yes,
    /// A guest cannot.
    No,
    /// libvirt does not know; KubeVirt's rule counts it as usable. So does a value of a later version.
    #[default]
    #[serde(other)]
    Unknown,
}

/// A machine type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineType {
    /// Name.
    pub name: String,
    /// The versioned type of which this name is an alias.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canonical: Option<String>,
    /// QEMU will drop it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deprecated: bool,
}

/// The time stamp counter as libvirt measured it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TscCounter {
    /// Frequency in Hz.
    pub frequency_hz: u64,
    /// Guests can be given another frequency.
    pub scalable: bool,
}

/// CPU topology of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostTopology {
    /// Sockets.
    pub sockets: u32,
    /// Cores of a socket (dies and clusters multiplied in).
    pub cores: u32,
    /// Threads of a core.
    pub threads: u32,
    /// NUMA cells.
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
    /// Physical address bits lost.
    pub reduced_phys_bits: u32,
    /// Most SEV guests at once.
    pub max_guests: u32,
    /// Most SEV-ES guests at once; SEV-ES is supported if there can be one.
    pub max_es_guests: u32,
}

/// The state of the host that the facts depend on: if a part of it changes, the host is inspected again.
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
