//! What the agent and a tunnel of its node say to each other.
//!
//! ```text
//!  agent  ── {"id":1,"call":{"prepare":{...}}} ──────────────▶ tunnel
//!         ◀── {"sessions":[...]}  at once, and at each change ──
//!         ◀── {"answer":{"id":1,"result":{"prepared":{...}}}} ──
//! ```
//!
//! One JSON object a line, over the unix socket of the tunnel's process, which root alone can reach.
//! What a call has changed is told before its answer. Agent and tunnel may be of different versions
//! during an update, so fields that one does not know are left out, and values that it does not know are
//! [`Role::Unknown`], [`Reply::Unknown`] and their like, by which nothing is concluded; a call that a tunnel does
//! not know is refused. `agent/testdata/wire` has what earlier versions write.

use drydock_core::migration::hand_over::Proof;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Most bytes of a line.
pub(crate) const LINE: usize = 1024 * 1024;

/// Why a session carries nothing any more ([`SessionState::ended`]): the source's libvirt has sent something that
/// might let the guest go on at the target without proof.
pub(crate) const LIBVIRT_NOT_UNDERSTOOD: &str = "LibvirtNotUnderstood";

/// Which side of a migration a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Role {
    /// The guest leaves.
    Source,
    /// The guest comes.
    Target,
    /// A side of a later version: it is left alone.
    #[serde(other)]
    Unknown,
}

impl Role {
    /// The word for it, for logs.
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
    /// Which side.
    pub(crate) role: Role,
    /// UID of the guest's pod on this node.
    pub(crate) pod_uid: String,
    /// Name of its libvirt domain.
    pub(crate) domain: String,
}

/// What the other side has to know of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Prepared {
    /// SHA-256 of the certificate that this side shows, in lower-case hexadecimal digits.
    pub(crate) fingerprint: String,
    /// Where this tunnel listens: address and port. A source does not listen; its target has no use
    /// for this.
    pub(crate) address: String,
}

/// The other side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Peer {
    /// SHA-256 of the certificate that it shows, in hexadecimal digits.
    pub(crate) fingerprint: String,
    /// Where its tunnel listens: address and port. A source needs it; a target has no use for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<String>,
}

/// How far the reply is by which a migration succeeds, as the source's side sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Reply {
    /// It has not come.
    #[default]
    None,
    /// All of it has been given to the source's libvirtd.
    Forwarded,
    /// The source's libvirtd has read all of it.
    Consumed,
    /// Something of a later version, by which nothing is known of it.
    #[serde(other)]
    Unknown,
}

/// A session as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionState {
    /// UID of the migration.
    pub(crate) migration: String,
    /// Which side.
    pub(crate) role: Role,
    /// UID of the guest's pod.
    pub(crate) pod_uid: String,
    /// Name of the domain.
    pub(crate) domain: String,
    /// It knows the other side's fingerprint.
    #[serde(default)]
    pub(crate) paired: bool,
    /// The control channel to the other side is open, and the other side has answered.
    #[serde(default)]
    pub(crate) connected: bool,
    /// Version of the control channel that the other side speaks, once it has said something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) peer_version: Option<u16>,
    /// Bytes of the guest and of libvirt that went to the other side. Told once a second at most.
    #[serde(default)]
    pub(crate) sent: u64,
    /// Bytes that came from it. Told once a second at most.
    #[serde(default)]
    pub(crate) received: u64,
    /// Source: how far the last reply is.
    #[serde(default)]
    pub(crate) reply: Reply,
    /// Source: the proof on which the guest was released. Target: that on which it may go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) released: Option<Proof>,
    /// Source: the target has said that it took the guest over.
    #[serde(default)]
    pub(crate) acknowledged: bool,
    /// Target: it has resumed the guest, or left it paused as told.
    #[serde(default)]
    pub(crate) resumed: bool,
    /// What hinders it just now, for people. It goes on trying.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trouble: Option<String>,
    /// Why it carries nothing any more, in one CamelCase word. It stays in the list until it is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ended: Option<String>,
    /// Source: libvirt's last call has the target leave the guest paused, unless it was switched to post-copy.
    /// Tunnels of earlier versions do not see to that.
    #[serde(default)]
    pub(crate) holds_last_call: bool,
}

/// What a tunnel is asked to do. Each may be asked again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Call {
    /// Make a session.
    Prepare(SessionSpec),
    /// Tell a session who the other side is.
    #[serde(rename_all = "camelCase")]
    Pair {
        /// UID of the migration.
        migration: String,
        /// The other side.
        peer: Peer,
    },
    /// Source: say whether the guest stays paused at the target.
    #[serde(rename_all = "camelCase")]
    KeepPaused {
        /// UID of the migration.
        migration: String,
        /// It stays paused.
        keep_paused: bool,
    },
    /// Source: the guest can never go on here.
    #[serde(rename_all = "camelCase")]
    Release {
        /// UID of the migration.
        migration: String,
        /// How that is known.
        proof: Proof,
    },
    /// End a session and forget it.
    #[serde(rename_all = "camelCase")]
    Close {
        /// UID of the migration.
        migration: String,
    },
}

/// A line to the tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// By which the answer is known.
    pub(crate) id: u64,
    /// What is to be done.
    pub(crate) call: Call,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Answer {
    /// There is a session.
    Prepared(Prepared),
    /// It is done, or was so already.
    Done {},
    /// It is not done.
    Refused {
        /// Why, in one CamelCase word.
        reason: String,
        /// The same for people.
        message: String,
    },
    /// Something of a later version.
    #[serde(skip)]
    Unknown,
}

/// A line from the tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Said {
    /// All sessions of the process, as they are.
    Sessions(Vec<SessionState>),
    /// What came of a call.
    Answer {
        /// The call.
        id: u64,
        /// What came of it.
        #[serde(deserialize_with = "answer")]
        result: Answer,
    },
}

/// Whoever waits for an answer gets one, also of a tunnel of a later version.
fn answer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Answer, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or(Answer::Unknown))
}
