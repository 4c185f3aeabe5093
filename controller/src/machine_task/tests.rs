use drydock_api::kubevirt::{Phase, RunStrategy, names::VM_FINALIZER};
use drydock_core::machine::instance_of::instance_of;
use drydock_runtime::fake::{ApiServer, api_server};
use http::Method;
use serde_json::Value;

use super::*;

pub(super) const MACHINE: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines/vm1";
pub(super) const INSTANCES: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances";

pub(super) fn key() -> Key {
    Key::namespaced("default", "vm1")
}

/// Returns a VirtualMachine as the API server returns it, with this version.
pub(super) fn machine(strategy: RunStrategy, version: &str) -> VirtualMachine {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {
            "name": "vm1", "namespace": "default", "uid": "vm-uid", "generation": 1,
            "resourceVersion": version, "finalizers": [VM_FINALIZER],
        },
        "spec": {"runStrategy": strategy, "template": {"spec": {}}},
    }))
    .unwrap()
}

pub(super) fn instance(machine: &VirtualMachine, uid: &str, phase: Phase) -> VirtualMachineInstance {
    let mut instance = instance_of(machine);
    instance.metadata.uid = Some(uid.into());
    instance.metadata.resource_version = Some("100".into());
    instance.status.get_or_insert_default().phase = Some(phase);
    instance
}

/// Returns the task with these objects in its caches, its API server, and the API server for its events.
fn task(machines: Vec<VirtualMachine>, instances: Vec<VirtualMachineInstance>) -> (MachineTask, ApiServer, ApiServer) {
    let (client, server) = api_server();
    let (context, events_server) = GuestContext::empty(client);
    context.instances.objects.show(instances);
    let task = MachineTask::new(context, AssumeCache::filled(machines));
    (task, server, events_server)
}

/// Returns the API server's response after a status was applied to a VirtualMachine.
fn with_status(machine: &VirtualMachine, body: &Value, version: &str) -> Value {
    let mut stored = json!(machine);
    stored["status"] = body["status"].clone();
    stored["metadata"]["resourceVersion"] = json!(version);
    stored
}

#[tokio::test(start_paused = true)]
async fn start_writes_status_instance_and_event_once() {
    let mut first = machine(RunStrategy::Always, "10");
    first.metadata.finalizers = None;
    let (task, mut server, mut events_server) = task(vec![first.clone()], vec![]);
    let served = async {
        let finalizers = server.next_request().await;
        assert_eq!((&finalizers.method, finalizers.path()), (&Method::PATCH, MACHINE));
        let metadata = &finalizers.body["metadata"];
        assert_eq!(metadata["finalizers"], json!([VM_FINALIZER]));
        assert_eq!(
            (&metadata["uid"], &metadata["resourceVersion"]),
            (&json!("vm-uid"), &json!("10"))
        );
        finalizers.with(&json!(machine(RunStrategy::Always, "11")));
        let status = server.next_request().await;
        assert_eq!(status.path(), format!("{MACHINE}/status"));
        assert_eq!(status.body["metadata"]["resourceVersion"], "11");
        assert_eq!(status.body["status"]["printableStatus"], "Starting");
        assert_eq!(
            status.body["status"]["stateChangeRequests"],
            json!([]),
            "requests of others are taken away"
        );
        let stored = with_status(&machine(RunStrategy::Always, "11"), &status.body, "12");
        status.with(&stored);
        let create = server.next_request().await;
        assert_eq!((&create.method, create.path()), (&Method::POST, INSTANCES));
        assert_eq!(create.body["metadata"]["ownerReferences"][0]["uid"], "vm-uid");
        let mut made = create.body.clone();
        made["metadata"]["uid"] = json!("i1");
        create.with(&made);
        // The watch has not shown the instance yet, but the created instance counts.
        let status = server.next_request().await;
        assert_eq!(status.body["status"]["created"], true);
        let stored = with_status(&machine(RunStrategy::Always, "11"), &status.body, "13");
        status.with(&stored);
    };
    let reconciled = async {
        for _ in 0..3 {
            assert_eq!(task.reconcile(&key()).await.unwrap(), Requeue::OnChange);
        }
    };
    tokio::join!(reconciled, served);
    let event = events_server.next_request().await;
    assert_eq!(
        (&event.body["reason"], &event.body["regarding"]["name"]),
        (&json!("SuccessfulCreate"), &json!("vm1"))
    );
    assert!(server.is_left_alone().await);
}

#[tokio::test(start_paused = true)]
async fn instance_is_deleted_once_with_the_uid_as_precondition() {
    let mut halted = machine(RunStrategy::Halted, "10");
    halted.spec.template.spec.hostname = Some("x".into());
    let running = instance(&halted, "i1", Phase::Running);
    let (task, mut server, _events_server) = task(vec![halted.clone()], vec![running]);
    let served = async {
        let status = server.next_request().await;
        assert_eq!(status.body["status"]["printableStatus"], "Stopping");
        let stored = with_status(&halted, &status.body, "11");
        status.with(&stored);
        let delete = server.next_request().await;
        assert_eq!(
            (&delete.method, delete.path()),
            (&Method::DELETE, format!("{INSTANCES}/vm1").as_str())
        );
        assert_eq!(delete.body["preconditions"]["uid"], "i1");
        delete.with(&json!({"apiVersion": "v1", "kind": "Status", "status": "Success"}));
    };
    let reconciled = async {
        // The watch still shows the instance unchanged, but it is not deleted again.
        for _ in 0..3 {
            assert_eq!(task.reconcile(&key()).await.unwrap(), Requeue::OnChange);
        }
    };
    tokio::join!(reconciled, served);
    assert!(server.is_left_alone().await);
}

