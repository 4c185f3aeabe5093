//! VirtualMachineInstanceMigration: one migration of a running virtual machine to another node.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Condition, guest_cpu::GuestCpu};

/// One move of a running virtual machine to another node.
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
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.reason","description":"Why it failed"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self == oldSelf", "message": "a migration's spec cannot be changed"},
]))]
pub struct VirtualMachineInstanceMigrationSpec {
    /// The instance that moves, in the same namespace.
    #[schemars(length(min = 1, max = 253))]
    pub vmi_name: String,
    /// Labels that the target must have, beside those that the instance requires.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub added_node_selector: BTreeMap<String, String>,
    /// Priority among waiting migrations. Only Drydock's controller may set it.
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

/// Priority of a migration among those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MigrationPriority {
    /// The cluster tidies up.
    SystemMaintenance,
    /// A user waits for it.
    UserTriggered,
    /// A node is being emptied.
    SystemCritical,
}

/// Status of a migration.
///
/// The controller writes all of it but the reports of the two sides: the agent of `source.node` writes
/// `source`, that of `target.node` writes `target`, each without the fields that name node and pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": only_forward("source", &SourceState::ALL, SourceState::may_follow),
        "message": "what a migration's source has reported it does not take back",
    },
    {
        "rule": only_forward("target", &TargetState::ALL, TargetState::may_follow),
        "message": "what a migration's target has reported it does not take back",
    },
    {
        "rule": "!has(oldSelf.phase) || !(oldSelf.phase in ['Succeeded', 'Failed']) || (has(self.phase) && self.phase == oldSelf.phase)",
        "message": "a final phase is final",
    },
    {
        "rule": "!has(oldSelf.source) || !has(oldSelf.source.node) || (has(self.source) && has(self.source.node) && self.source.node == oldSelf.source.node)",
        "message": "a migration's source does not change",
    },
    {
        "rule": "!has(oldSelf.target) || !has(oldSelf.target.node) || (has(self.target) && has(self.target.node) && self.target.node == oldSelf.target.node)",
        "message": "a migration's target does not change",
    },
]))]
pub struct VirtualMachineInstanceMigrationStatus {
    /// Where it is between its start and its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<MigrationPhase>,
    /// Why it waits or has failed, in one CamelCase word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it first reached each phase.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "phase_transitions")]
    pub phase_transition_timestamps: Vec<MigrationPhaseTransition>,
    /// Why it waits, or has failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::conditions")]
    pub conditions: Vec<Condition>,
    /// The same as KubeVirt reports it, here and on the instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration_state: Option<MigrationState>,
    /// The guest, as its target must be able to run it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<MigratedGuest>,
    /// That it is to be given up, and why. The guest stays where it is unless it has moved already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abort: Option<MigrationAbort>,
    /// The source's node is gone for good, and whatever ran there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub source_gone: bool,
    /// The node that the guest is to leave: `source.node` once the sides are named, before that the node it is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_node: Option<String>,
    /// Where the guest comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<MigrationSource>,
    /// Where it goes to.
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

/// Where a migration is between its start and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MigrationPhase {
    /// It waits for its turn.
    Pending,
    /// Its pod is on the way to a node.
    Scheduling,
    /// Its pod is there.
    Scheduled,
    /// The target is being prepared.
    PreparingTarget,
    /// The target is prepared.
    TargetReady,
    /// The guest is on its way.
    Running,
    /// The guest runs on the target.
    Succeeded,
    /// The guest stayed where it was.
    Failed,
    /// A value of a later version, of which nothing is concluded. It is never written.
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

/// When a migration first reached a phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrationPhaseTransition {
    /// The phase.
    pub phase: MigrationPhase,
    /// When.
    #[schemars(schema_with = "super::time")]
    pub phase_transition_timestamp: Timestamp,
}

/// The guest that moves, as its target must be able to run it: recorded once, when both sides are
/// named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MigratedGuest {
    /// UID of its instance.
    #[serde(rename = "instanceUID", skip_serializing_if = "Option::is_none")]
    pub instance_uid: Option<String>,
    /// Its CPU in full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<GuestCpu>,
    /// Which processor it runs on, where it has the host's own CPU: its target must have the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor: Option<String>,
    /// CPU features that the mask of its source withholds from new guests: that its target masks them too is not in
    /// its way.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub masked_features: Vec<String>,
    /// `kvm`, or `qemu` for emulation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virt_type: Option<String>,
    /// Names of the disks whose content is copied, such as `vda`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub copied_disks: Vec<String>,
    /// Of layers above images the layer alone is copied, since both sides have the same images.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub layers_only: bool,
}

/// That a migration is to be given up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationAbort {
    /// Why, in one CamelCase word.
    pub reason: String,
    /// The same for people.
    pub message: String,
}

/// The side that a guest comes from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(oldSelf.fingerprint) || (has(self.fingerprint) && self.fingerprint == oldSelf.fingerprint)",
        "message": "the fingerprint of a migration's source does not change",
    },
]))]
pub struct MigrationSource {
    /// Node. The controller's to write, as the next two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// UID of the pod.
    #[serde(rename = "podUID", skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// State of this side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<SourceState>,
    /// Why, in one CamelCase word, where a reason is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// SHA-256 of the certificate that it shows, which was made for this migration alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The guest was paused by its user, and is to stay so.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keep_paused: bool,
    /// When the guest began to move.
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
    /// The guest is about to move, or moves.
    Migrating,
    /// The guest stands still, and nothing moves it any more: what the target has decides.
    Halted,
    /// The guest will not run here again, whatever happens: the target may let it go on.
    Released,
    /// The guest has left, and nothing of it runs here any more.
    Stopped,
    /// The same, and the target's tunnel has reported that it has taken the guest over: both that the source has
    /// [`Self::Stopped`] and that the target is [`TargetState::Running`], in one word.
    HandedOver,
    /// The guest runs here and does not move any more.
    Stayed,
    /// The guest has ended here, and not by leaving.
    Ended,
    /// A value of a later version, of which nothing is concluded. It is never written.
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

