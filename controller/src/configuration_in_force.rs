//! The configuration in force, for whoever decides by it.
//!
//! Each process reads the objects itself and resolves them by the same function as the agents do.
//! Only the agents can tell whether a minimum CPU model exists; what they refuse, they report.

use std::{
    convert::Infallible,
    sync::{Arc, PoisonError, RwLock},
};

use drydock_api::{HyperConverged, legacy::CONFIG_MAP};
use drydock_core::configuration::{Configuration, gathering::sources, resolve};
use drydock_runtime::{Cache, Process, Signal, Watch, Watches};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use tokio::sync::watch;

/// The configuration in force, which is the built-in one until it is known. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigurationInForce {
    held: Arc<RwLock<Arc<Configuration>>>,
    /// Whether the objects were read; `None` if there are none to be read.
    resolved: Option<watch::Receiver<bool>>,
}

impl ConfigurationInForce {
    /// Starts watching; `told` hears of each change.
    pub(crate) fn start(
        client: &Client,
        watches: &Watches,
        process: &Process,
        namespaces: Vec<String>,
        told: impl Fn() + Send + 'static,
    ) -> Self {
        let changed = Signal::new();
        let config_maps = Watch::<ConfigMap>::all(client.clone(), "legacy configuration")
            .fields(format!("metadata.name={CONFIG_MAP}"))
            .prune(|map| map.binary_data = None)
            .wakes(&changed);
        let hyperconvergeds = Watch::<HyperConverged>::all(client.clone(), "configuration in full")
            .optional()
            .prune(|object| {
                object.status = None;
                object.spec.other.clear();
            })
            .wakes(&changed);
        let (read, resolved) = watch::channel(false);
        let in_force = Self {
            resolved: Some(resolved),
            ..Self::default()
        };
        let resolver = Resolver {
            config_maps: watches.start(config_maps),
            hyperconvergeds: watches.start(hyperconvergeds),
            namespaces,
            in_force: in_force.clone(),
            read,
            changed,
        };
        let stopping = process.stopping();
        process.spawn_critical("resolving configuration", async move {
            stopping.run_until_cancelled(resolver.run(told)).await;
            Ok::<_, Infallible>(())
        });
        in_force
    }

    /// This one, once the returned sender says that it was resolved.
    #[cfg(test)]
    pub(crate) fn pending(configuration: Configuration) -> (Self, watch::Sender<bool>) {
        let (read, resolved) = watch::channel(false);
        let in_force = Self {
            held: Arc::new(RwLock::new(Arc::new(configuration))),
            resolved: Some(resolved),
        };
        (in_force, read)
    }

    /// The configuration as it is now.
    pub(crate) fn get(&self) -> Arc<Configuration> {
        Arc::clone(&self.held.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until the objects were read once: before, the built-in defaults are in force, by which nobody may lose
    /// what the administrator wants.
    pub(crate) async fn resolved(&self) {
        if let Some(mut resolved) = self.resolved.clone() {
            // The resolver only ends with the process.
            let _ = resolved.wait_for(|resolved| *resolved).await;
        }
    }

    /// Puts another one in force. Returns whether it is another one.
    fn set(&self, configuration: Configuration) -> bool {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        let changes = **held != configuration;
        if changes {
            *held = Arc::new(configuration);
        }
        changes
    }
}

struct Resolver {
    config_maps: Cache<ConfigMap>,
    hyperconvergeds: Cache<HyperConverged>,
    namespaces: Vec<String>,
    in_force: ConfigurationInForce,
    read: watch::Sender<bool>,
    changed: Signal,
}

impl Resolver {
    async fn run(self, told: impl Fn()) {
        tokio::join!(self.config_maps.answered(), self.hyperconvergeds.answered());
        let mut last_good = None;
        loop {
            let sources = sources(&self.config_maps.all(), &self.hyperconvergeds.all(), &self.namespaces);
            let resolution = resolve(sources, |_| None, last_good.as_ref());
            last_good = Some(resolution.configuration.clone());
            if self.in_force.set(resolution.configuration) {
                told();
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
    fn it_is_not_known_before_it_is_resolved() {
        let in_force = ConfigurationInForce::default();
        assert!(in_force.answered().now_or_never().is_none());
        assert!(!in_force.set(Configuration::default()), "it is the built-in one");
        assert!(in_force.answered().now_or_never().is_some());
        let emulating = Configuration {
            use_emulation: true,
            ..Configuration::default()
        };
        assert!(in_force.set(emulating.clone()));
        assert_eq!(*in_force.get(), emulating);
    }
}
