use serde_json::{Value, json};

use super::{status_writer::changed, *};

#[test]
fn a_status_patch_has_what_changes_and_null_for_what_is_gone() {
    let before = json!({"phase": "Running", "lastError": "e", "pods": [1]});
    let after = json!({"phase": "Running", "pods": [2], "drainProgress": 5});
    assert_eq!(
        changed(&before, &after),
        json!({"lastError": null, "pods": [2], "drainProgress": 5})
    );
    assert_eq!(changed(&after, &after), json!({}));
}

#[test]
fn pods_are_watched_while_a_maintenance_holds_its_node() {
    let object = |metadata: Value, status: Value| -> NodeMaintenance {
        serde_json::from_value(json!({"metadata": metadata, "spec": {"nodeName": "n"}, "status": status})).unwrap()
    };
    let finalized = json!({"name": "m", "finalizers": [FINALIZER]});
    let deleted = json!({"name": "m", "finalizers": [FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z"});
    let running = json!({"phase": "Running", "startTime": "2026-01-01T00:00:00Z"});
    let lost =
        json!({"phase": "Failed", "lastError": "maintenance failed: lease could not be extended after 4 attempts"});
    for (metadata, status, holds) in [
        (json!({"name": "m"}), json!({}), false),
        (finalized.clone(), json!({}), true),
        (finalized.clone(), running.clone(), true),
        (deleted, running, false),
        (finalized, lost, false),
    ] {
        assert_eq!(
            holds_node(&object(metadata.clone(), status.clone())),
            holds,
            "{metadata} {status}"
        );
    }
}
