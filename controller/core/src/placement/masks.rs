//! Nodes whose masks do not affect a running guest, because its own node masks the same features.

use drydock_api::labels::{CPU_FEATURE, CPU_MINIMUM};

use super::{
    ARCHITECTURE, HOSTNAME, NodeView, Requirements, fit::lacks_model, misfit::Misfit, model_key, nodes_by_name,
    offer::CpuOffer,
};

/// Lifts, on all nodes, the masked features of the guest's own node: the guest may use them on other nodes too, if
/// their hardware has them.
pub fn lift_masks(needs: &mut Requirements, source: &NodeView<'_>) {
    needs.lifted = source.masked.iter().cloned().collect();
}

/// Admits nodes that have the CPU features of a running guest and mask them just as its own node, `source`, does.
///
/// The labels describe what new guests can have, so a pod that selects on them would never reach such a node. If such a
/// node exists, the pod does not select on the label. Instead it avoids, by name, the nodes that lack the feature
/// according to their full sets. A node that is unknown, or that is added later, is not ruled out: its agent refuses
/// the guest.
pub fn admit_masked<'a>(
    needs: &mut Requirements,
    source: &NodeView<'_>,
    nodes: impl IntoIterator<Item = NodeView<'a>> + Clone,
) {
    if needs.lifted.is_empty() {
        return;
    }
    let admitting: Vec<NodeView<'a>> = nodes
        .clone()
        .into_iter()
        .filter(|node| node.name != source.name)
        .filter(|node| CpuOffer::of(node, needs).is_some_and(|offer| offer.admitted().next().is_some()))
        .collect();
    if admitting.is_empty() {
        return;
    }
    let admits = |key: &String| {
        admitting.iter().any(|node| {
            let has = CpuOffer::of(node, needs).is_some_and(|offer| lack(needs, key, &offer).is_none());
            has && node.label(key).is_none()
        })
    };
    let keys: Vec<String> = needs
        .node_selector
        .keys()
        .filter(|key| is_of_cpu(needs, key) && admits(key))
        .cloned()
        .collect();
    if keys.is_empty() {
        return;
    }
    let mut lacking = Vec::new();
    for node in nodes {
        let Some(offer) = CpuOffer::of(&node, needs) else {
            continue;
        };
        let is_alike = node.label(ARCHITECTURE) == needs.node_selector.get(ARCHITECTURE).map(String::as_str);
        if is_alike && node.name != source.name && keys.iter().any(|key| lack(needs, key, &offer).is_some()) {
            lacking.extend(node.label(HOSTNAME).map(str::to_owned));
        }
    }
    needs.node_selector.retain(|key, _| !keys.contains(key));
    if !lacking.is_empty() {
        needs.expressions.push(nodes_by_name("NotIn", lacking));
    }
}

/// Returns whether a label describes a CPU property that guests can have, so that masks affect it.
fn is_of_cpu(needs: &Requirements, key: &str) -> bool {
    let is_model = needs.model.as_ref().is_some_and(|model| key == model_key(model));
    is_model || key.starts_with(CPU_FEATURE) || key.starts_with(CPU_MINIMUM)
}

/// Returns the misfit if the guest cannot have the CPU property that a label describes.
fn lack(needs: &Requirements, key: &str, offer: &CpuOffer<'_>) -> Option<Misfit> {
    if let Some(feature) = key.strip_prefix(CPU_FEATURE) {
        return offer.lack(feature);
    }
    if let Some(model) = key.strip_prefix(CPU_MINIMUM) {
        return offer.lack_of_minimum(model, &needs.minimum);
    }
    let model = needs.model.as_ref()?;
    if needs.obsolete.covers(model, &offer.facts.models) {
        return Some(Misfit::ObsoleteModel(model.clone()));
    }
    lacks_model(needs, model, offer)
}
