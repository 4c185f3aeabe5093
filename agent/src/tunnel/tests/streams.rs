use drydock_api::launcher::{
    LIBVIRT_SOCKET, MIGRATION_DISKS_SOCKET, MIGRATION_LIBVIRT_SOCKET, MIGRATION_MEMORY_SOCKET,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use super::world::{TunnelWorld, frames, noise};

const MIGRATION: &str = "5eed0000-0000-4000-8000-000000000001";

/// Writes the bytes in pieces of this size, and ends the direction.
async fn send(stream: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8], piece: usize) {
    for piece in bytes.chunks(piece) {
        stream.write_all(piece).await.unwrap();
    }
    stream.shutdown().await.unwrap();
}

async fn receive(stream: &mut (impl AsyncReadExt + Unpin)) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    bytes
}

/// Sends data in both directions at the same time, and checks that each side receives all data of the other side.
async fn exchange(ours: UnixStream, theirs: UnixStream, there: &[u8], back: &[u8], piece: usize) {
    let (mut our_reads, mut our_writes) = ours.into_split();
    let (mut their_reads, mut their_writes) = theirs.into_split();
    let ((), (), received_there, received_back) = tokio::join!(
        send(&mut our_writes, there, piece),
        send(&mut their_writes, back, piece / 2 + 1),
        receive(&mut their_reads),
        receive(&mut our_reads),
    );
    assert!(received_there == there && received_back == back, "pieces of {piece}");
}

#[tokio::test]
async fn streams_carry_data_both_ways_regardless_of_chunk_sizes() {
    let world = TunnelWorld::new().await;
    world.pair(MIGRATION, None).await;
    let (source, target) = (world.source.pod(), world.target.pod());
    let mut carried = 0;
    for (from, to) in [
        (MIGRATION_LIBVIRT_SOCKET, LIBVIRT_SOCKET),
        (MIGRATION_MEMORY_SOCKET, MIGRATION_MEMORY_SOCKET),
        (MIGRATION_DISKS_SOCKET, MIGRATION_DISKS_SOCKET),
    ] {
        let (listener, _socket) = target.listen(to);
        for (piece, length) in [
            (1, 500),
            (17, 20_000),
            (4096, 300_000),
            (70_000, 3_000_000),
            (4 << 20, 8 << 20),
        ] {
            let ours = source.connect(from).await;
            let (theirs, _) = listener.accept().await.unwrap();
            let (mut there, back) = (noise(length, 1), noise(length / 3, 2));
            // The tunnel carries only libvirt's protocol from a source's libvirt.
            if from == MIGRATION_LIBVIRT_SOCKET {
                there = frames(&there);
            }
            exchange(ours, theirs, &there, &back, piece).await;
            carried += there.len() as u64;
            // Only one libvirt stream may exist at a time, so the next stream waits for the end of this one.
            world.source.until(MIGRATION, |state| state.sent == carried).await;
        }
    }
    let back = world.source.state(MIGRATION).unwrap().received;
    world
        .target
        .until(MIGRATION, |state| (state.received, state.sent) == (carried, back))
        .await;
}

#[tokio::test]
async fn several_disks_go_at_once() {
    let world = TunnelWorld::new().await;
    world.pair(MIGRATION, None).await;
    let (source, target) = (world.source.pod(), world.target.pod());
    let (listener, _socket) = target.listen(MIGRATION_DISKS_SOCKET);
    let mut pairs = Vec::new();
    for _ in 0..8 {
        let ours = source.connect(MIGRATION_DISKS_SOCKET).await;
        pairs.push((ours, listener.accept().await.unwrap().0));
    }
    let exchanges = pairs
        .into_iter()
        .enumerate()
        .map(|(number, (ours, theirs))| async move {
            let bytes = noise(100_000, number as u64);
            exchange(ours, theirs, &bytes, &bytes, 5000).await;
        });
    futures::future::join_all(exchanges).await;
}

#[tokio::test]
async fn unread_stream_stops_the_writer_and_loses_nothing() {
    let world = TunnelWorld::new().await;
    world.pair(MIGRATION, None).await;
    let (listener, _socket) = world.target.pod().listen(MIGRATION_MEMORY_SOCKET);
    let ours = world.source.pod().connect(MIGRATION_MEMORY_SOCKET).await;
    let (mut theirs, _) = listener.accept().await.unwrap();
    // The writer cannot send more data than the buffers between the two sides can hold.
    let bytes = noise(32 << 20, 3);
    let mut written = 0;
    loop {
        let more = tokio::time::timeout(std::time::Duration::from_millis(300), ours.writable()).await;
        if more.is_err() {
            break;
        }
        match ours.try_write(&bytes[written..]) {
            Ok(length) => written += length,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        assert!(written < bytes.len(), "nobody reads, and all of it was taken");
    }
    drop(ours);
    let bytes_received = receive(&mut theirs).await;
    assert!(bytes_received == bytes[..written]);
}

#[tokio::test]
async fn streams_end_with_the_session_on_both_sides() {
    let world = TunnelWorld::new().await;
    world.pair(MIGRATION, None).await;
    let (listener, _socket) = world.target.pod().listen(MIGRATION_MEMORY_SOCKET);
    let mut ours = world.source.pod().connect(MIGRATION_MEMORY_SOCKET).await;
    let (mut theirs, _) = listener.accept().await.unwrap();
    world.source.until(MIGRATION, |state| state.connected).await;
    world.source.client.close(MIGRATION).await.unwrap();
    assert_eq!(ours.read(&mut [0]).await.unwrap(), 0);
    assert_eq!(theirs.read(&mut [0]).await.unwrap_or(0), 0);
    assert!(world.source.state(MIGRATION).is_none());
    // The other side knows the reason for the end.
    let state = world.target.until(MIGRATION, |state| state.ended.is_some()).await;
    assert_eq!(state.ended.as_deref(), Some("PeerClosed"));
    assert!(!state.connected);
}
