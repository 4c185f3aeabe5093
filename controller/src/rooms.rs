//! The pods on each node: the resources that they use, and their rules for other pods near them.
//!
//! ```text
//!  all unfinished pods ─▶ requests, priority, node ─▶ one sum for each node and priority
//!                     └─▶ labels, anti-affinity ────▶ neighbors
//! ```
//!
//! A large cluster has a large number of pods. Each pod is therefore stored as compressed text of the relevant fields,
//! and sums and neighbors are updated with each change.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use drydock_core::placement::{
    Neighbors, Newcomer, NodeRoom, NodeView, PodMoves, PodShare, ResourceAmounts, Rules, prune_affinity,
    room::yields_to,
};
use drydock_runtime::{Cache, CacheChange, Key, ListMode, Watch, WatchStarter};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus, ResourceRequirements};
use kube::{Client, core::ObjectMeta};
use parking_lot::Mutex;

/// Field selector of unfinished pods. Finished pods use no resources of their node, or soon will not.
const NOT_OVER: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// Pods on nodes. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Rooms {
    pods: Cache<Pod>,
    nodes: Sums,
    neighbors: Arc<Mutex<Neighbors>>,
}

/// Resource usage on each node with pods.
#[derive(Clone, Default)]
struct Sums(Arc<Mutex<HashMap<String, Arc<NodeRoom>>>>);

impl Rooms {
    /// Starts the watch. `on_change` is called when the resource usage on a node changes.
    pub(crate) fn start(client: &Client, watches: &WatchStarter, on_change: impl Fn() + Send + Sync + 'static) -> Self {
        let nodes = Sums::default();
        let sums = nodes.clone();
        let neighbors = Arc::<Mutex<Neighbors>>::default();
        let observers = Arc::clone(&neighbors);
        let pods = Watch::<Pod>::all(client.clone(), "requests of pods")
            .listing(ListMode::Streamed)
            .fields(NOT_OVER)
            .prune(prune)
            .compressed()
            .on_change(move |change| {
                let is_near = observe_neighbor(&observers, change);
                if sums.observe(change) || is_near {
                    on_change();
                }
            });
        Self {
            pods: watches.start(pods),
            nodes,
            neighbors,
        }
    }

    /// Creates the sums of the given pods.
    #[cfg(test)]
    pub(crate) fn filled(pods: impl IntoIterator<Item = Pod>) -> Self {
        let pods: Vec<Pod> = pods
            .into_iter()
            .map(|mut pod| {
                prune(&mut pod);
                pod
            })
            .collect();
        let (nodes, neighbors) = (Sums::default(), Arc::default());
        for pod in &pods {
            let change = CacheChange::Object {
                key: Key::of(pod),
                old: None,
                new: Some(Arc::new(pod.clone())),
            };
            nodes.observe(&change);
            observe_neighbor(&neighbors, &change);
        }
        Self {
            pods: Cache::filled(pods),
            nodes,
            neighbors,
        }
    }

    /// Waits until the cache is synced.
    pub(crate) async fn wait_until_synced(&self) {
        self.pods.wait_until_synced().await;
    }

    /// Returns the resource usage on a node. Returns `None` while it is unknown. Pods in `own` are not counted, because
    /// they do not compete with themselves.
    pub(crate) fn of(&self, node: &str, own: &[Key]) -> Option<Arc<NodeRoom>> {
        if !self.pods.sync_state().is_clear() {
            return None;
        }
        let mut room = self.nodes.0.lock().get(node).cloned().unwrap_or_default();
        for pod in own.iter().filter_map(|key| self.pods.get(key)) {
            if let Some((_, share)) = PodShare::of(&pod).filter(|(on, _)| *on == node) {
                Arc::make_mut(&mut room).remove(&share);
            }
        }
        Some(room)
    }

    /// Adds the resource usage on a node to its view.
    pub(crate) fn complete<'a>(&self, mut view: NodeView<'a>, own: &[Key]) -> NodeView<'a> {
        view.room = self.of(view.name, own);
        view
    }

    /// Returns the rules that the pods on nodes impose on the node of a new pod. Returns no rules while the pods are
    /// unknown. `nodes` returns all nodes.
    pub(crate) fn rules<'n>(
        &self,
        newcomer: &Newcomer<'_>,
        moves: &PodMoves,
        nodes: impl FnOnce() -> Cow<'n, [NodeView<'n>]>,
    ) -> Rules {
        if !self.pods.sync_state().is_clear() {
            return Rules::default();
        }
        self.neighbors.lock().rules(newcomer, moves, nodes)
    }

    /// Returns the lowest priority of pods that the first known one of these pods would not preempt. Returns `None` if
    /// none of these pods is known.
    pub(crate) fn priority(&self, pods: &[Key]) -> Option<i32> {
        let mut known = pods.iter().filter_map(|key| self.pods.get(key));
        known.find_map(|pod| pod.spec.as_ref().map(yields_to))
    }
}

/// Updates the neighbors with a change of a pod. Returns whether the neighbors have changed.
fn observe_neighbor(neighbors: &Mutex<Neighbors>, change: &CacheChange<Pod>) -> bool {
    match change {
        CacheChange::Object { new: Some(pod), .. } => neighbors.lock().set(pod),
        CacheChange::Object { key, new: None, .. } => neighbors
            .lock()
            .remove(key.namespace.as_deref().unwrap_or_default(), &key.name),
        CacheChange::SyncState(_) | CacheChange::Unreadable { .. } => false,
    }
}

impl Sums {
    /// Updates the sums with a change of a pod. Returns whether the sums have changed.
    fn observe(&self, change: &CacheChange<Pod>) -> bool {
        let (old, new) = match change {
            CacheChange::Object { old, new, .. } => (old.as_deref(), new.as_deref()),
            // The sums have become unknown, or are known again.
            CacheChange::SyncState(_) => return true,
            CacheChange::Unreadable { .. } => return false,
        };
        let (old, new) = (old.and_then(PodShare::of), new.and_then(PodShare::of));
        if old == new {
            return false;
        }
        let mut nodes = self.0.lock();
        if let Some((node, share)) = old
            && let Some(room) = nodes.get_mut(node)
        {
            let room = Arc::make_mut(room);
            room.remove(&share);
            if room.is_empty() {
                nodes.remove(node);
            }
        }
        if let Some((node, share)) = new {
            Arc::make_mut(nodes.entry(node.to_owned()).or_default()).add(&share);
        }
        true
    }
}

/// Keeps the node, the priority, the labels and the anti-affinity of a pod and, in one container, its requests.
fn prune(pod: &mut Pod) {
    let requests = ResourceAmounts::of_pod(pod);
    let metadata = std::mem::take(&mut pod.metadata);
    pod.metadata = ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        resource_version: metadata.resource_version,
        labels: metadata.labels,
        deletion_timestamp: metadata.deletion_timestamp,
        ..ObjectMeta::default()
    };
    if let Some(spec) = &mut pod.spec {
        *spec = PodSpec {
            node_name: spec.node_name.take(),
            priority: spec.priority,
            affinity: prune_affinity(spec.affinity.take()),
            preemption_policy: spec.preemption_policy.take().filter(|policy| policy == "Never"),
            containers: vec![Container {
                resources: Some(ResourceRequirements {
                    requests: Some(requests.to_quantities()),
                    ..ResourceRequirements::default()
                }),
                ..Container::default()
            }],
            ..PodSpec::default()
        };
    }
    if let Some(status) = &mut pod.status {
        *status = PodStatus {
            phase: status.phase.take(),
            ..PodStatus::default()
        };
    }
}

#[cfg(test)]
mod tests;
