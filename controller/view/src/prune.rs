//! Reduces objects to the fields that plans and tables need. A view that stays open keeps only these fields, because a
//! cluster has a large number of pods.

use drydock_core::placement::{ResourceAmounts, prune_affinity};
use k8s_openapi::api::core::v1::{
    Container, Node, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeSpec, Pod,
    PodSpec, PodStatus, ResourceRequirements,
};

/// Keeps metadata, node, priority, requests, affinity, phase and conditions of a pod.
pub fn pod(pod: &mut Pod) {
    let requests = ResourceAmounts::of_pod(pod);
    pod.metadata.managed_fields = None;
    if let Some(spec) = &mut pod.spec {
        *spec = PodSpec {
            node_name: spec.node_name.take(),
            priority: spec.priority,
            affinity: prune_affinity(spec.affinity.take()),
            preemption_policy: spec.preemption_policy.take(),
            containers: vec![Container {
                resources: Some(ResourceRequirements {
                    requests: Some(requests.to_quantities()),
                    ..ResourceRequirements::default()
                }),
                ..Container::default()
            }],
            ..PodSpec::default()
        };
    }
    if let Some(status) = &mut pod.status {
        *status = PodStatus {
            phase: status.phase.take(),
            conditions: status.conditions.take(),
            ..PodStatus::default()
        };
    }
}

/// Removes images, addresses and heartbeats of a node.
pub fn node(node: &mut Node) {
    node.metadata.managed_fields = None;
    if let Some(status) = &mut node.status {
        status.images = None;
        status.addresses = None;
        status.volumes_attached = None;
        status.volumes_in_use = None;
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
        }
    }
}

/// Keeps the name of a claim's volume.
pub fn claim(claim: &mut PersistentVolumeClaim) {
    claim.metadata.managed_fields = None;
    claim.metadata.annotations = None;
    claim.status = None;
    if let Some(spec) = &mut claim.spec {
        *spec = PersistentVolumeClaimSpec {
            volume_name: spec.volume_name.take(),
            ..PersistentVolumeClaimSpec::default()
        };
    }
}

/// Keeps the node affinity of a volume.
pub fn volume(volume: &mut PersistentVolume) {
    volume.metadata.managed_fields = None;
    volume.metadata.annotations = None;
    volume.status = None;
    if let Some(spec) = &mut volume.spec {
        *spec = PersistentVolumeSpec {
            node_affinity: spec.node_affinity.take(),
            ..PersistentVolumeSpec::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        explain::explain,
        nodes::rows,
        plan::{fixture::cluster, plan},
    };

    #[test]
    fn pruned_objects_have_the_same_plan() {
        let whole = cluster();
        let mut pruned = whole.clone();
        pruned.pods.iter_mut().for_each(|object| pod(Arc::make_mut(object)));
        pruned.nodes.iter_mut().for_each(|object| node(Arc::make_mut(object)));
        assert_ne!(pruned.pods, whole.pods);
        for name in ["a", "b", "c"] {
            let names = [name.to_owned()];
            assert_eq!(plan(&pruned, &names), plan(&whole, &names));
        }
        assert_eq!(rows(&pruned), rows(&whole));
        assert_eq!(explain(&pruned, "shop", "web"), explain(&whole, "shop", "web"));
    }

    #[test]
    fn pruned_volume_keeps_nodes_and_claim_keeps_volume() {
        let mut bound: PersistentVolume = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "v", "annotations": {"a": "b"}},
            "spec": {"capacity": {"storage": "1Gi"}, "nodeAffinity": {"required": {"nodeSelectorTerms": []}}},
        }))
        .unwrap();
        volume(&mut bound);
        let spec = bound.spec.unwrap();
        assert_eq!((spec.capacity.is_none(), spec.node_affinity.is_some()), (true, true));
        let mut bound: PersistentVolumeClaim = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "c"}, "spec": {"volumeName": "v", "accessModes": ["ReadWriteOnce"]},
        }))
        .unwrap();
        claim(&mut bound);
        let spec = bound.spec.unwrap();
        assert_eq!((spec.volume_name.as_deref(), spec.access_modes), (Some("v"), None));
    }
}
