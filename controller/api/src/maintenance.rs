//! NodeMaintenance: a node that is drained and kept empty while the object exists.
//!
//! The kind and its schema are those of the node maintenance operators, which serve it in two API groups; Drydock's
//! additional fields are optional. One Rust type represents both kinds; the [`Group`] of an object, kube's dynamic
//! type, distinguishes them.
//!
//! ```text
//!  nodemaintenance.medik8s.io/v1beta1   ─┐
//!                                        ├─▶ NodeMaintenance
//!  nodemaintenance.kubevirt.io/v1beta1  ─┘
//! ```

use std::borrow::Cow;

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time},
};
use kube::{CustomResource, CustomResourceExt, Resource, core::ClusterResourceScope};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

/// Name of the kind in both groups.
pub const KIND: &str = "NodeMaintenance";
/// Plural name of the kind, for paths.
pub const PLURAL: &str = "nodemaintenances";
/// The version, the same in both groups.
pub const VERSION: &str = "v1beta1";
/// Finalizer of a NodeMaintenance: the object is kept until the node is restored. Both operators use this name.
pub const FINALIZER: &str = "foregroundDeleteNodeMaintenance";
/// Label of a node: excludes the node from NodeHealthCheck while it is in maintenance. The value is `true`.
pub const EXCLUDE_FROM_REMEDIATION: &str = "remediation.medik8s.io/exclude-from-remediation";
/// Taint of a node: the node is cordoned or in maintenance. The taint has no value and the effect NoSchedule.
pub const UNSCHEDULABLE_TAINT: &str = "node.kubernetes.io/unschedulable";
/// Holder of a node's Lease while the node is in maintenance.
pub const LEASE_HOLDER: &str = "node-maintenance";
/// Default namespace of the Leases of nodes: the namespace of the remediators that respect these Leases.
pub const LEASE_NAMESPACE: &str = "medik8s-leases";
/// Condition of a Node (KEP-5683): the node is in maintenance.
pub const IN_PROGRESS: &str = "MaintenanceInProgress";
/// Condition of a Node (KEP-5683): the node will be in maintenance.
pub const PLANNED: &str = "MaintenancePlanned";
/// Field manager of the conditions [`IN_PROGRESS`] and [`PLANNED`].
pub const FIELD_MANAGER: &str = "drydock-maintenance";
/// Label of a Lease: the Lease reserves a node for a NodeMaintenance that is being created.
pub const RESERVATION: &str = "drydock.dev/maintenance-reservation";
/// Annotation of a Lease that reserves a node: group and name of the NodeMaintenance.
pub const RESERVED_FOR: &str = "drydock.dev/reserved-for";

/// The API groups that serve the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// `nodemaintenance.medik8s.io`, the newer group.
    Medik8s,
    /// `nodemaintenance.kubevirt.io`, which KubeVirt's users know.
    KubeVirt,
}

impl Group {
    /// Both groups.
    pub const ALL: [Self; 2] = [Self::Medik8s, Self::KubeVirt];

    /// Returns the name of the group in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Medik8s => "nodemaintenance.medik8s.io",
            Self::KubeVirt => "nodemaintenance.kubevirt.io",
        }
    }

    /// Returns the group with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.as_str() == name)
    }

    /// Returns the key of the taint that marks a node as being drained. The key is named after the operator; the taint
    /// has no value and the effect NoSchedule.
    pub fn drain_taint(self) -> &'static str {
        match self {
            Self::Medik8s => "medik8s.io/drain",
            Self::KubeVirt => "kubevirt.io/drain",
        }
    }
}

/// A NodeMaintenance of either group: a node that is drained and kept empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeMaintenance {
    /// The object's metadata.
    pub metadata: ObjectMeta,
    /// The desired state.
    pub spec: NodeMaintenanceSpec,
    /// The reported state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<NodeMaintenanceStatus>,
}

impl Resource for NodeMaintenance {
    type DynamicType = Group;
    type Scope = ClusterResourceScope;

