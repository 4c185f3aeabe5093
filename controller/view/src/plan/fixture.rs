//! A cluster of three nodes with guests of every kind, for tests.

#![expect(clippy::unwrap_used, reason = "its objects are written here, and tests run it")]

use std::sync::Arc;

use drydock_api::{
    Hypervisor,
    facts::{CpuModel, HostModel, MachineType, NodeFacts, Usable, VirtType, VirtualizationFacts},
    hypervisor::HypervisorStatus,
    kubevirt::VirtualMachineInstance,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use crate::snapshot::Snapshot;

/// Returns a node with this amount of memory.
pub fn node(name: &str, memory: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "kubevirt.io/schedulable": "true",
            "drydock.dev/guest-network": "true", "cpu-model.node.kubevirt.io/EPYC": "true",
            "cpu-vendor.node.kubevirt.io/AMD": "true", "machine-type.node.kubevirt.io/q35": "true",
        }},
        "status": {"allocatable": {"cpu": "8", "memory": memory, "pods": "110", "devices.kubevirt.io/kvm": "1k"}},
    }))
    .unwrap()
}

fn hypervisor(name: &str) -> Hypervisor {
    let facts = NodeFacts {
        virtualization: Some(VirtualizationFacts {
            virt_type: VirtType::Kvm,
            vendor: "AMD".into(),
            models: Arc::new(vec![CpuModel {
                name: "EPYC".into(),
                usable: Usable::Yes,
                ..CpuModel::default()
            }]),
            machine_types: Arc::new(vec![MachineType {
                name: "q35".into(),
                ..MachineType::default()
            }]),
            host_model: Some(HostModel {
                name: "EPYC".into(),
                ..HostModel::default()
            }),
            ..VirtualizationFacts::default()
        }),
        ..NodeFacts::default()
    };
    let mut hypervisor: Hypervisor = serde_json::from_value(json!({"metadata": {"name": name}, "spec": {}})).unwrap();
    hypervisor.status = Some(HypervisorStatus {
        facts: Some(Arc::new(facts)),
        ..HypervisorStatus::default()
    });
    hypervisor
}

/// Returns a guest of 4 GiB that runs on a node, and its pod.
fn guest(name: &str, node: &str, spec: &Value, migratable: bool) -> (VirtualMachineInstance, Pod) {
    let mut instance: Value = json!({
        "metadata": {"namespace": "shop", "name": name, "uid": name},
        "spec": {"domain": {"memory": {"guest": "4Gi"}, "cpu": {"model": "EPYC"}, "machine": {"type": "q35"},
            "devices": {}}, "evictionStrategy": "LiveMigrate"},
        "status": {"phase": "Running", "nodeName": node, "activePods": {name: node}, "memory": {"guestCurrent": "4Gi"},
            "drydock": {"virtType": "kvm", "guestCPU": {"model": "EPYC", "vendor": "AMD"}},
            "conditions": [{"type": "LiveMigratable", "status": if migratable { "True" } else { "False" },
                "reason": if migratable { "" } else { "DisksNotLiveMigratable" },
                "message": if migratable { "" } else { "PVC data is not shared" }}]},
    });
    for (key, value) in spec.as_object().unwrap() {
        instance["spec"][key] = value.clone();
    }
    let pod = json!({
        "metadata": {"namespace": "shop", "name": format!("virt-launcher-{name}"), "uid": name,
            "labels": {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": name},
            "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": node, "containers": [{"name": "compute", "resources": {"requests": {"memory": "4Gi"}}}]},
        "status": {"phase": "Running"},
    });
    (
        serde_json::from_value(instance).unwrap(),
        serde_json::from_value(pod).unwrap(),
    )
}

/// Returns a cluster of three nodes. On `a` are guests of every kind.
pub fn cluster() -> Snapshot {
    let mut snapshot = Snapshot {
        at: "2026-11-27T14:02:11Z".parse().unwrap(),
        nodes: [("a", "64Gi"), ("b", "16Gi"), ("c", "16Gi")]
            .map(|(name, memory)| Arc::new(node(name, memory)))
            .into(),
        hypervisors: ["a", "b", "c"].map(|name| Arc::new(hypervisor(name))).into(),
        ..Snapshot::default()
    };
    let owned = |mut instance: VirtualMachineInstance| {
        let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "x", "uid": "x", "controller": true});
        instance.metadata.owner_references = Some(vec![serde_json::from_value(owner).unwrap()]);
        instance
    };
    for (name, node, spec, migratable) in [
        ("web", "a", json!({}), true),
        ("api", "a", json!({}), true),
        ("cache", "a", json!({}), false),
        ("scratch", "a", json!({"evictionStrategy": "None"}), true),
        ("other", "b", json!({}), true),
    ] {
        let (instance, pod) = guest(name, node, &spec, migratable);
        let instance = if name == "cache" { owned(instance) } else { instance };
        snapshot.instances.push(Arc::new(instance));
        snapshot.pods.push(Arc::new(pod));
    }
    for (name, labels) in [("pg-0", json!({"app": "pg"})), ("log", json!({}))] {
        let pod = json!({"metadata": {"namespace": "shop", "name": name, "labels": labels},
            "spec": {"nodeName": "a", "containers": []}, "status": {"phase": "Running"}});
        snapshot.pods.push(Arc::new(serde_json::from_value(pod).unwrap()));
    }
    let budget = json!({"metadata": {"namespace": "shop", "name": "pg"},
        "spec": {"selector": {"matchLabels": {"app": "pg"}}},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}});
    snapshot.budgets.push(serde_json::from_value(budget).unwrap());
    snapshot
}
