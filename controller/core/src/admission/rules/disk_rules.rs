//! The guest's disks and its boot order.

use drydock_api::kubevirt::{
    VirtualMachineInstanceSpec,
    devices::{Disk, DiskBus},
};

use super::hardware::has_bus;
use crate::admission::{At, RefusalList};

/// Format of serial numbers, which become QEMU attributes and file names below `/dev/disk/by-id`.
const SERIAL: &str = "up to 256 letters, digits, `_`, `.`, `+` and `-`";

pub(super) fn check(spec: &VirtualMachineInstanceSpec, at: &At, refusals: &mut RefusalList) {
    let at_disks = at.field("domain").field("devices").field("disks");
    let disks = &spec.domain.devices.disks;
    for (index, disk) in disks.iter().enumerate() {
        let at_disk = at_disks.index(index);
        if let Some(first) = disks[..index].iter().position(|other| other.name == disk.name) {
            refusals.duplicate(&at_disk.field("name"), &disk.name, &at_disks.index(first));
        } else if disk.cdrom.is_none() && !spec.volumes.iter().any(|volume| volume.name == disk.name) {
            // A CD-ROM drive without a volume is empty.
            let allowed = format_args!("the name of one of {}", at.field("volumes"));
            refusals.not_allowed(&at_disk.field("name"), &disk.name, allowed);
        }
        target(disk, spec.architecture.as_deref(), &at_disk, refusals);
    }
    boot_order(spec, at, refusals);
}

fn target(disk: &Disk, architecture: Option<&str>, at: &At, refusals: &mut RefusalList) {
    if disk.disk.is_some() && disk.cdrom.is_some() {
        refusals.conflict(&at.field("cdrom"), at.field("disk"));
    }
    let allowed = |usable: &[DiskBus]| {
        let usable = usable.iter().filter(|bus| has_bus(architecture, **bus));
        usable.map(|bus| bus.as_str()).collect::<Vec<_>>().join(", ")
    };
    if let Some(bus) = disk.disk.as_ref().and_then(|target| target.bus)
        && !has_bus(architecture, bus)
    {
        let allowed = allowed(&[DiskBus::Virtio, DiskBus::Sata, DiskBus::Scsi]);
        refusals.not_allowed(&at.field("disk").field("bus"), bus.as_str(), allowed);
    }
    if let Some(cdrom) = &disk.cdrom {
        let at = at.field("cdrom");
        if let Some(bus) = cdrom.bus
            && (bus == DiskBus::Virtio || !has_bus(architecture, bus))
        {
            refusals.not_allowed(&at.field("bus"), bus.as_str(), allowed(&[DiskBus::Sata, DiskBus::Scsi]));
        }
        if cdrom.read_only == Some(false) {
            refusals.not_allowed(&at.field("readonly"), false, "true; no guest can write to a CD-ROM");
        }
    }
    if let Some(serial) = &disk.serial
        && !(serial.len() <= 256
            && serial
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'+' | b'-')))
    {
        refusals.not_allowed(&at.field("serial"), serial, SERIAL);
    }
}

/// Checks the boot order, which disks and interfaces share.
fn boot_order(spec: &VirtualMachineInstanceSpec, at: &At, refusals: &mut RefusalList) {
    let devices = &spec.domain.devices;
    let at = at.field("domain").field("devices");
    let disks = devices.disks.iter().map(|disk| disk.boot_order);
    let interfaces = devices.interfaces.iter().map(|interface| interface.boot_order);
    let ordered = disks
        .enumerate()
        .map(|(index, order)| (at.field("disks").index(index), order))
        .chain(
            interfaces
                .enumerate()
                .map(|(index, order)| (at.field("interfaces").index(index), order)),
        );
    let mut seen: Vec<(u32, At)> = Vec::new();
    for (at, order) in ordered {
        let Some(order) = order else { continue };
        if order == 0 {
            refusals.not_allowed(&at.field("bootOrder"), order, "1 or more");
        } else if let Some((_, first)) = seen.iter().find(|(other, _)| *other == order) {
            refusals.duplicate(&at.field("bootOrder"), order, first);
        } else {
            seen.push((order, at));
        }
    }
}
