//! The parts of a Node that are removed together with Drydock.
//!
//! Cordons, taints and the label of a maintenance are not included: they are removed when their NodeMaintenance ends,
//! and Drydock is not removed before. Annotations are set by users and stay.

use drydock_api::{
    labels::is_of_drydock,
    launcher::KVM_RESOURCE,
    maintenance::FIELD_MANAGER,
    reasons::node::{DRAIN_IN_PROGRESS, DRAINED, MAINTENANCE_IN_PROGRESS, MAINTENANCE_PLANNED},
};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Map, Value, json};

/// Extended resources of the agents' device plugin.
const RESOURCES: [&str; 1] = [KVM_RESOURCE];

/// Returns the JSON merge patch that removes Drydock's labels from a node; `None` if the node has none.
pub fn without_labels(node: &Node) -> Option<Value> {
    let labels = node.metadata.labels.iter().flatten().map(|(key, _)| key);
    let labels: Map<String, Value> = labels
        .filter(|key| is_of_drydock(key))
        .map(|key| (key.clone(), Value::Null))
        .collect();
    (!labels.is_empty()).then(|| json!({"metadata": {"labels": labels}}))
}

/// Returns the strategic merge patch that removes Drydock's conditions and extended resources from a node's status;
/// `None` if the status has none. A kubelet adds a resource again, with the amount 0, until five minutes after its
/// device plugin has ended.
pub fn without_status(node: &Node) -> Option<Value> {
    let status = node.status.as_ref()?;
    let conditions: Vec<Value> = status
        .conditions
        .iter()
        .flatten()
        .filter(|condition| is_own_condition(node, &condition.type_))
        .map(|condition| json!({"type": condition.type_, "$patch": "delete"}))
        .collect();
    let mut patch = Map::new();
    if !conditions.is_empty() {
        patch.insert("conditions".into(), conditions.into());
    }
    for (field, amounts) in [("capacity", &status.capacity), ("allocatable", &status.allocatable)] {
        let own: Map<String, Value> = RESOURCES
            .into_iter()
            .filter(|name| amounts.as_ref().is_some_and(|amounts| amounts.contains_key(*name)))
            .map(|name| (name.to_owned(), Value::Null))
            .collect();
        if !own.is_empty() {
            patch.insert(field.into(), own.into());
        }
    }
    (!patch.is_empty()).then(|| json!({"status": patch}))
}

/// Returns whether Drydock has written a condition of this type. Other controllers may report a maintenance too.
fn is_own_condition(node: &Node, type_: &str) -> bool {
    let managers = node.metadata.managed_fields.iter().flatten();
    let reports_maintenance = || {
        managers
            .filter_map(|fields| fields.manager.as_deref())
            .any(|manager| manager == FIELD_MANAGER)
    };
    [DRAIN_IN_PROGRESS, DRAINED].contains(&type_)
        || [MAINTENANCE_IN_PROGRESS, MAINTENANCE_PLANNED].contains(&type_) && reports_maintenance()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(of: Value) -> Node {
        serde_json::from_value(of).unwrap()
    }

    #[test]
    fn labels_of_drydock_are_removed_and_others_stay() {
        let mixed = node(json!({"metadata": {"labels": {
            "kubernetes.io/hostname": "a", "kubevirt.io/schedulable": "true", "cpu-model.node.kubevirt.io/Penryn": "true",
            "guest.node.drydock.dev/5b0a": "x",
        }}}));
        let expected = json!({"metadata": {"labels": {
            "kubevirt.io/schedulable": null, "cpu-model.node.kubevirt.io/Penryn": null, "guest.node.drydock.dev/5b0a": null,
        }}});
        assert_eq!(without_labels(&mixed), Some(expected));
        let clean = node(json!({"metadata": {"labels": {"kubernetes.io/hostname": "a"}}}));
        assert_eq!(without_labels(&clean), None);
        assert_eq!(without_labels(&Node::default()), None);
    }

    #[test]
    fn conditions_and_resources_of_drydock_are_removed() {
        let condition = |type_: &str| json!({"type": type_, "status": "False"});
        let amounts = json!({"cpu": "2", "devices.kubevirt.io/kvm": "0", "example.org/gpu": "1"});
        let of = |managers: Value| {
            node(json!({
                "metadata": {"managedFields": managers},
                "status": {
                    "conditions": [condition("Ready"), condition("Drained"), condition("DrainInProgress"),
                        condition("MaintenanceInProgress")],
                    "capacity": amounts, "allocatable": {"devices.kubevirt.io/kvm": "0"},
                },
            }))
        };
        let delete = |types: &[&str]| {
            let conditions: Vec<_> = types
                .iter()
                .map(|type_| json!({"type": type_, "$patch": "delete"}))
                .collect();
            let kvm = json!({"devices.kubevirt.io/kvm": null});
            Some(json!({"status": {"conditions": conditions, "capacity": kvm, "allocatable": kvm}}))
        };
        let ours = of(json!([{"manager": "drydock-maintenance"}]));
        let all = delete(&["Drained", "DrainInProgress", "MaintenanceInProgress"]);
        assert_eq!(without_status(&ours), all);
        let others = of(json!([{"manager": "kubelet"}]));
        assert_eq!(without_status(&others), delete(&["Drained", "DrainInProgress"]));
    }

    #[test]
    fn clean_node_is_left_alone() {
        let clean =
            node(json!({"status": {"conditions": [{"type": "Ready", "status": "True"}], "capacity": {"cpu": "2"}}}));
        assert_eq!(without_status(&clean), None);
        assert_eq!(without_status(&Node::default()), None);
    }
}
