//! The watches for guests.
//!
//! The watches select only the VMIs and launcher pods of this node, so that the cost does not depend on the size of the
//! cluster.

use std::{collections::HashMap, sync::Arc};

use drydock_api::kubevirt::{
    VirtualMachineInstance,
    names::{APP, LAUNCHER, VIRT_LAUNCHER},
};
use drydock_core::{
    instance::ending::{EndedGuest, ended},
    pod_state::is_final,
};
use drydock_runtime::{Cache, CacheChange, Key, Trigger, Watch, WatchStarter};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;

/// Launcher pods of this node. Clones share the cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct LauncherPods {
    pods: Cache<Pod>,
    by_uid: Arc<Mutex<PodIndex>>,
}

/// Last known state of pods, by their UIDs.
#[derive(Debug, Default)]
struct PodIndex {
    /// Pods that exist.
    known: HashMap<String, ExistingPod>,
    /// Ends of the guests in pods that no longer exist.
    endings: HashMap<String, EndedGuest>,
}

/// An existing pod.
#[derive(Debug)]
struct ExistingPod {
    key: Key,
    gate: WrittenGate,
}

/// Readiness gate of a pod that the API server returned for this agent's last write; `None` without a write.
pub(super) type WrittenGate = Arc<tokio::sync::Mutex<Option<Pod>>>;

impl LauncherPods {
    /// Starts watching the launcher pods of `node`. Changes notify each of `wakes`.
    ///
    /// Changes that concern the labels of the Node also notify `labels`.
    pub(crate) fn start(
        client: &Client,
        watches: &WatchStarter,
        node: &str,
        wakes: &[Trigger],
        labels: &Trigger,
    ) -> Self {
        let by_uid = Arc::<Mutex<PodIndex>>::default();
        let (index, wakes, labels) = (Arc::clone(&by_uid), wakes.to_vec(), labels.clone());
        let pods = Watch::<Pod>::all(client.clone(), "launcher pods")
            .labels(format!("{APP}={VIRT_LAUNCHER}"))
            .fields(format!("spec.nodeName={node}"))
            .prune(prune)
            .on_change(move |change| {
                observe(&index, change);
                for wake in &wakes {
                    wake.notify();
                }
                if concerns_labels(change) {
                    labels.notify();
                }
            });
        Self {
            pods: watches.start(pods),
            by_uid,
        }
    }

    /// Waits until the caches are synced.
    pub(crate) async fn wait_until_synced(&self) {
        self.pods.wait_until_synced().await;
    }

    /// Returns all pods; `None` until the API server has listed them.
    pub(crate) fn listed(&self) -> Option<Vec<Arc<Pod>>> {
        self.pods.sync_state().synced.then(|| self.pods.all())
    }

    /// Returns the pod with this UID.
    pub(crate) fn with_uid(&self, uid: &str) -> Option<Arc<Pod>> {
        let key = self.by_uid.lock().known.get(uid)?.key.clone();
        self.pods
            .get(&key)
            .filter(|pod| pod.metadata.uid.as_deref() == Some(uid))
    }

    /// Returns the last written readiness gate of the pod with this UID.
    pub(super) fn written_gate(&self, uid: &str) -> Option<WrittenGate> {
        Some(Arc::clone(&self.by_uid.lock().known.get(uid)?.gate))
    }

    /// Returns the end of the guest in a pod that no longer exists; `None` if the watch did not show the end.
    pub(crate) fn ending(&self, uid: &str) -> Option<EndedGuest> {
        self.by_uid.lock().endings.get(uid).cloned()
    }

    /// Drops the endings of all pods for which `is_needed` returns `false`.
    pub(crate) fn keep_endings(&self, is_needed: impl Fn(&str) -> bool) {
        self.by_uid.lock().endings.retain(|uid, _| is_needed(uid));
    }

    /// Creates a cache that contains these pods.
    #[cfg(test)]
    pub(crate) fn filled(pods: impl IntoIterator<Item = Pod>) -> Self {
        Self::default().showing(pods)
    }

    /// Returns the state after the watch has shown these pods.
    #[cfg(test)]
    pub(super) fn showing(&self, pods: impl IntoIterator<Item = Pod>) -> Self {
        let pods = Cache::filled(pods);
        for pod in pods.all() {
            let change = CacheChange::Object {
                key: Key::of(&*pod),
                old: None,
                new: Some(pod),
            };
            observe(&self.by_uid, &change);
        }
        Self {
            pods,
            by_uid: Arc::clone(&self.by_uid),
        }
    }
}

/// Caches of the VMIs and launcher pods of this node.
pub(crate) struct GuestWatches {
    instances: Cache<VirtualMachineInstance>,
    pods: LauncherPods,
    changed: Trigger,
}

impl GuestWatches {
    /// Starts watching the VMIs of `node`. Changes of `pods` notify `changed` too.
    pub(crate) fn start(
        client: &Client,
        watches: &WatchStarter,
        node: &str,
        pods: LauncherPods,
        changed: Trigger,
    ) -> Self {
        let instances = Watch::<VirtualMachineInstance>::all(client.clone(), "virtual machine instances")
            .optional()
            .fields(format!("status.nodeName={node}"))
            .wakes(&changed);
        Self {
            instances: watches.start(instances),
            pods,
            changed,
        }
    }

    /// Waits until the caches are synced.
    pub(crate) async fn wait_until_synced(&self) {
        tokio::join!(self.instances.wait_until_synced(), self.pods.wait_until_synced());
    }

    /// Waits for a change since the last call.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the VMIs of this node.
    pub(crate) fn instances(&self) -> Vec<Arc<VirtualMachineInstance>> {
        self.instances.all()
    }

