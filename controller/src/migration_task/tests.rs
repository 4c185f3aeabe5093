use drydock_api::kubevirt::names::MIGRATION_FINALIZER;
use drydock_core::migration::awaited_agent::USUAL_TIME;
use drydock_runtime::{
    WorkQueueMetrics,
    clock::test_clock::FollowedClock,
    fake::{ApiServer, ReceivedRequest, api_server},
};
use http::Method;
use serde_json::{Value, json};

use super::*;
use crate::liveness_task::UnresponsiveAgents;

pub(super) const MIGRATION: &str = "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstancemigrations/m";
const PODS: &str = "/api/v1/namespaces/shop/pods";
pub(super) const UID: &str = "uid-m";

pub(super) fn key() -> Key {
    Key::namespaced("shop", "m")
}

pub(super) fn migration() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": {
            "name": "m", "namespace": "shop", "uid": UID, "resourceVersion": "10",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"vmiName": "web"},
    })
}

pub(super) fn instance() -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "web", "namespace": "shop", "uid": "uid-web"},
        "spec": {"domain": {"devices": {}}, "evictionStrategy": "None"},
        "status": {"phase": "Running", "nodeName": "a", "conditions": [{"type": "LiveMigratable", "status": "True"}]},
    }))
    .unwrap()
}

/// Returns the task with this migration of a running instance, its API server, and the API server for its events.
fn task(migration: &Value, pods: Vec<Pod>) -> (MigrationTask, ApiServer, ApiServer) {
    task_of(std::slice::from_ref(migration), pods)
}

/// Like [`task`], with several migrations of the instance.
fn task_of(migrations: &[Value], pods: Vec<Pod>) -> (MigrationTask, ApiServer, ApiServer) {
    let (client, server) = api_server();
    let (context, recorded) = GuestContext::empty(client);
    let node = |name: &str| serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    context.launchers.nodes.nodes.show([node("a"), node("b")]);
    context.launchers.show(pods);
    let migrations = migrations
        .iter()
        .map(|migration| serde_json::from_value(migration.clone()).unwrap());
    context.migrations.objects.show(migrations);
    context.instances.objects.show([instance()]);
    let work = WorkQueue::new("migrations", 1, &WorkQueueMetrics::default());
    let task = MigrationTask::new(context, PhaseDeadlines::default(), work);
    (task, server, recorded)
}

/// Accepts a status patch of the migration, and returns the status.
async fn apply_status(server: &mut ApiServer, version: &str) -> Value {
    let request = server.next_request().await;
    assert_eq!(request.path(), format!("{MIGRATION}/status"), "{:?}", request.body);
    let mut stored = migration();
    stored["status"] = request.body["status"].clone();
    stored["metadata"]["resourceVersion"] = json!(version);
    request.with(&stored);
    stored["status"].clone()
}

async fn pod_request(server: &mut ApiServer) -> ReceivedRequest {
    let request = server.next_request().await;
    assert_eq!((&request.method, request.path()), (&Method::POST, PODS));
    request
}

/// Responds to the creation of a pod.
fn create(request: ReceivedRequest) {
    let mut made = request.body.clone();
    made["metadata"]["uid"] = json!("uid-pod");
    made["metadata"]["namespace"] = json!("shop");
    made["metadata"]["creationTimestamp"] = json!(drydock_core::conditions::whole_seconds(clock::now()));
    request.with(&made);
}

#[tokio::test(start_paused = true)]
async fn throttled_target_pod_keeps_the_place_and_is_retried() {
    for (code, reason) in [(409, "Conflict"), (429, "TooManyRequests"), (500, "InternalError")] {
        let (task, mut server, mut recorded) = task(&migration(), vec![]);
        let served = async {
            pod_request(&mut server).await.refuse(code, reason);
            let status = apply_status(&mut server, "11").await;
            assert_eq!(
                (&status["phase"], &status["conditions"]),
                (&json!("Pending"), &Value::Null),
                "{code}"
            );
        };
        let (reconciled, ()) = tokio::join!(async { task.reconcile(&key()).await }, served);
        assert!(
            matches!(reconciled, Err(ReconcileError::Failed { .. })),
            "{code}: {reconciled:?}"
        );
        assert!(task.turns.state_of(UID).may_place, "{code}");
        assert!(recorded.is_left_alone().await, "{code}");
        let (reconciled, ()) = tokio::join!(async { task.reconcile(&key()).await }, async {
            create(pod_request(&mut server).await);
        });
        assert!(matches!(reconciled, Ok(Requeue::At(_))), "{code}: {reconciled:?}");
        assert_eq!(
            recorded.next_request().await.body["reason"],
            "SuccessfulCreate",
            "{code}"
        );
    }
}

const REFUSAL: &str = "refused with 403";

fn step() -> RefusedStep {
    RefusedStep::TargetPod(key())
}

