//! Lines of the other tunnel. Only a complete valid message has an effect, whatever data arrives.

use drydock_core::migration::hand_over::Proof;
use proptest::prelude::*;
use tokio::io::AsyncWriteExt;

use super::*;
use crate::tunnel::mutated_lines::mutated_line;

const RECORDED: &str = include_str!("../../../testdata/a233b06/control.jsonl");

fn message() -> impl Strategy<Value = Message> {
    let proof = prop::sample::select(vec![Proof::ReplyConsumed, Proof::SourceStopped, Proof::SourceGone]);
    let release =
        (proof, any::<bool>()).prop_map(|(proof, keep_paused)| Message::Release(GuestRelease { proof, keep_paused }));
    let taken_over = prop::sample::select(vec![TakenOver::Resumed, TakenOver::LeftPaused]);
    prop_oneof![
        any::<u16>().prop_map(|version| Message::Ping { version }),
        any::<u16>().prop_map(|version| Message::Pong { version }),
        release,
        taken_over.prop_map(Message::TakenOver),
        Just(Message::Closed {}),
        "\\PC{0,40}".prop_map(|key| Message::NotUnderstood { key }),
    ]
}

/// Generates a recorded line with a piece removed, duplicated or overwritten.
fn mutated() -> impl Strategy<Value = String> {
    mutated_line(RECORDED.lines().collect(), Just("{\"a\":".repeat(200)), 20)
}

/// Sends the bytes in pieces of this size and ends the stream. Returns the messages, and whether the stream ended
/// normally.
fn received(bytes: &[u8], size: usize) -> (Vec<Message>, bool) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (mut sender, stream) = tokio::io::duplex(size.max(1));
        let mut channel = ControlChannel::new(stream);
        let sending = async {
            // The channel may have ended earlier.
            let _ = sender.write_all(bytes).await;
            drop(sender);
        };
        let receiving = async {
            let mut messages = Vec::new();
            loop {
                match channel.receive().await {
                    Ok(Some(message)) => messages.push(message),
                    end => {
                        drop(channel);
                        return (messages, end.is_ok());
                    }
                }
            }
        };
        tokio::join!(sending, receiving).1
    })
}

fn lines(messages: &[Message]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for message in messages {
        bytes.extend(serde_json::to_vec(message).unwrap());
        bytes.push(b'\n');
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn messages_arrive_as_sent_in_pieces_of_any_size(
        messages in prop::collection::vec(message(), 0..6), size in 1usize..200,
    ) {
        prop_assert_eq!(received(&lines(&messages), size), (messages, true));
    }

    #[test]
    fn cut_line_is_no_message(message in message(), at in any::<prop::sample::Index>()) {
        let line = serde_json::to_string(&message).unwrap();
        let cut = &line[..line.floor_char_boundary(at.index(line.len()))];
        prop_assert!(matches!(Message::of_line(cut), Message::Unknown(_)), "{}", cut);
    }

    #[test]
    fn any_line_is_a_message_or_has_a_short_key(line in prop_oneof![mutated(), "\\PC{0,300}"]) {
        match Message::of_line(&line) {
            Message::Unknown(key) => prop_assert!(key.chars().count() <= MAX_KEY_LENGTH),
            // The parser ignores fields that this version does not know, so only the known fields are written again.
            known => {
                let written = serde_json::to_string(&known).unwrap();
                prop_assert_eq!(Message::of_line(&written), known);
            }
        }
    }

    #[test]
    fn any_bytes_end_the_channel_or_are_read(
        bytes in prop::collection::vec(any::<u8>(), 0..3000), size in 1usize..500,
    ) {
        let (messages, _) = received(&bytes, size);
        let is_known = |message: &Message| !matches!(message, Message::Unknown(_) | Message::NotUnderstood { .. });
        prop_assert!(!messages.iter().any(is_known), "{:?}", messages);
    }
}

#[test]
fn line_that_is_too_long_ends_the_channel() {
    let key = |length| Message::NotUnderstood {
        key: "k".repeat(length),
    };
    let around = serde_json::to_vec(&key(0)).unwrap().len();
    let (longest, longer) = (key(LINE - around), key(LINE - around + 1));
    let ping = Message::Ping { version: 2 };
    let bytes = lines(&[ping.clone(), longest.clone()]);
    assert_eq!(received(&bytes, 100), (vec![ping.clone(), longest], true));
    let bytes = lines(&[ping.clone(), longer, Message::Closed {}]);
    assert_eq!(received(&bytes, 100), (vec![ping.clone()], false));
    let endless = [lines(std::slice::from_ref(&ping)), vec![b'x'; 4 * LINE]].concat();
    assert_eq!(received(&endless, 100), (vec![ping], false));
}

#[test]
fn long_key_of_an_unknown_message_is_cut() {
    let line = format!("{{\"{}\": {{}}}}", "k".repeat(10 * MAX_KEY_LENGTH));
    assert_eq!(Message::of_line(&line), Message::Unknown("k".repeat(MAX_KEY_LENGTH)));
}
