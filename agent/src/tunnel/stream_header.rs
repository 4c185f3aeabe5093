//! The header that declares the content of a connection. The source sends it first after the handshake.

use thiserror::Error;

/// Length of a header in bytes.
pub(super) const BYTES: usize = 8;

/// The first bytes of each header.
const MAGIC: [u8; 4] = *b"dryd";

/// The content of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum StreamContent {
    /// Messages between the two tunnels.
    Control,
    /// The connection of the source's libvirtd to the target's.
    Libvirt,
    /// The guest's memory. The number distinguishes several connections in logs.
    Memory(u16),
    /// The guest's disks. The number distinguishes several connections in logs.
    Disks(u16),
}

/// Error: the first bytes are not a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the first bytes are not a valid stream header")]
pub(super) struct NoHeader;

impl StreamContent {
    /// Returns the name of the stream, for logs and metrics.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Libvirt => "libvirt",
            Self::Memory(_) => "memory",
            Self::Disks(_) => "disks",
        }
    }

    /// Returns the header of the stream.
    pub(super) fn header(self) -> [u8; BYTES] {
        let (kind, number) = match self {
            Self::Control => (0, 0),
            Self::Libvirt => (1, 0),
            Self::Memory(number) => (2, number),
            Self::Disks(number) => (3, number),
        };
        let [m0, m1, m2, m3] = MAGIC;
        let [high, low] = number.to_be_bytes();
        [m0, m1, m2, m3, 0, kind, high, low]
    }

    /// Parses a header.
    ///
    /// # Errors
    /// If the bytes are not a valid header.
    pub(super) fn of_header(header: [u8; BYTES]) -> Result<Self, NoHeader> {
        let [_, _, _, _, _, kind, high, low] = header;
        let number = u16::from_be_bytes([high, low]);
        let stream = match kind {
            0 => Self::Control,
            1 => Self::Libvirt,
            2 => Self::Memory(number),
            3 => Self::Disks(number),
            _ => return Err(NoHeader),
        };
        if stream.header() == header {
            Ok(stream)
        } else {
            Err(NoHeader)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_stream_has_a_distinct_header() {
        for stream in [
            StreamContent::Control,
            StreamContent::Libvirt,
            StreamContent::Memory(0),
            StreamContent::Memory(517),
            StreamContent::Disks(1),
        ] {
            assert_eq!(StreamContent::of_header(stream.header()), Ok(stream));
        }
    }

    proptest! {
        #[test]
        fn anything_else_is_refused(header in any::<[u8; BYTES]>()) {
            if let Ok(stream) = StreamContent::of_header(header) {
                prop_assert_eq!(stream.header(), header);
            }
        }
    }

    #[test]
    fn stream_header_of_unknown_kind_or_number_is_refused() {
        for header in [
            *b"dryd\0\0\0\x01",
            *b"dryd\0\x01\x01\0",
            *b"dryd\0\x04\0\0",
            *b"dryd\x01\0\0\0",
            *b"GET / HT",
        ] {
            assert_eq!(StreamContent::of_header(header), Err(NoHeader));
        }
    }
}
