//! The instance that a launcher pod was created for.

use drydock_api::{controlling_owner, kubevirt::names::CREATED_BY};
use drydock_runtime::Key;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// Returns namespace, name and UID of the instance that a pod was created for, if a VirtualMachineInstance controls
/// it.
pub(crate) fn owner(pod: &Pod) -> Option<(Key, String)> {
    let owner = controlling_owner(&pod.metadata).filter(|owner| owner.kind == "VirtualMachineInstance")?;
    let namespace = pod.metadata.namespace.as_deref()?;
    Some((Key::namespaced(namespace, &owner.name), owner.uid.clone()))
}

/// Returns the UID of the instance that a pod was created for. It is used to find the pods of an instance.
pub(crate) fn owner_uid(pod: &Pod) -> Option<String> {
    owner(pod).map(|(_, uid)| uid)
}

/// Returns whether the instance with this UID controls a pod. The label alone is not sufficient, because anyone can set
/// it.
pub(crate) fn controls(uid: &str, pod: &Pod) -> bool {
    owner_uid(pod).is_some_and(|owner| owner == uid) && pod.labels().get(CREATED_BY).is_some_and(|label| label == uid)
}
