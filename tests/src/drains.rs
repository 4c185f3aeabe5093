//! Drains of nodes in tests: the guests on them, and the reported progress.

use anyhow::{Context, Result};
use drydock_api::{
    Hypervisor, NodeMaintenance,
    hypervisor::{DrainStatus, RemainingState},
    kubevirt::{VirtualMachineInstance, names::conditions as types},
    maintenance::Group,
};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, ResourceQuota},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};

use crate::{
    Cluster,
    cluster::Begun,
    guests::{NAMESPACE, bare_instance, bare_spec, instance},
    migrations::node_of,
    watching::{until, until_some},
};

/// The flags in KubeVirt's documentation; `--delete-local-data` has become `--delete-emptydir-data`.
pub const FLAGS: [&str; 3] = ["--delete-emptydir-data", "--ignore-daemonsets=true", "--force"];
/// A flag that excludes all pods except those of guests.
pub const GUESTS_ALONE: &str = "--pod-selector=kubevirt.io=virt-launcher";
/// Host directory for ReadWriteOnce volumes.
pub const FOLDER: &str = "/var/lib/drydock-shared/test-drain";

/// Returns the cluster without guests and without leftovers of drain tests.
///
/// # Errors
/// If the cluster cannot be reached, or guests cannot be deleted.
pub async fn clean_for_drains() -> Result<Cluster> {
    let cluster = Cluster::without_guests().await?;
    cluster.delete_all::<PodDisruptionBudget>(NAMESPACE).await?;
    cluster.delete_all::<ResourceQuota>(NAMESPACE).await?;
    cluster.no_maintenance(Group::Medik8s).await?;
    delete_claims(&cluster).await?;
    Ok(cluster)
}

/// Names of the guests that cannot be migrated, and of their claims and volumes.
const IMMOVABLE: [&str; 2] = ["stuck", "restarting"];

/// Deletes the claims and the volumes of the guests that cannot be migrated.
///
/// A volume is created before its claim and deleted after it.
///
/// # Errors
/// If they cannot be deleted.
pub async fn delete_claims(cluster: &Cluster) -> Result<()> {
    let volumes = Api::<PersistentVolume>::all(cluster.client.clone());
    for name in IMMOVABLE {
        if volumes.get_metadata_opt(name).await?.is_some() {
            cluster.delete(&["pvc", name, "--namespace", NAMESPACE])?;
            cluster.delete(&["pv", name])?;
        }
    }
    Ok(())
}

impl Cluster {
    /// Deletes all NodeMaintenances of a group, and waits until their nodes are restored.
    ///
    /// # Errors
    /// If that fails.
    pub async fn no_maintenance(&self, group: Group) -> Result<()> {
        let all = Api::<NodeMaintenance>::all_with(self.client.clone(), &group);
        all.delete_collection(&DeleteParams::background(), &ListParams::default())
            .await?;
        until_some("the deletion of all maintenances", || async {
            let left = all.list_metadata(&ListParams::default()).await?;
            Ok(left.items.is_empty().then_some(()))
        })
        .await
    }
}

/// Returns the manifest of a counting guest with an eviction strategy.
pub fn counting(name: &str, strategy: &str) -> String {
    with_strategy(&bare_instance(name), strategy)
}

/// Returns the manifest of a counting guest with Linux and an eviction strategy.
///
/// The memory of this guest takes a while to move.
pub fn counting_on_linux(name: &str, strategy: &str) -> String {
    with_strategy(&instance(name, "count: 200ms"), strategy)
}

fn with_strategy(instance: &str, strategy: &str) -> String {
    instance.replace("spec:\n", &format!("spec:\n  evictionStrategy: {strategy}\n"))
}

/// Returns the manifest of a guest with a ReadWriteOnce claim, which prevents its migration.
pub fn immovable(name: &str, annotation: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec:\n  capacity: {{storage: 16Mi}}\n  \
         accessModes: [ReadWriteOnce]\n  storageClassName: \"\"\n  hostPath: {{path: {FOLDER}/{name}, type: DirectoryOrCreate}}\n  \
         claimRef: {{namespace: {NAMESPACE}, name: {name}}}\n---\n\
         apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\nspec:\n  \
         accessModes: [ReadWriteOnce]\n  storageClassName: \"\"\n  volumeName: {name}\n  resources: {{requests: {{storage: 16Mi}}}}\n---\n\
         apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\nspec:\n  \
         runStrategy: Always\n  template:\n    metadata: {{annotations: {{{annotation}}}}}\n    spec:\n      \
         evictionStrategy: LiveMigrate\n{}",
        // The guest boots from the first disk.
        bare_spec(6).replace(
            "      volumes:\n",
            &format!(
                "          - {{name: data, disk: {{bus: virtio}}}}\n      volumes:\n      \
                 - name: data\n        persistentVolumeClaim: {{claimName: {name}}}\n"
            )
        )
    )
}

