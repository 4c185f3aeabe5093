//! The target pods of a migration.

use std::sync::Arc;

use drydock_api::kubevirt::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use k8s_openapi::api::core::v1::Pod;

use crate::{instance::ending::rejection, launcher_pod::made_for};

/// Returns the pods that were created for a migration.
pub(super) fn pods_of<'a>(
    migration: &VirtualMachineInstanceMigration,
    pods: &'a [Arc<Pod>],
) -> impl Iterator<Item = &'a Arc<Pod>> {
    let uid = migration.metadata.uid.as_deref();
    pods.iter().filter(move |pod| uid.is_some() && made_for(pod) == uid)
}

/// Returns the target pod of a migration. Prefers a pod that its kubelet has not rejected.
pub fn pod_of<'a>(migration: &VirtualMachineInstanceMigration, pods: &'a [Arc<Pod>]) -> Option<&'a Arc<Pod>> {
    pods_of(migration, pods).min_by_key(|pod| rejection(pod).is_some())
}

/// Returns the VMI from which the target pod of a migration is created: with the node selector that the migration adds.
/// The VMI's own node selector has precedence.
pub fn for_target_pod(
    instance: &VirtualMachineInstance,
    migration: &VirtualMachineInstanceMigration,
) -> VirtualMachineInstance {
    let mut instance = instance.clone();
    let own = &mut instance.spec.node_selector;
    for (key, value) in &migration.spec.added_node_selector {
        own.entry(key.clone()).or_insert_with(|| value.clone());
    }
    instance
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn added_node_selector_does_not_replace_the_instances_own() {
        for (own, added, expected) in [
            (json!({}), json!({}), json!({})),
            (json!({"zone": "a"}), json!({}), json!({"zone": "a"})),
            (json!({}), json!({"disk": "ssd"}), json!({"disk": "ssd"})),
            (
                json!({"zone": "a"}),
                json!({"zone": "b", "disk": "ssd"}),
                json!({"zone": "a", "disk": "ssd"}),
            ),
        ] {
            let instance =
                json!({"metadata": {"name": "vm"}, "spec": {"domain": {"devices": {}}, "nodeSelector": own}});
            let migration = json!({"metadata": {"name": "m"}, "spec": {"vmiName": "vm", "addedNodeSelector": added}});
            let made = for_target_pod(
                &serde_json::from_value(instance).unwrap(),
                &serde_json::from_value(migration).unwrap(),
            );
            let found: Value = serde_json::to_value(&made.spec.node_selector).unwrap();
            assert_eq!(found, expected, "{added}");
        }
    }
}
