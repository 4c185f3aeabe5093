//! Predicts the effects of draining nodes on all of their guests and pods together. Nothing is written to the cluster.
//!
//! ```text
//!  nodes to be drained ─▶ cordoned in a copy ─▶ their guests, packed together onto the others ─▶ moves, stops, blocks
//!                                            └▶ their other pods, and the PodDisruptionBudgets ─▶ leave, wait
//! ```

#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
mod remedy;
mod render;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use drydock_api::{
    hypervisor::{RemainingGuest, RemainingState},
    kubevirt::VirtualMachineInstance,
};
use drydock_core::{
    drain::{
        DrainInput, DrainedGuest, DrainingNode, NodeMarks, competing,
        guest_steps::memory,
        preview::{Forecast, forecast},
    },
    eviction::{self, is_launcher},
    maintenance::{
        pod_pdbs::blocker,
        pods::{PodVerdict, verdict},
    },
    migration::deadlines::Attempts,
    placement::{DepartingGuest, DepartureOutlook, NodeView, name_of, pack},
    pod_state::created_at,
    pod_state::is_final,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::Serialize;

pub use remedy::Remedy;
pub(crate) use render::held_by_budget;
pub use render::text;

use crate::snapshot::{ClusterObjects, Snapshot, UnreadKind, is_of};

/// The effects of draining nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainPlan {
    /// Time at which the objects were read.
    pub at: Timestamp,
    /// Plans of the nodes, in the order of the request.
    pub nodes: Vec<NodePlan>,
    /// Free resources of the other nodes.
    pub room: Room,
    /// Kinds of objects that were not considered.
    pub unread: Vec<UnreadKind>,
}

/// The effects of draining on one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePlan {
    /// Name of the node.
    pub name: String,
    /// Guests that stay until a user intervenes.
    pub blocks: Vec<GuestPlan>,
    /// Guests that are shut down.
    pub stops: Vec<GuestPlan>,
    /// Guests that move.
    pub moves: Vec<GuestPlan>,
    /// Estimated time at which the last of the moving guests has left.
    pub end: Option<Timestamp>,
    /// Number of guests that leave the node at the same time.
    pub parallel: u64,
    /// Number of pods without guests that leave.
    pub pods_leaving: usize,
    /// Pods that wait for their PodDisruptionBudget.
    pub pods_waiting: Vec<PodPlan>,
}

/// The effect of a drain on a guest.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GuestPlan {
    /// Namespace of the instance.
    pub namespace: String,
    /// Name of the instance.
    pub name: String,
    /// Memory of the guest in bytes.
    pub memory_bytes: u64,
    /// Reason of the effect, in one CamelCase word.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
    /// A node that has room for the guest.
    pub target: Option<String>,
    /// Remedy, if the guest blocks the drain.
    pub remedy: Option<Remedy>,
}

/// A pod that waits for its PodDisruptionBudget.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodPlan {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Name of the PodDisruptionBudget that allows the fewest disruptions.
    pub budget: String,
    /// Number of pods of the budget that are ready.
    pub ready: i32,
    /// Number of pods of the budget that must be ready.
    pub required: i32,
}

/// Free memory of the nodes that are not drained, according to the requests of their pods.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Room {
    /// Number of nodes that are not drained and accept virtual machines.
    pub nodes: usize,
    /// Free bytes on all of these nodes once the guests have moved.
    pub free_bytes: u64,
    /// Bytes that are missing if the node whose guests need the most fails as well; 0 if there is enough memory.
    pub missing_bytes: u64,
    /// Name of the node whose failure is assumed, if memory would be missing.
    pub lost: Option<String>,
}

/// Error: no node has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSuchNode(pub String);

/// The result of a plan, for exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdicts {
    /// All guests would move, and all pods would leave.
    AllMove,
    /// Nothing would block, and at least one guest would be shut down.
    SomeStop,
    /// At least one guest or pod would block.
    SomeBlock,
}

impl DrainPlan {
    /// Returns the result of the plan.
    pub fn verdict(&self) -> Verdicts {
        let any = |list: fn(&NodePlan) -> bool| self.nodes.iter().any(list);
        if any(|node| !node.blocks.is_empty() || !node.pods_waiting.is_empty()) {
            Verdicts::SomeBlock
        } else if any(|node| !node.stops.is_empty()) {
            Verdicts::SomeStop
        } else {
            Verdicts::AllMove
        }
    }
}

/// Returns the effects of draining these nodes together.
///
/// # Errors
/// If one of the nodes does not exist.
pub fn plan(snapshot: &Snapshot, names: &[String]) -> Result<DrainPlan, NoSuchNode> {
    if let Some(unknown) = names.iter().find(|name| !snapshot.has_node(name)) {
        return Err(NoSuchNode(unknown.clone()));
    }
    Ok(plan_in(&ClusterObjects::of(snapshot), names))
}

