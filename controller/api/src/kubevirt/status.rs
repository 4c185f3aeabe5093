//! The status of a VirtualMachineInstance.
//!
//! The controller writes the cluster's part, and the agent of `nodeName` writes the guest's part. Each field has one
//! writer at a time: the agent takes over the phase from the controller when the guest runs.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, migration::MigrationState};
use crate::launcher::{DiskFormat, GuestOutcome};

pub use super::guest_cpu::GuestCpu;

/// Status of a running virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(oldSelf.phase) || !(oldSelf.phase in ['Succeeded', 'Failed']) || (has(self.phase) && self.phase == oldSelf.phase)",
    "message": "a final phase cannot be changed",
}]))]
pub struct VirtualMachineInstanceStatus {
    /// Phase of the virtual machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// CamelCase reason why the guest does not run, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Times at which the virtual machine first reached each phase.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "phase_transitions")]
    pub phase_transition_timestamps: Vec<PhaseTransition>,
    /// Conditions of the virtual machine: Ready, Paused, LiveMigratable, AgentConnected, PodScheduled and others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::conditions")]
    pub conditions: Vec<Condition>,
    /// Name of the node on which the virtual machine runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Launcher pods that have not ended: UID of the pod to name of its node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub active_pods: BTreeMap<String, String>,
    /// Network interfaces with their addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<InterfaceStatus>,
    /// Operating system of the guest, as the guest agent reports it.
    #[serde(rename = "guestOSInfo", skip_serializing_if = "GuestOsInfo::is_empty")]
    pub guest_os_info: GuestOsInfo,
    /// `frozen` while the guest's file systems are frozen, or about to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs_freeze_status: Option<String>,
    /// Whether a migration also copies disks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration_method: Option<MigrationMethod>,
    /// Transport of a migration's stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration_transport: Option<String>,
    /// State of the newest migration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration_state: Option<MigrationState>,
    /// Node that the virtual machine is to leave. Empty once the virtual machine has left the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evacuation_node_name: Option<String>,
    /// Current or last request that the virtual machine leave its node, with the failed attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evacuation: Option<Evacuation>,
    /// Quality of service class of the launcher pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos_class: Option<String>,
    /// Machine type of the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineStatus>,
    /// CPU topology of the guest.
    #[serde(rename = "currentCPUTopology", skip_serializing_if = "Option::is_none")]
    pub current_cpu_topology: Option<CpuTopology>,
    /// Memory of the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStatus>,
    /// Volumes of the virtual machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::by_name::<VolumeStatus>")]
    pub volume_status: Vec<VolumeStatus>,
    /// Status that only Drydock reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drydock: Option<DrydockStatus>,
}

fn phase_transitions(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    super::list_map::<Vec<PhaseTransition>>(generator, &["phase"])
}

/// Phase of a virtual machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// The launcher pod does not exist yet.
    #[default]
    Pending,
    /// The launcher pod is being scheduled and started.
    Scheduling,
    /// The launcher pod has started, and the guest does not run yet.
    Scheduled,
    /// The guest runs.
    Running,
    /// The guest has shut down.
    Succeeded,
    /// The guest was lost, crashed, was destroyed, or never started.
    Failed,
    /// The state of the virtual machine is unknown at present, or the phase is a value of a later version.
    #[serde(other)]
    Unknown,
}

impl Phase {
    /// Returns whether the guest will not run again under this object.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// Returns KubeVirt's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Scheduling => "Scheduling",
            Self::Scheduled => "Scheduled",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }
}

/// Time at which a virtual machine first reached a phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhaseTransition {
    /// The phase.
    pub phase: Phase,
    /// Time at which the virtual machine first reached the phase.
    #[schemars(schema_with = "super::time")]
    pub phase_transition_timestamp: Timestamp,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InterfaceStatus {
    /// Name of the network in the spec, if the interface belongs to a network of the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// First IP address of the interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_address: Option<String>,
    /// All IP addresses of the interface.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ip_addresses: Vec<String>,
    /// MAC address of the interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Name of the interface in the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<String>,
    /// Sources of the information: `domain`, or `domain, guest-agent` if the guest agent reports the interface too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub info_source: Option<String>,
}

/// The guest's operating system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestOsInfo {
    /// Name of the operating system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Release of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_release: Option<String>,
    /// Version of the operating system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Human-readable name and version of the operating system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pretty_name: Option<String>,
    /// Version number of the operating system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_id: Option<String>,
    /// Version of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_version: Option<String>,
    /// Architecture of the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Short name of the operating system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

