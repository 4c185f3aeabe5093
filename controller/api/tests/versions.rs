//! Checks that data of other versions can be read: that of earlier versions with its meaning, and values of later
//! versions as unknown.

#![expect(clippy::unwrap_used, reason = "helpers of tests may unwrap as tests do")]

use std::{collections::BTreeMap, fmt::Debug};

use drydock_api::{
    definitions,
    facts::{KvmState, Usable, VirtType},
    hypervisor::RemainingState,
    kubevirt::{
        Phase,
        migration::{MigrationMode, MigrationPhase, SourceState, TargetState, VirtualMachineInstanceMigrationStatus},
        status::{DrainRequest, MigrationMethod},
    },
    launcher::{DiskFormat, Ending, GuestOutcome, PodGuest, Ready},
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// A value that no version writes so far.
const LATER: &str = "ValueOfALaterVersion";

/// Checks that earlier values are read and written unchanged, and that a later value is read as unknown.
fn check<T>(name: &str, earlier: &[String], unknown: &T)
where
    T: Debug + PartialEq + Serialize + DeserializeOwned,
{
    assert!(!earlier.is_empty(), "{name}");
    for value in earlier {
        let read: T = serde_json::from_value(json!(value)).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), json!(value), "{name}");
        let is_unknown = value.eq_ignore_ascii_case("unknown");
        assert_eq!(read == *unknown, is_unknown, "{name}: {value}");
    }
    assert_eq!(serde_json::from_value::<T>(json!(LATER)).unwrap(), *unknown, "{name}");
}

#[test]
fn values_of_other_versions_are_read_in_every_enumeration() {
    let values: BTreeMap<String, Vec<String>> =
        serde_json::from_str(include_str!("../testdata/a233b06/values.json")).unwrap();
    for (name, earlier) in &values {
        match name.as_str() {
            "Phase" => check(name, earlier, &Phase::Unknown),
            "MigrationMethod" => check(name, earlier, &MigrationMethod::Unknown),
            "DrainRequest" => check(name, earlier, &DrainRequest::Unknown),
            "MigrationPhase" => check(name, earlier, &MigrationPhase::Unknown),
            "SourceState" => check(name, earlier, &SourceState::Unknown),
            "TargetState" => check(name, earlier, &TargetState::Unknown),
            "MigrationMode" => check(name, earlier, &MigrationMode::Unknown),
            "RemainingState" => check(name, earlier, &RemainingState::Unknown),
            "KvmState" => check(name, earlier, &KvmState::Unknown),
            "VirtType" => check(name, earlier, &VirtType::Unknown),
            "Usable" => check(name, earlier, &Usable::Unknown),
            "DiskFormat" => check(name, earlier, &DiskFormat::Unknown),
            "Outcome" => check(name, earlier, &GuestOutcome::Unknown),
            other => panic!("no enumeration is called {other}"),
        }
    }
}

/// Checks that a file of the previous release is read and written unchanged.
fn same<T: Serialize + DeserializeOwned>(bytes: &str) -> T {
    let read: T = serde_json::from_str(bytes).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), bytes.trim_end());
    read
}

#[test]
fn files_of_the_previous_release_are_read() {
    let ready: Ready = same(include_str!("../testdata/a233b06/ready.json"));
    assert_eq!(ready.unknown_disk(), None);
    let guest: PodGuest = same(include_str!("../testdata/a233b06/guest.json"));
    assert_eq!(guest.disks.len(), 8);
    let ending: Ending = same(include_str!("../testdata/a233b06/ending.json"));
    assert_eq!(ending.outcome, GuestOutcome::Migrated);
    let status: VirtualMachineInstanceMigrationStatus = same(include_str!("../testdata/a233b06/migration-status.json"));
    let (source, target) = (status.source.unwrap(), status.target.unwrap());
    assert_eq!(
        (source.state, target.state),
        (Some(SourceState::HandedOver), Some(TargetState::Complete))
    );
}

