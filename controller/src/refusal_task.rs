//! Watches the cluster's admission rules while the API server refuses a step.
//!
//! ```text
//!  first refusal ──▶ watches of rules start ──change──▶ core: may it end refusals? ──▶ its steps are retried
//!  none left ──────▶ watches end
//! ```
//!
//! A cluster without refusals has none of these watches, because quotas change with each pod. A refusal that does not
//! depend on an object, such as a webhook's own decision, is retried after the back-off of [`StepRefusals`].

use drydock_core::refusal_end::{Prospect, of_namespace, of_quota, of_rule};
use drydock_runtime::{CacheChange, CancellationToken, Process, Watch, WatchStarter, clock, lease::Leadership};
use k8s_openapi::api::{
    admissionregistration::v1::{
        MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
        ValidatingWebhookConfiguration,
    },
    core::v1::{LimitRange, Namespace, ResourceQuota},
    scheduling::v1::PriorityClass,
};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

use crate::{
    queues::Queues,
    refusals::{RefusedStep, StepRefusals},
    routing::Route,
};

/// Triggers retries of refused steps while this process leads.
pub(crate) struct RefusalTask {
    client: Client,
    watches: WatchStarter,
    refusals: StepRefusals,
    queues: Queues,
}

impl RefusalTask {
    /// Creates the task for these refusals. `queues` trigger the retries.
    pub(crate) fn new(client: Client, watches: WatchStarter, refusals: StepRefusals, queues: Queues) -> Self {
        Self {
            client,
            watches,
            refusals,
            queues,
        }
    }

    /// Watches while this process leads and steps are refused, until `process` stops.
    pub(crate) async fn run(self, process: Process, mut leadership: Leadership) {
        let stopping = process.stopping();
        while let Some(term) = stopping.run_until_cancelled(leadership.elected()).await {
            let lost_term = term.lost().clone();
            stopping
                .run_until_cancelled(lost_term.run_until_cancelled(self.observe()))
                .await;
            self.refusals.clear();
        }
    }

    async fn observe(&self) {
        let mut watching = None;
        loop {
            if self.refusals.is_empty() {
                watching = None;
            } else if watching.is_none() {
                let wanted = CancellationToken::new();
                self.watch_rules(&wanted);
                watching = Some(wanted.drop_guard());
            }
            self.refusals.changed().await;
        }
    }

    fn watch_rules(&self, wanted: &CancellationToken) {
        self.watch::<ResourceQuota>("resource quotas", wanted, |_| {}, of_quota);
        self.watch::<Namespace>("namespaces", wanted, prune_namespace, of_namespace);
        self.watch::<LimitRange>("limit ranges", wanted, |range| range.spec = None, of_rule);
        self.watch::<PriorityClass>("priority classes", wanted, |_| {}, of_rule);
        self.watch::<ValidatingAdmissionPolicy>("admission policies", wanted, prune_policy, of_rule);
        self.watch::<ValidatingAdmissionPolicyBinding>(
            "admission policy bindings",
            wanted,
            |binding| binding.spec = None,
            of_rule,
        );
        self.watch::<ValidatingWebhookConfiguration>(
            "validating webhooks",
            wanted,
            |configuration| configuration.webhooks = None,
            of_rule,
        );
        self.watch::<MutatingWebhookConfiguration>(
            "mutating webhooks",
            wanted,
            |configuration| configuration.webhooks = None,
            of_rule,
        );
    }

    /// Watches one kind of rules until `wanted` is cancelled.
    fn watch<K>(
        &self,
        name: &'static str,
        wanted: &CancellationToken,
        prune: fn(&mut K),
        prospect_of: fn(Option<&K>, Option<&K>) -> Prospect,
    ) where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let (refusals, queues) = (self.refusals.clone(), self.queues.clone());
        let watch = Watch::<K>::all(self.client.clone(), name)
            .prune(prune)
            .on_change(move |change| {
                let CacheChange::Object { key, old, new } = change else {
                    return;
                };
                let namespace = match K::kind(&()).as_ref() {
                    "Namespace" => Some(&*key.name),
                    _ => key.namespace.as_deref(),
                };
                let prospect = prospect_of(old.as_deref(), new.as_deref());
                let steps = refusals.retry(namespace, prospect, clock::now());
                queues.follow(steps.into_iter().map(route));
            });
        self.watches.start_until(watch, wanted.clone());
    }
}

/// Returns the keys to reconcile in order to retry a step.
fn route(step: RefusedStep) -> Route {
    match step {
        RefusedStep::Drain(_) => Route::Drains,
        RefusedStep::TargetPod(key) => Route::Migration(key),
        RefusedStep::Pod(key) => Route::Instance(key),
        RefusedStep::Pdb(key) => Route::Pdb(key),
        RefusedStep::Instance(key) => Route::Machine(key),
        RefusedStep::Replicas(key) => Route::ReplicaSet(key),
    }
}

fn prune_namespace(namespace: &mut Namespace) {
    namespace.metadata.annotations = None;
    namespace.spec = None;
    namespace.status = None;
}

fn prune_policy(policy: &mut ValidatingAdmissionPolicy) {
    policy.spec = None;
    policy.status = None;
}

#[cfg(test)]
mod tests;
