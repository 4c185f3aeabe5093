use proptest::{collection::vec, prelude::*};

use super::*;
use crate::tunnel::final_reply::LAST_CALLS;

const POST_COPY: u32 = 1 << 15;

/// Calls that libvirts sent while they migrated a guest. `agent/host/testdata/README.md` describes them.
const RECORDED: [(&str, &[u8], bool); 4] = [
    (
        "bookworm-paused",
        include_bytes!("../../../host/testdata/rpc/bookworm-paused.calls"),
        false,
    ),
    (
        "bookworm-refused",
        include_bytes!("../../../host/testdata/rpc/bookworm-refused.calls"),
        false,
    ),
    (
        "trixie-paused",
        include_bytes!("../../../host/testdata/rpc/trixie-paused.calls"),
        false,
    ),
    (
        "trixie-post-copy",
        include_bytes!("../../../host/testdata/rpc/trixie-post-copy.calls"),
        true,
    ),
];

fn header(procedure: u32, kind: u32) -> Header {
    Header {
        length: 28,
        program: drydock_host::rpc::REMOTE_PROGRAM,
        version: drydock_host::rpc::REMOTE_VERSION,
        procedure,
        kind,
        serial: 7,
        status: 0,
    }
}

fn message(header: Header, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + body.len()).unwrap();
    [&Header { length, ..header }.to_bytes()[..], body].concat()
}

/// Encodes bytes with their length in front, as in XDR.
fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut all = u32::try_from(bytes.len()).unwrap().to_be_bytes().to_vec();
    all.extend_from_slice(bytes);
    all.resize(all.len().next_multiple_of(4), 0);
    all
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Returns a last call as libvirt encodes it, with a cookie of this length.
fn last_call(procedure: u32, cookie: usize, flags: u32, cancelled: u32) -> Vec<u8> {
    let cookie = opaque(&vec![b'c'; cookie]);
    let before = match procedure {
        306 => [
            words(&[7]),
            [opaque(b"bandwidth"), words(&[4, 0, 8])].concat(),
            [opaque(b"migrate_disks"), words(&[7]), opaque(b"vda")].concat(),
            [opaque(b"listen_port"), words(&[1, 9])].concat(),
            [opaque(b"a"), words(&[2, 9])].concat(),
            [opaque(b"bc"), words(&[3, 9, 9])].concat(),
            [opaque(b"def"), words(&[5, 9, 9])].concat(),
            [opaque(b"ghij"), words(&[6, 1])].concat(),
            cookie,
        ]
        .concat(),
        _ => [
            opaque(b"guest"),
            cookie,
            words(&[0, 1]),
            opaque(b"unix:///m"),
            words(&[0]),
        ]
        .concat(),
    };
    message(header(procedure, CALL), &[before, words(&[flags, cancelled])].concat())
}

/// Passes the bytes in pieces of this size, and returns `guest` for each query of the guest's state.
///
/// Returns the output, the number of queries, and the reason if the session ends.
fn carried(bytes: &[u8], piece: usize, guest: GuestLeft) -> (Vec<u8>, usize, Option<NotUnderstood>) {
    let (mut calls, mut out, mut consulted) = (LastCalls::default(), Vec::new(), 0);
    for bytes in bytes.chunks(piece) {
        for piece in calls.feed(bytes) {
            match piece {
                Piece::Other(bytes) => out.extend(bytes),
                Piece::LetsGoOn(call) => {
                    consulted += 1;
                    out.extend(call.decided(guest));
                }
                Piece::NotUnderstood(_, bytes) if guest == GuestLeft::Switched => {
                    consulted += 1;
                    calls.pass_all();
                    out.extend(bytes);
                }
                Piece::NotUnderstood(why, _) => return (out, consulted + 1, Some(why)),
            }
        }
    }
    (out, consulted, None)
}

#[test]
fn guest_resumes_at_target_only_if_switched_to_post_copy() {
    for procedure in LAST_CALLS {
        for cookie in [0, 3, 5000] {
            let call = last_call(procedure, cookie, POST_COPY | 3, 0);
            let paused = last_call(procedure, cookie, POST_COPY | 3 | PAUSED, 0);
            for piece in [1, 3, 28, 29, 4096, usize::MAX] {
                for left in [GuestLeft::MayReturn, GuestLeft::Unknown] {
                    assert_eq!(carried(&call, piece, left), (paused.clone(), 1, None));
                }
                assert_eq!(carried(&call, piece, GuestLeft::Switched), (call.clone(), 1, None));
                // A call that leaves the guest paused needs no decision.
                assert_eq!(carried(&paused, piece, GuestLeft::Switched), (paused.clone(), 0, None));
            }
        }
    }
}

