use proptest::{collection::vec, prelude::*};

use super::*;

/// Both directions of recorded migrations, with their number of frames. `testdata/README.md` describes them.
const RECORDED: [(&str, &[u8], usize); 8] = [
    (
        "bookworm-paused.calls",
        include_bytes!("../../testdata/rpc/bookworm-paused.calls"),
        13,
    ),
    (
        "bookworm-paused.replies",
        include_bytes!("../../testdata/rpc/bookworm-paused.replies"),
        13,
    ),
    (
        "bookworm-refused.calls",
        include_bytes!("../../testdata/rpc/bookworm-refused.calls"),
        12,
    ),
    (
        "bookworm-refused.replies",
        include_bytes!("../../testdata/rpc/bookworm-refused.replies"),
        12,
    ),
    (
        "trixie-paused.calls",
        include_bytes!("../../testdata/rpc/trixie-paused.calls"),
        13,
    ),
    (
        "trixie-paused.replies",
        include_bytes!("../../testdata/rpc/trixie-paused.replies"),
        13,
    ),
    (
        "trixie-post-copy.calls",
        include_bytes!("../../testdata/rpc/trixie-post-copy.calls"),
        13,
    ),
    (
        "trixie-post-copy.replies",
        include_bytes!("../../testdata/rpc/trixie-post-copy.replies"),
        13,
    ),
];

/// Returns the frames of a stream that arrives in these pieces, each frame with its body, and the error that ended it.
fn frames(pieces: &[&[u8]]) -> (Vec<(Header, Vec<u8>)>, Option<InvalidLength>) {
    let mut parser = FrameParser::default();
    let (mut complete, mut open) = (Vec::new(), None);
    for piece in pieces {
        let mut bytes = *piece;
        loop {
            match parser.next(&mut bytes) {
                Ok(None) => break,
                Ok(Some(StreamPart::Header(header))) => open = Some((header, Vec::new())),
                Ok(Some(StreamPart::Body(body))) => {
                    assert!(!body.is_empty());
                    open.as_mut().unwrap().1.extend_from_slice(body);
                }
                Ok(Some(StreamPart::End)) => complete.push(open.take().unwrap()),
                Err(error) => return (complete, Some(error)),
            }
        }
        assert!(bytes.is_empty());
    }
    (complete, None)
}

fn pieces<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places.windows(2).map(|ends| &bytes[ends[0]..ends[1]]).collect()
}

fn bytes_of(frames: &[(Header, Vec<u8>)]) -> Vec<u8> {
    let bytes = frames
        .iter()
        .map(|(header, body)| [&header.to_bytes()[..], body].concat());
    bytes.collect::<Vec<_>>().concat()
}

#[test]
fn recorded_streams_are_frames_of_libvirts_programs() {
    for (name, bytes, count) in RECORDED {
        let (found, error) = frames(&[bytes]);
        assert_eq!((found.len(), error), (count, None), "{name}");
        assert_eq!(bytes_of(&found), bytes, "{name}");
        for (header, body) in found {
            assert!(header.is_remote() || header.is_keepalive(), "{name}: {header:?}");
            assert_eq!(header.body(), body.len(), "{name}: {header:?}");
        }
    }
}

#[test]
fn invalid_length_is_refused_at_last_byte_and_permanently() {
    for length in [0, 1, 27, MAX_FRAME + 1, u32::MAX, u32::from_be_bytes(*b"HTTP")] {
        let expected = InvalidLength {
            length,
            longest: MAX_FRAME,
        };
        let mut parser = FrameParser::default();
        let bytes = length.to_be_bytes();
        assert_eq!(parser.next(&mut &bytes[..3]), Ok(None));
        assert_eq!(parser.next(&mut &bytes[3..]), Err(expected));
        assert_eq!(parser.next(&mut &[0; 28][..]), Err(expected));
        assert_eq!(parser.next(&mut &[][..]), Err(expected));
    }
}

#[test]
fn longest_and_shortest_frames_are_accepted() {
    for (longest, length) in [(MAX_FRAME, MAX_FRAME), (MAX_FRAME, 28), (100, 100), (100, 28)] {
        let mut parser = FrameParser::with_longest(longest);
        let mut bytes = &length.to_be_bytes()[..];
        assert_eq!(parser.next(&mut bytes), Ok(None), "{length} of {longest}");
        let mut parser = FrameParser::with_longest(longest - 1);
        let mut bytes = &longest.to_be_bytes()[..];
        assert!(parser.next(&mut bytes).is_err(), "{longest}");
    }
}

#[test]
fn frame_without_body_ends_after_the_header() {
    let header = Header {
        length: 28,
        program: REMOTE_PROGRAM,
        version: REMOTE_VERSION,
        procedure: 66,
        kind: CALL,
        serial: 1,
        status: OK,
    };
    let bytes = header.to_bytes();
    let (mut parser, mut rest) = (FrameParser::default(), &bytes[..]);
    assert_eq!(parser.next(&mut rest), Ok(Some(StreamPart::Header(header))));
    assert!(rest.is_empty() && !parser.is_between_frames());
    assert_eq!(parser.next(&mut rest), Ok(Some(StreamPart::End)));
    assert!(parser.is_between_frames());
    assert_eq!(parser.next(&mut rest), Ok(None));
}

proptest! {
    #[test]
    fn any_split_of_recorded_streams_gives_the_same_frames(
        which in 0..RECORDED.len(),
        cuts in vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let (_, bytes, _) = RECORDED[which];
        prop_assert_eq!(frames(&pieces(bytes, &cuts)), frames(&[bytes]));
    }

    #[test]
    fn truncated_stream_loses_only_the_last_frame(which in 0..RECORDED.len(), cut in any::<prop::sample::Index>()) {
        let (_, bytes, count) = RECORDED[which];
        let cut = cut.index(bytes.len());
        let (found, error) = frames(&[&bytes[..cut]]);
        prop_assert_eq!(error, None);
        prop_assert!(found.len() < count);
        prop_assert!(bytes.starts_with(&bytes_of(&found)));
    }

    #[test]
    fn garbage_gives_frames_of_the_same_bytes(
        bytes in vec(any::<u8>(), 0..300),
        cuts in vec(any::<prop::sample::Index>(), 0..10),
    ) {
        let (found, _) = frames(&pieces(&bytes, &cuts));
        prop_assert!(bytes.starts_with(&bytes_of(&found)));
        prop_assert_eq!(found, frames(&[&bytes]).0);
    }

    #[test]
    fn any_header_round_trips_through_bytes(bytes in any::<[u8; HEADER]>()) {
        prop_assert_eq!(Header::from_bytes(bytes).to_bytes(), bytes);
    }
}
