//! Requests evictions independently, so that a slow eviction does not delay others.
//!
//! ```text
//!  node reconciled ───────▶ entry by pod UID ──▶ POST eviction ──▶ response ──▶ node enqueued
//!                             ▲ kept until the pod no longer exists
//! ```

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use drydock_core::maintenance::{
    attempt::{Attempt, EvictionResult},
    pods::EvictionTarget,
};
use drydock_runtime::{Key, Requeue, WorkQueue, chain, clock};
use k8s_openapi::{
    api::{core::v1::Pod, policy::v1::Eviction},
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions},
};
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use serde_json::Value;
use tracing::{debug, info};

use super::{MaintenanceQueues, holds_node};
use crate::{
    maintenances::Maintenances,
    reconciler::{Executed, Queued, ReconcileError, Reconciler},
};

/// Maximum number of concurrent evictions. Most of the time they wait for a webhook, or for the priority and fairness
/// of the API server.
pub(super) const MAX_CONCURRENT_RECONCILES: usize = 512;

/// Evictions by the UID of their pod. Clones share them.
#[derive(Clone)]
pub(super) struct PodEvictions {
    client: Client,
    maintenances: Maintenances,
    entries: Arc<Mutex<HashMap<String, EvictionEntry>>>,
    work: WorkQueue,
    nodes: WorkQueue,
}

struct EvictionEntry {
    target: EvictionTarget,
    node: String,
    attempt: Attempt,
}

impl PodEvictions {
    /// Creates an empty collection. After the response to an eviction, the node of the pod is enqueued.
    pub(super) fn new(client: Client, maintenances: Maintenances, queues: &MaintenanceQueues) -> Self {
        Self {
            client,
            maintenances,
            entries: Arc::default(),
            work: queues.evictions.clone(),
            nodes: queues.nodes.clone(),
        }
    }

    /// Returns the queue of evictions to request.
    pub(super) fn work(&self) -> &WorkQueue {
        &self.work
    }

    /// Requests an eviction, unless one is in progress.
    pub(super) fn request(&self, node: &str, target: EvictionTarget) {
        let key = Key::namespaced(&target.namespace, &target.name);
        let mut entries = self.entries.lock();
        let entry = entries.entry(target.uid.clone()).or_insert_with(|| EvictionEntry {
            target: target.clone(),
            node: node.to_owned(),
            attempt: Attempt {
                at: clock::now(),
                result: None,
                in_flight: false,
                unblocked: false,
            },
        });
        if !entry.attempt.in_flight {
            entry.target = target;
            entry.attempt.in_flight = true;
            self.work.add(key);
        }
    }

    /// Returns the result of the last eviction of a pod.
    pub(super) fn attempt(&self, uid: &str) -> Option<Attempt> {
        self.entries.lock().get(uid).map(|entry| entry.attempt.clone())
    }

    /// Drops the evictions of all pods of a node except these.
    pub(super) fn keep_only(&self, node: &str, pods: &[Arc<Pod>]) {
        let uids: HashSet<&str> = pods.iter().filter_map(|pod| pod.metadata.uid.as_deref()).collect();
        self.entries
            .lock()
            .retain(|uid, entry| entry.node != node || uids.contains(uid.as_str()));
    }

    /// Drops the evictions of all pods of a node.
    pub(super) fn forget(&self, node: &str) {
        self.entries.lock().retain(|_, entry| entry.node != node);
    }

    /// Handles a PDB of this namespace that allows more evictions than before. Evictions that it may have blocked are
    /// requested again. Returns the nodes of their pods.
    pub(super) fn unblocked(&self, namespace: &str) -> HashSet<String> {
        let mut nodes = HashSet::new();
        for entry in self.entries.lock().values_mut() {
            let blocked = matches!(
                entry.attempt.result,
                Some(EvictionResult::BlockedByPdb(_) | EvictionResult::SeveralPdbs(_))
            );
            if blocked && entry.target.namespace == namespace {
                entry.attempt.unblocked = true;
                nodes.insert(entry.node.clone());
            }
        }
        nodes
    }
}

impl Reconciler for PodEvictions {
    type Observed = Vec<(EvictionTarget, Attempt)>;
    type Plan = Vec<EvictionTarget>;

    /// Returns the evictions of pods with this key.
    async fn observe(&self, key: &Key) -> Result<Option<Self::Observed>, ReconcileError> {
        let entries = self.entries.lock();
        let of_name = entries.values().filter(|entry| {
            *entry.target.name == *key.name && key.namespace.as_deref() == Some(entry.target.namespace.as_str())
        });
        let observed = of_name.map(|entry| (entry.target.clone(), entry.attempt.clone()));
        Ok(Some(observed.collect()))
    }

    /// Returns the pods whose eviction is pending.
    fn plan(&self, _: &Key, observed: &Self::Observed) -> Vec<EvictionTarget> {
        let pending = observed.iter().filter(|(_, attempt)| attempt.in_flight);
        pending.map(|(target, _)| target.clone()).collect()
    }

    async fn execute(
        &self,
        _: &Key,
        _: &mut Self::Observed,
        targets: Vec<EvictionTarget>,
    ) -> Result<Executed, ReconcileError> {
        for target in targets {
            let result = self.evict(&target).await;
            self.record(&target, result);
        }
        Ok(Executed::Requeue(Requeue::OnChange))
    }
}

