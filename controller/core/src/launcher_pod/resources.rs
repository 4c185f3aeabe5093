//! What a launcher pod asks of its node.

use std::collections::BTreeMap;

use drydock_api::{kubevirt::VirtualMachineInstanceSpec, launcher::KVM_RESOURCE};
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

/// The container's requests and limits.
pub(super) fn of(spec: &VirtualMachineInstanceSpec, emulation: bool) -> ResourceRequirements {
    let asked = spec.domain.resources.clone().unwrap_or_default();
    let extra = overhead(spec, emulation);
    let mut requests: BTreeMap<String, Quantity> = BTreeMap::new();
    let mut limits: BTreeMap<String, Quantity> = BTreeMap::new();
    for (name, amount) in asked.requests.iter().filter(|(name, _)| *name != "memory") {
        requests.insert(name.clone(), amount.clone().into());
    }
    for (name, amount) in asked.limits.iter().filter(|(name, _)| *name != "memory") {
        limits.insert(name.clone(), amount.clone().into());
    }
    if !asked.requests.contains_key("cpu") {
        let request = asked.limits.get("cpu").map_or_else(
            || Quantity(format!("{}m", CPU_REQUEST * cpus(spec))),
            |limit| limit.clone().into(),
        );
        requests.insert("cpu".into(), request);
    }
    let memory = |amount: Option<u64>| amount.map(|bytes| Quantity(bytes.saturating_add(extra).to_string()));
    let said = |amounts: &BTreeMap<String, drydock_api::kubevirt::Amount>| {
        amounts.get("memory").and_then(|amount| quantity::bytes(&amount.0))
    };
    let requested = said(&asked.requests)
        .or_else(|| said(&asked.limits))
        .or_else(|| guest_memory(spec).ok());
    requests.extend(memory(requested).map(|amount| ("memory".to_owned(), amount)));
    limits.extend(memory(said(&asked.limits)).map(|amount| ("memory".to_owned(), amount)));
    // Always asked for: where emulation is allowed, the agent offers a share without a device.
    requests.insert(KVM_RESOURCE.into(), Quantity("1".into()));
    limits.insert(KVM_RESOURCE.into(), Quantity("1".into()));
    ResourceRequirements {
        requests: Some(requests),
        limits: Some(limits),
        claims: None,
    }
}
