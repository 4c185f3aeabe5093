//! Readiness gates of launcher pods.
//!
//! Kubernetes sends the traffic of a Service to a pod only while its gate is open. The gate is open while the guest
//! runs in the pod and its readiness probe, if any, succeeds. The guest's task and the migration's task both set the
//! gate as soon as they observe the guest, and the watch shows a write only later. Therefore the last write of each pod
//! is kept, and no write is repeated.

use drydock_api::kubevirt::names::GUEST_RUNNING;
use drydock_core::conditions::whole_seconds;
use drydock_runtime::{clock, has_shown};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::{
    Api, Client, ResourceExt,
    api::{ObjectMeta, Patch},
};
use serde_json::json;

use super::LauncherPods;
use crate::{metrics::AgentMetrics, request_params::patching};

/// The gates of this node's launcher pods. Clones share their state.
#[derive(Clone)]
pub(crate) struct Gates {
    client: Client,
    pods: LauncherPods,
    metrics: AgentMetrics,
}

impl Gates {
    /// Creates the gates of these pods.
    pub(crate) fn new(client: Client, pods: LauncherPods, metrics: AgentMetrics) -> Self {
        Self { client, pods, metrics }
    }

    /// Opens or closes the gate of a pod, unless the gate is already in that state. Does nothing if the pod does not
    /// exist.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(crate) async fn set(&self, pod_uid: &str, open: bool) -> kube::Result<()> {
        let Some(written) = self.pods.written_gate(pod_uid) else {
            return Ok(());
        };
        // The lock is held during the request to the API server, so that a concurrent caller uses the result.
        let mut written = written.lock().await;
        let Some(shown) = self.pods.with_uid(pod_uid) else {
            return Ok(());
        };
        drop(written.take_if(|written| has_shown(&*shown, written)));
        if is_open(written.as_ref().unwrap_or(&shown)) == open {
            return Ok(());
        }
        self.metrics.wrote("gate");
        *written = self.write(&shown, open).await?;
        Ok(())
    }

    /// Writes the gate. Returns the part of the pod to keep; `None` if the pod no longer exists.
    async fn write(&self, pod: &Pod, open: bool) -> kube::Result<Option<Pod>> {
        let api = Api::<Pod>::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let patch = json!({
            "metadata": {"uid": pod.uid()},
            "status": {"conditions": [{
                "type": GUEST_RUNNING,
                "status": if open { "True" } else { "False" },
                "lastTransitionTime": whole_seconds(clock::now()),
            }]},
        });
        match api
            .patch_status(&pod.name_any(), &patching(), &Patch::Strategic(patch))
            .await
        {
            Ok(pod) => Ok(Some(gate_only(pod))),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns whether a pod's gate is open according to its status.
fn is_open(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|one| one.type_ == GUEST_RUNNING && one.status == "True")
}

/// Reduces a pod to its readiness gate.
fn gate_only(pod: Pod) -> Pod {
    let mut conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
    conditions.retain(|one| one.type_ == GUEST_RUNNING);
    Pod {
        metadata: ObjectMeta {
            uid: pod.metadata.uid,
            resource_version: pod.metadata.resource_version,
            ..ObjectMeta::default()
        },
        spec: None,
        status: Some(PodStatus {
            conditions: Some(conditions),
            ..PodStatus::default()
        }),
    }
}

#[cfg(test)]
mod tests;
