//! Limits on the size and rate of libvirt's messages, enforced before libvirt's client receives the messages.
//!
//! libvirt's client itself accepts lengths up to 32 MiB ([`MAX_FRAME`](crate::rpc::MAX_FRAME)) and reads for as long as
//! data arrives.

use tokio::time::Instant;

use super::CloseReason;
use crate::{
    document::MAX_BYTES,
    rpc::{FrameParser, MESSAGE, StreamPart},
};

/// Maximum number of events in a burst. A guest that starts, migrates or stops causes only a few events.
const BURST: u32 = 200;

/// Maximum average number of events per second.
const PER_SECOND: u32 = 50;

/// Tracks the messages of a stream and enforces the limits.
#[derive(Debug)]
pub(super) struct FrameTracker {
    parser: FrameParser,
    /// Number of events that may arrive now (token bucket).
    allowed: u32,
    /// Time of the last refill of `allowed`.
    counted: Instant,
}

impl FrameTracker {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            parser: FrameParser::with_longest(u32::try_from(MAX_BYTES).unwrap_or(u32::MAX)),
            allowed: BURST,
            counted: now,
        }
    }

    /// Processes the next bytes of the stream, in pieces of any size.
    ///
    /// # Errors
    /// Returns the reason why the connection has to be closed.
    pub(super) fn take(&mut self, mut bytes: &[u8], now: Instant) -> Result<(), CloseReason> {
        while let Some(part) = self.parser.next(&mut bytes).map_err(|_| CloseReason::Garbage)? {
            // Events and keep-alives are messages without a call.
            if let StreamPart::Header(header) = part
                && header.kind == MESSAGE
            {
                self.count(now)?;
            }
        }
        Ok(())
    }

    fn count(&mut self, now: Instant) -> Result<(), CloseReason> {
        let seconds = now.saturating_duration_since(self.counted).as_secs();
        if seconds > 0 {
            let more = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(PER_SECOND);
            self.allowed = self.allowed.saturating_add(more).min(BURST);
            self.counted = now;
        }
        self.allowed = self.allowed.checked_sub(1).ok_or(CloseReason::TooManyEvents)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::rpc::HEADER;

    fn message(length: u32, kind: u32) -> Vec<u8> {
        let named_enum = [length, 0x2000_8086, 1, 1, kind, 0, 0];
        let mut bytes: Vec<u8> = named_enum.iter().flat_map(|name| name.to_be_bytes()).collect();
        bytes.resize((length as usize).max(HEADER), 0xff);
        bytes
    }

    #[test]
    fn messages_pass_in_pieces_of_any_size() {
        let stream: Vec<u8> = [(28, 1), (29, 1), (5000, 2), (28, 2)]
            .iter()
            .flat_map(|(length, kind)| message(*length, *kind))
            .collect();
        for size in [1, 3, 27, 28, 29, 4096, stream.len()] {
            let now = Instant::now();
            let mut frames = FrameTracker::new(now);
            for piece in stream.chunks(size) {
                assert_eq!(frames.take(piece, now), Ok(()), "in pieces of {size}");
            }
            assert!(frames.parser.is_between_frames());
            assert_eq!(frames.allowed, BURST - 2);
        }
    }

    #[test]
    fn invalid_frame_lengths_end_the_connection() {
        let largest = u32::try_from(MAX_BYTES).unwrap();
        for length in [0, 27, largest + 1, u32::MAX, u32::from_be_bytes(*b"HTTP")] {
            let mut frames = FrameTracker::new(Instant::now());
            let taken = frames.take(&length.to_be_bytes(), Instant::now());
            assert_eq!(taken, Err(CloseReason::Garbage), "{length}");
        }
        let mut frames = FrameTracker::new(Instant::now());
        assert_eq!(frames.take(&largest.to_be_bytes(), Instant::now()), Ok(()));
    }

    #[test]
    fn flood_of_events_ends_the_connection_slow_events_do_not() {
        let start = Instant::now();
        let event = message(28, MESSAGE);
        let mut frames = FrameTracker::new(start);
        let mut passed = 0;
        while frames.take(&event, start).is_ok() {
            passed += 1;
        }
        assert_eq!(passed, BURST);
        let mut frames = FrameTracker::new(start);
        for second in 0..100 {
            for _ in 0..PER_SECOND {
                assert_eq!(frames.take(&event, start + Duration::from_secs(second)), Ok(()));
            }
        }
        // Responses to calls are not counted.
        let mut frames = FrameTracker::new(start);
        for _ in 0..10 * BURST {
            assert_eq!(frames.take(&message(28, 1), start), Ok(()));
        }
    }
}
