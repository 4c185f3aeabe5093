//! Names derived deterministically from other names.

use std::collections::BTreeSet;

use drydock_api::{
    kubevirt::VirtualMachineInstance,
    launcher::{DISKS_VOLUME, RUN_VOLUME},
};
use uuid::Uuid;

/// Maximum length of a volume name, a host name, or a label value.
const LONGEST: usize = 63;

/// Namespace of the UUIDs that are generated here; keeps them distinct from all others.
const NAMES: Uuid = Uuid::from_u128(0x51b8_0c0d_93e4_5f0b_8a3f_64c1_0d7e_22b6);

/// Returns a UUID that is always the same for the same parts.
pub(super) fn stable_uuid(parts: &[&str]) -> String {
    // Kubernetes names contain no `/`.
    Uuid::new_v5(&NAMES, parts.join("/").as_bytes()).to_string()
}

/// Truncates a text so that it is short enough for a label value and ends with a valid character.
pub(crate) fn cut(text: &str, longest: usize) -> String {
    let cut: String = text.chars().take(longest).collect();
    cut.trim_end_matches(['-', '.', '_']).into()
}

/// Returns a label value for a name, which may be longer.
pub(super) fn label(name: &str) -> String {
    cut(name, LONGEST)
}

/// The value of [`INSTANCE_ID`](drydock_api::kubevirt::names::INSTANCE_ID): the name, or its first 54 characters and the
/// first 8 digits of its SHA-1 where it is no label (`CalculateVirtualMachineInstanceID` of KubeVirt 1.9).
pub(super) fn id(name: &str) -> String {
    const DIGITS: usize = 8;
    if name.len() <= LONGEST {
        return name.into();
    }
    let digest = sha1_smol::Sha1::from(name).digest().to_string();
    let beginning: String = name.chars().take(LONGEST - DIGITS - 1).collect();
    let digits: String = digest.chars().take(DIGITS).collect();
    format!("{beginning}-{digits}")
}

/// Returns the host name of a guest and its pod: the manifest's, else the first part of the instance's name
/// (KubeVirt's rule).
pub(super) fn hostname(instance: &VirtualMachineInstance) -> String {
    let name = instance.metadata.name.as_deref().unwrap_or_default();
    let first = name.split('.').next().unwrap_or_default();
    instance.spec.hostname.clone().unwrap_or_else(|| cut(first, LONGEST))
}

/// Names of a pod's volumes: the names of the guest's volumes, unless the pod has a volume of its own with that name.
#[derive(Debug)]
pub(super) struct VolumeNames {
    taken: BTreeSet<String>,
}

impl VolumeNames {
    /// Reserves the names of the guest's volumes and of the pod's own.
    pub(super) fn beside<'a>(guest: impl Iterator<Item = &'a str>) -> Self {
        let own = [RUN_VOLUME, DISKS_VOLUME];
        Self {
            taken: own.into_iter().chain(guest).map(str::to_owned).collect(),
        }
    }

    /// Returns the pod's volume name for one of the guest's volumes.
    pub(super) fn of(&mut self, volume: &str) -> String {
        if [RUN_VOLUME, DISKS_VOLUME].contains(&volume) {
            self.beside_them("volume", volume)
        } else {
            volume.into()
        }
    }

    /// Reserves a name.
    pub(super) fn take(&mut self, name: &str) {
        self.taken.insert(name.into());
    }

    /// Returns an unused name.
    pub(super) fn beside_them(&mut self, kind: &str, volume: &str) -> String {
        let mut name = cut(&format!("{kind}-{volume}"), LONGEST);
        let mut number = 0;
        while !self.taken.insert(name.clone()) {
            number += 1;
            name = format!("{kind}-{number}");
        }
        name
    }
}
