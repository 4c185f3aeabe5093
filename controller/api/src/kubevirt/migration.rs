//! VirtualMachineInstanceMigration: one move of a running virtual machine to another node.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Condition;

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
    printcolumn = r#"{"name":"Source","type":"string","jsonPath":".status.source.node","priority":1}"#,
    printcolumn = r#"{"name":"Target","type":"string","jsonPath":".status.target.node","priority":1}"#,
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
    /// Labels that the target must have, beside those that the instance asks for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub added_node_selector: BTreeMap<String, String>,
}

/// What is reported of a migration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualMachineInstanceMigrationStatus {
    /// Where it is between its start and its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<MigrationPhase>,
    /// When it first reached each phase.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phase_transition_timestamps: Vec<MigrationPhaseTransition>,
    /// Why it waits, or has failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::conditions")]
    pub conditions: Vec<Condition>,
    /// Where the guest comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<MigrationSide>,
    /// Where it goes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<MigrationSide>,
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

/// One side of a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationSide {
    /// Node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
}
