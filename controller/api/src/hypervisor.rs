//! Hypervisor: the properties of a node, in an object of the same name.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    facts::{FactsFingerprint, NodeFacts},
    kubevirt::status::DrainRequest,
};

/// A node in its role as a host of virtual machines. The agent of the node creates the object and reports its status.
#[derive(Clone, Debug, Default, PartialEq, Eq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "drydock.dev",
    version = "v1alpha1",
    kind = "Hypervisor",
    plural = "hypervisors",
    singular = "hypervisor",
    shortname = "hv",
    category = "drydock",
    status = "HypervisorStatus",
    derive = "PartialEq",
    doc = "A node as a host of virtual machines: the capabilities of its CPUs and the reports of its agent. The agent creates the object, with the name of the Node.",
    printcolumn = r#"{"name":"Vendor","type":"string","jsonPath":".status.facts.virtualization.vendor","description":"CPU vendor"}"#,
    printcolumn = r#"{"name":"Host-Model","type":"string","jsonPath":".status.facts.virtualization.hostModel.name","description":"CPU model that host-model guests get"}"#,
    printcolumn = r#"{"name":"Usable-Models","type":"integer","jsonPath":".status.usableModels","description":"CPU models that guests can have"}"#,
    printcolumn = r#"{"name":"KVM","type":"string","jsonPath":".status.facts.kvm.state","description":"Whether KVM can be used"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status","description":"Whether the node accepts virtual machines"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","priority":1}"#,
    printcolumn = r#"{"name":"Labelled","type":"string","jsonPath":".status.conditions[?(@.type==\"Labelled\")].reason","priority":1}"#,
    printcolumn = r#"{"name":"Left","type":"integer","jsonPath":".status.drain.left","description":"Virtual machines that a drain has not moved yet","priority":1}"#,
    printcolumn = r#"{"name":"Blocked","type":"integer","jsonPath":".status.drain.blocked","description":"Virtual machines that a drain cannot move until the reason is removed","priority":1}"#,
    printcolumn = r#"{"name":"Inspected","type":"date","jsonPath":".status.inspection.at","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct HypervisorSpec {}

/// Status of the node, written by its agent unless noted otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HypervisorStatus {
    /// Conditions of the node: Inspected, Labelled, KVMAvailable, GuestNetwork, Ready and ConfigurationAccepted.
    #[schemars(schema_with = "crate::hypervisor::conditions")]
    pub conditions: Vec<Condition>,
    /// Capabilities of the node, without the masked features.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub facts: Option<Arc<NodeFacts>>,
    /// Number of CPU models that guests can have, including models whose usability libvirt does not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usable_models: Option<u32>,
    /// CPU features that the node must not offer to guests, whether the node has them or not.
    /// `facts.virtualization.withheld` lists those that the node has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub masked_features: Vec<String>,
    /// Record of the inspection that found the facts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inspection: Option<InspectionRecord>,
    /// Configuration that the node applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<ConfigurationRecord>,
    /// Number of CPU labels that result from the facts and the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<u32>,
    /// Version of the agent.
    pub agent_version: String,
    /// Network endpoint of the agent for requests from controllers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_endpoint: Option<AgentEndpoint>,
    /// Progress of draining virtual machines from the node. Written by the controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainStatus>,
    /// Preview of a drain of the node, while an annotation of the Node requests it. Written by the controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_preview: Option<DrainPreview>,
}

/// Network endpoint of a node's agent, and the fingerprint by which controllers recognize the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentEndpoint {
    /// Address and port of the agent.
    pub address: String,
    /// SHA-256 fingerprint of the agent's certificate, in hexadecimal digits.
    pub certificate_fingerprint: String,
}

/// Preview of a drain: the effects that a drain of the node would have on its virtual machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainPreview {
    /// Time of the last change of the lines.
    pub since: Time,
    /// Human-readable lines of the preview. The first lines contain the numbers of virtual machines that would move, be
    /// shut down and block, and the time until the last virtual machine would have moved. One line for each virtual
    /// machine follows; a long list is cut.
    pub lines: Vec<String>,
}

