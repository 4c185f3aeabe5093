//! Parser that splits a byte stream into the frames of libvirt's RPC protocol (`virnetprotocol.x`).
//!
//! ```text
//!  length │ program │ version │ procedure │ type │ serial │ status │ body
//!  4 bytes each, big-endian; the length counts all of the frame   │ what the procedure defines
//! ```
//!
//! This is the only parser of frames. It serves the tunnel, which follows and changes the calls of a migration, and the
//! relay, which limits the data of a launcher's libvirt. The parser allocates nothing: it passes bodies through in the
//! pieces in which they arrive, and keeps only a header.

use thiserror::Error;

/// Number of bytes of a frame before its body: its length and `virNetMessageHeader`.
pub const HEADER: usize = 28;

/// Maximum length of a frame in bytes (`VIR_NET_MESSAGE_LEN_MAX`).
///
/// The value is libvirt's longest message (`VIR_NET_MESSAGE_MAX`) plus the length field.
pub const MAX_FRAME: u32 = 33_554_432 + 4;

/// libvirt's program for domains and connections (`REMOTE_PROGRAM`).
pub const REMOTE_PROGRAM: u32 = 0x2000_8086;
/// Version of [`REMOTE_PROGRAM`] (`REMOTE_PROTOCOL_VERSION`).
pub const REMOTE_VERSION: u32 = 1;

/// libvirt's program for keep-alive messages (`KEEPALIVE_PROGRAM`).
pub const KEEPALIVE_PROGRAM: u32 = 0x6b65_6570;
/// Version of [`KEEPALIVE_PROGRAM`] (`KEEPALIVE_PROTOCOL_VERSION`).
pub const KEEPALIVE_VERSION: u32 = 1;

/// Type of a frame: a call (`VIR_NET_CALL`).
pub const CALL: u32 = 0;
/// Type of a frame: the reply to a call (`VIR_NET_REPLY`).
pub const REPLY: u32 = 1;
/// Type of a frame: an event or a keep-alive (`VIR_NET_MESSAGE`).
pub const MESSAGE: u32 = 2;

/// Status of a reply: the call has succeeded (`VIR_NET_OK`).
pub const OK: u32 = 0;

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Length of the frame in bytes, [`HEADER`] included.
    pub length: u32,
    /// Program to which the procedure belongs.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Number of the procedure.
    pub procedure: u32,
    /// Type of the frame, such as [`CALL`].
    pub kind: u32,
    /// Serial number of the call to which the frame belongs.
    pub serial: u32,
    /// Status, such as [`OK`].
    pub status: u32,
}

impl Header {
    /// Decodes a header without checking its length.
    pub fn from_bytes(bytes: [u8; HEADER]) -> Self {
        let (words, _) = bytes.as_chunks();
        let word = |index: usize| words.get(index).map_or(0, |word| u32::from_be_bytes(*word));
        Self {
            length: word(0),
            program: word(1),
            version: word(2),
            procedure: word(3),
            kind: word(4),
            serial: word(5),
            status: word(6),
        }
    }

    /// Encodes the header.
    pub fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let words = [
            self.length,
            self.program,
            self.version,
            self.procedure,
            self.kind,
            self.serial,
            self.status,
        ];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// Returns the length of the body in bytes.
    pub fn body(&self) -> usize {
        usize::try_from(self.length)
            .unwrap_or(usize::MAX)
            .saturating_sub(HEADER)
    }

    /// Returns whether the frame belongs to [`REMOTE_PROGRAM`].
    pub fn is_remote(&self) -> bool {
        self.program == REMOTE_PROGRAM && self.version == REMOTE_VERSION
    }

    /// Returns whether the frame belongs to [`KEEPALIVE_PROGRAM`].
    pub fn is_keepalive(&self) -> bool {
        self.program == KEEPALIVE_PROGRAM && self.version == KEEPALIVE_VERSION
    }
}

/// Error: the length field of a frame is out of range. The end of the frame and the start of the next frame cannot be
/// found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[error("the length of a frame is {length} bytes; allowed: {HEADER} to {longest} bytes")]
pub struct InvalidLength {
    /// Length in the frame, in bytes.
    pub length: u32,
    /// Maximum accepted length, in bytes.
    pub longest: u32,
}

/// A part of a stream. Each frame yields its header, its body in any number of pieces, and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamPart<'a> {
    /// The header is complete.
    Header(Header),
    /// A piece of the body, which is never empty.
    Body(&'a [u8]),
    /// The frame is complete.
    End,
}

/// The position of the stream within a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// The stream is in the header, of which this number of bytes have been received.
    Header(usize),
    /// The stream is in the body, of which this number of bytes are still missing.
    Body(usize),
    /// The position is unknown, because the length of the last frame was out of range.
    Lost(InvalidLength),
}

/// Splits one direction of a connection into frames.
#[derive(Clone, Debug)]
pub struct FrameParser {
    header: [u8; HEADER],
    position: Position,
    longest: u32,
}

impl Default for FrameParser {
    fn default() -> Self {
        Self::with_longest(MAX_FRAME)
    }
}

impl FrameParser {
    /// Creates a parser that accepts frames of up to `longest` bytes.
    pub fn with_longest(longest: u32) -> Self {
        Self {
            header: [0; HEADER],
            position: Position::Header(0),
            longest,
        }
    }

    /// Returns whether the stream is between two frames.
    pub fn is_between_frames(&self) -> bool {
        self.position == Position::Header(0)
    }

    /// Removes the next part from the front of `bytes` and returns it; `None` if `bytes` contains no further part.
    ///
    /// The length field is checked as soon as it is complete, before the rest of its header.
    ///
    /// # Errors
    /// If the length of a frame is out of range; all later calls then return the same error.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<StreamPart<'a>>, InvalidLength> {
        match self.position {
            Position::Lost(error) => Err(error),
            Position::Body(0) => {
                self.position = Position::Header(0);
                Ok(Some(StreamPart::End))
            }
            Position::Body(_) if bytes.is_empty() => Ok(None),
            Position::Body(left) => {
                let (now, later) = bytes.split_at(bytes.len().min(left));
                *bytes = later;
                self.position = Position::Body(left - now.len());
                Ok(Some(StreamPart::Body(now)))
            }
            Position::Header(filled) => self.header(filled, bytes),
        }
    }

    fn header<'a>(&mut self, filled: usize, bytes: &mut &'a [u8]) -> Result<Option<StreamPart<'a>>, InvalidLength> {
        let (now, later) = bytes.split_at(bytes.len().min(HEADER - filled));
        *bytes = later;
        let filled = filled + now.len();
        self.header[filled - now.len()..filled].copy_from_slice(now);
        self.position = Position::Header(filled);
        if filled < 4 {
            return Ok(None);
        }
        let header = Header::from_bytes(self.header);
        if header.length > self.longest || usize::try_from(header.length).is_ok_and(|length| length < HEADER) {
            let error = InvalidLength {
                length: header.length,
                longest: self.longest,
            };
            self.position = Position::Lost(error);
            return Err(error);
        }
        if filled < HEADER {
            return Ok(None);
        }
        self.position = Position::Body(header.body());
        Ok(Some(StreamPart::Header(header)))
    }
}

#[cfg(test)]
mod tests;
