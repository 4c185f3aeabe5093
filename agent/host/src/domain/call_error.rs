//! Why a call to a guest's libvirt was of no avail.

use std::{io, time::Duration};

use thiserror::Error;
use virt_sys as sys;

use super::event::CloseReason;
use crate::{libvirt::LibvirtError, pod_folder::FolderError};

/// Why a call was of no avail. Only [`NoDomain`](Self::NoDomain) and [`Refused`](Self::Refused) are
/// libvirt's answers; with all others nothing is known of the domain.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// libvirt says that there is no such domain.
    #[error("there is no such domain")]
    NoDomain,
    /// libvirt says no.
    #[error(transparent)]
    Refused(LibvirtError),
    /// There is no agent in the guest, or it does not answer. The connection is as good as before.
    #[error("the guest's agent does not answer: {0}")]
    AgentSilent(LibvirtError),
    /// libvirt did not answer in time. Whether it did what it was asked to is not known; the
    /// connection is given up.
    #[error("libvirtd did not answer within {within:?} when {call}")]
    TimedOut {
        /// The call, as people name it.
        call: &'static str,
        /// The time it was given.
        within: Duration,
    },
    /// The connection has ended, during the call or before it.
    #[error("the connection to libvirtd was lost when {call}: {reason}{}", said(error.as_ref()))]
    Lost {
        /// The call, as people name it.
        call: &'static str,
        /// Why it has ended.
        reason: CloseReason,
        /// What libvirt's client says.
        error: Option<LibvirtError>,
    },
    /// The pod's folder or what is in it cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// This process could not begin.
    #[error("no connection can be made: {message}")]
    NotStarted {
        /// What the kernel says.
        message: String,
    },
}

fn said(error: Option<&LibvirtError>) -> String {
    error.map_or_else(String::new, |error| format!(" ({})", error.message))
}

impl CallError {
    /// A stable word for it, for conditions and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoDomain => "DomainNotFound",
            Self::Refused(_) => "LibvirtRefused",
            Self::AgentSilent(_) => "GuestAgentSilent",
            Self::TimedOut { .. } => "LibvirtTimedOut",
            Self::Lost { .. } => "LibvirtConnectionLost",
            Self::Folder(error) => error.reason(),
            Self::NotStarted { .. } => "LibvirtNotConnected",
        }
    }

    /// libvirt's answer was read and is certain.
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::NoDomain | Self::Refused(_) | Self::AgentSilent(_))
    }

    /// Nobody listens behind the socket, or there is none: libvirtd has not been started yet, or has
    /// ended.
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
                Self::AgentSilent(error)
            }
            _ => Self::Refused(error),
        }
    }

    pub(crate) fn timed_out(call: &'static str, within: Duration, error: Option<&LibvirtError>) -> Self {
        if let Some(error) = error {
            tracing::debug!(call, %error, "libvirt's client came free");
        }
        Self::TimedOut { call, within }
    }

    pub(crate) fn not_started(error: &io::Error) -> Self {
        Self::NotStarted {
            message: error.to_string(),
        }
    }
}
