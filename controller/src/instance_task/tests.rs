use drydock_runtime::fake::{ApiServer, api_server};
use http::Method;
use serde_json::Value;

use super::*;

const INSTANCE: &str = "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances/web";
const PODS: &str = "/api/v1/namespaces/shop/pods";

pub(super) fn key() -> Key {
    Key::namespaced("shop", "web")
}

pub(super) fn instance() -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "uid-web", "resourceVersion": "10", "finalizers": [FINALIZER],
        },
        "spec": {"domain": {"devices": {}}, "evictionStrategy": "None"},
        "status": {"phase": "Pending"},
    }))
    .unwrap()
}

/// Returns the task with [`instance`], its API server, and the API server for its events.
pub(super) fn task() -> (InstanceTask, ApiServer, ApiServer) {
    task_of(instance(), [])
}

/// Returns the task with this instance and these pods, and the same API servers.
fn task_of(
    instance: VirtualMachineInstance,
    pods: impl IntoIterator<Item = Pod>,
) -> (InstanceTask, ApiServer, ApiServer) {
    let (client, server) = api_server();
    let (context, recorded) = GuestContext::empty(client);
    context.instances.objects.show([instance]);
    context.launchers.show(pods);
    (InstanceTask::new(context), server, recorded)
}

/// Refuses the creation of the instance's pod with this code.
async fn refuse_pod(server: &mut ApiServer, code: u16, reason: &str) {
    let list = server.next_request().await;
    assert_eq!((&list.method, list.path()), (&Method::GET, PODS));
    list.list("1", &[]);
    let create = server.next_request().await;
    assert_eq!((&create.method, create.path()), (&Method::POST, PODS));
    create.refuse(code, reason);
}

#[tokio::test(start_paused = true)]
async fn throttled_pod_leaves_no_condition_and_no_event() {
    for (code, reason) in [(409, "Conflict"), (429, "TooManyRequests"), (500, "InternalError")] {
        let (task, mut server, mut recorded) = task();
        let (reconciled, ()) = tokio::join!(
            async { task.reconcile(&key()).await },
            refuse_pod(&mut server, code, reason)
        );
        // The error is not a conflict of the instance itself, which would not be retried.
        assert!(
            matches!(reconciled, Err(ReconcileError::Failed { .. })),
            "{code}: {reconciled:?}"
        );
        assert!(server.is_left_alone().await && recorded.is_left_alone().await, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn refused_pod_is_reported_on_the_instance() {
    let (task, mut server, mut recorded) = task();
    let served = async {
        refuse_pod(&mut server, 403, "Forbidden").await;
        let status = server.next_request().await;
        assert_eq!(status.path(), format!("{INSTANCE}/status"));
        let conditions = status.body["status"]["conditions"].as_array().unwrap().clone();
        let failure = conditions.iter().find(|condition| condition["type"] == "Synchronized");
        assert_eq!(failure.unwrap()["message"], "refused with 403");
        let mut stored: Value = json!(instance());
        stored["status"] = status.body["status"].clone();
        status.with(&stored);
    };
    let (reconciled, ()) = tokio::join!(async { task.reconcile(&key()).await }, served);
    assert!(
        matches!(reconciled, Err(ReconcileError::Refused { .. })),
        "{reconciled:?}"
    );
    assert_eq!(recorded.next_request().await.body["reason"], "FailedCreate");
}

#[tokio::test(start_paused = true)]
async fn image_probe_is_repeated_unless_forbidden() {
    let (task, mut server, _recorded) = task();
    let (instance, key) = (instance(), key());
    for (code, reason, repeated) in [
        (429, "TooManyRequests", true),
        (409, "Conflict", true),
        (500, "InternalError", true),
        (403, "Forbidden", false),
    ] {
        let probe = task.probe_images(&key, &instance, ("web-pod", "uid-pod"), &[]);
        let (probed, ()) = tokio::join!(probe, async {
            let request = server.next_request().await;
            assert_eq!(request.path(), format!("{PODS}/web-pod/ephemeralcontainers"));
            request.refuse(code, reason);
        });
        assert_eq!(probed.is_err(), repeated, "{code}");
    }
    let probe = task.probe_images(&key, &instance, ("web-pod", "uid-pod"), &[]);
    let (probed, idle) = tokio::join!(probe, server.is_left_alone());
    assert!(probed.is_ok() && idle);
}

/// Returns an instance that was deleted after its end, and its pod on node `b`, which is also being deleted.
fn ended() -> (VirtualMachineInstance, Pod) {
    let mut instance = instance();
    instance.metadata.deletion_timestamp = serde_json::from_value(json!("2026-05-01T11:00:00Z")).unwrap();
    instance.status = serde_json::from_value(json!({"phase": "Failed", "activePods": {"uid-pod": "b"}})).unwrap();
    let pod = serde_json::from_value(json!({
        "metadata": {
            "name": "web-pod", "namespace": "shop", "uid": "uid-pod", "resourceVersion": "11",
            "deletionTimestamp": "2026-05-01T11:00:00Z", "labels": {"kubevirt.io": "virt-launcher"},
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "web", "uid": "uid-web",
                "controller": true,
            }],
        },
        "spec": {"nodeName": "b", "containers": [{"name": "compute"}]},
        "status": {"phase": "Running"},
    }));
    (instance, pod.unwrap())
}

#[tokio::test(start_paused = true)]
async fn finalizer_of_an_ended_guest_goes_once_the_node_is_off() {
    let (instance, pod) = ended();
    let (task, mut server, _recorded) = task_of(instance.clone(), [pod]);
    let node = |taints: &Value| {
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "b", "uid": "b"}, "spec": {"taints": taints},
            "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
        })
    };
    for (taints, written) in [
        (json!([]), false),
        (
            json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]),
            true,
        ),
    ] {
        let mut finalizers = None;
        let sweep = async {
            for key in task.context.instances.unfinished_after(None, INSTANCES_PER_SWEEP) {
                task.reconcile(&key).await.unwrap();
            }
        };
        let serve = async {
            loop {
                let request = server.next_request().await;
                match request.path() {
                    "/api/v1/nodes/b" => request.with(&node(&taints)),
                    path => {
                        if path == INSTANCE {
                            finalizers = Some(request.body["metadata"]["finalizers"].clone());
                        }
                        request.with(&json!(instance));
                    }
                }
            }
        };
        tokio::select! { () = sweep => {} () = serve => {} }
        assert_eq!(finalizers, written.then(|| json!([])), "{taints}");
    }
}

