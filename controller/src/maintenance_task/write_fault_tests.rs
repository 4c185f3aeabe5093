//! Tests of failed writes of the task, and of the loss of the leadership during a write.

use std::time::Duration;

use drydock_core::maintenance::reservation;
use drydock_runtime::{Readiness, WatchMetrics};
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;
use crate::fake_cluster::{
    FakeCluster,
    write_faults::{Again, Scenario, check_each_write},
};

/// Time within which a retry is due. The next renewal of the Lease is not due within it.
const SOON: SignedDuration = SignedDuration::from_mins(1);

/// A scenario with a maintenance of node `n` that lasts until its Lease has been renewed. `IS_KUBEVIRT` selects its API
/// group.
struct WholeMaintenance<const IS_KUBEVIRT: bool> {
    task: MaintenanceTask,
    watches: Process,
}

fn group(is_kubevirt: bool) -> Group {
    if is_kubevirt { Group::KubeVirt } else { Group::Medik8s }
}

fn object() -> Value {
    json!({
        "metadata": {"name": "m", "uid": "uid-m"},
        "spec": {"nodeName": "n"},
    })
}

fn maintenance_path(cluster: &FakeCluster) -> Option<String> {
    cluster.paths("nodemaintenances").pop()
}

impl<const IS_KUBEVIRT: bool> Drop for WholeMaintenance<IS_KUBEVIRT> {
    fn drop(&mut self) {
        self.watches.stop();
    }
}

impl<const IS_KUBEVIRT: bool> Scenario for WholeMaintenance<IS_KUBEVIRT> {
    fn start(client: Client, events: Events) -> Self {
        let process = Process::new();
        let watches = WatchStarter::new(&process, &Readiness::new(), &WatchMetrics::default());
        let places = LeaseNamespaces {
            leases: "medik8s-leases".into(),
            kubevirt_leases: "kubevirt".into(),
            own: "drydock".into(),
        };
        let object: NodeMaintenance = serde_json::from_value(object()).unwrap();
        let task = MaintenanceTask::new(
            client.clone(),
            &watches,
            Maintenances::filled([(group(IS_KUBEVIRT), object)]),
            Nodes::filled(&client, []),
            NodePods::start(&client, &watches, |_| ()),
            &places,
            events,
            &MaintenanceQueues::new(&WorkQueueMetrics::default()),
        );
        Self { task, watches: process }
    }

    fn show(&self, cluster: &FakeCluster) {
        let shown = cluster.all("nodemaintenances");
        self.task.maintenances.of_group(group(IS_KUBEVIRT)).show(shown);
        self.task.nodes.nodes.show(cluster.all("nodes"));
    }

    async fn begin(&self) {
        self.task.leases.wait_until_synced().await;
    }

    async fn reconcile(&self) -> Again {
        // The watches of Leases, pods and PDBs receive changes in the meantime.
        tokio::time::sleep(Duration::from_millis(10)).await;
        let of_node = reconciler::reconcile(&self.task, &Key::cluster("n")).await;
        let mut again = match of_node {
            Ok(Requeue::At(at)) if at.duration_since(clock::now()) < SOON => {
                clock::sleep_until(Some(at)).await;
                Again::Failed
            }
            other => other.into(),
        };
        // The first list of the node's pods triggers a reconcile of the node.
        if self.task.kept.lock().contains_key("n") && self.task.pods.of("n").is_none() {
            again = again.or(Again::Failed);
        }
        // Each response triggers a reconcile of the node.
        for pod in self.task.evictions.all().await {
            again = again
                .or(Again::At)
                .or(reconciler::reconcile(&self.task.evictions, &pod).await.into());
        }
        again
    }

    /// Makes the Lease due for renewal, and ends the maintenance after that like a user.
    fn act(cluster: &mut FakeCluster) {
        let Some(path) = maintenance_path(cluster) else { return };
        let has_succeeded = cluster
            .get(&path)
            .is_some_and(|object| object["status"]["phase"] == "Succeeded");
        let Some(lease) = cluster.paths("leases").pop().filter(|_| has_succeeded) else {
            return;
        };
        let Some(held) = cluster.get(&lease) else { return };
        let is_due = !held["metadata"]["labels"]["due"].is_null();
        let is_renewed = held["spec"]["renewTime"] != held["spec"]["acquireTime"];
        if !is_due {
            let before = (clock::now() - SignedDuration::from_mins(25)).to_string();
            cluster.change(&lease, |lease| {
                lease["metadata"]["labels"] = json!({"due": "true"});
                lease["spec"]["renewTime"] = json!(before);
                lease["spec"]["acquireTime"] = json!(before);
            });
        } else if is_renewed {
            cluster.change(&path, |object| {
                object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            });
        }
    }

