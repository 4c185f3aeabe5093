//! Watches the inputs of certificates, serves the certificates, and renews them while this replica leads.

use std::{sync::Arc, time::Duration};

use drydock_api::HyperConverged;
use drydock_core::configuration::Configuration;
use drydock_runtime::{Cache, Key, Process, Trigger, Watch, WatchStarter, WorkQueueMetrics, lease::Leadership};
use jiff::Timestamp;
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    core::v1::Secret,
};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::{Api, Client};

use super::{
    API_SERVICES, CONFIGURATION, CertificateMetrics, SECRET, SERVICE, ServedCertificate,
    certificate_keeper::{CertificateAction, CertificateKeeper},
    lifetimes_in_force::in_force,
    renewal::{RenewalError, Renewed, keep_renewing},
    secret_writes::write,
    trust_anchors::{TrustAnchors, bundle_of, publish, publish_to_api_services},
};

/// Namespaces that the task uses.
#[derive(Clone, Debug)]
pub(crate) struct TaskNamespaces {
    /// Namespace of the controller.
    pub(crate) namespace: String,
    /// Namespaces that may contain the configuration. The first one has precedence.
    pub(crate) configuration_namespaces: Vec<String>,
}

/// Maintains the certificate that this replica serves. While it leads, also renews the certificates of all replicas.
pub(crate) struct CertificatesTask {
    client: Client,
    secrets: Api<Secret>,
    secret: Cache<Secret>,
    mutating: Cache<MutatingWebhookConfiguration>,
    validating: Cache<ValidatingWebhookConfiguration>,
    removal: Cache<ValidatingWebhookConfiguration>,
    api_services: Vec<Cache<APIService>>,
    hyperconvergeds: Cache<HyperConverged>,
    place: TaskNamespaces,
    keeper: CertificateKeeper,
    last_good: Option<Configuration>,
    changed: Trigger,
    leadership: Leadership,
    metrics: CertificateMetrics,
    process: Process,
}

impl CertificatesTask {
    /// Starts the watches. `removal` has the webhook configuration that the controller itself creates. `changed` is
    /// notified when `removal` or `hyperconvergeds` change.
    #[expect(clippy::too_many_arguments, reason = "each argument is a separate dependency")]
    pub(crate) fn new(
        client: Client,
        watches: &WatchStarter,
        place: TaskNamespaces,
        hyperconvergeds: Cache<HyperConverged>,
        (removal, changed): (Cache<ValidatingWebhookConfiguration>, Trigger),
        served: ServedCertificate,
        leadership: Leadership,
        metrics: CertificateMetrics,
        process: Process,
    ) -> Self {
        let secret = Watch::<Secret>::namespaced(client.clone(), &place.namespace, "webhook certificates")
            .fields(format!("metadata.name={SECRET}"))
            .wakes(&changed);
        let mutating = Watch::<MutatingWebhookConfiguration>::one(client.clone(), CONFIGURATION, "mutating webhooks");
        let validating =
            Watch::<ValidatingWebhookConfiguration>::one(client.clone(), CONFIGURATION, "validating webhooks");
        let api_services = API_SERVICES.map(|name| {
            let watch =
                Watch::<APIService>::one(client.clone(), name, "APIServices").prune(|object| object.status = None);
            watches.start(watch.wakes(&changed))
        });
        let names = vec![format!("{SERVICE}.{}.svc", place.namespace)];
        let (lifetimes, last_good) = in_force(&[], &[], None);
        Self {
            secrets: Api::namespaced(client.clone(), &place.namespace),
            secret: watches.start(secret),
            mutating: watches.start(mutating.wakes(&changed)),
            validating: watches.start(validating.wakes(&changed)),
            removal,
            api_services: api_services.into(),
            hyperconvergeds,
            client,
            keeper: CertificateKeeper::new(SECRET, names, lifetimes, served, metrics.clone()),
            place,
            last_good,
            changed,
            leadership,
            metrics,
            process,
        }
    }

