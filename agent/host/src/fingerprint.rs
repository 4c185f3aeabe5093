//! Fingerprint of all inputs of an inspection. Taking it needs only a few reads.
//!
//! If a part changes, the machine must be inspected again. Examples are late microcode, a module that was loaded with
//! other parameters, an upgrade of QEMU or libvirt, and a /dev/kvm that appears.

use std::{
    collections::BTreeMap,
    fs::{self, Metadata},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use drydock_api::facts::{CpuFacts, FactsFingerprint};
use nix::sys::stat::{major, minor};

use crate::{architecture::Architecture, inspection, kernel, roots::Roots};

/// Version of the inspected facts and of their parsing. After an update to a higher version, an agent inspects again.
pub const FACTS_FORMAT: u32 = 2;

/// Programs and files that the inspection uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Programs {
    /// Path of libvirtd; `None` if it does not exist or this process must not access it.
    pub libvirtd: Option<PathBuf>,
    /// Path of QEMU for the native architecture.
    pub qemu: Option<PathBuf>,
    /// Path of libvirt's CPU map.
    pub cpu_map: Option<PathBuf>,
}

/// Takes the fingerprint. A part that cannot be read is recorded as `absent`.
pub fn fingerprint(roots: &Roots, programs: &Programs) -> FactsFingerprint {
    let architecture = Architecture::native();
    let mut parts = BTreeMap::from([
        ("architecture".to_owned(), architecture.kubernetes().to_owned()),
        (
            "cpu".to_owned(),
            processor(&inspection::processor(roots, &architecture)),
        ),
        ("microcode".to_owned(), kernel::microcode(roots).unwrap_or_else(absent)),
        ("kernel".to_owned(), kernel::release(roots)),
        ("kvm".to_owned(), device(&roots.kvm)),
        ("libvirt".to_owned(), file(programs.libvirtd.as_deref())),
        ("qemu".to_owned(), file(programs.qemu.as_deref())),
        ("cpu-map".to_owned(), file(programs.cpu_map.as_deref())),
        ("facts-format".to_owned(), FACTS_FORMAT.to_string()),
    ]);
    parts.extend(
        kernel::kvm_parameters(roots)
            .into_iter()
            .map(|(name, value)| (format!("parameter {name}"), value)),
    );
    FactsFingerprint(parts)
}

fn absent() -> String {
    "absent".to_owned()
}

/// Formats vendor, family, model and stepping.
fn processor(cpu: &CpuFacts) -> String {
    let number = |number: Option<u32>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    format!(
        "{} {}/{}/{}",
        cpu.vendor,
        number(cpu.family),
        number(cpu.model),
        number(cpu.stepping)
    )
}

/// Formats the major and minor numbers of a device node.
fn device(path: &Path) -> String {
    match fs::metadata(path) {
        Ok(metadata) if metadata.file_type().is_char_device() => {
            format!("{}:{}", major(metadata.rdev()), minor(metadata.rdev()))
        }
        Ok(_) => "no device".to_owned(),
        Err(_) => absent(),
    }
}

/// Formats the size and modification time of a file or folder. The name is omitted, because the path is a setting.
fn file(path: Option<&Path>) -> String {
    let describe =
        |metadata: Metadata| format!("{}@{}.{:09}", metadata.size(), metadata.mtime(), metadata.mtime_nsec());
    path.and_then(|path| fs::metadata(path).ok())
        .map_or_else(absent, describe)
}

#[cfg(test)]
mod tests;
