//! The guest's hardware: CPU, memory, clock, firmware.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Amount, devices::Devices, features::Features};

/// The hardware that a guest sees.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Domain {
    /// CPU topology, model and features.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Memory that the guest sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// Resource requests and limits of the pod. Drydock adds its own overhead to the memory request and the memory
    /// limit. If `memory.guest` is not set, the guest's memory is the memory request, else the memory limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Machine type of the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// The firmware and its identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<Firmware>,
    /// Features of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub features: Option<Features>,
    /// Clock and timers. Defaults to UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
    /// Disks, interfaces and other devices.
    pub devices: Devices,
}

impl Domain {
    /// Returns the EFI settings of the guest; `None` if the guest boots by BIOS.
    pub fn efi(&self) -> Option<Efi> {
        self.firmware.as_ref()?.bootloader.as_ref()?.efi
    }
}

/// CPU topology, model and features.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Cpu {
    /// Number of cores per socket. Defaults to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 512))]
    pub cores: Option<u32>,
    /// Number of sockets. Defaults to 1. If cores and threads are not set either, the number of CPUs in `resources`
    /// (limit, else request), rounded up.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 512))]
    pub sockets: Option<u32>,
    /// Number of threads per core. Defaults to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 512))]
    pub threads: Option<u32>,
    /// CPU model: a model that libvirt knows, `host-model`, `host-passthrough` or `max`. If not set, the default model
    /// of the cluster's configuration (on arm64 only host-passthrough or max). Without such a default, host-model on
    /// amd64 and s390x and host-passthrough on arm64; where the configuration allows emulation, max on s390x and arm64.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = r"^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$"))]
    pub model: Option<String>,
    /// CPU features with their policies, in addition to the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::by_name::<CpuFeature>")]
    pub features: Vec<CpuFeature>,
}

/// A CPU feature.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct CpuFeature {
    /// libvirt's name of the feature.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$")
    )]
    pub name: String,
    /// Policy for the feature. Defaults to `require`.
    #[serde(
        default,
        deserialize_with = "super::unless_empty",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "super::or_empty::<FeaturePolicy>")]
    pub policy: Option<FeaturePolicy>,
}

/// Policy for a CPU feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FeaturePolicy {
    /// The guest has the feature, whether the host's CPU has it or not.
    Force,
    /// The guest has the feature, and runs only on nodes that have it.
    Require,
    /// The guest has the feature if the node has it.
    Optional,
    /// The guest does not have the feature.
    Disable,
    /// The guest does not have the feature, and runs only on nodes that do not have it.
    Forbid,
}

impl FeaturePolicy {
    /// Returns libvirt's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Force => "force",
            Self::Require => "require",
            Self::Optional => "optional",
            Self::Disable => "disable",
            Self::Forbid => "forbid",
        }
    }
}

/// Memory that the guest sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Memory {
    /// Amount of memory. Defaults to the memory request, else the memory limit, of `resources`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<Amount>,
}

/// Resource requests and limits of the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Resources {
    /// Amounts of resources that are reserved for the pod: `cpu`, `memory` and `ephemeral-storage`, as for other pods.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Amount>,
    /// Maximum amounts of resources that the pod may use.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Amount>,
}

/// Machine type of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Machine {
    /// QEMU's name of the machine type. If not set, q35 on amd64, virt on arm64 and s390-ccw-virtio on s390x.
    #[serde(
        rename = "type",
        deserialize_with = "super::unless_empty",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = 63), regex(pattern = r"^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$"))]
    pub type_: Option<String>,
}

/// The firmware and its identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Firmware {
    /// UUID that the guest reads. If not set, derived from namespace and name, so that the UUID stays the same.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})?$"))]
    pub uuid: Option<String>,
    /// Serial number that the guest reads. Defaults to the UUID.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub serial: Option<String>,
    /// The firmware. Defaults to BIOS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootloader: Option<Bootloader>,
}

/// The firmware: BIOS or EFI.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Bootloader {
    /// BIOS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bios: Option<Bios>,
    /// EFI. The variables are reset to those of a new machine each time the guest starts in a new pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub efi: Option<Efi>,
}

/// BIOS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Bios {}

/// EFI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Efi {
    /// Whether secure boot is on: the firmware boots only systems whose signatures Microsoft's certificates verify.
    /// Defaults to true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secure_boot: Option<bool>,
}

impl Efi {
    /// Returns whether secure boot is on, so that only signed systems boot.
    pub fn is_secure(self) -> bool {
        self.secure_boot != Some(false)
    }
}

/// Clock and timers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Clock {
    /// The guest's clock shows UTC, or a time with a fixed offset from UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utc: Option<ClockUtc>,
    /// Time zone of the guest's clock, such as `Europe/Rome`. Ignored if `utc` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Za-z0-9_+/-]+$"))]
    pub timezone: Option<String>,
    /// Timers of the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timer: Option<Timers>,
}

/// A guest's clock that shows UTC, or a time with a fixed offset from UTC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ClockUtc {
    /// Number of seconds that the clock is ahead of UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset_seconds: Option<i64>,
}

/// Timers of the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Timers {
    /// High precision event timer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hpet: Option<Timer>,
    /// KVM's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kvm: Option<Timer>,
    /// Programmable interval timer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pit: Option<Timer>,
    /// Real time clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtc: Option<Timer>,
    /// Hyper-V's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hyperv: Option<Timer>,
}

/// A timer of the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Timer {
    /// Whether the guest has the timer. Defaults to true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
    /// Handling of missed ticks.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::or_empty::<TickPolicy>")]
    pub tick_policy: Option<TickPolicy>,
    /// The time that the real-time clock follows: `guest` or `wall`.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::or_empty::<Track>")]
    pub track: Option<Track>,
}

/// Handling of missed ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TickPolicy {
    /// Missed ticks are delivered late, at the usual rate.
    Delay,
    /// Missed ticks are delivered at a higher rate until the guest has caught up.
    Catchup,
    /// Missed ticks are merged into a single tick.
    Merge,
    /// Missed ticks are lost.
    Discard,
}

impl TickPolicy {
    /// Returns libvirt's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Catchup => "catchup",
            Self::Merge => "merge",
            Self::Discard => "discard",
        }
    }
}

/// The time that a real-time clock follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Track {
    /// The guest's time.
    Guest,
    /// The host's time.
    Wall,
}

impl Track {
    /// Returns libvirt's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Wall => "wall",
        }
    }
}
