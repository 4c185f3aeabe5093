//! Tests of failed writes of the task, and of the loss of the leadership during a write.

use drydock_runtime::Events;
use kube::Client;
use serde_json::json;

use super::{
    tests::{instance, key, task},
    *,
};
use crate::{
    fake_cluster::{
        FakeCluster,
        write_faults::{Again, Scenario, check_each_write},
    },
    pdb_task::PdbTask,
};

const INSTANCES: &str = "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances";
const PODS: &str = "/api/v1/namespaces/shop/pods";
const INSTANCE: &str = "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances/web";

/// A scenario with a new instance. The agent starts its guest, and the instance is deleted after that. It ends when the
/// instance no longer exists. The PDB task takes part.
struct Life(InstanceTask, PdbTask);

impl Scenario for Life {
    fn start(client: Client, events: Events) -> Self {
        let node = serde_json::from_value(json!({
            "metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }));
        let context = GuestContext::with_events(client, events);
        context.launchers.nodes.nodes.show([node.unwrap()]);
        Self(InstanceTask::new(context.clone()), PdbTask::new(context))
    }

    fn show(&self, cluster: &FakeCluster) {
        self.0.context.show(cluster);
    }

    async fn reconcile(&self) -> Again {
        let key = Key::namespaced("shop", "web");
        let of_instance = Again::from(reconciler::reconcile(&self.0, &key).await);
        of_instance.or(reconciler::reconcile(&self.1, &key).await.into())
    }

    /// Performs the actions of the scheduler, the kubelet, the agent and the user.
    fn act(cluster: &mut FakeCluster) {
        let pods = cluster.paths("pods");
        let pod_uid = pods
            .first()
            .and_then(|pod| Some(cluster.get(pod)?["metadata"]["uid"].clone()));
        for pod in pods {
            cluster.change(&pod, |pod| {
                // The kubelet keeps a pod until its containers have ended.
                pod["metadata"]["finalizers"] = json!(["example.org/kubelet"]);
                pod["spec"]["nodeName"] = json!("a");
                pod["status"] = if pod["metadata"]["deletionTimestamp"].is_null() {
                    json!({"phase": "Running"})
                } else {
                    let message = json!({"outcome": "Shutdown", "message": "the guest ended"}).to_string();
                    json!({"phase": "Succeeded", "containerStatuses": [{
                        "name": "compute", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                        "state": {"terminated": {"exitCode": 0, "message": message}},
                    }]})
                };
            });
        }
        cluster.change(INSTANCE, |instance| {
            let is_bound = !instance["status"]["nodeName"].is_null();
            match instance["status"]["phase"].as_str() {
                Some("Scheduling" | "Scheduled") if is_bound => {
                    instance["status"]["phase"] = json!("Running");
                    instance["status"]["drydock"] = json!({"podUID": pod_uid});
                }
                Some("Running") if instance["metadata"]["deletionTimestamp"].is_null() => {
                    instance["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                }
                _ => {}
            }
        });
    }

    /// Kubernetes deletes a PDB with its pod, unless the task has deleted it before.
    fn is_counted(change: &str) -> bool {
        !change.starts_with("DELETE poddisruptionbudgets")
    }

    fn is_repeated_by_others(write: &str) -> bool {
        write.starts_with("POST poddisruptionbudgets")
    }

    /// A phase that has ended before the next reconcile is not recorded.
    fn normalize(object: &mut serde_json::Value) {
        if let Some(status) = object["status"].as_object_mut() {
            status.remove("phaseTransitionTimestamps");
        }
    }

    fn refusal_event(write: &str) -> Option<&'static str> {
        write.starts_with("POST pods").then_some("FailedCreate")
    }
}

/// Returns a cluster with a new instance.
fn new_instance() -> FakeCluster {
    let mut new = json!(instance());
    new["metadata"].as_object_mut().unwrap().remove("finalizers");
    new["spec"]["evictionStrategy"] = json!("LiveMigrate");
    new["status"] = json!({});
    FakeCluster::with([(INSTANCES, new)])
}

#[tokio::test(start_paused = true)]
async fn life_of_a_guest_survives_each_write_fault() {
    check_each_write::<Life>(
        new_instance,
        &[
            "PATCH virtualmachineinstances/web",
            "POST pods/virt-launcher-web-3065e4bc9f",
            "POST poddisruptionbudgets/virt-launcher-web-3065e4bc9f",
            "PATCH virtualmachineinstances/web/status",
            "PATCH virtualmachineinstances/web/status",
            "PATCH virtualmachineinstances/web",
            "PATCH virtualmachineinstances/web/status",
            "PATCH virtualmachineinstances/web/status",
            "DELETE pods/virt-launcher-web-3065e4bc9f",
            "DELETE poddisruptionbudgets/virt-launcher-web-3065e4bc9f",
            "PATCH virtualmachineinstances/web",
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn image_probe_interrupted_by_the_end_of_a_term_is_repeated() {
    let (task, mut server, _recorded) = task();
    let (instance, key) = (instance(), key());
    let path = format!("{PODS}/web-pod/ephemeralcontainers");
    tokio::select! {
        _ = task.probe_images(&key, &instance, ("web-pod", "uid-pod"), &[]) => panic!("there is no response"),
        request = server.next_request() => assert_eq!(request.path(), path),
    }
    let (probed, ()) = tokio::join!(task.probe_images(&key, &instance, ("web-pod", "uid-pod"), &[]), async {
        let request = server.next_request().await;
        assert_eq!(request.path(), path);
        request.with(&json!({"metadata": {"name": "web-pod"}}));
    });
    probed.unwrap();
    let again = task.probe_images(&key, &instance, ("web-pod", "uid-pod"), &[]);
    let (again, is_idle) = tokio::join!(again, server.is_left_alone());
    assert!(again.is_ok() && is_idle);
}