#[tokio::test(start_paused = true)]
async fn refused_target_pod_is_reported_and_retried_when_due() {
    let (task, mut server, mut recorded) = task(&migration(), vec![]);
    let served = async {
        pod_request(&mut server).await.refuse(403, "Forbidden");
        let status = apply_status(&mut server, "11").await;
        let condition = &status["conditions"][0];
        assert_eq!(
            (&condition["type"], &condition["reason"], &condition["message"]),
            (&json!("Waiting"), &json!("FailedCreate"), &json!("refused with 403"))
        );
    };
    let (reconciled, ()) = tokio::join!(async { task.reconcile(&key()).await }, served);
    assert!(matches!(reconciled, Ok(Requeue::At(_))), "{reconciled:?}");
    assert_eq!(recorded.next_request().await.body["reason"], "FailedCreate");
    assert!(!task.turns.state_of(UID).may_place, "others may have its place");

    // Before the next attempt is due, there is no attempt and no write, whatever else changes.
    (0..10).for_each(|_| task.context.refusals.note(step(), REFUSAL, clock::now()));
    let again_at = task.context.refusals.of(&step(), clock::now()).unwrap().again_at;
    assert_eq!(task.reconcile(&key()).await.unwrap(), Requeue::At(again_at));
    task.turn();
    assert!(!task.turns.state_of(UID).may_place && server.is_left_alone().await);

    // The attempt is due and refused for the same reason, so there is neither a write nor an event.
    task.context.refusals.note(step(), REFUSAL, Timestamp::UNIX_EPOCH);
    let served = async { pod_request(&mut server).await.refuse(403, "Forbidden") };
    let (reconciled, ()) = tokio::join!(async { task.reconcile(&key()).await }, served);
    assert!(reconciled.is_ok() && recorded.is_left_alone().await);

    // The attempt is due, and the cause of the refusal no longer exists.
    task.context.refusals.note(step(), REFUSAL, Timestamp::UNIX_EPOCH);
    let served = async {
        create(pod_request(&mut server).await);
        let status = apply_status(&mut server, "12").await;
        assert_eq!(
            (&status["phase"], &status["conditions"]),
            (&json!("Scheduling"), &Value::Null)
        );
    };
    let (reconciled, ()) = tokio::join!(async { task.reconcile(&key()).await }, served);
    assert!(reconciled.is_ok() && task.context.refusals.of(&step(), clock::now()).is_none());
    assert_eq!(recorded.next_request().await.body["reason"], "SuccessfulCreate");
}

/// Returns the steps of a plan.
fn steps(task: &MigrationTask, observed: &MigrationObservation) -> Vec<ClusterStep> {
    match task.plan(&key(), observed) {
        MigrationPlan::Steps(steps) => steps,
        MigrationPlan::Delete => panic!("the migration is not over"),
    }
}

#[tokio::test(start_paused = true)]
async fn slot_is_that_of_the_observation_until_steps_are_executed() {
    let mut queued = migration();
    queued["status"] = json!({"phase": "Pending"});
    let (task, _server, _recorded) = task(&queued, vec![]);
    let observed = task.observe(&key()).await.unwrap().unwrap();
    task.turns.withdraw(UID);
    assert_eq!(steps(&task, &observed), [ClusterStep::CreatePod]);

    let (task, _server, _recorded) = self::task(&migration(), vec![]);
    let mut observed = task.observe(&key()).await.unwrap().unwrap();
    assert_eq!(steps(&task, &observed), [ClusterStep::Enter(MigrationPhase::Pending)]);
    task.turns.withdraw(UID);
    let plan = task.plan(&key(), &observed);
    let executed = task.execute(&key(), &mut observed, plan).await;
    assert_eq!(executed.unwrap(), Executed::Replan);
    assert_eq!(steps(&task, &observed), []);
}

#[tokio::test(start_paused = true)]
async fn two_migrations_of_one_second_create_one_pod() {
    // The watch showed this migration first, so it is queued although it sorts last.
    let mut queued = migration();
    queued["status"] = json!({"phase": "Pending"});
    let mut shown_later = migration();
    (shown_later["metadata"]["name"], shown_later["metadata"]["uid"]) = (json!("k"), json!("uid-k"));
    for order in [["m", "k"], ["k", "m"]] {
        let (task, mut server, _recorded) = task_of(&[queued.clone(), shown_later.clone()], vec![]);
        for name in order {
            let served = async {
                if name == "k" {
                    create(pod_request(&mut server).await);
                } else {
                    let status = apply_status(&mut server, "11").await;
                    assert_eq!(status["phase"], "Failed", "{status}");
                }
            };
            let key = Key::namespaced("shop", name);
            let (reconciled, ()) = tokio::join!(async { task.reconcile(&key).await }, served);
            assert!(reconciled.is_ok(), "{reconciled:?}");
        }
        assert!(server.is_left_alone().await);
    }
    let (task, _server, _recorded) = task_of(&[queued, shown_later.clone()], vec![]);
    let later = serde_json::from_value(shown_later).unwrap();
    assert_eq!(task.queued_beside(&Key::of(&later), &later), [key()]);
}

