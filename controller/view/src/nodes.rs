//! A table of all nodes: how open each is, how many guests are on it and how much memory is requested.

use drydock_api::{
    Hypervisor,
    hypervisor::DrainStatus,
    kubevirt::{Phase, VirtualMachineInstance},
    reasons,
};
use drydock_core::{drain::NodeMarks, quantity};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde::Serialize;

use crate::{
    snapshot::{Snapshot, World},
    text::{bytes, seconds, table},
};

/// How open a node is to virtual machines.
///
/// | state | when, the first that holds |
/// |---|---|
/// | `Unknown` | its kubelet is not ready, or the node is unreachable |
/// | `NotUsable` | its agent has not reported, or reports that it takes no guests |
/// | `Blocked` | it is being drained, and a guest stays until somebody does something |
/// | `Empty` | it was drained, and nothing is left |
/// | `Emptying` | it is being drained |
/// | `Closed` | it is cordoned, and nothing moves |
/// | `Open` | otherwise |
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum State {
    /// New guests may start there.
    Open,
    /// It is cordoned, and nothing moves.
    Closed,
    /// It is being drained.
    Emptying,
    /// It is being drained, and a guest stays until somebody does something.
    Blocked,
    /// Nothing is left on it.
    Empty,
    /// It does not take guests.
    NotUsable,
    /// Nothing is heard of it.
    Unknown,
}

impl State {
    /// Returns the word for people.
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

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
    /// Its name.
    pub name: String,
    /// How open it is.
    pub state: State,
    /// Number of guests on it.
    pub guests: usize,
    /// Guests that move away from it; `None` if it is not being drained.
    pub moving: Option<u32>,
    /// Guests that stay until somebody does something; `None` if it is not being drained.
    pub blocked: Option<u32>,
    /// Bytes of memory that pods request there.
    pub requested_bytes: u64,
    /// Bytes of memory that pods can request there.
    pub allocatable_bytes: u64,
    /// When its drain will end, as far as it can be estimated.
    pub end: Option<Timestamp>,
}

/// Returns all nodes by name.
pub fn rows(snapshot: &Snapshot) -> Vec<NodeRow> {
    let world = World::of(snapshot);
    let views = world.views(&snapshot.nodes);
    let of = |name: &str| {
        snapshot
            .nodes
            .iter()
            .find(|node| node.metadata.name.as_deref() == Some(name))
    };
    views
        .iter()
        .map(|view| {
            let hypervisor = snapshot
                .hypervisors
                .iter()
                .find(|hypervisor| hypervisor.metadata.name.as_deref() == Some(view.name));
            let drain = hypervisor.and_then(|hypervisor| hypervisor.status.as_ref()?.drain.as_ref());
            let drain = drain.filter(|drain| drain.finished_at.is_none());
            let node = of(view.name);
            let memory = view.allocatable.and_then(|all| all.get("memory"));
            let here = |instance: &&VirtualMachineInstance| {
                let status = instance.status.as_ref();
                status.is_some_and(|status| {
                    status.node_name.as_deref() == Some(view.name) && !status.phase.is_some_and(Phase::is_final)
                })
            };
            NodeRow {
                name: view.name.to_owned(),
                state: node.map_or(State::Unknown, |node| state(node, hypervisor, drain, &world)),
                guests: snapshot.instances.iter().filter(here).count(),
                moving: drain.map(|drain| drain.moving),
                blocked: drain.map(|drain| drain.blocked),
                requested_bytes: view.room.as_ref().map_or(0, |room| room.requested("memory", i32::MIN)),
                allocatable_bytes: memory.and_then(|amount| quantity::bytes(&amount.0)).unwrap_or(0),
                end: drain.and_then(|drain| drain.estimated_end.as_ref()).map(|end| end.0),
            }
        })
        .collect()
}

fn state(node: &Node, hypervisor: Option<&Hypervisor>, drain: Option<&DrainStatus>, world: &World<'_>) -> State {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let node_condition = |type_: &str| {
        let mut conditions = conditions.into_iter().flatten();
        let found = conditions.find(|condition| condition.type_ == type_)?;
        Some(found.status.as_str())
    };
    if node_condition("Ready").is_some_and(|status| status != "True") {
        return State::Unknown;
    }
    let ready = hypervisor.and_then(|hypervisor| {
        let mut conditions = hypervisor.status.as_ref()?.conditions.iter();
        conditions.find(|condition| condition.type_ == reasons::hypervisor::READY)
    });
    if ready.is_none_or(|ready| ready.status != "True") {
        return State::NotUsable;
    }
    let marks = NodeMarks::of(node, &world.configuration.migrations.drain_taint_key);
    let is_drained = node_condition(reasons::node::DRAINED) == Some("True");
    match drain {
        Some(drain) if drain.blocked > 0 => State::Blocked,
        _ if is_drained => State::Empty,
        Some(_) => State::Emptying,
        None if marks.tainted || marks.in_maintenance => State::Emptying,
        None if marks.cordoned => State::Closed,
        None => State::Open,
    }
}