/// Returns the effects of draining these nodes together. All of them have to exist.
pub(crate) fn plan_in(world: &ClusterObjects<'_>, names: &[String]) -> DrainPlan {
    let snapshot = world.snapshot;
    let is_named = |node: &Arc<Node>| node.metadata.name.as_ref().is_some_and(|name| names.contains(name));
    let mut after = snapshot.nodes.clone();
    for node in after.iter_mut().filter(|node| is_named(node)) {
        Arc::make_mut(node).spec.get_or_insert_default().unschedulable = Some(true);
    }
    let views = world.views(&snapshot.nodes);
    let open = world.views(&after);
    let mut drained: Vec<DrainingNode<'_>> = names
        .iter()
        .map(|name| DrainingNode {
            name,
            marks: NodeMarks::default(),
            guests: guests(world, name),
            arriving: 0,
            evictable: None,
            before: None,
        })
        .collect();
    let outlooks = outlooks(world, &drained, &views, &open);
    for guest in drained.iter_mut().flat_map(|node| &mut node.guests) {
        guest.outlook = outlooks.get(&key(guest.instance)).cloned().unwrap_or_default();
    }
    let cluster = DrainInput {
        now: snapshot.at,
        nodes: &[],
        limits: &world.configuration.migrations,
        attempts: Attempts::default(),
        rate: world.rate,
    };
    let nodes: Vec<NodePlan> = drained.iter().map(|node| node_plan(world, node, &cluster)).collect();
    DrainPlan {
        at: snapshot.at,
        room: room(&open, &nodes, world),
        nodes,
        unread: snapshot.unread.clone(),
    }
}

fn key(instance: &VirtualMachineInstance) -> (String, String) {
    let metadata = &instance.metadata;
    (
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

/// Returns the guests on a node.
fn guests<'a>(world: &ClusterObjects<'a>, node: &str) -> Vec<DrainedGuest<'a>> {
    let instances = world.snapshot.instances.iter();
    let here = instances.filter(|instance| {
        let status = instance.status.as_ref();
        status.and_then(|status| status.node_name.as_deref()) == Some(node)
    });
    here.map(|instance| {
        let pods = world.pods_of(instance);
        let of = |migration: &&Arc<_>| is_of(migration, instance);
        let is_here = |pod: &&&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
        DrainedGuest {
            instance,
            strategy: world.strategy(instance),
            made: pods.iter().filter_map(|pod| created_at(pod)).min(),
            migrations: world.snapshot.migrations.iter().filter(of).cloned().collect(),
            refused: None,
            outlook: DepartureOutlook::Unknown,
            circumstances: None,
            held_by: pods.iter().filter(is_here).find_map(|pod| held_by(world, pod)),
        }
    })
    .collect()
}

/// Returns the name of a PodDisruptionBudget that does not belong to Drydock and allows no eviction of the guest's pod.
fn held_by(world: &ClusterObjects<'_>, pod: &Pod) -> Option<String> {
    let budgets = world.snapshot.budgets.iter();
    let mut holding = budgets.filter(|budget| eviction::own_pdb::is_holding(budget, pod));
    holding.next().and_then(|budget| budget.metadata.name.clone())
}

