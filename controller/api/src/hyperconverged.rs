//! HyperConverged: the configuration of the cluster, with the field names of the `v1beta1` API of the HyperConverged
//! Cluster Operator.
//!
//! Only fields that Drydock implements are typed and validated. Other fields of that API are preserved, so that an
//! existing object can be applied unchanged.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The cluster's configuration.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "hco.kubevirt.io",
    version = "v1beta1",
    kind = "HyperConverged",
    plural = "hyperconvergeds",
    singular = "hyperconverged",
    shortname = "hco",
    shortname = "hcos",
    namespaced,
    status = "HyperConvergedStatus",
    derive = "PartialEq",
    doc = "The cluster's configuration of virtual machines, migrations and node labels.",
    printcolumn = r#"{"name":"In-Force","type":"string","jsonPath":".status.conditions[?(@.type==\"InForce\")].status","description":"Whether every node follows this object"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"InForce\")].reason"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"InForce\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct HyperConvergedSpec {
    /// CPU models that nodes do not offer.
    #[serde(default, rename = "obsoleteCPUs", skip_serializing_if = "Option::is_none")]
    pub obsolete_cpus: Option<ObsoleteCpus>,
    /// Configuration of live migrations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_migration_config: Option<LiveMigrationConfig>,
    /// Eviction strategy of virtual machines that set no eviction strategy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_strategy: Option<EvictionStrategy>,
    /// CPU model of virtual machines that set no CPU model.
    #[serde(default, rename = "defaultCPUModel", skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$")
    )]
    pub default_cpu_model: Option<String>,
    /// Lifetimes of the certificates that Drydock issues for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_config: Option<CertConfig>,
    /// Feature gates, by name: `true` enables a feature gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("additionalProperties" = {"type": "boolean"}))]
    pub feature_gates: Option<std::collections::BTreeMap<String, bool>>,
    /// Fields of the HyperConverged API that Drydock does not use.
    #[serde(flatten)]
    #[schemars(skip)]
    pub other: Map<String, Value>,
}

/// CPU models that nodes do not offer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ObsoleteCpus {
    /// CPU models that are added to the built-in list of obsolete models. No model can be removed from the built-in
    /// list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 256),
        inner(
            length(min = 1, max = 63),
            regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$")
        )
    )]
    pub cpu_models: Vec<String>,
    /// Minimum CPU model. Its features get no labels of their own, because every node is expected to have them.
    /// Defaults to Penryn.
    #[serde(default, rename = "minCPUModel", skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$")
    )]
    pub min_cpu_model: Option<String>,
}

/// Configuration of live migrations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct LiveMigrationConfig {
    /// Maximum number of migrations that run in the cluster at the same time. Defaults to 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub parallel_migrations_per_cluster: Option<u32>,
    /// Maximum number of migrations that leave a node at the same time. Defaults to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub parallel_outbound_migrations_per_node: Option<u32>,
    /// Maximum number of migrations that arrive at a node at the same time. Defaults to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub parallel_inbound_migrations_per_node: Option<u32>,
    /// Maximum bandwidth of each migration in bytes per second, as a quantity. No limit if 0 or not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 32),
        regex(pattern = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$")
    )]
    pub bandwidth_per_migration: Option<String>,
    /// Time limit of a migration in seconds for each GiB that it has to copy. 0 means no limit. Defaults to 150.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub completion_timeout_per_gi_b: Option<u32>,
    /// Time without progress in seconds after which a migration is aborted. 0 means never. Defaults to 150.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub progress_timeout: Option<u32>,
    /// Maximum downtime of the guest at the end of a migration, in milliseconds. Defaults to 900.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_000_000))]
    pub max_downtime_ms: Option<u32>,
    /// The guest may be throttled so that the migration can complete. Defaults to false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_auto_converge: Option<bool>,
    /// The guest may be switched to the target before all of its memory is copied (post-copy). Defaults to false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_post_copy: Option<bool>,
    /// The guest may be paused or switched to post-copy so that the migration can complete. Defaults to the value
    /// of allowPostCopy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_workload_disruption: Option<bool>,
    /// Key of the taint that drains a node. The effect of the taint must be NoSchedule. Defaults to
    /// kubevirt.io/drain.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub node_drain_taint_key: Option<String>,
}

/// Effect of an eviction on a virtual machine.
///
/// `None`: the virtual machine is shut down. `LiveMigrate`: the virtual machine is live migrated.
/// `LiveMigrateIfPossible`: the virtual machine is live migrated if possible, else shut down. `External`: a component
/// other than Drydock decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum EvictionStrategy {
    /// The virtual machine is shut down.
    None,
    /// The virtual machine is live migrated, and the eviction is refused until it has moved.
    LiveMigrate,
    /// The virtual machine is live migrated if possible, else shut down.
    LiveMigrateIfPossible,
    /// A component other than Drydock decides; the eviction is refused until that component has acted.
    External,
}

/// Lifetimes of certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct CertConfig {
    /// Lifetime of the certificate of the certificate authority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<CertLifetime>,
    /// Lifetime of the serving certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<CertLifetime>,
}

/// Lifetime of one certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct CertLifetime {
    /// Validity period of the certificate, as a Go duration (`48h0m0s`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 2, max = 32),
        regex(pattern = r"^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$")
    )]
    pub duration: Option<String>,
    /// Time between the renewal and the expiry of the certificate, as a Go duration (`24h0m0s`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 2, max = 32),
        regex(pattern = r"^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$")
    )]
    pub renew_before: Option<String>,
}

/// Status of the object, written by the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HyperConvergedStatus {
    /// Conditions of the object. `InForce`: whether the object is the cluster's configuration and every node applies
    /// it. `DefaultCPUModelOffered`: while a default CPU model is configured, whether nodes offer that model.
    #[schemars(schema_with = "crate::hypervisor::conditions")]
    pub conditions: Vec<Condition>,
    /// Generation of the object that the conditions describe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of nodes that apply the current generation of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes_in_force: Option<u32>,
    /// Number of nodes with an agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
}
