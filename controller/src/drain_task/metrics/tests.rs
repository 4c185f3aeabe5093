//! Tests of the text that a scrape returns.

use drydock_api::maintenance::NodeMaintenance;
use prometheus_client::encoding::text;
use serde_json::{Value, json};

use super::*;

fn values(registry: &Registry) -> Vec<String> {
    let mut text = String::new();
    text::encode(&mut text, registry).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(str::to_owned).collect()
}

fn drain(changes: &Value) -> DrainStatus {
    let mut drain = json!({
        "requestedBy": ["Cordon"],
        "startedAt": "2026-01-01T00:00:00Z", "total": 5, "left": 0, "moving": 0, "waiting": 0, "blocked": 0, "shuttingDown": 0,
    });
    let fields = drain.as_object_mut().unwrap();
    fields.extend(changes.as_object().unwrap().clone());
    serde_json::from_value(drain).unwrap()
}

fn hypervisor(name: &str, drain: Option<&DrainStatus>) -> Hypervisor {
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": {}, "status": {"drain": drain}})).unwrap()
}

fn maintenance(name: &str, node: &str, pending: Option<i64>) -> NodeMaintenance {
    let object = json!({"metadata": {"name": name}, "spec": {"nodeName": node}, "status": {"pending": pending}});
    serde_json::from_value(object).unwrap()
}

fn guest(state: &str, reason: &str) -> Value {
    json!({"namespace": "shop", "name": "db", "state": state, "reason": reason, "message": "."})
}

#[test]
fn draining_nodes_have_metrics() {
    let under_way = drain(&json!({
        "left": 5, "blocked": 3, "estimatedEnd": "2026-01-01T00:10:00Z",
        "remaining": [guest("Blocked", "NoTargetAvailable"), guest("Blocked", "NotMigratable"), guest("Moving", "Migration")],
    }));
    let over = drain(&json!({"finishedAt": "2026-01-01T00:01:00Z"}));
    let hypervisors = Cache::filled([
        hypervisor("a", Some(&under_way)),
        hypervisor("b", Some(&over)),
        hypervisor("c", None),
        hypervisor("cordoned", Some(&drain(&json!({"requestedBy": [], "left": 1})))),
    ]);
    let maintenances = Maintenances::filled([
        (Group::Medik8s, maintenance("m", "a", Some(2))),
        (Group::KubeVirt, maintenance("k", "a", Some(1))),
        (Group::KubeVirt, maintenance("over", "b", None)),
    ]);
    let mut registry = Registry::default();
    Deferred::register(&mut registry).set(move |encoder| encode(encoder, &gauges(&hypervisors, &maintenances)));
    assert_eq!(
        values(&registry),
        [
            r#"drydock_drain_guests_left{node="a"} 5"#,
            r#"drydock_drain_guests_blocked{node="a",reason="NoTargetAvailable"} 1"#,
            r#"drydock_drain_guests_blocked{node="a",reason="NotListed"} 1"#,
            r#"drydock_drain_guests_blocked{node="a",reason="NotMigratable"} 1"#,
            r#"drydock_drain_estimated_end_timestamp_seconds{node="a"} 1767226200"#,
            r#"drydock_maintenance_pods_pending{node="a"} 2"#,
        ]
    );
}

#[test]
fn drain_duration_is_measured_once_at_the_end() {
    let under_way = drain(&json!({"left": 1}));
    let over = drain(&json!({"finishedAt": "2026-01-01T00:01:30Z"}));
    for (before, after, took) in [
        (None, Some(&under_way), None),
        (Some(&under_way), Some(&under_way), None),
        (Some(&under_way), Some(&over), Some(90.0)),
        (Some(&over), Some(&over), None),
        (Some(&over), None, None),
        // The drain had nothing to move.
        (None, Some(&over), None),
        // Cancelled.
        (Some(&under_way), None, None),
    ] {
        assert_eq!(ended(before, after), took, "{before:?} {after:?}");
    }
    let metrics = DrainMetrics::register(&mut Registry::default());
    metrics.written(Some(&under_way), Some(&over));
    let mut registry = Registry::default();
    registry.register("took", "Help", metrics.took);
    assert!(values(&registry).contains(&"took_sum 90.0".to_owned()));
}
