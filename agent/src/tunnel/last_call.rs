//! Sees to it that the target lets its guest go on only when the source cannot.
//!
//! ```text
//!  source's libvirtd ── last call, "not paused" ──▶│ held: how is the guest here?
//!                                                   ├─ switched to post-copy ─▶ as it is: it goes on there
//!                                                   └─ anything else ─────────▶ "paused": it stands still there
//! ```
//!
//! libvirt does not take `VIR_MIGRATE_POSTCOPY` together with `VIR_MIGRATE_PAUSED` when it is asked to move
//! a guest. But it is its last call that says whether the target lets the guest go on, and in that call both
//! are what libvirt itself says of a guest that was paused when it began to move. So a migration that may be
//! switched is begun without that flag, and has it in its last call unless it was switched: whoever was
//! not, arrives as all others do, and goes on by proof. One that was switched can never go on at its
//! source, so nothing needs to be proven.

use super::final_reply::{CALL, HEADER, LAST_CALLS, PROGRAM, VERSION, body};

/// The target leaves the guest paused (`VIR_MIGRATE_PAUSED`).
const PAUSED: u32 = 1 << 5;
/// The flags of both calls (as low half of 8 bytes, or as 4) and then `cancelled` are their end.
const FLAGS_FROM_END: usize = 8;
/// Longest last call that is held: libvirt's longest cookie (`REMOTE_MIGRATE_COOKIE_MAX`) and parameters.
const LONGEST_HELD: usize = 8 << 20;

/// How the guest is at the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuestLeft {
    /// It has been switched to post-copy: nothing resumes it here.
    Switched,
    /// It may go on here, or it cannot be told.
    MayReturn,
}

/// What is to be sent on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Whatever else there is.
    Other(Vec<u8>),
    /// The call by which the target would let the guest go on. It waits for an answer.
    LetsGoOn(LastCall),
}

/// A last call that does not leave the guest paused.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LastCall(Vec<u8>);

impl LastCall {
    /// What is sent, as the guest is.
    pub(super) fn decided(mut self, guest: GuestLeft) -> Vec<u8> {
        if guest == GuestLeft::MayReturn {
            let at = self.0.len() - FLAGS_FROM_END;
            let flags = word(&self.0, at) | PAUSED;
            self.0[at..at + 4].copy_from_slice(&flags.to_be_bytes());
        }
        self.0
    }
}

/// What a source's libvirtd says, cut so that its last call can be held.
#[derive(Debug, Default)]
pub(super) struct LastCalls {
    /// The header of a message, as far as it has come, or all of a last call.
    held: Vec<u8>,
    /// Bytes of the present message that are to come and pass.
    passing: usize,
    /// Bytes of a last call that are to come and are held.
    holding: usize,
    /// What comes is not libvirt's protocol: the other libvirtd will not take it for any.
    broken: bool,
}

impl LastCalls {
    /// Takes what comes next, in pieces of any size. What is not complete comes out later.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) -> Vec<Piece> {
        let mut pieces = Pieces::default();
        while !bytes.is_empty() {
            if self.broken || self.passing > 0 {
                let length = if self.broken {
                    bytes.len()
                } else {
                    bytes.len().min(self.passing)
                };
                pieces.pass(&bytes[..length]);
                self.passing -= length.min(self.passing);
                bytes = &bytes[length..];
            } else if self.holding > 0 {
                let (now, later) = bytes.split_at(bytes.len().min(self.holding));
                self.held.extend_from_slice(now);
                self.holding -= now.len();
                bytes = later;
                if self.holding == 0 {
                    pieces.call(std::mem::take(&mut self.held));
                }
            } else {
                let (now, later) = bytes.split_at(bytes.len().min(HEADER - self.held.len()));
                self.held.extend_from_slice(now);
                bytes = later;
                if self.held.len() == HEADER {
                    self.begin(&mut pieces);
                }
            }
        }
        pieces.0
    }

    /// What has not come to its end, when nothing more comes.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// A header is complete.
    fn begin(&mut self, pieces: &mut Pieces) {
        let header = |index: usize| word(&self.held, 4 * index);
        let is_last =
            header(1) == PROGRAM && header(2) == VERSION && LAST_CALLS.contains(&header(3)) && header(4) == CALL;
        match body(header(0)) {
            Some(length) if is_last && (FLAGS_FROM_END..=LONGEST_HELD).contains(&length) => self.holding = length,
            Some(length) => self.passing = length,
            None => self.broken = true,
        }
        if self.holding == 0 {
            pieces.pass(&std::mem::take(&mut self.held));
        }
    }
}

#[derive(Default)]
struct Pieces(Vec<Piece>);

impl Pieces {
    fn pass(&mut self, bytes: &[u8]) {
        match self.0.last_mut() {
            Some(Piece::Other(before)) => before.extend_from_slice(bytes),
            _ => self.0.push(Piece::Other(bytes.to_vec())),
        }
    }

    /// A last call is complete. One that is cancelled, or leaves the guest paused, lets nothing go on.
    fn call(&mut self, call: Vec<u8>) {
        let end = call.len();
        let (flags, cancelled) = (word(&call, end - FLAGS_FROM_END), word(&call, end - 4));
        if cancelled == 0 && flags & PAUSED == 0 {
            self.0.push(Piece::LetsGoOn(LastCall(call)));
        } else {
            self.pass(&call);
        }
    }
}

/// The 4 bytes there; 0 beyond the end.
fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| <[u8; 4]>::try_from(word).ok());
    u32::from_be_bytes(word.unwrap_or_default())
}

#[cfg(test)]
mod tests;
