//! The agent's metrics. The names are documented in `deploy/docs/metrics.md`.

use std::sync::atomic::{AtomicI64, AtomicU64};

use drydock_api::hypervisor::HypervisorStatus;
use drydock_host::domain::JobInfo;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabel {
    result: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ConditionLabel {
    condition: String,
    status: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ConditionReason {
    condition: String,
    reason: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

/// A guest that is migrating, with KubeVirt's label names.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct MovingGuest {
    node: String,
    namespace: String,
    name: String,
}

type OfGuests = Family<MovingGuest, Gauge<i64, AtomicI64>>;

/// Metrics of guests that migrate away from this node, with KubeVirt's names.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeavingMetrics {
    processed: OfGuests,
    remaining: OfGuests,
    total: OfGuests,
    dirtied: OfGuests,
    memory_rate: OfGuests,
    disk_rate: OfGuests,
}

/// Exports the metrics of a guest that migrates away, until dropped.
#[derive(Debug)]
pub(crate) struct LeavingGuest {
    metrics: LeavingMetrics,
    guest: MovingGuest,
}

impl LeavingMetrics {
    fn register(&self, registry: &mut Registry) {
        for (name, help, family) in self.all() {
            registry.register(name, help, family.clone());
        }
    }

    fn all(&self) -> [(&'static str, &'static str, &OfGuests); 6] {
        [
            (
                "kubevirt_vmi_migration_data_processed_bytes",
                "Bytes of a migrating guest that were sent",
                &self.processed,
            ),
            (
                "kubevirt_vmi_migration_data_remaining_bytes",
                "Bytes of a migrating guest that are still to be sent",
                &self.remaining,
            ),
            (
                "kubevirt_vmi_migration_data_total_bytes",
                "Bytes of memory and copied disks of a migrating guest",
                &self.total,
            ),
            (
                "kubevirt_vmi_migration_dirty_memory_rate_bytes",
                "Bytes of memory that a migrating guest changes per second",
                &self.dirtied,
            ),
            (
                "kubevirt_vmi_migration_memory_transfer_rate_bytes",
                "Bytes of memory of a migrating guest that are sent per second",
                &self.memory_rate,
            ),
            (
                "kubevirt_vmi_migration_disk_transfer_rate_bytes",
                "Bytes of disks of a migrating guest that are sent per second",
                &self.disk_rate,
            ),
        ]
    }

    /// Starts exporting the metrics of the guest `namespace`/`name` that migrates away from `node`.
    pub(crate) fn guest(&self, node: &str, namespace: &str, name: &str) -> LeavingGuest {
        LeavingGuest {
            metrics: self.clone(),
            guest: MovingGuest {
                node: node.into(),
                namespace: namespace.into(),
                name: name.into(),
            },
        }
    }
}

impl LeavingGuest {
    /// Exports libvirt's statistics of the migration. Values that libvirt does not report are not exported.
    pub(crate) fn measured(&self, job: &JobInfo) {
        let metrics = &self.metrics;
        for (family, value) in [
            (&metrics.processed, Some(job.data.processed)),
            (&metrics.remaining, Some(job.data.remaining)),
            (&metrics.total, Some(job.data.total)),
            (&metrics.dirtied, job.dirty_rate),
            (&metrics.memory_rate, job.memory_rate),
            (&metrics.disk_rate, job.disk_rate),
        ] {
            match value {
                Some(value) => {
                    let value = i64::try_from(value).unwrap_or(i64::MAX);
                    family.get_or_create(&self.guest).set(value);
                }
                None => {
                    family.remove(&self.guest);
                }
            }
        }
    }
}

impl Drop for LeavingGuest {
    fn drop(&mut self) {
        for (_, _, family) in self.metrics.all() {
            family.remove(&self.guest);
        }
    }
}

/// All of the agent's metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct AgentMetrics {
    inspections: Family<OutcomeLabel, Counter>,
    inspection_seconds: Gauge<f64, AtomicU64>,
    cpu_labels: Gauge<i64, AtomicI64>,
    usable_models: Gauge<i64, AtomicI64>,
    conditions: Family<ConditionLabel, Gauge>,
    reasons: Family<ConditionReason, Gauge>,
    writes: Family<KindLabel, Counter>,
    /// Number of VMIs that have a task in this agent.
    pub(crate) guests: Gauge<i64, AtomicI64>,
    /// Metrics of guests that migrate away from this node.
    pub(crate) leaving: LeavingMetrics,
}

