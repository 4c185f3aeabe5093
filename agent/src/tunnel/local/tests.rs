//! Lines between an agent and a tunnel of its node. Each written message can be parsed, and all other lines are errors.

use proptest::prelude::*;
use serde_json::Map;

use super::*;
use crate::tunnel::mutated_lines::mutated_line;

const CALLS: &str = include_str!("../../../testdata/a233b06/calls.jsonl");
const MESSAGES: &str = include_str!("../../../testdata/a233b06/answers.jsonl");

fn proof() -> impl Strategy<Value = Proof> {
    prop::sample::select(vec![Proof::ReplyConsumed, Proof::SourceStopped, Proof::SourceGone])
}

fn role() -> impl Strategy<Value = Role> {
    prop::sample::select(vec![Role::Source, Role::Target])
}

fn spec() -> impl Strategy<Value = SessionSpec> {
    ("\\PC{0,40}", role(), "\\PC{0,40}", "\\PC{0,40}").prop_map(|(migration, role, pod_uid, domain)| SessionSpec {
        migration,
        role,
        pod_uid,
        domain,
    })
}

fn request() -> impl Strategy<Value = TunnelRequest> {
    let peer = ("[0-9a-f]{0,64}", prop::option::of("\\PC{0,40}"))
        .prop_map(|(fingerprint, address)| TunnelPeer { fingerprint, address });
    let uid = "\\PC{0,40}";
    let call = prop_oneof![
        spec().prop_map(TunnelCall::Prepare),
        (uid, peer).prop_map(|(migration, peer)| TunnelCall::Pair { migration, peer }),
        (uid, any::<bool>()).prop_map(|(migration, keep_paused)| TunnelCall::KeepPaused { migration, keep_paused }),
        (uid, proof()).prop_map(|(migration, proof)| TunnelCall::Release { migration, proof }),
        uid.prop_map(|migration| TunnelCall::Close { migration }),
    ];
    (any::<u64>(), call).prop_map(|(id, call)| TunnelRequest { id, call })
}

fn session() -> impl Strategy<Value = SessionState> {
    let reply = prop::sample::select(vec![
        ReplyProgress::None,
        ReplyProgress::Forwarded,
        ReplyProgress::Consumed,
    ]);
    let flags = any::<[bool; 6]>();
    let text = || prop::option::of("\\PC{0,40}");
    (
        spec(),
        flags,
        prop::option::of(any::<u16>()),
        any::<[u64; 2]>(),
        reply,
        prop::option::of(proof()),
        text(),
        text(),
    )
        .prop_map(
            |(spec, flags, peer_version, bytes, reply, released, trouble, ended)| SessionState {
                migration: spec.migration,
                role: spec.role,
                pod_uid: spec.pod_uid,
                domain: spec.domain,
                paired: flags[0],
                connected: flags[1],
                peer_version,
                sent: bytes[0],
                received: bytes[1],
                reply,
                released,
                keep_paused: flags[5],
                acknowledged: flags[2],
                resumed: flags[3],
                trouble,
                ended,
                holds_last_call: flags[4],
            },
        )
}

fn server_message() -> impl Strategy<Value = ServerMessage> {
    let prepared = ("[0-9a-f]{64}", "\\PC{0,40}")
        .prop_map(|(fingerprint, address)| CallResult::Prepared(Prepared { fingerprint, address }));
    let refused =
        ("[A-Z][A-Za-z]{0,20}", "\\PC{0,80}").prop_map(|(reason, message)| CallResult::Refused { reason, message });
    let result = prop_oneof![prepared, Just(CallResult::Done {}), refused];
    prop_oneof![
        prop::collection::vec(session(), 0..4).prop_map(ServerMessage::Sessions),
        (any::<u64>(), result).prop_map(|(id, result)| ServerMessage::Response { id, result }),
    ]
}

/// Generates a recorded line with a piece removed, duplicated or overwritten.
fn mutated() -> impl Strategy<Value = String> {
    let lines = CALLS.lines().chain(MESSAGES.lines()).collect();
    mutated_line(lines, Just("[".repeat(1000)), 40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn request_is_read_as_written(request in request()) {
        let line = serde_json::to_string(&request).unwrap();
        prop_assert!(!line.contains('\n'));
        prop_assert_eq!(serde_json::from_str::<TunnelRequest>(&line).unwrap(), request);
    }

    #[test]
    fn server_message_is_read_as_written(message in server_message()) {
        let line = serde_json::to_string(&message).unwrap();
        prop_assert!(!line.contains('\n'));
        prop_assert_eq!(serde_json::from_str::<ServerMessage>(&line).unwrap(), message);
    }

    #[test]
    fn cut_line_is_an_error(request in request(), message in server_message(), at in any::<prop::sample::Index>()) {
        let line = serde_json::to_string(&request).unwrap();
        let cut = &line[..line.floor_char_boundary(at.index(line.len()))];
        prop_assert!(serde_json::from_str::<TunnelRequest>(cut).is_err(), "{}", cut);
        let line = serde_json::to_string(&message).unwrap();
        let cut = &line[..line.floor_char_boundary(at.index(line.len()))];
        prop_assert!(serde_json::from_str::<ServerMessage>(cut).is_err(), "{}", cut);
    }

    #[test]
    fn any_line_is_read_alike_after_a_write(line in prop_oneof![mutated(), "\\PC{0,300}"]) {
        if let Ok(request) = serde_json::from_str::<TunnelRequest>(&line) {
            let written = serde_json::to_string(&request).unwrap();
            prop_assert_eq!(serde_json::from_str::<TunnelRequest>(&written).unwrap(), request);
        }
        // A result of a later version can be parsed, but is never written.
        let _ = serde_json::from_str::<ServerMessage>(&line);
    }

    #[test]
    fn any_bytes_are_an_error(bytes in prop::collection::vec(any::<u8>(), 0..1000)) {
        prop_assert!(serde_json::from_slice::<TunnelRequest>(&bytes).is_err());
        prop_assert!(serde_json::from_slice::<ServerMessage>(&bytes).is_err());
    }
}

/// Removes each field of an object in turn. Returns the remaining object and the name of the removed field.
fn without_each(object: &Map<String, Value>) -> impl Iterator<Item = (Value, &String)> {
    object.keys().map(|name| {
        let mut rest = object.clone();
        rest.remove(name);
        (Value::Object(rest), name)
    })
}

#[test]
fn missing_field_is_named_by_the_error() {
    for line in CALLS.lines() {
        let request: Value = serde_json::from_str(line).unwrap();
        for (rest, name) in without_each(request.as_object().unwrap()) {
            let error = serde_json::from_value::<TunnelRequest>(rest).unwrap_err();
            assert!(error.to_string().contains(name), "{line}: {name}: {error}");
        }
        let (call, fields) = request["call"].as_object().unwrap().iter().next().unwrap();
        for (rest, name) in without_each(fields.as_object().unwrap()) {
            let mut changed = request.clone();
            changed["call"][call] = rest;
            let error = serde_json::from_value::<TunnelRequest>(changed).unwrap_err();
            assert!(error.to_string().contains(name), "{line}: {name}: {error}");
        }
    }
}
