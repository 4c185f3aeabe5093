//! Nodes where guests can have a CPU model, or the part of it that a guest needs.

use drydock_api::facts::Usable;

use super::{
    ARCHITECTURE, HOSTNAME, NodeView, Requirements, misfit::Misfit, model_key, nodes_by_name, offer::CpuOffer,
};
use crate::aliases;

/// Returns the misfit, with the missing features, if guests cannot have a model without its `disabled` features.
pub(super) fn lacks_part(name: &str, disabled: &[String], offer: &CpuOffer<'_>) -> Option<Misfit> {
    let there = offer.facts;
    let lack = |blockers: &[String]| offer.missing(blockers, disabled);
    let exact = |name: &str| there.models.iter().find(|model| model.name == name);
    // All names of a model are equally usable.
    let model = exact(name).or_else(|| aliases::names_of(name, &there.models).find_map(exact));
    let Some(model) = model else {
        return Some(Misfit::LacksModel(name.into(), Vec::new()));
    };
    if model.usable != Usable::No {
        return None;
    }
    let missing = lack(&model.blockers);
    let host = there
        .host_model
        .as_ref()
        .filter(|host| aliases::names_of(name, &there.models).any(|name| name == host.name));
    match host {
        _ if !missing.is_empty() => Some(offer.lack_of_model(name, missing)),
        _ if !model.blockers.is_empty() => None,
        // libvirt does not report why the model is unusable; the host model is based on it without these features.
        Some(host) => {
            let missing = lack(&host.disabled);
            (!missing.is_empty()).then(|| offer.lack_of_model(name, missing))
        }
        None => Some(Misfit::LacksModel(name.into(), Vec::new())),
    }
}

/// Admits nodes that lack only those features of the model that the manifest disables.
///
/// The label of a model means that guests can have all of it, so a pod that selects on the label would never reach such
/// a node. If such a node exists, the pod does not select on the label. Instead it avoids, by name, the nodes that lack
/// more features according to their full sets. A node that is unknown, or that is added later, is not ruled out: its
/// libvirt refuses the guest and reports the missing features.
pub fn admit_partial_models<'a>(needs: &mut Requirements, nodes: impl IntoIterator<Item = NodeView<'a>>) {
    let Some(model) = needs.model.clone().filter(|_| !needs.disabled.is_empty()) else {
        return;
    };
    let key = model_key(&model);
    let architecture = needs.node_selector.get(ARCHITECTURE).cloned();
    let (mut lacking, mut partial) = (Vec::new(), false);
    for node in nodes {
        let Some(offer) = CpuOffer::of(&node, needs) else {
            continue;
        };
        let facts = offer.facts;
        if node.label(ARCHITECTURE) != architecture.as_deref() || needs.obsolete.covers(&model, &facts.models) {
            continue;
        }
        let whole = facts
            .models
            .iter()
            .any(|known| known.name == model && known.usable != Usable::No);
        match lacks_part(&model, &needs.disabled, &offer) {
            Some(_) => lacking.extend(node.label(HOSTNAME).map(str::to_owned)),
            None => partial |= !whole && node.label(&key).is_none(),
        }
    }
    if !partial {
        return;
    }
    needs.node_selector.remove(&key);
    if !lacking.is_empty() {
        needs.expressions.push(nodes_by_name("NotIn", lacking));
    }
}
