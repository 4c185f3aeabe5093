//! Node affinity and taints, evaluated as the scheduler does.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration,
};

/// Taint of a cordoned node.
pub(super) const CORDON: &str = "node.kubernetes.io/unschedulable";

/// Returns the required node selector of an affinity.
pub(super) fn required(affinity: Option<&Affinity>) -> Option<&NodeSelector> {
    let node = affinity?.node_affinity.as_ref()?;
    node.required_during_scheduling_ignored_during_execution.as_ref()
}

/// Returns whether a node with this name and these labels matches a required node affinity.
pub(super) fn admits(selector: &NodeSelector, name: &str, labels: &BTreeMap<String, String>) -> bool {
    selector
        .node_selector_terms
        .iter()
        .any(|term| meets_term(term, name, labels))
}

fn meets_term(term: &NodeSelectorTerm, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    // An empty term matches nothing.
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    expressions
        .iter()
        .all(|expression| meets(expression, labels.get(&expression.key).map(String::as_str)))
        && fields
            .iter()
            .all(|field| meets(field, (field.key == "metadata.name").then_some(name)))
}

/// Returns whether a value, or its absence, matches one expression.
pub(super) fn meets(expression: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = expression.values.as_deref().unwrap_or_default();
    let among = |value: &str| values.iter().any(|other| other == value);
    let compared = |greater: bool| {
        let number = |text: &str| text.parse::<i64>().ok();
        let (Some(have), Some(than)) = (value.and_then(number), values.first().and_then(|text| number(text))) else {
            return false;
        };
        if greater { have > than } else { have < than }
    };
    match expression.operator.as_str() {
        "In" => value.is_some_and(among),
        "NotIn" => !value.is_some_and(among),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared(true),
        "Lt" => compared(false),
        _ => false,
    }
}

/// Returns whether the scheduler itself keeps pods with these tolerations off a node: because of a taint, or because
/// the node is cordoned.
pub fn keeps_off(node: &Node, tolerations: &[Toleration]) -> bool {
    let Some(spec) = &node.spec else { return false };
    let taints = spec.taints.as_deref().unwrap_or_default();
    let cordoned = spec.unschedulable == Some(true) && !tolerated(&cordon(), tolerations);
    cordoned || in_the_way(taints, tolerations).next().is_some()
}

/// Returns the taint that corresponds to a cordon, and that a cordoned node soon has.
pub(super) fn cordon() -> Taint {
    Taint {
        key: CORDON.into(),
        effect: "NoSchedule".into(),
        ..Taint::default()
    }
}

/// Yields the taints that keep a pod with these tolerations off a node.
pub(super) fn in_the_way<'a>(taints: &'a [Taint], tolerations: &[Toleration]) -> impl Iterator<Item = &'a Taint> {
    taints
        .iter()
        .filter(|taint| ["NoSchedule", "NoExecute"].contains(&taint.effect.as_str()))
        .filter(|taint| !tolerated(taint, tolerations))
}

/// Returns whether one of these tolerations tolerates this taint.
pub(super) fn tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    tolerations.iter().any(|toleration| tolerates(toleration, taint))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    let key = toleration.key.as_deref().unwrap_or_default();
    if !key.is_empty() && key != taint.key {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "Exists" => true,
        "" | "Equal" => toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default(),
        _ => false,
    }
}
