//! A launcher pod's required node affinity.
//!
//! A kubelet admits the pods of its node again when it restarts, and ends each pod whose node selector or required
//! node affinity the Node's labels no longer match. Labels change while a guest runs: an agent is removed, a mask, an
//! obsolete model or the minimum CPU model changes, an administrator relabels the node. A bound pod must not require
//! anything that can change. So a launcher pod has no node selector, and the terms of its required node affinity,
//! which are alternatives, are these:
//!
//! ```text
//!   the manifest's terms (one if it has none),   decide where the pod is scheduled
//!   each with all selected and computed labels
//!   guest.node.drydock.dev/<launcher> exists     keeps it admitted where it is bound
//! ```
//!
//! The last term contains the pod's own ID, so no Node has that label while the pod is being scheduled: scheduling
//! works as it would without the term. The agent of the node that the pod is bound to sets the label
//! ([`guest_labels`](crate::guest_labels)) and removes it once the pod has ended; with the label the pod is admitted
//! even while neither agent nor controller runs.
//!
//! A kubelet also checks resources, host ports, the operating system and taints with effect `NoExecute`. None of
//! these depends on such labels, and a taint with that effect ends a pod without a restart of the kubelet too.

use drydock_api::{kubevirt::VirtualMachineInstanceSpec, labels::GUEST};
use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec,
};
use serde_json::json;

use super::{names::stable_uuid, resources};
use crate::placement::requirements::Requirements;

/// Annotation of a launcher pod: digest of its requirements on a node, according to its instance and the configuration
/// when it was created.
pub const REQUIREMENTS_DIGEST: &str = "drydock.dev/requirements-digest";

/// Returns the manifest's affinity with all requirements on a node added to each of its ordinary terms.
pub(super) fn for_scheduling(own: Option<Affinity>, requirements: &Requirements) -> Option<Affinity> {
    let required = required_expressions(requirements);
    if required.is_empty() {
        return own;
    }
    let mut affinity = own.unwrap_or_default();
    let node = affinity.node_affinity.get_or_insert_with(NodeAffinity::default);
    match &mut node.required_during_scheduling_ignored_during_execution {
        Some(selector) => {
            let terms = selector.node_selector_terms.iter_mut();
            // An empty term matches no node, and must not start to match some.
            for term in terms.filter(|term| !is_empty(term)) {
                term.match_expressions
                    .get_or_insert_default()
                    .extend(required.iter().cloned());
            }
        }
        none => {
            *none = Some(NodeSelector {
                node_selector_terms: vec![NodeSelectorTerm {
                    match_expressions: Some(required),
                    match_fields: None,
                }],
            });
        }
    }
    Some(affinity)
}

/// Adds the term that lets a pod be admitted again where it is bound. It comes last: all other requirements belong in
/// the ordinary terms.
pub(super) fn keep_admitted(spec: &mut PodSpec, launcher: &str) {
    let required = spec
        .affinity
        .as_mut()
        .and_then(|affinity| affinity.node_affinity.as_mut())
        .and_then(|node| node.required_during_scheduling_ignored_during_execution.as_mut());
    // A pod without requirements is admitted everywhere.
    if let Some(required) = required {
        required.node_selector_terms.push(NodeSelectorTerm {
            match_expressions: Some(vec![NodeSelectorRequirement {
                key: guest_label(launcher),
                operator: "Exists".into(),
                values: None,
            }]),
            match_fields: None,
        });
    }
}

/// Returns the key of the Node label for the pod with this launcher ID.
pub fn guest_label(launcher: &str) -> String {
    format!("{GUEST}{launcher}")
}

/// Returns whether a term has no requirement. Such a term matches no node (Kubernetes API, `NodeSelectorTerm`).
pub(super) fn is_empty(term: &NodeSelectorTerm) -> bool {
    term.match_expressions.as_ref().is_none_or(Vec::is_empty) && term.match_fields.as_ref().is_none_or(Vec::is_empty)
}

/// Returns the digest of the requirements that a pod of this instance would have on a node: its ordinary terms and its
/// resources. The same input gives the same digest; fields that the API server fills in are not part of it.
pub fn requirements_digest(spec: &VirtualMachineInstanceSpec, requirements: &Requirements, emulation: bool) -> String {
    let affinity = for_scheduling(spec.affinity.clone(), requirements);
    let required = affinity
        .and_then(|affinity| affinity.node_affinity)
        .and_then(|node| node.required_during_scheduling_ignored_during_execution);
    let all = json!({"required": required, "resources": resources::of(spec, emulation)});
    stable_uuid(&["requirements", &all.to_string()])
}

/// Returns the selected labels, by key, then the computed ones.
fn required_expressions(requirements: &Requirements) -> Vec<NodeSelectorRequirement> {
    let selected = requirements
        .node_selector
        .iter()
        .map(|(key, value)| NodeSelectorRequirement {
            key: key.clone(),
            operator: "In".into(),
            values: Some(vec![value.clone()]),
        });
    selected.chain(requirements.expressions.iter().cloned()).collect()
}
