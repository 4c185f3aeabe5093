//! Reasons why virtualization facts are missing or incomplete.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{document::ParseError, libvirt::LibvirtError};

/// Reason why libvirt's facts are missing. The names are stable, because conditions and metrics use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ProblemReason {
    /// Guests are not supported on this architecture.
    ArchitectureNotSupported,
    /// libvirtd could not be started: it is not installed or not executable, or its folder could not be created.
    LibvirtdNotStarted,
    /// libvirtd ended before it opened its socket.
    LibvirtdExited,
    /// libvirtd is running, but its socket never opened.
    LibvirtdSocketNotOpened,
    /// libvirtd ended during the queries.
    LibvirtdCrashed,
    /// The connection to libvirt was refused or failed.
    LibvirtConnectFailed,
    /// libvirt returned an error for a query.
    LibvirtCallFailed,
    /// libvirt's response could not be parsed.
    LibvirtResponseInvalid,
    /// libvirt did not respond in time.
    LibvirtTimedOut,
}

impl ProblemReason {
    /// Returns the reason in CamelCase.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ArchitectureNotSupported => "ArchitectureNotSupported",
            Self::LibvirtdNotStarted => "LibvirtdNotStarted",
            Self::LibvirtdExited => "LibvirtdExited",
            Self::LibvirtdSocketNotOpened => "LibvirtdSocketNotOpened",
            Self::LibvirtdCrashed => "LibvirtdCrashed",
            Self::LibvirtConnectFailed => "LibvirtConnectFailed",
            Self::LibvirtCallFailed => "LibvirtCallFailed",
            Self::LibvirtResponseInvalid => "LibvirtResponseInvalid",
            Self::LibvirtTimedOut => "LibvirtTimedOut",
        }
    }
}

/// A reason with a human-readable message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostProblem {
    reason: ProblemReason,
    message: String,
}

impl HostProblem {
    /// Creates a problem.
    pub fn new(reason: ProblemReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }

    /// Returns the reason in CamelCase.
    pub fn reason(&self) -> &'static str {
        self.reason.as_str()
    }

    /// Returns the reason.
    pub fn kind(&self) -> ProblemReason {
        self.reason
    }

    /// Returns the problem for a passed deadline.
    pub(crate) fn timed_out(deadline: Duration) -> Self {
        Self::new(
            ProblemReason::LibvirtTimedOut,
            format!("libvirt did not respond within {deadline:?}"),
        )
    }
}

impl fmt::Display for HostProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<LibvirtError> for HostProblem {
    fn from(error: LibvirtError) -> Self {
        let reason = if error.is_broken_connection() {
            ProblemReason::LibvirtConnectFailed
        } else {
            ProblemReason::LibvirtCallFailed
        };
        Self::new(reason, error.to_string())
    }
}

impl From<ParseError> for HostProblem {
    fn from(error: ParseError) -> Self {
        Self::new(ProblemReason::LibvirtResponseInvalid, error.to_string())
    }
}
