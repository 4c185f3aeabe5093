use std::sync::atomic::Ordering;

use drydock_api::launcher::{LIBVIRT_SOCKET, MIGRATION_LIBVIRT_SOCKET};
use drydock_core::migration::hand_over::{GuestHere, Proof};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use super::world::{DOMAIN, Network, TunnelWorld};
use crate::tunnel::{
    client::TunnelError,
    last_call::GuestLeft,
    local::{ReplyProgress, SessionState},
};

const MIGRATION: &str = "5eed0000-0000-4000-8000-000000000002";

/// Returns a message between two libvirts, of libvirt's program for domains.
fn message(procedure: u32, kind: u32, serial: u32, status: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(28 + body.len()).unwrap();
    let words = [length, 0x2000_8086, 1, procedure, kind, serial, status];
    let header = words.into_iter().flat_map(u32::to_be_bytes);
    header.chain(body.iter().copied()).collect()
}

/// Returns a last call that leaves the guest paused, and the reply to the call.
fn last_call() -> (Vec<u8>, Vec<u8>) {
    (last_call_with([0, 0, 0, 1 << 5]), message(306, 1, 12, 0, &[1; 60]))
}

/// Returns a last call without parameters and with a cookie of 4 bytes.
fn last_call_with(flags: [u8; 4]) -> Vec<u8> {
    let arguments = [[0; 4], [0, 0, 0, 4], [9; 4], flags, [0; 4]];
    message(306, 0, 12, 0, arguments.as_flattened())
}

/// Connects two libvirts through the tunnels.
async fn libvirts(world: &TunnelWorld) -> (UnixStream, UnixStream) {
    let (listener, _socket) = world.target.pod().listen(LIBVIRT_SOCKET);
    let ours = world.source.pod().connect(MIGRATION_LIBVIRT_SOCKET).await;
    (ours, listener.accept().await.unwrap().0)
}

async fn pass(from: &mut UnixStream, to: &mut UnixStream, bytes: &[u8]) {
    from.write_all(bytes).await.unwrap();
    let mut received = vec![0; bytes.len()];
    to.read_exact(&mut received).await.unwrap();
    assert_eq!(received, bytes);
}

#[tokio::test]
async fn guest_is_released_only_once_the_source_read_the_reply() {
    let world = TunnelWorld::new().await;
    world.pair(MIGRATION, None).await;
    let guest = world.guest();
    let (mut source, mut target) = libvirts(&world).await;
    let (call, reply) = last_call();
    // Another call comes first, as in a real migration.
    pass(&mut source, &mut target, &message(303, 0, 11, 0, &[3; 100])).await;
    pass(&mut target, &mut source, &message(303, 1, 11, 0, &[])).await;
    pass(&mut source, &mut target, &call).await;
    guest.becomes(GuestHere::Complete);
    target.write_all(&reply).await.unwrap();
    let state = world
        .source
        .until(MIGRATION, |state| state.reply == ReplyProgress::Forwarded)
        .await;
    assert_eq!((state.released, state.acknowledged), (None, false));
    // Reads all bytes but the last.
    source.read_exact(&mut vec![0; reply.len() - 1]).await.unwrap();
    assert_eq!(world.source.state(MIGRATION).unwrap().released, None);
    assert_eq!(guest.resumed(), 0);
    source.read_exact(&mut [0]).await.unwrap();
    let state = world.source.until(MIGRATION, |state| state.acknowledged).await;
    assert_eq!(
        (state.reply, state.released),
        (ReplyProgress::Consumed, Some(Proof::ReplyConsumed))
    );
    let state = world.target.until(MIGRATION, |state| state.resumed).await;
    assert_eq!(state.released, Some(Proof::ReplyConsumed));
    assert_eq!(guest.resumed(), 1);
}

