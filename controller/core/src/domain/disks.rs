//! The guest's disks: their names, and their sources for QEMU.

use std::collections::BTreeSet;

use drydock_api::{
    kubevirt::{
        VirtualMachineInstanceSpec,
        devices::{Disk, DiskBus, DiskCache},
    },
    launcher::{BackingImage, DEVICES_FOLDER, PreparedDisk},
};

use super::{
    all_disks::all_disks,
    boot::BootOrder,
    element::Element,
    pci::{self, PciSlots},
    problem::DomainProblem,
};

/// Disks per SATA controller.
const ON_SATA: usize = 6;
/// Disks on the SCSI controller, each a unit of its only target. All guests find the first 256.
const ON_SCSI: usize = 256;
/// Characters that QEMU accepts in a serial number besides letters and digits.
const SERIAL_MARKS: [char; 5] = ['-', '_', ' ', '.', '+'];

/// A disk's name in libvirt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskTargetName {
    /// Name of the volume.
    pub volume: String,
    /// Name in libvirt's statistics and jobs: `vda`, `sda` ... Guests may name it differently.
    pub target: String,
    /// Whether the guest cannot write to the disk.
    pub read_only: bool,
}

/// Returns the names of the guest's disks, in the order of [`all_disks`].
pub fn disk_targets(spec: &VirtualMachineInstanceSpec) -> Vec<DiskTargetName> {
    let (mut virtio, mut others) = (0, 0);
    all_disks(spec)
        .iter()
        .map(|disk| {
            let shape = DiskShape::of(spec, disk);
            let (prefix, next) = match shape.bus {
                DiskBus::Virtio => ("vd", &mut virtio),
                DiskBus::Sata | DiskBus::Scsi => ("sd", &mut others),
            };
            let target = format!("{prefix}{}", letters(*next));
            *next += 1;
            DiskTargetName {
                volume: disk.name.clone(),
                target,
                read_only: shape.read_only,
            }
        })
        .collect()
}

/// Returns the volume's disk alias in libvirt's events.
pub fn disk_alias(volume: &str) -> String {
    format!("ua-{volume}")
}

/// The appearance of a disk to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DiskShape {
    bus: DiskBus,
    cd_rom: bool,
    read_only: bool,
}

impl DiskShape {
    fn of(spec: &VirtualMachineInstanceSpec, disk: &Disk) -> Self {
        if let Some(target) = &disk.cdrom {
            return Self {
                bus: target.bus.unwrap_or(DiskBus::Sata),
                cd_rom: true,
                read_only: true,
            };
        }
        let target = disk.disk.clone().unwrap_or_default();
        Self {
            bus: target.bus.unwrap_or(DiskBus::Virtio),
            cd_rom: false,
            read_only: target.read_only.unwrap_or(false) || is_token(spec, disk),
        }
    }
}

/// Returns whether the disk contains a service account token. A token is valid as long as its pod exists. So a
/// migration does not copy the disk, and the guest gets the token of its new pod.
fn is_token(spec: &VirtualMachineInstanceSpec, disk: &Disk) -> bool {
    let mut volumes = spec.volumes.iter();
    volumes.any(|volume| volume.name == disk.name && volume.service_account.is_some())
}

/// Returns the disks and the controllers that they need.
pub(super) fn elements(
    spec: &VirtualMachineInstanceSpec,
    prepared: &[PreparedDisk],
    order: &BootOrder,
    places: &mut PciSlots,
) -> Result<Vec<Element>, DomainProblem> {
    let (mut disks, mut names) = (Vec::new(), BTreeSet::new());
    let (mut on_sata, mut on_scsi) = (0, 0);
    for (disk, target) in all_disks(spec).iter().zip(disk_targets(spec)) {
        if !names.insert(disk.name.as_str().to_owned()) {
            return Err(DomainProblem::DuplicateDisk(disk.name.clone()));
        }
        let shape = checked(spec, disk)?;
        let found = prepared.iter().find(|prepared| prepared.name == disk.name);
        let has_volume = spec.volumes.iter().any(|volume| volume.name == disk.name);
        let source = match found {
            Some(found) => source_elements(spec, disk, shape, found)?,
            None if shape.cd_rom && !has_volume => empty_drive(),
            None => return Err(DomainProblem::DiskNotPrepared(disk.name.clone())),
        };
        let address = match shape.bus {
            DiskBus::Virtio => places.disk()?.element(),
            DiskBus::Sata => {
                on_sata += 1;
                drive((on_sata - 1) / ON_SATA, (on_sata - 1) % ON_SATA)
            }
            DiskBus::Scsi => {
                on_scsi += 1;
                drive(0, on_scsi - 1)
            }
        };
        let boot = order.disks.get(&disk.name);
        disks.push(
            source
                .child(
                    Element::new("target")
                        .with("dev", target.target)
                        .with("bus", shape.bus.as_str()),
                )
                .children(shape.read_only.then(|| Element::new("readonly")))
                .children(serial(disk)?)
                .children(boot.map(|place| Element::new("boot").with("order", place.to_string())))
                .child(Element::new("alias").with("name", disk_alias(&disk.name)))
                .child(address),
        );
    }
    if on_scsi > ON_SCSI {
        return Err(DomainProblem::TooManyDevices("scsi"));
    }
    disks.extend(controllers(on_sata, on_scsi, places)?);
    Ok(disks)
}

