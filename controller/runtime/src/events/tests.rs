use super::{DRAIN_TIMEOUT, Event, EventMetrics, Events, QUEUE, Reporter, ResultLabel, Severity, name_of};
use crate::{
    Process,
    clock::Instant,
    fake::{ApiServer, api_server},
};
use http::Method;
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::json;
use std::time::Duration;

fn setup() -> (Events, ApiServer, Process, EventMetrics) {
    let (client, server) = api_server();
    let (process, metrics) = (Process::new(), EventMetrics::default());
    let reporter = Reporter {
        component: "drydock-agent",
        instance: "pod-1".to_owned(),
    };
    (
        Events::start(&process, client, reporter, &metrics),
        server,
        process,
        metrics,
    )
}

fn event(name: &str, note: &str) -> Event {
    Event {
        regarding: ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(name.to_owned()),
            ..Default::default()
        },
        related: None,
        severity: Severity::Warning,
        reason: "LabelsRemoved".into(),
        action: "Label".into(),
        note: note.to_owned(),
    }
}

fn count(metrics: &EventMetrics, result: &'static str) -> u64 {
    metrics.0.get_or_create(&ResultLabel { result }).get()
}

/// Responds to a request with success.
async fn accept(server: &mut ApiServer) -> (Method, String, serde_json::Value) {
    let request = server.next_request().await;
    let (method, line, body) = (request.method.clone(), request.line.clone(), request.body.clone());
    let full = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"}, "eventTime": "2026-01-01T00:00:00.000000Z",
    });
    request.with(&full);
    (method, line, body)
}

#[tokio::test(start_paused = true)]
async fn event_names_reporter_and_object() {
    let (events, mut server, _process, _) = setup();
    events.publish(event("n1", &"ä".repeat(2000)));
    let (method, line, body) = accept(&mut server).await;
    assert_eq!(
        (method, line.as_str()),
        (Method::POST, "/apis/events.k8s.io/v1/namespaces/default/events?")
    );
    assert_eq!(
        (&body["type"], &body["reason"], &body["action"]),
        (&json!("Warning"), &json!("LabelsRemoved"), &json!("Label"))
    );
    assert_eq!(
        (&body["reportingController"], &body["reportingInstance"]),
        (&json!("drydock-agent"), &json!("pod-1"))
    );
    assert_eq!(
        body["note"].as_str().unwrap().len(),
        1024,
        "longer notes are refused by the API server"
    );
    assert!(body["metadata"]["name"].as_str().unwrap().starts_with("n1."));
}

#[tokio::test(start_paused = true)]
async fn repeated_event_becomes_a_series_written_each_minute() {
    let (events, mut server, _process, metrics) = setup();
    let start = Instant::now();
    for _ in 0..5 {
        events.publish(event("n1", "same"));
    }
    assert_eq!(accept(&mut server).await.0, Method::POST);
    events.publish(event("n1", "another note is another event"));
    assert_eq!(accept(&mut server).await.0, Method::POST);
    let (method, line, body) = accept(&mut server).await;
    assert_eq!(method, Method::PATCH);
    assert!(line.contains("/events/n1."), "{line}");
    assert_eq!(body["series"]["count"], 5);
    assert_eq!(start.elapsed().as_secs(), 60);
    assert!(server.is_left_alone_for(Duration::from_secs(3600)).await);
    assert_eq!((count(&metrics, "written"), count(&metrics, "counted")), (3, 4));

    events.publish(event("n1", "same"));
    assert_eq!(
        accept(&mut server).await.0,
        Method::POST,
        "after an hour it is news again"
    );
}

#[tokio::test(start_paused = true)]
async fn an_event_that_has_expired_is_written_anew() {
    let (events, mut server, _process, _) = setup();
    events.publish(event("n1", "same"));
    accept(&mut server).await;
    events.publish(event("n1", "same"));
    let series = server.next_request().await;
    assert_eq!(series.method, Method::PATCH);
    series.refuse(404, "NotFound");
    events.publish(event("n1", "same"));
    assert_eq!(accept(&mut server).await.0, Method::POST);
}

#[tokio::test(start_paused = true)]
async fn event_failures_and_overflow_are_counted_without_delay() {
    let (events, mut server, _process, metrics) = setup();
    for index in 0..QUEUE + 7 {
        events.publish(event(&format!("n{index}"), "many"));
    }
    assert_eq!(count(&metrics, "dropped"), 7);
    server.next_request().await.refuse(403, "Forbidden");
    accept(&mut server).await;
    tokio::task::yield_now().await;
    assert_eq!(count(&metrics, "failed"), 1);
}

#[tokio::test(start_paused = true)]
async fn queued_events_are_written_at_the_stop_within_a_limit() {
    let (events, mut server, process, _) = setup();
    events.publish(event("n1", "last words"));
    process.stop();
    assert_eq!(accept(&mut server).await.2["note"], "last words");

    let (events, mut server, process, _) = setup();
    events.publish(event("n1", "last words"));
    process.stop();
    let start = Instant::now();
    let lost = async {
        let _lost = server.next_request().await.lose();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        run = process.run(futures::stream::pending(), Duration::from_secs(10)) => run.unwrap(),
        () = lost => {}
    }
    assert!(start.elapsed() <= DRAIN_TIMEOUT + Duration::from_millis(2));
}

#[test]
fn names_of_events_are_names_however_long_the_object() {
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    for (object, base) in [
        ("vm".to_owned(), "vm".to_owned()),
        ("a".repeat(253), "a".repeat(230)),
        (format!("{}.{}", "a".repeat(229), "b".repeat(23)), "a".repeat(229)),
        (format!("{}--b", "a".repeat(229)), "a".repeat(229)),
    ] {
        let name = name_of(&object, now);
        assert!(name.len() <= 253, "{name}");
        assert_eq!(name.rsplit_once('.').unwrap().0, base);
    }
}
