//! What a launcher pod asks of its node.

use std::collections::BTreeMap;

use drydock_api::{
    kubevirt::{Amount, VirtualMachineInstanceSpec},
    launcher::KVM_RESOURCE,
};
use k8s_openapi::{api::core::v1::ResourceRequirements, apimachinery::pkg::api::resource::Quantity};

use crate::{domain::guest_memory, placement::Requests, quantity};

const MIB: u64 = 1 << 20;

/// Launcher, libvirtd and passt, by measurement at most 32 MiB for each guest, and the programs'
/// pages that they share with nobody on a node with one guest.
const SERVICES: u64 = 48 * MIB;
/// QEMU beside the guest's memory: its own code and heap, by measurement 40 to 60 MiB.
const QEMU: u64 = 64 * MIB;
/// What QEMU keeps for each virtual CPU.
const FOR_EACH_CPU: u64 = 8 * MIB;
/// Video memory of a guest with a screen.
const SCREEN: u64 = 16 * MIB;
/// Size of the cache of translated code of a guest that runs by emulation, in MiB. QEMU would fill
/// up to 1 GiB if the domain did not say.
pub const TRANSLATION_CACHE: u64 = 128;
/// That cache and its bookkeeping.
const EMULATION: u64 = (TRANSLATION_CACHE + 32) * MIB;
/// The kernel's part of the ports that an interface without named ones can be reached at.
const USUAL_PORTS: u64 = 36 * MIB;
/// Page tables, for each so many bytes of the guest one.
const PAGE_TABLES: u64 = 512;
/// More virtual CPUs than any guest has.
const MOST_CPUS: u64 = 4096;
/// The CPU that is asked for each virtual one where the manifest does not say, in thousandths: a
/// tenth, as KubeVirt's default ratio of overcommitment has it.
const CPU_REQUEST: u64 = 100;

/// Memory that a pod needs beside its guest's, in bytes:
///
/// ```text
///   112 MiB                     launcher, libvirtd, passt and QEMU itself
/// +   8 MiB for each CPU        QEMU's threads, their stacks and buffers
/// + 1/512 of the guest's memory page tables
/// +  16 MiB with a screen       video memory
/// +  36 MiB for each interface  the kernel's part of ports, where none is named
/// + 160 MiB by emulation        translated code
/// ```
///
/// KubeVirt has the same terms for page tables, CPUs and the screen, and about 220 MiB for its own
/// programs, of which there are more.
pub fn overhead(spec: &VirtualMachineInstanceSpec, emulation: bool) -> u64 {
    let screen = spec.domain.devices.autoattach_graphics_device != Some(false);
    let open = spec.domain.devices.interfaces.iter();
    let open = open.filter(|interface| interface.ports.is_empty()).count();
    let tables = guest_memory(spec).unwrap_or_default() / PAGE_TABLES;
    SERVICES
        + QEMU
        + FOR_EACH_CPU * cpus(spec)
        + tables
        + USUAL_PORTS * u64::try_from(open).unwrap_or_default()
        + if screen { SCREEN } else { 0 }
        + if emulation { EMULATION } else { 0 }
}

/// Virtual CPUs of a guest.
fn cpus(spec: &VirtualMachineInstanceSpec) -> u64 {
    let cpu = spec.domain.cpu.clone().unwrap_or_default();
    let counts = [cpu.cores, cpu.sockets, cpu.threads].map(|part| u64::from(part.unwrap_or(1)));
    counts.into_iter().fold(1, u64::saturating_mul).min(MOST_CPUS)
}

/// What a pod uses of its node's disks beside what its guest writes: logs and small files, in bytes. KubeVirt's number.
const DISK_OVERHEAD: u64 = 50_000_000;
/// The limit of what a pod may use of its node's disks, in bytes, where the manifest names none: more than a node has. How
/// much a guest writes into layers above its images is not known before it runs.
const DISK_LIMIT: u64 = 1 << 44;
/// What a pod may use beside its guest's virtual CPUs, in thousandths of a CPU: QEMU's main loop, the thread of a
/// migration, passt and libvirtd.
const CPU_BESIDE: u64 = 2000;

/// The resource that is a node's disks.
const DISKS: &str = "ephemeral-storage";