/// Assigns the guests of all drained nodes together to the nodes that are `open`. Returns the eventual outlook of each
/// guest.
fn outlooks(
    world: &ClusterObjects<'_>,
    drained: &[DrainingNode<'_>],
    views: &[NodeView<'_>],
    open: &[NodeView<'_>],
) -> BTreeMap<(String, String), DepartureOutlook> {
    let mut leaving = Vec::new();
    for guest in drained.iter().flat_map(|node| &node.guests) {
        let instance = guest.instance;
        let here = instance.node_name();
        let pods = world.pods_of(instance);
        let has_place = pods.iter().any(|pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            node.is_some() && node != here
        });
        let Some(competing) = competing(guest, has_place) else {
            continue;
        };
        let source = views.iter().find(|view| Some(view.name) == here).cloned();
        leaving.push(DepartingGuest {
            instance,
            needs: world.requirements(instance, source.as_ref(), views),
            source,
            has_migration: competing.has_migration,
            failures: competing.failures,
            pods: pods.iter().map(|pod| name_of(&pod.metadata)).collect(),
            labels: world.next_labels(instance),
            excluded: Vec::new(),
        });
    }
    let packing = pack(&leaving, open, &|newcomer, moves| world.rules(newcomer, moves, open));
    let guests = leaving.iter().map(|guest| key(guest.instance));
    guests.zip(packing.eventual()).collect()
}

fn node_plan(world: &ClusterObjects<'_>, node: &DrainingNode<'_>, cluster: &DrainInput<'_>) -> NodePlan {
    let Forecast { guests, end } = forecast(node, cluster);
    let outlook = |instance: &VirtualMachineInstance| {
        let mut all = node.guests.iter();
        all.find(|guest| std::ptr::eq(guest.instance, instance))
            .map(|guest| &guest.outlook)
    };
    let mut plan = NodePlan {
        name: node.name.to_owned(),
        blocks: Vec::new(),
        stops: Vec::new(),
        moves: Vec::new(),
        end,
        parallel: cluster.limits.outbound_per_node.min(cluster.limits.per_cluster).into(),
        pods_leaving: 0,
        pods_waiting: Vec::new(),
    };
    for (instance, fate) in guests {
        let target = match outlook(instance) {
            Some(DepartureOutlook::Fits(node)) => Some(node.clone()),
            _ => None,
        };
        let list = match fate.state {
            RemainingState::Blocked => &mut plan.blocks,
            RemainingState::ShuttingDown => &mut plan.stops,
            RemainingState::Waiting | RemainingState::Moving | RemainingState::Unknown => &mut plan.moves,
        };
        list.push(guest_plan(instance, fate, target));
    }
    for list in [&mut plan.blocks, &mut plan.stops, &mut plan.moves] {
        list.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    }
    let pods = world.snapshot.pods.iter().filter(|pod| {
        let spec = pod.spec.as_ref();
        spec.and_then(|spec| spec.node_name.as_deref()) == Some(node.name) && !is_launcher(pod) && !is_final(pod)
    });
    for pod in pods.filter(|pod| verdict(pod, &|_, _| false) == PodVerdict::Leaves) {
        match waiting(world, pod) {
            Some(waits) => plan.pods_waiting.push(waits),
            None => plan.pods_leaving += 1,
        }
    }
    plan.pods_waiting
        .sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    plan
}

fn guest_plan(instance: &VirtualMachineInstance, fate: RemainingGuest, target: Option<String>) -> GuestPlan {
    let remedy = (fate.state == RemainingState::Blocked)
        .then(|| Remedy::of(&fate.reason, instance, &fate.namespace, &fate.name))
        .flatten();
    GuestPlan {
        memory_bytes: memory(instance),
        namespace: fate.namespace,
        name: fate.name,
        reason: fate.reason,
        message: fate.message,
        target,
        remedy,
    }
}

/// Returns the PodDisruptionBudget that a pod would wait for, if there is one.
fn waiting(world: &ClusterObjects<'_>, pod: &Pod) -> Option<PodPlan> {
    let budgets = &world.snapshot.budgets;
    let holds = budgets.iter().any(|budget| {
        let allowed = budget.status.as_ref().map_or(0, |status| status.disruptions_allowed);
        allowed == 0 && eviction::own_pdb::selects(budget, pod)
    });
    let budget = blocker(budgets, pod, "").filter(|_| holds)?;
    Some(PodPlan {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        budget: budget.name,
        ready: budget.current_healthy,
        required: budget.desired_healthy,
    })
}

/// Returns the free memory of the open nodes once the guests have moved, and whether it suffices if one more node
/// fails.
fn room(open: &[NodeView<'_>], nodes: &[NodePlan], world: &ClusterObjects<'_>) -> Room {
    // A node with a taint accepts only guests that tolerate it, and a node without an agent accepts none.
    let takes_guests = |view: &&NodeView<'_>| {
        let is_tainted = view.taints.iter().any(|taint| taint.effect != "PreferNoSchedule");
        !view.cordoned && view.facts.is_some() && !is_tainted
    };
    let usable: Vec<&NodeView<'_>> = open.iter().filter(takes_guests).collect();
    let free = |view: &NodeView<'_>| {
        let all = view.allocatable.and_then(|all| all.get("memory"));
        let all = all
            .and_then(|amount| drydock_core::quantity::bytes(&amount.0))
            .unwrap_or(0);
        let taken = view.room.as_ref().map_or(0, |room| room.requested("memory", i32::MIN));
        all.saturating_sub(taken)
    };
    let moved: u64 = nodes
        .iter()
        .flat_map(|node| &node.moves)
        .map(|guest| guest.memory_bytes)
        .sum();
    let free_bytes = usable.iter().map(|view| free(view)).sum::<u64>().saturating_sub(moved);
    let arriving = |view: &NodeView<'_>| -> u64 {
        let moves = nodes.iter().flat_map(|node| &node.moves);
        let there = moves.filter(|guest| guest.target.as_deref() == Some(view.name));
        there.map(|guest| guest.memory_bytes).sum()
    };
    let present = |view: &NodeView<'_>| -> u64 {
        let instances = world.snapshot.instances.iter();
        let here = instances.filter(|instance| {
            let status = instance.status.as_ref();
            status.and_then(|status| status.node_name.as_deref()) == Some(view.name)
        });
        here.map(|instance| memory(instance)).sum()
    };
    let lost = usable.iter().map(|view| {
        let arriving = arriving(view);
        let elsewhere = free_bytes.saturating_sub(free(view).saturating_sub(arriving));
        ((present(view) + arriving).saturating_sub(elsewhere), view.name)
    });
    let (missing_bytes, lost) = lost.max().unwrap_or_default();
    Room {
        nodes: usable.len(),
        free_bytes,
        missing_bytes,
        lost: (missing_bytes > 0).then(|| lost.to_owned()),
    }
}
