//! Metrics of certificates.

use std::sync::atomic::AtomicI64;

use drydock_core::certificates::RenewalCause;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

/// Kind of a created certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CertificateKind {
    Authority,
    Serving,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MadeLabels {
    kind: &'static str,
    reason: &'static str,
}

/// Metrics of certificates.
#[derive(Clone, Debug, Default)]
pub(crate) struct CertificateMetrics {
    /// Time until which the served certificate is valid, in seconds since 1970.
    pub(super) until: Gauge<i64, AtomicI64>,
    /// Number of failed writes.
    pub(super) failures: Counter,
    made: Family<MadeLabels, Counter>,
}

impl CertificateMetrics {
    /// Registers the metrics in `registry`.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register_with_unit(
            "drydock_webhook_certificate_expiry_timestamp",
            "Expiry of the served webhook certificate, in seconds since 1970; 0: no certificate",
            Unit::Seconds,
            metrics.until.clone(),
        );
        registry.register(
            "drydock_webhook_certificates_made",
            "Certificates created for the webhooks, by kind and reason",
            metrics.made.clone(),
        );
        registry.register(
            "drydock_webhook_certificate_failures",
            "Failed attempts to create or write webhook certificates or their CA bundle",
            metrics.failures.clone(),
        );
        metrics
    }

    pub(super) fn made(&self, kind: CertificateKind, cause: RenewalCause) {
        let kind = match kind {
            CertificateKind::Authority => "authority",
            CertificateKind::Serving => "serving",
        };
        let reason = cause.reason();
        self.made.get_or_create(&MadeLabels { kind, reason }).inc();
    }
}
