use drydock_runtime::fake::{ApiServer, WriteFault, api_server};
use http::Method;
use serde_json::{Value, json};

use super::*;

fn replica(name: &str, node: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "drydock", "uid": format!("uid-{name}")},
        "spec": {"nodeName": node, "containers": [{"name": "controller"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
    })
}

fn replicas(pods: &[Value]) -> (ReplicasTask, ApiServer) {
    let (client, server) = api_server();
    let nodes = ["one", "two"].map(|name| {
        let node = json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": "1"}}});
        serde_json::from_value(node).unwrap()
    });
    let pods: Vec<Pod> = pods
        .iter()
        .map(|pod| serde_json::from_value(pod.clone()).unwrap())
        .collect();
    let replicas = ReplicasTask {
        pods: Api::namespaced(client.clone(), "drydock"),
        shown: Cache::filled(pods),
        own: "lead".into(),
        nodes: Nodes::filled(&client, nodes),
        rooms: Rooms::filled([]),
    };
    (replicas, server)
}

#[tokio::test(start_paused = true)]
async fn standby_is_deleted_by_uid_and_not_again_at_once() {
    for fault in std::iter::once(None).chain(WriteFault::ALL.map(Some)) {
        let (replicas, mut server) = replicas(&[replica("lead", "one"), replica("standby", "one")]);
        let mut moves = StandbyMoves::default();
        let serve = async {
            let request = server.next_request().await;
            assert_eq!(
                (&request.method, request.path()),
                (&Method::DELETE, "/api/v1/namespaces/drydock/pods/standby")
            );
            assert_eq!(request.body["preconditions"], json!({"uid": "uid-standby"}));
            match fault {
                None => request.with(&replica("standby", "one")),
                Some(fault) => request.fail(fault),
            }
        };
        let (requeue, ()) = tokio::join!(replicas.spread(&mut moves), serve);
        assert!(requeue.unwrap() > clock::now(), "{fault:?}");
        assert!(replicas.spread(&mut moves).await.unwrap() > clock::now());
        // The standby stays for an hour, after which it may be moved again.
        assert!(server.is_left_alone().await, "{fault:?}");
        let serve = async { server.next_request().await.refuse(409, "Conflict") };
        tokio::join!(replicas.spread(&mut moves), serve);
    }
}

#[tokio::test(start_paused = true)]
async fn replicas_on_separate_nodes_are_left_alone() {
    let (replicas, mut server) = replicas(&[replica("lead", "one"), replica("standby", "two")]);
    assert_eq!(replicas.spread(&mut StandbyMoves::default()).await, None);
    assert!(server.is_left_alone().await);
}
