use std::{sync::Arc, time::Duration};

use drydock_api::launcher::{LIBVIRT_SOCKET, MIGRATION_LIBVIRT_SOCKET, MIGRATION_MEMORY_SOCKET};
use drydock_core::migration::hand_over::{GuestHere, Proof};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::world::{Node, TunnelWorld, frames};
use crate::tunnel::{
    identity::{SessionIdentity, server_name},
    local::{Role, TunnelPeer},
    stream_header::StreamContent,
    tunnel_refusal::StreamRefusal,
};

const MIGRATION: &str = "5eed0000-0000-4000-8000-000000000003";

/// A client that knows the address of a session, and may have the right key.
struct Caller {
    identity: SessionIdentity,
    target: String,
}

impl Caller {
    /// Creates the peer of the target's session if `known`. Otherwise, the session is paired with another peer.
    async fn new(node: &Node, known: bool) -> Self {
        let caller = Self::unpaired(node).await;
        let other = SessionIdentity::new(MIGRATION).unwrap();
        let peer = if known { &caller.identity } else { &other };
        pair(node, peer).await;
        caller
    }

    /// Creates a client that dials the target's session before the session has a peer.
    async fn unpaired(node: &Node) -> Self {
        let target = node.client.prepare(node.spec(MIGRATION, Role::Target)).await.unwrap();
        Self {
            identity: SessionIdentity::new(MIGRATION).unwrap(),
            target: target.fingerprint,
        }
    }

    async fn connect(&self, node: &Node, migration: &str) -> std::io::Result<TlsStream<TcpStream>> {
        let tls = self.identity.client(self.target.parse().unwrap()).unwrap();
        let stream = TcpStream::connect(node.address).await.unwrap();
        let name = ServerName::try_from(server_name(migration)).unwrap();
        TlsConnector::from(tls).connect(name, stream).await
    }

    async fn open(&self, node: &Node, header: [u8; 8]) -> TlsStream<TcpStream> {
        let mut stream = self.connect(node, MIGRATION).await.unwrap();
        stream.write_all(&header).await.unwrap();
        stream
    }
}

/// Sets the peer of the target's session.
async fn pair(node: &Node, peer: &SessionIdentity) {
    let peer = TunnelPeer {
        fingerprint: peer.fingerprint().to_string(),
        address: None,
    };
    node.client.pair(MIGRATION, peer).await.unwrap();
}

/// Waits until the other side has closed the connection.
async fn until_refused(stream: &mut (impl AsyncReadExt + Unpin)) {
    while stream.read(&mut [0; 64]).await.unwrap_or(0) > 0 {}
}

/// Waits until the refusal has been counted this number of times. It is counted after the connection is closed.
async fn counted(node: &Node, refusal: StreamRefusal, times: u64) {
    while node.metrics.refusals(refusal) < times {
        tokio::task::yield_now().await;
    }
    assert_eq!(node.metrics.refusals(refusal), times);
}

/// Checks that the caller's session still works.
async fn still_good(node: &Node, caller: &Caller) {
    responds(&mut caller.open(node, StreamContent::Control.header()).await).await;
}

/// Checks that the other end of a control channel responds.
async fn responds(control: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin)) {
    control.write_all(b"{\"ping\":{}}\n").await.unwrap();
    assert_eq!(line(control).await, PONG);
}

/// Response to a ping.
const PONG: &str = r#"{"pong":{"version":2}}"#;

/// Reads the next line from the other side.
async fn line(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut line = Vec::new();
    loop {
        match stream.read_u8().await.unwrap() {
            b'\n' => return String::from_utf8(line).unwrap(),
            byte => line.push(byte),
        }
    }
}

#[tokio::test]
async fn client_with_another_certificate_is_refused() {
    let node = Node::new().await;
    let stranger = Caller::new(&node, false).await;
    // The handshake succeeds on the client's side before the server refuses the client.
    if let Ok(mut stream) = stranger.connect(&node, MIGRATION).await {
        let _ = stream.write_all(&StreamContent::Control.header()).await;
        let _ = stream
            .write_all(b"{\"release\":{\"proof\":\"SourceGone\",\"keepPaused\":false}}\n")
            .await;
        until_refused(&mut stream).await;
    }
    counted(&node, StreamRefusal::WrongCertificate, 1).await;
    let state = node.state(MIGRATION).unwrap();
    assert_eq!((state.connected, state.released), (false, None));
}

