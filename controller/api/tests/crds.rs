//! Checks that the CRD manifests match the types of this crate.

use std::{fs, path::Path};

use drydock_api::definitions;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, JSONSchemaPropsOrArray};

#[test]
fn committed_crds_are_current_and_fit_client_side_apply() {
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

/// Collects the paths of fields without a description.
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
fn every_crd_field_has_a_description() {
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

/// Returns the schema of the field at a path, with `[]` for lists.
fn at<'a>(schema: &'a JSONSchemaProps, path: &str) -> Option<&'a JSONSchemaProps> {
    path.split('.').try_fold(schema, |schema, part| {
        let field = schema.properties.as_ref()?.get(part.trim_end_matches("[]"))?;
        Some(match &field.items {
            Some(JSONSchemaPropsOrArray::Schema(items)) if part.ends_with("[]") => items,
            _ => field,
        })
    })
}

#[test]
fn texts_that_may_be_left_out_may_be_empty() {
    let crd = definitions()
        .into_iter()
        .find(|crd| crd.spec.names.kind == "VirtualMachineInstance")
        .unwrap();
    let schema = crd.spec.versions[0].schema.as_ref().unwrap();
    let schema = schema.open_api_v3_schema.as_ref().unwrap();
    for path in [
        "domain.cpu.model",
        "domain.cpu.features[].policy",
        "domain.machine.type",
        "domain.firmware.uuid",
        "domain.clock.timer.rtc.tickPolicy",
        "domain.clock.timer.rtc.track",
        "domain.devices.disks[].disk.bus",
        "domain.devices.disks[].cdrom.bus",
        "domain.devices.disks[].cache",
        "domain.devices.interfaces[].model",
        "domain.devices.interfaces[].macAddress",
        "domain.devices.interfaces[].ports[].name",
        "domain.devices.interfaces[].ports[].protocol",
        "volumes[].containerDisk.path",
        "volumes[].containerDisk.imagePullPolicy",
        "hostname",
        "subdomain",
    ] {
        let field = at(schema, &format!("spec.{path}")).unwrap();
        assert_eq!(field.type_.as_deref(), Some("string"), "{path}");
        assert_eq!(field.nullable, Some(true), "{path}");
        assert!(field.min_length.is_none_or(|least| least == 0), "{path}");
        let optional = |pattern: &String| pattern.starts_with("^(") && pattern.ends_with(")?$");
        assert!(
            field.pattern.as_ref().is_none_or(optional),
            "{path}: {:?}",
            field.pattern
        );
        let values: Option<Vec<_>> = field
            .enum_
            .as_ref()
            .map(|values| values.iter().map(|value| value.0.clone()).collect());
        assert!(
            values.is_none_or(|values| values.len() > 1 && values.contains(&"".into())),
            "{path}"
        );
    }
}
