//! The manifests that users apply are the ones this crate describes.

use std::{fs, path::Path};

use drydock_api::definitions;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, JSONSchemaPropsOrArray};

#[test]
fn committed_definitions_are_current_and_small_enough_for_client_side_apply() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    for crd in definitions() {
        let name = crd.metadata.name.clone().unwrap();
        let current = serde_saphyr::to_string(&crd).unwrap();
        let committed = fs::read_to_string(folder.join(format!("{name}.yaml"))).unwrap();
        assert!(
            current == committed,
            "{name} has changed; write it anew: cargo run -p drydock-api --example crds -- deploy/crds"
        );
        assert!(
            serde_json::to_string(&crd).unwrap().len() < 200 * 1024,
            "{name} is too large for kubectl apply"
        );
    }
}

/// Paths of fields without a description.
fn undescribed(schema: &JSONSchemaProps, at: &str, found: &mut Vec<String>) {
    for (name, field) in schema.properties.iter().flatten() {
        let at = format!("{at}.{name}");
        if field.description.as_deref().is_none_or(|text| text.trim().is_empty()) {
            found.push(at.clone());
        }
        undescribed(field, &at, found);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
        undescribed(items, at, found);
    }
}

#[test]
fn every_field_has_its_description() {
    for crd in definitions() {
        let kind = &crd.spec.names.kind;
        let mut found = Vec::new();
        for version in &crd.spec.versions {
            let schema = version
                .schema
                .as_ref()
                .and_then(|schema| schema.open_api_v3_schema.as_ref());
            for part in ["spec", "status"] {
                let part_schema = schema.unwrap().properties.as_ref().unwrap().get(part);
                if let Some(schema) = part_schema {
                    undescribed(schema, &format!("{kind}.{part}"), &mut found);
                }
            }
        }
        assert!(found.is_empty(), "{found:#?}");
    }
}