#[tokio::test]
async fn guest_with_post_copy_waits_at_target_until_switched() {
    let world = TunnelWorld::new().await;
    world.pair(MIGRATION, None).await;
    assert!(world.source.state(MIGRATION).unwrap().holds_last_call);
    assert!(!world.target.state(MIGRATION).unwrap().holds_last_call);
    let (mut source, mut target) = libvirts(&world).await;
    let (paused, _) = last_call();
    let goes_on = last_call_with([0; 4]);
    for (left, expected) in [
        (GuestLeft::MayReturn, &paused),
        (GuestLeft::Unknown, &paused),
        (GuestLeft::Switched, &goes_on),
    ] {
        world.source.guests.of(DOMAIN).leaves(left);
        source.write_all(&goes_on).await.unwrap();
        let mut received = vec![0; expected.len()];
        target.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, expected, "{left:?}");
    }
}

/// Data of a source's libvirt that might resume the guest at the target, and that this version does not know.
fn unknown_last_calls() -> [Vec<u8>; 4] {
    [
        // A last call of a later libvirt, and a last call of an earlier libvirt.
        message(454, 0, 12, 0, &[0; 16]),
        message(109, 0, 12, 0, &[0; 32]),
        // A last call with an additional argument.
        message(306, 0, 12, 0, &[0; 20]),
        // Data that does not follow libvirt's protocol.
        b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
    ]
}

#[tokio::test]
async fn unknown_last_call_ends_the_session_and_reaches_no_target() {
    for call in unknown_last_calls() {
        let world = TunnelWorld::new().await;
        world.pair(MIGRATION, None).await;
        let (mut source, mut target) = libvirts(&world).await;
        let before = message(303, 0, 11, 0, &[3; 100]);
        pass(&mut source, &mut target, &before).await;
        source.write_all(&call).await.unwrap();
        let mut received = Vec::new();
        let _ = target.read_to_end(&mut received).await;
        assert!(received.is_empty(), "{call:?}: {received:?}");
        assert_eq!(source.read(&mut [0]).await.unwrap_or(0), 0);
        let state = world.source.until(MIGRATION, |state| state.ended.is_some()).await;
        assert_eq!(state.ended.as_deref(), Some("LibvirtCallUnsupported"));
        assert!(state.trouble.unwrap().contains("source's libvirt"));
        assert_eq!((state.reply, state.released), (ReplyProgress::None, None));
        assert_eq!(world.source.metrics.not_understood.get(), 1);
        let state = world.target.until(MIGRATION, |state| state.ended.is_some()).await;
        assert_eq!((state.ended.as_deref(), state.released), (Some("PeerClosed"), None));
        // The target has not resumed the guest.
        assert_eq!(world.guest().resumed(), 0);
    }
}

#[tokio::test]
async fn unknown_call_passes_once_the_guest_has_been_switched() {
    let world = TunnelWorld::new().await;
    world.pair(MIGRATION, None).await;
    let (mut source, mut target) = libvirts(&world).await;
    let [call, ..] = unknown_last_calls();
    let guest = world.source.guests.of(DOMAIN);
    // The libvirt of the guest does not respond at first.
    guest.leaves(GuestLeft::Unknown);
    source.write_all(&call).await.unwrap();
    guest.until_queried().await;
    guest.leaves(GuestLeft::Switched);
    let mut received = vec![0; call.len()];
    target.read_exact(&mut received).await.unwrap();
    assert_eq!(received, call);
    pass(&mut source, &mut target, &call).await;
    assert_eq!(world.source.state(MIGRATION).unwrap().ended, None);
}

#[tokio::test]
async fn missed_last_call_keeps_later_guests_from_being_switched() {
    let world = TunnelWorld::new().await;
    world.pair(MIGRATION, None).await;
    let (mut source, mut target) = libvirts(&world).await;
    pass(&mut source, &mut target, &message(303, 0, 11, 0, &[3; 100])).await;
    assert!(world.source.state(MIGRATION).unwrap().holds_last_call);
    world.guest().becomes(GuestHere::Complete);
    world.release(MIGRATION, Proof::SourceStopped).await;
    let state = world.source.until(MIGRATION, |state| !state.holds_last_call).await;
    assert_eq!(state.released, Some(Proof::SourceStopped));
    assert_eq!(world.source.metrics.missed.get(), 1);
    // The guest has certainly left the source, so the target resumes it.
    world.target.until(MIGRATION, |state| state.resumed).await;
}

