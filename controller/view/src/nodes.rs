//! The table of all nodes, with their availability, the number of their guests and the requested memory.

use std::collections::HashMap;

use drydock_api::{
    Hypervisor,
    hypervisor::{DrainStatus, RemainingState},
    kubevirt::Phase,
    reasons,
};
use drydock_core::{drain::NodeMarks, placement::NodeView, quantity};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, NodeCondition},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use serde::Serialize;

use crate::{
    listing::{Cell, Listing},
    snapshot::{ClusterObjects, Snapshot},
    text::{bytes, seconds},
};

/// The availability of a node for virtual machines. The first state whose condition holds applies.
///
/// | state | condition |
/// |---|---|
/// | `Unknown` | its kubelet is not ready, or the node is unreachable |
/// | `NotUsable` | its agent has not reported, or reports that it takes no guests |
/// | `Blocked` | it is being drained, and a guest stays until a user intervenes |
/// | `Empty` | it was drained, and nothing is left |
/// | `Emptying` | it is being drained |
/// | `Closed` | it is cordoned, and nothing moves |
/// | `Open` | otherwise |
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum NodeAvailability {
    /// New guests may start on the node.
    Open,
    /// The node is cordoned, and nothing moves.
    Closed,
    /// The node is being drained.
    Emptying,
    /// The node is being drained, and a guest stays until a user intervenes.
    Blocked,
    /// The node was drained, and nothing is left on it.
    Empty,
    /// The node does not accept guests.
    NotUsable,
    /// The kubelet of the node does not report.
    Unknown,
}

impl NodeAvailability {
    /// Returns the availability as a human-readable word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "Open",
            Self::Closed => "Closed",
            Self::Emptying => "Emptying",
            Self::Blocked => "Blocked",
            Self::Empty => "Empty",
            Self::NotUsable => "Not usable",
            Self::Unknown => "Unknown",
        }
    }
}

/// Row of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
    /// Name of the node.
    pub name: String,
    /// Availability of the node for virtual machines.
    pub state: NodeAvailability,
    /// Human-readable reason why the node is not open.
    pub why: Option<String>,
    /// Number of guests on the node.
    pub guests: usize,
    /// Number of guests that are moving away; `None` if the node is not being drained.
    pub moving: Option<u32>,
    /// Number of guests that wait for their migration; `None` if the node is not being drained.
    pub waiting: Option<u32>,
    /// Number of guests that are being shut down; `None` if the node is not being drained.
    pub shutting_down: Option<u32>,
    /// Number of guests that stay until a user intervenes; `None` if the node is not being drained.
    pub blocked: Option<u32>,
    /// Bytes of memory that pods on the node request.
    pub requested_bytes: u64,
    /// Bytes of memory that pods on the node can request.
    pub allocatable_bytes: u64,
    /// Estimated end of the node's drain.
    pub end: Option<Timestamp>,
    /// Time since which the node has been in this state; `None` if it is open or closed, or if that is not known.
    pub since: Option<Timestamp>,
    /// Whether a NodeMaintenance of the node exists.
    pub in_maintenance: bool,
    /// Failure domain of the node.
    pub zone: Option<String>,
    /// Version of the node's kernel.
    pub kernel: Option<String>,
}

/// Node label with the failure domain.
const ZONE: &str = "topology.kubernetes.io/zone";

/// Returns the rows of all nodes, sorted by name.
pub fn rows(snapshot: &Snapshot) -> Vec<NodeRow> {
    rows_in(&ClusterObjects::of(snapshot))
}

pub(crate) fn rows_in(world: &ClusterObjects<'_>) -> Vec<NodeRow> {
    let snapshot = world.snapshot;
    let mut guests: HashMap<&str, usize> = HashMap::new();
    for instance in &snapshot.instances {
        let Some(status) = &instance.status else { continue };
        if let Some(node) = status.node_name.as_deref()
            && !status.phase.is_some_and(Phase::is_final)
        {
            *guests.entry(node).or_default() += 1;
        }
    }
    let nodes: HashMap<&str, &Node> = snapshot
        .nodes
        .iter()
        .filter_map(|node| Some((node.metadata.name.as_deref()?, &**node)))
        .collect();
    let views = world.views(&snapshot.nodes);
    let rows = views.iter().filter_map(|view| {
        let guests = guests.get(view.name).copied().unwrap_or(0);
        Some(row(world, view, nodes.get(view.name)?, guests))
    });
    rows.collect()
}

