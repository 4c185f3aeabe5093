//! The ports of the process for admission webhooks and the subresources API.

use std::{error::Error, sync::Arc, time::Duration};

use super::{COMPONENT, ProcessContext, caches::ControllerCaches};
use crate::{
    admission::{
        self, evictions::EvictionReviews, maintenance_reviews::MaintenanceReview, removal_reviews::RemovalReview,
    },
    certificates::ServedCertificate,
    drain_task::preview_lines,
    replica_set_task::ReplicaSetTask,
    subresources::{StreamTimeouts, SubresourcesServer},
    webhook_server::{DEADLINE, LEAVE, WebhookServer},
};

/// Serves both ports with this certificate.
///
/// # Errors
/// If an address is in use or not allowed.
pub(super) async fn serve(
    context: &ProcessContext,
    caches: &ControllerCaches,
    evictions: EvictionReviews,
    replica_sets: &ReplicaSetTask,
    certificate: &ServedCertificate,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let ProcessContext {
        args,
        process,
        client,
        watches,
        telemetry,
        ..
    } = context;
    let context_of_previews = caches.guests.clone();
    let maintenances = MaintenanceReview::new(
        client.clone(),
        caches.nodes.nodes.shown().clone(),
        caches.maintenances.clone(),
        &args.namespace,
        Arc::new(move |node: &str| preview_lines(&context_of_previews, node)),
    );
    let removal = RemovalReview::new(
        caches.machines.shown().clone(),
        caches.guests.instances.clone(),
        replica_sets.shown(),
        caches.maintenances.clone(),
    );
    let webhooks = WebhookServer {
        handlers: admission::handlers(caches.configuration.clone(), caches.guests.clone(), evictions)
            .and(maintenances.handlers())
            .and(removal.handlers()),
        certificate: certificate.clone(),
        metrics: telemetry.webhooks.clone(),
        leave: LEAVE,
        deadline: DEADLINE,
    };
    webhooks.serve(process, args.webhook_bind_address).await?;
    let subresources = SubresourcesServer {
        client: client.clone(),
        configuration: caches.configuration.clone(),
        certificate: certificate.clone(),
        metrics: telemetry.subresources.clone(),
        streams: telemetry.streams.clone(),
        timeouts: StreamTimeouts {
            idle: timeout(args.stream_idle_timeout),
            total: timeout(args.stream_timeout),
        },
        version: COMPONENT.version,
        leave: LEAVE,
    };
    subresources
        .serve(process, watches, args.subresources_bind_address)
        .await?;
    Ok(())
}

/// Returns a timeout from a flag. The value 0 means no timeout.
fn timeout(flag: Duration) -> Option<Duration> {
    (!flag.is_zero()).then_some(flag)
}