    /// Returns whether this is the source's last report: the migration of the guest is over.
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

/// The side that a guest goes to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(oldSelf.fingerprint) || (has(self.fingerprint) && self.fingerprint == oldSelf.fingerprint)",
        "message": "the fingerprint of a migration's target does not change",
    },
    {
        "rule": "!has(oldSelf.address) || (has(self.address) && self.address == oldSelf.address)",
        "message": "the address of a migration's target does not change",
    },
]))]
pub struct MigrationTarget {
    /// Node. The controller's to write, as the next two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// UID of the pod.
    #[serde(rename = "podUID", skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// State of this side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<TargetState>,
    /// Why, in one CamelCase word, where a reason is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Where its tunnel listens: address and port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// SHA-256 of the certificate that it shows, which was made for this migration alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The guest may be switched to post-copy: QEMU can wait here for memory that comes later.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub post_copy: bool,
}

/// State of the target of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TargetState {
    /// Its libvirt can run the guest, and its tunnel listens.
    Prepared,
    /// The guest cannot run here.
    Refused,
    /// The whole guest is here and waits until it may go on.
    Complete,
    /// The guest runs here, or is paused as it was before.
    Running,
    /// Nothing of the guest is here, nothing of it will be, and it has never run here.
    Gone,
    /// The guest has ended here, after it ran here or may have run.
    Ended,
    /// A value of a later version, of which nothing is concluded. It is never written.
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

/// Mode of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MigrationMode {
    /// It runs on the source until all of it is on the target.
    PreCopy,
    /// It runs on the target, and its missing memory follows.
    PostCopy,
    /// It is paused until all of it is on the target.
    Paused,
    /// A value of a later version, of which nothing is concluded. It is never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl MigrationMode {
    /// Returns whether the field is omitted: no mode, or one of a later version.
    fn is_not_written(mode: &Option<Self>) -> bool {
        mode.is_none_or(|mode| mode == Self::Unknown)
    }
}

/// Progress of the transfer of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationProgress {
    /// In a few words.
    pub summary: String,
    /// Bytes of memory and copied disks.
    pub data_total: u64,
    /// Bytes that were sent, some more than once.
    pub data_processed: u64,
    /// Bytes that are still to be sent.
    pub data_remaining: u64,
    /// Bytes that the guest changes in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirty_rate: Option<u64>,
    /// Bytes that are sent in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<u64>,
    /// Passes over the guest's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iteration: Option<u64>,
    /// Expected downtime if the guest switched over now, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_downtime: Option<u64>,
    /// When it will be over, if it goes on like this.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::time")]
    pub estimated_end: Option<Timestamp>,
}

/// A migration as KubeVirt reports it, on the instance and on the migration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationState {
    /// UID of the migration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration_uid: Option<String>,
    /// When the guest began to move.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::time")]
    pub start_timestamp: Option<Timestamp>,
    /// When it was over.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::time")]
    pub end_timestamp: Option<Timestamp>,
    /// Mode of the migration.
    #[serde(skip_serializing_if = "MigrationMode::is_not_written")]
    pub mode: Option<MigrationMode>,
    /// Node that it comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_node: Option<String>,
    /// Pod that it comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_pod: Option<String>,
    /// Node that it goes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_node: Option<String>,
    /// Pod that it goes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_pod: Option<String>,
    /// Where the target's tunnel listens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_node_address: Option<String>,
    /// libvirt on the target knows the guest.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub target_node_domain_detected: bool,
    /// It is over.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub completed: bool,
    /// It is over, and the guest has not moved.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// It was canceled on request.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub abort_requested: bool,
    /// Result of the cancellation: `Aborting`, `Succeeded` or `Failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abort_status: Option<String>,
    /// Configuration of the migration, as it was in force when both sides were named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration_configuration: Option<MigrationConfiguration>,
}

impl MigrationState {
    /// Returns whether the migration is over, whatever became of it.
    pub fn has_ended(&self) -> bool {
        self.completed || self.failed
    }
}

/// Configuration of a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationConfiguration {
    /// Bytes a second at most, as a quantity; 0 is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_per_migration: Option<String>,
    /// Seconds for each GiB that is to be moved; 0 is no limit.
    #[serde(rename = "completionTimeoutPerGiB", skip_serializing_if = "Option::is_none")]
    pub completion_timeout_per_gib: Option<i64>,
    /// Seconds without progress; 0 is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_timeout: Option<i64>,
    /// Maximum downtime of the guest, in milliseconds.
    #[serde(rename = "maxDowntimeMs", skip_serializing_if = "Option::is_none")]
    pub max_downtime_ms: Option<u64>,
    /// The guest may be slowed down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_auto_converge: Option<bool>,
    /// The guest may run on the target before all of it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_post_copy: Option<bool>,
    /// The guest may be paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_workload_disruption: Option<bool>,
}
