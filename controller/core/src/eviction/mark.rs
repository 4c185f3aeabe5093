//! The mark that says that an instance is to leave its node, and who wants that.
//!
//! It is written by the webhook when a pod is evicted, and by the drain planner, both as the same
//! field manager and always whole; and it is taken away whole, whoever has written which part of it.
//!
//! Of a guest that arrives elsewhere it is written over together with where the guest is: no node is named any more, which
//! is no mark ([`of`]), and the condition is false. Who asked, and how often that was tried, stays to be read.

use drydock_api::kubevirt::{
    Condition, VirtualMachineInstance, VirtualMachineInstanceStatus,
    names::conditions::EVICTION_REQUESTED,
    status::{DrainRequest, Evacuation},
};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    conditions::{Status, whole_seconds},
    vm_conditions::condition,
};

/// The field manager of marks.
pub const FIELD_MANAGER: &str = "drydock-evacuation";

/// The node that an instance is marked to leave.
pub fn of(instance: &VirtualMachineInstance) -> Option<&str> {
    let node = instance.status.as_ref()?.evacuation_node_name.as_deref();
    node.filter(|node| !node.is_empty())
}

/// How an instance is being moved off its node, if it is marked to leave it.
pub fn evacuation(instance: &VirtualMachineInstance) -> Option<&Evacuation> {
    of(instance)?;
    instance.status.as_ref()?.evacuation.as_ref()
}

/// Whether a guest that is on this node by now has left the one that it is marked to leave.
pub fn is_orphaned(instance: &VirtualMachineInstance, here: &str) -> bool {
    of(instance).is_some_and(|marked| marked != here)
}

/// A new mark.
pub fn new(by: DrainRequest, now: Timestamp) -> Evacuation {
    Evacuation {
        requested_by: by,
        requested_at: whole_seconds(now).0,
        failures: 0,
        last_failure: None,
    }
}

/// The part of an instance's status that marks it, to be applied.
pub fn status(instance: &VirtualMachineInstance, node: &str, evacuation: &Evacuation, now: Timestamp) -> Value {
    let before = instance.status.as_ref().map(|status| status.conditions.as_slice());
    // KubeVirt's words.
    let requested: Condition = condition(
        before.unwrap_or_default(),
        EVICTION_REQUESTED,
        Status::True,
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

/// An instance as it is once it is marked, for whoever decides before a watch shows it.
pub fn marked(instance: &VirtualMachineInstance, node: &str, evacuation: &Evacuation) -> VirtualMachineInstance {
    let mut marked = instance.clone();
    let status = marked.status.get_or_insert_with(VirtualMachineInstanceStatus::default);
    status.evacuation_node_name = Some(node.into());
    status.evacuation = Some(evacuation.clone());
    marked
}

/// Who asks when a pod on this node is evicted.
pub fn asker(cordoned: bool, tainted: bool, maintenance: bool) -> DrainRequest {
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