/// What a pod asks of its node that nodes have more or less of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Memory, in bytes.
    pub memory: u64,
    /// CPU, in thousandths.
    pub milli_cpus: u64,
}

impl Demand {
    /// What the pod of an instance asks for.
    pub fn of(spec: &VirtualMachineInstanceSpec, emulation: bool) -> Self {
        let requests = of(spec, emulation).requests.unwrap_or_default();
        let amount = |name: &str| requests.get(name).map(|amount| amount.0.as_str());
        Self {
            memory: amount("memory").and_then(quantity::bytes).unwrap_or(0),
            milli_cpus: amount("cpu").and_then(quantity::milli_cpus).unwrap_or(0),
        }
    }
}

/// All that the pod of an instance requests of its node.
pub fn requests(spec: &VirtualMachineInstanceSpec, emulation: bool) -> Requests {
    Requests::of(&of(spec, emulation))
}

/// Thousandths of a CPU that the manifest requests, or `least` if that is more.
fn not_below(requests: &BTreeMap<String, Amount>, least: u64) -> u64 {
    let requested = requests.get("cpu").and_then(|amount| quantity::milli_cpus(&amount.0));
    requested.unwrap_or(0).max(least)
}

/// The container's requests and limits.
///
/// Every resource that kubelets enforce has both. What a container leaves open a LimitRange of its namespace fills in,
/// and such a limit would throttle the guest, have it killed for its overhead, or have its pod evicted for what it
/// writes. Limits that the manifest does not name are so large that they do not bind; where a LimitRange or quota allows
/// less, the pod is refused when it is made, with its words.
pub(super) fn of(spec: &VirtualMachineInstanceSpec, emulation: bool) -> ResourceRequirements {
    let asked = spec.domain.resources.clone().unwrap_or_default();
    let extra = overhead(spec, emulation);
    let mut requests: BTreeMap<String, Quantity> = BTreeMap::new();
    let mut limits: BTreeMap<String, Quantity> = BTreeMap::new();
    let amount = |bytes: u64| Quantity(bytes.to_string());
    let bytes = |amounts: &BTreeMap<String, Amount>, name: &str| {
        amounts.get(name).and_then(|amount| quantity::bytes(&amount.0))
    };
    let cpu = |amounts: &BTreeMap<String, Amount>| amounts.get("cpu").cloned().map(Quantity::from);
    let cpu_limit = cpu(&asked.limits);
    let tenths = || Quantity(format!("{}m", CPU_REQUEST * cpus(spec)));
    let cpu_request = cpu(&asked.requests).or_else(|| cpu_limit.clone());
    requests.insert("cpu".into(), cpu_request.unwrap_or_else(tenths));
    let most = || {
        Quantity(format!(
            "{}m",
            not_below(&asked.requests, 1000 * cpus(spec)) + CPU_BESIDE
        ))
    };
    limits.insert("cpu".into(), cpu_limit.unwrap_or_else(most));
    let guest = guest_memory(spec).ok();
    let memory_limit = bytes(&asked.limits, "memory");
    let requested = bytes(&asked.requests, "memory").or(memory_limit).or(guest);
    // Twice what it is expected to need beside the guest.
    let most = requested.max(guest).map(|bytes| bytes.saturating_add(extra));
    if let (Some(requested), Some(limit)) = (requested, memory_limit.or(most)) {
        requests.insert("memory".into(), amount(requested.saturating_add(extra)));
        limits.insert("memory".into(), amount(limit.saturating_add(extra)));
    }
    let (disk_request, disk_limit) = (bytes(&asked.requests, DISKS), bytes(&asked.limits, DISKS));
    let limit = disk_limit.map_or(DISK_LIMIT, |limit| limit.saturating_add(DISK_OVERHEAD));
    let request = disk_request.unwrap_or(0).saturating_add(DISK_OVERHEAD);
    requests.insert(DISKS.into(), amount(request));
    limits.insert(DISKS.into(), amount(limit.max(request)));
    // Always asked for: where emulation is allowed, the agent offers a share without a device.
    requests.insert(KVM_RESOURCE.into(), Quantity("1".into()));
    limits.insert(KVM_RESOURCE.into(), Quantity("1".into()));
    ResourceRequirements {
        requests: Some(requests),
        limits: Some(limits),
        claims: None,
    }
}