/// Progress of draining virtual machines from a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainStatus {
    /// Sources of the requests to drain the node.
    #[serde(default)]
    pub requested_by: Vec<DrainRequest>,
    /// Time at which the drain began.
    pub started_at: Time,
    /// Time at which no virtual machine was left on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// Estimated time at which no virtual machine will be left on the node, based on measured migrations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_end: Option<Time>,
    /// Largest number of virtual machines that were left on the node at the same time since the drain began.
    pub total: u32,
    /// Number of virtual machines that are still on the node.
    pub left: u32,
    /// Number of remaining virtual machines that are being migrated.
    pub moving: u32,
    /// Number of remaining virtual machines that wait to be moved.
    pub waiting: u32,
    /// Number of remaining virtual machines that stay until the cause is removed.
    pub blocked: u32,
    /// Number of remaining virtual machines that are being shut down, or will be once they are evicted.
    pub shutting_down: u32,
    /// Virtual machines that are still on the node, the blocked ones first. At most 100 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remaining: Vec<RemainingGuest>,
}

/// A virtual machine that is still on a node that is being emptied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemainingGuest {
    /// Namespace of the virtual machine.
    pub namespace: String,
    /// Name of the virtual machine.
    pub name: String,
    /// Whether the virtual machine is being migrated, waits, is blocked or is being shut down.
    pub state: RemainingState,
    /// CamelCase reason for the state.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
}

/// State of a virtual machine that is still on a node that is being emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum RemainingState {
    /// The virtual machine stays until a user intervenes.
    Blocked,
    /// The virtual machine waits to be moved.
    Waiting,
    /// The virtual machine is being migrated.
    Moving,
    /// The virtual machine is being shut down, or will be once it is evicted.
    ShuttingDown,
    /// A value of a later version; nothing may be inferred from it. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// Record of the inspection that found the facts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InspectionRecord {
    /// Time at which the facts were found.
    pub at: Time,
    /// Duration of the inspection, in milliseconds.
    pub took_milliseconds: u64,
    /// Fingerprint of the host's state on which the facts depend.
    pub fingerprint: FactsFingerprint,
    /// A later inspection failed, so the facts may be outdated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
}

/// The configuration that a node applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigurationRecord {
    /// Configuration objects that the agent has read, and whether they are in force on the node.
    pub objects: Vec<ConfigurationObject>,
    /// Obsolete CPU models beyond the built-in ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub obsolete_cpu_models: Vec<String>,
    /// The minimum CPU model.
    #[serde(rename = "minCPUModel")]
    pub min_cpu_model: String,
    /// Features of the minimum CPU model. Empty for the default model, whose features are documented.
    #[serde(rename = "minCPUFeatures", skip_serializing_if = "Vec::is_empty")]
    pub min_cpu_features: Vec<String>,
    /// Guests may run in emulation where KVM is not usable.
    pub use_emulation: bool,
    /// Names of the enabled feature gates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub feature_gates: Vec<String>,
}

/// A configuration object, as the agent of a node has read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigurationObject {
    /// Kind of the object: `HyperConverged` or `ConfigMap`.
    pub kind: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Revision of the object: `metadata.generation`, or `metadata.resourceVersion` of a ConfigMap.
    pub revision: String,
    /// Values of the object that are not allowed. With any such value, the object is not in force on the node, and the
    /// last valid configuration stays in force.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
}

/// Returns the schema of a list of conditions to which several field managers may apply.
pub(crate) fn conditions(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = generator.subschema_for::<Vec<Condition>>();
    schema.insert("x-kubernetes-list-type".into(), "map".into());
    schema.insert("x-kubernetes-list-map-keys".into(), serde_json::json!(["type"]));
    schema
}