#[tokio::test(start_paused = true)]
async fn refusal_is_reported_on_the_machine_and_retried() {
    let first = machine(RunStrategy::Always, "10");
    let (task, mut server, mut events_server) = task(vec![first.clone()], vec![]);
    let served = async {
        let status = server.next_request().await;
        let stored = with_status(&first, &status.body, "11");
        status.with(&stored);
        server.next_request().await.refuse(403, "Forbidden");
        let status = server.next_request().await;
        assert_eq!(status.body["metadata"]["resourceVersion"], "11");
        let conditions = status.body["status"]["conditions"].as_array().unwrap();
        let failure = conditions
            .iter()
            .find(|condition| condition["type"] == "Failure")
            .unwrap();
        assert_eq!(
            (&failure["reason"], &failure["message"]),
            (&json!("FailedCreate"), &json!("refused with 403"))
        );
        let stored = with_status(&first, &status.body, "12");
        status.with(&stored);
        // The status already reports the refusal, so the retry writes nothing.
        server.next_request().await.refuse(403, "Forbidden");
    };
    let reconciled = async {
        for _ in 0..2 {
            let error = task.reconcile(&key()).await.unwrap_err();
            assert!(matches!(error, ReconcileError::Refused { .. }), "{error}");
        }
    };
    tokio::join!(reconciled, served);
    assert_eq!(events_server.next_request().await.body["reason"], "FailedCreate");
    assert!(server.is_left_alone().await);
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_has_changed_meanwhile_is_left_to_the_watch() {
    let first = machine(RunStrategy::Always, "10");
    let (task, mut server, _events_server) = task(vec![first], vec![]);
    let served = async { server.next_request().await.refuse(409, "Conflict") };
    let (reconciled, ()) = tokio::join!(async { reconciler::reconcile(&task, &key()).await }, served);
    // The task waits, because the conflict may concern another object.
    assert!(matches!(reconciled, Ok(Requeue::At(_))), "{reconciled:?}");
    assert!(server.is_left_alone().await);
}

#[tokio::test(start_paused = true)]
async fn deleted_machine_goes_once_the_instance_is_confirmed_gone() {
    let mut going = machine(RunStrategy::Always, "10");
    going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    let (task, mut server, _events_server) = task(vec![going.clone()], vec![]);
    let served = async {
        let get = server.next_request().await;
        assert_eq!(
            (&get.method, get.path()),
            (&Method::GET, format!("{INSTANCES}/vm1").as_str())
        );
        get.refuse(404, "NotFound");
        let finalizers = server.next_request().await;
        assert_eq!(finalizers.body["metadata"]["finalizers"], json!([]));
        finalizers.with(&json!(going));
    };
    let (reconciled, ()) = tokio::join!(async { task.reconcile(&key()).await }, served);
    assert_eq!(reconciled.unwrap(), Requeue::OnChange);
}

#[tokio::test(start_paused = true)]
async fn delayed_start_has_a_retry_time() {
    let mut waiting = machine(RunStrategy::Always, "10");
    let retry = clock::now() + jiff::SignedDuration::from_secs(100);
    waiting.status = serde_json::from_value(json!({
        "runStrategy": "Always",
        "startFailure": {"consecutiveFailCount": 3, "lastFailedVMIUID": "i0", "retryAfterTimestamp": retry},
    }))
    .unwrap();
    let (task, mut server, _events_server) = task(vec![waiting.clone()], vec![]);
    let served = async {
        let status = server.next_request().await;
        assert_eq!(status.body["status"]["printableStatus"], "CrashLoopBackOff");
        let stored = with_status(&waiting, &status.body, "11");
        status.with(&stored);
    };
    let (reconciled, ()) = tokio::join!(async { task.reconcile(&key()).await }, served);
    assert_eq!(reconciled.unwrap(), Requeue::At(retry));
    assert!(server.is_left_alone().await);
}

#[tokio::test(start_paused = true)]
async fn throttled_instance_leaves_no_failure_and_is_retried() {
    for (code, reason) in [(409, "Conflict"), (429, "TooManyRequests"), (500, "InternalError")] {
        let first = machine(RunStrategy::Always, "10");
        let (task, mut server, mut events_server) = task(vec![first.clone()], vec![]);
        let served = async {
            let status = server.next_request().await;
            let stored = with_status(&first, &status.body, "11");
            status.with(&stored);
            let create = server.next_request().await;
            assert_eq!((&create.method, create.path()), (&Method::POST, INSTANCES));
            create.refuse(code, reason);
        };
        let (reconciled, ()) = tokio::join!(async { task.reconcile(&key()).await }, served);
        // The error is not a conflict of the VirtualMachine itself, which would not be retried.
        assert!(
            matches!(reconciled, Err(ReconcileError::Failed { .. })),
            "{code}: {reconciled:?}"
        );
        assert!(
            server.is_left_alone().await && events_server.is_left_alone().await,
            "{code}"
        );
    }
}
