//! Errors in generating the domain XML.

/// Why the domain XML cannot be generated. Admission refuses most of these cases at creation; the remaining ones were
/// not checked then, or are errors of the pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DomainProblem {
    /// Drydock does not run guests of this architecture.
    #[error("guests of architecture `{0}` are not supported; supported: x86_64")]
    UnsupportedArchitecture(String),
    /// The machine type has no PCI Express, or is of another architecture.
    #[error("machine type `{0}` is not supported; supported: `q35` and its versions")]
    UnsupportedMachine(String),
    /// The spec does not set the guest's memory.
    #[error("the guest's memory is not set: neither memory.guest nor a memory request or limit is set")]
    NoMemory,
    /// The amount of memory is invalid.
    #[error("`{0}` is not an amount of memory; it must be a quantity of at least 1Mi and below 8Pi")]
    BadMemory(String),
    /// The UUID is invalid.
    #[error("`{0}` is not a UUID")]
    BadUuid(String),
    /// The guest has no CPUs, or more than the machine type supports.
    #[error("the guest would have {0} CPUs; 1 to 255 are supported")]
    BadCpuCount(u64),
    /// The guest requires a feature that is masked on the node.
    #[error("the guest requires CPU feature `{0}`, which is masked on this node")]
    FeatureMasked(String),
    /// A timer has a setting that this timer does not support.
    #[error("timer `{timer}` does not support {setting}")]
    BadTimer {
        /// Name of the timer in the manifest.
        timer: &'static str,
        /// The unsupported setting.
        setting: String,
    },
    /// Two disks have the same name.
    #[error("disk `{0}` is defined twice")]
    DuplicateDisk(String),
    /// The launcher has not prepared a disk.
    #[error("disk `{0}` has not been prepared")]
    DiskNotPrepared(String),
    /// The launcher has prepared a disk at an invalid path.
    #[error("disk `{disk}` was prepared at `{path}`, which is not an absolute path")]
    BadDiskPath {
        /// Name of the disk.
        disk: String,
        /// The path from the launcher.
        path: String,
    },
    /// A device is both a disk and a CD-ROM.
    #[error("`{0}` cannot be both a disk and a CD-ROM")]
    AmbiguousDisk(String),
    /// A CD-ROM is on a bus without CD-ROM drives.
    #[error("CD-ROM `{0}` cannot be on bus virtio; supported: sata, scsi")]
    BadCdRomBus(String),
    /// A read-only disk is on a bus that supports only writable disks.
    #[error("disk `{0}` cannot be read-only on bus sata; supported: virtio, scsi")]
    ReadOnlySataDisk(String),
    /// QEMU does not accept the serial number of a disk.
    #[error("the serial number of disk `{0}` may contain only letters, digits, spaces, `.`, `+`, `-` and `_`")]
    BadDiskSerial(String),
    /// Two devices have the same position in the boot order, or a device has position 0.
    #[error("boot order {0} is not allowed; boot orders start at 1 and are unique")]
    BadBootOrder(u32),
    /// An interface has a MAC address that a network card cannot have.
    #[error("interface `{interface}` cannot have MAC address `{address}`")]
    BadMacAddress {
        /// Name of the interface.
        interface: String,
        /// The invalid MAC address.
        address: String,
    },
    /// A port of an interface is invalid.
    #[error("interface `{interface}` has port {port}; allowed: 1 to 65535")]
    BadPort {
        /// Name of the interface.
        interface: String,
        /// The invalid port.
        port: i32,
    },
    /// A bus has fewer addresses than the guest has devices for it.
    #[error("there are too many devices on bus {0}")]
    TooManyDevices(&'static str),
    /// A text has characters that XML cannot represent, or that are invisible.
    #[error("the text of `{place}` contains control characters: {text:?}")]
    ControlCharacters {
        /// The element or attribute of libvirt's XML.
        place: String,
        /// The text.
        text: String,
    },
}

impl DomainProblem {
    /// Returns the CamelCase reason for conditions and events.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::UnsupportedArchitecture(_) => "UnsupportedArchitecture",
            Self::UnsupportedMachine(_) => "UnsupportedMachine",
            Self::NoMemory => "NoMemory",
            Self::BadMemory(_) => "BadMemory",
            Self::BadUuid(_) => "BadUUID",
            Self::BadCpuCount(_) => "BadCPUCount",
            Self::FeatureMasked(_) => "CPUFeatureMasked",
            Self::BadTimer { .. } => "BadTimer",
            Self::DuplicateDisk(_) => "DuplicateDisk",
            Self::DiskNotPrepared(_) => "DiskNotPrepared",
            Self::BadDiskPath { .. } => "BadDiskPath",
            Self::AmbiguousDisk(_) => "AmbiguousDisk",
            Self::BadCdRomBus(_) => "BadCDRomBus",
            Self::ReadOnlySataDisk(_) => "ReadOnlySATADisk",
            Self::BadDiskSerial(_) => "BadDiskSerial",
            Self::BadBootOrder(_) => "BadBootOrder",
            Self::BadMacAddress { .. } => "BadMACAddress",
            Self::BadPort { .. } => "BadPort",
            Self::TooManyDevices(_) => "TooManyDevices",
            Self::ControlCharacters { .. } => "ControlCharacters",
        }
    }
}
