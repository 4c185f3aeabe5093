//! Finds, in what two libvirts say to each other, the reply after which the source never resumes.
//!
//! ```text
//!  source's libvirtd ── call 306 or 217, serial n, cancelled = 0 ──▶ target's libvirtd
//!                    ◀── reply, serial n, status 0 ─────────────────
//! ```
//!
//! It only reads along: whatever comes, it never fails. What is not libvirt's protocol proves nothing,
//! also not later. The frames are those of libvirt's `virnetprotocol.x` and `remote_protocol.x`: length
//! (of all of it), program, version, procedure, type, serial and status, each of 4 bytes, big-endian.

/// Bytes before the arguments.
pub(super) const HEADER: usize = 28;
/// libvirt's longest message (`VIR_NET_MESSAGE_MAX`) and its length.
const LONGEST: u32 = 33_554_432 + 4;
/// libvirt's program for domains (`REMOTE_PROGRAM`).
pub(super) const PROGRAM: u32 = 0x2000_8086;
/// Its version (`REMOTE_PROTOCOL_VERSION`).
pub(super) const VERSION: u32 = 1;
/// The last call of a migration, with parameters and without
/// (`REMOTE_PROC_DOMAIN_MIGRATE_FINISH3_PARAMS`, `REMOTE_PROC_DOMAIN_MIGRATE_FINISH3`).
pub(super) const LAST_CALLS: [u32; 2] = [306, 217];
/// A message is a call.
pub(super) const CALL: u32 = 0;
/// A message is the reply to one.
const REPLY: u32 = 1;
/// What was called has succeeded.
const OK: u32 = 0;

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
        self.calls.feed(bytes, |frame| {
            let is_last = frame.is_domains() && frame.kind == CALL && LAST_CALLS.contains(&frame.procedure);
            if is_last {
                // The later one is the one that counts.
                *awaited = (frame.last == Some(0)).then_some((frame.procedure, frame.serial));
            }
        });
    }

    /// The source's libvirtd is about to be given this. Whether the reply has been seen to its end: by
    /// now, or before.
    pub(super) fn replied(&mut self, bytes: &[u8]) -> bool {
        let (awaited, came) = (self.awaited, &mut self.came);
        self.replies.feed(bytes, |frame| {
            let is_awaited = awaited == Some((frame.procedure, frame.serial));
            *came |= frame.is_domains() && frame.kind == REPLY && frame.status == OK && is_awaited;
        });
        *came
    }
}

/// What is of interest of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    program: u32,
    version: u32,
    procedure: u32,
    kind: u32,
    serial: u32,
    status: u32,
    /// The last 4 bytes of what follows the header.
    last: Option<u32>,
}

impl Frame {
    fn is_domains(&self) -> bool {
        self.program == PROGRAM && self.version == VERSION
    }
}

/// Cuts one direction into messages. Holds no more of one than its header and its last 4 bytes.
#[derive(Debug, Default)]
struct Frames {
    header: [u8; HEADER],
    /// Bytes of the header that are there.
    filled: usize,
    /// Bytes of the body that are still to come.
    left: usize,
    /// Bytes of the body that were seen, 4 at most.
    seen: usize,
    last: [u8; 4],
    /// Something came that is no message.
    broken: bool,
}

impl Frames {
    /// Takes what comes next, in pieces of any size, and tells of each message that is complete.
    fn feed(&mut self, mut bytes: &[u8], mut complete: impl FnMut(Frame)) {
        while !self.broken && !bytes.is_empty() {
            if self.filled < HEADER {
                let (now, later) = bytes.split_at(bytes.len().min(HEADER - self.filled));
                self.header[self.filled..self.filled + now.len()].copy_from_slice(now);
                self.filled += now.len();
                bytes = later;
                if self.filled < HEADER {
                    return;
                }
                match body(self.word(0)) {
                    Some(left) => self.left = left,
                    None => {
                        self.broken = true;
                        return;
                    }
                }
            } else {
                let (now, later) = bytes.split_at(bytes.len().min(self.left));
                self.remember(now);
                self.left -= now.len();
                bytes = later;
            }
            if self.left == 0 {
                complete(self.frame());
                (self.filled, self.seen) = (0, 0);
            }
        }
    }

    fn remember(&mut self, bytes: &[u8]) {
        let new = &bytes[bytes.len().saturating_sub(4)..];
        self.last.rotate_left(new.len());
        self.last[4 - new.len()..].copy_from_slice(new);
        self.seen = (self.seen + new.len()).min(4);
    }

    fn frame(&self) -> Frame {
        Frame {
            program: self.word(1),
            version: self.word(2),
            procedure: self.word(3),
            kind: self.word(4),
            serial: self.word(5),
            status: self.word(6),
            last: (self.seen == 4).then(|| u32::from_be_bytes(self.last)),
        }
    }

    fn word(&self, index: usize) -> u32 {
        let bytes = &self.header[4 * index..4 * index + 4];
        bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
    }
}

/// Bytes that follow the header of a message of this length.
pub(super) fn body(length: u32) -> Option<usize> {
    let length = (length <= LONGEST).then_some(length)?;
    usize::try_from(length).ok()?.checked_sub(HEADER)
}

#[cfg(test)]
mod tests;