    fn kept(&self) -> String {
        format!("{:?} {:?}", self.task.kept.lock().keys(), self.task.overdue.lock())
    }

    /// A process that does not know the pods yet reports that, and then reports once more that the node is empty.
    fn is_recorded_again_elsewhere(reason: &str) -> bool {
        reason == "SucceedMaintenance"
    }

    /// A Lease that cannot be acquired is reported.
    fn reports_refusal(write: &str, cluster: &FakeCluster) -> bool {
        let is_acquired = ["POST leases", "PUT leases"]
            .iter()
            .any(|lease| write.starts_with(lease));
        let Some(object) = maintenance_path(cluster).and_then(|path| cluster.get(&path)) else {
            return true;
        };
        let ends = !object["metadata"]["deletionTimestamp"].is_null();
        !is_acquired
            || ends
            || object["status"]["lastError"]
                .as_str()
                .is_some_and(|error| error.contains("lease"))
    }
}

/// Returns a cluster with a new maintenance of a node that runs a pod.
fn new_maintenance_of_a_node(is_kubevirt: bool) -> FakeCluster {
    let maintenances = if is_kubevirt {
        "/apis/nodemaintenance.kubevirt.io/v1beta1/nodemaintenances"
    } else {
        "/apis/nodemaintenance.medik8s.io/v1beta1/nodemaintenances"
    };
    let node = json!({
        "metadata": {"name": "n", "uid": "uid-n", "labels": {"kubernetes.io/os": "linux"}},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    let pod = json!({
        "metadata": {"name": "p", "namespace": "shop", "uid": "uid-p"},
        "spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Running"},
    });
    // The object was stored after the review of its creation had reserved the node.
    let now = clock::now();
    let mut object = object();
    let created = now - SignedDuration::from_secs(1);
    object["metadata"]["creationTimestamp"] = json!(created.to_string());
    let reserved_for = format!("{}/m", group(is_kubevirt).as_str());
    let mut reserved = json!(reservation::of("n", &reserved_for, "uid-m", now));
    reserved["metadata"]["uid"] = json!("uid-reservation");
    reserved["metadata"]["namespace"] = json!("drydock");
    FakeCluster::with([
        (maintenances, object),
        ("/apis/coordination.k8s.io/v1/namespaces/drydock/leases", reserved),
        ("/api/v1/nodes", node),
        ("/api/v1/namespaces/shop/pods", pod),
    ])
}

#[tokio::test(start_paused = true)]
async fn maintenance_survives_each_write_fault() {
    check_each_write::<WholeMaintenance<false>>(
        || new_maintenance_of_a_node(false),
        &[
            "DELETE leases/maintenance-n",
            "PATCH nodemaintenances/m",
            "PATCH nodemaintenances/m/status",
            "POST leases/node-n",
            "PATCH nodes/n",
            "PATCH nodes/n/status",
            "PATCH nodemaintenances/m/status",
            "PATCH nodemaintenances/m/status",
            "POST pods/p/eviction",
            "PATCH nodemaintenances/m/status",
            "PUT leases/node-n",
            "PATCH nodes/n",
            "PATCH nodes/n/status",
            "DELETE leases/node-n",
            "PATCH nodemaintenances/m",
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn maintenance_of_older_group_survives_each_write_fault() {
    check_each_write::<WholeMaintenance<true>>(
        || new_maintenance_of_a_node(true),
        &[
            "DELETE leases/maintenance-n",
            "PATCH nodemaintenances/m",
            "PATCH nodemaintenances/m/status",
            "POST leases/n",
            "PATCH nodes/n",
            "PATCH nodes/n/status",
            "PATCH nodemaintenances/m/status",
            "PATCH nodemaintenances/m/status",
            "POST pods/p/eviction",
            "PATCH nodemaintenances/m/status",
            "PUT leases/n",
            "PATCH nodes/n",
            "PATCH nodes/n/status",
            "PUT leases/n",
            "PATCH nodemaintenances/m",
        ],
    )
    .await;
}