/// Starts guests on the first node, and waits until their conditions `LiveMigratable` have the expected statuses.
///
/// Each entry has a name, a manifest, and the expected status of the condition.
///
/// # Errors
/// If a guest does not reach this state in time.
pub async fn started_on_the_first(cluster: &Cluster, guests: &[(&str, String, &str)]) -> Result<()> {
    cluster.cordon(cluster.second(), true).await?;
    for (_, manifest, _) in guests {
        cluster.apply(manifest).await?;
    }
    for (name, _, migratable) in guests {
        until_some(&format!("{name} to exist"), || async {
            Ok(cluster.instances().get_opt(name).await?)
        })
        .await?;
        cluster
            .until_vm_condition(name, types::LIVE_MIGRATABLE, migratable)
            .await?;
        cluster.until_console(name, "tick 3 ").await?;
    }
    cluster.cordon(cluster.second(), false).await
}

/// Runs `kubectl drain` with the flags in KubeVirt's documentation and `more`, and returns its output.
///
/// # Errors
/// If it fails, with its output.
pub fn drain(cluster: &Cluster, node: &str, more: &[&str]) -> Result<String> {
    cluster.kubectl(&drain_arguments(node, more))
}

/// Starts a drain like [`drain`] in the background.
///
/// # Errors
/// If kubectl cannot be run.
pub fn drain_begun(cluster: &Cluster, node: &str, more: &[&str]) -> Result<Begun> {
    cluster.kubectl_begun(&drain_arguments(node, more))
}

fn drain_arguments<'a>(node: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["drain", node];
    arguments.extend(FLAGS);
    arguments.extend(more);
    arguments
}

/// Waits until an instance is on a node.
///
/// # Errors
/// If that does not happen in time.
pub async fn until_on(cluster: &Cluster, name: &str, node: &str) -> Result<VirtualMachineInstance> {
    let is = |instance: &VirtualMachineInstance| node_of(instance).is_ok_and(|on| on == node);
    until(cluster.instances(), name, &format!("the guest to be on {node}"), is).await
}

/// Waits until a node's condition has a reason.
///
/// # Errors
/// If that does not happen in time.
pub async fn until_node_condition(cluster: &Cluster, node: &str, type_: &str, reason: &str) -> Result<()> {
    let has_reason = |node: &Node| {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|conditions| {
            conditions
                .iter()
                .any(|condition| condition.type_ == type_ && condition.reason.as_deref() == Some(reason))
        })
    };
    until(
        Api::all(cluster.client.clone()),
        node,
        &format!("{type_} {reason}"),
        has_reason,
    )
    .await
    .map(drop)
}

/// Waits until the status of a node's drain satisfies `is`, described by `what`.
///
/// # Errors
/// If that does not happen in time.
pub async fn until_drain(
    cluster: &Cluster,
    node: &str,
    what: &str,
    is: impl Fn(&DrainStatus) -> bool,
) -> Result<DrainStatus> {
    let of = |hypervisor: &Hypervisor| hypervisor.status.as_ref().and_then(|status| status.drain.clone());
    let hypervisor = until(
        Api::all(cluster.client.clone()),
        node,
        what,
        |hypervisor: &Hypervisor| of(hypervisor).is_some_and(|drain| is(&drain)),
    )
    .await?;
    of(&hypervisor).context("the Hypervisor reports no drain")
}

/// Returns the guests that are still on a node: name, state and reason, sorted.
pub fn left(drain: &DrainStatus) -> Vec<(&str, RemainingState, &str)> {
    let mut left: Vec<_> = drain
        .remaining
        .iter()
        .map(|guest| (guest.name.as_str(), guest.state, guest.reason.as_str()))
        .collect();
    left.sort_unstable();
    left
}

/// Returns the node that an instance has been requested to leave.
pub fn mark_of(instance: &VirtualMachineInstance) -> Option<String> {
    let node = instance.status.as_ref()?.evacuation_node_name.clone();
    node.filter(|node| !node.is_empty())
}
