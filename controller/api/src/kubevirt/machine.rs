//! VirtualMachine: a virtual machine that exists whether it runs or not.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, VirtualMachineInstanceSpec};

/// A virtual machine that is there whether it runs or not.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachine",
    plural = "virtualmachines",
    singular = "virtualmachine",
    shortname = "vm",
    shortname = "vms",
    category = "all",
    namespaced,
    status = "VirtualMachineStatus",
    derive = "PartialEq",
    doc = "A virtual machine that is there whether it runs or not.",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.printableStatus"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.reason","description":"Why it does not run"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!(has(self.running) && has(self.runStrategy))", "message": "running and runStrategy are mutually exclusive"},
    {"rule": "has(self.running) || has(self.runStrategy)", "message": "one of running and runStrategy must be set"},
]))]
pub struct VirtualMachineSpec {
    /// True: like run strategy Always. False: like Halted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<bool>,
    /// When it runs: Always, RerunOnFailure, Manual, Once or Halted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "run_strategy")]
    pub run_strategy: Option<RunStrategy>,
    /// The instance that it runs as.
    pub template: InstanceTemplate,
}

/// Returns the schema of a run strategy. Admission validates the value, since it can name the right one.
fn run_strategy(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "string"})
}

/// The instance that is made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct InstanceTemplate {
    /// Labels and annotations of the instance and its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::template_metadata")]
    pub metadata: Option<ObjectMeta>,
    /// Spec of the instance.
    #[serde(default)]
    pub spec: VirtualMachineInstanceSpec,
}

/// When a virtual machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum RunStrategy {
    /// Always: it is started again whenever it has ended.
    Always,
    /// It is started again when it has failed, not when its guest has shut down.
    RerunOnFailure,
    /// It is started and stopped by request only.
    Manual,
    /// It runs once.
    Once,
    /// It does not run.
    Halted,
}

impl RunStrategy {
    /// All run strategies.
    pub const ALL: [Self; 5] = [
        Self::Always,
        Self::RerunOnFailure,
        Self::Manual,
        Self::Once,
        Self::Halted,
    ];

    /// Returns KubeVirt's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::RerunOnFailure => "RerunOnFailure",
            Self::Manual => "Manual",
            Self::Once => "Once",
            Self::Halted => "Halted",
        }
    }
}

/// Status of a virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualMachineStatus {
    /// It has an instance.
    pub created: bool,
    /// Its instance is ready.
    pub ready: bool,
    /// Its state in one or two words, by KubeVirt's names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub printable_status: Option<String>,
    /// CamelCase reason why it does not run, or why it last failed to start. Of Drydock; KubeVirt has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Ready, Paused, LiveMigratable and others of its instance; Failure, RestartRequired.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::conditions")]
    pub conditions: Vec<Condition>,
    /// Failures to start that follow each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_failure: Option<StartFailure>,
    /// Requests that it has not carried out yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub state_change_requests: Vec<StateChangeRequest>,
    /// The generation that its instance was made of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The generation that its next instance is made of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired_generation: Option<i64>,
    /// The run strategy in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "run_strategy")]
    pub run_strategy: Option<RunStrategy>,
}

/// Failures to start that follow each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StartFailure {
    /// Number of consecutive failures.
    pub consecutive_fail_count: u32,
    /// UID of the last instance that failed.
    #[serde(rename = "lastFailedVMIUID", skip_serializing_if = "Option::is_none")]
    pub last_failed_vmi_uid: Option<String>,
    /// When it is started again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::optional_time")]
    pub retry_after_timestamp: Option<Timestamp>,
}

/// A request to a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StateChangeRequest {
    /// Start or Stop.
    pub action: StateChange,
    /// UID of the instance that is to be stopped.
    #[serde(default, rename = "uid", skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Options of the start: with `paused` set to `true`, the guest stands still until it is resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<BTreeMap<String, String>>,
}

impl StateChangeRequest {
    /// Whether the guest is to stand still once it is started.
    pub fn is_paused(&self) -> bool {
        let data = self.data.as_ref();
        data.is_some_and(|data| data.get("paused").is_some_and(|paused| paused == "true"))
    }
}

/// The kinds of requests to a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum StateChange {
    /// Run.
    Start,
    /// End.
    Stop,
}
