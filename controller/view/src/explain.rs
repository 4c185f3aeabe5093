//! Explains whether a virtual machine can be migrated, and the effect of a drain of its node.

pub mod explained_migration;
pub mod explained_node;
pub mod model;

use drydock_api::kubevirt::{Phase, VirtualMachineInstance, names::conditions as types};
use drydock_core::{
    placement::{Misfit, Newcomer, NodeView, PodMoves, target_misfits},
    vm_conditions::find,
};
use serde::Serialize;

use crate::{
    plan::{GuestPlan, plan_in},
    snapshot::{ClusterObjects, Snapshot, UnreadKind},
    text::{beside, bytes},
};

/// Column at which messages begin.
const MESSAGE: usize = 16;

/// The explanation of an instance.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceExplanation {
    /// Namespace of the instance.
    pub namespace: String,
    /// Name of the instance.
    pub name: String,
    /// Phase of the instance.
    pub phase: Phase,
    /// Node that the instance is on.
    pub node: Option<String>,
    /// Whether the instance can be migrated, with the reason.
    pub migratable: Migratability,
    /// Effect of a drain of the instance's node.
    pub drain: Option<DrainEffect>,
    /// All other nodes, possible targets first. Empty if the requirements of the guest are not known.
    pub nodes: Vec<NodeFit>,
    /// Kinds of objects that were not considered.
    pub unread: Vec<UnreadKind>,
}

/// Whether an instance can be migrated.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Migratability {
    /// Whether the instance can be migrated; `None` if it is not known yet.
    pub holds: Option<bool>,
    /// Human-readable reason.
    pub message: String,
}

/// The effect of a drain of its node on an instance.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainEffect {
    /// Outcome of the drain: `moves`, `stops` or `blocks`.
    pub outcome: &'static str,
    /// Details of the effect on the guest.
    pub guest: GuestPlan,
}

/// Whether a node could run an instance.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeFit {
    /// Name of the node.
    pub name: String,
    /// Reasons why the node could not run the instance, each the predicate of a sentence about the node. Empty if it
    /// could.
    pub reasons: Vec<String>,
}

/// Returns the explanation of an instance. Returns `None` if no instance has this name.
pub fn explain(snapshot: &Snapshot, namespace: &str, name: &str) -> Option<InstanceExplanation> {
    let mut instances = snapshot.instances.iter();
    let instance = instances.find(|instance| {
        let metadata = &instance.metadata;
        metadata.namespace.as_deref() == Some(namespace) && metadata.name.as_deref() == Some(name)
    })?;
    let world = ClusterObjects::of(snapshot);
    let status = instance.status.clone().unwrap_or_default();
    Some(InstanceExplanation {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        phase: status.phase.unwrap_or_default(),
        migratable: migratable(instance),
        drain: status
            .node_name
            .as_deref()
            .filter(|node| snapshot.has_node(node))
            .and_then(|node| drain(&world, node, instance)),
        nodes: nodes(&world, instance, &world.views(&snapshot.nodes)),
        node: status.node_name,
        unread: snapshot.unread.clone(),
    })
}

fn migratable(instance: &VirtualMachineInstance) -> Migratability {
    let status = instance.status.as_ref();
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let Some(condition) = find(conditions, types::LIVE_MIGRATABLE) else {
        return Migratability {
            holds: None,
            message: "the condition LiveMigratable is not reported yet".into(),
        };
    };
    let reason = condition.reason.clone().unwrap_or_default();
    let message = condition.message.clone().unwrap_or_default();
    Migratability {
        holds: Some(condition.status == "True"),
        message: match (reason.is_empty(), message.is_empty()) {
            (true, _) => message,
            (false, true) => reason,
            (false, false) => format!("{message} ({reason})"),
        },
    }
}

/// Returns the effect on an instance of a drain of its node alone.
fn drain(world: &ClusterObjects<'_>, node: &str, instance: &VirtualMachineInstance) -> Option<DrainEffect> {
    let plan = plan_in(world, &[node.to_owned()]).nodes.into_iter().next()?;
    let metadata = &instance.metadata;
    let lists = [("moves", plan.moves), ("stops", plan.stops), ("blocks", plan.blocks)];
    lists.into_iter().find_map(|(outcome, guests)| {
        let guest = guests.into_iter().find(|guest| {
            Some(&guest.namespace) == metadata.namespace.as_ref() && Some(&guest.name) == metadata.name.as_ref()
        })?;
        Some(DrainEffect { outcome, guest })
    })
}

