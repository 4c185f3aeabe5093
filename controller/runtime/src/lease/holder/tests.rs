use super::{HolderState, Holding, LeaseHolder, LeaseRecord, NextAction, RequestOutcome, When, next};
use crate::{
    Process, Trigger,
    clock::Instant,
    fake::{ApiServer, ReceivedRequest, api_server},
};
use http::Method;
use serde_json::{Value, json};
use std::time::Duration;

const URL: &str = "/apis/coordination.k8s.io/v1/namespaces/drydock-nodes/leases/n1?";
const PACE: Duration = Duration::from_secs(10);

fn setup() -> (LeaseHolder, ApiServer, Trigger) {
    let (client, server) = api_server();
    let holding = Holding {
        namespace: "drydock-nodes".to_owned(),
        name: "n1".to_owned(),
        identity: "pod-1".to_owned(),
        renew_every: PACE,
        duration: Duration::from_secs(40),
        field_manager: "drydock-agent",
    };
    let changed = Trigger::new();
    (
        LeaseHolder::start(&Process::new(), client, holding, &changed),
        server,
        changed,
    )
}

fn lease(holder: &str, version: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "n1", "namespace": "drydock-nodes", "resourceVersion": version},
        "spec": {"holderIdentity": holder},
    })
}

fn is_take(request: &ReceivedRequest) -> bool {
    request.content_type == "application/apply-patch+yaml" && request.body["spec"]["holderIdentity"] == "pod-1"
}

async fn settle() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

