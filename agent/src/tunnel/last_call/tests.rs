use proptest::prelude::*;

use super::*;

const POST_COPY: u32 = 1 << 15;

fn message(words: [u32; 6], body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + body.len()).unwrap();
    let mut message: Vec<u8> = [length]
        .iter()
        .chain(&words)
        .flat_map(|word| word.to_be_bytes())
        .collect();
    message.extend_from_slice(body);
    message
}

/// A last call as libvirt makes it: what is before its flags is of any length.
fn last_call(procedure: u32, before: usize, flags: u32, cancelled: u32) -> Vec<u8> {
    let mut body = vec![b'c'; before];
    body.extend(flags.to_be_bytes());
    body.extend(cancelled.to_be_bytes());
    message([PROGRAM, VERSION, procedure, CALL, 7, 0], &body)
}

/// What comes out when pieces of this size go in, and the guest is so whenever it is asked for; and how often
/// that is.
fn carried(bytes: &[u8], piece: usize, guest: GuestLeft) -> (Vec<u8>, usize) {
    let (mut calls, mut out, mut asked) = (LastCalls::default(), Vec::new(), 0);
    for bytes in bytes.chunks(piece) {
        for piece in calls.feed(bytes) {
            match piece {
                Piece::Other(bytes) => out.extend(bytes),
                Piece::LetsGoOn(call) => {
                    asked += 1;
                    out.extend(call.decided(guest));
                }
            }
        }
    }
    out.extend(calls.rest());
    (out, asked)
}

#[test]
fn a_guest_goes_on_there_only_if_it_was_switched() {
    for procedure in LAST_CALLS {
        for before in [0, 4, 5000] {
            let call = last_call(procedure, before, POST_COPY | 3, 0);
            let paused = last_call(procedure, before, POST_COPY | 3 | PAUSED, 0);
            for piece in [1, 3, 28, 29, 4096, usize::MAX] {
                assert_eq!(carried(&call, piece, GuestLeft::MayReturn), (paused.clone(), 1));
                assert_eq!(carried(&call, piece, GuestLeft::Switched), (call.clone(), 1));
                // What leaves it paused is nobody's question.
                assert_eq!(carried(&paused, piece, GuestLeft::Switched), (paused.clone(), 0));
            }
        }
    }
}

#[test]
fn what_does_not_let_a_guest_go_on_passes_as_it_is() {
    for other in [
        last_call(306, 40, 0, 1),
        message([PROGRAM, VERSION, 306, 1, 7, 0], &[0; 64]),
        message([PROGRAM, VERSION, 305, CALL, 7, 0], &[0; 64]),
        message([PROGRAM + 1, VERSION, 306, CALL, 7, 0], &[0; 64]),
        message([PROGRAM, VERSION + 1, 306, CALL, 7, 0], &[0; 64]),
        message([PROGRAM, VERSION, 306, CALL, 7, 0], &[0; 4]),
        vec![0; 100],
        vec![0xff; 100],
        b"GET / HTTP/1.1".to_vec(),
    ] {
        assert_eq!(carried(&other, 7, GuestLeft::MayReturn), (other.clone(), 0));
    }
}

#[test]
fn what_comes_before_a_last_call_does_not_wait_for_it() {
    let before = message([PROGRAM, VERSION, 1, CALL, 6, 0], b"before");
    let call = last_call(306, 12, 0, 0);
    let mut both = before.clone();
    both.extend(&call);
    let mut calls = LastCalls::default();
    let pieces = calls.feed(&both);
    assert_eq!(pieces, [Piece::Other(before), Piece::LetsGoOn(LastCall(call))]);
}

proptest! {
    #[test]
    fn nothing_is_lost_or_made_up_but_a_flag(
        messages in prop::collection::vec(
            (prop::sample::select(vec![1, 217, 304, 306]), 0..3_u32, 0..200_usize, any::<[u32; 2]>()),
            0..8,
        ),
        noise in prop::collection::vec(any::<u8>(), 0..50),
        piece in 1..300_usize,
    ) {
        let mut bytes = Vec::new();
        for (procedure, kind, before, [flags, cancelled]) in messages {
            let mut body = vec![1; before];
            body.extend(flags.to_be_bytes());
            body.extend((cancelled % 2).to_be_bytes());
            bytes.extend(message([PROGRAM, VERSION, procedure, kind, 1, 0], &body));
        }
        bytes.extend(noise);
        let (same, asked) = carried(&bytes, piece, GuestLeft::Switched);
        prop_assert_eq!(&same, &bytes);
        let (paused, _) = carried(&bytes, piece, GuestLeft::MayReturn);
        prop_assert_eq!(paused.len(), bytes.len());
        let changed = paused.iter().zip(&bytes).filter(|(after, before)| after != before).count();
        prop_assert_eq!(changed, asked);
        // Nobody is asked twice.
        prop_assert_eq!(carried(&paused, piece, GuestLeft::MayReturn).1, 0);
    }
}