/// Responds to the requests up to the write of a new instance's status, and returns that request. `meanwhile` runs
/// before the pods are listed.
async fn serve_start(server: &mut ApiServer, meanwhile: impl FnOnce()) -> drydock_runtime::fake::ReceivedRequest {
    let list = server.next_request().await;
    assert_eq!((&list.method, list.path()), (&Method::GET, PODS));
    meanwhile();
    list.list("1", &[]);
    loop {
        let request = server.next_request().await;
        if request.method == Method::PATCH && request.path() == INSTANCE {
            assert_eq!(request.body["metadata"]["resourceVersion"], "10");
            let mut stored = json!(instance());
            stored["metadata"]["resourceVersion"] = json!("12");
            request.with(&stored);
        } else if request.method == Method::POST {
            let mut made = request.body.clone();
            made["metadata"]["name"] = json!("web-pod");
            made["metadata"]["uid"] = json!("uid-pod");
            request.with(&made);
        } else {
            assert_eq!(request.path(), format!("{INSTANCE}/status"));
            return request;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn status_planned_before_a_change_of_the_vmi_is_refused() {
    let (task, mut server, _recorded) = task();
    let mut marked = instance();
    marked.metadata.resource_version = Some("11".into());
    marked.status.as_mut().unwrap().evacuation_node_name = Some("a".into());
    let objects = &task.context.instances.objects;
    let served = async {
        let status = serve_start(&mut server, || objects.remember(&key(), marked)).await;
        assert_eq!(status.body["metadata"]["resourceVersion"], "10");
        status.refuse(409, "Conflict");
    };
    let (reconciled, ()) = tokio::join!(async { task.reconcile(&key()).await }, served);
    let refused = matches!(&reconciled, Err(ReconcileError::Api(kube::Error::Api(status))) if status.is_conflict());
    assert!(refused, "{reconciled:?}");
    // The next plan uses the marked instance.
    let observed = task.observe(&key()).await.unwrap().unwrap();
    assert_eq!(observed.instance.resource_version().as_deref(), Some("11"));
    assert!(
        objects
            .newest(&key())
            .unwrap()
            .status
            .unwrap()
            .evacuation_node_name
            .is_some()
    );
}

#[tokio::test(start_paused = true)]
async fn status_is_written_upon_this_reconciles_own_writes() {
    let mut new = instance();
    new.metadata.finalizers = None;
    let (task, mut server, _recorded) = task_of(new, []);
    let served = async {
        let status = serve_start(&mut server, || ()).await;
        assert_eq!(status.body["metadata"]["resourceVersion"], "12");
        status.with(&json!(instance()));
    };
    let (reconciled, ()) = tokio::join!(async { task.reconcile(&key()).await }, served);
    assert!(reconciled.is_ok(), "{reconciled:?}");
}
