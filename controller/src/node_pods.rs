//! The pods of nodes that are being drained.
//!
//! ```text
//!  keep(node) ─▶ PodsGuard ─┐
//!  keep(node) ─▶ PodsGuard ─┼─▶ one watch of spec.nodeName=<node>, while any of the guards lives
//!  keep(node) ─▶ PodsGuard ─┘       ├─▶ of(node)           the node's pods
//!                                   └─▶ on_change(node)    a relevant change
//! ```
//!
//! Most nodes are never drained, so their pods are not watched. Once a pod has a node, that node does not change: a
//! pod that leaves such a watch was deleted.

use std::{collections::HashMap, sync::Arc};

use drydock_runtime::{Cache, CacheChange, CancellationToken, ListMode, Watch, WatchStarter};
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use kube::Client;
use parking_lot::Mutex;

/// Annotation of mirror pods, which are API objects for static pods. The kubelet reads static pods from files.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Pods of nodes. Each node is watched while at least one guard for it exists. Clones share the watches.
#[derive(Clone)]
pub(crate) struct NodePods(Arc<NodePodsState>);

struct NodePodsState {
    client: Client,
    watches: WatchStarter,
    on_change: Box<dyn Fn(&str) + Send + Sync>,
    watched: Mutex<HashMap<String, WatchedNode>>,
}

/// Watched pods of one node.
struct WatchedNode {
    guards: usize,
    pods: Cache<Pod>,
    wanted: CancellationToken,
}

/// Guard: the pods of its node are watched as long as it exists.
#[must_use = "the watch ends when this guard is dropped"]
pub(crate) struct PodsGuard {
    shared: Arc<NodePodsState>,
    node: String,
}

impl NodePods {
    /// Creates a set without watches. `on_change` is called with the name of a watched node on each change that is
    /// visible in [`of`](Self::of), including its first list. The watch calls it, so it must only put the name in a
    /// queue.
    pub(crate) fn start(
        client: &Client,
        watches: &WatchStarter,
        on_change: impl Fn(&str) + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(NodePodsState {
            client: client.clone(),
            watches: watches.clone(),
            on_change: Box::new(on_change),
            watched: Mutex::default(),
        }))
    }

    /// Watches the pods of a node until every guard of that node is dropped.
    pub(crate) fn keep(&self, node: &str) -> PodsGuard {
        let mut watched = self.0.watched.lock();
        watched
            .entry(node.to_owned())
            .or_insert_with(|| WatchedNode::new(&self.0, node))
            .guards += 1;
        PodsGuard {
            shared: Arc::clone(&self.0),
            node: node.to_owned(),
        }
    }

    /// Returns the pods of a node, in no particular order, as last reported by the API server. Returns `None` before
    /// the first list, and for a node without a guard.
    pub(crate) fn of(&self, node: &str) -> Option<Vec<Arc<Pod>>> {
        let pods = self.0.watched.lock().get(node)?.pods.clone();
        pods.sync_state().synced.then(|| pods.all())
    }

    /// Returns whether the watch of a node's pods has no problem. Otherwise [`of`](Self::of) may be outdated.
    pub(crate) fn are_current(&self, node: &str) -> bool {
        let watched = self.0.watched.lock();
        let node = watched.get(node);
        node.is_some_and(|node| node.pods.sync_state().problem.is_none())
    }
}

impl WatchedNode {
    fn new(shared: &Arc<NodePodsState>, node: &str) -> Self {
        let wanted = CancellationToken::new();
        // The callback has a weak reference, so that it does not keep the watch alive. The watch ends with the last
        // guard.
        let (state, name) = (Arc::downgrade(shared), node.to_owned());
        let watch = Watch::<Pod>::all(shared.client.clone(), "pods of a node")
            .listing(ListMode::Streamed)
            .fields(format!("spec.nodeName={node}"))
            .prune(prune)
            .on_change(move |change| {
                if matters(change)
                    && let Some(shared) = state.upgrade()
                {
                    (shared.on_change)(&name);
                }
            });
        Self {
            guards: 0,
            pods: shared.watches.start_until(watch, wanted.clone()),
            wanted,
        }
    }
}

impl Drop for PodsGuard {
    fn drop(&mut self) {
        let mut watched = self.shared.watched.lock();
        let Some(of_node) = watched.get_mut(&self.node) else {
            return;
        };
        of_node.guards = of_node.guards.saturating_sub(1);
        if of_node.guards == 0 {
            of_node.wanted.cancel();
            watched.remove(&self.node);
        }
    }
}

/// Returns whether a change affects the fields that [`prune`] keeps, or the sync state of the cache.
fn matters(change: &CacheChange<Pod>) -> bool {
    let plain = |pod: &Option<Arc<Pod>>| {
        pod.as_ref().map(|pod| {
            let mut pod = pod.as_ref().clone();
            pod.metadata.resource_version = None;
            pod
        })
    };
    match change {
        CacheChange::Object { old, new, .. } => plain(old) != plain(new),
        CacheChange::SyncState(_) => true,
        CacheChange::Unreadable { .. } => false,
    }
}

/// Keeps the fields that determine whether and how a pod leaves its node: name, labels, owners, deletion, mirror
/// annotation, phase and conditions.
fn prune(pod: &mut Pod) {
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.retain(|key, _| key == MIRROR);
    }
    if let Some(spec) = &mut pod.spec {
        *spec = PodSpec {
            node_name: spec.node_name.take(),
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            ..PodSpec::default()
        };
    }
    if let Some(status) = &mut pod.status {
        *status = PodStatus {
            phase: status.phase.take(),
            reason: status.reason.take(),
            conditions: status.conditions.take(),
            ..PodStatus::default()
        };
    }
}

#[cfg(test)]
mod tests;
