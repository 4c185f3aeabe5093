//! What a launcher pod asks of its node.

use std::collections::BTreeMap;

use drydock_api::{kubevirt::VirtualMachineInstanceSpec, launcher::KVM_RESOURCE};
use k8s_openapi::{api::core::v1::ResourceRequirements, apimachinery::pkg::api::resource::Quantity};

use crate::{domain::guest_memory, quantity};

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
/// Translated code of a guest that runs by emulation: a cache of this size is asked for in the
/// domain, and its bookkeeping.
const EMULATION: u64 = 160 * MIB;
/// Page tables, for each so many bytes of the guest one.
const PAGE_TABLES: u64 = 512;
/// The CPU that is asked for each virtual one where the manifest does not say, in thousandths: a
/// tenth, as KubeVirt's default ratio of overcommitment has it.
const CPU_REQUEST: u64 = 100;

/// Memory that a pod needs beside its guest's, in bytes:
/// 112 MiB + 8 MiB for each CPU + 1/512 of the guest's memory, + 16 MiB with a screen, + 160 MiB
/// where guests may run by emulation. (KubeVirt's formula gives about 220 MiB for a small guest.)
pub fn overhead(spec: &VirtualMachineInstanceSpec, emulation: bool) -> u64 {
    let screen = spec.domain.devices.autoattach_graphics_device != Some(false);
    let tables = guest_memory(spec).unwrap_or_default() / PAGE_TABLES;
    SERVICES
        + QEMU
        + FOR_EACH_CPU * cpus(spec)
        + tables
        + if screen { SCREEN } else { 0 }
        + if emulation { EMULATION } else { 0 }
}

/// Virtual CPUs of a guest.
fn cpus(spec: &VirtualMachineInstanceSpec) -> u64 {
    let cpu = spec.domain.cpu.clone().unwrap_or_default();
    let parts = [cpu.cores, cpu.sockets, cpu.threads];
    parts.into_iter().map(|part| u64::from(part.unwrap_or(1))).product()
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
    let memory = |amount: Option<u64>| amount.map(|bytes| Quantity((bytes + extra).to_string()));
    let said = |amounts: &BTreeMap<String, drydock_api::kubevirt::Amount>| {
        amounts.get("memory").and_then(|amount| quantity::bytes(&amount.0))
    };
    let requested = said(&asked.requests).or_else(|| guest_memory(spec).ok());
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