/// Returns all other nodes, each with everything that prevents the instance from moving to it.
pub(crate) fn nodes(
    world: &ClusterObjects<'_>,
    instance: &VirtualMachineInstance,
    views: &[NodeView<'_>],
) -> Vec<NodeFit> {
    let here = instance.node_name();
    let source = views.iter().find(|view| Some(view.name) == here);
    let needs = world.requirements(instance, source, views);
    let labels = world.next_labels(instance);
    let newcomer = Newcomer {
        namespace: instance.metadata.namespace.as_deref().unwrap_or_default(),
        labels: &labels,
        spec: &instance.spec,
        needs: &needs,
        excluded: &[],
    };
    let rules = world.rules(&newcomer, &PodMoves::default(), views);
    let found = target_misfits(instance, &needs, source, &rules, views).unwrap_or_default();
    let mut fits: Vec<NodeFit> = found
        .into_iter()
        .map(|(name, misfits)| NodeFit {
            name: name.to_owned(),
            reasons: misfits.iter().map(Misfit::of_node).collect(),
        })
        .collect();
    fits.sort_by(|one, other| (one.reasons.len(), &one.name).cmp(&(other.reasons.len(), &other.name)));
    fits
}

impl InstanceExplanation {
    /// Keeps only the entry of this node. If there is none, the entry is created with a reason.
    pub fn keep(&mut self, node: &str) {
        self.nodes.retain(|other| other.name == node);
        if self.nodes.is_empty() {
            let is_here = self.node.as_deref() == Some(node);
            let reason = if is_here {
                "is the current node of the guest"
            } else {
                "cannot be evaluated: the CPU of the guest is not known yet"
            };
            self.nodes.push(NodeFit {
                name: node.to_owned(),
                reasons: vec![reason.into()],
            });
        }
    }

    /// Returns the explanation as text for a terminal with this width.
    pub fn text(&self, width: usize) -> String {
        let mut text = String::new();
        let place = match (&self.node, self.phase) {
            (Some(node), Phase::Running) => format!("runs on {node}"),
            (Some(node), phase) => format!("is {} on {node}", phase.as_str()),
            (None, phase) => format!("is {}", phase.as_str()),
        };
        line(&mut text, &format!("{}/{}", self.namespace, self.name), &place, width);
        let holds = match self.migratable.holds {
            Some(true) => "yes",
            Some(false) => "no",
            None => "not known",
        };
        let why = if self.migratable.message.is_empty() {
            holds.to_owned()
        } else {
            format!("{holds}: {}", self.migratable.message)
        };
        line(&mut text, "migratable", &why, width);
        if let Some(DrainEffect { outcome, guest }) = &self.drain {
            let what = match (*outcome, &guest.target) {
                ("moves", Some(target)) => {
                    let memory = bytes(guest.memory_bytes);
                    format!("migrates the guest ({memory}), for example to {target}")
                }
                ("moves", None) => format!("migrates the guest: {}", guest.message),
                ("stops", _) => format!("shuts the guest down: {}", guest.message),
                _ => format!("is blocked: {}", guest.message),
            };
            line(&mut text, "a drain", &what, width);
            if let Some(remedy) = &guest.remedy {
                remedy.append(&mut text, MESSAGE, width);
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let label = match (index, self.nodes.len()) {
                (0, 1) => "node",
                (0, _) => "other nodes",
                _ => "",
            };
            let fits = if node.reasons.is_empty() {
                format!("{} can run the guest", node.name)
            } else {
                format!("{} {}", node.name, node.reasons.join("; "))
            };
            line(&mut text, label, &fits, width);
        }
        if !self.unread.is_empty() {
            line(&mut text, "not considered", &UnreadKind::list(&self.unread), width);
        }
        text
    }
}

fn line(text: &mut String, label: &str, message: &str, width: usize) {
    beside(text, label, message, MESSAGE, width);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::plan::fixture::cluster;

    #[test]
    fn moving_guest_names_the_possible_target_nodes() {
        let mut snapshot = cluster();
        Arc::make_mut(&mut snapshot.nodes[2])
            .spec
            .get_or_insert_default()
            .unschedulable = Some(true);
        let found = explain(&snapshot, "shop", "web").unwrap();
        assert_eq!(
            (found.migratable.holds, found.drain.as_ref().unwrap().outcome),
            (Some(true), "moves")
        );
        let names: Vec<_> = found.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["b", "c"]);
        assert_eq!(found.nodes[1].reasons, ["is unschedulable"]);
        insta::assert_snapshot!(found.text(80));
    }

    #[test]
    fn one_node_can_be_explained_alone() {
        let line = |node: &str| {
            let mut found = explain(&cluster(), "shop", "web").unwrap();
            found.keep(node);
            found.text(80).lines().last().unwrap().to_owned()
        };
        assert_eq!(line("b"), "node            b can run the guest");
        assert_eq!(line("a"), "node            a is the current node of the guest");
    }

    #[test]
    fn blocking_guest_has_a_reason_and_a_remedy() {
        let found = explain(&cluster(), "shop", "cache").unwrap();
        assert_eq!(
            (found.migratable.holds, found.drain.as_ref().unwrap().outcome),
            (Some(false), "blocks")
        );
        insta::assert_snapshot!(found.text(60));
    }

    #[test]
    fn guest_of_which_nothing_is_reported_is_not_known() {
        let mut snapshot = cluster();
        let instance = Arc::make_mut(&mut snapshot.instances[0]);
        instance.status = None;
        let name = instance.metadata.name.clone().unwrap();
        let found = explain(&snapshot, "shop", &name).unwrap();
        assert_eq!(
            (found.migratable.holds, &found.drain, found.nodes.len()),
            (None, &None, 0)
        );
        assert_eq!(
            found.text(80),
            "shop/web        is Pending\nmigratable      not known: the condition LiveMigratable is not reported yet\n"
        );
    }

    #[test]
    fn instance_that_does_not_exist_has_no_explanation() {
        assert_eq!(explain(&cluster(), "shop", "nothing"), None);
        assert_eq!(explain(&cluster(), "other", "web"), None);
    }
}
