//! Which fields are implemented: those in the definitions of the kinds.
//!
//! The definitions are generated from the types that all of Drydock's components read, so a field is implemented if and
//! only if a definition contains it.

use std::{collections::BTreeMap, sync::OnceLock};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, JSONSchemaPropsOrArray};

use super::AdmittedKind;

/// The permitted content of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FieldShape {
    /// An object with these fields.
    Fields(BTreeMap<String, FieldShape>),
    /// A list whose items have this shape.
    List(Box<FieldShape>),
    /// Any value that the schema allows: numbers, strings, maps with user-defined keys.
    Value,
}

/// Metadata of templates; the API server checks its fields.
const FREE: &str = "metadata";

impl FieldShape {
    /// Returns the shape of a kind's spec; a kind without a definition has no fields.
    pub(super) fn of_spec(kind: AdmittedKind) -> &'static Self {
        static SPECS: OnceLock<BTreeMap<AdmittedKind, FieldShape>> = OnceLock::new();
        static NOTHING: FieldShape = FieldShape::Fields(BTreeMap::new());
        SPECS.get_or_init(specs).get(&kind).unwrap_or(&NOTHING)
    }

    /// Returns the shape that a schema describes.
    fn of(schema: &JSONSchemaProps) -> Self {
        if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
            return Self::List(Box::new(Self::of(items)));
        }
        if schema.additional_properties.is_some() || schema.type_.as_deref() != Some("object") {
            return Self::Value;
        }
        let fields = schema.properties.iter().flatten().map(|(name, schema)| {
            let shape = if name == FREE { Self::Value } else { Self::of(schema) };
            (name.clone(), shape)
        });
        Self::Fields(fields.collect())
    }
}

fn specs() -> BTreeMap<AdmittedKind, FieldShape> {
    let mut specs = BTreeMap::new();
    for definition in drydock_api::definitions() {
        let Some(kind) = AdmittedKind::ALL
            .into_iter()
            .find(|kind| kind.as_str() == definition.spec.names.kind)
        else {
            continue;
        };
        let spec = definition
            .spec
            .versions
            .into_iter()
            .find_map(|version| version.schema?.open_api_v3_schema?.properties?.remove("spec"));
        if let Some(spec) = spec {
            specs.insert(kind, FieldShape::of(&spec));
        }
    }
    specs
}
