//! Metrics of the slots of migrations, which are read from the queue at each scrape.

use std::fmt;

use drydock_core::configuration::MigrationSettings;
use drydock_runtime::{lease::Leadership, metrics::Deferred};
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
    registry::Registry,
};

use super::slot_scheduler::{SlotScheduler, UsedSlots};
use crate::configuration_in_force::ConfigurationInForce;

/// Exports used slots and their limits, once [`Self::watch`] has set their source.
#[derive(Clone, Debug)]
pub(crate) struct SlotMetrics(Deferred);

impl SlotMetrics {
    /// Registers the metrics. Nothing is exported before [`Self::watch`].
    pub(crate) fn register(registry: &mut Registry) -> Self {
        Self(Deferred::register(registry))
    }

    /// Exports these slots while this process leads.
    pub(super) fn watch(&self, slots: SlotScheduler, configuration: ConfigurationInForce, leadership: Leadership) {
        self.0.set_while_leading(leadership, move |encoder| {
            encode(encoder, &slots.used(), &configuration.get().migrations)
        });
    }
}

fn encode(mut encoder: DescriptorEncoder, used: &UsedSlots, limits: &MigrationSettings) -> fmt::Result {
    let help = "Migrations that may currently move their guests: in the cluster, and by source and target node";
    let mut family = encoder.encode_descriptor("drydock_migration_slots_used", help, None, MetricType::Gauge)?;
    let mut sample = |scope, node: &str, count: u32| {
        ConstGauge::new(count).encode(family.encode_family(&[("scope", scope), ("node", node)])?)
    };
    sample("cluster", "", used.cluster)?;
    for (scope, nodes) in [("source", &used.sources), ("target", &used.targets)] {
        for (node, count) in nodes {
            sample(scope, node, *count)?;
        }
    }
    let help = "Maximum number of migrations that may move guests: in the cluster, and per source and target node";
    let mut family = encoder.encode_descriptor("drydock_migration_slots_limit", help, None, MetricType::Gauge)?;
    for (scope, limit) in [
        ("cluster", limits.per_cluster),
        ("source", limits.outbound_per_node),
        ("target", limits.inbound_per_node),
    ] {
        ConstGauge::new(limit).encode(family.encode_family(&[("scope", scope)])?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use drydock_core::configuration::Configuration;
    use prometheus_client::encoding::text;

    use super::*;

    #[test]
    fn used_slots_and_limits_are_exported_by_scope() {
        let used = UsedSlots {
            cluster: 3,
            sources: [("a".to_owned(), 3)].into(),
            targets: [("b".to_owned(), 2), ("c".to_owned(), 1)].into(),
        };
        let mut registry = Registry::default();
        let limits = Configuration::default().migrations;
        Deferred::register(&mut registry).set(move |encoder| encode(encoder, &used, &limits));
        let mut scraped = String::new();
        text::encode(&mut scraped, &registry).unwrap();
        let samples: Vec<&str> = scraped.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                r#"drydock_migration_slots_used{scope="cluster",node=""} 3"#,
                r#"drydock_migration_slots_used{scope="source",node="a"} 3"#,
                r#"drydock_migration_slots_used{scope="target",node="b"} 2"#,
                r#"drydock_migration_slots_used{scope="target",node="c"} 1"#,
                r#"drydock_migration_slots_limit{scope="cluster"} 5"#,
                r#"drydock_migration_slots_limit{scope="source"} 2"#,
                r#"drydock_migration_slots_limit{scope="target"} 2"#,
            ]
        );
    }
}
