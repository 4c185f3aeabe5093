//! Writes and reads of a guest's task at the API server.

use drydock_api::{
    AGENT_FIELD_MANAGER,
    kubevirt::{VirtualMachineInstance, VirtualMachineInstanceStatus, names::CREATED_BY},
};
use drydock_runtime::{Event, Events, Severity, apply_status, version_of};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};

/// Applies the agent's part of a VMI's status, if the VMI is unchanged since the read. Returns the patched VMI.
///
/// # Errors
/// If the request to the API server fails. The request fails with a conflict if the VMI has changed.
pub(super) async fn status(
    client: &Client,
    instance: &VirtualMachineInstance,
    status: &VirtualMachineInstanceStatus,
) -> kube::Result<VirtualMachineInstance> {
    let api = Api::<VirtualMachineInstance>::namespaced(client.clone(), &instance.namespace().unwrap_or_default());
    let mut stored = apply_status(&api, version_of(instance), AGENT_FIELD_MANAGER, status).await?;
    stored.metadata.managed_fields = None;
    Ok(stored)
}

/// Reads a VMI from the API server, past every cache; `None` if it no longer exists.
///
/// # Errors
/// If the request to the API server fails.
pub(super) async fn now(
    client: &Client,
    instance: &VirtualMachineInstance,
) -> kube::Result<Option<VirtualMachineInstance>> {
    let api = Api::<VirtualMachineInstance>::namespaced(client.clone(), &instance.namespace().unwrap_or_default());
    // RBAC allows agents to list VMIs, but not to get a single VMI.
    let parameters = ListParams::default().fields(&format!("metadata.name={}", instance.name_any()));
    let mut found = api.list(&parameters).await?.items;
    found.retain(|found| found.uid() == instance.uid());
    Ok(found.pop().map(|mut found| {
        found.metadata.managed_fields = None;
        found
    }))
}

/// Returns whether a VMI's launcher pod with this UID exists, read from the API server past every cache.
///
/// # Errors
/// If the request to the API server fails.
pub(super) async fn launcher_exists(
    client: &Client,
    instance: &VirtualMachineInstance,
    pod_uid: &str,
) -> kube::Result<bool> {
    let api = Api::<Pod>::namespaced(client.clone(), &instance.namespace().unwrap_or_default());
    let parameters = ListParams::default().labels(&format!("{CREATED_BY}={}", instance.uid().unwrap_or_default()));
    let pods = api.list_metadata(&parameters).await?.items;
    Ok(pods.iter().any(|pod| pod.metadata.uid.as_deref() == Some(pod_uid)))
}

/// Records an event on a VMI.
pub(super) fn publish_event(
    events: &Events,
    instance: &VirtualMachineInstance,
    severity: Severity,
    reason: &'static str,
    note: String,
) {
    events.publish(Event::new(instance.object_ref(&()), "Guest", severity, reason, note));
}
