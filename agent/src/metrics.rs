//! What the agent counts. The names are documented in the README.

use std::sync::atomic::{AtomicI64, AtomicU64};

use drydock_api::hypervisor::HypervisorStatus;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Outcome {
    result: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ConditionIs {
    condition: String,
    reason: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

/// All of the agent's metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    inspections: Family<Outcome, Counter>,
    inspection_seconds: Gauge<f64, AtomicU64>,
    cpu_labels: Gauge<i64, AtomicI64>,
    usable_models: Gauge<i64, AtomicI64>,
    conditions: Family<ConditionIs, Gauge>,
    writes: Family<Kind, Counter>,
    /// Instances that this agent looks after.
    pub(crate) guests: Gauge<i64, AtomicI64>,
}

impl Metrics {
    /// Registers them.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "drydock_inspections",
            "Inspections of the host by result",
            metrics.inspections.clone(),
        );
        registry.register(
            "drydock_inspection_duration_seconds",
            "How long the last inspection took",
            metrics.inspection_seconds.clone(),
        );
        registry.register(
            "drydock_cpu_labels",
            "CPU labels that facts and configuration give the node",
            metrics.cpu_labels.clone(),
        );
        registry.register(
            "drydock_usable_cpu_models",
            "CPU models that guests can have",
            metrics.usable_models.clone(),
        );
        registry.register(
            "drydock_condition",
            "Conditions of the Hypervisor by reason: 1 true, 0 false, -1 unknown",
            metrics.conditions.clone(),
        );
        registry.register(
            "drydock_writes",
            "Writes to the API server by what was written",
            metrics.writes.clone(),
        );
        registry.register(
            "drydock_guests",
            "Virtual machine instances that the agent looks after",
            metrics.guests.clone(),
        );
        metrics
    }

    /// An inspection ended: `Ok` or the reason of its failure.
    pub(crate) fn inspected(&self, result: Result<(), &str>, milliseconds: u64) {
        let result = result.err().unwrap_or("ok").to_owned();
        self.inspections.get_or_create(&Outcome { result }).inc();
        #[expect(clippy::cast_precision_loss, reason = "a few digits are enough for a duration")]
        self.inspection_seconds.set(milliseconds as f64 / 1000.0);
    }

    /// The status was planned.
    pub(crate) fn planned(&self, status: &HypervisorStatus) {
        self.cpu_labels.set(status.labels.unwrap_or(0).into());
        self.usable_models.set(status.usable_models.unwrap_or(0).into());
        self.conditions.clear();
        for condition in &status.conditions {
            let value = match condition.status.as_str() {
                "True" => 1,
                "False" => 0,
                _ => -1,
            };
            let which = ConditionIs {
                condition: condition.type_.clone(),
                reason: condition.reason.clone(),
            };
            self.conditions.get_or_create(&which).set(value);
        }
    }

    /// Something was written.
    pub(crate) fn wrote(&self, kind: &'static str) {
        self.writes.get_or_create(&Kind { kind }).inc();
    }
}
