//! Reports for each HyperConverged whether it is the cluster's configuration, and on which nodes it is not in force.

use std::sync::Arc;

use drydock_api::{
    CONTROLLER_FIELD_MANAGER, HyperConverged, HyperConvergedStatus, Hypervisor,
    reasons::hyperconverged::{DEFAULT_CPU_MODEL_OFFERED, IN_FORCE},
};
use drydock_core::{
    conditions::condition,
    configuration::{Reference, choose, default_model::Verdict, hyperconverged::KIND},
    in_force::judge,
};
use drydock_runtime::{
    Backoff, Cache, Process, Trigger, chain, clock,
    lease::{Leadership, Term},
};
use jiff::Timestamp;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use std::time::Duration;
use tracing::warn;

use crate::{configuration_in_force::ConfigurationInForce, metrics::Metrics};

/// Determines which HyperConverged is in force, and reports it in the status of all of them.
pub(crate) struct InForceTask {
    client: Client,
    hyperconvergeds: Cache<HyperConverged>,
    hypervisors: Cache<Hypervisor>,
    namespaces: Vec<String>,
    configuration: ConfigurationInForce,
    changed: Trigger,
    leadership: Leadership,
    metrics: Metrics,
    process: Process,
}

impl InForceTask {
    /// Creates the task over these caches. `changed` is notified when one of them or the configuration in force changes.
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of the process are put together in one place"
    )]
    pub(crate) fn new(
        client: Client,
        (hyperconvergeds, hypervisors): (Cache<HyperConverged>, Cache<Hypervisor>),
        namespaces: Vec<String>,
        configuration: ConfigurationInForce,
        leadership: Leadership,
        changed: Trigger,
        metrics: Metrics,
        process: Process,
    ) -> Self {
        Self {
            hyperconvergeds,
            hypervisors,
            client,
            namespaces,
            configuration,
            changed,
            leadership,
            metrics,
            process,
        }
    }

    /// Reconciles on every change while this process leads, until it stops.
    pub(crate) async fn run(mut self) {
        let stopping = self.process.stopping();
        while let Some(term) = stopping.run_until_cancelled(self.leadership.elected()).await {
            stopping.run_until_cancelled(self.reconcile(term)).await;
        }
    }

    /// Reconciles on every change until the leadership term ends.
    async fn reconcile(&self, term: Term) {
        tokio::join!(
            self.hyperconvergeds.wait_until_synced(),
            self.hypervisors.wait_until_synced()
        );
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
        loop {
            let now = clock::now();
            let mut wake = None;
            match self.judge_all(now, || term.is_valid()).await {
                Ok(()) => backoff.reset(),
                Err(error) => {
                    warn!(error = %chain(&error), "the status of a HyperConverged could not be written");
                    wake = Some(now + backoff.delay());
                }
            }
            tokio::select! {
                () = term.lost().cancelled() => return,
                () = self.changed.notified() => {}
                () = clock::sleep_until(wake) => {}
            }
        }
    }

    /// Writes the status of each object that has changed, as long as `may_write`.
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
                let Verdict {
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
                // One object that cannot be reported holds up no other.
                result = result.and(self.report(object, &status).await);
            }
        }
        result
    }

    async fn report(&self, object: &HyperConverged, status: &HyperConvergedStatus) -> kube::Result<()> {
        let namespace = object.namespace().unwrap_or_default();
        let apply = json!({
            "apiVersion": "hco.kubevirt.io/v1beta1",
            "kind": KIND,
            "metadata": {"name": object.name_any(), "namespace": namespace},
            "status": status,
        });
        let parameters = PatchParams::apply(CONTROLLER_FIELD_MANAGER).force();
        let api = Api::<HyperConverged>::namespaced(self.client.clone(), &namespace);
        match api
            .patch_status(&object.name_any(), &parameters, &Patch::Apply(apply))
            .await
        {
            // Deleted in the meantime: there is no status left to write.
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            result => result.map(drop),
        }
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
