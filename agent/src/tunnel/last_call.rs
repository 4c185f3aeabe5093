//! Ensures that the target resumes its guest only when the source can no longer resume it.
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
//! libvirt rejects `VIR_MIGRATE_POSTCOPY` together with `VIR_MIGRATE_PAUSED` in a request to migrate a guest. However,
//! libvirt's last call decides whether the target resumes the guest. For a guest that was paused when its migration
//! began, libvirt itself sets both flags in that call. Therefore a migration that may be switched to post-copy starts
//! without `VIR_MIGRATE_PAUSED`, and this module adds the flag to the last call unless the guest was switched. A guest
//! that was not switched arrives paused like all others, and is resumed by proof. A guest that was switched can never
//! resume at its source, so it needs no proof.
//!
//! This module fails closed. It forwards data from a source's libvirtd only if the data is known not to resume a guest:
//! a later libvirt might use another last call, or other arguments for this call. A guest whose session ends stays at
//! its source.

use drydock_host::rpc::{CALL, FrameParser, HEADER, Header, InvalidLength, MESSAGE, StreamPart};
use thiserror::Error;

use super::final_reply::LAST_CALLS;

mod arguments;

/// Flag that makes the target leave the guest paused (`VIR_MIGRATE_PAUSED`).
const PAUSED: u32 = 1 << 5;
/// Maximum length of the body of a held last call in bytes.
///
/// The value is libvirt's longest cookie (`REMOTE_MIGRATE_COOKIE_MAX`, 4 MiB) plus the same amount for the parameters.
const LONGEST_HELD: usize = 8 << 20;

/// Calls of a source's libvirtd that never start or resume a guest.
///
/// With these calls, libvirtd opens and closes its connection, queries the other libvirtd, and prepares a migration
/// (`enum remote_procedure` of `remote_protocol.x`). The calls of libvirt 9.0 and 11.3 occur in recorded migrations.
/// The others are the same queries in other versions.
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

/// State of the guest at the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuestLeft {
    /// The guest has been switched to post-copy. It can never resume at the source.
    Switched,
    /// The guest may resume at the source.
    MayReturn,
    /// The guest's libvirt does not respond.
    Unknown,
}

/// Reason why data from a source's libvirtd is not forwarded: it may resume the guest at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum NotUnderstood {
    /// The data is not divided into frames of libvirt's protocol.
    #[error("the source's libvirt sends data that is not a frame of libvirt's protocol: {0}")]
    Frame(InvalidLength),
    /// The data belongs to a protocol other than libvirt's protocol for domains.
    #[error("the source's libvirt uses version {version} of program {program:#x}, which no migration needs")]
    Program {
        /// Number of the program.
        program: u32,
        /// Version of the program.
        version: u32,
    },
    /// The frame is not a plain call.
    #[error("the source's libvirt sends a frame of type {kind}, but only calls (type 0) are expected")]
    Kind {
        /// Type of the frame.
        kind: u32,
    },
    /// The call is not known from any libvirt's migration.
    #[error("the source's libvirt calls procedure {procedure}, which no migration is known to need")]
    Procedure {
        /// Number of the procedure.
        procedure: u32,
    },
    /// The arguments of the last call cannot be parsed, or are too long.
    #[error("the source's libvirt makes the last call {procedure} with unknown arguments ({bytes} bytes)")]
    Arguments {
        /// Number of the procedure.
        procedure: u32,
        /// Size of the arguments in bytes.
        bytes: usize,
    },
}

/// A piece of data to forward.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Data that resumes no guest.
    Other(Vec<u8>),
    /// The call that would make the target resume the guest. The call waits for a decision.
    LetsGoOn(LastCall),
    /// Data that may resume the guest.
    ///
    /// This data is the last piece, and is forwarded only if the guest has been switched, after
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
    /// The frame is forwarded as it arrives.
    Passes,
    /// The frame is held until it is complete.
    IsHeld(Header),
}

/// Splits the data from a source's libvirtd so that the last call can be held.
///
/// A frame that is incomplete when the connection ends is dropped, unless a part of it has been forwarded.
#[derive(Debug, Default)]
pub(super) struct LastCalls {
    parser: FrameParser,
    course: Option<FrameCourse>,
    /// The received part of a last call.
    held: Vec<u8>,
    /// Whether a last call has been received completely.
    seen: bool,
    /// Reason why data is no longer forwarded; `None` while data is forwarded.
    refused: Option<NotUnderstood>,
    /// Whether all data is forwarded, because the guest has been switched.
    passes_all: bool,
}

impl LastCalls {
    /// Processes the next bytes, in pieces of any size. Bytes of an incomplete header or last call are returned by a
    /// later call.
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
                // The target's libvirtd closes the connection when it receives a frame with this length, however much
                // of the frame arrives.
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

    /// Forwards all data from now on. The caller must forward the data that was refused so far.
    pub(super) fn pass_all(&mut self) {
        self.passes_all = true;
    }

    /// Returns whether a last call has been received completely, whatever its content.
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
                // A call that is cancelled or leaves the guest paused does not resume the guest.
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

/// Returns how a frame with this header is treated.
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
