//! Finds the reply in the traffic between two libvirts after which the source never resumes its guest.
//!
//! ```text
//!  source's libvirtd ── call 306 or 217, serial n, cancelled = 0 ──▶ target's libvirtd
//!                    ◀── reply, serial n, status 0 ─────────────────
//! ```
//!
//! The observation changes no data and cannot fail, whatever the data is. Data that does not follow libvirt's protocol
//! proves nothing, and neither does any data after it.

use drydock_host::rpc::{CALL, FrameParser, Header, OK, REPLY, StreamPart};

/// The last call of a migration, with parameters and without
/// (`REMOTE_PROC_DOMAIN_MIGRATE_FINISH3_PARAMS`, `REMOTE_PROC_DOMAIN_MIGRATE_FINISH3`).
pub(super) const LAST_CALLS: [u32; 2] = [306, 217];

/// Observes one connection between two libvirts.
#[derive(Debug, Default)]
pub(super) struct FinalReply {
    calls: FrameSplitter,
    replies: FrameSplitter,
    /// Procedure and serial of the last call, if the call states that the migration was not cancelled.
    awaited: Option<(u32, u32)>,
    came: bool,
}

impl FinalReply {
    /// Observes data that is about to be forwarded from the source's libvirtd.
    pub(super) fn called(&mut self, bytes: &[u8]) {
        let awaited = &mut self.awaited;
        self.calls.feed(bytes, |header, last| {
            if header.is_remote() && header.kind == CALL && LAST_CALLS.contains(&header.procedure) {
                // A later call replaces an earlier call.
                *awaited = (last == Some(0)).then_some((header.procedure, header.serial));
            }
        });
    }

    /// Observes data that is about to be forwarded to the source's libvirtd. Returns whether the complete reply has
    /// been observed so far.
    pub(super) fn replied(&mut self, bytes: &[u8]) -> bool {
        let (awaited, came) = (self.awaited, &mut self.came);
        self.replies.feed(bytes, |header, _| {
            let is_awaited = awaited == Some((header.procedure, header.serial));
            *came |= header.is_remote() && header.kind == REPLY && header.status == OK && is_awaited;
        });
        *came
    }
}

/// Splits the data of one direction into frames. It stores only the header of a frame and the last 4 bytes of its body.
#[derive(Debug, Default)]
struct FrameSplitter {
    parser: FrameParser,
    /// Header of the current frame.
    header: Option<Header>,
    /// Number of body bytes received so far, at most 4.
    seen: usize,
    last: [u8; 4],
}

impl FrameSplitter {
    /// Feeds the next bytes, in pieces of any size. Calls `complete` for each complete frame, with the last 4 bytes
    /// of its body.
    fn feed(&mut self, mut bytes: &[u8], mut complete: impl FnMut(Header, Option<u32>)) {
        // No frames can follow an invalid length, so nothing can be proven any more.
        while let Ok(Some(part)) = self.parser.next(&mut bytes) {
            match part {
                StreamPart::Header(header) => (self.header, self.seen) = (Some(header), 0),
                StreamPart::Body(body) => self.remember(body),
                StreamPart::End => {
                    let last = (self.seen == 4).then(|| u32::from_be_bytes(self.last));
                    if let Some(header) = self.header.take() {
                        complete(header, last);
                    }
                }
            }
        }
    }

    fn remember(&mut self, bytes: &[u8]) {
        let new = &bytes[bytes.len().saturating_sub(4)..];
        self.last.rotate_left(new.len());
        self.last[4 - new.len()..].copy_from_slice(new);
        self.seen = (self.seen + new.len()).min(4);
    }
}

#[cfg(test)]
mod tests;
