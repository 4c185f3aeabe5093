//! Tests of the text that a scrape returns.

use drydock_api::kubevirt::VirtualMachineInstanceMigration;
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde_json::json;

use super::{Deferred, Migrations, counted, reached};

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
    Deferred::register(&mut registry).set(move |encoder| {
        let (under_way, over) = counted(&migrations);
        super::encode(encoder, under_way, &over)
    });
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

#[test]
fn reached_phase_is_reported_once_with_the_duration() {
    let with = |uid: &str, phases: &[(&str, &str)]| -> VirtualMachineInstanceMigration {
        let transitions = phases
            .iter()
            .map(|(phase, second)| json!({"phase": phase, "phaseTransitionTimestamp": format!("2026-01-01T00:00:{second}Z")}));
        serde_json::from_value(json!({
            "metadata": {"name": "m", "uid": uid, "creationTimestamp": "2026-01-01T00:00:10Z"},
            "spec": {"vmiName": "db"},
            "status": {"phaseTransitionTimestamps": transitions.collect::<Vec<_>>()},
        }))
        .unwrap()
    };
    let pending = ("Pending", "10");
    let cases = [
        ("nothing new", with("1", &[pending]), with("1", &[pending]), vec![]),
        (
            "the first",
            with("1", &[]),
            with("1", &[pending]),
            vec![("Pending", 0.0)],
        ),
        (
            "two at once",
            with("1", &[pending]),
            with("1", &[pending, ("Running", "13"), ("Succeeded", "25")]),
            vec![("Running", 3.0), ("Succeeded", 15.0)],
        ),
        (
            "a clock that went back",
            with("1", &[]),
            with("1", &[("Failed", "08")]),
            vec![("Failed", 0.0)],
        ),
        (
            "another migration of the name",
            with("1", &[]),
            with("2", &[pending]),
            vec![],
        ),
    ];
    for (case, old, new, expected) in cases {
        assert_eq!(reached(&old, &new), expected, "{case}");
    }
}
