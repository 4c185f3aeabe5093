//! The controller, by the real rule: objects of the model as Kubernetes objects, and the plan as the model's.

use std::{collections::HashMap, sync::Arc};

use drydock_api::kubevirt::{Phase, VirtualMachineInstance, names::FINALIZER};
use drydock_core::{
    instance::{InstancePlan, InstanceStep, Moving, NodeState, ObservedInstance, plan},
    launcher_pod::MIGRATION_UID,
};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::start_moves::{PodObject, PodPhase, Vmi, WorldMigration};

/// All that the controller's plan depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Observed {
    pub(crate) vmi: Vmi,
    pub(crate) pods: [PodObject; 2],
    pub(crate) migration: WorldMigration,
    pub(crate) node_deleted: [bool; 2],
}

/// The controller's actions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedInstance {
    pub(crate) vmi: Vmi,
    pub(crate) creates: bool,
    pub(crate) deletes: [bool; 2],
}

/// The plans made so far: objects take longer to make than states to visit.
#[derive(Default)]
pub(crate) struct PlannedInstances(HashMap<Observed, PlannedInstance>);

const NOW: &str = "2026-01-01T00:00:00Z";
const NODES: [&str; 2] = ["a", "b"];
const PODS: [&str; 2] = ["p", "q"];

impl PlannedInstances {
    pub(crate) fn plan(&mut self, observed: Observed) -> PlannedInstance {
        *self.0.entry(observed).or_insert_with(|| planned(&observed))
    }
}

fn planned(observed: &Observed) -> PlannedInstance {
    let vmi = &observed.vmi;
    let instance = instance(vmi);
    let pods: Vec<Arc<Pod>> = (0..2).filter_map(|at| pod(&observed.pods[at], at)).collect();
    let state = |at: usize| match observed.node_deleted[at] {
        true => NodeState::Deleted,
        false => NodeState::Ready,
    };
    let nodes = [0, 1].map(|at| (NODES[at].to_owned(), state(at)));
    let moved = observed.migration == WorldMigration::Moved;
    let made = plan(&ObservedInstance {
        now: NOW.parse().unwrap(),
        instance: &instance,
        pods: &pods,
        confirmed: true,
        node: named(vmi.node).next().map_or(NodeState::Unknown, state),
        other_nodes: &nodes,
        unresponsive: false,
        moving: Moving {
            under_way: moved || observed.migration == WorldMigration::UnderWay,
            moved_to: moved.then_some(NODES[1]),
            ..Moving::default()
        },
        claims: &[],
        misfit: None,
        targets: None,
        requirements_digest: None,
        failed_create: None,
        unmounted: &[],
        warning: None,
    });
    applied(vmi, &made)
}

fn applied(vmi: &Vmi, made: &InstancePlan) -> PlannedInstance {
    let mut to = PlannedInstance {
        vmi: *vmi,
        creates: false,
        deletes: [false; 2],
    };
    for step in &made.steps {
        match step {
            InstanceStep::CreatePod => to.creates = true,
            InstanceStep::DeletePod { uid, .. } => to.deletes[usize::from(uid == PODS[1])] = true,
            InstanceStep::RemoveFinalizer => to.vmi.gone = true,
            _ => {}
        }
    }
    if let Some(status) = &made.status {
        to.vmi.phase = status.phase.unwrap_or(vmi.phase);
        to.vmi.node = NODES.map(|node| status.node_name.as_deref() == Some(node));
        to.vmi.active = PODS.map(|uid| status.active_pods.contains_key(uid));
    }
    to
}

fn named(flags: [bool; 2]) -> impl Iterator<Item = usize> {
    (0..2).filter(move |at| flags[*at])
}

fn instance(vmi: &Vmi) -> VirtualMachineInstance {
    let active: Value = named(vmi.active).map(|at| (PODS[at], NODES[at])).collect();
    let ended: Vec<&str> = named(vmi.ended).map(|at| PODS[at]).collect();
    let transitions = json!([{"phase": Phase::Running, "phaseTransitionTimestamp": NOW}]);
    serde_json::from_value(json!({
        "metadata": {
            "name": "vm", "namespace": "default", "uid": "u", "finalizers": [FINALIZER],
            "deletionTimestamp": vmi.deleted.then_some(NOW),
        },
        "spec": {"domain": {"devices": {}}},
        "status": {
            "phase": vmi.phase, "nodeName": named(vmi.node).next().map(|at| NODES[at]), "activePods": active,
            "phaseTransitionTimestamps": if vmi.phase == Phase::Running { transitions } else { json!([]) },
            "drydock": {"endedPods": ended, "podUID": named(vmi.runs_in).next().map(|at| PODS[at])},
        },
    }))
    .unwrap()
}

fn pod(object: &PodObject, at: usize) -> Option<Arc<Pod>> {
    let (node, state) = match object.phase {
        PodPhase::Missing => return None,
        PodPhase::Unbound => (None, None),
        PodPhase::Bound => (Some(NODES[at]), Some(json!({"running": {}}))),
        PodPhase::Ended(outcome) => {
            let message = json!({"outcome": outcome, "message": ""}).to_string();
            let terminated = json!({"exitCode": 0, "message": message});
            (Some(NODES[at]), Some(json!({"terminated": terminated})))
        }
    };
    let containers = state.map(|state| {
        json!([{"name": "compute", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state,
                "containerID": "c"}])
    });
    let labels = object.is_target.then(|| json!({MIGRATION_UID: "m"}));
    let pod = json!({
        "metadata": {"name": PODS[at], "uid": PODS[at], "labels": labels,
            "creationTimestamp": format!("2026-01-01T00:00:0{at}Z"),
            "deletionTimestamp": object.deleting.then_some(NOW)},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Pending", "qosClass": "Burstable", "containerStatuses": containers},
    });
    Some(Arc::new(serde_json::from_value(pod).unwrap()))
}