#[tokio::test]
async fn source_unknown_to_the_target_reports_trouble() {
    let TunnelWorld { source, target } = TunnelWorld::new().await;
    let prepared = target
        .client
        .prepare(target.spec(MIGRATION, Role::Target))
        .await
        .unwrap();
    source
        .client
        .prepare(source.spec(MIGRATION, Role::Source))
        .await
        .unwrap();
    let other = TunnelPeer {
        fingerprint: SessionIdentity::new(MIGRATION).unwrap().fingerprint().to_string(),
        address: None,
    };
    target.client.pair(MIGRATION, other).await.unwrap();
    let peer = TunnelPeer {
        fingerprint: prepared.fingerprint,
        address: Some(prepared.address),
    };
    source.client.pair(MIGRATION, peer).await.unwrap();
    let state = source.until(MIGRATION, |state| state.trouble.is_some()).await;
    let trouble = state.trouble.unwrap();
    assert!(trouble.contains("control channel"), "{trouble}");
    assert!(!state.connected);
}

#[tokio::test]
async fn client_accepts_only_the_expected_server() {
    let node = Node::new().await;
    let mut caller = Caller::new(&node, true).await;
    still_good(&node, &caller).await;
    caller.target = SessionIdentity::new(MIGRATION).unwrap().fingerprint().to_string();
    let error = caller.connect(&node, MIGRATION).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
}

#[tokio::test]
async fn source_that_dials_before_pairing_waits() {
    let node = Node::with(|port| port.with_limits(1, 1, Duration::from_secs(3600))).await;
    let caller = Caller::unpaired(&node).await;
    let connecting = caller.connect(&node, MIGRATION);
    let pairing = async {
        // The connecting client occupies the only slot for unidentified connections.
        let _next = TcpStream::connect(node.address).await.unwrap();
        while node.metrics.refusals(StreamRefusal::TooManyConnections) == 0 {
            assert_eq!(node.metrics.refusals(StreamRefusal::UnknownSession), 0);
            tokio::task::yield_now().await;
        }
        pair(&node, &caller.identity).await;
    };
    let (connected, ()) = tokio::join!(connecting, pairing);
    let mut stream = connected.unwrap();
    stream.write_all(&StreamContent::Control.header()).await.unwrap();
    responds(&mut stream).await;
}

#[tokio::test]
async fn session_without_a_peer_ends_waiting_connections() {
    let node = Node::with(|port| port.with_limits(8, 8, Duration::from_millis(200))).await;
    let caller = Caller::unpaired(&node).await;
    assert!(caller.connect(&node, MIGRATION).await.is_err());
    counted(&node, StreamRefusal::TooSlow, 1).await;
    // A session that is closed while a client waits is treated as missing.
    let node = Node::new().await;
    let caller = Caller::unpaired(&node).await;
    let closing = async { node.client.close(MIGRATION).await.unwrap() };
    let (connected, ()) = tokio::join!(caller.connect(&node, MIGRATION), closing);
    assert!(connected.is_err());
    counted(&node, StreamRefusal::UnknownSession, 1).await;
}

#[tokio::test]
async fn sessions_that_are_not_there_are_refused() {
    let node = Node::new().await;
    let caller = Caller::new(&node, true).await;
    assert!(
        caller
            .connect(&node, "5eed0000-0000-4000-8000-00000000ffff")
            .await
            .is_err()
    );
    counted(&node, StreamRefusal::UnknownSession, 1).await;
    still_good(&node, &caller).await;
    // A session with the source role, which only dials, accepts no connections.
    let other = "5eed0000-0000-4000-8000-00000000eeee";
    node.client.prepare(node.spec(other, Role::Source)).await.unwrap();
    assert!(caller.connect(&node, other).await.is_err());
    counted(&node, StreamRefusal::UnknownSession, 2).await;
    // The former certificate is refused after its session was closed, and after a new session was created.
    node.client.close(MIGRATION).await.unwrap();
    assert!(caller.connect(&node, MIGRATION).await.is_err());
    counted(&node, StreamRefusal::UnknownSession, 3).await;
    let anew = Caller::new(&node, true).await;
    assert!(caller.connect(&node, MIGRATION).await.is_err());
    still_good(&node, &anew).await;
    let replayed = Caller {
        identity: caller.identity,
        target: anew.target.clone(),
    };
    if let Ok(mut stream) = replayed.connect(&node, MIGRATION).await {
        until_refused(&mut stream).await;
    }
    counted(&node, StreamRefusal::WrongCertificate, 1).await;
}

