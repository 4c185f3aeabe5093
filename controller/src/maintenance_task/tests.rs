use std::collections::BTreeSet;

use drydock_runtime::{
    EventMetrics, Readiness, Reporter, WatchMetrics,
    fake::{ApiServer, api_server},
};
use http::Method;
use serde_json::{Value, json};

use super::{maintenance_status::changed, *};

/// Resource names of both API groups.
const GROUPS: [&str; 2] = ["nodemaintenance.medik8s.io", "nodemaintenance.kubevirt.io"];

/// Returns a maintenance of node `n` that has not been reconciled yet.
fn new_maintenance(name: &str) -> NodeMaintenance {
    serde_json::from_value(json!({
        "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
        "spec": {"nodeName": "n"},
    }))
    .unwrap()
}

/// Returns a task for node `n`, which has maintenances of both API groups, and the API server for its requests.
fn fixture() -> (MaintenanceTask, ApiServer) {
    let (client, server) = api_server();
    let process = Process::new();
    let watches = WatchStarter::new(&process, &Readiness::new(), &WatchMetrics::default());
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "n", "uid": "n"}})).unwrap();
    let places = LeaseNamespaces {
        leases: "drydock".into(),
        kubevirt_leases: "drydock".into(),
        own: "drydock".into(),
    };
    let reporter = Reporter {
        component: "drydock-controller",
        instance: "test".into(),
    };
    let task = MaintenanceTask::new(
        client.clone(),
        &watches,
        Maintenances::filled(Group::ALL.map(|group| (group, new_maintenance("update")))),
        Nodes::filled(&client, [node]),
        NodePods::start(&client, &watches, |_| ()),
        &places,
        Events::start(&process, client, reporter, &EventMetrics::default()),
        &MaintenanceQueues::new(&WorkQueueMetrics::default()),
    );
    (task, server)
}

/// Serves the API server until the task writes nothing more. Watches get no response, no object is found, and each
/// write of a maintenance is refused. Returns the API groups of the refused writes.
async fn refused_groups(task: &MaintenanceTask, server: &mut ApiServer) -> BTreeSet<&'static str> {
    let mut refused = BTreeSet::new();
    // A watch without a response waits instead of starting again.
    let mut unresponsive = Vec::new();
    let key = Key::cluster("n");
    let reconciled = task.reconcile(&key);
    tokio::pin!(reconciled);
    loop {
        let request = tokio::select! {
            result = &mut reconciled => {
                result.expect_err("its writes were refused");
                return refused;
            }
            request = server.next_request() => request,
        };
        let group = GROUPS
            .into_iter()
            .find(|group| request.path().contains(&format!("/{group}/")));
        if request.query().contains("watch=") {
            unresponsive.push(request.lose());
        } else if let (Some(group), true) = (group, request.method == Method::PATCH) {
            refused.insert(group);
            request.refuse(500, "InternalError");
        } else {
            request.refuse(404, "NotFound");
        }
    }
}

#[tokio::test]
async fn refused_maintenance_does_not_hold_up_the_other_groups() {
    let (task, mut server) = fixture();
    assert_eq!(refused_groups(&task, &mut server).await, BTreeSet::from(GROUPS));
}

#[tokio::test]
async fn node_of_an_ended_maintenance_is_let_go_in_the_next_term() {
    let (task, _server) = fixture();
    task.keep("gone", true);
    assert_eq!(task.known_nodes(), HashSet::from(["n".into(), "gone".into()]));
    task.reconcile(&Key::cluster("gone")).await.unwrap();
    assert_eq!(task.known_nodes(), HashSet::from(["n".into()]));
}

#[test]
fn status_patch_has_changed_fields_and_null_for_removed_fields() {
    let before = json!({"phase": "Running", "lastError": "e", "pods": [1]});
    let after = json!({"phase": "Running", "pods": [2], "drainProgress": 5});
    assert_eq!(
        changed(&before, &after),
        json!({"lastError": null, "pods": [2], "drainProgress": 5})
    );
    assert_eq!(changed(&after, &after), json!({}));
}

#[test]
fn pods_are_watched_while_a_maintenance_holds_the_node() {
    let object = |metadata: Value, status: Value| -> NodeMaintenance {
        serde_json::from_value(json!({"metadata": metadata, "spec": {"nodeName": "n"}, "status": status})).unwrap()
    };
    let finalized = json!({"name": "m", "finalizers": [FINALIZER]});
    let deleted = json!({"name": "m", "finalizers": [FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z"});
    let running = json!({"phase": "Running", "startTime": "2026-01-01T00:00:00Z"});
    let lost =
        json!({"phase": "Failed", "lastError": "maintenance failed: lease could not be extended after 4 attempts"});
    for (metadata, status, holds) in [
        (json!({"name": "m"}), json!({}), false),
        (finalized.clone(), json!({}), true),
        (finalized.clone(), running.clone(), true),
        (deleted, running, false),
        (finalized, lost, false),
    ] {
        assert_eq!(
            holds_node(&object(metadata.clone(), status.clone())),
            holds,
            "{metadata} {status}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn lease_write_is_refused_only_by_lasting_errors() {
    for (code, reason, is_refused) in [
        (403, "Forbidden", true),
        (422, "Invalid", true),
        (429, "TooManyRequests", false),
        (500, "InternalError", false),
        (503, "ServiceUnavailable", false),
    ] {
        let (task, mut server) = fixture();
        let lease = Lease::default();
        let write = LeaseWrite { exists: false, lease };
        let served = async {
            let mut watches = Vec::new();
            loop {
                let request = server.next_request().await;
                if request.method == Method::POST {
                    request.refuse(code, reason);
                    break;
                }
                watches.push(request.lose());
            }
        };
        let (written, ()) = tokio::join!(task.leases.write(Group::Medik8s, &write), served);
        let Ok(LeaseWriteResult::Failed(failure)) = written else {
            panic!("{code}")
        };
        assert_eq!(failure.is_refused, is_refused, "{code}");
    }
}
