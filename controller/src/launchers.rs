//! Launcher pods. The tasks for instances and for migrations share them.
//!
//! - This module has the cached pods.
//! - [`new_pod`] decides on the requirements of new pods, and creates the pods.
//! - [`pod_requests`] sends other requests about pods.

mod new_pod;
mod pod_requests;

use std::sync::Arc;

use drydock_api::hyperconverged::EvictionStrategy;
use drydock_api::kubevirt::{
    VirtualMachine, VirtualMachineInstance,
    names::{APP, EVICTION_IN_PROGRESS, VIRT_LAUNCHER},
};
use drydock_core::{
    eviction::strategy,
    launcher_pod::{self, REQUIREMENTS_DIGEST},
};
use drydock_runtime::{AssumeCache, CacheChange, Index, Key, ListMode, Watch, WatchStarter};
use k8s_openapi::api::core::v1::{EphemeralContainer, Pod, PodSpec};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;

use crate::{
    claims::InstanceClaims,
    configuration_in_force::ConfigurationInForce,
    launcher_owner::{owner, owner_uid},
    mount_failures::MountFailures,
    nodes::Nodes,
    pdbs::Pdbs,
    reserved_nodes::ReservedNodes,
    rooms::Rooms,
};
pub(crate) use new_pod::{PodPurpose, native_architecture};
pub(crate) use pod_requests::PodDeletion;

/// Launcher pods, and the inputs of new ones. Clones share the caches.
#[derive(Clone)]
pub(crate) struct Launchers {
    client: Client,
    pods: AssumeCache<Pod>,
    by_owner: Index<Pod>,
    pub(crate) claims: InstanceClaims,
    mount_failures: MountFailures,
    machines: AssumeCache<VirtualMachine>,
    pub(crate) pdbs: Pdbs,
    pub(crate) nodes: Nodes,
    pub(crate) rooms: Rooms,
    pub(crate) reserved: ReservedNodes,
    pub(crate) configuration: ConfigurationInForce,
    image: String,
}

impl Launchers {
    /// Starts watching; `on_change` is called with the instance of each pod that has changed, and with the UID of the
    /// migration for which the pod was created. `image` is the image of launcher pods.
    #[expect(
        clippy::too_many_arguments,
        reason = "the arguments are the shared caches, and the function has one caller"
    )]
    pub(crate) fn start(
        client: &Client,
        watches: &WatchStarter,
        machines: AssumeCache<VirtualMachine>,
        (nodes, rooms): (Nodes, Rooms),
        pdbs: Pdbs,
        configuration: ConfigurationInForce,
        image: String,
        on_change: impl FnMut(Key, Option<&str>) + Send + 'static,
    ) -> Self {
        let on_change = Arc::new(Mutex::new(on_change));
        let enqueue = move |pod: &Pod| {
            if let Some((instance, _)) = owner(pod) {
                (*on_change.lock())(instance, launcher_pod::made_for(pod));
            }
        };
        let of_mounts = enqueue.clone();
        let by_owner = Index::by(owner_uid);
        let pods = Watch::<Pod>::all(client.clone(), "launcher pods")
            .listing(ListMode::Streamed)
            .labels(format!("{APP}={VIRT_LAUNCHER}"))
            .compressed();
        let pods = AssumeCache::start(
            watches,
            pods,
            prune_pod,
            std::slice::from_ref(&by_owner),
            move |change| {
                if let CacheChange::Object { old, new, .. } = change
                    && let Some(pod) = new.as_deref().or(old.as_deref())
                {
                    enqueue(pod);
                }
            },
        );
        let of_pods = pods.clone();
        let mount_failures = MountFailures::start(client, watches, move |pod| {
            // If the cache does not have the pod yet, its instance is reconciled when the pod is shown.
            if let Some(pod) = of_pods.get(&pod) {
                of_mounts(&pod);
            }
        });
        Self {
            pods,
            claims: InstanceClaims::start(client, watches),
            mount_failures,
            machines,
            client: client.clone(),
            by_owner,
            pdbs,
            nodes,
            rooms,
            reserved: ReservedNodes::default(),
            configuration,
            image,
        }
    }

    /// Creates the caches with the given objects.
    #[cfg(test)]
    pub(crate) fn filled(client: &Client, pods: impl IntoIterator<Item = Pod>, nodes: Nodes, pdbs: Pdbs) -> Self {
        let by_owner = Index::by(owner_uid);
        Self {
            client: client.clone(),
            pods: AssumeCache::of_cache(drydock_runtime::Cache::filled(pods), std::slice::from_ref(&by_owner)),
            by_owner,
            claims: InstanceClaims::default(),
            mount_failures: MountFailures::default(),
            machines: AssumeCache::filled([]),
            pdbs,
            nodes,
            rooms: Rooms::default(),
            reserved: ReservedNodes::default(),
            configuration: ConfigurationInForce::default(),
            image: "image".into(),
        }
    }

    /// Replaces the pods that the watch shows.
    #[cfg(test)]
    pub(crate) fn show(&self, pods: impl IntoIterator<Item = Pod>) {
        self.pods.show(pods);
    }

    /// Returns the pod with this key as the watch shows it.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Pod>> {
        self.pods.shown().get(key)
    }

    /// Returns the effect of an eviction of an instance's pod: the instance's own strategy, or else the cluster's
    /// current one.
    pub(crate) fn eviction_strategy(&self, instance: &VirtualMachineInstance) -> EvictionStrategy {
        let names_one = instance.spec.eviction_strategy.is_some();
        let machine = names_one
            .then(|| self.machines.shown().get(&Key::of(instance)))
            .flatten();
        strategy::in_force(instance, machine.as_deref(), self.configuration.get().eviction_strategy)
    }

    /// Waits until the caches are synced.
    pub(crate) async fn wait_until_synced(&self) {
        tokio::join!(
            self.pods.shown().wait_until_synced(),
            self.claims.wait_until_synced(),
            self.rooms.wait_until_synced(),
            self.mount_failures.wait_until_synced(),
            self.machines.shown().wait_until_synced(),
            self.configuration.resolved(),
            self.pdbs.wait_until_synced(),
            self.nodes.wait_until_synced(),
        );
    }

    /// Returns the pods of an instance from the cache, including those that this process has just created.
    pub(crate) fn of(&self, instance: &VirtualMachineInstance) -> Vec<Arc<Pod>> {
        self.pods.by(&self.by_owner, &instance.uid().unwrap_or_default())
    }

    /// Returns the last kubelet messages about volumes that cannot be mounted into these pods, by the pod's UID.
    pub(crate) fn unmounted(&self, pods: &[Arc<Pod>]) -> Vec<(String, String)> {
        let uids = pods.iter().filter_map(|pod| pod.uid());
        uids.filter_map(|uid| Some((uid.clone(), self.mount_failures.of(&uid)?)))
            .collect()
    }

    /// Returns the pod in which an instance's guest runs, as reported by its agent.
    fn running_pod(&self, instance: &VirtualMachineInstance) -> Option<Arc<Pod>> {
        running_among(&self.of(instance), instance).cloned()
    }
}

