use drydock_core::launcher_pod::REQUIREMENTS_DIGEST;
use drydock_runtime::fake::{ApiServer, api_server};
use http::Method;
use serde_json::Value;

use super::*;

const POD: &str = "/api/v1/namespaces/default/pods/virt-launcher-vm1-x";
const INSTANCE: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances/vm1";

fn key() -> Key {
    Key::namespaced("default", "vm1")
}

fn instance() -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm1", "namespace": "default", "uid": "u", "resourceVersion": "10", "finalizers": [FINALIZER]},
        "spec": {"domain": {"devices": {}}},
        "status": {"phase": "Scheduling"},
    }))
    .unwrap()
}

/// Returns the instance's pod, on `node` if that is set. The pod was created with other requirements.
fn pod(node: Option<&str>) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": "virt-launcher-vm1-x", "namespace": "default", "uid": "p", "resourceVersion": "7",
            "annotations": {REQUIREMENTS_DIGEST: "earlier"},
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "vm1", "uid": "u", "controller": true}],
        },
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Pending"},
    }))
    .unwrap()
}

/// Returns the task with this pod in its caches, and its API server.
fn task(pod: Pod) -> (InstanceTask, ApiServer) {
    let (client, server) = api_server();
    let (context, _) = GuestContext::empty(client);
    context.instances.objects.show([instance()]);
    context.launchers.show([pod]);
    (InstanceTask::new(context), server)
}

/// Accepts any status patch of the instance.
async fn accept_status(server: &mut ApiServer) {
    let status = server.next_request().await;
    assert_eq!(
        (&status.method, status.path()),
        (&Method::PATCH, &*format!("{INSTANCE}/status"))
    );
    let mut stored: Value = json!(instance());
    stored["status"] = status.body["status"].clone();
    stored["metadata"]["resourceVersion"] = json!("11");
    status.with(&stored);
}

#[tokio::test(start_paused = true)]
async fn unbound_pod_is_deleted_only_at_the_seen_version() {
    let (task, mut server) = task(pod(None));
    let serving = async {
        let deletion = server.next_request().await;
        assert_eq!((&deletion.method, deletion.path()), (&Method::DELETE, POD));
        assert_eq!(
            deletion.body["preconditions"],
            json!({"uid": "p", "resourceVersion": "7"})
        );
        // The scheduler binds the pod at the same time.
        deletion.refuse(409, "Conflict");
        accept_status(&mut server).await;
        assert!(server.is_left_alone().await);
    };
    let key = key();
    let (result, ()) = tokio::join!(task.reconcile(&key), serving);
    result.unwrap();
}

#[tokio::test(start_paused = true)]
async fn bound_pod_stays_regardless_of_requirements() {
    let (task, mut server) = task(pod(Some("a")));
    let serving = async {
        let node = server.next_request().await;
        assert_eq!((&node.method, node.path()), (&Method::GET, "/api/v1/nodes/a"));
        node.with(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
        let label = server.next_request().await;
        assert_eq!((&label.method, label.path()), (&Method::PATCH, INSTANCE));
        label.with(&json!(instance()));
        accept_status(&mut server).await;
        assert!(server.is_left_alone().await);
    };
    let key = key();
    let (result, ()) = tokio::join!(task.reconcile(&key), serving);
    result.unwrap();
}
