//! VirtualMachineInstanceReplicaSet: a number of identical instances.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, machine::InstanceTemplate};

/// A number of identical VirtualMachineInstances.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachineInstanceReplicaSet",
    plural = "virtualmachineinstancereplicasets",
    singular = "virtualmachineinstancereplicaset",
    shortname = "vmirs",
    shortname = "vmirss",
    category = "all",
    namespaced,
    status = "VirtualMachineInstanceReplicaSetStatus",
    derive = "PartialEq",
    doc = "Keeps a number of equal virtual machine instances running.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.labelSelector"
    ),
    printcolumn = r#"{"name":"Desired","type":"integer","jsonPath":".spec.replicas","description":"Number of desired instances"}"#,
    printcolumn = r#"{"name":"Current","type":"integer","jsonPath":".status.replicas","description":"Number of instances that have not ended"}"#,
    printcolumn = r#"{"name":"Ready","type":"integer","jsonPath":".status.readyReplicas","description":"Number of ready instances"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type=='ReplicaFailure')].reason","description":"Why instances could not be created or deleted"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct VirtualMachineInstanceReplicaSetSpec {
    /// Desired number of VirtualMachineInstances. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100000))]
    pub replicas: Option<i32>,
    /// Selector of the VirtualMachineInstances that belong to the replica set. The selector must match the labels of
    /// the template.
    pub selector: LabelSelector,
    /// Template of the VirtualMachineInstances.
    pub template: InstanceTemplate,
    /// Whether the replica set is paused: while it is, no VirtualMachineInstance is created or deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// Status of a replica set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualMachineInstanceReplicaSetStatus {
    /// Number of VirtualMachineInstances that have not ended.
    pub replicas: i32,
    /// Number of VirtualMachineInstances that are ready.
    pub ready_replicas: i32,
    /// The selector as text, for autoscalers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<String>,
    /// Conditions of the replica set: ReplicaPaused and ReplicaFailure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::conditions")]
    pub conditions: Vec<Condition>,
}
