use super::Leadership;
use crate::{
    Process, Trigger,
    clock::Instant,
    fake::{ApiServer, ReceivedRequest, candidate, elect, lease_of},
    lease::leader_status,
    metrics::Deferred,
};
use http::Method;
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde_json::{Value, json};
use std::time::Duration;

fn setup() -> (Leadership, ApiServer, Process) {
    let process = Process::new();
    let (leadership, server) = candidate(&process, Trigger::new());
    (leadership, server, process)
}

fn holder(request: &ReceivedRequest) -> &Value {
    &request.body["spec"]["holderIdentity"]
}

#[tokio::test(start_paused = true)]
async fn first_candidate_creates_the_lease() {
    let (mut leadership, mut server, _process) = setup();
    let url = "/apis/coordination.k8s.io/v1/namespaces/drydock/leases";
    let read = server.next_request().await;
    assert_eq!(
        (read.method.clone(), read.line.as_str()),
        (Method::GET, format!("{url}/drydock-controller").as_str())
    );
    read.refuse(404, "NotFound");
    let create = server.next_request().await;
    assert_eq!(create.method, Method::POST);
    assert_eq!(create.line, format!("{url}?&fieldManager=drydock-controller"));
    assert_eq!(
        (holder(&create), &create.body["spec"]["leaseDurationSeconds"]),
        (&json!("pod-1"), &json!(15))
    );
    assert!(leadership.term().is_none());
    create.with(&lease_of("pod-1", "1"));
    assert!(leadership.elected().await.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_one_small_request_every_two_seconds() {
    let (mut leadership, mut server, _process) = setup();
    elect(&mut server).await;
    let term = leadership.elected().await;
    let start = Instant::now();
    for version in 2..12 {
        let renewal = server.next_request().await;
        assert_eq!(
            (renewal.method.clone(), renewal.content_type.as_str()),
            (Method::PATCH, "application/merge-patch+json")
        );
        assert_eq!(
            renewal.body["metadata"],
            json!({"resourceVersion": version.to_string()})
        );
        assert_eq!(renewal.body["spec"].as_object().unwrap().len(), 1);
        renewal.with(&lease_of("pod-1", &(version + 1).to_string()));
    }
    assert_eq!(start.elapsed().as_secs(), 20);
    assert!(term.is_valid());
}

#[tokio::test(start_paused = true)]
async fn leader_status_is_exported_while_the_term_is_valid() {
    let (mut leadership, mut server, _process) = setup();
    let mut registry = Registry::default();
    let status = Deferred::register(&mut registry);
    let scraped = || {
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let mut samples = text.lines().filter(|line| !line.starts_with('#'));
        samples.next().map(str::to_owned)
    };
    assert_eq!(scraped(), None, "there is no source yet");
    status.set(leader_status("drydock-controller", leadership.clone()));
    let expected = |value| {
        Some(format!(
            r#"leader_election_master_status{{name="drydock-controller"}} {value}"#
        ))
    };
    assert_eq!(scraped(), expected(0));
    elect(&mut server).await;
    leadership.elected().await;
    assert_eq!(scraped(), expected(1));
    // The whole process was paused: nothing has signalled the end of the term.
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(scraped(), expected(0));
}

#[tokio::test(start_paused = true)]
async fn leader_without_responses_stops_before_next_leader() {
    let (mut leadership, mut server, _process) = setup();
    elect(&mut server).await;
    let sent = Instant::now();
    let term = leadership.elected().await;
    let unresponsive = async {
        let mut lost = Vec::new();
        loop {
            lost.push(server.next_request().await.lose());
        }
    };
    tokio::select! {
        () = term.lost().cancelled() => {}
        () = unresponsive => {}
    }
    let led = sent.elapsed();
    assert!(led <= Duration::from_millis(10_002), "{led:?}: others wait for 15 s");
    assert!(!term.is_valid() && leadership.term().is_none());
}

#[tokio::test(start_paused = true)]
async fn late_renewal_begins_another_term_after_a_lapse() {
    let (mut leadership, mut server, _process) = setup();
    elect(&mut server).await;
    let term = leadership.elected().await;
    let renewal = server.next_request().await;
    renewal.with(&lease_of("pod-1", "3"));
    // The whole process is paused until the end of the term. The renewal was sent after 2 s and counts for 10 s.
    tokio::time::advance(Duration::from_secs(9)).await;
    assert!(term.lost().is_cancelled() && !term.is_valid());
    assert!(leadership.elected().await.is_valid(), "no other term has begun");
}

#[tokio::test(start_paused = true)]
async fn lease_is_released_at_the_stop_once_the_work_has_ended() {
    let (mut leadership, mut server, process) = setup();
    elect(&mut server).await;
    let term = leadership.elected().await;
    process.stop();
    term.lost().cancelled().await;
    assert!(leadership.term().is_none());
    assert!(
        server.is_left_alone_for(Duration::from_secs(2)).await,
        "somebody still acts"
    );
    drop(term);
    let release = server.next_request().await;
    assert_eq!((release.method.clone(), holder(&release)), (Method::PATCH, &json!("")));
    assert_eq!(release.body["metadata"]["resourceVersion"], "2");
    release.with(&lease_of("", "3"));
    process
        .run(futures::stream::pending(), Duration::from_secs(1))
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn work_that_does_not_end_keeps_the_lease() {
    let (mut leadership, mut server, process) = setup();
    elect(&mut server).await;
    let _term = leadership.elected().await;
    process.stop();
    assert!(server.is_left_alone_for(Duration::from_secs(60)).await);
}

#[tokio::test(start_paused = true)]
async fn standby_leads_as_soon_as_the_lease_is_released() {
    let (process, released) = (Process::new(), Trigger::new());
    let (mut leadership, mut server) = candidate(&process, released.clone());
    server.next_request().await.with(&lease_of("pod-2", "1"));
    let before = Instant::now();
    released.notify();
    server.next_request().await.with(&lease_of("", "2"));
    server.next_request().await.with(&lease_of("pod-1", "3"));
    assert!(leadership.elected().await.is_valid());
    assert_eq!(before.elapsed(), Duration::ZERO, "it waited for its next turn");
}
