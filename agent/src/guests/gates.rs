//! The readiness gates of launcher pods, by which Kubernetes sends a Service's traffic to a pod only while its guest
//! runs there, and its readiness probe, if it has one, succeeds.
//!
//! A guest's task and a migration's both set them, each as soon as it sees the guest, and a watch shows what was
//! written only later. So what was written is kept by pod, and nothing is written twice.

use drydock_api::{AGENT_FIELD_MANAGER, kubevirt::names::GUEST_RUNNING};
use drydock_core::conditions::whole_seconds;
use drydock_runtime::{clock, has_shown};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::{
    Api, Client, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams},
};
use serde_json::json;

use super::LauncherPods;
use crate::metrics::Metrics;

/// The gates of this node's launcher pods. Clones are the same.
#[derive(Clone)]
pub(crate) struct Gates {
    client: Client,
    pods: LauncherPods,
    metrics: Metrics,
}

impl Gates {
    /// The gates of these pods.
    pub(crate) fn new(client: Client, pods: LauncherPods, metrics: Metrics) -> Self {
        Self { client, pods, metrics }
    }

    /// Opens or shuts a pod's gate, if it is not so already. A pod that is not there (any more) has none.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(crate) async fn set(&self, pod_uid: &str, open: bool) -> kube::Result<()> {
        let Some(written) = self.pods.written_gate(pod_uid) else {
            return Ok(());
        };
        // Held while the API server is asked: whoever else wants it sees then what it has answered.
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

    /// What of the pod is kept after it; nothing if it has gone.
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
        let parameters = PatchParams {
            field_manager: Some(AGENT_FIELD_MANAGER.into()),
            ..PatchParams::default()
        };
        match api
            .patch_status(&pod.name_any(), &parameters, &Patch::Strategic(patch))
            .await
        {
            Ok(pod) => Ok(Some(gate_only(pod))),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether a pod's gate is open, as its status says.
fn is_open(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|one| one.type_ == GUEST_RUNNING && one.status == "True")
}

/// What of a pod tells of its gate.
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