impl Queued for PodEvictions {
    /// A process that leads again repeats the requests that were interrupted, except for nodes whose maintenances have
    /// ended since.
    async fn all(&self) -> Vec<Key> {
        self.maintenances.wait_until_synced().await;
        let mut entries = self.entries.lock();
        entries.retain(|_, entry| {
            let shown = self.maintenances.of_node(&entry.node);
            let newest = self.maintenances.newest(&shown);
            newest.iter().any(|(_, _, object)| holds_node(object))
        });
        let in_flight = entries.values().filter(|entry| entry.attempt.in_flight);
        in_flight
            .map(|entry| Key::namespaced(&entry.target.namespace, &entry.target.name))
            .collect()
    }
}

impl PodEvictions {
    async fn evict(&self, target: &EvictionTarget) -> EvictionResult {
        // The call of kube uses wrong names for the options, so the API server would ignore them.
        let eviction = Eviction {
            metadata: ObjectMeta {
                name: Some(target.name.clone()),
                namespace: Some(target.namespace.clone()),
                ..ObjectMeta::default()
            },
            delete_options: Some(DeleteOptions {
                grace_period_seconds: target.grace_period_seconds,
                preconditions: Some(Preconditions {
                    uid: Some(target.uid.clone()),
                    resource_version: None,
                }),
                ..DeleteOptions::default()
            }),
        };
        let api = Api::<Pod>::namespaced(self.client.clone(), &target.namespace);
        let parameters = PostParams::default();
        let created = api.create_subresource::<_, Value>("eviction", &target.name, &parameters, &eviction);
        match created.await {
            Ok(_) => EvictionResult::Accepted,
            Err(kube::Error::Api(status)) => {
                let causes = status.details.iter().flat_map(|details| &details.causes);
                let causes: Vec<(&str, &str)> = causes
                    .map(|cause| (cause.reason.as_str(), cause.message.as_str()))
                    .collect();
                EvictionResult::of_refusal(status.code, &status.message, &causes)
            }
            Err(error) => EvictionResult::Failed(chain(&error).to_string()),
        }
    }

    fn record(&self, target: &EvictionTarget, result: EvictionResult) {
        let (pod, message) = (format!("{}/{}", target.namespace, target.name), result.text());
        let mut entries = self.entries.lock();
        // The state of the pod or its node was dropped in the meantime.
        let Some(entry) = entries.get_mut(&target.uid) else {
            return;
        };
        if entry.attempt.result.as_ref() == Some(&result) {
            debug!(
                pod,
                response = message,
                "the response to a pod's eviction is the same as before"
            );
        } else {
            info!(
                pod,
                node = entry.node,
                response = message,
                "the response to a pod's eviction has changed"
            );
        }
        entry.attempt = Attempt {
            at: clock::now(),
            result: Some(result),
            in_flight: false,
            unblocked: false,
        };
        self.nodes.add(Key::cluster(&entry.node));
    }
}

#[cfg(test)]
mod tests {
    use drydock_api::maintenance::{FINALIZER, Group, NodeMaintenance};
    use drydock_runtime::{
        WorkQueueMetrics,
        fake::{ApiServer, api_server},
    };
    use serde_json::json;

    use super::*;

    /// Returns the evictions while these nodes are in maintenance, and the API server for their requests.
    fn fixture(nodes: &[&str]) -> (PodEvictions, ApiServer) {
        let (client, server) = api_server();
        let maintenances = nodes.iter().map(|node| {
            let object: NodeMaintenance = serde_json::from_value(json!({
                "metadata": {"name": node, "finalizers": [FINALIZER]},
                "spec": {"nodeName": node},
            }))
            .unwrap();
            (Group::Medik8s, object)
        });
        let queues = MaintenanceQueues::new(&WorkQueueMetrics::default());
        (
            PodEvictions::new(client, Maintenances::filled(maintenances), &queues),
            server,
        )
    }

    fn target() -> EvictionTarget {
        EvictionTarget {
            namespace: "d".into(),
            name: "p".into(),
            uid: "u".into(),
            grace_period_seconds: Some(7),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn eviction_is_not_repeated_once_no_maintenance_is_left() {
        for (nodes, is_repeated) in [(&["n"][..], true), (&["other"], false), (&[], false)] {
            let (evictions, mut server) = fixture(nodes);
            evictions.request("n", target());
            let key = Key::namespaced("d", "p");
            let expected: &[Key] = if is_repeated { std::slice::from_ref(&key) } else { &[] };
            assert_eq!(evictions.all().await, expected, "{nodes:?}");
            let (reconciled, ()) = tokio::join!(evictions.reconcile(&key), async {
                if is_repeated {
                    server.next_request().await.with(&json!({}));
                } else {
                    assert!(server.is_left_alone().await, "{nodes:?}");
                }
            });
            assert!(reconciled.is_ok());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pod_is_deleted_by_uid_with_the_requested_grace_period() {
        let (evictions, mut server) = fixture(&["n"]);
        evictions.request("n", target());
        let attempt = || evictions.attempt("u").unwrap();
        assert!(attempt().in_flight && evictions.all().await.len() == 1);
        let key = Key::namespaced("d", "p");
        let serve = async {
            let request = server.next_request().await;
            assert_eq!(request.path(), "/api/v1/namespaces/d/pods/p/eviction");
            assert_eq!(request.body["apiVersion"], "policy/v1");
            let options = &request.body["deleteOptions"];
            assert_eq!(
                (&options["gracePeriodSeconds"], &options["preconditions"]),
                (&json!(7), &json!({"uid": "u"}))
            );
            request.refuse(429, "TooManyRequests");
        };
        let (reconciled, ()) = tokio::join!(evictions.reconcile(&key), serve);
        assert!(reconciled.is_ok());
        assert_eq!(
            attempt().result,
            Some(EvictionResult::Deferred("refused with 429".into()))
        );
        assert!(!attempt().in_flight);
        evictions.keep_only("n", &[]);
        assert_eq!(evictions.attempt("u"), None);
    }
}
