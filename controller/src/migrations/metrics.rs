//! Metrics of migrations, under KubeVirt's names.
//!
//! ```text
//!  cache of migrations ──▶ at each scrape: number in each phase, and results of the ended ones that are kept
//!  a change of one ──────▶ histogram: time until a phase was reached
//! ```

use std::{collections::BTreeSet, fmt};

use drydock_api::kubevirt::{
    VirtualMachineInstanceMigration,
    migration::{MigrationPhase, MigrationPhaseTransition},
};
use drydock_runtime::{CacheChange, lease::Leadership, metrics::Deferred};
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, family::Family, gauge::ConstGauge, histogram::Histogram},
    registry::Registry,
};

use super::Migrations;

/// Bucket bounds in seconds: from a small guest to a guest that waits for its slot for an hour.
const BOUNDS: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0, 3600.0];

/// Exports metrics of migrations. The gauges need the source that [`Self::watch`] sets.
#[derive(Clone, Debug)]
pub(crate) struct MigrationMetrics {
    gauges: Deferred,
    reached: Family<PhaseLabel, Histogram, fn() -> Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

/// The number of migrations in each phase that has a metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UnderWay {
    unset: i64,
    pending: i64,
    scheduling: i64,
    running: i64,
}

/// A migration that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Over {
    namespace: String,
    instance: String,
    migration: String,
    succeeded: bool,
}

impl MigrationMetrics {
    /// Registers the metrics. Gauges are not exported before [`Self::watch`].
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            gauges: Deferred::register(registry),
            reached: Family::new_with_constructor(|| Histogram::new(BOUNDS)),
        };
        registry.register(
            "kubevirt_vmi_migration_phase_transition_time_from_creation_seconds",
            "Time from the creation of a migration until the migration reached a phase; Succeeded and Failed are final",
            metrics.reached.clone(),
        );
        metrics
    }

    /// Exports gauges of these migrations while this process leads.
    pub(crate) fn watch(&self, migrations: Migrations, leadership: Leadership) {
        self.gauges.set_while_leading(leadership, move |encoder| {
            let (under_way, over) = counted(&migrations);
            encode(encoder, under_way, &over)
        });
    }

    /// Records the phases that a migration has reached with this change, if this process leads.
    pub(crate) fn observe(&self, change: &CacheChange<VirtualMachineInstanceMigration>, leadership: &Leadership) {
        let CacheChange::Object {
            old: Some(old),
            new: Some(new),
            ..
        } = change
        else {
            return;
        };
        for (phase, seconds) in reached(old, new) {
            if leadership.term().is_some() {
                self.reached.get_or_create(&PhaseLabel { phase }).observe(seconds);
            }
        }
    }
}

/// Returns the phases that a migration has reached since `old`, each with the seconds since its creation.
#[expect(clippy::cast_precision_loss, reason = "a migration lasts fewer than 2^52 seconds")]
fn reached(old: &VirtualMachineInstanceMigration, new: &VirtualMachineInstanceMigration) -> Vec<(&'static str, f64)> {
    let transitions = |migration: &VirtualMachineInstanceMigration| -> Vec<MigrationPhaseTransition> {
        let status = migration.status.as_ref();
        status.map_or_else(Vec::new, |status| status.phase_transition_timestamps.clone())
    };
    // Another migration may get the same name.
    if old.metadata.uid != new.metadata.uid {
        return Vec::new();
    }
    let Some(created) = &new.metadata.creation_timestamp else {
        return Vec::new();
    };
    let known: BTreeSet<&str> = transitions(old).iter().map(|one| one.phase.as_str()).collect();
    let added = transitions(new)
        .into_iter()
        .filter(|one| !known.contains(one.phase.as_str()));
    added
        .map(|one| {
            let seconds = one.phase_transition_timestamp.duration_since(created.0).as_secs();
            (one.phase.as_str(), seconds.max(0) as f64)
        })
        .collect()
}

fn counted(migrations: &Migrations) -> (UnderWay, Vec<Over>) {
    let (mut under_way, mut all) = (UnderWay::default(), Vec::new());
    migrations.for_each(|key, migration| {
        let phase = migration.phase();
        match phase {
            None => under_way.unset += 1,
            Some(MigrationPhase::Pending) => under_way.pending += 1,
            // KubeVirt counts migrations that have a target pod, or are about to have one.
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
            "Migrations that have not been reconciled",
            under_way.unset,
        ),
        (
            "kubevirt_vmi_migrations_in_pending_phase",
            "Migrations that wait for their turn",
            under_way.pending,
        ),
        (
            "kubevirt_vmi_migrations_in_scheduling_phase",
            "Migrations whose target pod is starting, or which wait for a slot",
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
            "Existing migrations that have succeeded",
            true,
        ),
        (
            "kubevirt_vmi_migration_failed",
            "Existing migrations that have failed",
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
