//! The end of the relay of a stream.

use std::time::Duration;

/// Side or time limit that has ended the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedSide {
    /// The client has ended the stream.
    Client,
    /// The guest has ended the stream.
    Guest,
    /// This process is stopping.
    Stopping,
    /// Neither side has sent data for this time.
    Idle(Duration),
    /// The stream has been open for the maximum time.
    Expired(Duration),
}

impl EndedSide {
    /// Returns the name of the side for logs.
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