/// Returns the migration's target pod, on node b, with this status.
pub(super) fn target_pod(status: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": "q", "namespace": "shop", "uid": "uid-q", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"kubevirt.io": "virt-launcher", drydock_core::launcher_pod::MIGRATION_UID: UID},
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "web", "uid": "uid-web",
                "controller": true,
            }],
        },
        "spec": {"nodeName": "b", "containers": []}, "status": status,
    }))
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn stuck_target_pod_is_explained_by_pod_events() {
    let mut waiting = migration();
    // The deadline is far away.
    waiting["metadata"]["annotations"] = json!({"kubevirt.io/migrationPendingPodTimeoutSeconds": "86400"});
    waiting["status"] = json!({"phase": "Scheduling"});
    let stuck = json!({"phase": "Pending", "conditions": [{"type": "PodReadyToStartContainers", "status": "False"}]});
    let (task, mut server, _recorded) = task(&waiting, vec![target_pod(&stuck)]);
    let served = async {
        let events = server.next_request().await;
        assert_eq!(events.path(), "/api/v1/namespaces/shop/events");
        assert!(
            events.query().contains("involvedObject.uid%3Duid-q"),
            "{}",
            events.query()
        );
        events.list(
            "1",
            &[json!({
                "metadata": {}, "involvedObject": {}, "type": "Warning", "reason": "FailedMount",
                "message": "secret \"key\" not found", "lastTimestamp": "2026-01-01T00:00:05Z",
            })],
        );
        apply_status(&mut server, "11").await
    };
    let (reconciled, status) = tokio::join!(async { task.reconcile(&key()).await }, served);
    assert!(matches!(reconciled, Ok(Requeue::At(_))), "{reconciled:?}");
    let condition = &status["conditions"][0];
    assert_eq!(
        (&condition["reason"], &condition["message"]),
        (&json!("FailedMount"), &json!("secret \"key\" not found"))
    );
}

#[tokio::test(start_paused = true)]
async fn late_agent_of_the_target_is_reported() {
    let _clock = FollowedClock::follow();
    let begun = drydock_core::conditions::whole_seconds(clock::now());
    let mut preparing = migration();
    preparing["status"] = json!({
        "phase": "PreparingTarget", "sourceNode": "a", "source": {"node": "a"}, "target": {"node": "b", "podUID": "uid-q"},
        "phaseTransitionTimestamps": [{"phase": "PreparingTarget", "phaseTransitionTimestamp": begun}],
        "migrationState": {"migrationUid": UID, "sourceNode": "a", "targetNode": "b", "startTimestamp": begun},
    });
    let running = json!({
        "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "compute", "ready": true, "state": {"running": {}}}],
    });
    let (task, mut server, _recorded) = task(&preparing, vec![target_pod(&running)]);
    let late = begun.0.checked_add(USUAL_TIME).unwrap();
    assert_eq!(task.reconcile(&key()).await.unwrap(), Requeue::At(late));
    tokio::time::advance(USUAL_TIME).await;
    let (reconciled, status) = tokio::join!(async { task.reconcile(&key()).await }, apply_status(&mut server, "11"));
    let fails = begun.0.checked_add(PhaseDeadlines::default().preparing).unwrap();
    assert_eq!(reconciled.unwrap(), Requeue::At(fails));
    let condition = &status["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["reason"], &condition["message"]),
        (
            &json!("Waiting"),
            &json!("TargetNotPrepared"),
            &json!("the agent of node b has not prepared the target within 10 s")
        )
    );
}