/// Returns the pod of an instance in which its guest runs, as reported by its agent.
fn running_among<'p>(pods: &'p [Arc<Pod>], instance: &VirtualMachineInstance) -> Option<&'p Arc<Pod>> {
    let uid = instance.status.as_ref()?.drydock.as_ref()?.pod_uid.as_deref()?;
    pods.iter().find(|pod| pod.metadata.uid.as_deref() == Some(uid))
}

/// Keeps the fields of a launcher pod that decisions depend on.
fn prune_pod(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.retain(|key, _| [REQUIREMENTS_DIGEST, EVICTION_IN_PROGRESS].contains(&key.as_str()));
    }
    let arrives = launcher_pod::made_for(pod).is_some();
    if let Some(spec) = &mut pod.spec {
        // A target pod needs its image volumes. For other pods only the names of the ephemeral containers matter.
        let images = spec.volumes.take().filter(|_| arrives).map(|mut volumes| {
            volumes.retain(|volume| volume.image.is_some());
            volumes
        });
        let probes = spec.ephemeral_containers.take().map(|containers| {
            let name = |container: EphemeralContainer| EphemeralContainer {
                name: container.name,
                ..EphemeralContainer::default()
            };
            containers.into_iter().map(name).collect()
        });
        *spec = PodSpec {
            node_name: spec.node_name.take(),
            scheduler_name: spec.scheduler_name.take(),
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            volumes: images,
            ephemeral_containers: probes,
            ..PodSpec::default()
        };
    }
    if let Some(status) = &mut pod.status {
        status.ephemeral_container_statuses = None;
        let (own, before) = (&mut status.container_statuses, &mut status.init_container_statuses);
        for container in own.iter_mut().chain(before).flatten() {
            container.last_state = None;
            container.volume_mounts = None;
            container.resources = None;
            container.allocated_resources = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requirements_digest_of_a_pod_survives_pruning() {
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "resourceVersion": "7", "annotations": {"note": "n", REQUIREMENTS_DIGEST: "d"}},
            "spec": {"containers": []},
        }))
        .unwrap();
        prune_pod(&mut pod);
        assert_eq!(
            pod.metadata.annotations,
            Some([(REQUIREMENTS_DIGEST.to_owned(), "d".to_owned())].into())
        );
        assert_eq!(pod.metadata.resource_version.as_deref(), Some("7"));
    }
}