impl GuestOsInfo {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Whether a migration also copies disks: `BlockMigration` if it does, `LiveMigration` if all disks are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MigrationMethod {
    /// Disks that only the source has are copied.
    BlockMigration,
    /// All disks are shared.
    LiveMigration,
    /// A value of a later version; nothing may be inferred from it. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// The machine type of a running guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MachineStatus {
    /// Versioned name of the machine type.
    #[serde(rename = "type")]
    pub type_: String,
}

/// CPU topology of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CpuTopology {
    /// Number of cores per socket.
    pub cores: u32,
    /// Number of sockets.
    pub sockets: u32,
    /// Number of threads per core.
    pub threads: u32,
}

/// Memory of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryStatus {
    /// Amount of memory at the start of the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_at_boot: Option<String>,
    /// Current amount of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_current: Option<String>,
    /// Requested amount of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_requested: Option<String>,
}

/// A volume of a running virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeStatus {
    /// Name of the volume.
    pub name: String,
    /// Name of the disk in the guest's hardware, such as `vda`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Size of the disk in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
    /// PersistentVolumeClaim that backs the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_info: Option<ClaimInfo>,
}

/// A PersistentVolumeClaim that backs a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimInfo {
    /// Name of the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_name: Option<String>,
    /// Access modes of the claim.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub access_modes: Vec<String>,
    /// Volume mode of the claim: Block or Filesystem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
}

/// A request that a virtual machine leave its node, with the failed attempts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Evacuation {
    /// Source of the request.
    pub requested_by: DrainRequest,
    /// Time of the request.
    #[schemars(schema_with = "super::time")]
    pub requested_at: Timestamp,
    /// Number of migrations for this request that have failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// Last failed migration for this request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<FailedMigration>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A migration that has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailedMigration {
    /// UID of the migration.
    pub uid: String,
    /// Time at which the migration failed.
    #[schemars(schema_with = "super::time")]
    pub at: Timestamp,
    /// CamelCase reason of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Human-readable message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Digest of the circumstances that affected the migration when it was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub circumstances: Option<String>,
    /// The circumstances have changed since then, so the next migration need not wait for the usual back-off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outdated: bool,
}

/// Source of a request to drain virtual machines from a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DrainRequest {
    /// A NodeMaintenance of the node.
    Maintenance,
    /// The node's drain taint.
    Taint,
    /// An eviction on a cordoned node, as by `kubectl drain`.
    Cordon,
    /// An eviction on a node that is neither drained nor cordoned.
    Eviction,
    /// A value of a later version; nothing may be inferred from it. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl DrainRequest {
    /// Returns the name of the source in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Maintenance => "Maintenance",
            Self::Taint => "Taint",
            Self::Cordon => "Cordon",
            Self::Eviction => "Eviction",
            Self::Unknown => "Unknown",
        }
    }
}

/// Status that only Drydock reports, such as the properties that a migration's target must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DrydockStatus {
    /// The running guest's CPU, as libvirt reports it.
    #[serde(rename = "guestCPU", skip_serializing_if = "Option::is_none")]
    pub guest_cpu: Option<GuestCpu>,
    /// Virtualization type of the guest: `kvm`, or `qemu` for emulation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virt_type: Option<String>,
    /// Version of QEMU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qemu_version: Option<String>,
    /// Version of libvirt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub libvirt_version: Option<String>,
    /// UID of the pod in which the guest runs.
    #[serde(rename = "podUID", skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// UIDs of launcher pods in which nothing runs any more, as the agent has verified: the pod or its Node no longer
    /// exists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ended_pods: Vec<String>,
    /// End of the guest in one of `endedPods`, if the launcher has reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ending: Option<PodEnding>,
    /// Time at which the node's agent thaws the guest's frozen file systems by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::time")]
    pub thaw_at: Option<Timestamp>,
    /// Images below the guest's containerDisks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::by_name::<ImageRecord>")]
    pub images: Vec<ImageRecord>,
}

/// The end of a guest in a pod that no longer exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodEnding {
    /// UID of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// Outcome of the guest: `Shutdown`, `Crashed`, `Destroyed`, `Migrated`, `Failed` or `NotStarted`.
    #[schemars(with = "String")]
    pub outcome: GuestOutcome,
    /// Message of the launcher.
    #[serde(default)]
    pub message: String,
    /// Whether the cluster, and not the guest itself, has caused the end.
    #[serde(default)]
    pub evicted: bool,
    /// Whether the kubelet evicted the pod.
    #[serde(default)]
    pub by_kubelet: bool,
}

/// The image below a containerDisk, as it was when the guest was first started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageRecord {
    /// Name of the volume.
    pub name: String,
    /// Reference of the image with its digest: the manifest's own reference, or the kubelet's ID of an image that was
    /// verified to contain the disk. Absent until the digest is known, and for images without a digest, such as those
    /// that were put on nodes without a registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_id: Option<String>,
    /// Size in bytes.
    pub virtual_size: u64,
    /// Format of the image's content: `qcow2` or `raw`.
    #[schemars(with = "String")]
    pub format: DiskFormat,
}