#[tokio::test(start_paused = true)]
async fn finalizer_is_removed_once_the_sources_node_is_gone() {
    let mut failed = migration();
    failed["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
    failed["metadata"]["finalizers"] = json!([MIGRATION_FINALIZER]);
    failed["status"] = json!({
        "phase": "Failed", "source": {"node": "gone", "podUID": "uid-p", "state": "Migrating"},
    });
    let (mut task, mut server, _recorded) = task(&failed, vec![]);
    assert_eq!(task.context.migrations.depending_on_nodes(), [key()].into());
    task.context.launchers.nodes.unresponsive_agents = UnresponsiveAgents::without_leases();
    tokio::time::advance(drydock_api::leases::STALE_AFTER).await;
    let served = async {
        let request = server.next_request().await;
        assert_eq!(request.path(), "/api/v1/nodes/gone");
        request.refuse(404, "NotFound");
        let request = server.next_request().await;
        assert!(request.path().ends_with("/leases/gone"), "{}", request.line);
        request.refuse(404, "NotFound");
        let request = server.next_request().await;
        assert_eq!((&request.method, request.path()), (&Method::GET, PODS));
        request.list("1", &[]);
        let request = server.next_request().await;
        assert_eq!((&request.method, request.path()), (&Method::PATCH, MIGRATION));
        assert_eq!(request.body["metadata"]["finalizers"], json!([]));
        request.with(&failed);
    };
    let (reconciled, ()) = tokio::join!(async { task.reconcile(&key()).await }, served);
    assert_eq!(reconciled.unwrap(), Requeue::OnChange);
}

#[tokio::test(start_paused = true)]
async fn unseen_target_pod_is_deleted_before_the_finalizer() {
    let mut canceled = migration();
    canceled["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
    canceled["metadata"]["finalizers"] = json!([MIGRATION_FINALIZER]);
    canceled["status"] = json!({"phase": "Failed"});
    let mut pod = serde_json::to_value(target_pod(&json!({"phase": "Pending"}))).unwrap();
    pod["metadata"]["labels"]["kubevirt.io/created-by"] = json!("uid-web");
    for (pods, is_deleted) in [(vec![pod.clone()], true), (vec![], false)] {
        let (task, mut server, _recorded) = task(&canceled, vec![]);
        // The previous leader created the pod just before the cancellation, and the watch does not show the pod yet.
        let served = async {
            let request = server.next_request().await;
            assert_eq!((&request.method, request.path()), (&Method::GET, PODS));
            request.list("1", &pods);
            if is_deleted {
                let request = server.next_request().await;
                let path = format!("{PODS}/q");
                assert_eq!((&request.method, request.path()), (&Method::DELETE, path.as_str()));
                request.with(&pod);
            }
            let request = server.next_request().await;
            assert_eq!((&request.method, request.path()), (&Method::PATCH, MIGRATION));
            assert_eq!(request.body["metadata"]["finalizers"], json!([]));
            request.with(&canceled);
        };
        let (reconciled, ()) = tokio::join!(async { task.reconcile(&key()).await }, served);
        assert_eq!(reconciled.unwrap(), Requeue::OnChange);
    }
}

#[tokio::test(start_paused = true)]
async fn new_leader_counts_slots_despite_unreadable_migrations() {
    let mut unreadable = migration();
    unreadable["metadata"]["name"] = json!("k");
    unreadable["spec"] = json!({"vmiName": 7});
    let mut moves = migration();
    moves["spec"]["vmiName"] = json!("not-cached");
    moves["status"] = json!({"phase": "Running", "source": {"node": "a"}, "target": {"node": "b"}});
    let (task, mut server, _recorded) = task_of(&[], vec![]);
    let served = async {
        server.next_request().await.list("1", &[unreadable, moves]);
    };
    let limit = Duration::from_secs(60);
    let (begun, ()) = tokio::join!(tokio::time::timeout(limit, task.rebuild_slots()), served);
    assert!(begun.is_ok(), "the list was not accepted");
    assert!(task.turns.state_of(UID).has_slot);
    let used = task.turns.used();
    assert_eq!((used.cluster, used.sources["a"], used.targets["b"]), (1, 1, 1));
}

/// Returns an ended migration of the instance with this number.
fn ended(number: usize) -> Value {
    let mut ended = migration();
    ended["metadata"]["name"] = json!(format!("m{number}"));
    ended["metadata"]["uid"] = json!(format!("uid-m{number}"));
    ended["metadata"]["creationTimestamp"] = json!(format!("2026-01-01T00:00:{number:02}Z"));
    ended["status"] = json!({"phase": "Succeeded"});
    ended
}

#[tokio::test(start_paused = true)]
async fn oldest_migrations_are_deleted_when_no_other_changes() {
    let all: Vec<Value> = (1..=7).map(ended).collect();
    let (task, mut server, _recorded) = task_of(&all, vec![]);
    let newest = Key::namespaced("shop", "m7");
    assert_eq!(task.reconcile(&newest).await.unwrap(), Requeue::OnChange);
    assert!(server.is_left_alone_for(Duration::from_secs(1)).await);

    assert_eq!(task.trimming.quiet().await, [newest.clone()].into());
    let mut deleted = Vec::new();
    let served = async {
        for _ in 0..2 {
            let request = server.next_request().await;
            assert_eq!(request.method, Method::DELETE);
            deleted.push(request.path().rsplit_once('/').unwrap().1.to_owned());
            let number = deleted.len();
            request.with(&ended(number));
        }
    };
    let (reconciled, ()) = tokio::join!(async { task.reconcile(&newest).await }, served);
    assert_eq!(reconciled.unwrap(), Requeue::OnChange);
    assert_eq!(deleted, ["m1", "m2"]);
}
