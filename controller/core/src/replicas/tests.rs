use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::api::resource::Quantity};
use serde_json::{Value, json};

use super::*;
use crate::placement::{NodeRoom, PodShare};

const NOW: &str = "2026-01-01T00:10:00Z";

/// A replica on a node that has been ready since some seconds before now.
fn replica(name: &str, node: &str, ready: u64) -> Value {
    let now: Timestamp = NOW.parse().unwrap();
    json!({
        "metadata": {"name": name, "labels": {"pod-template-hash": "1"}},
        "spec": {"nodeName": node, "containers": [{"name": "controller",
            "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}}}]},
        "status": {"conditions": [{"type": "Ready", "status": "True",
            "lastTransitionTime": now - Duration::from_secs(ready)}]},
    })
}

fn node(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"disk": "fast"}},
        "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "10"}}})
}

/// The replicas `lead`, which leads, and `standby` on the node `one`, and the node `two`.
struct Case {
    replicas: Vec<Value>,
    nodes: Vec<Value>,
    /// CPU that another pod requests on each node.
    taken: &'static str,
    pods_known: bool,
}

impl Case {
    fn new() -> Self {
        Self {
            replicas: vec![replica("lead", "one", 300), replica("standby", "one", 60)],
            nodes: vec![node("one"), node("two")],
            taken: "0",
            pods_known: true,
        }
    }

    fn decide(&self) -> ReplicaSpread {
        let read = |value: &Value| -> Pod { serde_json::from_value(value.clone()).unwrap() };
        let replicas: Vec<Pod> = self.replicas.iter().map(read).collect();
        let nodes: Vec<Node> = self
            .nodes
            .iter()
            .map(|node| serde_json::from_value(node.clone()).unwrap())
            .collect();
        let taken = BTreeMap::from([("cpu".to_owned(), Quantity(self.taken.into()))]);
        let other = read(&json!({"spec": {"nodeName": "any", "containers": [{"name": "x",
            "resources": {"requests": taken}}]}}));
        let mut room = NodeRoom::default();
        room.add(&PodShare::of(&other).unwrap().1);
        let views: Vec<NodeView<'_>> = nodes
            .iter()
            .map(|node| NodeView {
                room: self.pods_known.then(|| Arc::new(room.clone())),
                ..NodeView::of(node, None)
            })
            .collect();
        let replicas: Vec<&Pod> = replicas.iter().collect();
        spread("lead", &replicas, &views, SETTLED, NOW.parse().unwrap())
    }
}

/// A change of a case.
type CaseChange = fn(&mut Case);

const APART: ReplicaSpread = ReplicaSpread::Stay { apart: true };
const STAY: ReplicaSpread = ReplicaSpread::Stay { apart: false };

fn moves(pod: &str, to: &str) -> ReplicaSpread {
    ReplicaSpread::Move {
        pod: pod.into(),
        to: to.into(),
    }
}

/// Returns cases with the name, the expected step, and the change of the replicas.
fn replica_cases() -> Vec<(&'static str, ReplicaSpread, CaseChange)> {
    vec![
        ("two on one node", moves("standby", "two"), |_| {}),
        ("each on its own", APART, |case| {
            case.replicas[1]["spec"]["nodeName"] = json!("two");
        }),
        ("one alone", STAY, |case| drop(case.replicas.pop())),
        ("the next one is not placed yet", STAY, |case| {
            case.replicas[1] = replica("standby", "", 60);
        }),
        ("another is not placed yet", STAY, |case| {
            case.replicas.push(replica("third", "", 60));
            case.replicas[2]["status"] = json!({});
        }),
        ("the leader is not ready", STAY, |case| {
            case.replicas[0]["status"]["conditions"][0]["status"] = json!("False");
        }),
        ("the standby is not ready", STAY, |case| {
            case.replicas[1]["status"]["conditions"][0]["status"] = json!("False");
        }),
        ("the standby is being deleted", STAY, |case| {
            case.replicas[1]["metadata"]["deletionTimestamp"] = json!(NOW);
        }),
        ("a rollout goes on", STAY, |case| {
            case.replicas.push(replica("new", "two", 60));
            case.replicas[2]["metadata"]["labels"]["pod-template-hash"] = json!("2");
            case.nodes.push(node("three"));
        }),
        (
            "ready for too short a time",
            ReplicaSpread::Wait("2026-01-01T00:10:20Z".parse().unwrap()),
            |case| case.replicas[1] = replica("standby", "one", 10),
        ),
        ("two standbys away from the leader", moves("other", "one"), |case| {
            case.replicas = vec![
                replica("lead", "three", 60),
                replica("other", "two", 60),
                replica("standby", "two", 60),
            ];
        }),
        ("no free node", STAY, |case| {
            case.replicas.push(replica("third", "two", 60));
        }),
    ]
}

/// The node that a standby would move to.
fn node_cases() -> Vec<(&'static str, ReplicaSpread, CaseChange)> {
    vec![
        ("no other node", STAY, |case| drop(case.nodes.pop())),
        ("it is cordoned", STAY, |case| {
            case.nodes[1]["spec"] = json!({"unschedulable": true});
        }),
        ("it is not ready", STAY, |case| {
            let key = "node.kubernetes.io/not-ready";
            case.nodes[1]["spec"] = json!({"taints": [{"key": key, "effect": "NoSchedule"}]});
            case.replicas[1]["spec"]["tolerations"] =
                json!([{"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10}]);
        }),
        ("a taint that is tolerated", moves("standby", "two"), |case| {
            case.nodes[1]["spec"] = json!({"taints": [{"key": "k", "effect": "NoSchedule"}]});
            case.replicas[1]["spec"]["tolerations"] = json!([{"key": "k", "operator": "Exists"}]);
        }),
        ("a taint by which the scheduler prefers others", STAY, |case| {
            case.nodes[1]["spec"] = json!({"taints": [{"key": "k", "effect": "PreferNoSchedule"}]});
        }),
        ("it has the label that is selected", moves("standby", "two"), |case| {
            case.replicas[1]["spec"]["nodeSelector"] = json!({"disk": "fast"});
        }),
        ("it lacks the label that is selected", STAY, |case| {
            case.replicas[1]["spec"]["nodeSelector"] = json!({"disk": "slow"});
        }),
        ("node affinity excludes it", STAY, |case| {
            case.replicas[1]["spec"]["affinity"] = json!({"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "disk", "operator": "NotIn", "values": ["fast"]}]}]}}});
        }),
        ("just enough CPU", moves("standby", "two"), |case| case.taken = "950m"),
        ("too little CPU", STAY, |case| case.taken = "951m"),
        ("its pods are not known", STAY, |case| case.pods_known = false),
    ]
}

#[test]
fn standby_moves_to_a_free_node_once_all_are_settled() {
    for (name, expected, change) in replica_cases().into_iter().chain(node_cases()) {
        let mut case = Case::new();
        change(&mut case);
        assert_eq!(case.decide(), expected, "{name}");
    }
}
