//! The configuration in force, for all tasks that depend on it.
//!
//! Each process reads the objects itself and resolves them with the same function as the agents. Only the agents can
//! determine whether a minimum CPU model exists, and they report a model that they refuse. Whether the default CPU
//! model for virtual machines exists depends on all nodes together. Only the controller uses that model, so only the
//! controller refuses it.

use std::sync::Arc;

use drydock_api::{HyperConverged, Hypervisor, legacy::CONFIG_MAP};
use drydock_core::configuration::{
    Configuration,
    default_model::{self, ModelChoice, ModelVerdict},
    gathering::sources,
    resolve,
};
use drydock_runtime::{Cache, Process, Trigger, Watch, WatchStarter};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use parking_lot::RwLock;
use tokio::sync::watch;

/// The configuration in force, which is the built-in one until the actual one is known. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigurationInForce {
    held: Arc<RwLock<ResolvedConfiguration>>,
    /// Whether the objects have been read; `None` if the configuration does not depend on objects.
    resolved: Option<watch::Receiver<bool>>,
}

#[derive(Debug, Default)]
struct ResolvedConfiguration {
    configuration: Arc<Configuration>,
    default_model: Option<ModelVerdict>,
}

impl ConfigurationInForce {
    /// Starts watching the legacy objects. The built-in configuration is in force until the resolver runs, and it runs
    /// when `changed` is notified: a HyperConverged has changed, or nodes may have other CPU models.
    pub(crate) fn start(
        client: &Client,
        watches: &WatchStarter,
        hyperconvergeds: Cache<HyperConverged>,
        namespaces: Vec<String>,
        changed: Trigger,
    ) -> (Self, Resolver) {
        let config_maps = Watch::<ConfigMap>::all(client.clone(), "legacy configuration")
            .fields(format!("metadata.name={CONFIG_MAP}"))
            .prune(|map| map.binary_data = None)
            .wakes(&changed);
        let (read, resolved) = watch::channel(false);
        let in_force = Self {
            resolved: Some(resolved),
            ..Self::default()
        };
        let resolver = Resolver {
            config_maps: watches.start(config_maps),
            hyperconvergeds,
            namespaces,
            in_force: in_force.clone(),
            read,
            changed,
        };
        (in_force, resolver)
    }

    /// Returns this configuration. It counts as resolved once the returned sender sends `true`.
    #[cfg(test)]
    pub(crate) fn pending(configuration: Configuration) -> (Self, watch::Sender<bool>) {
        let (read, resolved) = watch::channel(false);
        let in_force = Self {
            held: Arc::new(RwLock::new(ResolvedConfiguration {
                configuration: Arc::new(configuration),
                default_model: None,
            })),
            resolved: Some(resolved),
        };
        (in_force, read)
    }

    /// Returns the current configuration.
    pub(crate) fn get(&self) -> Arc<Configuration> {
        Arc::clone(&self.held.read().configuration)
    }

    /// Waits until the objects have been read once. Until then the built-in defaults are in force, which must not
    /// override the administrator's configuration.
    pub(crate) async fn resolved(&self) {
        if let Some(mut resolved) = self.resolved.clone() {
            // The resolver only ends with the process.
            let _ = resolved.wait_for(|resolved| *resolved).await;
        }
    }

    /// Returns the verdict on the configured default CPU model for virtual machines.
    pub(crate) fn default_model(&self) -> Option<ModelVerdict> {
        self.held.read().default_model.clone()
    }

    /// Puts a configuration and a verdict in force. Returns whether either has changed.
    fn set(&self, configuration: Configuration, default_model: Option<ModelVerdict>) -> bool {
        let mut held = self.held.write();
        let changes = *held.configuration != configuration || held.default_model != default_model;
        if changes {
            *held = ResolvedConfiguration {
                configuration: Arc::new(configuration),
                default_model,
            };
        }
        changes
    }
}

/// Resolves the configuration from objects.
pub(crate) struct Resolver {
    config_maps: Cache<ConfigMap>,
    hyperconvergeds: Cache<HyperConverged>,
    namespaces: Vec<String>,
    in_force: ConfigurationInForce,
    read: watch::Sender<bool>,
    changed: Trigger,
}

impl Resolver {
    /// Runs until the process stops; `on_change` is called on each change. `hypervisors` contains all of them.
    pub(crate) fn start(
        self,
        process: &Process,
        hypervisors: Cache<Hypervisor>,
        on_change: impl Fn() + Send + 'static,
    ) {
        let stopping = process.stopping();
        process.spawn_critical("resolving configuration", async move {
            stopping.run_until_cancelled(self.run(hypervisors, on_change)).await;
        });
    }

    async fn run(self, hypervisors: Cache<Hypervisor>, on_change: impl Fn()) {
        // The facts of nodes are used only when all of them are known. Otherwise a missing model would look like a
        // typing error.
        tokio::join!(
            self.config_maps.wait_until_synced(),
            self.hyperconvergeds.wait_until_synced(),
            hypervisors.wait_until_synced()
        );
        let (mut last_good, mut last_model) = (None, None);
        loop {
            let sources = sources(&self.config_maps.all(), &self.hyperconvergeds.all(), &self.namespaces);
            let resolution = resolve(sources, |_| None, last_good.as_ref());
            let mut configuration = resolution.configuration.clone();
            // While an object has been refused from the start, the configuration in force does not come from the
            // administrator.
            if !resolution.refused() {
                last_good = Some(resolution.configuration);
            }
            let ModelChoice { model, verdict } = if configuration.default_cpu_model.is_some() {
                let nodes = hypervisors.all();
                let facts = nodes.iter().filter_map(|node| node.status.as_ref()?.facts.as_deref());
                default_model::choose(&configuration, last_model.as_deref(), facts)
            } else {
                ModelChoice::default()
            };
            last_model.clone_from(&model);
            configuration.default_cpu_model = model;
            if self.in_force.set(configuration, verdict) {
                on_change();
            }
            self.read.send_replace(true);
            self.changed.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn configuration_is_awaited_until_resolved() {
        let emulating = Configuration {
            use_emulation: true,
            ..Configuration::default()
        };
        let (in_force, read) = ConfigurationInForce::pending(Configuration::default());
        assert!(in_force.resolved().now_or_never().is_none());
        assert!(!in_force.set(Configuration::default(), None), "it is the built-in one");
        assert!(in_force.set(emulating.clone(), None));
        read.send_replace(true);
        assert!(in_force.resolved().now_or_never().is_some());
        assert_eq!(*in_force.get(), emulating);
        assert!(ConfigurationInForce::default().resolved().now_or_never().is_some());
    }
}
