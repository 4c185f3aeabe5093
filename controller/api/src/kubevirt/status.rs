//! The status of a VirtualMachineInstance.
//!
//! The controller writes the cluster's part, the agent of `nodeName` the guest's part; each field has one writer (the
//! writer of the phase changes when the guest runs).

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
    "message": "a final phase is final",
}]))]
pub struct VirtualMachineInstanceStatus {
    /// Where it is between its start and its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Why, in one CamelCase word, where a reason is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it first reached each phase.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "phase_transitions")]
    pub phase_transition_timestamps: Vec<PhaseTransition>,
    /// Ready, Paused, LiveMigratable, AgentConnected, PodScheduled and others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::conditions")]
    pub conditions: Vec<Condition>,
    /// The node on which it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Its pods that have not ended, by UID, and their nodes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub active_pods: BTreeMap<String, String>,
    /// Network interfaces with their addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<InterfaceStatus>,
    /// The guest's operating system, as its agent reports it.
    #[serde(rename = "guestOSInfo", skip_serializing_if = "GuestOsInfo::is_empty")]
    pub guest_os_info: GuestOsInfo,
    /// `frozen` while its file systems are frozen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs_freeze_status: Option<String>,
    /// Whether a migration moves disks too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration_method: Option<MigrationMethod>,
    /// Transport of a migration's stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration_transport: Option<String>,
    /// Its newest migration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration_state: Option<MigrationState>,
    /// The node that it is to leave; empty once it has left that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evacuation_node_name: Option<String>,
    /// The request that it leaves that node, or the last such request, with its failed attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evacuation: Option<Evacuation>,
    /// Quality of service class of its pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos_class: Option<String>,
    /// The machine type that it got.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineStatus>,
    /// CPU topology.
    #[serde(rename = "currentCPUTopology", skip_serializing_if = "Option::is_none")]
    pub current_cpu_topology: Option<CpuTopology>,
    /// Memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStatus>,
    /// Volumes.
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

/// Where a virtual machine is between its start and its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Nothing was done yet.
    #[default]
    Pending,
    /// Its pod is on the way to a node.
    Scheduling,
    /// Its pod is there.
    Scheduled,
    /// The guest runs.
    Running,
    /// The guest has shut down.
    Succeeded,
    /// The guest was lost, crashed, or never started.
    Failed,
    /// Its state cannot be known now, or the phase is one of a later version.
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

/// When a phase was first reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhaseTransition {
    /// The phase.
    pub phase: Phase,
    /// When.
    #[schemars(schema_with = "super::time")]
    pub phase_transition_timestamp: Timestamp,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InterfaceStatus {
    /// Name of the network, if it is one of the object's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its first address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_address: Option<String>,
    /// All its addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ip_addresses: Vec<String>,
    /// MAC address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Its name in the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<String>,
    /// The source of the addresses: `domain`, `guest-agent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub info_source: Option<String>,
}

/// The guest's operating system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestOsInfo {
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Release of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_release: Option<String>,
    /// Version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Name and version for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pretty_name: Option<String>,
    /// Version number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_id: Option<String>,
    /// Version of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_version: Option<String>,
    /// Architecture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Short name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

impl GuestOsInfo {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Whether a migration moves disks too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MigrationMethod {
    /// Disks that only the source has are copied.
    BlockMigration,
    /// All disks are shared.
    LiveMigration,
    /// A value of a later version, of which nothing is concluded. It is never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// The machine type that a guest got.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MachineStatus {
    /// Its versioned name.
    #[serde(rename = "type")]
    pub type_: String,
}

/// CPU topology of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CpuTopology {
    /// Cores of each socket.
    pub cores: u32,
    /// Sockets.
    pub sockets: u32,
    /// Threads of each core.
    pub threads: u32,
}

/// Memory of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryStatus {
    /// Memory at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_at_boot: Option<String>,
    /// Current memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_current: Option<String>,
    /// Requested memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_requested: Option<String>,
}

/// A volume of a running virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeStatus {
    /// Its name.
    pub name: String,
    /// Name of the disk in the guest's hardware, such as `vda`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Size of the disk in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
    /// The claim that it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_info: Option<ClaimInfo>,
}

/// A PersistentVolumeClaim that is a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimInfo {
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_name: Option<String>,
    /// Access modes of the claim.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub access_modes: Vec<String>,
    /// Block or Filesystem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
}

/// A request that a virtual machine leaves its node, with its failed attempts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Evacuation {
    /// Source of the request.
    pub requested_by: DrainRequest,
    /// Time of the request.
    #[schemars(schema_with = "super::time")]
    pub requested_at: Timestamp,
    /// Migrations to empty the node that have failed since then.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// The last of these.
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
    /// When it failed.
    #[schemars(schema_with = "super::time")]
    pub at: Timestamp,
    /// Why, in one CamelCase word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Digest of what decided about it when it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub circumstances: Option<String>,
    /// Something that decides has changed since then, so that the next one need not wait.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outdated: bool,
}

/// Source of a request to empty a node of virtual machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DrainRequest {
    /// A NodeMaintenance of the node.
    Maintenance,
    /// The node's drain taint.
    Taint,
    /// An eviction on a node that is cordoned, as `kubectl drain` does it.
    Cordon,
    /// An eviction alone.
    Eviction,
    /// A value of a later version, of which nothing is concluded. It is never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl DrainRequest {
    /// Returns the name in the API.
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
    /// UIDs of this guest's earlier pods in which nothing runs any more, as the agent has seen: the pod is gone, or its
    /// Node is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ended_pods: Vec<String>,
    /// The end of the guest in one of these pods, if its launcher has reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ending: Option<PodEnding>,
    /// When its agent thaws its frozen file systems by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::time")]
    pub thaw_at: Option<Timestamp>,
    /// The images below containerDisks.
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
    /// Outcome: `Shutdown`, `Crashed`, `Destroyed`, `Migrated`, `Failed` or `NotStarted`.
    #[schemars(with = "String")]
    pub outcome: GuestOutcome,
    /// The launcher's message.
    #[serde(default)]
    pub message: String,
    /// Whether the cluster has ended the guest, and not the guest itself.
    #[serde(default)]
    pub evicted: bool,
    /// Whether it was the kubelet that evicted the pod.
    #[serde(default)]
    pub by_kubelet: bool,
}

/// The image below a containerDisk, as it was at the first start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageRecord {
    /// Name of the volume.
    pub name: String,
    /// Which image it is, by digest: as the manifest names it, or as the node's kubelet reports it. Absent until that is
    /// known, and where images have no digest, as those that were put on nodes without a registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_id: Option<String>,
    /// Size in bytes.
    pub virtual_size: u64,
    /// Format of its content: `qcow2` or `raw`.
    #[schemars(with = "String")]
    pub format: DiskFormat,
}
