use drydock_api::kubevirt::Phase;
use drydock_runtime::fake::{ApiServer, api_server};
use http::Method;
use serde_json::Value;

use super::*;

pub(super) const SET: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstancereplicasets/web";
pub(super) const INSTANCES: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances";

pub(super) fn key() -> Key {
    Key::namespaced("default", "web")
}

pub(super) fn set(replicas: i32) -> VirtualMachineInstanceReplicaSet {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet",
        "metadata": {"name": "web", "namespace": "default", "uid": "set-uid", "resourceVersion": "10"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {}},
        },
    }))
    .unwrap()
}

pub(super) fn instance(name: &str) -> VirtualMachineInstance {
    let mut instance = instance_of(&set(1), name);
    instance.metadata.uid = Some(format!("uid-{name}"));
    instance.metadata.resource_version = Some("5".into());
    instance.status.get_or_insert_default().phase = Some(Phase::Running);
    instance
}

/// Returns a task without sets.
pub(super) fn task_in(context: GuestContext) -> ReplicaSetTask {
    ReplicaSetTask {
        events: context.events.recorder("Reconcile"),
        context,
        sets: AssumeCache::filled([]),
    }
}

fn task(set: VirtualMachineInstanceReplicaSet, instances: Vec<VirtualMachineInstance>) -> (ReplicaSetTask, ApiServer) {
    let (client, server) = api_server();
    let task = ReplicaSetTask {
        sets: AssumeCache::filled([set]),
        ..task_in(GuestContext::empty(client).0)
    };
    task.context.instances.objects.show(instances);
    (task, server)
}

/// Returns a new instance as the API server creates it.
fn made(body: &Value) -> Value {
    let mut made = body.clone();
    made["metadata"]["uid"] = json!(format!("uid-{}", body["metadata"]["name"]));
    made["metadata"]["resourceVersion"] = json!("20");
    made
}

/// Accepts the next request, which has to be a status patch, and returns the status. `set` is the current set.
async fn status(server: &mut ApiServer, set: &VirtualMachineInstanceReplicaSet, version: &str) -> Value {
    let request = server.next_request().await;
    assert_eq!(request.path(), format!("{SET}/status"));
    let mut stored = json!(set);
    stored["status"] = request.body["status"].clone();
    stored["metadata"]["resourceVersion"] = json!(version);
    let status = request.body["status"].clone();
    request.with(&stored);
    status
}

#[tokio::test(start_paused = true)]
async fn missing_members_are_created_in_growing_batches() {
    let wanted = set(5);
    let (task, mut server) = task(wanted.clone(), vec![]);
    let served = async {
        for _ in 0..5 {
            let create = server.next_request().await;
            assert_eq!((&create.method, create.path()), (&Method::POST, INSTANCES));
            let stored = made(&create.body);
            create.with(&stored);
        }
        assert_eq!(
            status(&mut server, &wanted, "11").await["replicas"],
            0,
            "as it was seen"
        );
        assert_eq!(status(&mut server, &wanted, "12").await["replicas"], 5);
    };
    let reconciled = async {
        for _ in 0..3 {
            task.reconcile(&key()).await.unwrap();
        }
    };
    tokio::join!(reconciled, served);
    assert!(server.is_left_alone().await);
}

#[tokio::test(start_paused = true)]
async fn impossible_replica_costs_one_request_and_is_explained() {
    let wanted = set(100);
    let (task, mut server) = task(wanted.clone(), vec![]);
    let served = async {
        server.next_request().await.refuse(403, "Forbidden");
        let written_status = status(&mut server, &wanted, "11").await;
        assert_eq!(written_status["conditions"][0]["reason"], "FailedCreate");
        assert_eq!(written_status["conditions"][0]["message"], "refused with 403");
        // The status already reports the refusal, so the retry writes nothing.
        server.next_request().await.refuse(403, "Forbidden");
    };
    let reconciled = async {
        for _ in 0..2 {
            assert!(matches!(
                task.reconcile(&key()).await,
                Err(ReconcileError::Refused { .. })
            ));
        }
    };
    tokio::join!(reconciled, served);
    assert!(server.is_left_alone().await);
}

#[tokio::test(start_paused = true)]
async fn replica_set_with_an_unseen_taken_name_is_retried() {
    let wanted = set(2);
    let (task, mut server) = task(wanted.clone(), vec![]);
    let served = async {
        server.next_request().await.refuse(409, "AlreadyExists");
        status(&mut server, &wanted, "11").await;
    };
    let (reconciled, ()) = tokio::join!(async { task.reconcile(&key()).await }, served);
    assert!(matches!(reconciled, Err(ReconcileError::Unsettled(_))));
}

