//! The certificate of the web console in the cluster (`deploy/console`), whose pods have no right to create one.
//!
//! The console's manifests contain an empty Secret. If it exists, the leader writes the certificate into it and renews
//! it. Otherwise the console is not installed, and nothing is created. The pods mount the certificate and its private
//! key, but not the private key of the authority. The authority differs from that of the webhooks, which agents and API
//! servers trust.

use std::time::Duration;

use drydock_core::{certificates::Lifetimes, configuration::Lifetime};
use drydock_runtime::{
    Cache, Key, Process, Readiness, Trigger, Watch, WatchStarter, WorkQueueMetrics, lease::Leadership,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use super::{
    CertificateMetrics, ServedCertificate,
    certificate_keeper::{CertificateAction, CertificateKeeper},
    renewal::{RenewalError, Renewed, keep_renewing},
    secret_writes::write,
};

/// Name of the Secret, in the controller's own namespace. It is also used in `deploy/console` and in the controller's
/// role.
const SECRET: &str = "drydock-console-certificate";
/// Name of the console's Service, in the same namespace.
const SERVICE: &str = "drydock-console";

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Lifetimes of the certificates. They are longer than those of the webhooks, because the authority's certificate is
/// distributed manually to browsers and proxies. When an authority replaces another one, both are trusted for three
/// months.
const LIFETIMES: Lifetimes = Lifetimes {
    authority: Lifetime {
        duration: DAY.saturating_mul(365),
        renew_before: DAY.saturating_mul(90),
    },
    serving: Lifetime {
        duration: DAY.saturating_mul(30),
        renew_before: DAY.saturating_mul(10),
    },
    settle: Duration::ZERO,
};

/// Maintains the console's certificate while this replica leads.
pub(crate) struct ConsoleCertificateTask {
    secrets: Api<Secret>,
    secret: Cache<Secret>,
    key: Key,
    keeper: CertificateKeeper,
    changed: Trigger,
    leadership: Leadership,
    process: Process,
}

impl ConsoleCertificateTask {
    /// Starts the watch of the Secret in `namespace`.
    pub(crate) fn new(
        client: Client,
        watches: &WatchStarter,
        namespace: &str,
        leadership: Leadership,
        process: Process,
    ) -> Self {
        let changed = Trigger::new();
        let secret = Watch::<Secret>::namespaced(client.clone(), namespace, "certificate of the console")
            .fields(format!("metadata.name={SECRET}"))
            .wakes(&changed);
        // This replica does not serve the certificate.
        let served = ServedCertificate::new(Readiness::new().handle(SECRET));
        Self {
            secrets: Api::namespaced(client, namespace),
            secret: watches.start(secret),
            key: Key::namespaced(namespace, SECRET),
            keeper: CertificateKeeper::new(
                SECRET,
                names(namespace),
                LIFETIMES,
                served,
                CertificateMetrics::default(),
            ),
            changed,
            leadership,
            process,
        }
    }

    /// Reconciles at every change until the process stops.
    pub(crate) async fn run(self, metrics: WorkQueueMetrics) {
        let (changed, leadership, stopping) = (self.changed.clone(), self.leadership.clone(), self.process.stopping());
        keep_renewing(self, changed, leadership, stopping, metrics.of_reconciler(Self::NAME)).await;
    }
}

impl Renewed for ConsoleCertificateTask {
    const NAME: &'static str = "consolecertificate";
    const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
    const FAILURE: &'static str = "the certificate of the console could not be renewed";

    async fn lead(
        &mut self,
        now: Timestamp,
        leads: impl Fn() -> bool + Send + Sync,
    ) -> Result<Option<Timestamp>, RenewalError> {
        let Some(secret) = self.secret.get(&self.key) else {
            return Ok(None);
        };
        // API servers and agents do not trust this authority, so a new authority can be used at once.
        self.keeper.observe(now, Some(Vec::new()), Some(secret.data.as_ref()));
        let next = self.keeper.next(now)?;
        if let Some(CertificateAction::Write(data)) = next.action
            && leads()
        {
            let what = "the Secret of the console's certificate";
            write(&self.secrets, SECRET, Some(&secret), data)
                .await
                .map_err(|source| RenewalError::Write { what, source })?;
        }
        Ok(next.wake)
    }
}

/// Returns the DNS names of the console that are always valid: the names of its Service, and the name that
/// `kubectl port-forward` uses.
fn names(namespace: &str) -> Vec<String> {
    vec![
        format!("{SERVICE}.{namespace}.svc"),
        format!("{SERVICE}.{namespace}.svc.cluster.local"),
        format!("{SERVICE}.{namespace}"),
        SERVICE.into(),
        "localhost".into(),
    ]
}

#[cfg(test)]
mod tests {
    use drydock_runtime::clock;

    use super::*;

    fn keeper() -> CertificateKeeper {
        let served = ServedCertificate::new(Readiness::new().handle(SECRET));
        CertificateKeeper::new(
            SECRET,
            names("drydock"),
            LIFETIMES,
            served,
            CertificateMetrics::default(),
        )
    }

    /// Returns the content to write if the Secret has this content, and the time of the next reconcile.
    fn next(
        data: Option<&super::super::certificate_keeper::Data>,
        now: Timestamp,
    ) -> (Option<CertificateAction>, Option<Timestamp>) {
        let mut keeper = keeper();
        keeper.observe(now, Some(Vec::new()), Some(data));
        let next = keeper.next(now).unwrap();
        (next.action, next.wake)
    }

    #[test]
    fn empty_secret_is_filled_and_unchanged_until_renewal() {
        let now = clock::now();
        let (Some(CertificateAction::Write(data)), _) = next(None, now) else {
            panic!("nothing is written")
        };
        let keys: Vec<&str> = data.keys().map(String::as_str).collect();
        assert_eq!(keys, ["ca.crt", "ca.key", "tls.crt", "tls.key"]);
        let (action, wake) = next(Some(&data), now);
        assert_eq!(action, None);
        let renewed = now.checked_add(DAY * 20).unwrap();
        let wake = wake.unwrap();
        assert!((wake.duration_since(renewed)).as_secs().abs() <= 1, "{wake}");
        let (Some(CertificateAction::Write(again)), _) = next(Some(&data), wake) else {
            panic!("it is not renewed")
        };
        assert_eq!(again["ca.crt"], data["ca.crt"], "the authority stays");
        assert_ne!(again["tls.crt"], data["tls.crt"]);
    }

    #[test]
    fn next_authority_keeps_the_previous_authority_trusted() {
        let now = clock::now();
        let (Some(CertificateAction::Write(data)), _) = next(None, now) else {
            panic!("nothing is written")
        };
        let later = now.checked_add(DAY * 276).unwrap();
        let (Some(CertificateAction::Write(after)), _) = next(Some(&data), later) else {
            panic!("nothing is written")
        };
        let before = String::from_utf8(data["ca.crt"].0.clone()).unwrap();
        let bundle = String::from_utf8(after["ca.crt"].0.clone()).unwrap();
        assert!(bundle.ends_with(&before) && bundle.len() > before.len());
    }
}
