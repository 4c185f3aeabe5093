//! Disks, interfaces and other devices of a guest.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The guest's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Devices {
    /// Disks. Each disk has the content of the volume with the same name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::by_name::<Disk>")]
    pub disks: Vec<Disk>,
    /// Network interfaces. Each interface is connected to the network with the same name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::by_name::<Interface>")]
    pub interfaces: Vec<Interface>,
    /// Source of random numbers for the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rng: Option<Rng>,
    /// Whether the guest has a serial port, whose output is in the log of the pod. Defaults to true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoattach_serial_console: Option<bool>,
    /// Whether the guest has a display, for VNC. Defaults to true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoattach_graphics_device: Option<bool>,
    /// Whether a guest without interfaces gets an interface on the pod's network. Defaults to true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoattach_pod_interface: Option<bool>,
    /// Whether a guest without inputs gets a tablet on the USB bus. Defaults to false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoattach_input_device: Option<bool>,
    /// Whether the guest has a memory balloon, through which the host gets back the pages that the guest frees. Yes if
    /// not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoattach_mem_balloon: Option<bool>,
    /// Pointing devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::by_name::<Input>")]
    pub inputs: Vec<Input>,
    /// Watchdog, which acts when the guest does not respond to it in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watchdog: Option<Watchdog>,
    /// Sound card, whose output is discarded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sound: Option<Sound>,
}

/// A pointing device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Input {
    /// Name of the device.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Type of the device: tablet. The position of a tablet is that of the viewer's pointer.
    #[serde(rename = "type", default)]
    pub type_: InputType,
    /// Bus of the device: usb or virtio. Defaults to usb.
    #[serde(
        default,
        deserialize_with = "super::unless_empty",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "super::or_empty::<InputBus>")]
    pub bus: Option<InputBus>,
}

/// Type of a pointing device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum InputType {
    /// Tablet: positions are absolute.
    #[default]
    Tablet,
}

/// The bus of a pointing device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum InputBus {
    /// USB. The guest also gets a USB controller.
    #[default]
    Usb,
    /// virtio, which is designed for virtual machines.
    Virtio,
}

/// A watchdog.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Watchdog {
    /// Name of the watchdog.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Intel 6300ESB, the only supported model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub i6300esb: Option<I6300Esb>,
}

/// A watchdog of the model Intel 6300ESB.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct I6300Esb {
    /// Action when the guest does not respond in time: poweroff, reset or shutdown. Defaults to reset.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::or_empty::<WatchdogAction>")]
    pub action: Option<WatchdogAction>,
}

/// The action of a watchdog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WatchdogAction {
    /// The guest loses power.
    Poweroff,
    /// The guest restarts.
    #[default]
    Reset,
    /// The guest's power button is pressed.
    Shutdown,
}

impl WatchdogAction {
    /// Returns libvirt's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Poweroff => "poweroff",
            Self::Reset => "reset",
            Self::Shutdown => "shutdown",
        }
    }
}

/// A sound card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Sound {
    /// Name of the sound card.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Model of the sound card: ich9 or ac97. Defaults to ich9.
    #[serde(
        default,
        deserialize_with = "super::unless_empty",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "super::or_empty::<SoundModel>")]
    pub model: Option<SoundModel>,
}

/// Model of a sound card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SoundModel {
    /// Intel's High Definition Audio.
    #[default]
    Ich9,
    /// Intel's AC'97.
    Ac97,
}

impl SoundModel {
    /// Returns libvirt's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ich9 => "ich9",
            Self::Ac97 => "ac97",
        }
    }
}

/// A source of random numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Rng {}

/// A disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Disk {
    /// Name of the disk and of its volume.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Presents the volume to the guest as a disk. The default if neither `disk` nor `cdrom` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskTarget>,
    /// Presents the volume to the guest as a CD-ROM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cdrom: Option<CdRomTarget>,
    /// Position in the boot order, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub boot_order: Option<u32>,
    /// Serial number that the guest reads.
    #[serde(
        default,
        deserialize_with = "super::unless_empty",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = 256))]
    pub serial: Option<String>,
    /// Cache mode: `none`, `writethrough` or `writeback`. If not set, `none` for a PersistentVolumeClaim, and QEMU's
    /// default for a disk that is deleted with the pod.
    #[serde(
        default,
        deserialize_with = "super::unless_empty",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "super::or_empty::<DiskCache>")]
    pub cache: Option<DiskCache>,
}