/// Responds to the reads of a set and its instances.
async fn confirm(server: &mut ApiServer, set: &VirtualMachineInstanceReplicaSet, names: &[&str]) {
    let get = server.next_request().await;
    assert_eq!((&get.method, get.path()), (&Method::GET, SET));
    get.with(&json!(set));
    let list = server.next_request().await;
    assert_eq!((&list.method, list.path()), (&Method::GET, INSTANCES));
    assert!(list.query().contains("labelSelector=app%3Dweb"), "{}", list.query());
    let mut items: Vec<_> = names.iter().map(|name| instance(name)).collect();
    let mut of_another = instance("another");
    of_another.metadata.owner_references = None;
    items.push(of_another);
    list.with(&json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceList", "metadata": {}, "items": items,
    }));
}

#[tokio::test(start_paused = true)]
async fn nothing_that_lives_is_deleted_by_a_cache_that_is_behind() {
    // The set has been scaled up since the cached state, or another controller has scaled it down.
    for (now, there) in [(set(3), &["a", "b", "c"][..]), (set(1), &["b"])] {
        let shown = vec![instance("a"), instance("b"), instance("c")];
        let (task, mut server) = task(set(1), shown);
        let served = async {
            confirm(&mut server, &now, there).await;
            let written_status = status(&mut server, &now, "11").await;
            assert_eq!(written_status["replicas"], there.len());
        };
        let (reconciled, ()) = tokio::join!(async { task.reconcile(&key()).await }, served);
        reconciled.unwrap();
        assert!(server.is_left_alone().await);
    }
    // The set was deleted.
    let (task, mut server) = task(set(0), vec![instance("a")]);
    let gone = async { server.next_request().await.refuse(404, "NotFound") };
    let (reconciled, ()) = tokio::join!(async { task.reconcile(&key()).await }, gone);
    reconciled.unwrap();
    assert!(server.is_left_alone().await);
}

#[tokio::test(start_paused = true)]
async fn surplus_replicas_are_deleted_once() {
    let wanted = set(1);
    let (task, mut server) = task(wanted.clone(), vec![instance("a"), instance("b"), instance("c")]);
    let served = async {
        confirm(&mut server, &wanted, &["a", "b", "c"]).await;
        let mut deleted = Vec::new();
        for _ in 0..2 {
            let delete = server.next_request().await;
            assert_eq!(delete.method, Method::DELETE);
            let name = delete.path().rsplit('/').next().unwrap().to_owned();
            assert_eq!(delete.body["preconditions"]["uid"], format!("uid-{name}"));
            deleted.push(name);
            delete.with(&json!({"apiVersion": "v1", "kind": "Status", "status": "Success"}));
        }
        assert_eq!(deleted, ["a", "b"]);
        assert_eq!(
            status(&mut server, &wanted, "11").await["replicas"],
            3,
            "as it was seen"
        );
        assert_eq!(status(&mut server, &wanted, "12").await["replicas"], 1);
    };
    let reconciled = async {
        for _ in 0..3 {
            task.reconcile(&key()).await.unwrap();
        }
    };
    tokio::join!(reconciled, served);
    assert!(server.is_left_alone().await);
}

#[tokio::test(start_paused = true)]
async fn released_instance_keeps_other_owners() {
    let wanted = set(0);
    let mut stranger = instance("a");
    stranger.metadata.labels = None;
    let owners = stranger.metadata.owner_references.get_or_insert_default();
    owners.push(
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "other"})).unwrap(),
    );
    let (task, mut server) = task(wanted.clone(), vec![stranger]);
    let served = async {
        let release = server.next_request().await;
        assert_eq!(
            (&release.method, release.path()),
            (&Method::PATCH, format!("{INSTANCES}/a").as_str())
        );
        let metadata = &release.body["metadata"];
        assert_eq!(
            (&metadata["uid"], &metadata["resourceVersion"]),
            (&json!("uid-a"), &json!("5"))
        );
        assert_eq!(metadata["ownerReferences"].as_array().unwrap().len(), 1);
        assert_eq!(metadata["ownerReferences"][0]["uid"], "other");
        release
            .with(&json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "a"}}));
        status(&mut server, &wanted, "11").await;
    };
    let (reconciled, ()) = tokio::join!(async { task.reconcile(&key()).await }, served);
    reconciled.unwrap();
}
