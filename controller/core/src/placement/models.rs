//! Nodes where guests can have a CPU model, or all of it that a guest asks for.

use drydock_api::facts::Usable;

use super::{ARCHITECTURE, HOSTNAME, NodeView, Requirements, misfit::Misfit, model_key, nodes_by_name, offer::Offer};
use crate::aliases;

/// That guests cannot have a model without its `disabled` features, with what is missing for it.
pub(super) fn lacks_part(name: &str, disabled: &[String], offer: &Offer<'_>) -> Option<Misfit> {
    let there = offer.facts;
    let lack = |blockers: &[String]| offer.missing(blockers, disabled);
    let exact = |name: &str| there.models.iter().find(|model| model.name == name);
    // A model is as usable by each of its names.
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
        // libvirt does not say why the model is not usable; the host model is based on it without these.
        Some(host) => {
            let missing = lack(&host.disabled);
            (!missing.is_empty()).then(|| offer.lack_of_model(name, missing))
        }
        None => Some(Misfit::LacksModel(name.into(), Vec::new())),
    }
}

/// Admits nodes that lack of the model only what the manifest disables.
///
/// The label of a model says that guests can have the whole of it, so a pod that selects on it would
/// never reach such a node. Where there is one, the pod does not select on the label; it keeps off the
/// nodes instead, by their names, of which the full sets say that they lack more. A node that nothing is
/// known of, or that comes later, is not ruled out: libvirt refuses there, and says what is missing.
pub fn admit_partial_models<'a>(needs: &mut Requirements, nodes: impl IntoIterator<Item = NodeView<'a>>) {
    let Some(model) = needs.model.clone().filter(|_| !needs.disabled.is_empty()) else {
        return;
    };
    let key = model_key(&model);
    let architecture = needs.node_selector.get(ARCHITECTURE).cloned();
    let (mut lacking, mut partial) = (Vec::new(), false);
    for node in nodes {
        let Some(offer) = Offer::of(&node, needs) else { continue };
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
