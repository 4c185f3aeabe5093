//! Which of several maintenances of one node counts. Admission allows only one maintenance of a node, but several can
//! exist if they were created before that rule, or while webhooks were disabled.

use drydock_api::maintenance::NodeMaintenance;

use super::{is_over, is_touched};

/// Returns the index of the maintenance that counts: of those that are not over, the begun one, else the oldest.
///
/// # Guarantees
/// The order of `maintenances` does not matter.
pub fn holder(maintenances: &[&NodeMaintenance]) -> Option<usize> {
    let rank = |maintenance: &NodeMaintenance| {
        let begun = maintenance.status.as_ref().is_some_and(is_touched);
        let created = maintenance
            .metadata
            .creation_timestamp
            .as_ref()
            .map(|created| created.0);
        (!begun, created, maintenance.metadata.uid.clone())
    };
    (0..maintenances.len())
        .filter(|&index| !is_over(maintenances[index]))
        .min_by_key(|&index| rank(maintenances[index]))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn maintenance(uid: &str, created: &str, status: &Value) -> NodeMaintenance {
        serde_json::from_value(json!({
            "metadata": {"name": uid, "uid": uid, "creationTimestamp": created},
            "spec": {"nodeName": "n"}, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn begun_maintenance_holds_the_node_before_the_oldest() {
        let begun = json!({"phase": "Running", "startTime": "2026-01-01T00:00:09Z"});
        let given_back =
            json!({"phase": "Failed", "startTime": "2026-01-01T00:00:09Z", "completionTime": "2026-01-01T00:00:10Z"});
        let old = maintenance("b", "2026-01-01T00:00:00Z", &json!({}));
        let same = maintenance("a", "2026-01-01T00:00:00Z", &json!({}));
        let young = maintenance("c", "2026-01-01T00:00:05Z", &begun);
        let ended = maintenance("d", "2026-01-01T00:00:05Z", &given_back);
        assert_eq!(holder(&[&old, &young]), Some(1));
        assert_eq!(holder(&[&young, &old]), Some(0));
        assert_eq!(holder(&[&old, &same]), Some(1));
        assert_eq!(holder(&[&ended, &old]), Some(1));
        assert_eq!(holder(&[]), None);
        let mut over = young.clone();
        over.metadata
            .deletion_timestamp
            .clone_from(&over.metadata.creation_timestamp);
        assert_eq!(holder(&[&over, &old]), Some(1), "its node has been given back");
        over.metadata.finalizers = Some(vec!["foregroundDeleteNodeMaintenance".into()]);
        assert_eq!(holder(&[&over, &old]), Some(0), "its node has not been given back");
    }
}
