//! Tests of freezes and thaws when the guest agent hangs or the record is not written.

use drydock_api::node_api::{GuestCommand, NodeApiRefusal};
use drydock_runtime::clock::test_clock::FollowedClock;
use jiff::SignedDuration;
use tokio::sync::oneshot;

use super::*;
use crate::guests::directory::CommandRequest;

const FREEZE: GuestCommand = GuestCommand::Freeze { thaw_after: None };

/// Returns the fixture of a running guest with a connected agent, whose VMI has this status.
async fn with_agent(status: &Value) -> Fixture {
    let libvirt = started().await;
    libvirt.set_live_xml(&LIVE_XML.replace("state='disconnected'", "state='connected'"));
    libvirt.connect_agent();
    fixture(status, libvirt)
}

fn frozen(thaw_at: Option<&str>) -> Value {
    let mut status = running();
    status["fsFreezeStatus"] = json!("frozen");
    status["drydock"] = json!({ "thawAt": thaw_at });
    status
}

/// Sends a command. Returns the receiver of its result.
async fn sent(
    requests: &mpsc::Sender<GuestRequest>,
    command: GuestCommand,
) -> oneshot::Receiver<Result<(), NodeApiRefusal>> {
    let (result, received) = oneshot::channel();
    let request = GuestRequest::Command(CommandRequest { command, result });
    requests.send(request).await.unwrap();
    received
}

/// Sends a command, and stores writes until the result arrives.
async fn send(
    around: &mut Around,
    requests: &mpsc::Sender<GuestRequest>,
    command: GuestCommand,
) -> Result<(), NodeApiRefusal> {
    let mut received = sent(requests, command).await;
    loop {
        tokio::select! {
            biased;
            result = &mut received => return result.unwrap(),
            _ = around.next() => {}
        }
    }
}

/// Returns the libvirt calls that freeze or thaw file systems.
fn changes(libvirt: &FakeLibvirt) -> Vec<&'static str> {
    let mut calls = libvirt.calls();
    calls.retain(|call| ["freeze", "thaw"].contains(call));
    calls
}

/// Stores writes until the gate is open and no write is pending, so that the agent has been queried.
async fn attended(around: &mut Around) {
    assert!(around.gate().await);
    while !around.server.is_left_alone_for(Duration::from_millis(100)).await {
        around.next().await;
    }
}

#[tokio::test]
async fn freeze_after_a_failed_one_freezes_again() {
    let mut fixture = with_agent(&running()).await;
    let requests = fixture.requests.clone();
    let end = fixture.attend(async |around| {
        attended(around).await;
        around.libvirt.agent_hangs(true);
        send(around, &requests, FREEZE).await.unwrap_err();
        assert_eq!(
            around.stored["status"]["fsFreezeStatus"], "frozen",
            "some may be frozen"
        );
        assert!(
            around.stored["status"]["drydock"]["thawAt"].is_string(),
            "the thaw is due"
        );
        around.libvirt.agent_hangs(false);
        send(around, &requests, FREEZE).await.unwrap();
        assert!(around.libvirt.is_frozen());
        assert!(around.stored["status"]["drydock"]["thawAt"].is_null());
    });
    assert!(end.await.is_none());
    assert!(changes(&fixture.around.libvirt).ends_with(&["thaw", "freeze"]));
}

#[tokio::test]
async fn freeze_is_repeated_only_if_the_guest_was_thawed() {
    for (thawed, expected) in [(false, vec!["freeze"]), (true, vec!["freeze", "freeze"])] {
        let mut fixture = with_agent(&running()).await;
        let requests = fixture.requests.clone();
        let end = fixture.attend(async |around| {
            attended(around).await;
            send(around, &requests, FREEZE).await.unwrap();
            if thawed {
                around.libvirt.guest_thaws();
            }
            send(around, &requests, FREEZE).await.unwrap();
            assert!(around.libvirt.is_frozen());
        });
        assert!(end.await.is_none());
        assert_eq!(changes(&fixture.around.libvirt), expected, "thawed: {thawed}");
    }
}

#[tokio::test]
async fn thaw_that_is_not_recorded_is_reported_later() {
    let mut fixture = with_agent(&running()).await;
    let requests = fixture.requests.clone();
    let end = fixture.attend(async |around| {
        attended(around).await;
        send(around, &requests, FREEZE).await.unwrap();
        let received = sent(&requests, GuestCommand::Unfreeze).await;
        around.server.next_request().await.refuse(500, "InternalError");
        received.await.unwrap().unwrap_err();
        assert!(around.report().await.get("fsFreezeStatus").is_none());
    });
    assert!(end.await.is_none());
}

#[tokio::test(start_paused = true)]
async fn thaw_stays_due_when_the_clock_is_set() {
    let (wall, minute) = (FollowedClock::follow(), Duration::from_secs(60));
    let thaw_at = (clock::now() + minute).to_string();
    let fixture = fixture(&frozen(Some(&thaw_at)), FakeLibvirt::default());
    for shift in [-1, 1].map(SignedDuration::from_hours) {
        let mut known = ConnectedGuest::default();
        let due = fixture.task.thaw_due(&mut known);
        assert_eq!(due, Some(clock::Instant::now() + minute));
        wall.shift(shift);
        assert_eq!(fixture.task.thaw_due(&mut known), due, "{shift}");
        wall.shift(-shift);
    }
}

#[tokio::test]
async fn thaw_by_restart_is_reported_until_written() {
    let mut fixture = with_agent(&frozen(None)).await;
    // Only the restart shows that no file system is frozen.
    fixture.around.libvirt.agent_hangs(true);
    let end = fixture.attend(async |around| {
        attended(around).await;
        assert_eq!(around.stored["status"]["fsFreezeStatus"], "frozen");
        around.libvirt.guest_reboots();
        let refused = around.server.next_request().await;
        assert!(refused.body["status"].get("fsFreezeStatus").is_none());
        refused.refuse(409, "Conflict");
        assert!(around.report().await.get("fsFreezeStatus").is_none());
    });
    assert!(end.await.is_none());
}
