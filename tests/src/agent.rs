//! Queries about agents and their objects.

use anyhow::Result;
use drydock_api::Hypervisor;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt};

use crate::{
    Cluster,
    watching::{until, until_some},
};

/// Returns the status and the reason of a Hypervisor's condition.
pub fn condition(hypervisor: &Hypervisor, type_: &str) -> (String, String) {
    hypervisor
        .status
        .iter()
        .flat_map(|status| &status.conditions)
        .find(|condition| condition.type_ == type_)
        .map(|condition| (condition.status.clone(), condition.reason.clone()))
        .unwrap_or_default()
}

impl Cluster {
    /// Waits until a label of a node has a value, or is absent if `value` is `None`.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub async fn until_label(&self, node: &str, key: &str, value: Option<&str>) -> Result<Node> {
        let what = format!("label {key} to be {value:?}");
        until(Api::all(self.client.clone()), node, &what, |node: &Node| {
            node.labels().get(key).map(String::as_str) == value
        })
        .await
    }

    /// Waits until a Hypervisor's condition has a status and a reason.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub async fn until_condition(&self, node: &str, type_: &str, status: &str, reason: &str) -> Result<Hypervisor> {
        let what = format!("condition {type_} to be {status} {reason}");
        until(Api::all(self.client.clone()), node, &what, |hypervisor: &Hypervisor| {
            condition(hypervisor, type_) == (status.to_owned(), reason.to_owned())
        })
        .await
    }

    /// Waits until there is one agent pod on the node, ready and not `before`, and returns its UID.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub async fn until_new_agent(&self, node: &str, before: &str) -> Result<String> {
        until_some("another agent pod", || async move {
            let Ok(pod) = self.agent_pod(node).await else {
                return Ok(None);
            };
            let uid = pod.uid().unwrap_or_default();
            Ok((uid != before && is_ready(&pod)).then_some(uid))
        })
        .await
    }
}

/// Returns whether a pod is ready.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns the number of container restarts in a pod.
pub fn restarts(pod: &Pod) -> i32 {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref());
    statuses.into_iter().flatten().map(|status| status.restart_count).sum()
}
