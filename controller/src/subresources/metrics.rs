//! Metrics of the subresources API.

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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SubresourceLabels {
    request: &'static str,
    code: u16,
}

/// Counters and durations of requests on the subresources port.
#[derive(Clone, Debug)]
pub(crate) struct SubresourceMetrics {
    /// Number of failed TLS handshakes.
    pub(super) handshake_failures: Counter,
    requests: Family<SubresourceLabels, Counter>,
    duration: Histogram,
}

impl SubresourceMetrics {
    /// Registers the metrics in `registry`.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            handshake_failures: Counter::default(),
            requests: Family::default(),
            // Buckets from a millisecond to 16 s.
            duration: Histogram::new(exponential_buckets(0.001, 2.0, 15)),
        };
        registry.register(
            "drydock_subresource_requests",
            "Requests of the subresources API, by operation and HTTP status code",
            metrics.requests.clone(),
        );
        registry.register_with_unit(
            "drydock_subresource_duration",
            "Time from the header of a request to its response",
            Unit::Seconds,
            metrics.duration.clone(),
        );
        registry.register(
            "drydock_subresource_handshake_failures",
            "TLS handshakes on the subresources port that failed",
            metrics.handshake_failures.clone(),
        );
        metrics
    }

    /// Counts a request and its duration.
    pub(super) fn count_response(&self, request: &'static str, code: u16, after: Duration) {
        self.requests.get_or_create(&SubresourceLabels { request, code }).inc();
        self.duration.observe(after.as_secs_f64());
    }
}
