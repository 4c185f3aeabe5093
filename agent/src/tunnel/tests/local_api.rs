use drydock_core::migration::hand_over::Proof;
use futures::{SinkExt, StreamExt};
use tokio::net::UnixStream;
use tokio_util::codec::{Framed, LinesCodec};

use super::world::{Node, TunnelWorld, noise, write};
use crate::tunnel::{
    client::{TunnelClient, TunnelError},
    local::{Role, ServerMessage, SessionSpec, TunnelPeer},
};

const MIGRATION: &str = "5eed0000-0000-4000-8000-000000000004";

fn peer(fingerprint: &str, address: Option<&str>) -> TunnelPeer {
    TunnelPeer {
        fingerprint: fingerprint.to_owned(),
        address: address.map(str::to_owned),
    }
}

fn reason<T: std::fmt::Debug>(result: Result<T, TunnelError>) -> String {
    match result {
        Err(TunnelError::Refused { reason, .. }) => reason,
        Err(error) => format!("{error:?}"),
        Ok(value) => panic!("{value:?}"),
    }
}

#[tokio::test]
async fn repeated_calls_change_nothing() {
    let node = Node::new().await;
    let spec = node.spec(MIGRATION, Role::Source);
    let prepared = node.client.prepare(spec.clone()).await.unwrap();
    assert_eq!(prepared.fingerprint.len(), 64);
    assert_eq!(prepared.address, node.address.to_string());
    // Changes that a call causes are known when the call returns.
    let state = node.state(MIGRATION).unwrap();
    assert!(!state.paired);
    assert_eq!(node.client.prepare(spec.clone()).await.unwrap(), prepared);
    let target = peer(&prepared.fingerprint, Some("127.0.0.1:1"));
    for _ in 0..2 {
        node.client.pair(MIGRATION, target.clone()).await.unwrap();
        assert!(node.state(MIGRATION).unwrap().paired);
    }
    let state = node.until(MIGRATION, |state| state.trouble.is_some()).await;
    assert!(state.trouble.unwrap().contains("cannot be reached"));
    for _ in 0..2 {
        node.client.release(MIGRATION, Proof::SourceStopped).await.unwrap();
        assert_eq!(node.state(MIGRATION).unwrap().released, Some(Proof::SourceStopped));
    }
    for _ in 0..2 {
        node.client.close(MIGRATION).await.unwrap();
        assert!(node.state(MIGRATION).is_none());
    }
    // A new session has a new key.
    assert_ne!(
        node.client.prepare(spec).await.unwrap().fingerprint,
        prepared.fingerprint
    );
}

#[tokio::test]
async fn contradictions_and_bad_values_are_refused_with_a_reason() {
    let node = Node::new().await;
    let spec = node.spec(MIGRATION, Role::Source);
    let fingerprint = node.client.prepare(spec.clone()).await.unwrap().fingerprint;
    for other in [
        SessionSpec {
            role: Role::Target,
            ..spec.clone()
        },
        SessionSpec {
            domain: "other".to_owned(),
            ..spec.clone()
        },
        SessionSpec {
            pod_uid: "0".to_owned(),
            ..spec.clone()
        },
    ] {
        assert_eq!(reason(node.client.prepare(other).await), "OtherSession");
    }
    let with = |migration: &str, pod_uid: &str| SessionSpec {
        migration: migration.to_owned(),
        pod_uid: pod_uid.to_owned(),
        ..spec.clone()
    };
    for bad in ["", "x", "../0", "0.1", &"0".repeat(64)] {
        assert_eq!(
            reason(node.client.prepare(with(bad, "0")).await),
            "BadMigration",
            "{bad}"
        );
    }
    assert_eq!(
        reason(node.client.prepare(with("0", "../..")).await),
        "PodFolderBadName"
    );
    assert_eq!(reason(node.client.prepare(with("0", "0")).await), "PodFolderIncomplete");
    assert!(node.state("0").is_none());
    for bad in [
        peer("", Some("127.0.0.1:1")),
        peer("00", Some("127.0.0.1:1")),
        peer(&fingerprint, None),
        peer(&fingerprint, Some("node-1:9445")),
        peer(&fingerprint, Some("127.0.0.1")),
    ] {
        assert_eq!(reason(node.client.pair(MIGRATION, bad).await), "BadPeer");
    }
    node.client
        .pair(MIGRATION, peer(&fingerprint, Some("127.0.0.1:1")))
        .await
        .unwrap();
    for other in [
        peer(&fingerprint, Some("127.0.0.1:2")),
        peer(&"0".repeat(64), Some("127.0.0.1:1")),
    ] {
        assert_eq!(reason(node.client.pair(MIGRATION, other).await), "OtherPeer");
    }
    assert_eq!(
        reason(node.client.pair("0", peer(&fingerprint, None)).await),
        "NoSession"
    );
    assert_eq!(reason(node.client.keep_paused("0", true).await), "NoSession");
    assert_eq!(reason(node.client.release("0", Proof::SourceGone).await), "NoSession");
    node.client.close("0").await.unwrap();
}