#[tokio::test]
async fn garbage_is_refused_without_harm_to_the_session() {
    let node = Node::new().await;
    let caller = Caller::new(&node, true).await;
    for (number, garbage) in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0; 100],
        &[0xff; 20_000],
        &[22, 3, 1, 0, 1, 0],
    ]
    .into_iter()
    .enumerate()
    {
        let mut stream = TcpStream::connect(node.address).await.unwrap();
        let _ = stream.write_all(garbage).await;
        let _ = stream.shutdown().await;
        until_refused(&mut stream).await;
        counted(&node, StreamRefusal::HandshakeFailed, number as u64 + 1).await;
    }
    for (number, header) in [*b"dryd\0\x09\0\0", *b"whatever"].into_iter().enumerate() {
        until_refused(&mut caller.open(&node, header).await).await;
        counted(&node, StreamRefusal::BadHeader, number as u64 + 1).await;
    }
    let mut stream = caller.connect(&node, MIGRATION).await.unwrap();
    stream.write_all(b"dry").await.unwrap();
    stream.shutdown().await.unwrap();
    until_refused(&mut stream).await;
    counted(&node, StreamRefusal::ClosedEarly, 1).await;
    // A line without an end, and lines that cannot be understood.
    let mut stream = caller.open(&node, StreamContent::Control.header()).await;
    let _ = stream.write_all(&[b'{'; 10_000]).await;
    until_refused(&mut stream).await;
    let mut stream = caller.open(&node, StreamContent::Control.header()).await;
    let lines = b"what?\n{\"release\":{}}\n{\"release\":{\"proof\":\"Hearsay\",\"keepPaused\":false}}\n{\"ping\":{}}\n";
    stream.write_all(lines).await.unwrap();
    // Each line gets a response, so that a side of a later version does not wait forever.
    for key in ["", "release", "release"] {
        let expected = format!(r#"{{"notUnderstood":{{"word":"{key}"}}}}"#);
        assert_eq!(line(&mut stream).await, expected);
    }
    assert_eq!(line(&mut stream).await, PONG);
    assert_eq!(node.state(MIGRATION).unwrap().released, None);
}

#[tokio::test]
async fn slow_client_is_refused() {
    let node = Node::with(|port| port.with_limits(8, 8, Duration::from_millis(500))).await;
    let caller = Caller::new(&node, true).await;
    // One connection sends no data, and another stops during or after the handshake.
    let mut unresponsive = TcpStream::connect(node.address).await.unwrap();
    let slow = caller.connect(&node, MIGRATION).await;
    until_refused(&mut unresponsive).await;
    if let Ok(mut slow) = slow {
        until_refused(&mut slow).await;
    }
    counted(&node, StreamRefusal::TooSlow, 2).await;
}

#[tokio::test]
async fn too_many_idle_connections_are_refused() {
    let node = Node::with(|port| port.with_limits(2, 2, Duration::from_secs(3600))).await;
    let mut unresponsive = Vec::new();
    for _ in 0..5 {
        unresponsive.push(TcpStream::connect(node.address).await.unwrap());
    }
    counted(&node, StreamRefusal::TooManyConnections, 3).await;
    let caller = Caller::new(&node, true).await;
    drop(unresponsive);
    counted(&node, StreamRefusal::HandshakeFailed, 2).await;
    still_good(&node, &caller).await;
}

#[tokio::test]
async fn an_address_that_floods_the_port_keeps_no_other_out() {
    let node = Node::with(|port| port.with_limits(100, 2, Duration::from_secs(3600))).await;
    let mut unresponsive = Vec::new();
    for _ in 0..5 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        unresponsive.push(socket.connect(node.address).await.unwrap());
    }
    counted(&node, StreamRefusal::TooManyConnections, 3).await;
    let caller = Caller::new(&node, true).await;
    still_good(&node, &caller).await;
}

