//! Disks, interfaces and other devices of a guest.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The guest's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Devices {
    /// Disks, each of the volume with its name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::by_name::<Disk>")]
    pub disks: Vec<Disk>,
    /// Network interfaces, each on the network with its name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::by_name::<Interface>")]
    pub interfaces: Vec<Interface>,
    /// A source of random numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rng: Option<Rng>,
    /// The guest has a serial port, whose output is in the log of its pod. Yes if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoattach_serial_console: Option<bool>,
    /// The guest has a screen, for VNC. Yes if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoattach_graphics_device: Option<bool>,
    /// A guest without interfaces gets one on the pod's network. Yes if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoattach_pod_interface: Option<bool>,
    /// A guest without inputs gets a tablet on the USB bus. No if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoattach_input_device: Option<bool>,
    /// The guest has a memory balloon, by which the host gets back the pages that the guest frees. Yes if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoattach_mem_balloon: Option<bool>,
    /// Pointing devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::by_name::<Input>")]
    pub inputs: Vec<Input>,
    /// A watchdog, which acts when the guest does not respond to it in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watchdog: Option<Watchdog>,
    /// A sound card, whose output is discarded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sound: Option<Sound>,
}

/// A pointing device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Input {
    /// Its name.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// tablet: its position is that of the viewer's pointer.
    #[serde(rename = "type", default)]
    pub type_: InputType,
    /// usb if not set.
    #[serde(
        default,
        deserialize_with = "super::unless_empty",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "super::or_empty::<InputBus>")]
    pub bus: Option<InputBus>,
}

/// The kind of a pointing device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum InputType {
    /// Positions are absolute.
    #[default]
    Tablet,
}

/// The bus of a pointing device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum InputBus {
    /// By a USB controller, which the guest has then.
    #[default]
    Usb,
    /// Made for virtual machines.
    Virtio,
}

/// A watchdog.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Watchdog {
    /// Its name.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Intel's 6300ESB, the only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub i6300esb: Option<I6300Esb>,
}

/// Intel's 6300ESB.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct I6300Esb {
    /// reset if not set.
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
    /// Its name.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// ich9 or ac97; ich9 if not set.
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
    /// Name of the volume.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// The guest sees a disk. So it does if neither this nor `cdrom` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskTarget>,
    /// The guest sees a CD-ROM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cdrom: Option<CdRomTarget>,
    /// Place in the order of booting, from 1.
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
    /// Cache mode: `none`, `writethrough` or `writeback`. If not set, `none` where the storage can be written past the
    /// host's cache, else `writethrough`.
    #[serde(
        default,
        deserialize_with = "super::unless_empty",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "super::or_empty::<DiskCache>")]
    pub cache: Option<DiskCache>,
}

/// A disk as a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct DiskTarget {
    /// virtio if not set.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::or_empty::<DiskBus>")]
    pub bus: Option<DiskBus>,
    /// The guest cannot write to it.
    #[serde(skip_serializing_if = "Option::is_none", rename = "readonly")]
    pub read_only: Option<bool>,
}

/// A disk as a CD-ROM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct CdRomTarget {
    /// sata or scsi; sata if not set.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::or_empty::<DiskBus>")]
    pub bus: Option<DiskBus>,
    /// The guest cannot write to it. Yes if not set.
    #[serde(skip_serializing_if = "Option::is_none", rename = "readonly")]
    pub read_only: Option<bool>,
}

/// The bus of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DiskBus {
    /// Made for virtual machines.
    Virtio,
    /// SATA.
    Sata,
    /// SCSI, by a virtio controller.
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
    /// Nothing.
    None,
    /// Reads only.
    WriteThrough,
    /// Reads and writes, which are lost if the host fails before the guest flushes.
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
    /// Name of the network.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Connected through the pod's address. Drydock does it by passt, like `passt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masquerade: Option<Binding>,
    /// Connected through the pod's address by passt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passt: Option<Binding>,
    /// In KubeVirt, a bridge between the guest and the pod's network. Drydock does it by passt, like `passt`: the guest has
    /// the pod's address too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<Binding>,
    /// virtio, e1000e or e1000; virtio if not set.
    #[serde(
        default,
        deserialize_with = "super::unless_empty",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "super::or_empty::<InterfaceModel>")]
    pub model: Option<InterfaceModel>,
    /// Ports of the guest that can be reached; all if none is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// MAC address; made from the object's UID if not set.
    #[serde(
        default,
        deserialize_with = "super::unless_empty",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(regex(pattern = r"^(([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2})?$"))]
    pub mac_address: Option<String>,
    /// Place in the order of booting, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub boot_order: Option<u32>,
}

/// A way to connect an interface, which has no settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Binding {}

/// Model of a network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum InterfaceModel {
    /// Made for virtual machines.
    Virtio,
    /// Intel's, PCI Express.
    E1000e,
    /// Intel's, PCI.
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

/// A port of the guest that can be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Port {
    /// Its name in the pod.
    #[serde(
        default,
        deserialize_with = "super::unless_empty",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = 15))]
    pub name: Option<String>,
    /// TCP or UDP; TCP if not set.
    #[serde(
        default,
        deserialize_with = "super::unless_empty",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "super::or_empty::<Protocol>")]
    pub protocol: Option<Protocol>,
    /// Its number.
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
