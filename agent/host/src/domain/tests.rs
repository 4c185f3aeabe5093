//! Tests of connections through libvirt's test driver, which has no daemon and so no relay, and through drivers of the
//! test.

use std::{sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::timeout};

use super::{
    CallDeadlines, CallError, CloseReason, DomainCalls, DomainEvent, DomainEvents, DomainHandle, DomainState,
    InitialState, LifecycleEvent, PausedReason, ResumedDetail, RunningReason, ShutOffReason, StartedDetail,
    StoppedDetail, SuspendedDetail, connection::LibvirtConnection, thread::QueuedCall,
};

/// URI of the test driver with one domain that is not shared with other connections.
const MACHINE: &str = concat!("test://", env!("CARGO_MANIFEST_DIR"), "/testdata/made/node.xml");

/// Connects to the test driver's initial domain.
async fn test_driver() -> (DomainHandle, DomainEvents) {
    DomainHandle::start("test", CallDeadlines::default(), |shared| {
        let connection = LibvirtConnection::open(MACHINE, "test", shared)?;
        Ok(Box::new(connection))
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn a_life_in_the_test_driver() {
    let (guest, mut events) = test_driver().await;
    assert_eq!(guest.names().await, Ok(vec!["test".to_owned()]));
    assert_eq!(guest.state().await, Ok(DomainState::Running(RunningReason::Unknown(0))));
    guest.suspend().await.unwrap();
    assert_eq!(guest.state().await, Ok(DomainState::Paused(PausedReason::User)));
    guest.resume().await.unwrap();
    guest.destroy().await.unwrap();
    assert_eq!(guest.state().await, Ok(DomainState::ShutOff(ShutOffReason::Destroyed)));
    guest.create(InitialState::Running).await.unwrap();
    // The test driver does not support the call and returns an error.
    guest.destroy().await.unwrap();
    assert_eq!(
        guest.create(InitialState::Paused).await.unwrap_err().reason(),
        "LibvirtRefused"
    );
    assert!(guest.live_xml().await.unwrap().contains("<name>test</name>"));
    for expected in [
        LifecycleEvent::Suspended(SuspendedDetail::Paused),
        LifecycleEvent::Resumed(ResumedDetail::Unpaused),
        LifecycleEvent::Stopped(StoppedDetail::Destroyed),
        LifecycleEvent::Started(StartedDetail::Booted),
    ] {
        assert_eq!(events.recv().await, Some(DomainEvent::Lifecycle(expected)));
    }
    // The document is not a valid domain.
    let error = guest
        .define("<domain type='test'><name>x</name></domain>")
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::Refused(_)), "{error}");
    let error = guest.define("\0").await.unwrap_err();
    assert_eq!(error.reason(), "LibvirtRefused");
    assert!(guest.versions().await.unwrap().libvirt.0 > 6_000_000);
}

#[tokio::test]
async fn events_of_other_domains_are_not_delivered() {
    super::event_loop::start().unwrap();
    let (shared, mut events) = super::EventSource::new();
    let connection = LibvirtConnection::open("test:///default", "another", &shared).unwrap();
    assert_eq!(
        DomainCalls::state(&connection).unwrap_err().code,
        virt_sys::VIR_ERR_NO_DOMAIN
    );
    // All connections of a process share the default machine of the test driver.
    let (guest, mut its_events) = DomainHandle::start("test", CallDeadlines::default(), |shared| {
        Ok(Box::new(LibvirtConnection::open("test:///default", "test", shared)?))
    })
    .await
    .unwrap();
    guest.suspend().await.unwrap();
    assert!(its_events.recv().await.is_some());
    drop(connection);
    shared.finish(CloseReason::Client);
    assert_eq!(events.recv().await, None);
}

#[tokio::test]
async fn last_dropped_handle_ends_the_connection_and_thread() {
    let (guest, mut events) = test_driver().await;
    let weak = Arc::downgrade(&guest.shared);
    let copy = guest.clone();
    drop(guest);
    assert!(copy.state().await.is_ok());
    drop(copy);
    assert_eq!(events.recv().await, None);
    assert_eq!(events.close_reason(), Some(CloseReason::Client));
    drop(events);
    // libvirt and the thread release their references, possibly with a delay.
    while weak.strong_count() > 0 {
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn failed_open_has_a_reason() {
    let opened = DomainHandle::start("x", CallDeadlines::default(), |shared| {
        let connection = LibvirtConnection::open("nonsense:///", "x", shared)?;
        Ok(Box::new(connection))
    })
    .await;
    let error = opened.map(drop).unwrap_err();
    assert!(
        !error.to_string().is_empty() && error.reason() != "LibvirtTimedOut",
        "{error:?}"
    );
}

/// A libvirt client that does not notice that its connection was closed.
#[tokio::test(start_paused = true)]
async fn client_that_never_returns_is_dropped() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let opened = DomainHandle::start("x", CallDeadlines::default(), move |_| {
        let _ = held.lock().unwrap().recv();
        Err(crate::libvirt::LibvirtError {
            call: "x",
            code: 1,
            domain: 0,
            message: "late".into(),
        })
    })
    .await;
    assert!(matches!(opened, Err(CallError::TimedOut { .. })), "{opened:?}");
    drop(release);
}

#[tokio::test]
async fn call_error_has_a_reason_and_distinguishes_replies() {
    let (guest, _events) = test_driver().await;
    guest.close();
    guest.ended().await;
    let lost = guest.state().await.unwrap_err();
    assert_eq!((lost.reason(), lost.is_reply()), ("LibvirtConnectionLost", false));
    assert!(lost.to_string().contains("process closed the connection"), "{lost}");
    assert!(CallError::NoDomain.is_reply());
}

#[tokio::test]
async fn call_that_is_queued_as_the_connection_ends_fails() {
    let (guest, mut events) = test_driver().await;
    // The caller has reserved a slot in the queue and has not enqueued its call yet.
    let place = guest.jobs.reserve().await.unwrap();
    guest.close();
    assert_eq!(events.recv().await, None);
    guest.ended().await;
    let (begun, begins) = oneshot::channel();
    let (reply_to, _reply) = oneshot::channel();
    place.send(QueuedCall::new("state", None, begun, reply_to, |calls| calls.state()));
    let begins = timeout(Duration::from_secs(60), begins).await;
    assert!(begins.expect("the caller waits for ever").is_err());
}
