//! The end of the relay of a stream.

use std::time::Duration;

/// The side that has ended the stream, or the time limit that has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedSide {
    /// The client.
    Client,
    /// The guest.
    Guest,
    /// This process stops.
    Stopping,
    /// Neither has sent data for this time.
    Idle(Duration),
    /// Neither, but this time is over.
    Expired(Duration),
}

impl EndedSide {
    /// Returns the name for logs.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Guest => "guest",
            Self::Stopping => "controller",
            Self::Idle(_) => "idle timeout",
            Self::Expired(_) => "timeout",
        }
    }
}
