//! Keeps the replicas of the controller on separate nodes.
//!
//! ```text
//!  pods of the Deployment, nodes ──watch──▶ ReplicasTask ──▶ core: spread() ──▶ the leader deletes a standby's pod
//! ```

use std::{sync::Arc, time::Duration};

use drydock_core::replicas::{LONGEST, ReplicaSpread, SETTLED, spread};
use drydock_runtime::{
    Backoff, Cache, Trigger, Watch, WatchStarter, chain,
    clock::{self, Instant},
    lease::LeaderTerm,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
use kube::{Api, Client, ResourceExt};
use tracing::{info, warn};

use crate::{nodes::Nodes, reconciler::triggered::Triggered, requests::deleting, rooms::Rooms};

/// Label selector of the controller's pods (`deploy/controller/deployment.yaml`).
const SELECTOR: &str = "app.kubernetes.io/name=drydock-controller";

/// Moves a standby that shares a node with another replica.
pub(crate) struct ReplicasTask {
    pods: Api<Pod>,
    shown: Cache<Pod>,
    /// Name of the pod that this process runs in.
    own: String,
    nodes: Nodes,
    rooms: Rooms,
}

impl ReplicasTask {
    /// Starts the watch. `namespace` and `own` are the namespace and the name of this process's pod. `changed` is also
    /// notified of changes of nodes.
    pub(crate) fn new(
        client: Client,
        watches: &WatchStarter,
        (namespace, own): (&str, String),
        (nodes, rooms): (Nodes, Rooms),
        changed: &Trigger,
    ) -> Self {
        let watch = Watch::<Pod>::namespaced(client.clone(), namespace, "pods of the controller")
            .labels(SELECTOR)
            .prune(prune)
            .wakes(changed);
        Self {
            shown: watches.start(watch),
            pods: Api::namespaced(client, namespace),
            own,
            nodes,
            rooms,
        }
    }

    fn plan(&self, replicas: &[Arc<Pod>], now: Timestamp) -> ReplicaSpread {
        // A replica that the cache does not show yet might be on a free node.
        if !self.shown.sync_state().is_clear() {
            return ReplicaSpread::Stay { apart: false };
        }
        let pairs = self.nodes.pairs();
        let views: Vec<_> = pairs.iter().map(|pair| self.rooms.complete(pair.view(), &[])).collect();
        let replicas: Vec<&Pod> = replicas.iter().map(AsRef::as_ref).collect();
        spread(&self.own, &replicas, &views, SETTLED, now)
    }

    /// Deletes the pod of a standby if another node could run its replacement. Returns the time of the next reconcile.
    async fn spread(&self, moves: &mut StandbyMoves) -> Option<Timestamp> {
        let now = clock::now();
        let replicas = self.shown.all();
        match self.plan(&replicas, now) {
            ReplicaSpread::Stay { apart: true } => {
                moves.backoff.reset();
                None
            }
            // A node may get room for the standby without a change of the node.
            ReplicaSpread::Stay { apart: false } => (replicas.len() > 1).then(|| now + SETTLED),
            ReplicaSpread::Wait(due) => Some(due),
            ReplicaSpread::Move { pod, to } => {
                if moves.not_before <= Instant::now() {
                    moves.not_before = Instant::now() + moves.backoff.delay();
                    self.delete(&replicas, &pod, &to).await;
                }
                Some(clock::wall_clock(moves.not_before))
            }
        }
    }

    async fn delete(&self, replicas: &[Arc<Pod>], pod: &str, to: &str) {
        let shown = replicas.iter().find(|shown| shown.name_any() == pod);
        let parameters = deleting(shown.and_then(|pod| pod.uid()));
        match self.pods.delete(pod, &parameters).await {
            Ok(_) => info!(
                pod,
                node = to,
                "standby replica deleted: its node ran another replica, and another node can run a replacement"
            ),
            Err(error) => warn!(
                pod,
                error = %chain(&error),
                "could not delete a standby replica whose node runs another replica"
            ),
        }
    }
}

/// Time at which a standby may be moved again, so that standbys are not deleted repeatedly if that does not help.
pub(crate) struct StandbyMoves {
    not_before: Instant,
    backoff: Backoff,
}

impl Default for StandbyMoves {
    fn default() -> Self {
        Self {
            not_before: Instant::now(),
            backoff: Backoff::new(SETTLED.saturating_mul(2), LONGEST),
        }
    }
}

impl Triggered for ReplicasTask {
    type Kept = StandbyMoves;
    const NAME: &'static str = "replicas";
    const RETRY: (Duration, Duration) = (SETTLED, LONGEST);
    const FAILURE: &'static str = "the controller's replicas could not be spread over the nodes";

    async fn wait_until_synced(&self) {
        tokio::join!(
            self.shown.wait_until_synced(),
            self.nodes.wait_until_synced(),
            self.rooms.wait_until_synced()
        );
    }

    /// Deletes the pod of a standby if another node could run its replacement.
    async fn reconcile(&self, moves: &mut StandbyMoves, term: &LeaderTerm) -> kube::Result<Option<Timestamp>> {
        if !term.is_valid() {
            return Ok(None);
        }
        Ok(self.spread(moves).await)
    }
}

/// Keeps the fields that determine the node of a pod, its possible nodes, and since when it is ready.
fn prune(pod: &mut Pod) {
    pod.metadata.annotations = None;
    pod.metadata.owner_references = None;
    if let Some(spec) = &mut pod.spec {
        *spec = PodSpec {
            node_name: spec.node_name.take(),
            node_selector: spec.node_selector.take(),
            affinity: spec.affinity.take(),
            tolerations: spec.tolerations.take(),
            overhead: spec.overhead.take(),
            containers: std::mem::take(&mut spec.containers)
                .into_iter()
                .map(|container| Container {
                    name: container.name,
                    resources: container.resources,
                    ..Container::default()
                })
                .collect(),
            ..PodSpec::default()
        };
    }
    if let Some(status) = &mut pod.status {
        let conditions = status.conditions.take().into_iter().flatten();
        *status = PodStatus {
            conditions: Some(conditions.filter(|condition| condition.type_ == "Ready").collect()),
            ..PodStatus::default()
        };
    }
}

#[cfg(test)]
mod tests;