#[tokio::test]
async fn there_is_one_libvirt_stream_at_a_time() {
    let world = TunnelWorld::new().await;
    world.pair(MIGRATION, None).await;
    let (listener, _socket) = world.target.pod().listen(LIBVIRT_SOCKET);
    let mut first = world.source.pod().connect(MIGRATION_LIBVIRT_SOCKET).await;
    let (mut theirs, _) = listener.accept().await.unwrap();
    let mut second = world.source.pod().connect(MIGRATION_LIBVIRT_SOCKET).await;
    assert_eq!(second.read(&mut [0]).await.unwrap_or(0), 0);
    first.write_all(&frames(b"")).await.unwrap();
    theirs.read_exact(&mut [0; 28]).await.unwrap();
}

#[tokio::test]
async fn target_accepts_only_the_first_libvirt_stream() {
    let node = Node::new().await;
    let caller = Caller::new(&node, true).await;
    let (listener, _socket) = node.pod().listen(LIBVIRT_SOCKET);
    let mut first = caller.open(&node, StreamContent::Libvirt.header()).await;
    let (mut theirs, _) = listener.accept().await.unwrap();
    until_refused(&mut caller.open(&node, StreamContent::Libvirt.header()).await).await;
    counted(&node, StreamRefusal::StreamTaken, 1).await;
    first.write_all(b"x").await.unwrap();
    first.flush().await.unwrap();
    assert_eq!(theirs.read(&mut [0; 8]).await.unwrap(), 1);
}

#[tokio::test]
async fn a_stream_that_nothing_in_the_pod_takes_is_refused() {
    let world = TunnelWorld::new().await;
    world.pair(MIGRATION, None).await;
    let mut stream = world.source.pod().connect(MIGRATION_MEMORY_SOCKET).await;
    assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0);
    counted(&world.target, StreamRefusal::NoProcessInPod, 1).await;
}

/// Checks that a newer control channel replaces the older channel, which may have been cut.
#[tokio::test]
async fn the_newest_control_channel_counts() {
    let node = Node::new().await;
    let caller = Arc::new(Caller::new(&node, true).await);
    let mut first = caller.open(&node, StreamContent::Control.header()).await;
    node.until(MIGRATION, |state| state.connected).await;
    let mut second = caller.open(&node, StreamContent::Control.header()).await;
    until_refused(&mut first).await;
    node.guests.of(super::world::DOMAIN).becomes(GuestHere::Complete);
    let release = format!(
        "{{\"release\":{{\"proof\":\"{}\",\"keepPaused\":false}}}}\n",
        Proof::SourceGone.as_str()
    );
    second.write_all(release.as_bytes()).await.unwrap();
    assert_eq!(line(&mut second).await, r#"{"takenOver":"Resumed"}"#);
    assert!(node.until(MIGRATION, |state| state.resumed).await.connected);
}

#[tokio::test]
async fn protocol_is_the_first_common_to_both_sides() {
    for (offered, accepted) in [
        (&["drydock-migration/1"][..], true),
        (&["drydock-migration/2", "drydock-migration/1"], true),
        (&["drydock-migration/2"], false),
    ] {
        let node = Node::new().await;
        let caller = Caller::new(&node, true).await;
        let tls = caller.identity.client(caller.target.parse().unwrap()).unwrap();
        let mut tls = (*tls).clone();
        tls.alpn_protocols = offered.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let stream = TcpStream::connect(node.address).await.unwrap();
        let name = ServerName::try_from(server_name(MIGRATION)).unwrap();
        let connected = TlsConnector::from(Arc::new(tls)).connect(name, stream).await;
        assert_eq!(connected.is_ok(), accepted, "{offered:?}");
        if let Ok(mut stream) = connected {
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"drydock-migration/1"[..]));
            stream.write_all(&StreamContent::Control.header()).await.unwrap();
            responds(&mut stream).await;
        }
    }
}

#[tokio::test]
async fn tunnels_know_the_version_of_each_other() {
    let node = Node::new().await;
    let caller = Caller::new(&node, true).await;
    let mut control = caller.open(&node, StreamContent::Control.header()).await;
    for (ping, version) in [
        (&b"{\"ping\":{}}\n"[..], 1),
        (b"{\"ping\":{\"version\":7,\"more\":true}}\n", 7),
    ] {
        control.write_all(ping).await.unwrap();
        node.until(MIGRATION, |state| state.peer_version == Some(version)).await;
    }
    let world = TunnelWorld::new().await;
    world.pair(MIGRATION, None).await;
    for side in [&world.source, &world.target] {
        side.until(MIGRATION, |state| state.peer_version == Some(2)).await;
    }
}