/// A volume that the guest sees as a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct DiskTarget {
    /// Bus of the disk: virtio, sata or scsi. Defaults to virtio.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::or_empty::<DiskBus>")]
    pub bus: Option<DiskBus>,
    /// Whether the disk is read-only for the guest.
    #[serde(skip_serializing_if = "Option::is_none", rename = "readonly")]
    pub read_only: Option<bool>,
}

/// A volume that the guest sees as a CD-ROM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct CdRomTarget {
    /// Bus of the CD-ROM: sata or scsi. If not set, sata on amd64 and scsi on other architectures.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::or_empty::<DiskBus>")]
    pub bus: Option<DiskBus>,
    /// Whether the CD-ROM is read-only for the guest. Defaults to true.
    #[serde(skip_serializing_if = "Option::is_none", rename = "readonly")]
    pub read_only: Option<bool>,
}

/// The bus of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DiskBus {
    /// virtio, which is designed for virtual machines.
    Virtio,
    /// SATA.
    Sata,
    /// SCSI, through a virtio controller.
    Scsi,
}

impl DiskBus {
    /// Returns libvirt's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Virtio => "virtio",
            Self::Sata => "sata",
            Self::Scsi => "scsi",
        }
    }
}

/// Cache mode of a disk: the accesses that the host caches in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DiskCache {
    /// The host caches nothing.
    None,
    /// The host caches reads only.
    WriteThrough,
    /// The host caches reads and writes. Cached writes are lost if the host fails before the guest flushes.
    WriteBack,
}

impl DiskCache {
    /// Returns libvirt's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::WriteThrough => "writethrough",
            Self::WriteBack => "writeback",
        }
    }
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Interface {
    /// Name of the interface and of its network.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Connects the guest through the pod's address. Drydock implements this binding with passt, like `passt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masquerade: Option<Binding>,
    /// Connects the guest through the pod's address with passt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passt: Option<Binding>,
    /// In KubeVirt, a bridge between the guest and the pod's network. Drydock implements this binding with passt, like
    /// `passt`: the guest also has the pod's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<Binding>,
    /// Model of the network card: virtio, e1000e or e1000. Defaults to virtio.
    #[serde(
        default,
        deserialize_with = "super::unless_empty",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "super::or_empty::<InterfaceModel>")]
    pub model: Option<InterfaceModel>,
    /// Ports on which the guest can be reached, in addition to the ports of its probes. If not set, TCP 1-1023,
    /// 3000-3999, 5000-5999 and 8000-9999, and UDP 1-1023.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// MAC address of the network card. If not set, derived from the namespace and name of the object and the name of
    /// the interface.
    #[serde(
        default,
        deserialize_with = "super::unless_empty",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(regex(pattern = r"^(([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2})?$"))]
    pub mac_address: Option<String>,
    /// Position in the boot order, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub boot_order: Option<u32>,
}

/// A method to connect an interface, without settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Binding {}

/// Model of a network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum InterfaceModel {
    /// virtio, which is designed for virtual machines.
    Virtio,
    /// Intel e1000e, on PCI Express.
    E1000e,
    /// Intel e1000, on PCI.
    E1000,
}

impl InterfaceModel {
    /// Returns libvirt's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Virtio => "virtio",
            Self::E1000e => "e1000e",
            Self::E1000 => "e1000",
        }
    }
}

/// A port on which the guest can be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Port {
    /// Name of the port in the pod.
    #[serde(
        default,
        deserialize_with = "super::unless_empty",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = 15))]
    pub name: Option<String>,
    /// Protocol of the port: TCP or UDP. Defaults to TCP.
    #[serde(
        default,
        deserialize_with = "super::unless_empty",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "super::or_empty::<Protocol>")]
    pub protocol: Option<Protocol>,
    /// Number of the port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
}

/// Protocol of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}
