//! VirtualMachineInstance: one run of a virtual machine.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, HTTPGetAction, PodDNSConfig, TCPSocketAction, Toleration, TopologySpreadConstraint,
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    credentials::AccessCredential,
    domain_spec::Domain,
    status::{Phase, VirtualMachineInstanceStatus},
    volumes::{Network, Volume},
};
use crate::hyperconverged::EvictionStrategy;

/// One run of a virtual machine, from its start to its end.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachineInstance",
    plural = "virtualmachineinstances",
    singular = "virtualmachineinstance",
    shortname = "vmi",
    shortname = "vmis",
    category = "all",
    namespaced,
    status = "VirtualMachineInstanceStatus",
    derive = "PartialEq",
    doc = "One run of a virtual machine, from its start to its end.",
    selectable = ".status.nodeName",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"IP","type":"string","jsonPath":".status.interfaces[0].ipAddress"}"#,
    printcolumn = r#"{"name":"NodeName","type":"string","jsonPath":".status.nodeName"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name":"Live-Migratable","type":"string","jsonPath":".status.conditions[?(@.type=='LiveMigratable')].status","priority":1}"#,
    printcolumn = r#"{"name":"Paused","type":"string","jsonPath":".status.conditions[?(@.type=='Paused')].status","priority":1}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.reason","description":"Why it does not run"}"#
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct VirtualMachineInstanceSpec {
    /// The guest's hardware.
    pub domain: Domain,
    /// Networks that interfaces are on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::by_name::<Network>")]
    pub networks: Vec<Network>,
    /// Volumes that contain the data of disks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::by_name::<Volume>")]
    pub volumes: Vec<Volume>,
    /// Credentials of accounts in the guest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub access_credentials: Vec<AccessCredential>,
    /// Labels that its node must have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Which nodes it may, should and should not be on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Taints that do not keep it off a node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// PriorityClass of its pod.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Scheduler of its pod.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// Rules for spreading its pods over the cluster.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Host name; the object's name if not set.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$"))]
    pub hostname: Option<String>,
    /// Domain that its pod's name in DNS is in.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$"))]
    pub subdomain: Option<String>,
    /// DNS of its pod, which its guest uses.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    pub dns_policy: Option<String>,
    /// More about DNS of its pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_config: Option<PodDNSConfig>,
    /// Seconds that the guest may take to shut down before it is switched off. 30 if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub termination_grace_period_seconds: Option<i64>,
    /// The effect of an eviction of its pod. The cluster's configuration decides if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction_strategy: Option<EvictionStrategy>,
    /// `Paused`: it starts paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_strategy: Option<StartStrategy>,
    /// It is switched off when this fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub liveness_probe: Option<Probe>,
    /// Services do not send to it while this fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<Probe>,
    /// Architecture of the guest, by Kubernetes' names. That of the cluster's controller if not set.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
}

impl VirtualMachineInstance {
    /// Returns the phase, if one is reported.
    pub fn phase(&self) -> Option<Phase> {
        self.status.as_ref()?.phase
    }

    /// Returns the node that the guest is on.
    pub fn node_name(&self) -> Option<&str> {
        self.status.as_ref()?.node_name.as_deref()
    }
}

/// The state in which a virtual machine starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum StartStrategy {
    /// Paused.
    Paused,
}

/// A check of whether the guest is well.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Probe {
    /// An HTTP request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_get: Option<HTTPGetAction>,
    /// A TCP connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<TCPSocketAction>,
    /// Seconds between the start of the guest and the first probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_delay_seconds: Option<i32>,
    /// Seconds that a probe may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i32>,
    /// Seconds between two probes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_seconds: Option<i32>,
    /// Number of consecutive successes after which the probe succeeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success_threshold: Option<i32>,
    /// Number of consecutive failures after which the probe fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_threshold: Option<i32>,
}
