//! The disks of a guest, those that a manifest only implies among them.

use std::{borrow::Cow, collections::BTreeSet};

use drydock_api::kubevirt::{VirtualMachineInstanceSpec, devices::Disk};

/// Returns the spec's disks, followed by one disk for each volume that has none, as in KubeVirt.
pub(super) fn all_disks(spec: &VirtualMachineInstanceSpec) -> Vec<Cow<'_, Disk>> {
    let given = &spec.domain.devices.disks;
    let named: BTreeSet<_> = given.iter().map(|disk| disk.name.as_str()).collect();
    let implied = spec
        .volumes
        .iter()
        .filter(|volume| !named.contains(volume.name.as_str()))
        .map(|volume| {
            Cow::Owned(Disk {
                name: volume.name.clone(),
                ..Disk::default()
            })
        });
    given.iter().map(Cow::Borrowed).chain(implied).collect()
}