impl AgentMetrics {
    /// Registers the metrics.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "drydock_inspections",
            "Inspections of the host by result",
            metrics.inspections.clone(),
        );
        registry.register(
            "drydock_last_inspection_duration_seconds",
            "Duration of the last inspection",
            metrics.inspection_seconds.clone(),
        );
        registry.register(
            "drydock_cpu_labels",
            "CPU labels that the node gets from its facts and the configuration",
            metrics.cpu_labels.clone(),
        );
        registry.register(
            "drydock_usable_cpu_models",
            "CPU models that guests can have",
            metrics.usable_models.clone(),
        );
        registry.register(
            "drydock_condition",
            "Conditions of the Hypervisor: 1 for the current status (true, false or unknown), 0 for the others",
            metrics.conditions.clone(),
        );
        registry.register(
            "drydock_condition_reason",
            "Current reason of each condition of the Hypervisor; the value is always 1",
            metrics.reasons.clone(),
        );
        registry.register(
            "drydock_writes",
            "Writes to the API server by kind",
            metrics.writes.clone(),
        );
        registry.register(
            "drydock_guests",
            "Virtual machine instances that the agent manages",
            metrics.guests.clone(),
        );
        metrics.leaving.register(registry);
        metrics
    }

    /// Counts an inspection that has ended. `result` is `Ok`, or the reason of the failure.
    pub(crate) fn inspected(&self, result: Result<(), &str>, milliseconds: u64) {
        let result = result.err().unwrap_or("ok").to_owned();
        self.inspections.get_or_create(&OutcomeLabel { result }).inc();
        #[expect(clippy::cast_precision_loss, reason = "a few digits are enough for a duration")]
        self.inspection_seconds.set(milliseconds as f64 / 1000.0);
    }

    /// Exports the values of a planned status.
    pub(crate) fn planned(&self, status: &HypervisorStatus) {
        self.cpu_labels.set(status.labels.unwrap_or(0).into());
        self.usable_models.set(status.usable_models.unwrap_or(0).into());
        self.conditions.clear();
        self.reasons.clear();
        for condition in &status.conditions {
            let has = match condition.status.as_str() {
                "True" => "true",
                "False" => "false",
                _ => "unknown",
            };
            for status in ["true", "false", "unknown"] {
                let series = ConditionLabel {
                    condition: condition.type_.clone(),
                    status,
                };
                self.conditions.get_or_create(&series).set(i64::from(status == has));
            }
            let series = ConditionReason {
                condition: condition.type_.clone(),
                reason: condition.reason.clone(),
            };
            self.reasons.get_or_create(&series).set(1);
        }
    }

    /// Counts a write of this kind.
    pub(crate) fn wrote(&self, kind: &'static str) {
        self.writes.get_or_create(&KindLabel { kind }).inc();
    }
}

#[cfg(test)]
mod tests {
    use drydock_api::hypervisor::HypervisorStatus;
    use drydock_host::{
        domain::{JobAmount, JobInfo, JobOperation},
        fake::fake_migration::migration_job,
    };
    use prometheus_client::{encoding::text::encode, registry::Registry};
    use serde_json::json;

    use super::{AgentMetrics, LeavingMetrics};

    #[test]
    fn condition_metric_has_a_series_per_status_and_reason() {
        let mut registry = Registry::default();
        let metrics = AgentMetrics::register(&mut registry);
        for (status, reason) in [("True", "Fulfilled"), ("Unknown", "Starting")] {
            let condition = json!({
                "type": "Inspected", "status": status, "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            });
            let planned: HypervisorStatus = serde_json::from_value(json!({"conditions": [condition]})).unwrap();
            metrics.planned(&planned);
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let mut samples: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("drydock_condition"))
            .collect();
        samples.sort_unstable();
        assert_eq!(
            samples,
            [
                r#"drydock_condition_reason{condition="Inspected",reason="Starting"} 1"#,
                r#"drydock_condition{condition="Inspected",status="false"} 0"#,
                r#"drydock_condition{condition="Inspected",status="true"} 0"#,
                r#"drydock_condition{condition="Inspected",status="unknown"} 1"#,
            ]
        );
    }

    #[test]
    fn leaving_guest_still_has_metrics() {
        let mut registry = Registry::default();
        let metrics = LeavingMetrics::default();
        metrics.register(&mut registry);
        let exposed = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            let values = text.lines().filter(|line| !line.starts_with('#'));
            values.map(str::to_owned).collect::<Vec<_>>()
        };
        let guest = metrics.guest("node1", "shop", "db");
        assert_eq!(exposed(), [""; 0]);
        let measured = JobInfo {
            data: JobAmount {
                processed: 1,
                remaining: 2,
                total: 3,
            },
            dirty_rate: Some(4),
            memory_rate: Some(5),
            disk_rate: Some(6),
            ..migration_job(JobOperation::OutgoingMigration)
        };
        guest.measured(&measured);
        let line = |name: &str, value| {
            format!(r#"kubevirt_vmi_migration_{name}{{node="node1",namespace="shop",name="db"}} {value}"#)
        };
        let all = [
            line("data_processed_bytes", 1),
            line("data_remaining_bytes", 2),
            line("data_total_bytes", 3),
            line("dirty_memory_rate_bytes", 4),
            line("memory_transfer_rate_bytes", 5),
            line("disk_transfer_rate_bytes", 6),
        ];
        assert_eq!(exposed(), all);
        // A value that libvirt no longer reports is no longer exported.
        guest.measured(&JobInfo {
            dirty_rate: None,
            disk_rate: None,
            ..measured
        });
        let left = [0, 1, 2, 4].map(|index: usize| all[index].clone());
        assert_eq!(exposed(), left);
        drop(guest);
        assert_eq!(exposed(), [""; 0]);
    }
}
