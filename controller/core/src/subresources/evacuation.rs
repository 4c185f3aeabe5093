//! The subresource `evacuate/cancel`: withdraws the request that a guest leaves its node.

use drydock_api::kubevirt::{VirtualMachine, VirtualMachineInstance};

use super::{GroupResource, SubresourceError};
use crate::{drain::NodeMarks, eviction::evacuation_request};

/// Checks whether a machine has an instance whose evacuation could be cancelled.
///
/// # Errors
/// 409 if no instance was created.
pub fn is_started(machine: &VirtualMachine) -> Result<(), SubresourceError> {
    if machine.status.as_ref().is_some_and(|status| status.created) {
        return Ok(());
    }
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    Err(SubresourceError::conflict(
        GroupResource::Machine,
        name,
        "VMI is not started",
    ))
}

/// Returns the node whose marks decide: the node that the request names, or else the node that the instance is on.
pub fn node<'a>(instance: &'a VirtualMachineInstance, requested: &'a str) -> &'a str {
    if !requested.is_empty() {
        return requested;
    }
    let status = instance.status.as_ref();
    let node = status.and_then(|status| status.node_name.as_deref());
    node.unwrap_or_default()
}

/// Returns whether the instance has an evacuation request to remove. `requested` is the node that the request names, or
/// empty; `key` is the key of the drain taint; `marks` are the marks of [`node`].
///
/// KubeVirt refuses while the node has the drain taint. Drydock refuses in a maintenance too: the next reconcile would
/// mark the guest again.
///
/// # Errors
/// 400 while the node itself wants its guests to leave; 500 if the instance is to leave another node.
pub fn cancel(
    instance: &VirtualMachineInstance,
    requested: &str,
    (key, marks): (&str, NodeMarks),
) -> Result<bool, SubresourceError> {
    let name = node(instance, requested);
    if marks.tainted {
        return Err(SubresourceError::bad_request(format!(
            "Node {name:?} has NodeDrainTaintKey \"{key}:NoSchedule\""
        )));
    }
    if marks.in_maintenance {
        return Err(SubresourceError::bad_request(format!(
            "Node {name:?} is in maintenance: delete its NodeMaintenance first"
        )));
    }
    match evacuation_request::of(instance) {
        None => Ok(false),
        Some(marked) if requested.is_empty() || requested == marked => Ok(true),
        Some(marked) => Err(SubresourceError::internal(format!(
            "the evacuation of the instance is requested for node {marked:?}, not for {requested:?}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mark_is_removed_unless_the_node_is_tainted_or_in_maintenance() {
        let marks = |tainted, in_maintenance| NodeMarks {
            cordoned: true,
            tainted,
            in_maintenance,
        };
        let calm = marks(false, false);
        for (marked, requested, marks, expected) in [
            (None, "", calm, Ok(false)),
            (Some("a"), "", calm, Ok(true)),
            (Some("a"), "a", calm, Ok(true)),
            (
                Some("a"),
                "b",
                calm,
                Err((
                    500,
                    "Internal error occurred: the evacuation of the instance is requested for node \"a\", not for \
                     \"b\"",
                )),
            ),
            (
                Some("a"),
                "",
                marks(true, false),
                Err((400, "Node \"here\" has NodeDrainTaintKey \"k:NoSchedule\"")),
            ),
            (
                Some("a"),
                "a",
                marks(false, true),
                Err((400, "Node \"a\" is in maintenance: delete its NodeMaintenance first")),
            ),
        ] {
            let instance: VirtualMachineInstance = serde_json::from_value(json!({
                "metadata": {"name": "vm"},
                "spec": {"domain": {"devices": {}}},
                "status": {"nodeName": "here", "evacuationNodeName": marked},
            }))
            .unwrap();
            let result = cancel(&instance, requested, ("k", marks));
            let expected = expected.map_err(|(code, message)| (code, message.to_owned()));
            assert_eq!(
                result.map_err(|failure| (failure.code, failure.message)),
                expected,
                "{marked:?} {requested} {marks:?}"
            );
        }
    }
}
