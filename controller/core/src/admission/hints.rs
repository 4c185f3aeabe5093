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

const SPEED: &str = "affects only the speed; the guest does not see the difference";
const NO_CPUS_ADDED: &str = "limits CPU hotplug, which Drydock does not support";
const NO_MEMORY_ADDED: &str = "limits memory hotplug, which Drydock does not support";
const ALWAYS: &str = "guests always have this property";

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
        "forbids disk hotplug, which Drydock does not support",
    ),
    any(
        "spec.domain.resources.overcommitGuestOverhead",
        "affects only the pod's memory request; the pod always requests the overhead of the guest",
    ),
    only(
        "stop",
        "spec.domain.devices.disks[].errorPolicy",
        "is Drydock's behaviour: the guest is paused",
    ),
    only("closed", "spec.domain.devices.disks[].cdrom.tray", ALWAYS),
    only(
        "true",
        "spec.domain.devices.logSerialConsole",
        "is Drydock's behaviour: the output of the serial port is in the pod's log",
    ),
    only("up", "spec.domain.devices.interfaces[].state", ALWAYS),
    only("true", "spec.domain.features.acpi.enabled", ALWAYS),
    only("true", "spec.domain.features.apic.enabled", ALWAYS),
    only(
        "false",
        "spec.domain.firmware.bootloader.bios.useSerial",
        "is a property that the firmware always has",
    ),
    only(
        "false",
        "spec.domain.firmware.bootloader.efi.persistent",
        "is Drydock's behaviour: a guest that starts in a new pod has the variables of a new machine",
    ),
    Hint {
        kind: AdmittedKind::Machine,
        field: "spec.updateVolumesStrategy",
        accepted: Accepted::Only("Replacement"),
        why: "is Drydock's behaviour: changed volumes are used from the next start on",
    },
];

/// Returns the hint for a field, by its path with `[]` for lists.
pub(super) fn find(kind: AdmittedKind, field: &str) -> Option<&'static Hint> {
    HINTS.iter().find(|hint| hint.kind == kind && hint.field == field)
}