/// Returns nodes as a table for people; `now` is the current time.
pub fn text(rows: &[NodeRow], now: Timestamp) -> String {
    let heading = ["NODE", "STATE", "GUESTS", "MOVING", "BLOCKED", "MEMORY", "ENDS"];
    let mut lines = vec![Vec::from(heading.map(str::to_owned))];
    let dash = || "-".to_owned();
    for row in rows {
        let ends = row
            .end
            .map(|end| u64::try_from(end.duration_since(now).as_secs()).unwrap_or(0));
        lines.push(vec![
            row.name.clone(),
            row.state.as_str().to_owned(),
            row.guests.to_string(),
            row.moving.map_or_else(dash, |count| count.to_string()),
            row.blocked.map_or_else(dash, |count| count.to_string()),
            format!("{} of {}", bytes(row.requested_bytes), bytes(row.allocatable_bytes)),
            ends.map_or_else(dash, |left| format!("in {}", seconds(left))),
        ]);
    }
    table(&lines)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plan::fixture::cluster;

    const NOW: &str = "2026-11-27T14:02:11Z";

    /// Returns a cluster whose agents report that they are ready.
    fn ready() -> Snapshot {
        let mut snapshot = cluster();
        for hypervisor in &mut snapshot.hypervisors {
            let condition = json!({"type": "Ready", "status": "True", "reason": "", "message": "",
                "lastTransitionTime": NOW});
            let status = hypervisor.status.as_mut().unwrap();
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
        let cases: [(Change, State); 8] = [
            (|_| {}, State::Open),
            (
                |snapshot| snapshot.nodes[0].spec.get_or_insert_default().unschedulable = Some(true),
                State::Closed,
            ),
            (
                |snapshot| {
                    let taint = json!([{"key": "medik8s.io/drain", "effect": "NoSchedule"}]);
                    snapshot.nodes[0].spec.get_or_insert_default().taints = serde_json::from_value(taint).unwrap();
                },
                State::Emptying,
            ),
            (
                |snapshot| snapshot.hypervisors[0].status.as_mut().unwrap().drain = Some(drain(0)),
                State::Emptying,
            ),
            (
                |snapshot| snapshot.hypervisors[0].status.as_mut().unwrap().drain = Some(drain(1)),
                State::Blocked,
            ),
            (
                |snapshot| {
                    let conditions = json!([{"type": "Drained", "status": "True"}]);
                    let status = snapshot.nodes[0].status.get_or_insert_default();
                    status.conditions = serde_json::from_value(conditions).unwrap();
                },
                State::Empty,
            ),
            (
                |snapshot| snapshot.hypervisors[0].status.as_mut().unwrap().conditions.clear(),
                State::NotUsable,
            ),
            (
                |snapshot| {
                    let conditions = json!([{"type": "Ready", "status": "Unknown"}]);
                    let status = snapshot.nodes[0].status.get_or_insert_default();
                    status.conditions = serde_json::from_value(conditions).unwrap();
                },
                State::Unknown,
            ),
        ];
        for (index, (change, expected)) in cases.into_iter().enumerate() {
            let mut snapshot = ready();
            change(&mut snapshot);
            assert_eq!(rows(&snapshot)[0].state, expected, "case {index}");
        }
    }

    #[test]
    fn nodes_are_a_table() {
        let mut snapshot = ready();
        snapshot.hypervisors[0].status.as_mut().unwrap().drain = Some(drain(1));
        snapshot.hypervisors.remove(2);
        assert_eq!(
            text(&rows(&snapshot), NOW.parse().unwrap()),
            "NODE  STATE       GUESTS  MOVING  BLOCKED  MEMORY            ENDS\n\
             a     Blocked     4       2       1        16 GiB of 64 GiB  in 7 min\n\
             b     Open        1       -       -        4 GiB of 16 GiB   -\n\
             c     Not usable  0       -       -        0 B of 16 GiB     -\n"
        );
    }
}
