//! Boot devices of a guest and their order.

use std::collections::BTreeMap;

use drydock_api::kubevirt::{VirtualMachineInstanceSpec, devices::Disk};

use super::{all_disks::all_disks, problem::DomainProblem};

/// Positions in the boot order, from 1, by device name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BootOrder {
    pub(super) disks: BTreeMap<String, u32>,
    pub(super) interfaces: BTreeMap<String, u32>,
}

impl BootOrder {
    /// Reads the order from the spec. If no device has a position, the disks are tried in the order of the manifest,
    /// except those without a system: data for cloud-init, files of objects, empty disks and empty drives.
    ///
    /// # Errors
    /// If a position is 0 or used twice.
    pub(super) fn of(spec: &VirtualMachineInstanceSpec) -> Result<Self, DomainProblem> {
        let devices = &spec.domain.devices;
        let mut order = Self::default();
        let mut taken = Vec::new();
        let mut take = |place: u32| {
            if place == 0 || taken.contains(&place) {
                return Err(DomainProblem::BadBootOrder(place));
            }
            taken.push(place);
            Ok(place)
        };
        for disk in &devices.disks {
            if let Some(place) = disk.boot_order {
                order.disks.insert(disk.name.clone(), take(place)?);
            }
        }
        for interface in &devices.interfaces {
            if let Some(place) = interface.boot_order {
                order.interfaces.insert(interface.name.clone(), take(place)?);
            }
        }
        if taken.is_empty() {
            order.disks = all_disks(spec)
                .iter()
                .filter(|disk| may_hold_a_system(spec, disk))
                .map(|disk| disk.name.clone())
                .zip(1..)
                .collect();
        }
        Ok(order)
    }
}

fn may_hold_a_system(spec: &VirtualMachineInstanceSpec, disk: &Disk) -> bool {
    let mut volumes = spec.volumes.iter();
    match volumes.find(|volume| volume.name == disk.name) {
        Some(volume) => volume.cloud_init().is_none() && volume.files().is_none() && volume.empty_disk.is_none(),
        // A CD-ROM drive without a volume is empty.
        None => disk.cdrom.is_none(),
    }
}
