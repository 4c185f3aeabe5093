//! Explains on which nodes guests can have a CPU model, and which features the other nodes lack.

use drydock_api::facts::Usable;
use drydock_core::{explain::explain, node::policy};
use serde::Serialize;

use crate::{
    snapshot::{ClusterObjects, Snapshot, UnreadKind},
    text::beside,
};

/// Column at which messages begin.
const MESSAGE: usize = 16;

/// The explanation of a CPU model.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelExplanation {
    /// Name of the model.
    pub model: String,
    /// Whether the model is on the list of obsolete models. No node has a label for an obsolete model.
    pub obsolete: bool,
    /// Names that are similar to the model, if no node knows it.
    pub similar: Vec<String>,
    /// All nodes, those first whose guests can have the model.
    pub nodes: Vec<ModelOnNode>,
    /// Kinds of objects that were not considered.
    pub unread: Vec<UnreadKind>,
}

/// Whether guests on a node can have a CPU model.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelOnNode {
    /// Name of the node.
    pub name: String,
    /// Whether guests on the node can have the model; `None` if that is not known.
    pub usable: Option<bool>,
    /// Features that the model needs and guests on the node cannot have.
    pub missing: Vec<String>,
    /// Missing features that the processor has, but that the node's mask withholds.
    pub masked: Vec<String>,
    /// Whether the node has the label of the model, which pods select on.
    pub labelled: bool,
    /// Human-readable message.
    pub message: String,
}

/// Returns the explanation of a CPU model for all nodes.
pub fn model(snapshot: &Snapshot, model: &str) -> ModelExplanation {
    let world = ClusterObjects::of(snapshot);
    let policy = policy(&world.configuration, world.minimum(), false);
    let (mut nodes, mut similar, mut obsolete, mut is_known) = (Vec::new(), Vec::new(), false, false);
    for view in world.views(&snapshot.nodes) {
        let mut node = ModelOnNode {
            name: view.name.to_owned(),
            usable: None,
            missing: Vec::new(),
            masked: Vec::new(),
            labelled: false,
            message: String::new(),
        };
        let facts = view.facts.filter(|facts| facts.virtualization.is_some());
        let Some(facts) = facts else {
            node.message = "the CPU of the node is not known: no agent has reported it".into();
            nodes.push(node);
            continue;
        };
        let found = explain(facts, &policy, model);
        similar.extend(found.similar);
        let withheld = facts.virtualization.iter().flat_map(|all| &all.withheld);
        if let Some(known) = found.known {
            is_known = true;
            obsolete |= known.obsolete;
            node.usable = Some(known.usable != Usable::No);
            let is_missing = |feature: &&String| known.missing.contains(*feature);
            node.masked = withheld.filter(is_missing).cloned().collect();
            node.missing = known.missing;
            let has = |key: &String| view.labels.is_some_and(|labels| labels.contains_key(key));
            node.labelled = known.labels.iter().any(has);
        } else {
            node.usable = Some(false);
        }
        node.message = sentence(&node, is_known, obsolete);
        nodes.push(node);
    }
    nodes.sort_by_key(|node| match node.usable {
        Some(true) => 0,
        Some(false) => 1,
        None => 2,
    });
    similar.sort();
    similar.dedup();
    if is_known {
        similar.clear();
    }
    ModelExplanation {
        model: model.to_owned(),
        obsolete,
        similar,
        nodes,
        unread: snapshot.unread.clone(),
    }
}

/// Returns the message about one node.
fn sentence(node: &ModelOnNode, is_known: bool, obsolete: bool) -> String {
    match node.usable {
        Some(true) if node.labelled || obsolete => "guests can have this model".into(),
        Some(true) => "guests can have this model, but pods cannot select it: the node has no label for it".into(),
        Some(false) if !is_known => "libvirt on this node does not list this model".into(),
        Some(false) if node.missing.is_empty() => "guests cannot have this model; libvirt reports no reason".into(),
        _ => {
            let missing = node.missing.join(", ");
            let verb = if node.missing.len() == 1 { "is" } else { "are" };
            let masked = match node.masked.len() {
                0 => String::new(),
                all if all == node.missing.len() => "; the cause is the node's mask".to_owned(),
                _ => format!("; the node's mask withholds {}", node.masked.join(", ")),
            };
            format!("guests cannot have this model: {missing} {verb} missing{masked}")
        }
    }
}

impl ModelExplanation {
    /// Reduces the explanation to one node. Returns `None` if no node has this name.
    pub fn only(mut self, node: &str) -> Option<Self> {
        self.nodes.retain(|other| other.name == node);
        (!self.nodes.is_empty()).then_some(self)
    }

    /// Returns the explanation as text for a terminal with this width.
    pub fn text(&self, width: usize) -> String {
        let mut text = String::new();
        let usable = self.nodes.iter().filter(|node| node.usable == Some(true)).count();
        let mut head = format!("guests can have this model on {usable} of {} nodes", self.nodes.len());
        if !self.similar.is_empty() {
            head = format!("no node has this model; did you mean {}?", self.similar.join(", "));
        }
        if self.obsolete {
            head.push_str(
                "; the model is obsolete, so no node has a label for it and no virtual machine can request it",
            );
        }
        beside(&mut text, &self.model, &head, MESSAGE, width);
        for node in &self.nodes {
            beside(&mut text, &node.name, &node.message, MESSAGE, width);
        }
        if !self.unread.is_empty() {
            beside(
                &mut text,
                "not considered",
                &UnreadKind::list(&self.unread),
                MESSAGE,
                width,
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use drydock_api::facts::CpuModel;

    use super::*;
    use crate::plan::fixture::cluster;

    /// Returns a cluster in which `b` lacks two features of a model and `c` has no agent. The mask of `b` withholds one
    /// of the two features.
    fn lacking() -> Snapshot {
        let mut snapshot = cluster();
        for (index, blockers) in [(0, &[][..]), (1, &["avx512f", "avx512bw"])] {
            let status = Arc::make_mut(&mut snapshot.hypervisors[index]).status.as_mut().unwrap();
            let facts = Arc::make_mut(status.facts.as_mut().unwrap());
            let virtualization = facts.virtualization.as_mut().unwrap();
            facts.architecture = "amd64".into();
            Arc::make_mut(&mut virtualization.models).push(CpuModel {
                name: "Skylake-Server".into(),
                usable: if blockers.is_empty() { Usable::Yes } else { Usable::No },
                blockers: blockers.iter().map(|&name| name.to_owned()).collect(),
                ..CpuModel::default()
            });
            if index == 1 {
                virtualization.withheld = vec!["avx512f".into()];
            }
        }
        snapshot.hypervisors.remove(2);
        snapshot
    }

    #[test]
    fn model_is_explained_on_each_node() {
        let found = model(&lacking(), "Skylake-Server");
        let nodes: Vec<_> = found
            .nodes
            .iter()
            .map(|node| (node.name.as_str(), node.usable, node.masked.len()))
            .collect();
        assert_eq!(nodes, [("a", Some(true), 0), ("b", Some(false), 1), ("c", None, 0)]);
        insta::assert_snapshot!(format!("{}\n{}", found.text(80), found.text(40)));
        assert_eq!(found.clone().only("b").unwrap().nodes.len(), 1);
        assert_eq!(found.only("z"), None);
    }

    #[test]
    fn unknown_model_has_similar_names() {
        let found = model(&lacking(), "Skylake");
        assert_eq!(found.similar, ["Skylake-Server"]);
        assert!(
            found
                .text(80)
                .starts_with("Skylake         no node has this model; did you mean Skylake-Server?\n")
        );
    }
}
