//! Why a guest does not run: the obstacles to its start, and the loss of its node.

use drydock_api::{
    kubevirt::{Condition, VirtualMachineInstanceStatus, names::conditions as types},
    launcher::CONTAINER,
    leases::STALE_AFTER,
};
use k8s_openapi::api::core::v1::{ContainerState, Pod};

use super::{
    inputs,
    observed_instance::{NodeState, ObservedInstance},
};
use crate::{
    conditions::ConditionStatus,
    launcher_pod::pending::{Hindrance, pending},
    vm_conditions::find,
};

/// Reason of an instance's condition `Ready`: its node does not respond, and the guest may still run on that node.
pub(super) const NODE_NOT_READY: &str = "NodeNotReady";

/// Reasons of a waiting container while its volumes are mounted and its image is pulled.
const BEING_CREATED: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Returns the obstacle that prevents a pod from running, including the namespace of a missing input.
pub(super) fn pod_hindrance(observed: &ObservedInstance<'_>, pod: &Pod) -> Option<Hindrance> {
    let namespace = observed.instance.metadata.namespace.as_deref().unwrap_or_default();
    let pending = pending(pod, observed.now);
    // Kubelets' messages about volumes take precedence over the message that the pod has not been prepared.
    let is_unexplained = pending.hindrance.is_none() || pending.wants_events;
    let mut uids = observed.unmounted.iter();
    let unmounted =
        uids.find(|(of, _)| is_unexplained && is_being_created(pod) && pod.metadata.uid.as_ref() == Some(of));
    if let Some(message) = unmounted.and_then(|(_, message)| inputs::unmounted(message, namespace)) {
        return Some(Hindrance {
            reason: inputs::FAILED_MOUNT.into(),
            message,
            unscheduled: false,
        });
    }
    let mut found = pending.explained(observed.warning.cloned()).hindrance?;
    if found.unscheduled {
        found.message = inputs::unscheduled(found.message, namespace);
    } else if found.reason == inputs::FAILED_MOUNT {
        found.message = inputs::unmounted(&found.message, namespace).unwrap_or(found.message);
    }
    Some(found)
}

/// Returns whether the pod's container waits for its volumes or its image.
fn is_being_created(pod: &Pod) -> bool {
    let waiting = container_state(pod).and_then(|state| state.waiting.as_ref());
    let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
    reason.is_some_and(|reason| BEING_CREATED.contains(&reason))
}

/// Returns the reason why a guest does not run yet, if there is an obstacle.
pub(super) fn hindrance(conditions: &[Condition]) -> Option<String> {
    let kept = |type_: &str, status: ConditionStatus| {
        let condition = find(conditions, type_).filter(|condition| condition.status == status.as_str())?;
        condition.reason.clone()
    };
    kept(types::FENCING_REQUIRED, ConditionStatus::True)
        .or_else(|| kept(types::POD_SCHEDULED, ConditionStatus::False))
        .or_else(|| kept(types::SYNCHRONIZED, ConditionStatus::False))
}

/// Returns why a guest whose pod vanished from a node is not started elsewhere; `None` while the node is ready, since
/// its agent is about to report the guest's end.
pub(super) fn fencing(state: NodeState, node: &str) -> Option<(&'static str, String)> {
    match state {
        NodeState::Ready => None,
        NodeState::Deleted => Some((
            "NodeDeletedAgentAlive",
            format!(
                "Node {node} was deleted, but the node's agent renews its Lease, so the guest may still run there; the \
                 guest starts elsewhere once the agent has reported the end of the guest, or has not renewed its Lease \
                 for {} s",
                STALE_AFTER.as_secs()
            ),
        )),
        NodeState::NotReady { .. } | NodeState::OutOfService | NodeState::Gone | NodeState::Unknown => Some((
            "PodLostOnUnresponsiveNode",
            format!(
                "the guest's pod was deleted while node {node} did not respond, so it is unknown whether the guest \
                 still runs there; make sure that the node is powered off, then delete the Node or add the taint \
                 node.kubernetes.io/out-of-service to the Node"
            ),
        )),
    }
}

/// Returns the message about a running guest whose node is unresponsive. A newer report of the agent takes
/// precedence, as only a live agent reports; and this message stays until the agent reports otherwise.
pub(super) fn unresponsive_message(
    observed: &ObservedInstance<'_>,
    before: &VirtualMachineInstanceStatus,
) -> Option<String> {
    let mut conditions = before.conditions.iter();
    let ready = conditions.find(|condition| condition.type_ == types::READY)?;
    let is_ready = ready.status == ConditionStatus::True.as_str();
    if ready.reason.as_deref() == Some(NODE_NOT_READY) && !is_ready {
        return ready.message.clone();
    }
    let reported_at = ready.last_transition_time?;
    let unresponsive = observed.unresponsive && observed.moving.moved_to.is_none();
    match observed.node {
        NodeState::NotReady { since: Some(since) } if unresponsive && is_ready && reported_at <= since => {
            let node = before.node_name.as_deref().unwrap_or_default();
            Some(format!("node {node} does not respond; the guest may still run there"))
        }
        _ => None,
    }
}

pub(super) fn container_state(pod: &Pod) -> Option<&ContainerState> {
    pod.status
        .as_ref()?
        .container_statuses
        .as_ref()?
        .iter()
        .find(|container| container.name == CONTAINER)?
        .state
        .as_ref()
}
