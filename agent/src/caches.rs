//! Caches of the objects that the agent watches: its own Node and Hypervisor, and the configuration.

use std::sync::Arc;

use drydock_api::{HyperConverged, Hypervisor, legacy::CONFIG_MAP};
use drydock_runtime::{Cache, Key, Trigger, Watch, WatchStarter};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{Client, api::PartialObjectMeta};

/// The caches, with one trigger for changes in any of them.
pub(crate) struct AgentCaches {
    name: Key,
    changed: Trigger,
    nodes: Cache<PartialObjectMeta<Node>>,
    hypervisors: Cache<Hypervisor>,
    config_maps: Cache<ConfigMap>,
    hyperconvergeds: Cache<HyperConverged>,
}

impl AgentCaches {
    /// Starts watching for the node called `name`.
    pub(crate) fn start(client: &Client, watches: &WatchStarter, name: &str) -> Self {
        let changed = Trigger::new();
        let client = || client.clone();
        // The agent reads only the labels and annotations of the Node, so the watch requests only its metadata.
        let nodes = Watch::<PartialObjectMeta<Node>>::one(client(), name, "node").wakes(&changed);
        let hypervisors = Watch::<Hypervisor>::one(client(), name, "hypervisor")
            .prune(without_drain)
            .wakes(&changed);
        // Selected by name: the agent needs no other ConfigMap, and its RBAC does not allow reading others.
        let config_maps = Watch::<ConfigMap>::all(client(), "legacy configuration")
            .fields(format!("metadata.name={CONFIG_MAP}"))
            .prune(|map| map.binary_data = None)
            .wakes(&changed);
        let hyperconvergeds = Watch::<HyperConverged>::all(client(), "configuration")
            .optional()
            .prune(|object| {
                object.status = None;
                object.spec.other.clear();
            })
            .wakes(&changed);
        Self {
            name: Key::cluster(name),
            nodes: watches.start(nodes),
            hypervisors: watches.start(hypervisors),
            config_maps: watches.start(config_maps),
            hyperconvergeds: watches.start(hyperconvergeds),
            changed,
        }
    }

    /// Creates caches that contain these objects.
    #[cfg(test)]
    pub(crate) fn filled(name: &str, node: Option<PartialObjectMeta<Node>>, hypervisor: Option<Hypervisor>) -> Self {
        Self {
            name: Key::cluster(name),
            changed: Trigger::new(),
            nodes: Cache::filled(node),
            hypervisors: Cache::filled(hypervisor),
            config_maps: Cache::filled([]),
            hyperconvergeds: Cache::filled([]),
        }
    }

    /// Waits until the caches are synced.
    pub(crate) async fn synced(&self) {
        tokio::join!(
            self.nodes.wait_until_synced(),
            self.hypervisors.wait_until_synced(),
            self.config_maps.wait_until_synced(),
            self.hyperconvergeds.wait_until_synced(),
        );
    }

    /// Returns the trigger that wakes the waiters in [`changed`](Self::changed).
    pub(crate) fn signal(&self) -> &Trigger {
        &self.changed
    }

    /// Waits for a change since the last call.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the Node.
    pub(crate) fn node(&self) -> Option<PartialObjectMeta<Node>> {
        self.nodes.get(&self.name).map(Arc::unwrap_or_clone)
    }

    /// Returns the node's Hypervisor.
    pub(crate) fn hypervisor(&self) -> Option<Arc<Hypervisor>> {
        self.hypervisors.get(&self.name)
    }

    /// Returns the ConfigMaps with the configuration's name, from all namespaces.
    pub(crate) fn config_maps(&self) -> Vec<Arc<ConfigMap>> {
        self.config_maps.all()
    }

    /// Returns the HyperConvergeds of all namespaces.
    pub(crate) fn hyperconvergeds(&self) -> Vec<Arc<HyperConverged>> {
        self.hyperconvergeds.all()
    }
}

/// Drops the part of the status that the controller writes, because the agent does not use it.
pub(crate) fn without_drain(hypervisor: &mut Hypervisor) {
    if let Some(status) = &mut hypervisor.status {
        status.drain = None;
    }
}
