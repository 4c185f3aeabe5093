use std::fmt::Debug;

use drydock_core::migration::hand_over::{GuestRelease, Proof, TakenOver};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::tunnel::{
    control::Message,
    local::{CallResult, ReplyProgress, Role, ServerMessage, TunnelCall, TunnelRequest},
};

/// Checks that each line can still be parsed and is written unchanged, except for values to which `adds` applies.
fn read<T: Debug + Serialize + DeserializeOwned>(lines: &str, adds: impl Fn(&T) -> bool) -> Vec<T> {
    let read = lines.lines().map(|line| {
        let value: T = serde_json::from_str(line).unwrap();
        let written = serde_json::to_string(&value).unwrap();
        assert_eq!(written != line, adds(&value), "{line}: {written}");
        value
    });
    read.collect()
}

#[test]
fn lines_of_the_previous_release_are_read() {
    let messages = read(include_str!("../../../testdata/a233b06/control.jsonl"), |message| {
        matches!(message, Message::Ping { .. } | Message::Pong { .. })
    });
    let release = |proof, keep_paused| Message::Release(GuestRelease { proof, keep_paused });
    let expected = [
        Message::Ping { version: 1 },
        Message::Pong { version: 1 },
        release(Proof::ReplyConsumed, false),
        release(Proof::SourceStopped, true),
        release(Proof::SourceGone, false),
        Message::TakenOver(TakenOver::Resumed),
        Message::TakenOver(TakenOver::LeftPaused),
        Message::Closed {},
    ];
    assert_eq!(messages, expected);
    let calls: Vec<TunnelRequest> = read(include_str!("../../../testdata/a233b06/calls.jsonl"), |_| false);
    assert_eq!(calls.len(), 7);
    let messages: Vec<ServerMessage> = read(include_str!("../../../testdata/a233b06/answers.jsonl"), |_| false);
    let unknown = |message: &ServerMessage| match message {
        ServerMessage::Sessions(sessions) => sessions.iter().any(|session| {
            session.role == Role::Unknown
                || session.reply == ReplyProgress::Unknown
                || session.released == Some(Proof::Unknown)
        }),
        ServerMessage::Response { result, .. } => *result == CallResult::Unknown,
    };
    assert!(!messages.iter().any(unknown));
}

/// Checks lines for the previous release, which ignores the version in a ping.
#[test]
fn control_lines_are_complete_for_the_previous_release() {
    let ping = serde_json::to_value(Message::Ping { version: 2 }).unwrap();
    assert_eq!(ping, json!({"ping": {"version": 2}}));
    let pong = serde_json::to_value(Message::Pong { version: 2 }).unwrap();
    assert_eq!(pong, json!({"pong": {"version": 2}}));
}

fn unknown<T: Debug + PartialEq + DeserializeOwned>(expected: &T) {
    assert_eq!(
        serde_json::from_value::<T>(json!("valueOfALaterVersion")).unwrap(),
        *expected
    );
}

#[test]
fn values_of_a_later_version_are_unknown() {
    unknown(&Role::Unknown);
    unknown(&ReplyProgress::Unknown);
    unknown(&Proof::Unknown);
    unknown(&TakenOver::Unknown);
    for (line, key) in [
        (r#"{"hibernate":{"seconds":1}}"#, "hibernate"),
        (r#"{"release":{"proof":1}}"#, "release"),
        (r#""hibernate""#, ""),
        ("{", ""),
    ] {
        assert_eq!(Message::of_line(line), Message::Unknown(key.to_owned()), "{line}");
    }
    // A session with values of a later version does not affect the other sessions.
    let sessions = include_str!("../../../testdata/a233b06/answers.jsonl")
        .lines()
        .nth(1)
        .unwrap();
    let later = sessions
        .replacen(r#""role":"source""#, r#""role":"witness""#, 1)
        .replacen("SourceGone", "SourceMelted", 1);
    let ServerMessage::Sessions(sessions) = serde_json::from_str(&later).unwrap() else {
        panic!("{later}");
    };
    assert_eq!((sessions[0].role, sessions[1].role), (Role::Unknown, Role::Target));
    assert_eq!(sessions[1].released, Some(Proof::Unknown));
    let message = r#"{"answer":{"id":7,"result":{"postponed":{}}}}"#;
    let message: ServerMessage = serde_json::from_str(message).unwrap();
    assert_eq!(
        message,
        ServerMessage::Response {
            id: 7,
            result: CallResult::Unknown
        }
    );
    // An unknown call is refused, with the reason.
    assert!(serde_json::from_value::<TunnelCall>(json!({"hibernate": {}})).is_err());
}
