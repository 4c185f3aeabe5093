//! Sees to it that the target lets its guest go on only when the source cannot.
//!
//! ```text
//!  source's libvirtd ── a call of a migration ─────▶│ passes
//!                    ── last call, "not paused" ──▶│ held: how is the guest here?
//!                                                   ├─ switched to post-copy ─▶ as it is: it goes on there
//!                                                   └─ anything else ─────────▶ "paused": it stands still there
//!                    ── anything else ────────────▶│ held: how is the guest here?
//!                                                   ├─ switched to post-copy ─▶ as it is, and all that follows
//!                                                   └─ not ──────────────────▶ the session ends
//! ```
//!
//! libvirt does not take `VIR_MIGRATE_POSTCOPY` together with `VIR_MIGRATE_PAUSED` when it is asked to move
//! a guest. But it is its last call that says whether the target lets the guest go on, and in that call both
//! are what libvirt itself says of a guest that was paused when it began to move. So a migration that may be
//! switched is begun without that flag, and has it in its last call unless it was switched: whoever was
//! not, arrives as all others do, and goes on by proof. One that was switched can never go on at its
//! source, so nothing needs to be proven.
//!
//! This fails closed. What a source's libvirtd sends is passed on only if it is known not to let a guest go on: a
//! later libvirt might have another last call, or other arguments of this one. A guest whose session ends stays
//! at its source.

use drydock_host::rpc::{CALL, FrameParser, HEADER, Header, InvalidLength, MESSAGE, Part};
use thiserror::Error;

use super::final_reply::LAST_CALLS;

mod arguments;

/// The target leaves the guest paused (`VIR_MIGRATE_PAUSED`).
const PAUSED: u32 = 1 << 5;
/// Longest body of a last call that is held, in bytes: libvirt's longest cookie (`REMOTE_MIGRATE_COOKIE_MAX`, 4 MiB)
/// and as much for the parameters.
const LONGEST_HELD: usize = 8 << 20;

/// Calls by which a source's libvirtd opens and closes its connection, asks about the other, and prepares
/// a migration (`enum remote_procedure` of `remote_protocol.x`). None of them lets a guest run. Those of libvirt 9.0
/// and 11.3 are in recorded migrations; the others are the same questions in other versions.
const HARMLESS: [u32; 20] = [
    1,   // CONNECT_OPEN
    2,   // CONNECT_CLOSE
    3,   // CONNECT_GET_TYPE
    4,   // CONNECT_GET_VERSION
    7,   // CONNECT_GET_CAPABILITIES
    23,  // DOMAIN_LOOKUP_BY_NAME
    24,  // DOMAIN_LOOKUP_BY_UUID
    59,  // CONNECT_GET_HOSTNAME
    60,  // CONNECT_SUPPORTS_FEATURE
    66,  // AUTH_LIST
    67,  // AUTH_SASL_INIT
    68,  // AUTH_SASL_START
    69,  // AUTH_SASL_STEP
    70,  // AUTH_POLKIT
    110, // CONNECT_GET_URI
    157, // CONNECT_GET_LIB_VERSION
    214, // DOMAIN_MIGRATE_PREPARE3
    303, // DOMAIN_MIGRATE_PREPARE3_PARAMS
    360, // CONNECT_REGISTER_CLOSE_CALLBACK
    361, // CONNECT_UNREGISTER_CLOSE_CALLBACK
];

/// How the guest is at the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuestLeft {
    /// It has been switched to post-copy: nothing resumes it here.
    Switched,
    /// It may go on here.
    MayReturn,
    /// Its libvirt does not answer.
    Unknown,
}

/// Why something of a source's libvirtd is not passed on: it may let the guest go on at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum NotUnderstood {
    /// It is not cut into frames as libvirt's protocol is.
    #[error("the source's libvirt does not send frames of its protocol: {0}")]
    Frame(InvalidLength),
    /// It belongs to another protocol than that for domains.
    #[error("the source's libvirt uses program {program:#x} in version {version}, which no migration needs")]
    Program {
        /// The program.
        program: u32,
        /// Its version.
        version: u32,
    },
    /// It is no plain call.
    #[error("the source's libvirt sends a frame of type {kind}, where it sends calls (0)")]
    Kind {
        /// The type of the frame.
        kind: u32,
    },
    /// It is a call that no known libvirt makes.
    #[error("the source's libvirt makes a call that no migration is known to need: procedure {procedure}")]
    Procedure {
        /// The procedure.
        procedure: u32,
    },
    /// It is a last call without the flags where they belong.
    #[error("the source's libvirt makes the last call {procedure} with unknown arguments, of {bytes} bytes")]
    Arguments {
        /// The procedure.
        procedure: u32,
        /// Bytes of its arguments.
        bytes: usize,
    },
}

/// What is to be sent on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// What lets no guest go on.
    Other(Vec<u8>),
    /// The call by which the target would let the guest go on. It waits for a decision.
    LetsGoOn(LastCall),
    /// It may let the guest go on, and is the last piece. It is sent on only if the guest has been switched, after
    /// [`LastCalls::pass_all`].
    NotUnderstood(NotUnderstood, Vec<u8>),
}