/// Returns the row of one node. Returns `None` if no node has this name.
pub(crate) fn row_in(world: &ClusterObjects<'_>, name: &str) -> Option<NodeRow> {
    let nodes = world.snapshot.nodes.as_slice();
    let at = nodes
        .iter()
        .position(|node| node.metadata.name.as_deref() == Some(name))?;
    let view = world.views(&nodes[at..=at]).pop()?;
    Some(row(world, &view, &nodes[at], world.snapshot.guests_on(name).count()))
}

fn row(world: &ClusterObjects<'_>, view: &NodeView<'_>, node: &Node, guests: usize) -> NodeRow {
    let hypervisor = world.hypervisor(view.name);
    let last = hypervisor.and_then(|hypervisor| hypervisor.status.as_ref()?.drain.as_ref());
    let drain = last.filter(|drain| drain.finished_at.is_none());
    let memory = view.allocatable.and_then(|all| all.get("memory"));
    let state = state(node, hypervisor, drain, world);
    let label = |name: &str| node.metadata.labels.as_ref()?.get(name).cloned();
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    NodeRow {
        name: view.name.to_owned(),
        state,
        why: why(state, node, hypervisor, drain),
        guests,
        moving: drain.map(|drain| drain.moving),
        waiting: drain.map(|drain| drain.waiting),
        shutting_down: drain.map(|drain| drain.shutting_down),
        blocked: drain.map(|drain| drain.blocked),
        requested_bytes: view.room.as_ref().map_or(0, |room| room.requested("memory", i32::MIN)),
        allocatable_bytes: memory.and_then(|amount| quantity::bytes(&amount.0)).unwrap_or(0),
        end: drain.and_then(|drain| drain.estimated_end.as_ref()).map(|end| end.0),
        since: since(state, node, hypervisor, last),
        in_maintenance: world.snapshot.maintenances_of(view.name).next().is_some(),
        zone: label(ZONE),
        kernel: info
            .map(|info| info.kernel_version.clone())
            .filter(|kernel| !kernel.is_empty()),
    }
}

