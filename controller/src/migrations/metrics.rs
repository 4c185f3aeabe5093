//! Metrics of migrations, under KubeVirt's names, computed from the cache at each scrape.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use drydock_api::kubevirt::migration::MigrationPhase;
use drydock_runtime::lease::Leadership;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
    registry::Registry,
};

use super::Migrations;

/// Exports metrics of migrations, once [`Self::watch`] has set their source.
#[derive(Clone, Debug, Default)]
pub(crate) struct MigrationMetrics(Arc<OnceLock<(Migrations, Leadership)>>);

/// The number of migrations in each phase that has a metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UnderWay {
    unset: i64,
    pending: i64,
    scheduling: i64,
    running: i64,
}

/// A migration that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Over {
    namespace: String,
    instance: String,
    migration: String,
    succeeded: bool,
}

impl MigrationMetrics {
    /// Registers the metrics. Nothing is exported before [`Self::watch`].
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register_collector(Box::new(metrics.clone()));
        metrics
    }

    /// Exports metrics of these migrations while this process leads. Every replica knows the values, but sums over
    /// replicas have to be right.
    pub(crate) fn watch(&self, migrations: Migrations, leadership: Leadership) {
        // Only the first call has an effect, and there is no second.
        let _ = self.0.set((migrations, leadership));
    }
}

impl Collector for MigrationMetrics {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        match self.0.get() {
            Some((migrations, leadership)) if leadership.term().is_some() => {
                let (under_way, over) = counted(migrations);
                encode(encoder, under_way, &over)
            }
            _ => Ok(()),
        }
    }
}

fn counted(migrations: &Migrations) -> (UnderWay, Vec<Over>) {
    let (mut under_way, mut all) = (UnderWay::default(), Vec::new());
    migrations.for_each(|key, migration| {
        let phase = migration.status.as_ref().and_then(|status| status.phase);
        match phase {
            None => under_way.unset += 1,
            Some(MigrationPhase::Pending) => under_way.pending += 1,
            // As KubeVirt counts: migrations that have a target pod, or are about to.
            Some(MigrationPhase::Scheduling | MigrationPhase::Scheduled) => under_way.scheduling += 1,
            Some(
                MigrationPhase::PreparingTarget
                | MigrationPhase::TargetReady
                | MigrationPhase::Running
                | MigrationPhase::Unknown,
            ) => {
                under_way.running += 1;
            }
            Some(phase @ (MigrationPhase::Succeeded | MigrationPhase::Failed)) => all.push(Over {
                namespace: key.namespace.as_deref().unwrap_or_default().into(),
                instance: migration.spec.vmi_name.clone(),
                migration: key.name.to_string(),
                succeeded: phase == MigrationPhase::Succeeded,
            }),
        }
    });
    (under_way, all)
}

fn encode(mut encoder: DescriptorEncoder, under_way: UnderWay, over: &[Over]) -> fmt::Result {
    for (name, help, count) in [
        (
            "kubevirt_vmi_migrations_in_unset_phase",
            "Migrations that have not been looked at",
            under_way.unset,
        ),
        (
            "kubevirt_vmi_migrations_in_pending_phase",
            "Migrations that wait for their turn",
            under_way.pending,
        ),
        (
            "kubevirt_vmi_migrations_in_scheduling_phase",
            "Migrations whose target pod is on its way, or waits for a slot",
            under_way.scheduling,
        ),
        (
            "kubevirt_vmi_migrations_in_running_phase",
            "Migrations that prepare or move their guest",
            under_way.running,
        ),
    ] {
        let gauge = ConstGauge::new(count);
        gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
    }
    for (name, help, succeeded) in [
        (
            "kubevirt_vmi_migration_succeeded",
            "Migrations that have succeeded, of those that are kept",
            true,
        ),
        (
            "kubevirt_vmi_migration_failed",
            "Migrations that have failed, of those that are kept",
            false,
        ),
    ] {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for one in over.iter().filter(|one| one.succeeded == succeeded) {
            let labels = [
                ("namespace", one.namespace.as_str()),
                ("vmi", one.instance.as_str()),
                ("vmim", one.migration.as_str()),
            ];
            ConstGauge::new(1_i64).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
