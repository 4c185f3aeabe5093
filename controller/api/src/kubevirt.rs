//! Virtual machines, with the names of KubeVirt's API (`kubevirt.io/v1`; `v1alpha3` is served with
//! the same schema).
//!
//! Only what Drydock carries out is typed. Objects keep fields that are not, so that admission can
//! refuse each of them by name instead of losing it in silence.
//!
//! ```text
//! VirtualMachine ─────────────┐ template
//! VirtualMachineInstanceReplicaSet ─┴─▶ VirtualMachineInstance ─▶ launcher pod ─▶ guest
//!                                        ▲ vmiName
//! VirtualMachineInstanceMigration ───────┘
//! ```

pub mod amount;
pub mod devices;
pub mod domain;
pub mod instance;
pub mod machine;
pub mod migration;
pub mod names;
pub mod replica_set;
pub mod status;
pub mod volumes;

use k8s_openapi::{apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition, jiff::Timestamp};
use kube::CustomResourceExt;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

pub use amount::Amount;
pub use instance::{VirtualMachineInstance, VirtualMachineInstanceSpec};
pub use machine::{RunStrategy, VirtualMachine, VirtualMachineSpec, VirtualMachineStatus};
pub use migration::{VirtualMachineInstanceMigration, VirtualMachineInstanceMigrationSpec};
pub use replica_set::{VirtualMachineInstanceReplicaSet, VirtualMachineInstanceReplicaSetSpec};
pub use status::{Phase, VirtualMachineInstanceStatus};

/// The API group.
pub const GROUP: &str = "kubevirt.io";
/// The version that is stored.
pub const VERSION: &str = "v1";
/// Version that older manifests name; it is served with the same schema.
pub const OLD_VERSION: &str = "v1alpha3";

/// The definitions of the four kinds.
pub(crate) fn definitions() -> [CustomResourceDefinition; 4] {
    let mut definitions = [
        VirtualMachine::crd(),
        VirtualMachineInstance::crd(),
        VirtualMachineInstanceReplicaSet::crd(),
        VirtualMachineInstanceMigration::crd(),
    ];
    for definition in &mut definitions {
        let mut old: Vec<_> = definition.spec.versions.clone();
        for version in &mut old {
            version.name = OLD_VERSION.into();
            version.storage = false;
        }
        definition.spec.versions.extend(old);
    }
    definitions
}

/// A condition of a virtual machine, as KubeVirt writes them: like those of Kubernetes, with the
/// reason and the message optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What it is about.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// CamelCase reason of the last change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When the status last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_time")]
    pub last_transition_time: Option<Timestamp>,
}

/// Schema of a list of conditions that several writers may apply to.
pub(crate) fn conditions(generator: &mut SchemaGenerator) -> Schema {
    list_map::<Vec<Condition>>(generator, &["type"])
}

/// Schema of a list of things with names, which several writers may apply to.
pub(crate) fn by_name<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    list_map::<Vec<T>>(generator, &["name"])
}

fn list_map<T: JsonSchema>(generator: &mut SchemaGenerator, keys: &[&str]) -> Schema {
    let mut schema = generator.subschema_for::<T>();
    schema.insert("x-kubernetes-list-type".into(), "map".into());
    schema.insert("x-kubernetes-list-map-keys".into(), keys.into());
    schema
}

/// Schema of a time that may be absent.
pub(crate) fn optional_time(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({"type": "string", "format": "date-time", "nullable": true})
}

/// Schema of a time.
pub(crate) fn time(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({"type": "string", "format": "date-time"})
}

/// Schema of metadata in a template: labels, annotations and whatever else there is.
pub(crate) fn template_metadata(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({
        "type": "object",
        "nullable": true,
        "description": "Labels and annotations of what is made.",
        "x-kubernetes-preserve-unknown-fields": true,
    })
}