    /// Returns the launcher pod with this UID, if it is on this node.
    pub(crate) fn pod(&self, uid: &str) -> Option<Arc<Pod>> {
        self.pods.with_uid(uid)
    }

    /// Returns the end of the guest in a pod that no longer exists, if the watch showed the end.
    pub(crate) fn ending(&self, uid: &str) -> Option<EndedGuest> {
        self.pods.ending(uid)
    }

    /// Drops the endings of all pods for which `is_needed` returns `false`.
    pub(crate) fn keep_endings(&self, is_needed: impl Fn(&str) -> bool) {
        self.pods.keep_endings(is_needed);
    }
}

fn observe(index: &Mutex<PodIndex>, change: &CacheChange<Pod>) {
    let CacheChange::Object { key, old, new } = change else {
        return;
    };
    let uid = |pod: &Option<Arc<Pod>>| pod.as_ref().and_then(|pod| pod.uid());
    let (before, new) = (uid(old), uid(new));
    let mut index = index.lock();
    if let Some(gone) = before.filter(|before| new.as_ref() != Some(before)) {
        index.known.remove(&gone);
        if let Some(ended) = old.as_deref().and_then(ended) {
            index.endings.insert(gone, ended);
        }
    }
    if let Some(new) = new {
        index.known.entry(new).or_insert_with(|| ExistingPod {
            key: key.clone(),
            gate: WrittenGate::default(),
        });
    }
}

/// Returns whether a change affects the labels of the Node.
///
/// A change affects the labels if a pod was created, has ended or was deleted, or if the pods were listed. Most changes
/// of a pod only concern its conditions and containers.
fn concerns_labels(change: &CacheChange<Pod>) -> bool {
    match change {
        CacheChange::Object { old, new, .. } => {
            let counts = |pod: &Option<Arc<Pod>>| {
                let pod = pod.as_ref().filter(|pod| !is_final(pod))?;
                Some(pod.labels().get(LAUNCHER).cloned())
            };
            counts(old) != counts(new)
        }
        CacheChange::SyncState(_) => true,
        CacheChange::Unreadable { .. } => false,
    }
}

/// Keeps only the fields of a launcher pod that the agent reads.
///
/// The kept fields are the conditions, the addresses, the states of the containers, the images of the volumes, and the
/// ephemeral containers, which reveal more about those images.
fn prune(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    pod.metadata.annotations = None;
    if let Some(spec) = &mut pod.spec {
        let mut volumes = spec.volumes.take().unwrap_or_default();
        volumes.retain(|volume| volume.image.is_some());
        *spec = PodSpec {
            node_name: spec.node_name.take(),
            volumes: Some(volumes),
            ephemeral_containers: spec.ephemeral_containers.take(),
            ..PodSpec::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_end_in_a_pod_is_known_after_the_pod_is_gone() {
        let message = json!({"outcome": "Shutdown", "message": "the guest shut down", "requested": true}).to_string();
        let pod = |uid: &str, state: Value| -> Option<Arc<Pod>> {
            let status = json!({"containerStatuses": [{
                "name": "compute", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state,
            }]});
            let pod = json!({"metadata": {"name": uid, "uid": uid}, "status": status});
            Some(Arc::new(serde_json::from_value(pod).unwrap()))
        };
        let over = |uid: &str| pod(uid, json!({"terminated": {"exitCode": 0, "message": message}}));
        let runs = |uid: &str| pod(uid, json!({"running": {}}));
        let pods = LauncherPods::default();
        let see = |old, new| {
            let key = Key::namespaced("default", "p");
            observe(&pods.by_uid, &CacheChange::Object { key, old, new });
        };
        see(None, runs("a"));
        see(runs("a"), over("a"));
        assert_eq!(pods.ending("a"), None, "its pod shows it");
        see(over("a"), None);
        let ending = pods.ending("a").unwrap();
        assert_eq!(
            (ending.outcome, ending.evicted),
            (Some(drydock_api::launcher::GuestOutcome::Shutdown), true)
        );
        // Another pod with this name is created, and then deleted before it has ended.
        see(over("b"), runs("c"));
        see(runs("c"), None);
        assert!(pods.ending("b").is_some() && pods.ending("c").is_none());
        pods.keep_endings(|uid| uid == "b");
        assert_eq!(pods.ending("a"), None);
        assert!(pods.ending("b").is_some());
    }

    #[test]
    fn only_pods_that_come_or_end_concern_the_node() {
        let pod =
            |phase: &str| json!({"metadata": {"name": "p", "labels": {LAUNCHER: "x"}}, "status": {"phase": phase}});
        let ready = json!({"metadata": {"name": "p", "labels": {LAUNCHER: "x"}, "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "status": {"phase": "Running", "podIP": "192.0.2.1"}});
        for (old, new, expected) in [
            (Value::Null, pod("Pending"), true),
            (pod("Pending"), pod("Running"), false),
            (pod("Running"), ready.clone(), false),
            (ready, pod("Succeeded"), true),
            (pod("Running"), Value::Null, true),
            (pod("Failed"), Value::Null, false),
            (Value::Null, pod("Failed"), false),
        ] {
            let object = |value: &Value| {
                serde_json::from_value::<Option<Pod>>(value.clone())
                    .unwrap()
                    .map(Arc::new)
            };
            let change = CacheChange::Object {
                key: Key::namespaced("n", "p"),
                old: object(&old),
                new: object(&new),
            };
            assert_eq!(concerns_labels(&change), expected, "{old} {new}");
        }
        assert!(concerns_labels(&CacheChange::SyncState(
            drydock_runtime::SyncState::default()
        )));
    }

    #[test]
    fn launcher_pods_are_unknown_until_listed() {
        assert_eq!(LauncherPods::default().listed(), None);
        assert_eq!(LauncherPods::filled([]).listed(), Some(Vec::new()));
    }
}
