//! VirtualMachineInstanceMigration: one migration of a running virtual machine to another node.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Condition, guest_cpu::GuestCpu};

/// One live migration of a running virtual machine to another node.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachineInstanceMigration",
    plural = "virtualmachineinstancemigrations",
    singular = "virtualmachineinstancemigration",
    shortname = "vmim",
    shortname = "vmims",
    category = "all",
    namespaced,
    status = "VirtualMachineInstanceMigrationStatus",
    derive = "PartialEq",
    doc = "One move of a running virtual machine to another node.",
    selectable = ".status.source.node",
    selectable = ".status.target.node",
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase","description":"The current phase"}"#,
    printcolumn = r#"{"name":"VMI","type":"string","jsonPath":".spec.vmiName","description":"The virtual machine that moves"}"#,
    printcolumn = r#"{"name":"Source","type":"string","jsonPath":".status.sourceNode","priority":1}"#,
    printcolumn = r#"{"name":"Target","type":"string","jsonPath":".status.target.node","priority":1}"#,
    printcolumn = r#"{"name":"Progress","type":"string","jsonPath":".status.source.progress.summary","priority":1}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.reason","description":"Why the migration failed"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self == oldSelf", "message": "a migration's spec cannot be changed"},
]))]
pub struct VirtualMachineInstanceMigrationSpec {
    /// Name of the VirtualMachineInstance to migrate, in the same namespace.
    #[schemars(length(min = 1, max = 253))]
    pub vmi_name: String,
    /// Labels that the target node must have, in addition to those that the VirtualMachineInstance requires.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub added_node_selector: BTreeMap<String, String>,
    /// Priority among waiting migrations. Only Drydock's controller may set the priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<MigrationPriority>,
}

impl VirtualMachineInstanceMigration {
    /// Returns the phase, if the controller has reported one.
    pub fn phase(&self) -> Option<MigrationPhase> {
        self.status.as_ref()?.phase
    }

    /// Returns the recorded state of the node that the guest leaves.
    pub fn source(&self) -> Option<&MigrationSource> {
        self.status.as_ref()?.source.as_ref()
    }

    /// Returns the recorded state of the node that the guest moves to.
    pub fn target(&self) -> Option<&MigrationTarget> {
        self.status.as_ref()?.target.as_ref()
    }

    /// Returns the recorded state of the guest.
    pub fn guest(&self) -> Option<&MigratedGuest> {
        self.status.as_ref()?.guest.as_ref()
    }
}

/// Priority of a migration among waiting migrations. Only Drydock's controller may set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MigrationPriority {
    /// The migration rebalances the cluster.
    SystemMaintenance,
    /// A user waits for the migration.
    UserTriggered,
    /// The migration drains a node.
    SystemCritical,
}

/// Status of a migration.
///
/// The agent of `source.node` writes the report in `source`, and the agent of `target.node` the report in `target`. The
/// controller writes all other fields, including those of `source` and `target` that name node and pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": only_forward("source", &SourceState::ALL, SourceState::may_follow),
        "message": "a report of a migration's source cannot be withdrawn",
    },
    {
        "rule": only_forward("target", &TargetState::ALL, TargetState::may_follow),
        "message": "a report of a migration's target cannot be withdrawn",
    },
    {
        "rule": "!has(oldSelf.phase) || !(oldSelf.phase in ['Succeeded', 'Failed']) || (has(self.phase) && self.phase == oldSelf.phase)",
        "message": "a final phase cannot be changed",
    },
    {
        "rule": "!has(oldSelf.source) || !has(oldSelf.source.node) || (has(self.source) && has(self.source.node) && self.source.node == oldSelf.source.node)",
        "message": "the source node of a migration cannot be changed",
    },
    {
        "rule": "!has(oldSelf.target) || !has(oldSelf.target.node) || (has(self.target) && has(self.target.node) && self.target.node == oldSelf.target.node)",
        "message": "the target node of a migration cannot be changed",
    },
]))]
pub struct VirtualMachineInstanceMigrationStatus {
    /// Phase of the migration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<MigrationPhase>,
    /// CamelCase reason why the migration failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Times at which the migration first reached each phase.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "phase_transitions")]
    pub phase_transition_timestamps: Vec<MigrationPhaseTransition>,
    /// Conditions of the migration: Waiting, migrationAbortRequested and PostCopy. A condition that does not apply is
    /// absent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::conditions")]
    pub conditions: Vec<Condition>,
    /// State of the migration in KubeVirt's format, as in the status of the VirtualMachineInstance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration_state: Option<MigrationState>,
    /// Requirements of the guest on the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<MigratedGuest>,
    /// Abort request with its reason. The guest stays on the source unless it has already moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abort: Option<MigrationAbort>,
    /// The source node is lost for good, with everything that ran on it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub source_gone: bool,
    /// Node that the guest is to leave: `source.node` once source and target are named, before that the node on which
    /// the guest runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_node: Option<String>,
    /// Source of the migration, with the report of its agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<MigrationSource>,
    /// Target of the migration, with the report of its agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<MigrationTarget>,
}

