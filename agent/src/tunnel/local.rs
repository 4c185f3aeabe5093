//! The protocol between the agent and a tunnel of its node.
//!
//! ```text
//!  agent  ── {"id":1,"call":{"prepare":{...}}} ──────────────▶ tunnel
//!         ◀── {"sessions":[...]}  at once, and at each change ──
//!         ◀── {"answer":{"id":1,"result":{"prepared":{...}}}} ──
//! ```
//!
//! Each line is one JSON object. The lines are sent over the Unix socket of the tunnel's process, which only root can
//! access. Changes that a call causes are sent before the response to the call. Agent and tunnel may have different
//! versions during an update: unknown fields are ignored, and unknown values become [`Role::Unknown`] or
//! [`ReplyProgress::Unknown`], from which nothing is concluded. A tunnel refuses calls that it does not know.
//! `agent/testdata/a233b06` contains lines that earlier versions write.

use drydock_core::migration::hand_over::Proof;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Maximum length of a line in bytes.
pub(crate) const LINE: usize = 1024 * 1024;

/// Reason for the end of a session whose source's libvirt sent unknown data.
///
/// The data, for example a call that this version does not know, might resume the guest at the target without proof.
/// [`SessionState::ended`] contains the reason.
pub(crate) const LIBVIRT_NOT_UNDERSTOOD: &str = "LibvirtCallUnsupported";

/// The role of a session in a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Role {
    /// The guest leaves this side.
    Source,
    /// The guest arrives at this side.
    Target,
    /// A role of a later version. The session is left unchanged.
    #[serde(other)]
    Unknown,
}

impl Role {
    /// Returns the name of the role, for logs.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Target => "target",
            Self::Unknown => "unknown",
        }
    }
}

/// One side of one migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionSpec {
    /// UID of the VirtualMachineInstanceMigration.
    pub(crate) migration: String,
    /// Role of this side.
    pub(crate) role: Role,
    /// UID of the guest's pod on this node.
    pub(crate) pod_uid: String,
    /// Name of the guest's libvirt domain.
    pub(crate) domain: String,
}

/// Data about a session that the other side needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Prepared {
    /// SHA-256 of the certificate of this side, in lower-case hexadecimal digits.
    pub(crate) fingerprint: String,
    /// Address and port at which this tunnel listens. A target does not use the address of a source, because it never
    /// dials.
    pub(crate) address: String,
}

/// The other side of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TunnelPeer {
    /// SHA-256 of the other side's certificate, in hexadecimal digits.
    pub(crate) fingerprint: String,
    /// Address and port at which the other side's tunnel listens. Required by a source, unused by a target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<String>,
}

/// Progress of the reply that completes a migration, as seen by the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ReplyProgress {
    /// The reply has not been forwarded completely.
    #[default]
    None,
    /// The reply has been written completely to the source's libvirtd.
    Forwarded,
    /// The source's libvirtd has read the complete reply.
    Consumed,
    /// A value of a later version, from which nothing is concluded.
    #[serde(other)]
    Unknown,
}

/// The state of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionState {
    /// UID of the migration.
    pub(crate) migration: String,
    /// Role of this side.
    pub(crate) role: Role,
    /// UID of the guest's pod.
    pub(crate) pod_uid: String,
    /// Name of the domain.
    pub(crate) domain: String,
    /// Whether the other side's fingerprint is known.
    #[serde(default)]
    pub(crate) paired: bool,
    /// Whether the control channel to the other side is open and the other side has responded.
    #[serde(default)]
    pub(crate) connected: bool,
    /// Protocol version of the other side's control channel; `None` before its first message with a version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) peer_version: Option<u16>,
    /// Number of bytes of the guest and of libvirt that were sent to the other side. Updated at most once per second.
    #[serde(default)]
    pub(crate) sent: u64,
    /// Number of bytes that were received from the other side. Updated at most once per second.
    #[serde(default)]
    pub(crate) received: u64,
    /// Source: progress of the last reply.
    #[serde(default)]
    pub(crate) reply: ReplyProgress,
    /// Source: proof with which the guest was released. Target: proof with which the guest may be resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) released: Option<Proof>,
    /// Source: whether the guest is to stay paused at the target, as last set by [`TunnelCall::KeepPaused`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) keep_paused: bool,
    /// Source: whether the target has confirmed that it has taken over the guest.
    #[serde(default)]
    pub(crate) acknowledged: bool,
    /// Target: whether the tunnel has resumed the guest, or left it paused as requested.
    #[serde(default)]
    pub(crate) resumed: bool,
    /// Current problem as a message for users. The session continues to try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trouble: Option<String>,
    /// Reason in CamelCase why the session no longer carries streams. The session stays in the list until it is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ended: Option<String>,
    /// Source: whether the tunnel makes libvirt's last call leave the guest paused at the target.
    ///
    /// The exception is a guest that was switched to post-copy. Tunnels of earlier versions do not change the last
    /// call.
    #[serde(default)]
    pub(crate) holds_last_call: bool,
}

/// A call to a tunnel. Each call can be repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum TunnelCall {
    /// Creates a session.
    Prepare(SessionSpec),
    /// Sets the other side of a session.
    #[serde(rename_all = "camelCase")]
    Pair {
        /// UID of the migration.
        migration: String,
        /// The other side.
        peer: TunnelPeer,
    },
    /// Source: sets whether the guest stays paused at the target.
    #[serde(rename_all = "camelCase")]
    KeepPaused {
        /// UID of the migration.
        migration: String,
        /// Whether the guest stays paused.
        keep_paused: bool,
    },
    /// Source: releases the guest, because it can never resume at the source.
    #[serde(rename_all = "camelCase")]
    Release {
        /// UID of the migration.
        migration: String,
        /// Proof that the guest can never resume at the source.
        proof: Proof,
    },
    /// Ends a session and removes it.
    #[serde(rename_all = "camelCase")]
    Close {
        /// UID of the migration.
        migration: String,
    },
}

/// A line from the agent to the tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TunnelRequest {
    /// ID that links the response to the request.
    pub(crate) id: u64,
    /// The call to execute.
    pub(crate) call: TunnelCall,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum CallResult {
    /// The session exists.
    Prepared(Prepared),
    /// The call was executed, now or earlier.
    Done {},
    /// The call was refused.
    Refused {
        /// Reason in CamelCase.
        reason: String,
        /// Reason as a message for users.
        message: String,
    },
    /// A result of a later version.
    #[serde(skip)]
    Unknown,
}

/// A line from the tunnel to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ServerMessage {
    /// The states of all sessions of the process.
    Sessions(Vec<SessionState>),
    /// The result of a call.
    #[serde(rename = "answer")]
    Response {
        /// ID of the call.
        id: u64,
        /// Result of the call.
        #[serde(deserialize_with = "call_result")]
        result: CallResult,
    },
}

/// Deserializes the result of a call.
///
/// An unknown result, from a tunnel of a later version, becomes [`CallResult::Unknown`], so that each caller gets a
/// response.
fn call_result<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CallResult, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or(CallResult::Unknown))
}

#[cfg(test)]
mod tests;
