//! Each field of KubeVirt's v1 schema is implemented, a documented hint, or refused by name.

use std::{collections::BTreeSet, fmt::Write, fs, path::Path};

use drydock_api::kubevirt::{
    VirtualMachineInstanceMigrationSpec, VirtualMachineInstanceReplicaSetSpec, VirtualMachineInstanceSpec,
    VirtualMachineSpec,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    super::{
        AdmissionReason, AdmittedKind, VERSION,
        annotations::REFUSED,
        fields::{CONTAINERS, recorded, refused_fields},
        hints::{Accepted, HINTS},
    },
    manifest, refusal_text,
};

/// Every implemented field, set to some value. Some contradict each other: only the presence of fields is checked.
const EVERYTHING: &str = include_str!("every_field.yaml");

/// The treatment of a field by admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    CarriedOut,
    Hint,
    /// The field only groups other fields.
    Container,
    Refused,
}

/// Returns an object with a value in one place and nothing else.
fn with(path: &str, value: Value) -> Value {
    path.rsplit('.')
        .fold(value, |inner, part| match part.strip_suffix("[]") {
            // A list at the end contains the value; other lists contain objects.
            Some(name) => json!({(name): [inner]}),
            None => json!({(part): inner}),
        })
}

/// Returns whether KubeVirt's list has fields inside this one.
fn holds_fields(kind: AdmittedKind, path: &str) -> bool {
    let inner = format!("{path}.");
    recorded().any(|(other, field)| other == kind && field.starts_with(&inner))
}

fn refusal(kind: AdmittedKind, path: &str, value: Value) -> Option<String> {
    let refusals = refused_fields(&with(path, value), kind);
    for refusal in &refusals {
        assert_eq!(refusal.reason, AdmissionReason::NotSupported, "{path}: {refusal}");
    }
    (!refusals.is_empty()).then(|| refusals[0].to_string())
}

fn fate(kind: AdmittedKind, path: &str) -> Fate {
    let sample = if holds_fields(kind, path) {
        json!({})
    } else {
        json!("sample")
    };
    if let Some(hint) = HINTS.iter().find(|hint| hint.kind == kind && hint.field == path) {
        match hint.accepted {
            Accepted::Any => assert_eq!(refusal(kind, path, sample), None, "{path}"),
            Accepted::Only(accepted) => {
                assert_eq!(refusal(kind, path, json!(accepted)), None, "{path}");
                let other = refusal(kind, path, json!("sample")).unwrap();
                assert!(other.contains("not supported") && other.contains(accepted), "{other}");
            }
        }
        return Fate::Hint;
    }
    if CONTAINERS.contains(&path) {
        // By itself it requests nothing; the fields in it are checked on their own.
        assert_eq!(refusal(kind, path, json!({})), None, "{path}");
        assert!(holds_fields(kind, path), "{path}");
        return Fate::Container;
    }
    match refusal(kind, path, sample) {
        None => Fate::CarriedOut,
        Some(message) => {
            let expected = format!("{} is not supported by Drydock {VERSION}", path.replace("[]", "[0]"));
            // A parent of a refused field may be refused as a whole.
            let (named, _) = message.split_once(" is not").unwrap();
            assert!(expected.starts_with(named), "{message}");
            assert!(
                message.ends_with(&format!("is not supported by Drydock {VERSION}")),
                "{message}"
            );
            Fate::Refused
        }
    }
}

