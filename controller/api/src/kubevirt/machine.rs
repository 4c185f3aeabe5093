//! VirtualMachine: a virtual machine that exists whether it runs or not.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, VirtualMachineInstanceSpec};

/// A virtual machine that exists whether it runs or not.
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
    doc = "A virtual machine, which exists whether its guest runs or not.",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.printableStatus"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.reason","description":"Why the guest does not run"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!(has(self.running) && has(self.runStrategy))", "message": "running and runStrategy are mutually exclusive"},
    {"rule": "has(self.running) || has(self.runStrategy)", "message": "one of running and runStrategy must be set"},
]))]
pub struct VirtualMachineSpec {
    /// Whether the virtual machine runs: true corresponds to the run strategy Always, false to Halted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<bool>,
    /// Run strategy, which decides when the virtual machine runs: Always, RerunOnFailure, Manual, Once or Halted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "run_strategy")]
    pub run_strategy: Option<RunStrategy>,
    /// Template of the VirtualMachineInstance as which the virtual machine runs.
    pub template: InstanceTemplate,
}

/// Returns the schema of a run strategy. Admission validates the value instead, because its message can suggest the
/// right value.
fn run_strategy(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "string"})
}

/// Template of a VirtualMachineInstance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct InstanceTemplate {
    /// Labels and annotations of the VirtualMachineInstance and its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::template_metadata")]
    pub metadata: Option<ObjectMeta>,
    /// Spec of the VirtualMachineInstance.
    #[serde(default)]
    pub spec: VirtualMachineInstanceSpec,
}

/// Run strategy: when a virtual machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum RunStrategy {
    /// The virtual machine runs always: it is started again whenever its guest has ended.
    Always,
    /// The virtual machine is started again when its guest has failed or was ended by the cluster, not when the guest
    /// has shut down by itself.
    RerunOnFailure,
    /// The virtual machine is started and stopped only on request.
    Manual,
    /// The virtual machine runs once.
    Once,
    /// The virtual machine does not run.
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
    /// The virtual machine has a VirtualMachineInstance.
    pub created: bool,
    /// The VirtualMachineInstance is ready.
    pub ready: bool,
    /// Human-readable state in one or two words, as KubeVirt names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub printable_status: Option<String>,
    /// CamelCase reason why the virtual machine does not run, or why it last failed to start. Drydock's own field;
    /// KubeVirt has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Conditions: Ready, Paused, LiveMigratable and others of the VirtualMachineInstance, and Failure and
    /// RestartRequired of the virtual machine itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::conditions")]
    pub conditions: Vec<Condition>,
    /// Consecutive failures to start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_failure: Option<StartFailure>,
    /// Requests that have not been carried out yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub state_change_requests: Vec<StateChangeRequest>,
    /// Generation of the virtual machine from which the present VirtualMachineInstance was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Generation of the virtual machine from which the next VirtualMachineInstance will be created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired_generation: Option<i64>,
    /// The run strategy in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "run_strategy")]
    pub run_strategy: Option<RunStrategy>,
}

/// Consecutive failures to start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StartFailure {
    /// Number of consecutive failures.
    pub consecutive_fail_count: u32,
    /// UID of the last VirtualMachineInstance that failed to start.
    #[serde(rename = "lastFailedVMIUID", skip_serializing_if = "Option::is_none")]
    pub last_failed_vmi_uid: Option<String>,
    /// Earliest time of the next start.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::optional_time")]
    pub retry_after_timestamp: Option<Timestamp>,
}

/// A request to start or stop a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StateChangeRequest {
    /// Requested action: Start or Stop.
    pub action: StateChange,
    /// UID of the VirtualMachineInstance to stop.
    #[serde(default, rename = "uid", skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Options of the start: with `paused` set to `true`, the guest starts paused and stays paused until it is resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<BTreeMap<String, String>>,
}

impl StateChangeRequest {
    /// Returns whether the guest is requested to start paused.
    pub fn is_paused(&self) -> bool {
        let data = self.data.as_ref();
        data.is_some_and(|data| data.get("paused").is_some_and(|paused| paused == "true"))
    }
}

/// The kinds of requests to a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum StateChange {
    /// Start the virtual machine.
    Start,
    /// Stop the virtual machine.
    Stop,
}
