use std::future::Future;

use drydock_runtime::fake::{ApiServer, api_server};
use futures::poll;
use http::Method;
use k8s_openapi::api::core::v1::PodCondition;
use serde_json::json;

use super::*;
use crate::failing_write::FailingWrite;

const UID: &str = "11111111-2222-3333-4444-555555555555";

/// Returns a pod whose gate is open or closed, or was never set.
fn pod(version: u64, gate: Option<bool>) -> Pod {
    let gate = gate.map(|open| PodCondition {
        type_: GUEST_RUNNING.into(),
        status: if open { "True" } else { "False" }.into(),
        ..PodCondition::default()
    });
    let ready = PodCondition {
        type_: "Ready".into(),
        status: "True".into(),
        ..PodCondition::default()
    };
    Pod {
        metadata: ObjectMeta {
            namespace: Some("vms".into()),
            name: Some("virt-launcher-a".into()),
            uid: Some(UID.into()),
            resource_version: Some(version.to_string()),
            ..ObjectMeta::default()
        },
        spec: None,
        status: Some(PodStatus {
            conditions: Some([ready].into_iter().chain(gate).collect()),
            ..PodStatus::default()
        }),
    }
}

/// Creates the gates of one pod that the watch shows, with a fake API server.
fn gates(shown: Pod) -> (Gates, ApiServer) {
    let (client, server) = api_server();
    (
        Gates::new(client, LauncherPods::filled([shown]), AgentMetrics::default()),
        server,
    )
}

/// Receives the next request, responds with the pod or an error, and returns the requested status of the gate.
async fn responded(server: &mut ApiServer, response: Result<Pod, (u16, &str)>) -> String {
    let request = server.next_request().await;
    assert_eq!(request.method, Method::PATCH);
    assert_eq!(request.path(), "/api/v1/namespaces/vms/pods/virt-launcher-a/status");
    assert_eq!(request.body["metadata"]["uid"], UID);
    let wanted = request.body["status"]["conditions"][0].clone();
    match response {
        Ok(pod) => request.with(&json!(pod)),
        Err((code, reason)) => request.refuse(code, reason),
    }
    assert_eq!(wanted["type"], GUEST_RUNNING);
    wanted["status"].as_str().unwrap_or_default().to_owned()
}

/// Waits for `work`. Panics if the API server receives a request in the meantime.
async fn without_requests<T>(server: &mut ApiServer, work: impl Future<Output = T>) -> T {
    let work = std::pin::pin!(work);
    tokio::select! {
        biased;
        result = work => result,
        request = server.next_request() => panic!("sent {}", request.line),
    }
}

#[tokio::test]
async fn concurrent_equal_gate_changes_are_written_once() {
    let (gates, mut server) = gates(pod(5, None));
    let (mut first, mut second) = (Box::pin(gates.set(UID, true)), Box::pin(gates.set(UID, true)));
    assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
    assert_eq!(responded(&mut server, Ok(pod(6, Some(true)))).await, "True");
    first.await.expect("it is opened");
    without_requests(&mut server, second).await.expect("it is open");
}

#[tokio::test]
async fn write_counts_until_the_watch_catches_up() {
    let (gates, mut server) = gates(pod(5, Some(false)));
    without_requests(&mut server, gates.set(UID, false))
        .await
        .expect("it is shut");
    let (set, wanted) = tokio::join!(gates.set(UID, true), responded(&mut server, Ok(pod(7, Some(true)))));
    set.expect("it is opened");
    assert_eq!(wanted, "True");
    // The watch still shows the gate as closed.
    without_requests(&mut server, gates.set(UID, true))
        .await
        .expect("it is open");
    let (set, wanted) = tokio::join!(gates.set(UID, false), responded(&mut server, Ok(pod(8, Some(false)))));
    set.expect("it is shut");
    assert_eq!(wanted, "False");
    // Another client has opened the gate in the meantime.
    let gates = Gates {
        pods: gates.pods.showing([pod(9, Some(true))]),
        ..gates
    };
    without_requests(&mut server, gates.set(UID, true))
        .await
        .expect("it is open");
    let (set, wanted) = tokio::join!(gates.set(UID, false), responded(&mut server, Ok(pod(10, Some(false)))));
    set.expect("it is shut");
    assert_eq!(wanted, "False");
}

#[tokio::test]
async fn refused_gate_is_written_again_and_a_gone_pod_has_none() {
    let (gates, mut server) = gates(pod(5, None));
    let refused = Err((500, "InternalError"));
    let (set, _) = tokio::join!(gates.set(UID, true), responded(&mut server, refused));
    set.expect_err("it was refused");
    let gone = Err((404, "NotFound"));
    let (set, wanted) = tokio::join!(gates.set(UID, true), responded(&mut server, gone));
    assert_eq!(wanted, "True");
    set.expect("there is nothing to open");
    without_requests(&mut server, gates.set("another", true))
        .await
        .expect("there is nothing to open");
}

#[tokio::test]
async fn failed_gate_is_an_error_and_written_again() {
    for (open, mut failing) in [true, false]
        .into_iter()
        .flat_map(|open| FailingWrite::each(&["gate"]).into_iter().map(move |one| (open, one)))
    {
        let (gates, mut server) = gates(pod(5, Some(!open)));
        let mut stored = pod(5, Some(!open));
        let mut results = Vec::new();
        for version in 6..9 {
            let set = gates.set(UID, open);
            tokio::pin!(set);
            let result = tokio::select! {
                biased;
                result = &mut set => result,
                request = server.next_request() => {
                    failing.respond(request, "gate", |request| {
                        assert_eq!(request.body["status"]["conditions"][0]["status"], if open { "True" } else { "False" });
                        stored = pod(version, Some(open));
                        json!(stored)
                    });
                    set.await
                }
            };
            results.push(result.is_ok());
        }
        assert_eq!(results, [false, true, true], "{failing}");
        assert_eq!(is_open(&stored), open, "{failing}");
        failing.assert_settled();
    }
}
