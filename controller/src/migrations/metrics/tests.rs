//! Tests of the text that a scrape returns.

use drydock_api::kubevirt::VirtualMachineInstanceMigration;
use prometheus_client::{collector::Collector, encoding::text::encode, registry::Registry};
use serde_json::json;

use super::{DescriptorEncoder, Migrations, counted};

/// Exports the metrics of these migrations.
#[derive(Debug)]
struct TestCollector(Migrations);

impl Collector for TestCollector {
    fn encode(&self, encoder: DescriptorEncoder) -> std::fmt::Result {
        let (under_way, over) = counted(&self.0);
        super::encode(encoder, under_way, &over)
    }
}

fn migration(name: &str, phase: Option<&str>) -> VirtualMachineInstanceMigration {
    serde_json::from_value(json!({
        "metadata": {"namespace": "shop", "name": name},
        "spec": {"vmiName": "db"},
        "status": {"phase": phase},
    }))
    .unwrap()
}

#[test]
fn each_migration_is_counted_once() {
    let migrations = Migrations::filled([
        migration("new", None),
        migration("waits", Some("Pending")),
        migration("placed", Some("Scheduling")),
        migration("ready", Some("Scheduled")),
        migration("prepares", Some("PreparingTarget")),
        migration("begins", Some("TargetReady")),
        migration("moves", Some("Running")),
        migration("good", Some("Succeeded")),
        migration("bad", Some("Failed")),
    ]);
    let mut registry = Registry::default();
    registry.register_collector(Box::new(TestCollector(migrations)));
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let values: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(
        values,
        [
            "kubevirt_vmi_migrations_in_unset_phase 1",
            "kubevirt_vmi_migrations_in_pending_phase 1",
            "kubevirt_vmi_migrations_in_scheduling_phase 2",
            "kubevirt_vmi_migrations_in_running_phase 3",
            r#"kubevirt_vmi_migration_succeeded{namespace="shop",vmi="db",vmim="good"} 1"#,
            r#"kubevirt_vmi_migration_failed{namespace="shop",vmi="db",vmim="bad"} 1"#,
        ]
    );
}
