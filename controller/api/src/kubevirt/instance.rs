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
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.reason","description":"Why the guest does not run"}"#
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct VirtualMachineInstanceSpec {
    /// The guest's hardware.
    pub domain: Domain,
    /// Networks to which the interfaces are connected.
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
    /// Labels that the node must have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Affinity and anti-affinity of the launcher pod: required, preferred and excluded nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Taints of nodes that the launcher pod tolerates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Name of the PriorityClass of the launcher pod.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Name of the scheduler of the launcher pod.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// Rules for spreading the launcher pods over the cluster.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Host name of the guest. Defaults to the object's name.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$"))]
    pub hostname: Option<String>,
    /// Subdomain of the pod's host name in DNS.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$"))]
    pub subdomain: Option<String>,
    /// DNS policy of the pod. The guest uses the pod's DNS settings.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    pub dns_policy: Option<String>,
    /// Additional DNS settings of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_config: Option<PodDNSConfig>,
    /// Time limit in seconds for the guest's shutdown, after which the guest is powered off. Defaults to 30.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub termination_grace_period_seconds: Option<i64>,
    /// Effect of an eviction of the launcher pod. Defaults to the value of the cluster's configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction_strategy: Option<EvictionStrategy>,
    /// State in which the guest starts. With `Paused`, the guest starts paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_strategy: Option<StartStrategy>,
    /// Liveness probe. When the probe fails, the guest is shut down, by force if necessary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub liveness_probe: Option<Probe>,
    /// Readiness probe. While the probe fails, Services do not route to the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<Probe>,
    /// Architecture of the guest, as Kubernetes names it: amd64, arm64 or s390x. Defaults to the architecture of the
    /// cluster's controller.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
}

impl VirtualMachineInstance {
    /// Returns the phase, if one is reported.
    pub fn phase(&self) -> Option<Phase> {
        self.status.as_ref()?.phase
    }

    /// Returns the name of the node on which the guest runs.
    pub fn node_name(&self) -> Option<&str> {
        self.status.as_ref()?.node_name.as_deref()
    }
}

/// State in which a virtual machine starts. With `Paused`, the guest starts paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum StartStrategy {
    /// The guest starts paused.
    Paused,
}

/// A probe of a guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Probe {
    /// The probe is an HTTP request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_get: Option<HTTPGetAction>,
    /// The probe is a TCP connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<TCPSocketAction>,
    /// Time in seconds between the start of the guest and the first probe. Defaults to 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_delay_seconds: Option<i32>,
    /// Time limit of a probe in seconds. Defaults to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i32>,
    /// Time in seconds between two probes. Defaults to 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_seconds: Option<i32>,
    /// Number of consecutive successes after which the probe succeeds. Defaults to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success_threshold: Option<i32>,
    /// Number of consecutive failures after which the probe fails. Defaults to 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_threshold: Option<i32>,
}
