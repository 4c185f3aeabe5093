//! A launcher pod's resource requests and limits.

use std::collections::BTreeMap;

use drydock_api::{
    kubevirt::{Amount, VirtualMachineInstanceSpec},
    launcher::KVM_RESOURCE,
};
use k8s_openapi::{api::core::v1::ResourceRequirements, apimachinery::pkg::api::resource::Quantity};

use crate::{
    domain::{TRANSLATION_CACHE, guest_memory},
    placement::room::ResourceAmounts,
    quantity,
};

const MIB: u64 = 1 << 20;

/// Memory in bytes of launcher, libvirtd and passt: at most 32 MiB per guest as measured, plus the pages of the
/// programs, which are not shared on a node with a single guest.
const SERVICES: u64 = 48 * MIB;
/// QEMU's memory besides the guest's, in bytes: its own code and heap, 40 to 60 MiB as measured.
const QEMU: u64 = 64 * MIB;
/// QEMU's memory for each virtual CPU, in bytes.
const FOR_EACH_CPU: u64 = 8 * MIB;
/// Video memory of a guest with a display, in bytes.
const SCREEN: u64 = 16 * MIB;
/// Memory in bytes of the cache of translated code in emulation, and of its bookkeeping.
const EMULATION: u64 = (TRANSLATION_CACHE + 32) * MIB;
/// Kernel memory in bytes for the open ports of an interface that lists none.
const USUAL_PORTS: u64 = 36 * MIB;
/// Memory in bytes of EFI's code and variables, of which QEMU keeps copies.
const EFI: u64 = 16 * MIB;
/// One byte of page tables for each 512 bytes of guest memory.
const PAGE_TABLES: u64 = 512;
/// Upper bound of the number of virtual CPUs; more than any guest has.
const MOST_CPUS: u64 = 4096;
/// CPU request for each virtual CPU if the manifest sets none, in thousandths: a tenth, as with KubeVirt's default
/// overcommitment ratio.
const CPU_REQUEST: u64 = 100;

/// Returns the memory in bytes that a pod needs in addition to its guest's:
///
/// ```text
///   112 MiB                     launcher, libvirtd, passt and QEMU itself
/// +   8 MiB for each CPU        QEMU's threads, their stacks and buffers
/// + 1/512 of the guest's memory page tables
/// +  16 MiB with a screen       video memory
/// +  36 MiB for each interface  the kernel's part of ports, if none are listed
/// +  16 MiB with EFI            its code and variables, and their copies
/// + 160 MiB in emulation        translated code
/// ```
///
/// KubeVirt has the same terms for page tables, CPUs and the display, and about 220 MiB for its own programs, of
/// which there are more.
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
        + if spec.domain.efi().is_some() { EFI } else { 0 }
        + if emulation { EMULATION } else { 0 }
}

/// Returns the number of a guest's virtual CPUs.
fn cpus(spec: &VirtualMachineInstanceSpec) -> u64 {
    let cpu = spec.domain.cpu.clone().unwrap_or_default();
    let counts = [cpu.cores, cpu.sockets, cpu.threads].map(|part| u64::from(part.unwrap_or(1)));
    counts.into_iter().fold(1, u64::saturating_mul).min(MOST_CPUS)
}

/// Ephemeral storage of a pod besides the guest's data, in bytes: logs and small files. KubeVirt's value.
const DISK_OVERHEAD: u64 = 50_000_000;
/// Default limit of a pod's ephemeral storage, in bytes: more than a node has. How much a guest writes into layers
/// above its images is not known before it runs.
const DISK_LIMIT: u64 = 1 << 44;
/// CPU limit in addition to the guest's virtual CPUs, in thousandths of a CPU: for QEMU's main loop, the migration
/// thread, passt and libvirtd.
const CPU_BESIDE: u64 = 2000;

/// The resource name of a node's disk space.
const DISKS: &str = "ephemeral-storage";

/// A pod's requests for the resources that differ in amount between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Memory, in bytes.
    pub memory: u64,
    /// CPU, in thousandths of a CPU.
    pub milli_cpus: u64,
}

