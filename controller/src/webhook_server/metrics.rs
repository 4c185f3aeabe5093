//! Metrics of admission reviews.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

/// Path label of requests for a path without a handler.
pub(super) const NO_PATH: &str = "other";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReviewLabels {
    path: &'static str,
    verdict: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PathLabel {
    path: &'static str,
}

/// Counters and durations of admission reviews.
#[derive(Clone, Debug)]
pub(crate) struct WebhookMetrics {
    /// Failed TLS handshakes.
    pub(super) handshake_failures: Counter,
    requests: Family<ReviewLabels, Counter>,
    duration: Family<PathLabel, Histogram, fn() -> Histogram>,
}

impl WebhookMetrics {
    /// Registers the metrics in `registry`.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        // Buckets from a quarter of a millisecond to 4 s.
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(0.000_25, 2.0, 15));
        let metrics = Self {
            handshake_failures: Counter::default(),
            requests: Family::default(),
            duration: Family::new_with_constructor(histogram),
        };
        registry.register(
            "drydock_webhook_requests",
            "Requests on the webhook port, by path and verdict: Allowed, Denied, or the reason for a missing verdict",
            metrics.requests.clone(),
        );
        registry.register_with_unit(
            "drydock_webhook_duration",
            "Time from the header of a request to its response",
            Unit::Seconds,
            metrics.duration.clone(),
        );
        registry.register(
            "drydock_webhook_handshake_failures",
            "TLS handshakes on the webhook port that failed",
            metrics.handshake_failures.clone(),
        );
        metrics
    }

    pub(super) fn count_response(&self, path: &'static str, verdict: &'static str, after: Duration) {
        self.requests.get_or_create(&ReviewLabels { path, verdict }).inc();
        self.duration
            .get_or_create(&PathLabel { path })
            .observe(after.as_secs_f64());
    }

    /// Returns the number of requests with this verdict.
    #[cfg(test)]
    pub(super) fn count(&self, path: &'static str, verdict: &'static str) -> u64 {
        self.requests.get_or_create(&ReviewLabels { path, verdict }).get()
    }
}
