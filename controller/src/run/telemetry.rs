//! All metrics of the process.

use drydock_runtime::{ClientMetrics, EventMetrics, Registry, WatchMetrics, WorkQueueMetrics, metrics::Deferred};

use crate::{
    admission::evictions::HeldEvictions,
    certificates::CertificateMetrics,
    drain_task::DrainMetrics,
    metrics::ControllerMetrics,
    migration_task::SlotMetrics,
    migrations::MigrationMetrics,
    subresources::{ActiveStreams, SubresourceMetrics},
    webhook_server::WebhookMetrics,
};

/// Metrics of each part.
pub(super) struct ControllerTelemetry {
    pub(super) nodes: ControllerMetrics,
    pub(super) watches: WatchMetrics,
    pub(super) events: EventMetrics,
    pub(super) client: ClientMetrics,
    pub(super) work_queues: WorkQueueMetrics,
    pub(super) leader: Deferred,
    pub(super) certificates: CertificateMetrics,
    pub(super) webhooks: WebhookMetrics,
    pub(super) subresources: SubresourceMetrics,
    pub(super) streams: ActiveStreams,
    pub(super) migrations: MigrationMetrics,
    pub(super) slots: SlotMetrics,
    pub(super) held_evictions: HeldEvictions,
    pub(super) drains: DrainMetrics,
}

impl ControllerTelemetry {
    /// Registers all metrics.
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            nodes: ControllerMetrics::register(registry),
            watches: WatchMetrics::register(registry),
            events: EventMetrics::register(registry),
            client: ClientMetrics::register(registry),
            work_queues: WorkQueueMetrics::register(registry),
            leader: Deferred::register(registry),
            certificates: CertificateMetrics::register(registry),
            webhooks: WebhookMetrics::register(registry),
            subresources: SubresourceMetrics::register(registry),
            streams: ActiveStreams::register(registry),
            migrations: MigrationMetrics::register(registry),
            slots: SlotMetrics::register(registry),
            held_evictions: HeldEvictions::register(registry),
            drains: DrainMetrics::register(registry),
        }
    }
}
