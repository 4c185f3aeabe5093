//! Generation of the domain XML: a VirtualMachineInstance becomes the XML of a libvirt domain.
//!
//! ```text
//!  instance's spec ───────┐
//!  prepared disks ────────┼─▶ domain_xml() ─▶ libvirt defines and starts it
//!  masked CPU features ───┘        │
//!                                  └─▶ or an error
//! ```
//!
//! The same input produces the same text, down to the address of each device on the guest's buses. Only values that
//! depend on the libvirt version are left to libvirt: the path of QEMU, and the version of a machine type such as
//! `q35`.

mod all_disks;
mod boot;
mod clock;
mod consoles;
mod cpu;
mod disks;
mod element;
mod extras;
mod features;
mod firmware;
mod full_cpu;
mod identity;
mod inputs;
mod interfaces;
mod memory;
mod pci;
mod problem;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use drydock_api::{
    facts::VirtType,
    kubevirt::{VirtualMachineInstanceSpec, devices::Devices},
    launcher::{PodAddress, PreparedDisk},
};

pub use consoles::VNC_SOCKET;
pub use disks::{DiskTargetName, disk_alias, disk_targets};
pub(crate) use features::{HypervNeeds, TRANSLATION_CACHE};
pub use full_cpu::full_cpu;
pub use identity::{firmware_uuid, mac_address};
pub use interfaces::{USUAL_TCP, USUAL_UDP};
pub use memory::guest_memory;
pub use problem::DomainProblem;

use boot::BootOrder;
use cpu::{GuestTopology, Mask};
use element::Element;
use pci::PciSlots;

/// XML namespace of the domain metadata that identifies the instance.
pub const METADATA_NAMESPACE: &str = "https://drydock.dev/libvirt/v1";

/// Machine type of a guest that sets none.
const MACHINE: &str = "q35";

/// The guest to generate the domain XML for.
#[derive(Clone, Copy, Debug)]
pub struct DomainInput<'a> {
    /// Namespace of the instance.
    pub namespace: &'a str,
    /// Name of the instance.
    pub name: &'a str,
    /// UID of the instance.
    pub uid: &'a str,
    /// Spec of the instance. Unset fields have the same defaults as those that admission fills in.
    pub spec: &'a VirtualMachineInstanceSpec,
    /// Hardware virtualization or emulation.
    pub virt_type: VirtType,
    /// libvirt's name for the architecture.
    pub architecture: &'a str,
    /// Features that are withheld from all guests.
    pub masked_features: &'a BTreeSet<String>,
    /// Features that a guest could have on this node, masked or not: no others need to be disabled. `None` if
    /// unknown; then libvirt must know the name of each masked feature.
    pub host_features: Option<&'a BTreeSet<String>>,
    /// Whether libvirt can omit features that cannot be migrated from the host's own CPU (the enum
    /// `hostPassthroughMigratable`). `None` if unknown: then it is requested on x86_64 only, where every QEMU
    /// supports it.
    pub host_passthrough_migratable: Option<bool>,
    /// The disks as prepared by the launcher.
    pub disks: &'a [PreparedDisk],
    /// Addresses of the pod that the guest starts in.
    pub addresses: &'a [PodAddress],
}

/// Returns the domain name of the instance, by KubeVirt's rule.
pub fn domain_name(namespace: &str, name: &str) -> String {
    format!("{namespace}_{name}")
}

/// Returns the domain XML.
///
/// # Errors
/// If the domain XML cannot be generated: the spec is impossible, or the launcher has not prepared a disk.
pub fn domain_xml(input: &DomainInput<'_>) -> Result<String, DomainProblem> {
    if input.architecture != "x86_64" {
        return Err(DomainProblem::UnsupportedArchitecture(input.architecture.into()));
    }
    let hardware = &input.spec.domain;
    let topology = GuestTopology::of(input.spec);
    let serial = hardware
        .firmware
        .as_ref()
        .and_then(|firmware| firmware.serial.as_deref())
        .filter(|serial| !serial.is_empty());
    let kibibytes = guest_memory(input.spec)?.div_ceil(1024).to_string();
    let mask = Mask {
        masked: input.masked_features,
        host: input.host_features,
    };
    let migratable = input
        .host_passthrough_migratable
        .unwrap_or(input.architecture == "x86_64");
    Element::new("domain")
        .with("type", input.virt_type.as_str())
        .child(Element::text("name", domain_name(input.namespace, input.name)))
        .child(Element::text("uuid", uuid(input)?))
        .child(metadata(input.uid))
        .child(Element::text("memory", kibibytes.as_str()).with("unit", "KiB"))
        .child(Element::text("currentMemory", kibibytes).with("unit", "KiB"))
        .child(Element::text("vcpu", topology.count()?.to_string()).with("placement", "static"))
        .children(serial.map(system_serial))
        .child(os(input, serial.is_some())?)
        .child(features::element(hardware, input.virt_type))
        .child(cpu::element(input.spec, topology, input.virt_type, migratable, mask)?)
        .child(clock::element(features::clock(hardware, input.virt_type).as_deref())?)
        .child(Element::text("on_poweroff", "destroy"))
        .child(Element::text("on_reboot", "restart"))
        .child(Element::text("on_crash", "destroy"))
        .child(power_management())
        .child(devices(input)?)
        .document()
}