    fn kind(_: &Group) -> Cow<'_, str> {
        KIND.into()
    }

    fn group(group: &Group) -> Cow<'_, str> {
        group.as_str().into()
    }

    fn version(_: &Group) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural(_: &Group) -> Cow<'_, str> {
        PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The node to maintain, and the parameters of its drain.
#[derive(Clone, Debug, Default, PartialEq, Eq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "nodemaintenance.medik8s.io",
    version = "v1beta1",
    kind = "NodeMaintenance",
    root = "Definition",
    plural = "nodemaintenances",
    singular = "nodemaintenance",
    shortname = "nm",
    status = "NodeMaintenanceStatus",
    doc = "A node that is emptied of pods and virtual machines, and kept empty until this object is deleted.",
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".spec.nodeName","description":"The node in maintenance"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase","description":"Running, Succeeded (the node is empty) or Failed"}"#,
    printcolumn = r#"{"name":"Progress","type":"integer","jsonPath":".status.drainProgress","description":"Percentage of the pods that have left"}"#,
    printcolumn = r#"{"name":"Pending","type":"integer","jsonPath":".status.pending","description":"Pods that have not left yet"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Drained\")].reason","description":"What the maintenance waits for, or why it failed"}"#,
    printcolumn = r#"{"name":"Estimate","type":"string","jsonPath":".status.estimatedEnd","priority":1,"description":"When the last pod will have left, at the latest"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct NodeMaintenanceSpec {
    /// Name of the node. The field is immutable.
    #[schemars(length(min = 1, max = 253))]
    #[schemars(extend("x-kubernetes-validations" = [
        {"rule": "self == oldSelf", "message": "updating spec.NodeName isn't allowed"},
    ]))]
    pub node_name: String,
    /// Human-readable reason for the maintenance. The field can be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time limit for emptying the node, such as `45m` or `1h30m`. Default: no limit. When the limit is exceeded, the
    /// maintenance fails and the node is restored to its earlier state. A node that was empty once stays in maintenance
    /// regardless of the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub timeout: Option<String>,
    /// Grace period of each pod in seconds, instead of the pod's own grace period. At least 1: with 0, a pod that may
    /// still run would be considered deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub grace_period_seconds: Option<i64>,
}

fn duration(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({
        "type": "string",
        "nullable": true,
        "minLength": 2,
        "maxLength": 32,
        "pattern": "^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$",
        "x-kubernetes-validations": [
            {"rule": "duration(self) > duration('0s')", "message": "must be longer than 0s"},
        ],
    })
}

/// Status of a maintenance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeMaintenanceStatus {
    /// Phase of the maintenance: `Running`, `Succeeded` (the node is empty) or `Failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Error that keeps the node from being emptied, or reason why the maintenance failed. Absent if there is no error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Time of the last update of the status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update: Option<Time>,
    /// Names of the pods that have not left the node.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "none_is_empty")]
    pub pending_pods: Vec<String>,
    /// Names and namespaces of the pods that have not left the node.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "none_is_empty")]
    pub pending_pods_refs: Vec<PodReference>,
    /// Number of pods on the node when the maintenance began.
    #[serde(rename = "totalpods", skip_serializing_if = "Option::is_none")]
    pub total_pods: Option<i64>,
    /// Number of pods that had to leave the node when the maintenance began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction_pods: Option<i64>,
    /// Percentage of `evictionPods` that have left the node. The value never decreases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_progress: Option<i64>,
    /// Number of consecutive failures to renew the node's Lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_on_lease_count: Option<i64>,
    /// Number of pods that have not left the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<i64>,
    /// Pods that have not left the node, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "none_is_empty")]
    #[schemars(schema_with = "pods")]
    pub pods: Vec<PendingPod>,
    /// Conditions of the maintenance: Drained (whether the node is empty, and if not, why), Cordoned and LeaseHeld.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "none_is_empty")]
    #[schemars(schema_with = "crate::hypervisor::conditions")]
    pub conditions: Vec<Condition>,
    /// Time at which the maintenance began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Time at which the node was empty for the first time, or at which it had been restored after a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Time by which the last pod will have left the node, unless something delays it. Absent if a pod may stay
    /// indefinitely.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_end: Option<Time>,
    /// The node was unschedulable before the maintenance began, and stays unschedulable afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_was_unschedulable: Option<bool>,
    /// Value of the node's label `remediation.medik8s.io/exclude-from-remediation` before the maintenance began. The
    /// value is restored afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_before: Option<String>,
    /// Keys of those taints of a maintenance (effect NoSchedule) that the node had before the maintenance began. These
    /// taints stay on the node afterwards.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "none_is_empty")]
    pub taints_before: Vec<String>,
    /// UID of the Node that is in maintenance.
    #[serde(rename = "nodeUID", skip_serializing_if = "Option::is_none")]
    pub node_uid: Option<String>,
}