#[test]
fn ready_pod_with_unknown_disk_format_is_recognized() {
    let later = |format: &str, below: &str| {
        let text = include_str!("../testdata/a233b06/ready.json");
        let text = text.replacen("qcow2\",\"virtual", &format!("{format}\",\"virtual"), 1);
        let text = text.replacen("raw", below, 1);
        let ready: Ready = serde_json::from_str(&text).unwrap();
        ready.unknown_disk().map(|disk| disk.name.clone())
    };
    assert_eq!(later("qcow2", "raw"), None);
    assert_eq!(later("vhdx", "raw"), Some("root".into()));
    assert_eq!(later("qcow2", "vhdx"), Some("root".into()));
}

/// Returns a value that the schema allows.
fn sample(schema: &JSONSchemaProps) -> Value {
    if let Some(first) = schema.enum_.iter().flatten().next() {
        return first.0.clone();
    }
    match schema.type_.as_deref() {
        Some("object") => {
            let required = schema.required.iter().flatten();
            let fields = required.filter_map(|name| Some((name.clone(), schema.properties.as_ref()?.get(name)?)));
            fields
                .map(|(name, field)| (name, sample(field)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        }
        Some("array") => json!([]),
        Some("string") if schema.format.as_deref() == Some("date-time") => json!("2026-11-25T10:00:00Z"),
        Some("string") => json!("1"),
        Some("boolean") => json!(false),
        _ => json!(1),
    }
}

/// Calls `found` for each enumeration: with its path, and with an object that has a later value at that path.
fn later_values(
    schema: &JSONSchemaProps,
    path: &str,
    object: &dyn Fn(Value) -> Value,
    found: &mut dyn FnMut(&str, Value),
) {
    if schema.enum_.is_some() {
        found(path, object(json!(LATER)));
    }
    for (name, field) in schema.properties.iter().flatten() {
        let with = |value: Value| {
            let mut this = sample(schema);
            this[name] = value;
            object(this)
        };
        later_values(field, &format!("{path}.{name}"), &with, found);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
        later_values(items, &format!("{path}[]"), &|value| object(json!([value])), found);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
        later_values(
            values,
            &format!("{path}{{}}"),
            &|value| object(json!({"a": value})),
            found,
        );
    }
}

fn is_read<T: DeserializeOwned>(object: Value) -> Result<(), serde_json::Error> {
    serde_json::from_value::<T>(object).map(drop)
}

/// Without tolerance for unknown values, a single one would make the whole object unreadable.
#[test]
fn status_with_a_value_of_a_later_version_is_read() {
    use drydock_api::{
        hypervisor::Hypervisor,
        kubevirt::{VirtualMachineInstance, VirtualMachineInstanceMigration},
    };
    let mut paths = Vec::new();
    for crd in definitions() {
        let kind = crd.spec.names.kind.as_str();
        let read: fn(Value) -> Result<(), serde_json::Error> = match kind {
            "VirtualMachineInstance" => is_read::<VirtualMachineInstance>,
            "VirtualMachineInstanceMigration" => is_read::<VirtualMachineInstanceMigration>,
            "Hypervisor" => is_read::<Hypervisor>,
            _ => continue,
        };
        let version = &crd.spec.versions[0];
        let schema = version.schema.as_ref().unwrap().open_api_v3_schema.as_ref().unwrap();
        let fields = schema.properties.as_ref().unwrap();
        let spec = fields.get("spec").map_or_else(|| json!({}), sample);
        let api_version = format!("{}/{}", crd.spec.group, version.name);
        let object = |status: Value| json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "a"}, "spec": spec, "status": status});
        read(object(sample(&fields["status"]))).unwrap();
        later_values(
            &fields["status"],
            &format!("{kind}.status"),
            &object,
            &mut |path, object| {
                if let Err(error) = read(object) {
                    panic!("{path}: {error}");
                }
                paths.push(path.to_owned());
            },
        );
    }
    for expected in [
        "VirtualMachineInstanceMigration.status.source.state",
        "VirtualMachineInstanceMigration.status.target.state",
        "VirtualMachineInstance.status.phase",
        "Hypervisor.status.drain.remaining[].state",
    ] {
        assert!(
            paths.iter().any(|path| path == expected),
            "{expected} is not among {paths:#?}"
        );
    }
}
