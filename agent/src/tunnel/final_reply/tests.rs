use proptest::{collection::vec, prelude::*};

use drydock_host::rpc::{
    HEADER, KEEPALIVE_PROGRAM, MAX_FRAME as LONGEST, REMOTE_PROGRAM as PROGRAM, REMOTE_VERSION as VERSION,
};

use super::{CALL, FinalReply, REPLY};

/// Returns a message of libvirt's program for domains.
fn message(procedure: u32, kind: u32, serial: u32, status: u32, body: &[u8]) -> Vec<u8> {
    header_of([PROGRAM, VERSION, procedure, kind, serial, status], body)
}

fn header_of(header_of: [u32; 6], body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + body.len()).unwrap();
    let header = [length].into_iter().chain(header_of).flat_map(u32::to_be_bytes);
    header.chain(body.iter().copied()).collect()
}

fn finish(serial: u32, cancelled: u32) -> Vec<u8> {
    let body: Vec<u8> = [7_u32, 0x0102_0304, cancelled]
        .into_iter()
        .flat_map(u32::to_be_bytes)
        .collect();
    message(306, CALL, serial, 0, &body)
}

fn reply(serial: u32) -> Vec<u8> {
    message(306, REPLY, serial, 0, b"a domain")
}

/// Returns whether the messages contain the complete reply. For each message, `true` is the direction to the target.
fn proves(messages: &[(bool, Vec<u8>)]) -> bool {
    let mut follows = FinalReply::default();
    let mut came = false;
    for (to_target, bytes) in messages {
        if *to_target {
            follows.called(bytes);
        } else {
            came = follows.replied(bytes);
        }
    }
    came
}

/// Description, whether the messages prove that the guest runs on the target, and the messages.
type Case = (&'static str, bool, Vec<(bool, Vec<u8>)>);

/// Cases with the reply to the last call, alone, with other messages, and truncated.
fn reply_cases() -> Vec<Case> {
    let keep_alive = header_of([KEEPALIVE_PROGRAM, 1, 306, CALL, 9, 0], b"");
    let without_parameters = message(217, CALL, 9, 0, &[0; 8]);
    vec![
        ("the reply", true, vec![(true, finish(9, 0)), (false, reply(9))]),
        (
            "the reply without parameters",
            true,
            vec![(true, without_parameters), (false, message(217, REPLY, 9, 0, b"x"))],
        ),
        (
            "with others before it",
            true,
            vec![
                (true, message(305, CALL, 8, 0, &[0; 40])),
                (false, message(305, REPLY, 8, 0, &[])),
                (true, finish(9, 0)),
                (false, keep_alive),
                (false, message(305, REPLY, 8, 1, b"error")),
                (false, reply(9)),
            ],
        ),
        (
            "cut short",
            false,
            vec![(true, finish(9, 0)), (false, reply(9)[..35].to_vec())],
        ),
    ]
}

/// Cases with a call that is not a last call, that was cancelled, or that has no reply.
fn call_cases() -> Vec<Case> {
    let call_of_another_program = header_of([PROGRAM + 1, VERSION, 306, CALL, 9, 0], &[0; 4]);
    vec![
        ("no call", false, vec![(false, reply(9))]),
        ("before its call", false, vec![(false, reply(9)), (true, finish(9, 0))]),
        ("cancelled", false, vec![(true, finish(9, 1)), (false, reply(9))]),
        (
            "cancelled later",
            false,
            vec![
                (true, finish(9, 0)),
                (true, finish(10, 1)),
                (false, reply(9)),
                (false, reply(10)),
            ],
        ),
        (
            "a call of another program",
            false,
            vec![(true, call_of_another_program), (false, reply(9))],
        ),
        (
            "a call without arguments",
            false,
            vec![(true, message(306, CALL, 9, 0, &[0; 3])), (false, reply(9))],
        ),
    ]
}

/// Cases with messages other than the successful reply.
fn other_cases() -> Vec<Case> {
    let other_program = header_of([PROGRAM + 1, VERSION, 306, REPLY, 9, 0], b"a domain");
    let other_version = header_of([PROGRAM, 2, 306, REPLY, 9, 0], b"a domain");
    vec![
        ("another serial", false, vec![(true, finish(9, 0)), (false, reply(8))]),
        (
            "another procedure",
            false,
            vec![(true, finish(9, 0)), (false, message(217, REPLY, 9, 0, b"x"))],
        ),
        (
            "a failure",
            false,
            vec![(true, finish(9, 0)), (false, message(306, REPLY, 9, 1, b"x"))],
        ),
        (
            "to be continued",
            false,
            vec![(true, finish(9, 0)), (false, message(306, REPLY, 9, 2, b"x"))],
        ),
        (
            "an event",
            false,
            vec![(true, finish(9, 0)), (false, message(306, 2, 9, 0, b"x"))],
        ),
        (
            "another program",
            false,
            vec![(true, finish(9, 0)), (false, other_program)],
        ),
        (
            "another version",
            false,
            vec![(true, finish(9, 0)), (false, other_version)],
        ),
    ]
}

#[test]
fn only_the_successful_reply_to_the_last_call_proves() {
    let groups = [reply_cases(), call_cases(), other_cases()];
    for (name, expected, messages) in groups.into_iter().flatten() {
        assert_eq!(proves(&messages), expected, "{name}");
    }
}

/// Uses recorded migrations, which `agent/host/testdata/README.md` describes.
#[test]
fn recorded_last_replies_prove_only_when_complete() {
    for (name, calls, replies, expected) in [
        (
            "bookworm-paused",
            &include_bytes!("../../../host/testdata/rpc/bookworm-paused.calls")[..],
            &include_bytes!("../../../host/testdata/rpc/bookworm-paused.replies")[..],
            true,
        ),
        (
            "trixie-paused",
            include_bytes!("../../../host/testdata/rpc/trixie-paused.calls"),
            include_bytes!("../../../host/testdata/rpc/trixie-paused.replies"),
            true,
        ),
        (
            "trixie-post-copy",
            include_bytes!("../../../host/testdata/rpc/trixie-post-copy.calls"),
            include_bytes!("../../../host/testdata/rpc/trixie-post-copy.replies"),
            true,
        ),
        (
            "bookworm-refused",
            include_bytes!("../../../host/testdata/rpc/bookworm-refused.calls"),
            include_bytes!("../../../host/testdata/rpc/bookworm-refused.replies"),
            false,
        ),
    ] {
        let both = |replies: &[u8]| proves(&[(true, calls.to_vec()), (false, replies.to_vec())]);
        assert_eq!(both(replies), expected, "{name}");
        // The two calls that close the connection follow, each with an empty reply.
        let last = replies.len() - 2 * HEADER - 1;
        assert!(!both(&replies[..last]), "{name}, but for its last byte");
    }
}

#[test]
fn invalid_message_prevents_the_proof_permanently() {
    for length in [0, 27, LONGEST + 1, u32::MAX] {
        let garbage = [length.to_be_bytes().to_vec(), vec![0; HEADER - 4]].concat();
        assert!(
            !proves(&[(true, garbage.clone()), (true, finish(9, 0)), (false, reply(9))]),
            "{length}"
        );
        assert!(
            !proves(&[(true, finish(9, 0)), (false, garbage), (false, reply(9))]),
            "{length}"
        );
    }
}

/// Splits the bytes at the given positions.
fn pieces<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places.windows(2).map(|ends| &bytes[ends[0]..ends[1]]).collect()
}

