//! How a process ended.

use std::fmt;

use nix::sys::{signal::Signal, wait::WaitStatus};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessEnd {
    /// The process exited with this code.
    Exited(i32),
    /// The process was killed by this signal.
    Killed(Signal),
    /// The process ended, but the kernel does not report how.
    Unknown,
}

impl ProcessEnd {
    /// Converts a wait status; `None` if the process has not ended.
    pub(crate) fn of(status: WaitStatus) -> Option<Self> {
        match status {
            WaitStatus::Exited(_, code) => Some(Self::Exited(code)),
            WaitStatus::Signaled(_, signal, _) => Some(Self::Killed(signal)),
            _ => None,
        }
    }

    /// Returns whether the process reported success.
    pub(crate) fn is_success(self) -> bool {
        self == Self::Exited(0)
    }
}

impl fmt::Display for ProcessEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "ended with exit code {code}"),
            Self::Killed(signal) => write!(f, "was killed by {signal}"),
            Self::Unknown => f.write_str("ended"),
        }
    }
}
