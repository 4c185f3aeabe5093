//! Defaults for fields that an instance's manifest leaves unset.
//!
//! The webhook calls [`default_instance`] when an instance is created. The controller calls it again before it
//! creates the first pod, because the webhook may have been unavailable. After that the spec stays unchanged: a
//! changed configuration takes effect at the next start. The eviction strategy is not filled in, because it does not
//! affect the guest: the cluster's default at the time of the eviction applies (`eviction::strategy`).
//!
//! ```text
//!  manifest ─▶ default_instance() ─▶ everything that decides what the guest gets is in the spec
//!              ▲ configuration, architecture, name
//! ```
//!
//! Identities (firmware UUID and serial, MAC addresses) are derived from the name, so that a virtual machine that is
//! started again looks the same to its guest.

use drydock_api::kubevirt::{
    Amount, VirtualMachineInstanceSpec,
    devices::{Binding, CdRomTarget, Disk, DiskBus, DiskTarget, Interface},
    domain_spec::{Cpu, Domain},
    volumes::{Network, PodNetwork},
};
use serde_json::Value;

use super::overlay::overlay;
use crate::{
    configuration::Configuration,
    default_cpu::default_model,
    domain::{firmware_uuid, mac_address},
    quantity,
};

/// Supported guest architectures, by their Kubernetes names.
pub const ARCHITECTURES: [&str; 3] = ["amd64", "arm64", "s390x"];
/// Default grace period for the guest's shutdown, in seconds.
const GRACE: i64 = 30;
/// Name of the default network of a guest that has no networks.
const NETWORK: &str = "default";

/// Returns the default machine type for guests of an architecture.
pub fn machine_type(architecture: &str) -> &'static str {
    match architecture {
        "arm64" => "virt",
        "s390x" => "s390-ccw-virtio",
        _ => "q35",
    }
}

/// Namespace and name of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    /// Namespace of the instance.
    pub namespace: &'a str,
    /// Name of the instance; `None` while the API server has yet to generate one.
    pub name: Option<&'a str>,
}

/// Fills in the unset fields of a spec. `architecture` is the default for guests that set none. Idempotent.
pub fn default_instance(
    spec: &mut VirtualMachineInstanceSpec,
    named: Named<'_>,
    configuration: &Configuration,
    architecture: &str,
) {
    let architecture = spec.architecture.get_or_insert_with(|| architecture.into()).clone();
    spec.termination_grace_period_seconds.get_or_insert(GRACE);
    let domain = &mut spec.domain;
    cpu(domain, configuration, &architecture);
    memory(domain);
    let machine = domain.machine.get_or_insert_default();
    if machine.type_.as_ref().is_none_or(String::is_empty) {
        machine.type_ = Some(machine_type(&architecture).into());
    }
    network(spec);
    disks(spec, &architecture);
    if let Some(name) = named.name {
        identities(spec, named.namespace, name);
    }
}

/// Returns `raw`, an object in the API server's notation, with defaults filled in and all other fields unchanged.
/// `None` if no default is missing, or if `raw` is not an instance (validation reports that).
pub fn defaulted(raw: &Value, named: Named<'_>, configuration: &Configuration, architecture: &str) -> Option<Value> {
    let before: VirtualMachineInstanceSpec = serde_json::from_value(raw.get("spec")?.clone()).ok()?;
    let mut after = before.clone();
    default_instance(&mut after, named, configuration, architecture);
    if after == before {
        return None;
    }
    let mut wanted = raw.clone();
    let (before, after) = (serde_json::to_value(&before).ok()?, serde_json::to_value(&after).ok()?);
    overlay(wanted.get_mut("spec")?, &before, &after);
    Some(wanted)
}