#[tokio::test]
async fn source_that_ends_before_the_reply_proves_nothing() {
    let world = TunnelWorld::new().await;
    world.pair(MIGRATION, None).await;
    let (mut source, mut target) = libvirts(&world).await;
    let (call, reply) = last_call();
    pass(&mut source, &mut target, &call).await;
    world.guest().becomes(GuestHere::Complete);
    target.write_all(&reply).await.unwrap();
    world
        .source
        .until(MIGRATION, |state| state.reply == ReplyProgress::Forwarded)
        .await;
    // The kernel discards the data that the source's libvirt has not read.
    drop(source);
    assert_eq!(target.read(&mut [0]).await.unwrap_or(0), 0);
    // The state after a later call shows that the unread reply was not accepted as a proof.
    world.source.client.keep_paused(MIGRATION, true).await.unwrap();
    let state = world.source.state(MIGRATION).unwrap();
    assert_eq!((state.reply, state.released), (ReplyProgress::Forwarded, None));
    assert_eq!(world.guest().resumed(), 0);
    assert!(!world.target.state(MIGRATION).unwrap().resumed);
    // The source's agent may still find another proof.
    world.source.client.keep_paused(MIGRATION, false).await.unwrap();
    world.release(MIGRATION, Proof::SourceGone).await;
    let state = world.source.until(MIGRATION, |state| state.acknowledged).await;
    assert_eq!(state.released, Some(Proof::SourceGone));
    assert_eq!(world.guest().resumed(), 1);
}

#[tokio::test]
async fn a_reply_that_is_lost_on_the_way_proves_nothing() {
    let world = TunnelWorld::new().await;
    world.pair(MIGRATION, None).await;
    let (mut source, mut target) = libvirts(&world).await;
    let (call, reply) = last_call();
    pass(&mut source, &mut target, &call).await;
    // The target's libvirtd dies while it writes the reply.
    target.write_all(&reply[..reply.len() - 1]).await.unwrap();
    drop(target);
    let mut received = Vec::new();
    source.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, reply[..reply.len() - 1]);
    world.source.client.keep_paused(MIGRATION, true).await.unwrap();
    let state = world.source.state(MIGRATION).unwrap();
    assert_eq!((state.reply, state.released), (ReplyProgress::None, None));
}

#[tokio::test]
async fn a_guest_that_was_paused_stays_paused() {
    let world = TunnelWorld::new().await;
    world.pair(MIGRATION, None).await;
    world.guest().becomes(GuestHere::Complete);
    for keep_paused in [true, false, true] {
        world.source.client.keep_paused(MIGRATION, keep_paused).await.unwrap();
    }
    world.release(MIGRATION, Proof::SourceStopped).await;
    world.source.until(MIGRATION, |state| state.acknowledged).await;
    world.target.until(MIGRATION, |state| state.resumed).await;
    assert_eq!(world.guest().resumed(), 0);
    let refused = world.source.client.keep_paused(MIGRATION, false).await.unwrap_err();
    assert!(matches!(refused, TunnelError::Refused { reason, .. } if reason == "AlreadyReleased"));
    world.source.client.keep_paused(MIGRATION, true).await.unwrap();
    world.release(MIGRATION, Proof::SourceStopped).await;
}

#[tokio::test]
async fn a_release_waits_for_the_whole_guest() {
    let world = TunnelWorld::new().await;
    let guest = world.guest();
    guest.failures.store(2, Ordering::SeqCst);
    world.pair(MIGRATION, None).await;
    world.release(MIGRATION, Proof::SourceStopped).await;
    for (state, trouble) in [
        (GuestHere::Absent, "does not exist on this node"),
        (GuestHere::Incoming, "has not arrived completely"),
        (GuestHere::Unknown, "state is unknown"),
    ] {
        guest.becomes(state);
        let waits = |trouble: &str, shown: Option<&str>| shown.is_some_and(|shown| shown.contains(trouble));
        let state = world
            .target
            .until(MIGRATION, |state| waits(trouble, state.trouble.as_deref()))
            .await;
        assert_eq!((state.released, state.resumed), (Some(Proof::SourceStopped), false));
    }
    guest.becomes(GuestHere::Complete);
    let refused = |state: &SessionState| state.trouble.as_ref().is_some_and(|text| text.contains("not now"));
    let state = world.target.until(MIGRATION, refused).await;
    assert_eq!(state.trouble.unwrap().len(), 1000);
    let state = world.target.until(MIGRATION, |state| state.resumed).await;
    assert_eq!(state.trouble, None);
    world.source.until(MIGRATION, |state| state.acknowledged).await;
    assert_eq!(guest.resumed(), 1);
}