impl Demand {
    /// Returns the demand of an instance's pod.
    pub fn of(spec: &VirtualMachineInstanceSpec, emulation: bool) -> Self {
        let requests = of(spec, emulation).requests.unwrap_or_default();
        let amount = |name: &str| requests.get(name).map(|amount| amount.0.as_str());
        Self {
            memory: amount("memory").and_then(quantity::bytes).unwrap_or(0),
            milli_cpus: amount("cpu").and_then(quantity::milli_cpus).unwrap_or(0),
        }
    }
}

/// Returns all resource requests of an instance's pod.
pub fn requests(spec: &VirtualMachineInstanceSpec, emulation: bool) -> ResourceAmounts {
    ResourceAmounts::of(&of(spec, emulation))
}

/// Returns the manifest's CPU request in thousandths of a CPU, but at least `least`.
fn not_below(requests: &BTreeMap<String, Amount>, least: u64) -> u64 {
    let requested = requests.get("cpu").and_then(|amount| quantity::milli_cpus(&amount.0));
    requested.unwrap_or(0).max(least)
}

/// Returns the container's requests and limits.
///
/// Every resource that kubelets enforce has both. A LimitRange of the namespace fills in missing ones, and such a
/// limit would throttle the guest, have it killed for its overhead, or have its pod evicted for its writes. Limits
/// that the manifest does not set are so large that they have no effect; where a LimitRange or quota allows less, the
/// creation of the pod is refused with the API server's message.
pub(super) fn of(spec: &VirtualMachineInstanceSpec, emulation: bool) -> ResourceRequirements {
    let wanted = spec.domain.resources.clone().unwrap_or_default();
    let extra = overhead(spec, emulation);
    let mut requests: BTreeMap<String, Quantity> = BTreeMap::new();
    let mut limits: BTreeMap<String, Quantity> = BTreeMap::new();
    let amount = |bytes: u64| Quantity(bytes.to_string());
    let bytes = |amounts: &BTreeMap<String, Amount>, name: &str| {
        amounts.get(name).and_then(|amount| quantity::bytes(&amount.0))
    };
    let cpu = |amounts: &BTreeMap<String, Amount>| amounts.get("cpu").cloned().map(Quantity::from);
    let cpu_limit = cpu(&wanted.limits);
    let tenths = || Quantity(format!("{}m", CPU_REQUEST * cpus(spec)));
    let cpu_request = cpu(&wanted.requests).or_else(|| cpu_limit.clone());
    requests.insert("cpu".into(), cpu_request.unwrap_or_else(tenths));
    let most = || {
        Quantity(format!(
            "{}m",
            not_below(&wanted.requests, 1000 * cpus(spec)) + CPU_BESIDE
        ))
    };
    limits.insert("cpu".into(), cpu_limit.unwrap_or_else(most));
    let guest = guest_memory(spec).ok();
    let memory_limit = bytes(&wanted.limits, "memory");
    let requested = bytes(&wanted.requests, "memory").or(memory_limit).or(guest);
    // Twice the expected overhead.
    let most = requested.max(guest).map(|bytes| bytes.saturating_add(extra));
    if let (Some(requested), Some(limit)) = (requested, memory_limit.or(most)) {
        requests.insert("memory".into(), amount(requested.saturating_add(extra)));
        limits.insert("memory".into(), amount(limit.saturating_add(extra)));
    }
    let (disk_request, disk_limit) = (bytes(&wanted.requests, DISKS), bytes(&wanted.limits, DISKS));
    let limit = disk_limit.map_or(DISK_LIMIT, |limit| limit.saturating_add(DISK_OVERHEAD));
    let request = disk_request.unwrap_or(0).saturating_add(DISK_OVERHEAD);
    requests.insert(DISKS.into(), amount(request));
    limits.insert(DISKS.into(), amount(limit.max(request)));
    // Always requested: where emulation is allowed, the agent offers a share without a device.
    requests.insert(KVM_RESOURCE.into(), Quantity("1".into()));
    limits.insert(KVM_RESOURCE.into(), Quantity("1".into()));
    ResourceRequirements {
        requests: Some(requests),
        limits: Some(limits),
        claims: None,
    }
}