#[test]
fn every_kubevirt_field_has_a_defined_treatment() {
    let mut table = String::new();
    let mut counts = [0; 4];
    let all: BTreeSet<(AdmittedKind, &str)> = recorded().collect();
    assert!(all.len() > 450, "{}", all.len());
    for (kind, path) in all {
        let fate = fate(kind, path);
        counts[fate as usize] += 1;
        writeln!(table, "{fate:?} {} {path}", kind.as_str()).unwrap();
        // A template has the same fields, treated in the same way.
        if kind == AdmittedKind::Instance {
            let value = if holds_fields(kind, path) {
                json!({})
            } else {
                json!("sample")
            };
            let inner = with(path, value.clone());
            let alone = refused_fields(&inner, kind);
            for maker in [AdmittedKind::Machine, AdmittedKind::ReplicaSet] {
                let made = refused_fields(&json!({"spec": {"template": inner}}), maker);
                let fields = |refusals: &[super::super::AdmissionRefusal], prefix: &str| -> Vec<String> {
                    refusals
                        .iter()
                        .map(|refusal| format!("{prefix}{}", refusal.field))
                        .collect()
                };
                assert_eq!(fields(&made, ""), fields(&alone, "spec.template."), "{path}");
            }
        }
    }
    insta::assert_snapshot!(table);
    assert!(counts.iter().all(|count| *count > 10), "{counts:?}");
}

/// Collects the paths of all fields of a value, lists as `[]`.
fn paths(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let at = format!("{at}.{name}");
                found.insert(at.clone());
                paths(value, &at, found);
            }
        }
        Value::Array(values) => {
            found.remove(at);
            found.insert(format!("{at}[]"));
            for value in values {
                paths(value, &format!("{at}[]"), found);
            }
        }
        _ => {}
    }
}

fn read_and_written<T: DeserializeOwned + Serialize>(spec: &Value) -> Value {
    serde_json::to_value(serde_json::from_value::<T>(spec.clone()).unwrap()).unwrap()
}

#[test]
fn supported_fields_are_read_by_the_api_types() {
    let everything = manifest(EVERYTHING);
    for (kind, read_and_written) in [
        (
            AdmittedKind::Instance,
            read_and_written::<VirtualMachineInstanceSpec> as fn(&Value) -> Value,
        ),
        (AdmittedKind::Machine, read_and_written::<VirtualMachineSpec>),
        (
            AdmittedKind::ReplicaSet,
            read_and_written::<VirtualMachineInstanceReplicaSetSpec>,
        ),
        (
            AdmittedKind::Migration,
            read_and_written::<VirtualMachineInstanceMigrationSpec>,
        ),
    ] {
        let spec = &everything[kind.as_str()];
        assert_eq!(*spec, read_and_written(spec), "{}", kind.as_str());
        assert_eq!(refused_fields(&json!({"spec": spec}), kind), [], "{}", kind.as_str());
        let mut written = BTreeSet::new();
        paths(spec, "spec", &mut written);
        for (other, path) in recorded() {
            if other == kind && fate(kind, path) == Fate::CarriedOut {
                assert!(
                    written.contains(path),
                    "{} {path} is carried out, but not read",
                    kind.as_str()
                );
            }
        }
    }
}

#[test]
fn all_unsupported_fields_are_in_one_refusal() {
    let mut object = super::instance();
    super::put(&mut object, "/spec/domain/devices/gpus", json!([{"name": "a"}]));
    super::put(&mut object, "/spec/domain/devices/tpm", json!({}));
    super::put(
        &mut object,
        "/spec/domain/features",
        json!({"acpi": {}, "hyperv": {"reenlightenment": {}, "evmcs": {"enabled": false}}, "hypervPassthrough": {"enabled": true}}),
    );
    super::put(
        &mut object,
        "/spec/volumes/0/hostDisk",
        json!({"path": "/x", "type": "Disk"}),
    );
    assert_eq!(
        refusal_text(&object, AdmittedKind::Instance),
        format!(
            "spec.domain.devices.gpus is not supported by Drydock {VERSION}; \
             spec.domain.devices.tpm is not supported by Drydock {VERSION}; \
             spec.domain.features.hyperv.reenlightenment is not supported by Drydock {VERSION}; \
             spec.domain.features.hypervPassthrough is not supported by Drydock {VERSION}; \
             spec.volumes[0].hostDisk is not supported by Drydock {VERSION}"
        )
    );
    let machine = super::machine(object);
    let found = refused_fields(&machine, AdmittedKind::Machine);
    assert_eq!(found[0].field, "spec.template.spec.domain.devices.gpus");
    assert_eq!(found.len(), 5);
}