/// Deserializes a list. Other implementations may write an empty list as null.
fn none_is_empty<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Returns the schema of a list that is keyed by pod.
fn pods(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = generator.subschema_for::<Vec<PendingPod>>();
    schema.insert("x-kubernetes-list-type".into(), "map".into());
    schema.insert(
        "x-kubernetes-list-map-keys".into(),
        serde_json::json!(["namespace", "name"]),
    );
    schema
}

/// Reference to a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PodReference {
    /// Namespace of the pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name of the pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// A pod that has not left the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingPod {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Time since which the maintenance has waited for the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_since: Option<Time>,
    /// CamelCase reason why the pod has not left the node.
    pub reason: String,
    /// Message with which the API server last refused the eviction of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_refusal: Option<String>,
    /// PodDisruptionBudget that blocks the eviction of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<Blocker>,
}

/// A PodDisruptionBudget that blocks the eviction of a pod, with the numbers of its status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Blocker {
    /// Kind of the object: `PodDisruptionBudget`.
    pub kind: String,
    /// Name of the PodDisruptionBudget, which is in the namespace of the pod.
    pub name: String,
    /// Number of pods that may be evicted now.
    pub disruptions_allowed: i32,
    /// Number of healthy pods.
    pub current_healthy: i32,
    /// Minimum number of healthy pods.
    pub desired_healthy: i32,
    /// Number of pods that the budget counts.
    pub expected_pods: i32,
}

/// Returns the CRDs of the kind in both groups. Only the CRD of the newer group has the short name, so that the short
/// name is unambiguous.
pub(crate) fn definitions() -> [CustomResourceDefinition; 2] {
    Group::ALL.map(|group| {
        let mut definition = Definition::crd();
        definition.metadata.name = Some(format!("{PLURAL}.{}", group.as_str()));
        definition.spec.group = group.as_str().into();
        if group == Group::KubeVirt {
            definition.spec.names.short_names = None;
        }
        definition
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_of_node_maintenance_operators_can_be_read() {
        // As stored by node-maintenance-operator: no namespace in pendingPods, zero values omitted.
        let status: NodeMaintenanceStatus = serde_json::from_value(serde_json::json!({
            "phase": "Running", "lastError": "", "totalpods": 7, "pendingPods": null,
            "pendingPodsRefs": [{"name": "a", "namespace": "b"}], "evictionPods": 2, "drainProgress": 50,
            "lastUpdate": "2026-01-01T00:00:00Z",
        }))
        .unwrap();
        assert_eq!(status.total_pods, Some(7));
        assert_eq!(status.pending_pods_refs[0].namespace, "b");
        assert!(serde_json::to_value(&status).unwrap().get("totalpods").is_some());
        assert_eq!(
            serde_json::to_value(NodeMaintenanceStatus::default()).unwrap(),
            serde_json::json!({})
        );
    }

    #[test]
    fn both_groups_have_the_kind() {
        for (group, definition) in Group::ALL.into_iter().zip(definitions()) {
            assert_eq!(Group::named(&definition.spec.group), Some(group));
            assert_eq!(
                NodeMaintenance::url_path(&group, None),
                format!("/apis/{}/v1beta1/nodemaintenances", group.as_str())
            );
            assert_eq!(definition.spec.scope, "Cluster");
        }
        assert_eq!(Group::named("kubevirt.io"), None);
    }
}
