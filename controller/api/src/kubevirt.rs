//! Virtual machines, with the names of KubeVirt's API (`kubevirt.io/v1`; `v1alpha3` is served with the same schema).
//!
//! Only fields that Drydock implements are typed. Objects preserve all other fields, so that admission can reject each
//! of them by name instead of dropping it silently.
//!
//! ```text
//! VirtualMachine ─────────────┐ template
//! VirtualMachineInstanceReplicaSet ─┴─▶ VirtualMachineInstance ─▶ launcher pod ─▶ guest
//!                                        ▲ vmiName
//! VirtualMachineInstanceMigration ───────┘
//! ```

pub mod amount;
pub mod credentials;
pub mod devices;
pub mod domain_spec;
pub mod features;
pub mod guest_agent;
pub mod guest_cpu;
pub mod instance;
pub mod machine;
pub mod migration;
pub mod names;
pub mod replica_set;
pub mod status;
pub mod volumes;

use std::{fmt, marker::PhantomData};

use k8s_openapi::{apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition, jiff::Timestamp};
use kube::CustomResourceExt;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;

pub use amount::Amount;
pub use instance::{VirtualMachineInstance, VirtualMachineInstanceSpec};
pub use machine::{RunStrategy, VirtualMachine, VirtualMachineSpec, VirtualMachineStatus};
pub use migration::{VirtualMachineInstanceMigration, VirtualMachineInstanceMigrationSpec};
pub use replica_set::{VirtualMachineInstanceReplicaSet, VirtualMachineInstanceReplicaSetSpec};
pub use status::{Phase, VirtualMachineInstanceStatus};

/// The API group.
pub const GROUP: &str = "kubevirt.io";
/// The storage version.
pub const VERSION: &str = "v1";
/// Version in older manifests; served with the same schema.
pub const OLD_VERSION: &str = "v1alpha3";

/// Returns the CRDs of the four kinds.
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

/// A condition in KubeVirt's format: like a condition of Kubernetes, with reason and message being optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
    /// Status of the condition: `True`, `False` or `Unknown`.
    pub status: String,
    /// CamelCase reason of the last change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Human-readable message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Time of the last change of the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_time")]
    pub last_transition_time: Option<Timestamp>,
}

/// Returns the schema of a list of conditions to which several field managers may apply.
pub(crate) fn conditions(generator: &mut SchemaGenerator) -> Schema {
    list_map::<Vec<Condition>>(generator, &["type"])
}

/// Returns the schema of a list keyed by name to which several field managers may apply.
pub(crate) fn by_name<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    list_map::<Vec<T>>(generator, &["name"])
}

fn list_map<T: JsonSchema>(generator: &mut SchemaGenerator, keys: &[&str]) -> Schema {
    let mut schema = generator.subschema_for::<T>();
    schema.insert("x-kubernetes-list-type".into(), "map".into());
    schema.insert("x-kubernetes-list-map-keys".into(), keys.into());
    schema
}

/// Deserializes an optional text or enum value. An empty text means none, as in KubeVirt, whose types cannot represent
/// the difference.
pub(crate) fn unless_empty<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    struct UnlessEmpty<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> de::Visitor<'de> for UnlessEmpty<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Option<T>, E> {
            if text.is_empty() {
                return Ok(None);
            }
            T::deserialize(de::value::StrDeserializer::new(text)).map(Some)
        }

        fn visit_none<E>(self) -> Result<Option<T>, E> {
            Ok(None)
        }

        fn visit_unit<E>(self) -> Result<Option<T>, E> {
            Ok(None)
        }
    }
    from.deserialize_any(UnlessEmpty(PhantomData))
}

/// Returns the schema of an enum whose value may be empty, which means none.
pub(crate) fn or_empty<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = T::json_schema(generator);
    let variants = schema.remove("oneOf").or_else(|| schema.remove("anyOf"));
    let variants = variants.as_ref().and_then(Value::as_array).into_iter().flatten();
    let documented = variants.flat_map(|variant| variant.get("const").or_else(|| variant.pointer("/enum/0")).cloned());
    let mut all: Vec<Value> = documented.collect();
    if let Some(plain) = schema.get("enum").and_then(Value::as_array) {
        all.extend(plain.iter().cloned());
    }
    all.push("".into());
    schema.insert("type".into(), "string".into());
    schema.insert("enum".into(), all.into());
    schema.insert("nullable".into(), true.into());
    schema
}

/// Returns the schema of an optional time.
pub(crate) fn optional_time(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({"type": "string", "format": "date-time", "nullable": true})
}

/// Returns the schema of a time.
pub(crate) fn time(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({"type": "string", "format": "date-time"})
}

/// Returns the schema of metadata in a template: labels, annotations and any other field.
pub(crate) fn template_metadata(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({
        "type": "object",
        "nullable": true,
        "description": "Labels and annotations of the created object.",
        "x-kubernetes-preserve-unknown-fields": true,
    })
}