/// Returns a CEL rule: the state of a side does not change, or changes to an allowed successor.
fn only_forward<S: Copy + Serialize>(side: &str, all: &[S], may_follow: fn(S, S) -> bool) -> String {
    let allowed = |before: S| {
        all.iter()
            .filter(|after| may_follow(**after, before))
            .copied()
            .collect::<Vec<_>>()
    };
    let rows: Vec<String> = all
        .iter()
        .map(|before| format!("{}: {}", json!(before), json!(allowed(*before))))
        .collect();
    let rows = rows.join(", ").replace('"', "'");
    format!(
        "!has(oldSelf.{side}) || !has(oldSelf.{side}.state) || (has(self.{side}) && has(self.{side}.state) \
         && self.{side}.state in {{{rows}}}[oldSelf.{side}.state])"
    )
}

fn phase_transitions(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    super::list_map::<Vec<MigrationPhaseTransition>>(generator, &["phase"])
}

/// Phase of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MigrationPhase {
    /// The migration waits in the queue for its target pod.
    Pending,
    /// The target pod is being scheduled and started.
    Scheduling,
    /// The target pod is ready, and the migration waits for a free slot.
    Scheduled,
    /// The target is being prepared.
    PreparingTarget,
    /// The target is prepared.
    TargetReady,
    /// The guest is being transferred.
    Running,
    /// The guest runs on the target.
    Succeeded,
    /// The migration failed: the guest stayed on the source, ended, or was lost.
    Failed,
    /// A value of a later version; nothing may be inferred from it. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl MigrationPhase {
    /// Returns whether the migration has ended.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// Returns KubeVirt's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Scheduling => "Scheduling",
            Self::Scheduled => "Scheduled",
            Self::PreparingTarget => "PreparingTarget",
            Self::TargetReady => "TargetReady",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }
}

/// Time at which a migration first reached a phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrationPhaseTransition {
    /// The phase.
    pub phase: MigrationPhase,
    /// Time at which the migration first reached the phase.
    #[schemars(schema_with = "super::time")]
    pub phase_transition_timestamp: Timestamp,
}

/// Requirements of a migrating guest on its target, recorded once when source and target are named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MigratedGuest {
    /// UID of the guest's VirtualMachineInstance.
    #[serde(rename = "instanceUID", skip_serializing_if = "Option::is_none")]
    pub instance_uid: Option<String>,
    /// Complete CPU of the guest: model and features.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<GuestCpu>,
    /// Identity of the processor on which the guest runs, if the guest has the host's own CPU. The target must have the
    /// same processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor: Option<String>,
    /// CPU features that the mask of the source node withholds from new guests. A target that masks them too can
    /// nevertheless take the guest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub masked_features: Vec<String>,
    /// Virtualization type of the guest: `kvm`, or `qemu` for emulation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virt_type: Option<String>,
    /// Names of the disks whose content is copied, such as `vda`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub copied_disks: Vec<String>,
    /// Of disks with a layer above an image, only the layer is copied, because both sides have the same images.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub layers_only: bool,
}

/// Request to abort a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationAbort {
    /// CamelCase reason for the abort.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
}

