//! The target pods of a migration.

use std::sync::Arc;

use drydock_api::kubevirt::VirtualMachineInstanceMigration;
use k8s_openapi::api::core::v1::Pod;

use crate::launcher_pod::made_for;

/// Returns the pods that were created for a migration.
pub(super) fn pods_of<'a>(
    migration: &VirtualMachineInstanceMigration,
    pods: &'a [Arc<Pod>],
) -> impl Iterator<Item = &'a Arc<Pod>> {
    let uid = migration.metadata.uid.as_deref();
    pods.iter().filter(move |pod| uid.is_some() && made_for(pod) == uid)
}
