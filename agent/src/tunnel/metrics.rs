//! The tunnel's metrics. The names are documented in `deploy/docs/metrics.md`.

use std::sync::atomic::AtomicI64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::{stream_header::StreamContent, tunnel_refusal::StreamRefusal};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StreamKindLabel {
    kind: &'static str,
}

/// All of the tunnel's metrics.
#[derive(Clone, Debug, Default)]
pub(super) struct TunnelMetrics {
    /// Number of sessions.
    pub(super) sessions: Gauge<i64, AtomicI64>,
    /// Number of bytes sent to other nodes.
    pub(super) sent: Counter,
    /// Number of bytes received from other nodes.
    pub(super) received: Counter,
    /// Number of sessions that ended because the source's libvirt sent unknown data.
    pub(super) not_understood: Counter,
    /// Number of guests that left without an observed last call.
    pub(super) missed: Counter,
    streams: Family<StreamKindLabel, Counter>,
    refusals: Family<ReasonLabel, Counter>,
}

impl TunnelMetrics {
    /// Registers the metrics.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        for refusal in StreamRefusal::ALL {
            drop(metrics.refusals.get_or_create(&ReasonLabel {
                reason: refusal.reason(),
            }));
        }
        registry.register(
            "drydock_tunnel_sessions",
            "Sessions of this tunnel; a migration has one session on each node",
            metrics.sessions.clone(),
        );
        registry.register(
            "drydock_tunnel_sent_bytes",
            "Bytes of guests that were sent to other nodes",
            metrics.sent.clone(),
        );
        registry.register(
            "drydock_tunnel_received_bytes",
            "Bytes of guests that were received from other nodes",
            metrics.received.clone(),
        );
        registry.register(
            "drydock_tunnel_libvirt_calls_unsupported",
            "Sessions that ended because the source's libvirt sent data that might resume the guest on the target",
            metrics.not_understood.clone(),
        );
        registry.register(
            "drydock_tunnel_last_calls_missed",
            "Guests that left the node although the tunnel saw no last call of their libvirt",
            metrics.missed.clone(),
        );
        registry.register(
            "drydock_tunnel_streams",
            "Connections between tunnels by kind",
            metrics.streams.clone(),
        );
        registry.register(
            "drydock_tunnel_refusals",
            "Connections from other nodes that were refused, by reason",
            metrics.refusals.clone(),
        );
        metrics
    }

    /// Counts a stream that has started.
    pub(super) fn began(&self, stream: StreamContent) {
        self.streams
            .get_or_create(&StreamKindLabel { kind: stream.as_str() })
            .inc();
    }

    /// Counts a refused connection.
    pub(super) fn refused(&self, refusal: StreamRefusal) {
        self.refusals
            .get_or_create(&ReasonLabel {
                reason: refusal.reason(),
            })
            .inc();
    }

    /// Returns the number of connections that were refused for this reason.
    #[cfg(test)]
    pub(super) fn refusals(&self, refusal: StreamRefusal) -> u64 {
        self.refusals
            .get_or_create(&ReasonLabel {
                reason: refusal.reason(),
            })
            .get()
    }
}
