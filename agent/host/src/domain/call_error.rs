//! Reason why a call to a guest's libvirt failed.

use std::{io, time::Duration};

use thiserror::Error;
use virt_sys as sys;

use super::event::CloseReason;
use crate::{libvirt::LibvirtError, pod_folder::FolderError};

/// Reason why a call failed.
///
/// Only [`NoDomain`](Self::NoDomain) and [`Refused`](Self::Refused) are libvirt's responses. With all other errors, the
/// state of the domain is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// libvirt reports that the domain does not exist.
    #[error("the domain does not exist")]
    NoDomain,
    /// libvirt refused the call.
    #[error(transparent)]
    Refused(LibvirtError),
    /// The guest has no guest agent, or the agent does not respond. The connection remains usable.
    #[error("the guest agent does not respond: {0}")]
    AgentUnresponsive(LibvirtError),
    /// libvirt did not respond in time. Whether libvirt executed the call is unknown. The connection is closed.
    #[error("libvirtd did not respond within {within:?} while {call}")]
    TimedOut {
        /// Human-readable name of the call.
        call: &'static str,
        /// The time limit.
        within: Duration,
    },
    /// The connection to libvirt ended during the call or before the call.
    #[error("the connection to libvirtd was lost while {call}: {reason}{}", detail(error.as_ref()))]
    Lost {
        /// Human-readable name of the call.
        call: &'static str,
        /// Reason why the connection ended.
        reason: CloseReason,
        /// The error of libvirt's client.
        error: Option<LibvirtError>,
    },
    /// The pod's folder or its content cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// No connection to libvirt could be opened.
    #[error("could not connect to libvirt: {message}")]
    NotStarted {
        /// The kernel's error message.
        message: String,
    },
}

fn detail(error: Option<&LibvirtError>) -> String {
    error.map_or_else(String::new, |error| format!(" ({})", error.message))
}

impl CallError {
    /// Returns a stable identifier for conditions and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoDomain => "DomainNotFound",
            Self::Refused(_) => "LibvirtRefused",
            Self::AgentUnresponsive(_) => "GuestAgentUnresponsive",
            Self::TimedOut { .. } => "LibvirtTimedOut",
            Self::Lost { .. } => "LibvirtConnectionLost",
            Self::Folder(error) => error.reason(),
            Self::NotStarted { .. } => "LibvirtNotConnected",
        }
    }

    /// Returns whether libvirt's response was received, which makes the outcome certain.
    pub fn is_reply(&self) -> bool {
        matches!(self, Self::NoDomain | Self::Refused(_) | Self::AgentUnresponsive(_))
    }

    /// Returns whether the socket does not exist or no process listens on the socket.
    ///
    /// In both cases libvirtd has not been started yet or has ended.
    pub fn is_not_listening(&self) -> bool {
        matches!(
            self,
            Self::Folder(FolderError::NotThere { .. } | FolderError::NotListening { .. })
        )
    }

    pub(crate) fn from_refusal(error: LibvirtError) -> Self {
        match error.code {
            sys::VIR_ERR_NO_DOMAIN => Self::NoDomain,
            sys::VIR_ERR_AGENT_UNRESPONSIVE | sys::VIR_ERR_AGENT_UNSYNCED | sys::VIR_ERR_AGENT_COMMAND_TIMEOUT => {
                Self::AgentUnresponsive(error)
            }
            _ => Self::Refused(error),
        }
    }

    pub(crate) fn timed_out(call: &'static str, within: Duration, error: Option<&LibvirtError>) -> Self {
        if let Some(error) = error {
            tracing::debug!(call, %error, "an overdue libvirt call has returned");
        }
        Self::TimedOut { call, within }
    }

    pub(crate) fn not_started(error: &io::Error) -> Self {
        Self::NotStarted {
            message: error.to_string(),
        }
    }
}
