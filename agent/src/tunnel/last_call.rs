//! Ensures that the target resumes its guest only when the source cannot.
//!
//! ```text
//!  source's libvirtd ── a call of a migration ─────▶│ passes
//!                    ── last call, "not paused" ──▶│ held: state of the guest here?
//!                                                   ├─ switched to post-copy ─▶ unchanged: it is resumed there
//!                                                   └─ anything else ─────────▶ "paused": it stays paused there
//!                    ── anything else ────────────▶│ held: state of the guest here?
//!                                                   ├─ switched to post-copy ─▶ unchanged, and all that follows
//!                                                   └─ not ──────────────────▶ the session ends
//! ```
//!
//! libvirt rejects `VIR_MIGRATE_POSTCOPY` together with `VIR_MIGRATE_PAUSED` in a request to migrate a guest. But its
//! last call decides whether the target resumes the guest, and for a guest that was paused when its migration began,
//! libvirt itself sets both flags in that call. So a migration that may be switched to post-copy starts without
//! `VIR_MIGRATE_PAUSED`, and the flag is added to its last call unless the guest was switched. A guest that was not
//! switched arrives paused like all others, and is resumed by proof. A guest that was switched can never resume at
//! its source, so no proof is needed.
//!
//! This fails closed. Data from a source's libvirtd is passed on only if it is known not to resume a guest: a later
//! libvirt might have another last call, or other arguments for this one. A guest whose session ends stays at its
//! source.

use drydock_host::rpc::{CALL, FrameParser, HEADER, Header, InvalidLength, MESSAGE, StreamPart};
use thiserror::Error;

use super::final_reply::LAST_CALLS;

mod arguments;

/// Flag that makes the target leave the guest paused (`VIR_MIGRATE_PAUSED`).
const PAUSED: u32 = 1 << 5;
/// Maximum length of the body of a held last call, in bytes: libvirt's longest cookie (`REMOTE_MIGRATE_COOKIE_MAX`, 4
/// MiB) and the same amount for the parameters.
const LONGEST_HELD: usize = 8 << 20;

/// Calls by which a source's libvirtd opens and closes its connection, queries the other libvirtd, and prepares a
/// migration (`enum remote_procedure` of `remote_protocol.x`). None of them starts or resumes a guest. The calls of
/// libvirt 9.0 and 11.3 occur in recorded migrations; the others are the same queries in other versions.
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

/// The state of the guest at the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuestLeft {
    /// It has been switched to post-copy: it can never resume here.
    Switched,
    /// It may resume here.
    MayReturn,
    /// Its libvirt does not respond.
    Unknown,
}

/// Why data from a source's libvirtd is not passed on: it may resume the guest at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum NotUnderstood {
    /// It is not divided into frames of libvirt's protocol.
    #[error("the source's libvirt does not send frames of its protocol: {0}")]
    Frame(InvalidLength),
    /// It belongs to a protocol other than the one for domains.
    #[error("the source's libvirt uses program {program:#x} in version {version}, which no migration needs")]
    Program {
        /// The program.
        program: u32,
        /// Its version.
        version: u32,
    },
    /// It is not a plain call.
    #[error("the source's libvirt sends a frame of type {kind}, where it sends calls (0)")]
    Kind {
        /// The type of the frame.
        kind: u32,
    },
    /// It is a call that no known libvirt makes during a migration.
    #[error("the source's libvirt makes a call that no migration is known to need: procedure {procedure}")]
    Procedure {
        /// The procedure.
        procedure: u32,
    },
    /// It is a last call whose flags are not where they belong.
    #[error("the source's libvirt makes the last call {procedure} with unknown arguments, of {bytes} bytes")]
    Arguments {
        /// The procedure.
        procedure: u32,
        /// Size of its arguments in bytes.
        bytes: usize,
    },
}

/// A piece of data to forward.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Data that resumes no guest.
    Other(Vec<u8>),
    /// The call that would make the target resume the guest. It waits for a decision.
    LetsGoOn(LastCall),
    /// Data that may resume the guest. It is the last piece, and is forwarded only if the guest has been switched,
    /// after [`LastCalls::pass_all`].
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
    /// Returns the bytes to send, depending on the state of the guest.
    pub(super) fn decided(mut self, guest: GuestLeft) -> Vec<u8> {
        if guest != GuestLeft::Switched {
            let flags = (self.flags | PAUSED).to_be_bytes();
            self.bytes[self.flags_at..self.flags_at + flags.len()].copy_from_slice(&flags);
        }
        self.bytes
    }
}

/// The treatment of the current frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameCourse {
    /// It is forwarded as it arrives.
    Passes,
    /// It is held until it is complete.
    IsHeld(Header),
}

/// Splits the data from a source's libvirtd so that its last call can be held. A frame that is incomplete when the
/// connection ends is dropped, unless a part of it has been forwarded.
#[derive(Debug, Default)]
pub(super) struct LastCalls {
    parser: FrameParser,
    course: Option<FrameCourse>,
    /// The received part of a last call.
    held: Vec<u8>,
    /// Whether a last call has been received completely.
    seen: bool,
    /// Why data is no longer forwarded, if so.
    refused: Option<NotUnderstood>,
    /// Whether all data is forwarded, because the guest has been switched.
    passes_all: bool,
}

impl LastCalls {
    /// Feeds the next bytes, in pieces of any size. Bytes that are not complete are returned later.
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
                // libvirtd at the target closes the connection on such a frame, however much of it arrives.
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

    /// Forwards all data from now on. The caller is responsible for data that was not forwarded so far.
    pub(super) fn pass_all(&mut self) {
        self.passes_all = true;
    }

    /// Returns whether a last call has been seen, whatever its content.
    pub(super) fn has_seen_last_call(&self) -> bool {
        self.seen
    }

    fn part(&mut self, part: StreamPart<'_>, pieces: &mut Pieces) -> Result<(), NotUnderstood> {
        match (part, self.course) {
            (StreamPart::Header(header), _) => {
                self.held.extend_from_slice(&header.to_bytes());
                let course = course(&header)?;
                self.course = Some(course);
                if course == FrameCourse::Passes {
                    pieces.pass(&std::mem::take(&mut self.held));
                }
            }
            (StreamPart::Body(body), Some(FrameCourse::IsHeld(_))) => self.held.extend_from_slice(body),
            (StreamPart::Body(body), _) => pieces.pass(body),
            (StreamPart::End, Some(FrameCourse::IsHeld(header))) => {
                self.seen = true;
                let arguments = self.held.get(HEADER..).unwrap_or_default();
                let decision = arguments::decision(header.procedure, arguments).ok_or(NotUnderstood::Arguments {
                    procedure: header.procedure,
                    bytes: header.body(),
                })?;
                let bytes = std::mem::take(&mut self.held);
                // A call that is cancelled, or leaves the guest paused, resumes nothing.
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
            (StreamPart::End, _) => {}
        }
        Ok(())
    }
}

/// Returns what happens to a frame with this header.
fn course(header: &Header) -> Result<FrameCourse, NotUnderstood> {
    if header.is_keepalive() && header.kind == MESSAGE {
        return Ok(FrameCourse::Passes);
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
        procedure if LAST_CALLS.contains(&procedure) && header.body() <= LONGEST_HELD => {
            Ok(FrameCourse::IsHeld(*header))
        }
        procedure if LAST_CALLS.contains(&procedure) => Err(NotUnderstood::Arguments {
            procedure,
            bytes: header.body(),
        }),
        procedure if HARMLESS.contains(&procedure) => Ok(FrameCourse::Passes),
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
