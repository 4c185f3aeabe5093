//! Whether a node has room for a pod without a guest.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

use super::{NodeView, ResourceAmounts, affinity, room::lacks};

/// Returns whether the scheduler could place a pod like this one on a node: by its node selector, its required node
/// affinity, its tolerations (for every taint, so that it does not prefer another node) and its requests, without
/// preempting another pod. False if the pods on the node are unknown. Pod affinity, ports and volumes are not
/// considered.
pub fn could_take(pod: &Pod, node: &NodeView<'_>) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let none = BTreeMap::new();
    let labels = node.labels.unwrap_or(&none);
    let selected = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value));
    let required = affinity::required(spec.affinity.as_ref());
    let admitted = required.is_none_or(|selector| affinity::admits(selector, node.name, labels));
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let cordoned = node.cordoned && !affinity::tolerated(&affinity::cordon(), tolerations);
    let tainted = node.taints.iter().any(|taint| !affinity::tolerated(taint, tolerations));
    let (Some(allocatable), Some(room)) = (node.allocatable, &node.room) else {
        return false;
    };
    let offered = ResourceAmounts::from_quantities(Some(allocatable));
    let requests = ResourceAmounts::of_pod(pod);
    let lacking = lacks(&offered, &requests, |resource| room.requested(resource, i32::MIN))
        .next()
        .is_some();
    selected && admitted && !cordoned && !tainted && !lacking
}