#[tokio::test]
async fn source_session_refuses_a_manipulated_pod_folder() {
    let node = Node::new().await;
    let spec = node.spec(MIGRATION, Role::Source);
    let run = node
        .folder
        .0
        .join("pods")
        .join(&spec.pod_uid)
        .join("volumes/kubernetes.io~empty-dir/run");
    let outside = node.folder.0.join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, run.join("migration")).unwrap();
    assert_eq!(reason(node.client.prepare(spec.clone()).await), "PodFolderRefused");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    std::fs::remove_file(run.join("migration")).unwrap();
    write(&run.join("migration"), b"a file");
    assert_eq!(reason(node.client.prepare(spec.clone()).await), "PodFolderRefused");
    std::fs::remove_file(run.join("migration")).unwrap();
    node.client.prepare(spec).await.unwrap();
    assert!(run.join("migration/memory.sock").exists());
    node.client.close(MIGRATION).await.unwrap();
    assert!(!run.join("migration/memory.sock").exists());
}

#[tokio::test]
async fn invalid_line_gets_an_error_endless_line_ends_connection() {
    let node = Node::new().await;
    let path = node.folder.0.join("tunnels/own.sock");
    let stream = UnixStream::connect(&path).await.unwrap();
    let mut lines = Framed::new(stream, LinesCodec::new());
    let parse = |line: String| serde_json::from_str(&line).unwrap();
    assert!(
        matches!(parse(lines.next().await.unwrap().unwrap()), ServerMessage::Sessions(sessions) if sessions.is_empty())
    );
    for (line, expected) in [
        ("", 0),
        ("nonsense", 0),
        ("[]", 0),
        (r#"{"id":7,"call":{"explode":{}}}"#, 7),
        (r#"{"id":8}"#, 8),
        (r#"{"id":9,"call":{"prepare":{"migration":1}}}"#, 9),
    ] {
        lines.send(line).await.unwrap();
        let ServerMessage::Response { id, result } = parse(lines.next().await.unwrap().unwrap()) else {
            panic!("no response to {line}");
        };
        assert_eq!(id, expected);
        assert!(format!("{result:?}").contains("NotUnderstood"), "{line}: {result:?}");
    }
    lines
        .send(r#"{"id":10,"call":{"close":{"migration":"0","later":true}}}"#)
        .await
        .unwrap();
    let line = lines.next().await.unwrap().unwrap();
    assert_eq!(line, r#"{"answer":{"id":10,"result":{"done":{}}}}"#);
    let _ = lines
        .send(String::from_utf8_lossy(&noise(2 << 20, 1)).replace('\n', " "))
        .await;
    while let Some(Ok(_)) = lines.next().await {}
    // Other clients are served as before.
    node.client.close(MIGRATION).await.unwrap();
}

#[tokio::test]
async fn draining_tunnel_takes_no_session_and_ends_after_the_last() {
    let world = TunnelWorld::new().await;
    world.pair(MIGRATION, None).await;
    let node = &world.source;
    node.process.stop();
    let other = node.spec("0", Role::Target);
    assert_eq!(reason(node.client.prepare(other).await), "Draining");
    // The existing session continues. Another agent can connect, and the guest can be released.
    let path = node.folder.0.join("tunnels/own.sock");
    let agent = TunnelClient::connect(&path).await.unwrap();
    agent.prepare(node.spec(MIGRATION, Role::Source)).await.unwrap();
    world
        .guest()
        .becomes(drydock_core::migration::hand_over::GuestHere::Complete);
    agent.release(MIGRATION, Proof::SourceStopped).await.unwrap();
    node.until(MIGRATION, |state| state.acknowledged).await;
    assert!(!node.process.running_tasks().is_empty());
    agent.close(MIGRATION).await.unwrap();
    // The agents notice the end of the connection, and the process has no tasks left.
    for mut sessions in [agent.sessions(), node.client.sessions()] {
        while sessions.changed().await.is_ok() {}
    }
    let run = node
        .process
        .run(futures::stream::pending(), std::time::Duration::from_secs(60));
    run.await.unwrap();
    assert!(!path.exists());
    assert_eq!(reason(node.client.close(MIGRATION).await), "Gone");
    assert!(matches!(
        TunnelClient::connect(&path).await,
        Err(TunnelError::Unreachable(_))
    ));
}

#[tokio::test]
async fn session_closed_by_the_peer_does_not_keep_the_tunnel() {
    let world = TunnelWorld::new().await;
    world.pair(MIGRATION, None).await;
    world.source.until(MIGRATION, |state| state.connected).await;
    world.target.client.close(MIGRATION).await.unwrap();
    let state = world.source.until(MIGRATION, |state| state.ended.is_some()).await;
    assert_eq!(state.ended.as_deref(), Some("PeerClosed"));
    world.source.process.stop();
    let mut sessions = world.source.client.sessions();
    while sessions.changed().await.is_ok() {}
    let process = &world.source.process;
    let run = process.run(futures::stream::pending(), std::time::Duration::from_secs(60));
    run.await.unwrap();
}