#[test]
fn recorded_calls_pass_but_for_one_flag() {
    for (name, bytes, held) in RECORDED {
        for piece in [1, 1000, usize::MAX] {
            let (same, consulted, why) = carried(bytes, piece, GuestLeft::Switched);
            assert_eq!((&same[..], consulted, why), (bytes, usize::from(held), None), "{name}");
            let (paused, consulted, why) = carried(bytes, piece, GuestLeft::MayReturn);
            assert_eq!((consulted, why), (usize::from(held), None), "{name}");
            let changed = paused.iter().zip(bytes).filter(|(after, before)| after != before);
            assert_eq!(changed.count(), usize::from(held), "{name}");
            assert!(server(&paused).is_empty(), "{name}");
        }
    }
    assert_eq!(server(RECORDED[3].1), [306]);
}

#[test]
fn calls_that_resume_no_guest_pass_unchanged() {
    let keepalive = Header {
        program: drydock_host::rpc::KEEPALIVE_PROGRAM,
        ..header(1, MESSAGE)
    };
    for other in [
        last_call(306, 40, 0, 1),
        last_call(217, 40, 0, 1),
        message(header(303, CALL), &[0; 64]),
        message(header(60, CALL), &[0, 0, 0, 4]),
        message(header(66, CALL), &[]),
        message(keepalive, &[]),
    ] {
        assert_eq!(carried(&other, 7, GuestLeft::MayReturn), (other.clone(), 0, None));
    }
}

/// Description, bytes that are not a known last call, and the expected reason.
type Case = (&'static str, Vec<u8>, NotUnderstood);

/// Cases with calls that resume a guest in another way.
fn procedure_cases() -> Vec<Case> {
    let procedure = |procedure| NotUnderstood::Procedure { procedure };
    vec![
        ("resume", message(header(28, CALL), &[0; 32]), procedure(28)),
        (
            "the first last call",
            message(header(63, CALL), &[0; 32]),
            procedure(63),
        ),
        (
            "the second last call",
            message(header(109, CALL), &[0; 32]),
            procedure(109),
        ),
        (
            "a later last call",
            message(header(454, CALL), &[0; 32]),
            procedure(454),
        ),
    ]
}

/// Cases with last calls that have other arguments.
fn argument_cases() -> Vec<Case> {
    let arguments = |bytes| NotUnderstood::Arguments { procedure: 306, bytes };
    let mut longer = last_call(306, 4, 0, 0)[HEADER..].to_vec();
    longer.extend([0; 4]);
    let too_long = Header {
        length: u32::try_from(LONGEST_HELD + HEADER).unwrap() + 1,
        ..header(306, CALL)
    };
    vec![
        ("no arguments", message(header(306, CALL), &[]), arguments(0)),
        (
            "a part of the arguments",
            message(header(306, CALL), &[0; 12]),
            arguments(12),
        ),
        (
            "one argument more",
            message(header(306, CALL), &longer),
            arguments(longer.len()),
        ),
        (
            "too many parameters",
            message(header(306, CALL), &words(&[65, 0, 0])),
            arguments(12),
        ),
        (
            "a parameter of no type",
            message(header(306, CALL), &words(&[1, 0, 8, 0, 0, 0, 0])),
            arguments(28),
        ),
        (
            "a cookie beyond the end",
            message(header(306, CALL), &words(&[0, u32::MAX, 0, 0])),
            arguments(16),
        ),
        (
            "longer than any",
            too_long.to_bytes().to_vec(),
            arguments(LONGEST_HELD + 1),
        ),
    ]
}

/// Cases with last calls that have another header.
fn header_cases() -> Vec<Case> {
    let program = |program, version| NotUnderstood::Program { program, version };
    let with = |change: fn(&mut Header)| {
        let mut header = header(306, CALL);
        change(&mut header);
        message(header, &[0; 16])
    };
    vec![
        (
            "a call with descriptors",
            with(|header| header.kind = 4),
            NotUnderstood::Kind { kind: 4 },
        ),
        (
            "another program",
            with(|header| header.program += 1),
            program(0x2000_8087, 1),
        ),
        (
            "another version",
            with(|header| header.version = 2),
            program(0x2000_8086, 2),
        ),
        (
            "zeros",
            vec![0; 100],
            NotUnderstood::Frame(InvalidLength {
                length: 0,
                longest: 33_554_436,
            }),
        ),
    ]
}

#[test]
fn anything_else_is_held_unless_the_guest_was_switched() {
    let groups = [procedure_cases(), argument_cases(), header_cases()];
    for (name, bytes, why) in groups.into_iter().flatten() {
        assert!(!why.to_string().is_empty());
        for piece in [1, 7, usize::MAX] {
            let (out, consulted, refused) = carried(&bytes, piece, GuestLeft::MayReturn);
            assert_eq!((out, consulted, refused), (Vec::new(), 1, Some(why)), "{name}");
            let (out, consulted, refused) = carried(&bytes, piece, GuestLeft::Switched);
            assert_eq!((consulted, refused), (1, None), "{name}");
            // The header of an invalid frame is not forwarded.
            assert!(bytes.ends_with(&out) && out.len() + HEADER >= bytes.len(), "{name}");
        }
    }
}

#[test]
fn data_before_a_last_call_passes_without_wait() {
    let before = message(header(1, CALL), b"before");
    let call = last_call(306, 12, 0, 0);
    let mut calls = LastCalls::default();
    let pieces = calls.feed(&[&before[..], &call].concat());
    assert_eq!(pieces.len(), 2);
    assert_eq!(pieces[0], Piece::Other(before));
    assert!(matches!(&pieces[1], Piece::LetsGoOn(held) if held.bytes == call));
    assert!(calls.has_seen_last_call());
}

/// Returns the calls in a stream with which the receiving libvirtd resumes a guest.
///
/// Decodes the calls as libvirtd does: from the start of the arguments, regardless of the data after them.
fn server(mut stream: &[u8]) -> Vec<u32> {
    let mut found = Vec::new();
    while let Some((header, rest)) = stream.split_first_chunk() {
        let header = Header::from_bytes(*header);
        let Some((body, rest)) = rest.split_at_checked(header.body()) else {
            break;
        };
        stream = rest;
        let resumes = match header.procedure {
            _ if !header.is_remote() || ![0, 4].contains(&header.kind) => false,
            306 => resumed_by_306(body).unwrap_or(false),
            217 => resumed_by_217(body).unwrap_or(false),
            procedure => !HARMLESS.contains(&procedure),
        };
        if resumes {
            found.push(header.procedure);
        }
    }
    found
}

fn take(body: &mut &[u8], length: usize) -> Option<Vec<u8>> {
    let (now, later) = body.split_at_checked(length)?;
    *body = later;
    Some(now.to_vec())
}

fn take_word(body: &mut &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(take(body, 4)?.try_into().unwrap()))
}

