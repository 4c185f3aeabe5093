//! Status patches and events of one side of a migration.

use drydock_api::{
    AGENT_FIELD_MANAGER,
    kubevirt::{
        VirtualMachineInstanceMigration,
        migration::{MigrationSource, MigrationTarget, SourceState},
    },
};
use drydock_core::migration::{
    record::MigrationRecord,
    status::{POST_COPY_BROKEN, POST_COPY_BROKEN_MESSAGE, post_copy_is_reported_broken},
};
use drydock_runtime::{Event, Events, Key, Severity, apply_status, identity_of};
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use serde_json::{Value, json};
use tracing::warn;

use super::seen;
use crate::{guests::TaskContext, tunnel::local::Role};

/// Reads a migration from the API server, past every cache; `None` if it no longer exists.
///
/// A task must know the reports of an earlier process before it acts for its side.
///
/// # Errors
/// If the request to the API server fails.
pub(super) async fn now(
    client: &Client,
    migration: &VirtualMachineInstanceMigration,
) -> kube::Result<Option<VirtualMachineInstanceMigration>> {
    let api =
        Api::<VirtualMachineInstanceMigration>::namespaced(client.clone(), &migration.namespace().unwrap_or_default());
    let found = api.get_opt(&migration.name_any()).await?;
    Ok(found.filter(|found| found.uid() == migration.uid()).map(|mut found| {
        found.metadata.managed_fields = None;
        found
    }))
}

/// Returns whether the pod of a side was removed. Its end was not observed in this case.
///
/// The removal is certain once two conditions hold. The kubelet has removed the pod's folder, which it does after the
/// pod's containers have ended. The API server, read past every cache, does not have the pod.
///
/// # Errors
/// If the request to the API server fails.
pub(super) async fn pod_has_gone(
    shared: &TaskContext,
    migration: &VirtualMachineInstanceMigration,
    role: Role,
) -> kube::Result<bool> {
    let status = migration.status.as_ref();
    let name = match role {
        Role::Source => status.and_then(|status| status.source.as_ref()?.pod.as_deref()),
        Role::Target => status.and_then(|status| status.target.as_ref()?.pod.as_deref()),
        Role::Unknown => None,
    };
    let Some((name, uid)) = name.zip(seen::pod_uid(migration, role)) else {
        return Ok(false);
    };
    if shared.kubelet.join("pods").join(uid).exists() {
        return Ok(false);
    }
    let api = Api::<Pod>::namespaced(shared.client.clone(), &migration.namespace().unwrap_or_default());
    // RBAC allows agents to list pods, but not to get a single pod.
    let named = ListParams::default().fields(&format!("metadata.name={name}"));
    let found = api.list_metadata(&named).await?.items;
    Ok(found.iter().all(|pod| pod.metadata.uid.as_deref() != Some(uid)))
}

/// Returns whether the object of this migration reports that post-copy is broken, regardless of the side that detected
/// it.
pub(super) fn that_post_copy_is_broken(migration: &VirtualMachineInstanceMigration) -> bool {
    migration.status.as_ref().is_some_and(post_copy_is_reported_broken)
}

/// Reports for a side that the rest of the guest can no longer arrive, unless either side has already reported it.
///
/// Does not change the guest on either side. Returns the migration if it was changed. Each side checks independently:
/// the target's libvirtd may wait for a QEMU that waits for the rest, and the source's node may no longer exist.
///
/// # Errors
/// If the request to the API server fails.
pub(super) async fn report_broken_post_copy(
    shared: &TaskContext,
    migration: &VirtualMachineInstanceMigration,
    role: Role,
) -> kube::Result<Option<VirtualMachineInstanceMigration>> {
    // This version cannot write back the values of a later version unchanged.
    if that_post_copy_is_broken(migration) || MigrationRecord::of(migration).is_unknown() {
        return Ok(None);
    }
    let before = migration.status.clone().unwrap_or_default();
    let (reason, message) = (Some(POST_COPY_BROKEN.into()), Some(POST_COPY_BROKEN_MESSAGE.into()));
    let written = match role {
        Role::Source => {
            let side = MigrationSource {
                reason,
                message,
                ..before.source.unwrap_or_default()
            };
            source(&shared.client, migration, &side).await?
        }
        Role::Target => {
            let side = MigrationTarget {
                reason,
                message,
                ..before.target.unwrap_or_default()
            };
            target(&shared.client, migration, &side).await?
        }
        Role::Unknown => return Ok(None),
    };
    warn!(
        migration = %Key::of(migration), migration_uid = migration.metadata.uid,
        "the connection of the post-copy migration is broken"
    );
    let note = POST_COPY_BROKEN_MESSAGE.into();
    record_event(&shared.events, migration, Severity::Warning, POST_COPY_BROKEN, note);
    Ok(Some(written))
}

/// Applies the agent's part of `status.source`.
///
/// # Errors
/// If the request to the API server fails.
pub(super) async fn source(
    client: &Client,
    migration: &VirtualMachineInstanceMigration,
    side: &MigrationSource,
) -> kube::Result<VirtualMachineInstanceMigration> {
    let own = MigrationSource {
        // The last progress is obsolete once the guest no longer migrates.
        progress: side
            .progress
            .clone()
            .filter(|_| !side.state.is_some_and(SourceState::is_final)),
        node: None,
        pod: None,
        pod_uid: None,
        ..side.clone()
    };
    apply(client, migration, "source", json!({"source": own})).await
}

/// Applies the agent's part of `status.target`.
///
/// # Errors
/// If the request to the API server fails.
pub(super) async fn target(
    client: &Client,
    migration: &VirtualMachineInstanceMigration,
    side: &MigrationTarget,
) -> kube::Result<VirtualMachineInstanceMigration> {
    let own = MigrationTarget {
        node: None,
        pod: None,
        pod_uid: None,
        ..side.clone()
    };
    apply(client, migration, "target", json!({"target": own})).await
}

async fn apply(
    client: &Client,
    migration: &VirtualMachineInstanceMigration,
    side: &str,
    status: Value,
) -> kube::Result<VirtualMachineInstanceMigration> {
    let api = Api::namespaced(client.clone(), &migration.namespace().unwrap_or_default());
    // The agents of both sides apply to the same object, but each applies only its own part.
    let manager = format!("{AGENT_FIELD_MANAGER}-{side}");
    let mut stored: VirtualMachineInstanceMigration =
        apply_status(&api, identity_of(migration), &manager, status).await?;
    stored.metadata.managed_fields = None;
    Ok(stored)
}

/// Records an event on the VMI that the migration names.
pub(super) fn record_event(
    events: &Events,
    migration: &VirtualMachineInstanceMigration,
    severity: Severity,
    reason: &'static str,
    note: String,
) {
    let related = migration.object_ref(&());
    let regarding = ObjectReference {
        kind: Some("VirtualMachineInstance".into()),
        name: Some(migration.spec.vmi_name.clone()),
        uid: migration.guest().and_then(|guest| guest.instance_uid.clone()),
        ..related.clone()
    };
    events.publish(Event {
        related: Some(related),
        ..Event::new(regarding, "Migrate", severity, reason, note)
    });
}