fn uuid(input: &DomainInput<'_>) -> Result<String, DomainProblem> {
    let given = input.spec.domain.firmware.as_ref();
    match given.and_then(|firmware| firmware.uuid.as_deref()) {
        None => Ok(firmware_uuid(input.namespace, input.name)),
        Some(uuid) => identity::plain_uuid(uuid).ok_or_else(|| DomainProblem::BadUuid(uuid.into())),
    }
}

/// Returns the metadata that distinguishes the instance's domain from that of another instance of the same name.
fn metadata(uid: &str) -> Element {
    let instance = Element::new("drydock:instance")
        .with("xmlns:drydock", METADATA_NAMESPACE)
        .with("uid", uid);
    Element::new("metadata").child(instance)
}

fn system_serial(serial: &str) -> Element {
    let entry = Element::text("entry", serial).with("name", "serial");
    Element::new("sysinfo")
        .with("type", "smbios")
        .child(Element::new("system").child(entry))
}

fn os(input: &DomainInput<'_>, system_information: bool) -> Result<Element, DomainProblem> {
    let given = input.spec.domain.machine.as_ref();
    let machine = given
        .and_then(|machine| machine.type_.as_deref())
        .filter(|machine| !machine.is_empty())
        .unwrap_or(MACHINE);
    if machine != MACHINE && !machine.starts_with("pc-q35-") {
        return Err(DomainProblem::UnsupportedMachine(machine.into()));
    }
    let type_ = Element::text("type", "hvm")
        .with("arch", input.architecture)
        .with("machine", machine);
    let smbios = system_information.then(|| Element::new("smbios").with("mode", "sysinfo"));
    let firmware = firmware::elements(&input.spec.domain);
    Ok(Element::new("os").child(type_).children(firmware).children(smbios))
}

/// Disables guest-initiated suspend: a suspended guest would look stopped, and nothing would wake it.
fn power_management() -> Element {
    Element::new("pm")
        .child(Element::new("suspend-to-mem").with("enabled", "no"))
        .child(Element::new("suspend-to-disk").with("enabled", "no"))
}

fn devices(input: &DomainInput<'_>) -> Result<Element, DomainProblem> {
    let order = BootOrder::of(input.spec)?;
    let wanted = &input.spec.domain.devices;
    let mut places = PciSlots::new(wanted);
    let disks = disks::elements(input.spec, input.disks, &order, &mut places)?;
    let interfaces = interfaces::elements(input, &order, &mut places)?;
    let inputs = inputs::elements(wanted, &mut places)?;
    Ok(Element::new("devices")
        .children(disks)
        .child(inputs::usb_controller(wanted))
        .children(places.controllers())
        .children(interfaces)
        .children(consoles::elements(wanted))
        .children(inputs)
        .children(extras::elements(wanted))
        .child(balloon(wanted))
        .children(wanted.rng.as_ref().map(|_| random_numbers())))
}

/// Pages that the guest frees return to the node immediately, and a migration need not copy them. Statistics are off:
/// they would wake guest and libvirt without being used.
fn balloon(wanted: &Devices) -> Element {
    if wanted.autoattach_mem_balloon == Some(false) {
        return Element::new("memballoon").with("model", "none");
    }
    Element::new("memballoon")
        .with("model", "virtio")
        .with("freePageReporting", "on")
        .child(pci::BALLOON.element())
}

fn random_numbers() -> Element {
    let backend = Element::text("backend", "/dev/urandom").with("model", "random");
    Element::new("rng")
        .with("model", "virtio")
        .child(backend)
        .child(pci::RNG.element())
}
