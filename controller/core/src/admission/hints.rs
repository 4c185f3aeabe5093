//! Fields that are accepted and ignored, because they make no difference to the guest.
//!
//! A field is a hint only if nothing that the guest can see or do depends on the field: it affects only speed or the
//! host, or it requests a property that guests have anyway. If this holds only for some values of a field, only these
//! values are accepted.

use super::AdmittedKind;

/// Which values of a hint are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// All values.
    Any,
    /// Only this value, in JSON notation without quotes.
    Only(&'static str),
}

/// A field that is accepted and ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Kind with the field; fields of an instance also apply to templates.
    pub kind: AdmittedKind,
    /// Path, with `[]` for lists.
    pub field: &'static str,
    /// Accepted values.
    pub accepted: Accepted,
    /// Why the field makes no difference to the guest.
    pub why: &'static str,
}

const fn any(field: &'static str, why: &'static str) -> Hint {
    Hint {
        kind: AdmittedKind::Instance,
        field,
        accepted: Accepted::Any,
        why,
    }
}

const fn only(value: &'static str, field: &'static str, why: &'static str) -> Hint {
    Hint {
        kind: AdmittedKind::Instance,
        field,
        accepted: Accepted::Only(value),
        why,
    }
}

const SPEED: &str = "requests speed, not something that the guest sees";
const NO_CPUS_ADDED: &str = "limits how many CPUs may be added while the guest runs; Drydock adds none";
const NO_MEMORY_ADDED: &str = "limits how much memory may be added while the guest runs; Drydock adds none";
const ALWAYS: &str = "guests have it anyway";

/// All hints.
pub const HINTS: [Hint; 19] = [
    any("spec.domain.cpu.maxSockets", NO_CPUS_ADDED),
    any("spec.domain.memory.maxGuest", NO_MEMORY_ADDED),
    any("spec.domain.ioThreadsPolicy", SPEED),
    any("spec.domain.ioThreads.supplementalPoolThreadCount", SPEED),
    any("spec.domain.devices.blockMultiQueue", SPEED),
    any("spec.domain.devices.networkInterfaceMultiqueue", SPEED),
    any("spec.domain.devices.disks[].dedicatedIOThread", SPEED),
    any("spec.domain.devices.disks[].io", SPEED),
    any(
        "spec.domain.devices.disableHotplug",
        "forbids adding disks while the guest runs; Drydock adds none",
    ),
    any(
        "spec.domain.resources.overcommitGuestOverhead",
        "is about the pod's request only; what a guest needs beside its memory is always requested",
    ),
    only(
        "stop",
        "spec.domain.devices.disks[].errorPolicy",
        "is what happens anyway: the guest is paused",
    ),
    only("closed", "spec.domain.devices.disks[].cdrom.tray", ALWAYS),
    only(
        "true",
        "spec.domain.devices.logSerialConsole",
        "is what happens anyway: the serial port's output is in the pod's log",
    ),
    only("up", "spec.domain.devices.interfaces[].state", ALWAYS),
    only("true", "spec.domain.features.acpi.enabled", ALWAYS),
    only("true", "spec.domain.features.apic.enabled", ALWAYS),
    only(
        "false",
        "spec.domain.firmware.bootloader.bios.useSerial",
        "is how firmware is anyway",
    ),
    only(
        "false",
        "spec.domain.firmware.bootloader.efi.persistent",
        "is what happens anyway: the variables are those of a new machine when the guest starts in a new pod",
    ),
    Hint {
        kind: AdmittedKind::Machine,
        field: "spec.updateVolumesStrategy",
        accepted: Accepted::Only("Replacement"),
        why: "is what happens anyway: other volumes are used from the next start on",
    },
];

/// Returns the hint for a field, by its path with `[]` for lists.
pub(super) fn find(kind: AdmittedKind, field: &str) -> Option<&'static Hint> {
    HINTS.iter().find(|hint| hint.kind == kind && hint.field == field)
}
