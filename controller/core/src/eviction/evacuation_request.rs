//! The evacuation request in a VMI's status: the node that it is to leave, and who requested it.
//!
//! The request is written by the webhook when a pod is evicted, and by the drain planner. Both use the same field
//! manager and always write the complete request. The request is also removed completely, whichever of them has written
//! which part.
//!
//! When a guest arrives on another node, its evacuation request is overwritten in the same write as its node: the node
//! name becomes empty, which means no evacuation request ([`of`]), and the condition becomes false. The requester and
//! the number of attempts stay readable.

use drydock_api::kubevirt::{
    Condition, VirtualMachineInstance, VirtualMachineInstanceStatus,
    names::conditions::EVICTION_REQUESTED,
    status::{DrainRequest, Evacuation},
};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    conditions::{ConditionStatus, whole_seconds},
    vm_conditions::{condition, find},
};

/// The field manager of evacuation requests.
pub const FIELD_MANAGER: &str = "drydock-evacuation";

/// Returns the node that a VMI is marked to leave.
pub fn of(instance: &VirtualMachineInstance) -> Option<&str> {
    let node = instance.status.as_ref()?.evacuation_node_name.as_deref();
    node.filter(|node| !node.is_empty())
}

/// Returns the evacuation of a marked VMI. `None` if another client has marked the VMI: KubeVirt's clients set only the
/// node name. The evacuation in the status may then be that of an earlier request, which the condition with status
/// `False` shows.
pub fn evacuation(instance: &VirtualMachineInstance) -> Option<&Evacuation> {
    of(instance)?;
    let status = instance.status.as_ref()?;
    let condition = find(&status.conditions, EVICTION_REQUESTED);
    let is_earlier = condition.is_some_and(|condition| condition.status == ConditionStatus::False.as_str());
    status.evacuation.as_ref().filter(|_| !is_earlier)
}

/// Returns whether a guest on the node `here` has left the node that it was marked to leave.
pub fn is_orphaned(instance: &VirtualMachineInstance, here: &str) -> bool {
    of(instance).is_some_and(|marked| marked != here)
}

/// Creates a new evacuation request.
pub fn new(by: DrainRequest, now: Timestamp) -> Evacuation {
    Evacuation {
        requested_by: by,
        requested_at: whole_seconds(now).0,
        failures: 0,
        last_failure: None,
    }
}

/// Returns the part of a VMI's status that marks the VMI, for server-side apply.
pub fn status(instance: &VirtualMachineInstance, node: &str, evacuation: &Evacuation, now: Timestamp) -> Value {
    let before = instance.status.as_ref().map(|status| status.conditions.as_slice());
    // KubeVirt's texts.
    let requested: Condition = condition(
        before.unwrap_or_default(),
        EVICTION_REQUESTED,
        ConditionStatus::True,
        EVICTION_REQUESTED,
        "VMI is marked for eviction",
        now,
    );
    json!({
        "evacuationNodeName": node,
        "evacuation": evacuation,
        "conditions": [requested],
    })
}

/// Returns a VMI with the evacuation request set, for decisions before a watch shows it.
pub fn marked(instance: &VirtualMachineInstance, node: &str, evacuation: &Evacuation) -> VirtualMachineInstance {
    let mut marked = instance.clone();
    let status = marked.status.get_or_insert_with(VirtualMachineInstanceStatus::default);
    status.evacuation_node_name = Some(node.into());
    status.evacuation = Some(evacuation.clone());
    marked
}

/// Returns the requester of an evacuation when a pod on a node in this state is evicted.
pub fn requester(cordoned: bool, tainted: bool, maintenance: bool) -> DrainRequest {
    if maintenance {
        DrainRequest::Maintenance
    } else if tainted {
        DrainRequest::Taint
    } else if cordoned {
        DrainRequest::Cordon
    } else {
        DrainRequest::Eviction
    }
}
