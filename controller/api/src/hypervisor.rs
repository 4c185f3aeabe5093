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

/// A node seen as a host of virtual machines. It is made and reported by the node's agent.
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
    doc = "A node seen as a host of virtual machines: what its CPUs can do, and what its agent reports. Made by the agent, named after the Node.",
    printcolumn = r#"{"name":"Vendor","type":"string","jsonPath":".status.facts.virtualization.vendor","description":"CPU vendor"}"#,
    printcolumn = r#"{"name":"Host-Model","type":"string","jsonPath":".status.facts.virtualization.hostModel.name","description":"CPU model that host-model guests get"}"#,
    printcolumn = r#"{"name":"Usable-Models","type":"integer","jsonPath":".status.usableModels","description":"CPU models that guests can have"}"#,
    printcolumn = r#"{"name":"KVM","type":"string","jsonPath":".status.facts.kvm.state","description":"Whether KVM can be used"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status","description":"Whether the node accepts virtual machines"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","priority":1}"#,
    printcolumn = r#"{"name":"Labelled","type":"string","jsonPath":".status.conditions[?(@.type==\"Labelled\")].reason","priority":1}"#,
    printcolumn = r#"{"name":"Left","type":"integer","jsonPath":".status.drain.left","description":"Virtual machines that a drain has not moved yet","priority":1}"#,
    printcolumn = r#"{"name":"Blocked","type":"integer","jsonPath":".status.drain.blocked","description":"Of these, those that stay until their cause is removed","priority":1}"#,
    printcolumn = r#"{"name":"Inspected","type":"date","jsonPath":".status.inspection.at","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct HypervisorSpec {}

/// Status of the node, written by its agent unless noted otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HypervisorStatus {
    /// Inspected, Labelled, KVMAvailable, Ready, ConfigurationAccepted.
    #[schemars(schema_with = "crate::hypervisor::conditions")]
    pub conditions: Vec<Condition>,
    /// Capabilities of the node, without the masked features.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub facts: Option<Arc<NodeFacts>>,
    /// Number of CPU models that guests can have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usable_models: Option<u32>,
    /// CPU features that the node shall not offer, whether it has them or not; `facts.virtualization.withheld` are
    /// those that it has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub masked_features: Vec<String>,
    /// When and how the facts were found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inspection: Option<InspectionRecord>,
    /// The configuration that this node follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<ConfigurationRecord>,
    /// Number of CPU labels that facts and configuration give the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<u32>,
    /// Version of the agent.
    pub agent_version: String,
    /// Where controllers reach the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_endpoint: Option<AgentEndpoint>,
    /// Progress of emptying the node of virtual machines. Written by the controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainStatus>,
    /// Preview of emptying the node, while its Node requests one. Written by the controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_preview: Option<DrainPreview>,
}

/// Where controllers reach the agent of a node, and how they recognize it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentEndpoint {
    /// Address and port.
    pub address: String,
    /// SHA-256 of its certificate, in hexadecimal digits.
    pub certificate_fingerprint: String,
}

/// Preview of emptying a node of virtual machines: the effects that a request to empty it would have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainPreview {
    /// Time of the last change of the lines.
    pub since: Time,
    /// The numbers of virtual machines that would move, be shut down and block; the time when the last would have
    /// moved; then each virtual machine.
    pub lines: Vec<String>,
}

/// Progress of emptying a node of virtual machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainStatus {
    /// The requesters.
    #[serde(default)]
    pub requested_by: Vec<DrainRequest>,
    /// When it began.
    pub started_at: Time,
    /// When nothing was left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// When nothing will be left, estimated from measured migrations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_end: Option<Time>,
    /// Virtual machines that were to go since it began.
    pub total: u32,
    /// Those that are still here.
    pub left: u32,
    /// Of these, those on their way.
    pub moving: u32,
    /// Of these, those whose turn will come.
    pub waiting: u32,
    /// Of these, those that stay until their cause is removed.
    pub blocked: u32,
    /// Of these, those that are being shut down, or will be once they are evicted.
    pub shutting_down: u32,
    /// Those that are still here, those that are blocked first; at most a hundred are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remaining: Vec<RemainingGuest>,
}

/// A virtual machine that is still on a node that is being emptied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemainingGuest {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether it moves, waits, or stays.
    pub state: RemainingState,
    /// Why, in one CamelCase word.
    pub reason: String,
    /// The same for people.
    pub message: String,
}

/// State of a virtual machine that is still on a node that is being emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum RemainingState {
    /// It stays until a user intervenes.
    Blocked,
    /// Its turn will come.
    Waiting,
    /// It is on its way.
    Moving,
    /// It is being shut down, or will be once it is evicted.
    ShuttingDown,
    /// A value of a later version, of which nothing is concluded. It is never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// When and how the facts were found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InspectionRecord {
    /// When the facts were found.
    pub at: Time,
    /// Duration of the inspection, in milliseconds.
    pub took_milliseconds: u64,
    /// The state of the host that the facts depend on.
    pub fingerprint: FactsFingerprint,
    /// A later inspection failed, so the facts may no longer be true.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
}

/// The configuration that a node follows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigurationRecord {
    /// The objects that were read, and whether they are in force here.
    pub objects: Vec<ConfigurationObject>,
    /// Obsolete CPU models beyond the built-in ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub obsolete_cpu_models: Vec<String>,
    /// The minimum CPU model.
    #[serde(rename = "minCPUModel")]
    pub min_cpu_model: String,
    /// Its features, unless it is the default one, whose are documented.
    #[serde(rename = "minCPUFeatures", skip_serializing_if = "Vec::is_empty")]
    pub min_cpu_features: Vec<String>,
    /// Guests may run by emulation where KVM is not usable.
    pub use_emulation: bool,
    /// Feature gates that are on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub feature_gates: Vec<String>,
}

/// A configuration object as one node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigurationObject {
    /// `HyperConverged` or `ConfigMap`.
    pub kind: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// `metadata.generation`, or `metadata.resourceVersion` of a ConfigMap.
    pub revision: String,
    /// The values that are not allowed; with any of these the object is not in force here and the
    /// last good one stays.
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
