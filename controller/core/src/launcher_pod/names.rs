//! Names made from other names, the same each time.

use std::collections::BTreeSet;

use drydock_api::{
    kubevirt::VirtualMachineInstance,
    launcher::{DISKS_VOLUME, RUN_VOLUME},
};
use uuid::Uuid;

/// Longest name of a volume, a host name, or the value of a label.
const LONGEST: usize = 63;

/// The names from which UUIDs are made here, apart from everybody else's.
const NAMES: Uuid = Uuid::from_u128(0x51b8_0c0d_93e4_5f0b_8a3f_64c1_0d7e_22b6);

/// A UUID that is always the same for the same words.
pub(super) fn stable_uuid(words: &[&str]) -> String {
    // No name of Kubernetes has a `/`.
    Uuid::new_v5(&NAMES, words.join("/").as_bytes()).to_string()
}

/// The beginning of a text that is short enough for a label, and ends as one may.
pub(crate) fn cut(text: &str, longest: usize) -> String {
    let cut: String = text.chars().take(longest).collect();
    cut.trim_end_matches(['-', '.', '_']).into()
}

/// The value of a label for a name, which may be longer.
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

/// The host name of a guest and its pod: as its manifest says, else the first part of its name
/// (KubeVirt's rule).
pub(super) fn hostname(instance: &VirtualMachineInstance) -> String {
    let name = instance.metadata.name.as_deref().unwrap_or_default();
    let first = name.split('.').next().unwrap_or_default();
    instance.spec.hostname.clone().unwrap_or_else(|| cut(first, LONGEST))
}

/// Names of a pod's volumes: those of the guest's volumes, wherever the pod has none of its own of
/// that name.
#[derive(Debug)]
pub(super) struct VolumeNames {
    taken: BTreeSet<String>,
}

impl VolumeNames {
    /// Names beside those of the guest's volumes.
    pub(super) fn beside<'a>(guest: impl Iterator<Item = &'a str>) -> Self {
        let own = [RUN_VOLUME, DISKS_VOLUME];
        Self {
            taken: own.into_iter().chain(guest).map(str::to_owned).collect(),
        }
    }

    /// The name of a volume that is one of the guest's.
    pub(super) fn of(&mut self, volume: &str) -> String {
        if [RUN_VOLUME, DISKS_VOLUME].contains(&volume) {
            self.beside_them("volume", volume)
        } else {
            volume.into()
        }
    }

    /// A name that nothing else has.
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