/// If the topology is entirely unset, the guest gets as many sockets as the pod has CPUs, as in KubeVirt.
fn cpu(domain: &mut Domain, configuration: &Configuration, architecture: &str) {
    let resources = domain.resources.as_ref();
    let amount = resources.and_then(|all| all.limits.get("cpu").or_else(|| all.requests.get("cpu")));
    let sockets = amount
        .and_then(|amount| quantity::milli_cpus(&amount.0))
        .map_or(1, |milli| {
            u32::try_from(milli.div_ceil(1000)).unwrap_or(u32::MAX).max(1)
        });
    let cpu = domain.cpu.get_or_insert_default();
    let is_unset = cpu.cores.is_none() && cpu.sockets.is_none() && cpu.threads.is_none();
    let Cpu {
        cores,
        sockets: counted,
        threads,
        model,
        ..
    } = cpu;
    cores.get_or_insert(1);
    counted.get_or_insert(if is_unset { sockets } else { 1 });
    threads.get_or_insert(1);
    if model.as_ref().is_none_or(String::is_empty) {
        *model = Some(default_model(architecture, configuration).into());
    }
}

/// Derives guest memory from the pod's request or limit, and the pod's request from guest memory.
fn memory(domain: &mut Domain) {
    let resources = domain.resources.clone().unwrap_or_default();
    let (request, limit) = (resources.requests.get("memory"), resources.limits.get("memory"));
    let guest = domain.memory.as_ref().and_then(|memory| memory.guest.clone());
    let guest = guest.or_else(|| request.or(limit).cloned());
    if let Some(guest) = &guest {
        domain.memory.get_or_insert_default().guest = Some(guest.clone());
    }
    // As Kubernetes does for pods: a resource with a limit and no request is requested up to the limit.
    let wanted: [(&str, Option<Amount>); 2] = [
        ("memory", limit.cloned().or(guest)),
        ("cpu", resources.limits.get("cpu").cloned()),
    ];
    for (name, amount) in wanted {
        if let Some(amount) = amount.filter(|_| !resources.requests.contains_key(name)) {
            let requests = &mut domain.resources.get_or_insert_default().requests;
            requests.insert(name.into(), amount);
        }
    }
}

fn network(spec: &mut VirtualMachineInstanceSpec) {
    let devices = &mut spec.domain.devices;
    let wanted = devices.autoattach_pod_interface != Some(false);
    if wanted && devices.interfaces.is_empty() && spec.networks.is_empty() {
        spec.networks.push(Network {
            name: NETWORK.into(),
            pod: Some(PodNetwork {}),
        });
        devices.interfaces.push(Interface {
            name: NETWORK.into(),
            ..Interface::default()
        });
    }
    for interface in &mut devices.interfaces {
        if interface.passt.is_none() && interface.bridge.is_none() {
            interface.masquerade.get_or_insert(Binding {});
        }
    }
}

/// Creates a disk for a volume that no disk references (KubeVirt's rule), and sets each disk's default bus for the
/// architecture.
fn disks(spec: &mut VirtualMachineInstanceSpec, architecture: &str) {
    let disks = &mut spec.domain.devices.disks;
    for volume in &spec.volumes {
        if !disks.iter().any(|disk| disk.name == volume.name) {
            disks.push(Disk {
                name: volume.name.clone(),
                ..Disk::default()
            });
        }
    }
    for disk in disks {
        match &mut disk.cdrom {
            Some(CdRomTarget { bus, .. }) => {
                let usual = if architecture == "amd64" {
                    DiskBus::Sata
                } else {
                    DiskBus::Scsi
                };
                bus.get_or_insert(usual);
            }
            None => {
                let DiskTarget { bus, .. } = disk.disk.get_or_insert_default();
                bus.get_or_insert(DiskBus::Virtio);
            }
        }
    }
}

fn identities(spec: &mut VirtualMachineInstanceSpec, namespace: &str, name: &str) {
    let firmware = spec.domain.firmware.get_or_insert_default();
    let uuid = firmware
        .uuid
        .get_or_insert_with(|| firmware_uuid(namespace, name))
        .clone();
    firmware.serial.get_or_insert(uuid);
    for interface in &mut spec.domain.devices.interfaces {
        let own = &interface.name;
        interface
            .mac_address
            .get_or_insert_with(|| mac_address(namespace, name, own));
    }
}
