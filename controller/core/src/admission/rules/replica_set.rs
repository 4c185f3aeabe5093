//! Which instances a VirtualMachineInstanceReplicaSet counts.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use serde_json::Value;

use super::{names, scheduling};
use crate::admission::{At, Refusals};

pub(super) fn check(raw: &Value, refusals: &mut Refusals) {
    let at = At::root("spec");
    if let Some(replicas) = raw
        .pointer("/spec/replicas")
        .and_then(Value::as_i64)
        .filter(|count| *count < 0)
    {
        refusals.not_allowed(&at.field("replicas"), replicas, "0 or more");
    }
    let at = at.field("selector");
    let selector = raw.pointer("/spec/selector").cloned().unwrap_or_default();
    let selector: LabelSelector = match serde_json::from_value(selector) {
        Ok(selector) => selector,
        Err(error) => return refusals.malformed(&at, &error.to_string()),
    };
    names::selector(
        selector.match_labels.as_ref().unwrap_or(&BTreeMap::new()),
        &at.field("matchLabels"),
        refusals,
    );
    scheduling::selector_expressions(&selector, &at, refusals);
    if is_empty(&selector) {
        return refusals.required(&at, "an empty one would count every instance of the namespace");
    }
    let labels = raw.pointer("/spec/template/metadata/labels");
    let labels: BTreeMap<String, String> = labels
        .and_then(|labels| serde_json::from_value(labels.clone()).ok())
        .unwrap_or_default();
    if !matches(&selector, &labels) {
        let told: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let allowed = format_args!("labels that {at} selects");
        refusals.not_allowed(&At::root("spec.template.metadata.labels"), told.join(","), allowed);
    }
}

fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

/// Whether a selector selects labels, as Kubernetes decides it.
fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = |(key, value): (&String, &String)| labels.get(key) == Some(value);
    let holds = |requirement: &LabelSelectorRequirement| {
        let value = labels.get(&requirement.key);
        let among = |value: &String| requirement.values.iter().flatten().any(|other| other == value);
        match requirement.operator.as_str() {
            "In" => value.is_some_and(among),
            "NotIn" => !value.is_some_and(among),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    };
    selector.match_labels.iter().flatten().all(equal) && selector.match_expressions.iter().flatten().all(holds)
}