#[test]
fn unsupported_parts_of_machines_are_refused_by_name() {
    let mut object = super::machine(super::instance());
    put_all(
        &mut object,
        &[
            ("dataVolumeTemplates", json!([{"metadata": {"name": "x"}, "spec": {}}])),
            ("instancetype", json!({"name": "u1.small"})),
            ("preference", json!({"name": "fedora"})),
            ("updateVolumesStrategy", json!("Migration")),
        ],
    );
    let refusal_text = refusal_text(&object, AdmittedKind::Machine);
    for expected_part in [
        "spec.dataVolumeTemplates is not supported",
        "spec.instancetype is not supported",
        "spec.preference is not supported",
        "spec.updateVolumesStrategy: `Migration` is not supported",
    ] {
        assert!(refusal_text.contains(expected_part), "{refusal_text}");
    }
    put_all(
        &mut object,
        &[
            ("dataVolumeTemplates", json!([])),
            ("instancetype", Value::Null),
            ("updateVolumesStrategy", json!("Replacement")),
        ],
    );
    assert_eq!(
        super::refusal_text(&object, AdmittedKind::Machine),
        format!("spec.preference is not supported by Drydock {VERSION}")
    );
}

fn put_all(object: &mut Value, fields: &[(&str, Value)]) {
    for (name, value) in fields {
        super::put(object, &format!("/spec/{name}"), value.clone());
    }
}

#[test]
fn unknown_fields_are_refused_with_the_name_that_may_be_meant() {
    for (path, expected) in [
        (
            "spec.domain.cpu.core",
            "spec.domain.cpu.core is not a field of VirtualMachineInstance; did you mean cores?",
        ),
        (
            "spec.domain.devices.gpu",
            "spec.domain.devices.gpu is not a field of VirtualMachineInstance; did you mean gpus?",
        ),
        (
            "spec.domain.clock.timezon",
            "spec.domain.clock.timezon is not a field of VirtualMachineInstance; did you mean timezone?",
        ),
        (
            "spec.domain.features.hyperv.relax",
            "spec.domain.features.hyperv.relax is not a field of VirtualMachineInstance; did you mean relaxed?",
        ),
        (
            "spec.something",
            "spec.something is not a field of VirtualMachineInstance",
        ),
    ] {
        let refusals = refused_fields(&with(path, json!("sample")), AdmittedKind::Instance);
        assert_eq!(refusals.len(), 1, "{path}");
        assert_eq!(refusals[0].reason, AdmissionReason::UnknownField);
        assert_eq!(refusals[0].message, expected);
    }
    // A key that looks like a path is not a path.
    let forged = json!({"spec": {"domain": {"cpu.maxSockets": 4, "features[]": 1}}});
    let found = refused_fields(&forged, AdmittedKind::Instance);
    assert_eq!(found.len(), 2, "{found:?}");
    // The response stays small, whatever the request contains.
    let many: serde_json::Map<String, Value> = (0..10_000).map(|n| (format!("{n:0>4000}"), json!(1))).collect();
    let found = refused_fields(&json!({"spec": many}), AdmittedKind::Instance);
    assert_eq!(found.len(), 10_000);
    assert!(super::sentence(&found).len() < 40_000);
}

#[test]
fn manual_names_every_hint_and_every_supported_field() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/docs/supported-fields.md");
    let text = fs::read_to_string(file).unwrap();
    // Field names are in backquotes, alone or as the end of a path.
    let names: BTreeSet<&str> = text
        .split('`')
        .skip(1)
        .step_by(2)
        .flat_map(|path| path.split('.'))
        .map(|name| name.trim_end_matches("[]"))
        .collect();
    for annotation in REFUSED {
        assert!(
            text.contains(&format!("`{annotation}`")),
            "supported-fields.md does not name {annotation}"
        );
    }
    for (kind, path) in recorded() {
        let name = path.rsplit('.').next().unwrap_or(path).trim_end_matches("[]");
        if matches!(fate(kind, path), Fate::CarriedOut | Fate::Hint) {
            assert!(
                names.contains(name),
                "supported-fields.md does not name `{name}` of {path}"
            );
        }
    }
}