/// Returns how a disk appears to the guest, or an error if that is impossible.
fn checked(spec: &VirtualMachineInstanceSpec, disk: &Disk) -> Result<DiskShape, DomainProblem> {
    if disk.disk.is_some() && disk.cdrom.is_some() {
        return Err(DomainProblem::AmbiguousDisk(disk.name.clone()));
    }
    let shape = DiskShape::of(spec, disk);
    match shape.bus {
        DiskBus::Virtio if shape.cd_rom => Err(DomainProblem::BadCdRomBus(disk.name.clone())),
        DiskBus::Sata if shape.read_only && !shape.cd_rom => Err(DomainProblem::ReadOnlySataDisk(disk.name.clone())),
        _ => Ok(shape),
    }
}

/// Returns the host side of the disk. All layers are listed with their formats, so that a layer's content cannot
/// decide which files are opened below it.
///
/// The guest is paused when its storage fails, and can be resumed when the storage is available again.
fn source_elements(
    spec: &VirtualMachineInstanceSpec,
    disk: &Disk,
    shape: DiskShape,
    prepared: &PreparedDisk,
) -> Result<Element, DomainProblem> {
    let block = prepared
        .path
        .strip_prefix(DEVICES_FOLDER)
        .is_some_and(|rest| rest.starts_with('/'));
    let (type_, attribute) = if block { ("block", "dev") } else { ("file", "file") };
    let discard = (!shape.read_only).then_some("unmap");
    let driver = Element::new("driver")
        .with("name", "qemu")
        .with("type", prepared.format.as_str())
        .with_some("cache", cache(spec, disk).map(DiskCache::as_str))
        .with("error_policy", "stop")
        .with_some("discard", discard);
    let backing = match &prepared.backing {
        None => Element::new("backingStore"),
        Some(image) => backing_element(&disk.name, image)?,
    };
    Ok(Element::new("disk")
        .with("type", type_)
        .with("device", if shape.cd_rom { "cdrom" } else { "disk" })
        .child(driver)
        .child(Element::new("source").with(attribute, absolute(&disk.name, &prepared.path)?))
        .child(backing))
}

/// Returns a CD-ROM drive without a medium.
fn empty_drive() -> Element {
    Element::new("disk")
        .with("type", "file")
        .with("device", "cdrom")
        .child(Element::new("driver").with("name", "qemu").with("type", "raw"))
}

fn backing_element(disk: &str, image: &BackingImage) -> Result<Element, DomainProblem> {
    Ok(Element::new("backingStore")
        .with("type", "file")
        .child(Element::new("format").with("type", image.format.as_str()))
        .child(Element::new("source").with("file", absolute(disk, &image.path)?))
        .child(Element::new("backingStore")))
}

fn absolute<'a>(disk: &str, path: &'a str) -> Result<&'a str, DomainProblem> {
    if path.starts_with('/') {
        return Ok(path);
    }
    Err(DomainProblem::BadDiskPath {
        disk: disk.into(),
        path: path.into(),
    })
}

/// Returns the host's cache mode for a disk. When a guest leaves, this node's memory must not hold data of storage
/// that other nodes also see, so a PersistentVolumeClaim is not cached unless the spec requests it; disks that are
/// deleted with the pod have QEMU's default.
fn cache(spec: &VirtualMachineInstanceSpec, disk: &Disk) -> Option<DiskCache> {
    let claimed = || {
        spec.volumes.iter().any(|volume| {
            volume.name == disk.name && (volume.persistent_volume_claim.is_some() || volume.data_volume.is_some())
        })
    };
    disk.cache.or_else(|| claimed().then_some(DiskCache::None))
}

fn serial(disk: &Disk) -> Result<Option<Element>, DomainProblem> {
    let Some(serial) = disk.serial.as_deref().filter(|serial| !serial.is_empty()) else {
        return Ok(None);
    };
    let good = |c: char| c.is_ascii_alphanumeric() || SERIAL_MARKS.contains(&c);
    if serial.chars().all(good) {
        Ok(Some(Element::text("serial", serial)))
    } else {
        Err(DomainProblem::BadDiskSerial(disk.name.clone()))
    }
}

/// Returns the SATA controllers, the first of which is part of the chip set, and the SCSI controller.
fn controllers(on_sata: usize, on_scsi: usize, places: &mut PciSlots) -> Result<Vec<Element>, DomainProblem> {
    let controller = |type_: &str, index: usize| {
        Element::new("controller")
            .with("type", type_)
            .with("index", index.to_string())
    };
    let mut elements = vec![controller("sata", 0).child(pci::FIRST_SATA.element())];
    for index in 1..on_sata.div_ceil(ON_SATA) {
        elements.push(controller("sata", index).child(places.sata_controller()?.element()));
    }
    if on_scsi > 0 {
        elements.push(
            controller("scsi", 0)
                .with("model", "virtio-scsi")
                .child(pci::SCSI.element()),
        );
    }
    Ok(elements)
}

fn drive(controller: usize, unit: usize) -> Element {
    Element::new("address")
        .with("type", "drive")
        .with("controller", controller.to_string())
        .with("bus", "0")
        .with("target", "0")
        .with("unit", unit.to_string())
}

/// Returns `a` to `z`, `aa` to `zz` and so on.
fn letters(index: u32) -> String {
    let last = char::from(b'a' + u8::try_from(index % 26).unwrap_or_default());
    match index / 26 {
        0 => last.into(),
        more => format!("{}{last}", letters(more - 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_on_after_z() {
        for (index, expected) in [(0, "a"), (25, "z"), (26, "aa"), (51, "az"), (701, "zz"), (702, "aaa")] {
            assert_eq!(letters(index), expected);
        }
    }
}