fn any_message() -> impl Strategy<Value = Vec<u8>> {
    let body = vec(prop_oneof![Just(0_u8), any::<u8>()], 0..12);
    let fields = (
        prop_oneof![Just(306_u32), Just(217), Just(305)],
        0_u32..3,
        8_u32..11,
        0_u32..2,
    );
    (fields, body).prop_map(|((procedure, kind, serial, status), body)| message(procedure, kind, serial, status, &body))
}

proptest! {
    #[test]
    fn split_of_reply_does_not_change_result(
        calls in vec(any_message(), 0..5),
        replies in vec(any_message(), 0..5),
        call_cuts in vec(any::<prop::sample::Index>(), 0..20),
        reply_cuts in vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let (calls, replies) = (calls.concat(), replies.concat());
        let whole = proves(&[(true, calls.clone()), (false, replies.clone())]);
        let mut follows = FinalReply::default();
        for piece in pieces(&calls, &call_cuts) {
            follows.called(piece);
        }
        let mut came = Vec::new();
        for piece in pieces(&replies, &reply_cuts) {
            came.push(follows.replied(piece));
        }
        prop_assert_eq!(came.last().copied().unwrap_or(false), whole);
        prop_assert!(came.is_sorted());
    }

    /// The reply counts as received with its last byte, not earlier.
    #[test]
    fn reply_counts_as_seen_at_the_last_byte(cut in 0_usize..100, noise in any_message()) {
        let mut follows = FinalReply::default();
        follows.called(&noise);
        follows.called(&finish(77, 0));
        let bytes = reply(77);
        let cut = cut.min(bytes.len() - 1);
        prop_assert!(!follows.replied(&bytes[..cut]));
        prop_assert!(follows.replied(&bytes[cut..]));
    }

    #[test]
    fn garbage_proves_nothing(calls in vec(any::<u8>(), 0..200), replies in vec(any::<u8>(), 0..200)) {
        prop_assert!(!proves(&[(true, calls.clone()), (false, replies.clone())]));
        prop_assert!(!proves(&[(true, finish(9, 0)), (false, replies)]));
        // With an additional byte in front, the data is not a message.
        prop_assert!(!proves(&[(true, [&[1], &finish(9, 0)[..]].concat()), (false, reply(9))]));
    }
}