    /// Reconciles after each change until the process stops.
    pub(crate) async fn run(self, metrics: WorkQueueMetrics) {
        let stopping = self.process.stopping();
        // Without known lifetimes, certificates could be created that have to be replaced again.
        if stopping
            .run_until_cancelled(self.hyperconvergeds.wait_until_synced())
            .await
            .is_none()
        {
            return;
        }
        let (changed, leadership) = (self.changed.clone(), self.leadership.clone());
        keep_renewing(self, changed, leadership, stopping, metrics.of_reconciler(Self::NAME)).await;
    }

    /// Returns the validating webhook configurations: the configuration of the manifests, and the
    /// configuration that protects the controller.
    fn all_validating(&self) -> Vec<Arc<ValidatingWebhookConfiguration>> {
        let mut all = self.validating.all();
        all.extend(self.removal.all());
        all
    }

    fn all_api_services(&self) -> Vec<Arc<APIService>> {
        self.api_services.iter().flat_map(Cache::all).collect()
    }

    fn seen(&self) -> Option<Arc<Secret>> {
        self.secret.get(&Key::namespaced(&self.place.namespace, SECRET))
    }
}

impl Renewed for CertificatesTask {
    const NAME: &'static str = "webhookcertificates";
    const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
    const FAILURE: &'static str = "the webhook certificates could not be renewed";

    /// Serves the best certificate.
    fn evaluate(&mut self, now: Timestamp) -> Option<Timestamp> {
        let namespaces = &self.place.configuration_namespaces;
        let (lifetimes, good) = in_force(&self.hyperconvergeds.all(), namespaces, self.last_good.as_ref());
        self.last_good = good;
        self.keeper.configure(lifetimes);
        let published = self.mutating.sync_state().synced
            && self.validating.sync_state().synced
            && self.removal.sync_state().synced
            && self.api_services.iter().all(|cache| cache.sync_state().synced);
        let bundles = published.then(|| {
            let namespace = &self.place.namespace;
            let mutating = self.mutating.all();
            let validating = self.all_validating();
            let api_services = self.all_api_services();
            let mutating = mutating.iter().flat_map(|object| object.bundles(namespace));
            mutating
                .chain(validating.iter().flat_map(|object| object.bundles(namespace)))
                .chain(api_services.iter().filter_map(|object| bundle_of(object, namespace)))
                .collect()
        });
        let secret = self.seen();
        let data = secret.as_ref().and_then(|secret| secret.data.as_ref());
        self.keeper
            .observe(now, bundles, self.secret.sync_state().synced.then_some(data));
        self.keeper.serve(now)
    }

    async fn lead(
        &mut self,
        now: Timestamp,
        leads: impl Fn() -> bool + Send + Sync,
    ) -> Result<Option<Timestamp>, RenewalError> {
        let next = self.keeper.next(now)?;
        if !leads() {
            return Ok(None);
        }
        let failed = |what| move |source| RenewalError::Write { what, source };
        match next.action {
            None => {}
            Some(CertificateAction::Write(data)) => {
                let seen = self.seen();
                write(&self.secrets, SECRET, seen.as_deref(), data)
                    .await
                    .map_err(failed("the Secret of the webhook certificates"))?;
            }
            Some(CertificateAction::Publish(bundle)) => {
                let namespace = &self.place.namespace;
                // A failed write to one object does not prevent the others.
                let mutating = publish(&self.client, &self.mutating.all(), namespace, &bundle)
                    .await
                    .map_err(failed("the bundle of the mutating webhooks"));
                let validating = publish(&self.client, &self.all_validating(), namespace, &bundle)
                    .await
                    .map_err(failed("the bundle of the validating webhooks"));
                let api_services = publish_to_api_services(&self.client, &self.all_api_services(), namespace, &bundle)
                    .await
                    .map_err(failed("the bundle of the APIServices"));
                mutating.and(validating).and(api_services)?;
            }
        }
        Ok(next.wake)
    }

    fn count_failure(&self) {
        self.metrics.failures.inc();
    }
}

#[cfg(test)]
mod tests;