/// Source of a migration: the node and the pod that the guest leaves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(oldSelf.fingerprint) || (has(self.fingerprint) && self.fingerprint == oldSelf.fingerprint)",
        "message": "the fingerprint of a migration's source cannot be changed",
    },
]))]
pub struct MigrationSource {
    /// Name of the source node. Written by the controller, like the pod and its UID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Name of the source pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// UID of the source pod.
    #[serde(rename = "podUID", skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// State of the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<SourceState>,
    /// CamelCase reason for the state, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Human-readable message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// SHA-256 fingerprint of the certificate that the source's tunnel presents. The certificate is created for this
    /// migration only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The guest was paused by its user, and must stay paused.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keep_paused: bool,
    /// Time at which the guest began to move.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::time")]
    pub start_timestamp: Option<Timestamp>,
    /// Current mode of the migration.
    #[serde(skip_serializing_if = "MigrationMode::is_not_written")]
    pub mode: Option<MigrationMode>,
    /// Progress of the transfer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<MigrationProgress>,
}

/// State of the source of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum SourceState {
    /// The guest is about to be transferred, or is being transferred.
    Migrating,
    /// The guest is paused, or has ended while it was paused, and is not being transferred any more. The target's
    /// report decides on which side the guest continues.
    Halted,
    /// The guest will never run on the source again, so the target may resume it.
    Released,
    /// The guest has left the source, and nothing of it runs there any more.
    Stopped,
    /// The guest has left the source, and the target's tunnel has reported that it has taken the guest over. This state
    /// combines [`Self::Stopped`] of the source with [`TargetState::Running`] of the target.
    HandedOver,
    /// The guest stays on the source, and is not being transferred any more.
    Stayed,
    /// The guest has ended on the source, for another reason than its migration.
    Ended,
    /// A value of a later version; nothing may be inferred from it. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl SourceState {
    /// All values that this version writes.
    pub const ALL: [Self; 7] = [
        Self::Migrating,
        Self::Halted,
        Self::Released,
        Self::Stopped,
        Self::HandedOver,
        Self::Stayed,
        Self::Ended,
    ];

    /// Returns whether the state is the source's last report: the source's part in the migration is over.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Stopped | Self::HandedOver | Self::Stayed | Self::Ended)
    }

    /// Returns whether a source that has reported `before` may report this state next. No report is revoked.
    pub fn may_follow(self, before: Self) -> bool {
        match before {
            Self::Migrating | Self::Halted => self >= before && self != Self::Unknown,
            Self::Released => matches!(self, Self::Released | Self::Stopped | Self::HandedOver),
            Self::Stopped | Self::HandedOver | Self::Stayed | Self::Ended | Self::Unknown => self == before,
        }
    }
}

/// Target of a migration: the node and the pod to which the guest moves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(oldSelf.fingerprint) || (has(self.fingerprint) && self.fingerprint == oldSelf.fingerprint)",
        "message": "the fingerprint of a migration's target cannot be changed",
    },
    {
        "rule": "!has(oldSelf.address) || (has(self.address) && self.address == oldSelf.address)",
        "message": "the address of a migration's target cannot be changed",
    },
]))]
pub struct MigrationTarget {
    /// Name of the target node. Written by the controller, like the pod and its UID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Name of the target pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// UID of the target pod.
    #[serde(rename = "podUID", skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// State of the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<TargetState>,
    /// CamelCase reason for the state, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Human-readable message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Address and port on which the target's tunnel listens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// SHA-256 fingerprint of the certificate that the target's tunnel presents. The certificate is created for this
    /// migration only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The guest may be switched to post-copy: QEMU on the target can wait for memory that arrives later.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub post_copy: bool,
}

/// State of the target of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TargetState {
    /// libvirt on the target can run the guest, and the target's tunnel listens.
    Prepared,
    /// The guest cannot run on the target.
    Refused,
    /// The target has received the whole guest, which waits until it may be resumed.
    Complete,
    /// The guest runs on the target, or is paused as its user had paused it before.
    Running,
    /// The target has nothing of the guest, will receive nothing of it, and has never run it.
    Gone,
    /// The guest has ended on the target, after it ran there or may have run there.
    Ended,
    /// A value of a later version; nothing may be inferred from it. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl TargetState {
    /// All values that this version writes.
    pub const ALL: [Self; 6] = [
        Self::Prepared,
        Self::Refused,
        Self::Complete,
        Self::Running,
        Self::Gone,
        Self::Ended,
    ];

    /// Returns whether a target that has reported `before` may report this state next. No report is revoked.
    pub fn may_follow(self, before: Self) -> bool {
        match before {
            Self::Prepared | Self::Complete => self >= before && self != Self::Unknown,
            Self::Running => matches!(self, Self::Running | Self::Ended),
            Self::Refused | Self::Gone | Self::Ended | Self::Unknown => self == before,
        }
    }
}

