//! The simulated objects: nodes with their Hypervisors and Leases, and virtual machines.

use anyhow::{Context, Result};
use drydock_api::{
    Hypervisor,
    kubevirt::VirtualMachineInstance,
    leases::{NODE_LEASE_NAMESPACE, STALE_AFTER},
};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    heartbeats::{KUBELETS, microseconds},
    requests::Requests,
};

/// A Node with the labels of its agent, and the status of its Hypervisor, recorded on a machine without KVM.
const NODE: &str = include_str!("recorded/node.json");
const HYPERVISOR: &str = include_str!("recorded/hypervisor.json");
/// Number of objects that are created concurrently.
const AT_ONCE: usize = 24;
/// Namespace of the virtual machines.
pub(crate) const NAMESPACE: &str = "default";

/// Names of the nodes and virtual machines.
pub(crate) struct ScaleWorld {
    nodes: Vec<String>,
    machines: Vec<String>,
}

impl ScaleWorld {
    /// Returns a world with these numbers of nodes and virtual machines.
    pub(crate) fn of(nodes: usize, machines: usize) -> Self {
        Self {
            nodes: (0..nodes).map(|number| format!("sim-{number:04}")).collect(),
            machines: (0..machines).map(|number| format!("vm-{number:05}")).collect(),
        }
    }

    /// Names of the nodes.
    pub(crate) fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// Names of the virtual machines.
    pub(crate) fn machines(&self) -> &[String] {
        &self.machines
    }

    /// Creates the missing nodes.
    pub(crate) async fn make_nodes(&self, requests: &Requests) -> Result<()> {
        let node: Value = serde_json::from_str(NODE).context("recorded/node.json")?;
        let hypervisor: Value = serde_json::from_str(HYPERVISOR).context("recorded/hypervisor.json")?;
        let making = self
            .nodes
            .iter()
            .enumerate()
            .map(|(number, name)| make_node(requests, number, name, &node, &hypervisor));
        stream::iter(making).buffer_unordered(AT_ONCE).try_collect().await
    }

    /// Creates the missing virtual machines. The scheduler chooses their nodes.
    pub(crate) async fn make_machines(&self, requests: &Requests) -> Result<()> {
        let api = Api::<VirtualMachineInstance>::namespaced(requests.client.clone(), NAMESPACE);
        let making = self.machines.iter().map(|name| {
            let api = api.clone();
            async move {
                let manifest: VirtualMachineInstance = serde_json::from_value(json!({
                    "apiVersion": "kubevirt.io/v1",
                    "kind": "VirtualMachineInstance",
                    "metadata": {"name": name},
                    "spec": {
                        "evictionStrategy": "LiveMigrate",
                        "terminationGracePeriodSeconds": 30,
                        "domain": {
                            "resources": {"requests": {"memory": "96Mi"}},
                            "devices": {"disks": [
                                {"name": "containerdisk", "disk": {"bus": "virtio"}},
                                {"name": "cloudinitdisk", "disk": {"bus": "virtio"}},
                            ]},
                        },
                        // The scheduler spreads the guests as evenly as possible over the nodes.
                        "topologySpreadConstraints": [{
                            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                            "labelSelector": {"matchLabels": {"kubevirt.io": "virt-launcher"}},
                        }],
                        "volumes": [
                            {"name": "containerdisk", "containerDisk": {"image": "kubevirt/fedora-cloud-container-disk-demo:latest"}},
                            {"name": "cloudinitdisk", "cloudInitNoCloud": {"userData": "#cloud-config\npassword: fedora\n"}},
                        ],
                    },
                }))?;
                made(api.create(&PostParams::default(), &manifest).await)?;
                anyhow::Ok(())
            }
        });
        stream::iter(making).buffer_unordered(AT_ONCE).try_collect().await
    }
}

/// Returns the object that the API server has created, or `None` if it existed already.
fn made<K>(result: kube::Result<K>) -> kube::Result<Option<K>> {
    match result {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
        Err(error) => Err(error),
    }
}

async fn make_node(requests: &Requests, number: usize, name: &str, node: &Value, hypervisor: &Value) -> Result<()> {
    let now = Timestamp::from_second(Timestamp::now().as_second())?;
    let mut labels = node["labels"].clone();
    labels["kubernetes.io/hostname"] = json!(name);
    let mut status = node["status"].clone();
    // The simulated node has more resources than the recorded machine.
    let room = json!({
        "cpu": "64", "memory": "256Gi", "pods": "250", "ephemeral-storage": "1Ti", "devices.kubevirt.io/kvm": "1000",
    });
    status["capacity"] = room.clone();
    status["allocatable"] = room;
    status["addresses"] = json!([
        {"type": "InternalIP", "address": format!("100.64.{}.{}", number / 250, number % 250 + 1)},
        {"type": "Hostname", "address": name},
    ]);
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        condition["lastHeartbeatTime"] = json!(now);
        condition["lastTransitionTime"] = json!(now);
    }
    let nodes = Api::<Node>::all(requests.client.clone());
    let manifest = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status,
    }))?;
    let of_node = match made(nodes.create(&PostParams::default(), &manifest).await)? {
        Some(node) => node,
        // The Node exists, and has been unresponsive since an earlier run.
        None => {
            let ready = Patch::Strategic(json!({"status": {"conditions": status["conditions"]}}));
            nodes.patch_status(name, &PatchParams::default(), &ready).await?
        }
    };
    for namespace in [KUBELETS, NODE_LEASE_NAMESPACE] {
        let leases = Api::<Lease>::namespaced(requests.client.clone(), namespace);
        let lease = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "holderIdentity": name, "leaseDurationSeconds": STALE_AFTER.as_secs(),
                "renewTime": microseconds(Timestamp::now()),
            },
        }))?;
        made(leases.create(&PostParams::default(), &lease).await)?;
    }
    let hypervisors = Api::<Hypervisor>::all(requests.client.clone());
    let manifest = serde_json::from_value(json!({
        "apiVersion": "drydock.dev/v1alpha1", "kind": "Hypervisor",
        "metadata": {"name": name, "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": name, "uid": of_node.uid()},
        ]},
        "spec": {},
    }))?;
    made(hypervisors.create(&PostParams::default(), &manifest).await)?;
    let patch = json!({"status": hypervisor});
    hypervisors
        .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}
