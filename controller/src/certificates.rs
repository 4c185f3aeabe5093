//! The certificates of the webhooks and of the subresources API. The leader creates them, one Secret contains them, API
//! servers trust them, and all replicas serve them.
//!
//! ```text
//!   Secret, webhook configurations, HyperConverged ──watch──▶ CertificatesTask ──▶ CertificateKeeper
//!             ▲                                                  │    what to make, by core's rules
//!             └──────── the leader writes ◀──────────────────────┤
//!                                                                ▼ every replica
//!                                                        ServedCertificate ◀── each TLS handshake
//! ```
//!
//! The decisions are in [`drydock_core::certificates`]. The web console in the cluster has a certificate with an
//! authority of its own: `console_certificate`.

mod certificate_keeper;
mod console_certificate;
mod lifetimes_in_force;
mod made;
mod metrics;
mod read;
mod renewal;
mod secret_writes;
mod task;
mod trust_anchors;

#[cfg(test)]
mod renewal_tests;

pub(crate) use console_certificate::ConsoleCertificateTask;
pub(crate) use drydock_runtime::tls_port::ServedCertificate;
pub(crate) use metrics::CertificateMetrics;
pub(crate) use task::{CertificatesTask, TaskNamespaces};
pub(crate) use trust_anchors::is_served_by;

/// Name of the Secret, in the controller's own namespace.
pub(crate) const SECRET: &str = "drydock-webhook-certificates";
/// Name of the Service through which API servers reach the webhooks, in the same namespace.
pub(crate) const SERVICE: &str = "drydock-webhooks";
/// Name of the mutating and of the validating webhook configuration.
pub(crate) const CONFIGURATION: &str = "drydock";

/// Names of the APIServices of the subresources API, which use the same Service.
pub(crate) const API_SERVICES: [&str; 2] = ["v1.subresources.kubevirt.io", "v1alpha3.subresources.kubevirt.io"];

/// Key of the Secret for all authorities. The first one is in use.
const BUNDLE: &str = "ca.crt";
/// Key of the Secret for the private key of the first authority.
const SIGNER_KEY: &str = "ca.key";
/// Key of the Secret for the certificate to serve.
const CERTIFICATE: &str = "tls.crt";
/// Key of the Secret for the private key of the certificate.
const KEY: &str = "tls.key";

/// Serves a certificate that is created for the test. Returns the bundle with which clients trust it.
#[cfg(test)]
pub(crate) fn self_made(served: &ServedCertificate, name: &str) -> k8s_openapi::ByteString {
    use drydock_core::{certificates::Lifetimes, configuration::Configuration};
    let now = drydock_runtime::clock::now();
    let lifetimes = Lifetimes::from(&Configuration::default().certificates);
    let mut keeper = certificate_keeper::CertificateKeeper::new(
        SECRET,
        vec![name.into()],
        lifetimes,
        served.clone(),
        CertificateMetrics::default(),
    );
    keeper.observe(now, Some(Vec::new()), Some(None));
    let Some(certificate_keeper::CertificateAction::Write(data)) = keeper.next(now).unwrap().action else {
        panic!("no certificate is to be written")
    };
    keeper.observe(now, Some(Vec::new()), Some(Some(&data)));
    keeper.serve(now);
    data[BUNDLE].clone()
}