/// Mode of a migration: `PreCopy`, `PostCopy` after a switch to post-copy, or `Paused` if the agent has paused the
/// guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MigrationMode {
    /// The guest runs on the source until all of it is on the target.
    PreCopy,
    /// The guest runs on the target, and its missing memory follows.
    PostCopy,
    /// The agent has paused the guest until all of it is on the target.
    Paused,
    /// A value of a later version; nothing may be inferred from it. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl MigrationMode {
    /// Returns whether the field is omitted: there is no mode, or a mode of a later version.
    fn is_not_written(mode: &Option<Self>) -> bool {
        mode.is_none_or(|mode| mode == Self::Unknown)
    }
}

/// Progress of the transfer of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationProgress {
    /// Human-readable summary, such as `42 %, 310 MiB left, about 7 s`.
    pub summary: String,
    /// Total number of bytes of memory and copied disks.
    pub data_total: u64,
    /// Number of bytes sent so far. Bytes that were sent repeatedly count repeatedly.
    pub data_processed: u64,
    /// Number of bytes still to be sent.
    pub data_remaining: u64,
    /// Rate at which the guest changes its memory, in bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirty_rate: Option<u64>,
    /// Rate at which data is sent, in bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<u64>,
    /// Number of the current pass over the guest's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iteration: Option<u64>,
    /// Expected downtime if the guest switched over now, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_downtime: Option<u64>,
    /// Expected end of the migration at its present rates.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::time")]
    pub estimated_end: Option<Timestamp>,
}

/// State of a migration in KubeVirt's format, in the status of both the VirtualMachineInstance and the migration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationState {
    /// UID of the migration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration_uid: Option<String>,
    /// Time at which source and target of the migration were named.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::time")]
    pub start_timestamp: Option<Timestamp>,
    /// Time at which the migration ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::time")]
    pub end_timestamp: Option<Timestamp>,
    /// Mode of the migration.
    #[serde(skip_serializing_if = "MigrationMode::is_not_written")]
    pub mode: Option<MigrationMode>,
    /// Node that the guest leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_node: Option<String>,
    /// Pod that the guest leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_pod: Option<String>,
    /// Node to which the guest moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_node: Option<String>,
    /// Pod to which the guest moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_pod: Option<String>,
    /// Address and port on which the target's tunnel listens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_node_address: Option<String>,
    /// The source or the target has reported that the guest runs on the target.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub target_node_domain_detected: bool,
    /// The migration has ended, whether it succeeded or failed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub completed: bool,
    /// The migration has failed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// Human-readable reason why the migration failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// An abort of the migration was requested, or the migration was deleted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub abort_requested: bool,
    /// Result of the abort: `Aborting`, `Succeeded` or `Failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abort_status: Option<String>,
    /// Configuration of the migration, as it was in force when source and target were named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration_configuration: Option<MigrationConfiguration>,
}

impl MigrationState {
    /// Returns whether the migration has ended, whether it succeeded or failed.
    pub fn has_ended(&self) -> bool {
        self.completed || self.failed
    }
}

/// Configuration of a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationConfiguration {
    /// Maximum bandwidth in bytes per second, as a quantity. 0 means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_per_migration: Option<String>,
    /// Time limit in seconds for each GiB of memory and copied disks. 0 means no limit.
    #[serde(rename = "completionTimeoutPerGiB", skip_serializing_if = "Option::is_none")]
    pub completion_timeout_per_gib: Option<i64>,
    /// Time without progress in seconds after which the migration is aborted. 0 means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_timeout: Option<i64>,
    /// Maximum downtime of the guest, in milliseconds.
    #[serde(rename = "maxDowntimeMs", skip_serializing_if = "Option::is_none")]
    pub max_downtime_ms: Option<u64>,
    /// The guest may be throttled so that the migration can complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_auto_converge: Option<bool>,
    /// The guest may run on the target before all of its memory has arrived (post-copy).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_post_copy: Option<bool>,
    /// The guest may be paused or switched to post-copy so that the migration can complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_workload_disruption: Option<bool>,
}
