//! Requests about launcher pods, other than their creation.

use std::sync::Arc;

use drydock_api::kubevirt::{VirtualMachineInstance, names::CREATED_BY};
use drydock_core::launcher_pod::pending::{StartingPod, newest_warning, pending};
use drydock_runtime::{Key, chain};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EphemeralContainer, Event, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;
use tracing::debug;

use super::Launchers;
use crate::{
    launcher_owner::controls,
    requests::{patching, unless_changed},
};

/// The preconditions and the grace period of a pod's deletion.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PodDeletion<'a> {
    /// UID that the pod must have.
    pub(crate) uid: &'a str,
    /// Resource version that the pod must have.
    pub(crate) version: Option<&'a str>,
    /// Grace period in seconds; `None` for the grace period of the pod.
    pub(crate) grace: Option<i64>,
}

impl<'a> PodDeletion<'a> {
    /// Returns the deletion of the pod with this UID, with the pod's own grace period.
    pub(crate) fn of(uid: &'a str) -> Self {
        Self { uid, ..Self::default() }
    }
}

impl Launchers {
    /// Sets an annotation of a pod, or removes it. Does nothing if the pod was deleted or replaced by another pod with
    /// its name.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(crate) async fn annotate(
        &self,
        instance: &VirtualMachineInstance,
        (name, uid): (&str, &str),
        key: &str,
        value: Option<&str>,
    ) -> kube::Result<()> {
        let patch = json!({"metadata": {"uid": uid, "annotations": {key: value}}});
        let parameters = PatchParams::default();
        let response = self
            .api(instance)
            .patch_metadata(name, &parameters, &Patch::Merge(patch))
            .await;
        unless_changed(response).map(drop)
    }

    /// Reads the pods of an instance from the API server, bypassing all caches.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(crate) async fn list(&self, instance: &VirtualMachineInstance) -> kube::Result<Vec<Arc<Pod>>> {
        let uid = instance.uid().unwrap_or_default();
        let parameters = ListParams::default().labels(&format!("{CREATED_BY}={uid}"));
        let pods = self.api(instance).list(&parameters).await?.items;
        Ok(pods
            .into_iter()
            .filter(|pod| controls(&uid, pod))
            .map(Arc::new)
            .collect())
    }

    /// Returns the state of a pod that is not running, with the obstacle to its start. Lists the events of the pod only
    /// if nothing else shows the reason.
    pub(crate) async fn pending(&self, pod: &Pod, now: Timestamp) -> StartingPod {
        let pending = pending(pod, now);
        if !pending.wants_events {
            return pending;
        }
        let uid = pod.uid().unwrap_or_default();
        let fields = format!("involvedObject.uid={uid},type=Warning");
        let api = Api::<Event>::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        match api.list(&ListParams::default().fields(&fields)).await {
            Ok(events) => pending.explained(newest_warning(&events.items)),
            Err(error) => {
                debug!(
                    pod = %Key::of(pod),
                    error = %chain(&error),
                    "could not list the events of a pod that does not start"
                );
                pending
            }
        }
    }

    /// Adds ephemeral containers to a pod.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(crate) async fn run_beside(
        &self,
        instance: &VirtualMachineInstance,
        name: &str,
        uid: &str,
        containers: &[EphemeralContainer],
    ) -> kube::Result<()> {
        let patch = json!({"metadata": {"uid": uid}, "spec": {"ephemeralContainers": containers}});
        let parameters = patching();
        let api = self.api(instance);
        api.patch_ephemeral_containers(name, &parameters, &Patch::Strategic(patch))
            .await?;
        Ok(())
    }

    /// Deletes a pod in a namespace. Returns whether the pod existed and had the given version.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(crate) async fn delete(&self, namespace: &str, name: &str, deletion: PodDeletion<'_>) -> kube::Result<bool> {
        let parameters = DeleteParams {
            grace_period_seconds: deletion.grace.and_then(|seconds| u32::try_from(seconds).ok()),
            preconditions: Some(Preconditions {
                uid: Some(deletion.uid.into()),
                resource_version: deletion.version.map(Into::into),
            }),
            ..DeleteParams::default()
        };
        let api = Api::<Pod>::namespaced(self.client.clone(), namespace);
        Ok(unless_changed(api.delete(name, &parameters).await)?.is_some())
    }

    pub(super) fn api(&self, instance: &VirtualMachineInstance) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &instance.namespace().unwrap_or_default())
    }
}
