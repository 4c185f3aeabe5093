//! Launcher pods, indexed by the instance that they belong to, so that reconciling one instance does not iterate over
//! all pods.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use drydock_api::kubevirt::names::CREATED_BY;
use drydock_runtime::{Cache, Change, Key};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// Pods by the UID of their instance. Clones share the index.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodsByOwner(Arc<Mutex<HashMap<String, BTreeSet<Key>>>>);

/// Returns namespace, name and UID of the instance that a pod was created for, if a VirtualMachineInstance controls
/// it.
pub(crate) fn owner(pod: &Pod) -> Option<(Key, String)> {
    let owners = pod.metadata.owner_references.as_ref()?;
    let owner = owners
        .iter()
        .find(|owner| owner.controller == Some(true) && owner.kind == "VirtualMachineInstance")?;
    let namespace = pod.metadata.namespace.as_deref()?;
    Some((Key::namespaced(namespace, &owner.name), owner.uid.clone()))
}

impl PodsByOwner {
    /// Updates the index with a change of a pod. Returns the instance that it concerns.
    pub(crate) fn observe(&self, change: &Change<Pod>) -> Option<Key> {
        let Change::Object { key, old, new } = change else {
            return None;
        };
        let pod = new.as_ref().or(old.as_ref())?;
        let (instance, uid) = owner(pod)?;
        let mut index = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if new.is_some() {
            index.entry(uid).or_default().insert(key.clone());
        } else if let Some(keys) = index.get_mut(&uid) {
            keys.remove(key);
            if keys.is_empty() {
                index.remove(&uid);
            }
        }
        Some(instance)
    }

    /// Returns the pods that the instance with this UID controls, as the cache has them.
    pub(crate) fn of(&self, uid: &str, cache: &Cache<Pod>) -> Vec<Arc<Pod>> {
        let index = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = index.get(uid).into_iter().flatten();
        keys.filter_map(|key| cache.get(key)).collect()
    }
}

/// Returns whether the instance with this UID controls a pod. The label alone is no proof: anyone can set it.
pub(crate) fn controls(uid: &str, pod: &Pod) -> bool {
    owner(pod).is_some_and(|(_, owner)| owner == uid) && pod.labels().get(CREATED_BY).is_some_and(|label| label == uid)
}
