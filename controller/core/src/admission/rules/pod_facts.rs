//! Files with facts about the guest's pod.

use drydock_api::{
    kubevirt::volumes::{DownwardApiField, DownwardApiVolume, FieldRef, ResourceFieldRef},
    launcher::CONTAINER,
};

use super::iso_label;
use crate::admission::{At, RefusalList};

/// Fields of a pod that a file may have (Kubernetes' `DownwardAPIVolumeFile`). A key in brackets may follow the maps.
const FIELDS: [&str; 5] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "metadata.labels",
    "metadata.annotations",
];
/// Resources of a container that a file may have (Kubernetes' `ResourceFieldSelector`), apart from huge pages.
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
];
/// Divisors of resources of memory and storage, and of processors (Kubernetes' validation).
const DIVISORS: [&str; 13] = [
    "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
];
const CPU_DIVISORS: [&str; 2] = ["1m", "1"];

pub(super) fn check(facts: &DownwardApiVolume, at: &At, refusals: &mut RefusalList) {
    iso_label::check(facts.volume_label.as_deref(), at, refusals);
    let at_all = at.field("fields");
    for (index, fact) in facts.fields.iter().enumerate() {
        let at_one = at_all.index(index);
        let at_path = at_one.field("path");
        if !is_relative_without_dots(&fact.path) {
            refusals.not_allowed(&at_path, &fact.path, "a relative path without `.` and `..`");
        }
        if let Some(first) = facts.fields[..index].iter().position(|other| other.path == fact.path) {
            refusals.duplicate(&at_path, &fact.path, &at_all.index(first));
        }
        source(fact, &at_one, refusals);
    }
}

fn source(fact: &DownwardApiField, at: &At, refusals: &mut RefusalList) {
    match (&fact.field_ref, &fact.resource_field_ref) {
        (None, None) => refusals.required(at, "one of fieldRef and resourceFieldRef"),
        (Some(_), Some(_)) => refusals.conflict(&at.field("resourceFieldRef"), at.field("fieldRef")),
        (Some(field), None) => field_ref(field, &at.field("fieldRef"), refusals),
        (None, Some(resource)) => resource_ref(resource, &at.field("resourceFieldRef"), refusals),
    }
}

fn field_ref(field: &FieldRef, at: &At, refusals: &mut RefusalList) {
    if let Some(version) = field.api_version.as_deref().filter(|version| *version != "v1") {
        refusals.not_allowed(&at.field("apiVersion"), version, "v1");
    }
    let path = field.field_path.as_str();
    let keyed = ["metadata.labels['", "metadata.annotations['"]
        .iter()
        .filter_map(|map| path.strip_prefix(map)?.strip_suffix("']"))
        .any(|key| !key.is_empty() && !key.contains('\''));
    if !(keyed || FIELDS.contains(&path)) {
        let allowed = format!(
            "one of {}, metadata.labels['KEY'] and metadata.annotations['KEY']",
            FIELDS.join(", ")
        );
        refusals.not_allowed(&at.field("fieldPath"), path, allowed);
    }
}

fn resource_ref(field: &ResourceFieldRef, at: &At, refusals: &mut RefusalList) {
    if field.container_name != CONTAINER {
        refusals.not_allowed(&at.field("containerName"), &field.container_name, CONTAINER);
    }
    if !RESOURCES.contains(&field.resource.as_str()) {
        let allowed = format!("one of {}", RESOURCES.join(", "));
        refusals.not_allowed(&at.field("resource"), &field.resource, allowed);
    }
    let divisors: &[&str] = if field.resource.ends_with(".cpu") {
        &CPU_DIVISORS
    } else {
        &DIVISORS
    };
    if let Some(divisor) = &field.divisor
        && !divisors.contains(&divisor.0.as_str())
    {
        let allowed = format!("one of {}", divisors.join(", "));
        refusals.not_allowed(&at.field("divisor"), divisor, allowed);
    }
}

fn is_relative_without_dots(path: &str) -> bool {
    !path.starts_with("..")
        && path
            .split('/')
            .all(|part| !matches!(part, "" | "." | "..") && !part.chars().any(char::is_control))
}
