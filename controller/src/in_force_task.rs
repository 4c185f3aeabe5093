//! Reports for each HyperConverged whether it is the cluster's configuration, and the nodes on which it is not in
//! force.

use std::{sync::Arc, time::Duration};

use drydock_api::{
    CONTROLLER_FIELD_MANAGER, HyperConverged, HyperConvergedStatus, Hypervisor,
    reasons::hyperconverged::{DEFAULT_CPU_MODEL_OFFERED, IN_FORCE},
};
use drydock_core::{
    conditions::condition,
    configuration::{Reference, choose, default_model::ModelVerdict, hyperconverged::KIND},
    in_force::judge,
};
use drydock_runtime::{Cache, apply_status, clock, lease::LeaderTerm};
use jiff::Timestamp;
use kube::{Api, Client, ResourceExt, api::ObjectMeta};

use crate::{
    configuration_in_force::ConfigurationInForce, metrics::ControllerMetrics, reconciler::triggered::Triggered,
    requests::unless_missing,
};

/// Determines which HyperConverged is in force, and reports it in the status of all of them.
pub(crate) struct InForceTask {
    client: Client,
    hyperconvergeds: Cache<HyperConverged>,
    hypervisors: Cache<Hypervisor>,
    namespaces: Vec<String>,
    configuration: ConfigurationInForce,
    metrics: ControllerMetrics,
}

impl Triggered for InForceTask {
    type Kept = ();
    const NAME: &'static str = "configurationstatus";
    const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
    const FAILURE: &'static str = "the status of a HyperConverged could not be written";

    async fn wait_until_synced(&self) {
        tokio::join!(
            self.hyperconvergeds.wait_until_synced(),
            self.hypervisors.wait_until_synced()
        );
    }

    async fn reconcile(&self, (): &mut (), term: &LeaderTerm) -> kube::Result<Option<Timestamp>> {
        self.judge_all(clock::now(), || term.is_valid()).await?;
        Ok(None)
    }
}

impl InForceTask {
    /// Creates the task over these caches.
    pub(crate) fn new(
        client: Client,
        (hyperconvergeds, hypervisors): (Cache<HyperConverged>, Cache<Hypervisor>),
        namespaces: Vec<String>,
        configuration: ConfigurationInForce,
        metrics: ControllerMetrics,
    ) -> Self {
        Self {
            hyperconvergeds,
            hypervisors,
            client,
            namespaces,
            configuration,
            metrics,
        }
    }

    /// Writes the status of each object whose status has changed, as long as `may_write`.
    ///
    /// # Errors
    /// The first error of a request to the API server, after the other objects were reported.
    async fn judge_all(&self, now: Timestamp, may_write: impl Fn() -> bool) -> kube::Result<()> {
        let objects = self.hyperconvergeds.all();
        let hypervisors = self.hypervisors.all();
        self.metrics
            .nodes
            .set(i64::try_from(hypervisors.len()).unwrap_or(i64::MAX));
        let references: Vec<Reference> = objects.iter().map(reference).collect();
        let choice = choose(&references, &self.namespaces);
        let mut result = Ok(());
        for (index, object) in objects.iter().enumerate() {
            let nodes = hypervisors.iter().map(|hypervisor| {
                let record = hypervisor
                    .status
                    .as_ref()
                    .and_then(|status| status.configuration.as_ref());
                (hypervisor.metadata.name.as_deref().unwrap_or_default(), record)
            });
            let found = judge(
                KIND,
                &references[index],
                choice.others.get(&index),
                &self.namespaces,
                nodes,
            );
            let mut default_model = None;
            if choice.in_force == Some(index) {
                self.metrics.following.set(found.following.into());
                default_model = self.configuration.default_model();
            }
            let found = found.with_default_model(default_model.as_ref());
            let before = object.status.clone().unwrap_or_default();
            let mut conditions = vec![condition(
                &before.conditions,
                IN_FORCE,
                found.status,
                found.reason,
                found.message,
                now,
            )];
            conditions.extend(default_model.map(|verdict| {
                let ModelVerdict {
                    status,
                    reason,
                    message,
                    ..
                } = verdict;
                condition(
                    &before.conditions,
                    DEFAULT_CPU_MODEL_OFFERED,
                    status,
                    reason,
                    message,
                    now,
                )
            }));
            let status = HyperConvergedStatus {
                conditions,
                observed_generation: object.metadata.generation,
                nodes_in_force: Some(found.following),
                nodes: Some(found.nodes),
            };
            if status != before && may_write() {
                // An object that cannot be reported does not delay the others.
                result = result.and(self.report(object, &status).await);
            }
        }
        result
    }

    async fn report(&self, object: &HyperConverged, status: &HyperConvergedStatus) -> kube::Result<()> {
        let namespace = object.namespace().unwrap_or_default();
        let api = Api::<HyperConverged>::namespaced(self.client.clone(), &namespace);
        let metadata = ObjectMeta {
            name: object.metadata.name.clone(),
            namespace: object.metadata.namespace.clone(),
            ..ObjectMeta::default()
        };
        // An object that was deleted in the meantime has no status to write.
        unless_missing(apply_status(&api, metadata, CONTROLLER_FIELD_MANAGER, status).await).map(drop)
    }
}

fn reference(object: &Arc<HyperConverged>) -> Reference {
    Reference {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        revision: object.metadata.generation.unwrap_or_default().to_string(),
    }
}

#[cfg(test)]
mod tests;
