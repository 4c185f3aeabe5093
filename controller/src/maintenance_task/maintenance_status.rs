//! Writes to maintenances and to their nodes.

use drydock_api::maintenance::{FIELD_MANAGER, Group, NodeMaintenance, NodeMaintenanceStatus};
use drydock_core::maintenance::node_changes::{self, MaintenanceStage};
use drydock_runtime::{Key, apply_status, clock};
use k8s_openapi::api::core::v1::Node;
use kube::{
    ResourceExt,
    api::{ObjectMeta, Patch},
};
use serde_json::{Map, Value, json};
use tracing::{debug, info};

use super::{MaintenanceTask, StepResult};
use crate::{reconciler::ReconcileError, requests::patching};

impl MaintenanceTask {
    /// Writes the finalizers.
    pub(super) async fn write_finalizers(
        &self,
        group: Group,
        key: &Key,
        object: &NodeMaintenance,
        finalizers: &[String],
    ) -> Result<StepResult, ReconcileError> {
        let patch = json!({"metadata": {
            "uid": object.uid(),
            "resourceVersion": object.resource_version(),
            "finalizers": finalizers,
        }});
        let patched = self
            .api(group)
            .patch(&key.name, &patching(), &Patch::Merge(patch))
            .await;
        self.took(group, key, patched).await
    }

    /// Writes the changed fields of the status.
    pub(super) async fn report(
        &self,
        group: Group,
        key: &Key,
        object: &NodeMaintenance,
        status: &NodeMaintenanceStatus,
    ) -> Result<StepResult, ReconcileError> {
        let before = object.status.clone().unwrap_or_default();
        let patch = json!({
            "metadata": {"uid": object.uid(), "resourceVersion": object.resource_version()},
            "status": changed(&json!(before), &json!(status)),
        });
        let api = self.api(group);
        let patched = api.patch_status(&key.name, &patching(), &Patch::Merge(patch)).await;
        let done = self.took(group, key, patched).await?;
        if done == StepResult::Yes {
            log(key, group, object, &before, status);
        }
        Ok(done)
    }

    /// Records the API server's response to a write.
    async fn took(
        &self,
        group: Group,
        key: &Key,
        patched: kube::Result<NodeMaintenance>,
    ) -> Result<StepResult, ReconcileError> {
        let (done, newest) = match patched {
            Ok(written) => (StepResult::Yes, Some(written)),
            Err(kube::Error::Api(status)) if status.is_conflict() => {
                (StepResult::Changed, self.api(group).get_opt(&key.name).await?)
            }
            // The maintenance was deleted. The watch will show it.
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(StepResult::Gone),
            Err(error) => return Err(error.into()),
        };
        if let Some(newest) = newest {
            self.maintenances.of_group(group).remember(key, newest);
        }
        Ok(done)
    }

    /// Patches a node if it has not changed since it was read.
    pub(super) async fn patch_node(&self, node: &Node, mut patch: Value) -> Result<StepResult, ReconcileError> {
        patch["metadata"]["resourceVersion"] = json!(node.resource_version());
        patch["metadata"]["uid"] = json!(node.uid());
        let name = node.name_any();
        let (done, newest) = match self.node_api.patch(&name, &patching(), &Patch::Merge(patch)).await {
            Ok(written) => (StepResult::Yes, Some(written)),
            Err(kube::Error::Api(status)) if status.is_conflict() => {
                (StepResult::Changed, self.node_api.get_opt(&name).await?)
            }
            Err(error) => return Err(error.into()),
        };
        if let Some(newest) = newest {
            self.nodes.nodes.remember(&Key::cluster(&name), newest);
        }
        Ok(done)
    }

    pub(super) async fn write_condition(
        &self,
        node: &str,
        maintenance: &str,
        stage: MaintenanceStage,
    ) -> Result<(), ReconcileError> {
        let metadata = ObjectMeta {
            name: Some(node.to_owned()),
            ..ObjectMeta::default()
        };
        let status = json!({"conditions": [node_changes::condition(stage, maintenance, clock::now())]});
        let written = apply_status(&self.node_api, metadata, FIELD_MANAGER, status).await?;
        self.nodes.nodes.remember(&Key::cluster(node), written);
        Ok(())
    }
}

/// Returns a merge patch with the fields of `after` that differ from `before`. Removed fields are null.
pub(super) fn changed(before: &Value, after: &Value) -> Value {
    let empty = Map::new();
    let (before, after) = (
        before.as_object().unwrap_or(&empty),
        after.as_object().unwrap_or(&empty),
    );
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    let mut patch: Map<String, Value> = gone.map(|key| (key.clone(), Value::Null)).collect();
    for (key, value) in after {
        if before.get(key) != Some(value) {
            patch.insert(key.clone(), value.clone());
        }
    }
    patch.into()
}

/// Logs phases and errors for troubleshooting.
fn log(
    key: &Key,
    group: Group,
    object: &NodeMaintenance,
    before: &NodeMaintenanceStatus,
    after: &NodeMaintenanceStatus,
) {
    let (node, group) = (&object.spec.node_name, group.as_str());
    if before.phase != after.phase {
        info!(
            maintenance = %key,
            group,
            node,
            phase = after.phase,
            error = after.last_error,
            "the phase of the maintenance has changed"
        );
    }
    match (&before.last_error, &after.last_error) {
        (None, Some(error)) => {
            info!(maintenance = %key, group, node, error, "Reconciling with fixed duration");
        }
        (Some(_), Some(error)) => {
            debug!(maintenance = %key, group, node, error, "Reconciling with fixed duration");
        }
        (_, None) => {}
    }
}
