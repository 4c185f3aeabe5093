//! Finds, in what two libvirts say to each other, the reply after which the source never resumes.
//!
//! ```text
//!  source's libvirtd ── call 306 or 217, serial n, cancelled = 0 ──▶ target's libvirtd
//!                    ◀── reply, serial n, status 0 ─────────────────
//! ```
//!
//! It only reads along: whatever comes, it never fails. What is not libvirt's protocol proves nothing,
//! also not later.

use drydock_host::rpc::{CALL, FrameParser, Header, OK, Part, REPLY};

/// The last call of a migration, with parameters and without
/// (`REMOTE_PROC_DOMAIN_MIGRATE_FINISH3_PARAMS`, `REMOTE_PROC_DOMAIN_MIGRATE_FINISH3`).
pub(super) const LAST_CALLS: [u32; 2] = [306, 217];

/// Reads along on one connection between two libvirts.
#[derive(Debug, Default)]
pub(super) struct FinalReply {
    calls: Frames,
    replies: Frames,
    /// Procedure and serial of the last call, if it says that the migration has not been cancelled.
    awaited: Option<(u32, u32)>,
    came: bool,
}

impl FinalReply {
    /// The source's libvirtd is about to send this.
    pub(super) fn called(&mut self, bytes: &[u8]) {
        let awaited = &mut self.awaited;
        self.calls.feed(bytes, |header, last| {
            if header.is_remote() && header.kind == CALL && LAST_CALLS.contains(&header.procedure) {
                // The later one is the one that counts.
                *awaited = (last == Some(0)).then_some((header.procedure, header.serial));
            }
        });
    }

    /// The source's libvirtd is about to be given this. Whether the reply has been seen to its end: by
    /// now, or before.
    pub(super) fn replied(&mut self, bytes: &[u8]) -> bool {
        let (awaited, came) = (self.awaited, &mut self.came);
        self.replies.feed(bytes, |header, _| {
            let is_awaited = awaited == Some((header.procedure, header.serial));
            *came |= header.is_remote() && header.kind == REPLY && header.status == OK && is_awaited;
        });
        *came
    }
}

/// Cuts one direction into frames. Holds no more of one than its header and its last 4 bytes.
#[derive(Debug, Default)]
struct Frames {
    parser: FrameParser,
    /// The frame that is being read.
    header: Option<Header>,
    /// Bytes of its body that were seen, 4 at most.
    seen: usize,
    last: [u8; 4],
}

impl Frames {
    /// Takes what comes next, in pieces of any size. `complete` gets each frame that is complete, with the last 4
    /// bytes of its body.
    fn feed(&mut self, mut bytes: &[u8], mut complete: impl FnMut(Header, Option<u32>)) {
        // After an invalid length there are no more frames: nothing is proven any more.
        while let Ok(Some(part)) = self.parser.next(&mut bytes) {
            match part {
                Part::Header(header) => (self.header, self.seen) = (Some(header), 0),
                Part::Body(body) => self.remember(body),
                Part::End => {
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