/// A last call that does not leave the guest paused.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LastCall {
    bytes: Vec<u8>,
    flags_at: usize,
    flags: u32,
}

impl LastCall {
    /// What is sent, as the guest is.
    pub(super) fn decided(mut self, guest: GuestLeft) -> Vec<u8> {
        if guest != GuestLeft::Switched {
            let flags = (self.flags | PAUSED).to_be_bytes();
            self.bytes[self.flags_at..self.flags_at + flags.len()].copy_from_slice(&flags);
        }
        self.bytes
    }
}

/// What becomes of the frame that comes just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    /// It passes as it comes.
    Passes,
    /// It is held until it is complete.
    IsHeld(Header),
}

/// What a source's libvirtd sends, cut so that its last call can be held. What has not come to its end when the
/// connection ends is dropped, if nothing of it has been passed on.
#[derive(Debug, Default)]
pub(super) struct LastCalls {
    parser: FrameParser,
    course: Option<Course>,
    /// A last call, as far as it has come.
    held: Vec<u8>,
    /// A last call has been complete.
    seen: bool,
    /// Something came that is not passed on.
    refused: Option<NotUnderstood>,
    /// Everything passes: the guest has been switched.
    passes_all: bool,
}

impl LastCalls {
    /// Takes what comes next, in pieces of any size. What is not complete comes out later.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) -> Vec<Piece> {
        let mut pieces = Pieces::default();
        if self.passes_all {
            pieces.pass(bytes);
            return pieces.0;
        }
        if let Some(why) = self.refused {
            pieces.0.push(Piece::NotUnderstood(why, bytes.to_vec()));
            return pieces.0;
        }
        loop {
            let refused = match self.parser.next(&mut bytes) {
                Ok(None) => break,
                Ok(Some(part)) => self.part(part, &mut pieces),
                // The other libvirtd hangs up on such a frame, whatever of it arrives.
                Err(error) => Err(NotUnderstood::Frame(error)),
            };
            if let Err(why) = refused {
                self.refused = Some(why);
                let mut rest = std::mem::take(&mut self.held);
                rest.extend_from_slice(bytes);
                pieces.0.push(Piece::NotUnderstood(why, rest));
                break;
            }
        }
        pieces.0
    }

    /// From now on everything passes. What was not passed on so far is left to the caller.
    pub(super) fn pass_all(&mut self) {
        self.passes_all = true;
    }

    /// A last call has been seen, whatever it says.
    pub(super) fn has_seen_last_call(&self) -> bool {
        self.seen
    }

    fn part(&mut self, part: Part<'_>, pieces: &mut Pieces) -> Result<(), NotUnderstood> {
        match (part, self.course) {
            (Part::Header(header), _) => {
                self.held.extend_from_slice(&header.to_bytes());
                let course = course(&header)?;
                self.course = Some(course);
                if course == Course::Passes {
                    pieces.pass(&std::mem::take(&mut self.held));
                }
            }
            (Part::Body(body), Some(Course::IsHeld(_))) => self.held.extend_from_slice(body),
            (Part::Body(body), _) => pieces.pass(body),
            (Part::End, Some(Course::IsHeld(header))) => {
                self.seen = true;
                let arguments = self.held.get(HEADER..).unwrap_or_default();
                let decision = arguments::decision(header.procedure, arguments).ok_or(NotUnderstood::Arguments {
                    procedure: header.procedure,
                    bytes: header.body(),
                })?;
                let bytes = std::mem::take(&mut self.held);
                // One that is cancelled, or leaves the guest paused, lets nothing go on.
                if decision.cancelled || decision.flags & PAUSED != 0 {
                    pieces.pass(&bytes);
                } else {
                    pieces.0.push(Piece::LetsGoOn(LastCall {
                        bytes,
                        flags_at: HEADER + decision.flags_at,
                        flags: decision.flags,
                    }));
                }
            }
            (Part::End, _) => {}
        }
        Ok(())
    }
}

/// What becomes of a frame with this header.
fn course(header: &Header) -> Result<Course, NotUnderstood> {
    if header.is_keepalive() && header.kind == MESSAGE {
        return Ok(Course::Passes);
    }
    if !header.is_remote() {
        return Err(NotUnderstood::Program {
            program: header.program,
            version: header.version,
        });
    }
    if header.kind != CALL {
        return Err(NotUnderstood::Kind { kind: header.kind });
    }
    match header.procedure {
        procedure if LAST_CALLS.contains(&procedure) && header.body() <= LONGEST_HELD => Ok(Course::IsHeld(*header)),
        procedure if LAST_CALLS.contains(&procedure) => Err(NotUnderstood::Arguments {
            procedure,
            bytes: header.body(),
        }),
        procedure if HARMLESS.contains(&procedure) => Ok(Course::Passes),
        procedure => Err(NotUnderstood::Procedure { procedure }),
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
}

#[cfg(test)]
mod tests;