#[tokio::test(start_paused = true)]
async fn taking_and_each_renewal_is_one_request() {
    let (holder, mut server, changed) = setup();
    assert!(server.is_left_alone_for(Duration::from_secs(60)).await);
    assert_eq!(holder.held(), HolderState::NotTaken);

    holder.take_over();
    assert_eq!(holder.held(), HolderState::Taking);
    let start = Instant::now();
    let take = server.next_request().await;
    assert_eq!(take.method, Method::PATCH);
    assert_eq!(take.line, format!("{URL}&force=true&fieldManager=drydock-agent"));
    assert!(is_take(&take));
    assert_eq!(take.body["spec"]["leaseDurationSeconds"], 40);
    take.with(&lease("pod-1", "7"));
    changed.notified().await;
    assert_eq!(holder.held(), HolderState::Ours);

    for version in ["7", "8", "9"] {
        let renewal = server.next_request().await;
        assert_eq!(
            (renewal.method.clone(), renewal.line.as_str()),
            (Method::PATCH, format!("{URL}&fieldManager=drydock-agent").as_str())
        );
        assert_eq!(renewal.content_type, "application/merge-patch+json");
        assert_eq!(renewal.body["metadata"], json!({"resourceVersion": version}));
        let spec = renewal.body["spec"].as_object().unwrap();
        assert_eq!(
            spec.keys().collect::<Vec<_>>(),
            ["renewTime"],
            "nothing else is touched"
        );
        let stamp = spec["renewTime"].as_str().unwrap();
        assert!(
            stamp.len() == "2026-01-01T00:00:00.000000Z".len() && stamp.ends_with('Z'),
            "{stamp}"
        );
        let next = version.parse::<u8>().unwrap() + 1;
        renewal.with(&lease("pod-1", &next.to_string()));
    }
    assert_eq!(start.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_is_made_again_at_once() {
    let (holder, mut server, _changed) = setup();
    holder.take_over();
    server.next_request().await.with(&lease("pod-1", "7"));
    server.next_request().await.refuse(404, "NotFound");
    let before = Instant::now();
    let make = server.next_request().await;
    assert_eq!(
        (make.method.clone(), &make.body["spec"]["holderIdentity"]),
        (Method::POST, &json!("pod-1"))
    );
    assert!(before.elapsed() < Duration::from_millis(5));
    make.with(&lease("pod-1", "9"));
    assert_eq!(server.next_request().await.body["metadata"]["resourceVersion"], "9");
    assert_eq!(holder.held(), HolderState::Ours);
}

#[tokio::test(start_paused = true)]
async fn deleted_lease_is_left_to_the_first_creator() {
    let (holder, mut server, _changed) = setup();
    holder.take_over();
    server.next_request().await.with(&lease("pod-1", "7"));
    server.next_request().await.refuse(404, "NotFound");
    server.next_request().await.refuse(409, "AlreadyExists");
    server.next_request().await.with(&lease("pod-2", "9"));
    settle().await;
    assert_eq!(holder.held(), HolderState::By("pod-2".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn lease_taken_by_another_holder_is_noticed_and_not_renewed() {
    let (holder, mut server, changed) = setup();
    holder.take_over();
    server.next_request().await.with(&lease("pod-1", "7"));
    changed.notified().await;
    server.next_request().await.refuse(409, "Conflict");
    let read = server.next_request().await;
    assert_eq!(
        (read.method.clone(), read.line.as_str()),
        (Method::GET, &URL[..URL.len() - 1])
    );
    read.with(&lease("pod-2", "9"));
    changed.notified().await;
    assert_eq!(holder.held(), HolderState::By("pod-2".to_owned()));
    assert!(server.is_left_alone_for(Duration::from_secs(600)).await);

    holder.take_over();
    assert!(is_take(&server.next_request().await));
}

#[tokio::test(start_paused = true)]
async fn renewal_with_lost_response_is_detected() {
    let (holder, mut server, _changed) = setup();
    holder.take_over();
    server.next_request().await.with(&lease("pod-1", "7"));
    let lost = server.next_request().await.lose();
    let again = server.next_request().await;
    assert_eq!(again.body["metadata"]["resourceVersion"], "7");
    again.refuse(409, "Conflict");
    server.next_request().await.with(&lease("pod-1", "8"));
    let renewal = server.next_request().await;
    assert_eq!(renewal.body["metadata"]["resourceVersion"], "8");
    assert_eq!(holder.held(), HolderState::Ours);
    drop(lost);
}

#[tokio::test(start_paused = true)]
async fn renewals_with_conflicts_are_not_repeated_at_once() {
    let (holder, mut server, _changed) = setup();
    holder.take_over();
    server.next_request().await.with(&lease("pod-1", "7"));
    for version in 8..18 {
        server.next_request().await.refuse(409, "Conflict");
        let refused = Instant::now();
        server.next_request().await.with(&lease("pod-1", &version.to_string()));
        assert!(server.is_left_alone_for(Duration::from_millis(100)).await, "{version}");
        assert!(refused.elapsed() < PACE, "{version}");
    }
    assert_eq!(holder.held(), HolderState::Ours);
}

#[test]
fn next_step_follows_from_response() {
    let renew = |version: &str| NextAction::Renew {
        version: version.to_owned(),
    };
    let is = |holder: &str| {
        RequestOutcome::Done(LeaseRecord {
            holder: holder.to_owned(),
            version: "8".to_owned(),
            ..LeaseRecord::default()
        })
    };
    let unknown = || RequestOutcome::Unknown("no response".into());
    for (phase, result, then, when) in [
        (NextAction::Take, is("me"), renew("8"), When::InTime),
        (NextAction::Take, RequestOutcome::Missing, NextAction::Take, When::Later),
        (
            NextAction::Take,
            RequestOutcome::Conflict,
            NextAction::Take,
            When::Later,
        ),
        (NextAction::Take, unknown(), NextAction::Take, When::Later),
        (renew("7"), is("me"), renew("8"), When::InTime),
        (renew("7"), is("other"), NextAction::Idle, When::Now),
        (renew("7"), RequestOutcome::Missing, NextAction::Make, When::Now),
        (renew("7"), RequestOutcome::Conflict, NextAction::Read, When::Now),
        (renew("7"), unknown(), renew("7"), When::Later),
        (NextAction::Read, is("me"), renew("8"), When::Later),
        (NextAction::Read, is("other"), NextAction::Idle, When::Now),
        (NextAction::Read, RequestOutcome::Missing, NextAction::Make, When::Later),
        (NextAction::Make, is("me"), renew("8"), When::InTime),
        (NextAction::Make, RequestOutcome::Conflict, NextAction::Read, When::Now),
        (NextAction::Make, RequestOutcome::Missing, NextAction::Make, When::Later),
        (NextAction::Make, unknown(), NextAction::Make, When::Later),
        (NextAction::Read, unknown(), NextAction::Read, When::Later),
    ] {
        let shown = format!("{phase:?} {result:?}");
        assert_eq!(next(phase, result, "me"), (then, when), "{shown}");
    }
}
