//! The selector of a VirtualMachineInstanceReplicaSet.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use super::{name_rules, scheduling};
use crate::{
    admission::{At, RefusalList},
    label_selector::Selector,
};

pub(super) fn check(raw: &Value, refusals: &mut RefusalList) {
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
    name_rules::selector(
        selector.match_labels.as_ref().unwrap_or(&BTreeMap::new()),
        &at.field("matchLabels"),
        refusals,
    );
    scheduling::selector_expressions(&selector, &at, refusals);
    if is_empty(&selector) {
        return refusals.required(&at, "an empty selector would select every instance of the namespace");
    }
    let labels = raw.pointer("/spec/template/metadata/labels");
    let labels: BTreeMap<String, String> = labels
        .and_then(|labels| serde_json::from_value(labels.clone()).ok())
        .unwrap_or_default();
    // An invalid selector has already been refused above.
    if Selector::new(&selector).is_ok_and(|selector| !selector.matches(Some(&labels))) {
        let listed: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let allowed = format_args!("labels that {at} selects");
        refusals.not_allowed(&At::root("spec.template.metadata.labels"), listed.join(","), allowed);
    }
}

fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}