#[tokio::test]
async fn guest_that_the_agent_resumed_first_is_no_trouble() {
    let world = TunnelWorld::new().await;
    let guest = world.guest();
    guest.agent_is_faster.store(true, Ordering::SeqCst);
    guest.becomes(GuestHere::Complete);
    world.pair(MIGRATION, None).await;
    world.release(MIGRATION, Proof::ReplyConsumed).await;
    let ends = |state: &SessionState| state.resumed || state.trouble.is_some();
    let state = world.target.until(MIGRATION, ends).await;
    assert_eq!((state.resumed, state.trouble), (true, None));
    world.source.until(MIGRATION, |state| state.acknowledged).await;
    assert_eq!(guest.resumed(), 0);
}

/// Cuts the network after various numbers of bytes, and thus within, before and after each message.
#[tokio::test]
async fn a_hand_over_survives_a_cut_at_any_place() {
    let world = TunnelWorld::new().await;
    let (mut cases, mut cut) = (Vec::new(), 0_usize);
    for number in 0..90_u64 {
        let migration = format!("5eed0000-0000-4000-8000-1{number:011}");
        let network = Network::new(world.target.address, number * 41).await;
        let domain = format!("{DOMAIN}-{number}");
        let guest = world.target.guests.of(&domain);
        guest.becomes(GuestHere::Complete);
        let mut spec = world.target.spec(&migration, crate::tunnel::local::Role::Target);
        spec.domain = domain;
        let target = world.target.client.prepare(spec).await.unwrap();
        let spec = world.source.spec(&migration, crate::tunnel::local::Role::Source);
        let source = world.source.client.prepare(spec).await.unwrap();
        let of = |fingerprint, address| crate::tunnel::local::TunnelPeer { fingerprint, address };
        world
            .target
            .client
            .pair(&migration, of(source.fingerprint, None))
            .await
            .unwrap();
        // The guest is released before the first message is sent.
        world.release(&migration, Proof::SourceStopped).await;
        let address = Some(network.address.to_string());
        world
            .source
            .client
            .pair(&migration, of(target.fingerprint, address))
            .await
            .unwrap();
        cases.push((migration, network, guest));
        // Runs about half as many sessions at a time as a tunnel allows.
        if cases.len() == 30 {
            cut += finish(&world, std::mem::take(&mut cases)).await;
        }
    }
    // The last hand-overs finish before the network would be cut.
    assert!((20..90).contains(&cut), "{cut} connections were cut");
}

/// Waits for the end of the hand-overs. Returns the number of hand-overs that needed a second connection.
async fn finish(world: &TunnelWorld, cases: Vec<(String, Network, super::world::FakeGuest)>) -> usize {
    let mut cut = 0;
    for (migration, network, guest) in cases {
        world.source.until(&migration, |state| state.acknowledged).await;
        world.target.until(&migration, |state| state.resumed).await;
        assert_eq!(guest.resumed(), 1, "{migration}");
        cut += usize::from(network.connections.load(Ordering::SeqCst) > 1);
        world.source.client.close(&migration).await.unwrap();
        world.target.client.close(&migration).await.unwrap();
    }
    cut
}

#[tokio::test]
async fn only_a_source_is_released() {
    let world = TunnelWorld::new().await;
    world.pair(MIGRATION, None).await;
    for refused in [
        world.target.client.release(MIGRATION, Proof::SourceGone).await,
        world.target.client.keep_paused(MIGRATION, true).await,
    ] {
        assert!(matches!(refused, Err(TunnelError::Refused { reason, .. }) if reason == "NotSource"));
    }
}