/// Returns the reason why a node is not open, in one sentence.
fn why(
    state: NodeAvailability,
    node: &Node,
    hypervisor: Option<&Hypervisor>,
    drain: Option<&DrainStatus>,
) -> Option<String> {
    match state {
        NodeAvailability::Open => None,
        NodeAvailability::Closed => Some("cordoned, but not being drained".into()),
        NodeAvailability::Emptying => Some(drain.map_or_else(|| "the drain is starting".into(), counts)),
        NodeAvailability::Blocked => {
            let drain = drain?;
            let mut remaining = drain.remaining.iter();
            let first = remaining.find(|guest| guest.state == RemainingState::Blocked);
            let first = first.map(|guest| format!("{}/{}: {}", guest.namespace, guest.name, guest.message));
            let more = match drain.blocked.saturating_sub(1) {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            Some(first.unwrap_or_else(|| format!("{} blocked", drain.blocked)) + &more)
        }
        NodeAvailability::Empty => Some("safe to switch off".into()),
        NodeAvailability::NotUsable => Some(match ready(hypervisor) {
            None if hypervisor.is_none() => "no agent has reported from this node".into(),
            None => "the agent has not reported yet".into(),
            Some(ready) if ready.message.is_empty() => ready.reason.clone(),
            Some(ready) => ready.message.clone(),
        }),
        NodeAvailability::Unknown => {
            let message = node_condition(node, "Ready").and_then(|ready| ready.message.clone());
            let message = message.filter(|message| !message.is_empty());
            let message = message.unwrap_or_else(|| "the kubelet does not report".into());
            Some(format!(
                "{}; guests may still be running",
                message.trim_end_matches('.')
            ))
        }
    }
}

/// Returns the number of guests in each state of a drain: `2 moving, 1 waiting`.
pub(crate) fn counts(drain: &DrainStatus) -> String {
    let parts: Vec<String> = [
        (drain.moving, "moving"),
        (drain.waiting, "waiting"),
        (drain.blocked, "blocked"),
        (drain.shutting_down, "shutting down"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect();
    if parts.is_empty() {
        "no virtual machine is left; other pods may remain".into()
    } else {
        parts.join(", ")
    }
}

fn since(
    state: NodeAvailability,
    node: &Node,
    hypervisor: Option<&Hypervisor>,
    drain: Option<&DrainStatus>,
) -> Option<Timestamp> {
    let changed = |type_| {
        let changed = node_condition(node, type_)?.last_transition_time.as_ref();
        changed.map(|changed| changed.0)
    };
    match state {
        NodeAvailability::Open | NodeAvailability::Closed => None,
        NodeAvailability::Emptying | NodeAvailability::Blocked => drain.map(|drain| drain.started_at.0),
        NodeAvailability::Empty => changed(reasons::node::DRAINED),
        NodeAvailability::NotUsable => ready(hypervisor).map(|ready| ready.last_transition_time.0),
        NodeAvailability::Unknown => changed("Ready"),
    }
}

fn node_condition<'a>(node: &'a Node, type_: &str) -> Option<&'a NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_)
}

fn ready(hypervisor: Option<&Hypervisor>) -> Option<&Condition> {
    let mut conditions = hypervisor?.status.as_ref()?.conditions.iter();
    conditions.find(|condition| condition.type_ == reasons::hypervisor::READY)
}

fn state(
    node: &Node,
    hypervisor: Option<&Hypervisor>,
    drain: Option<&DrainStatus>,
    world: &ClusterObjects<'_>,
) -> NodeAvailability {
    if node_condition(node, "Ready").is_some_and(|ready| ready.status != "True") {
        return NodeAvailability::Unknown;
    }
    if ready(hypervisor).is_none_or(|ready| ready.status != "True") {
        return NodeAvailability::NotUsable;
    }
    let marks = NodeMarks::of(node, &world.configuration.migrations.drain_taint_key);
    let is_drained = node_condition(node, reasons::node::DRAINED).is_some_and(|drained| drained.status == "True");
    match drain {
        Some(drain) if drain.blocked > 0 => NodeAvailability::Blocked,
        _ if is_drained => NodeAvailability::Empty,
        Some(_) => NodeAvailability::Emptying,
        None if marks.tainted || marks.in_maintenance => NodeAvailability::Emptying,
        None if marks.cordoned => NodeAvailability::Closed,
        None => NodeAvailability::Open,
    }
}

/// Returns the table of nodes; `now` is the current time.
pub fn listing(rows: &[NodeRow], now: Timestamp) -> Listing {
    let count = |count: Option<u32>| count.map_or_else(Cell::none, |count| Cell::number(count, count.to_string()));
    let cells = rows.iter().map(|row| {
        let span = |span: jiff::SignedDuration| u64::try_from(span.as_secs()).unwrap_or(0);
        let ends = row.end.map(|end| span(end.duration_since(now)));
        let since = row.since.map(|since| span(now.duration_since(since)));
        let memory = format!("{} of {}", bytes(row.requested_bytes), bytes(row.allocatable_bytes));
        vec![
            Cell::text(row.name.clone()),
            Cell::text(row.state.as_str()),
            Cell::number(row.guests as u64, row.guests.to_string()),
            count(row.moving),
            count(row.blocked),
            Cell::number(row.requested_bytes, memory),
            ends.map_or_else(Cell::none, |left| Cell::number(left, format!("in {}", seconds(left)))),
            since.map_or_else(Cell::none, |since| Cell::number(since, seconds(since))),
        ]
    });
    let columns = [
        "NODE", "STATE", "GUESTS", "MOVING", "BLOCKED", "MEMORY", "ENDS", "SINCE",
    ];
    Listing::new(&columns, cells.collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::plan::fixture::cluster;

    const NOW: &str = "2026-11-27T14:02:11Z";

    /// Returns a cluster in which the agents report that they are ready.
    fn usable() -> Snapshot {
        let mut snapshot = cluster();
        for hypervisor in &mut snapshot.hypervisors {
            let condition = json!({"type": "Ready", "status": "True", "reason": "", "message": "",
                "lastTransitionTime": NOW});
            let status = Arc::make_mut(hypervisor).status.as_mut().unwrap();
            status.conditions = vec![serde_json::from_value(condition).unwrap()];
        }
        snapshot
    }

    fn drain(blocked: u32) -> DrainStatus {
        serde_json::from_value(
            json!({"startedAt": NOW, "estimatedEnd": "2026-11-27T14:09:11Z", "total": 6, "left": 4,
            "moving": 2, "waiting": 1, "blocked": blocked, "shuttingDown": 0}),
        )
        .unwrap()
    }

    #[test]
    fn state_is_the_first_that_holds() {
        type Change = fn(&mut Snapshot);
        let cases: [(Change, NodeAvailability); 8] = [
            (|_| {}, NodeAvailability::Open),
            (
                |snapshot| {
                    Arc::make_mut(&mut snapshot.nodes[0])
                        .spec
                        .get_or_insert_default()
                        .unschedulable = Some(true);
                },
                NodeAvailability::Closed,
            ),
            (
                |snapshot| {
                    let taint = json!([{"key": "medik8s.io/drain", "effect": "NoSchedule"}]);
                    Arc::make_mut(&mut snapshot.nodes[0])
                        .spec
                        .get_or_insert_default()
                        .taints = serde_json::from_value(taint).unwrap();
                },
                NodeAvailability::Emptying,
            ),
            (
                |snapshot| {
                    Arc::make_mut(&mut snapshot.hypervisors[0])
                        .status
                        .as_mut()
                        .unwrap()
                        .drain = Some(drain(0));
                },
                NodeAvailability::Emptying,
            ),
            (
                |snapshot| {
                    Arc::make_mut(&mut snapshot.hypervisors[0])
                        .status
                        .as_mut()
                        .unwrap()
                        .drain = Some(drain(1));
                },
                NodeAvailability::Blocked,
            ),
            (
                |snapshot| {
                    let conditions = json!([{"type": "Drained", "status": "True"}]);
                    let status = Arc::make_mut(&mut snapshot.nodes[0]).status.get_or_insert_default();
                    status.conditions = serde_json::from_value(conditions).unwrap();
                },
                NodeAvailability::Empty,
            ),
            (
                |snapshot| {
                    Arc::make_mut(&mut snapshot.hypervisors[0])
                        .status
                        .as_mut()
                        .unwrap()
                        .conditions
                        .clear();
                },
                NodeAvailability::NotUsable,
            ),
            (
                |snapshot| {
                    let conditions = json!([{"type": "Ready", "status": "Unknown"}]);
                    let status = Arc::make_mut(&mut snapshot.nodes[0]).status.get_or_insert_default();
                    status.conditions = serde_json::from_value(conditions).unwrap();
                },
                NodeAvailability::Unknown,
            ),
        ];
        for (index, (change, expected)) in cases.into_iter().enumerate() {
            let mut snapshot = usable();
            change(&mut snapshot);
            assert_eq!(rows(&snapshot)[0].state, expected, "case {index}");
        }
    }

    #[test]
    fn reason_is_one_sentence_for_each_state() {
        type Change = fn(&mut Snapshot);
        let blocked = |count| {
            let mut drain = drain(count);
            drain.remaining = serde_json::from_value(json!([{"namespace": "shop", "name": "cache", "state": "Blocked",
                "reason": "NotMigratable", "message": "the guest cannot be migrated"}]))
            .unwrap();
            drain
        };
        let unknown: Change = |snapshot| {
            let conditions =
                json!([{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}]);
            let status = Arc::make_mut(&mut snapshot.nodes[0]).status.get_or_insert_default();
            status.conditions = serde_json::from_value(conditions).unwrap();
        };
        let closed: Change = |snapshot| {
            Arc::make_mut(&mut snapshot.nodes[0])
                .spec
                .get_or_insert_default()
                .unschedulable = Some(true);
        };
        for (change, expected) in [
            (closed, Some("cordoned, but not being drained")),
            (
                unknown,
                Some("Kubelet stopped posting node status; guests may still be running"),
            ),
            (
                |snapshot| drop(snapshot.hypervisors.remove(0)),
                Some("no agent has reported from this node"),
            ),
            (|_| {}, None),
        ] {
            let mut snapshot = usable();
            change(&mut snapshot);
            assert_eq!(rows(&snapshot)[0].why.as_deref(), expected);
        }
        for (drain, expected) in [
            (drain(0), "2 moving, 1 waiting"),
            (blocked(1), "shop/cache: the guest cannot be migrated"),
            (blocked(3), "shop/cache: the guest cannot be migrated (and 2 more)"),
        ] {
            let mut snapshot = usable();
            Arc::make_mut(&mut snapshot.hypervisors[0])
                .status
                .as_mut()
                .unwrap()
                .drain = Some(drain);
            let row = rows(&snapshot).remove(0);
            assert_eq!(
                (row.why.as_deref(), row.since),
                (Some(expected), Some(NOW.parse().unwrap()))
            );
        }
    }

    #[test]
    fn nodes_are_a_table() {
        let mut snapshot = usable();
        Arc::make_mut(&mut snapshot.hypervisors[0])
            .status
            .as_mut()
            .unwrap()
            .drain = Some(drain(1));
        snapshot.hypervisors.remove(2);
        assert_eq!(
            listing(&rows(&snapshot), NOW.parse().unwrap()).lines(),
            [
                "NODE  STATE       GUESTS  MOVING  BLOCKED  MEMORY            ENDS      SINCE",
                "a     Blocked     4       2       1        16 GiB of 64 GiB  in 7 min  0 s",
                "b     Open        1       -       -        4 GiB of 16 GiB   -         -",
                "c     Not usable  0       -       -        0 B of 16 GiB     -         -",
            ]
        );
    }
}
