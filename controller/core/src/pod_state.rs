//! The location of a pod and whether it has ended, from its spec and status.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

/// Returns when a pod was created.
pub fn created_at(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// Returns whether no container of a pod runs or will run. A kubelet does not admit such a pod again.
pub fn is_final(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Returns the node that a pod is bound to; `None` if it is unbound or final.
pub(crate) fn node_of(pod: &Pod) -> Option<&str> {
    let node = pod.spec.as_ref()?.node_name.as_deref();
    node.filter(|node| !node.is_empty() && !is_final(pod))
}