fn take_opaque(body: &mut &[u8]) -> Option<Vec<u8>> {
    let length = take_word(body)? as usize;
    let bytes = take(body, length)?;
    take(body, length.next_multiple_of(4) - length)?;
    Some(bytes)
}

fn ends_as_resume(body: &mut &[u8]) -> Option<bool> {
    let (flags, cancelled) = (take_word(body)?, take_word(body)?);
    Some(cancelled == 0 && flags & PAUSED == 0)
}

fn resumed_by_306(mut body: &[u8]) -> Option<bool> {
    let body = &mut body;
    for _ in 0..take_word(body)? {
        take_opaque(body)?;
        match take_word(body)? {
            1 | 2 | 6 => drop(take_word(body)?),
            3..=5 => drop(take(body, 8)?),
            7 => drop(take_opaque(body)?),
            _ => return None,
        }
    }
    take_opaque(body)?;
    ends_as_resume(body)
}

fn resumed_by_217(mut body: &[u8]) -> Option<bool> {
    let body = &mut body;
    take_opaque(body)?;
    take_opaque(body)?;
    for _ in 0..2 {
        if take_word(body)? != 0 {
            take_opaque(body)?;
        }
    }
    take_word(body)?;
    ends_as_resume(body)
}

proptest! {
    /// No mutation of libvirt's data resumes a guest that was not switched.
    #[test]
    fn mutated_calls_never_resume_a_guest(
        which in 0..RECORDED.len() + 2,
        changes in vec((any::<prop::sample::Index>(), prop_oneof![0_u8..3, any::<u8>()], 0_usize..4), 0..8),
        piece in 1..3000_usize,
    ) {
        let mut bytes = match RECORDED.get(which) {
            Some((_, bytes, _)) => bytes.to_vec(),
            None => last_call(LAST_CALLS[which - RECORDED.len()], 9, POST_COPY, 0),
        };
        for (place, byte, how) in changes {
            let at = place.index(bytes.len());
            match how {
                0 => bytes.insert(at, byte),
                1 if bytes.len() > 1 => drop(bytes.remove(at)),
                2 => bytes.truncate(at.max(1)),
                _ => bytes[at] = byte,
            }
        }
        let (out, _, _) = carried(&bytes, piece, GuestLeft::MayReturn);
        prop_assert_eq!(server(&out), Vec::<u32>::new());
    }

    #[test]
    fn nothing_is_lost_or_made_up_but_a_flag(
        messages in vec((prop::sample::select(vec![1, 217, 303, 306]), 0..200_usize, any::<[u32; 2]>()), 0..8),
        piece in 1..300_usize,
    ) {
        let mut bytes = Vec::new();
        for (procedure, length, [flags, cancelled]) in messages {
            bytes.extend(if LAST_CALLS.contains(&procedure) {
                last_call(procedure, length, flags, cancelled % 2)
            } else {
                message(header(procedure, CALL), &vec![1; length])
            });
        }
        let (same, consulted, why) = carried(&bytes, piece, GuestLeft::Switched);
        prop_assert_eq!((&same, why), (&bytes, None));
        let (paused, _, _) = carried(&bytes, piece, GuestLeft::MayReturn);
        prop_assert_eq!(paused.len(), bytes.len());
        let changed = paused.iter().zip(&bytes).filter(|(after, before)| after != before).count();
        prop_assert_eq!(changed, consulted);
        // A call that leaves the guest paused needs no further decision.
        prop_assert_eq!(carried(&paused, piece, GuestLeft::MayReturn).1, 0);
    }
}
