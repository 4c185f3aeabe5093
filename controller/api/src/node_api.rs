//! The contract of an agent's port, through which controllers reach the guests of its node: commands, reports, and the
//! streams of consoles.
//!
//! ```text
//! controller ── PUT /guests/UID/pause ─────────────────────▶ agent ── libvirt ─▶ guest
//!            ── GET /guests/UID/userlist ──────────────────▶       ── libvirt ─▶ its guest agent
//!            ── GET /guests/UID/console, Upgrade: stream ──▶       ── socket in the pod
//! ```
//!
//! Connections use TLS 1.3 with a certificate on each side. The agent creates its certificate when its process starts,
//! and controllers verify it by the fingerprint in the node's Hypervisor. The controller's certificate is that of its
//! webhooks; agents verify it by the CA bundle in the APIService, as API servers do.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

/// Name of the APIService with the `caBundle` by which agents verify controllers.
pub const TRUST_ANCHOR: &str = "v1.subresources.kubevirt.io";
/// The protocol of a stream, in the header `Upgrade`: bytes of the guest's device in both directions.
pub const STREAM_PROTOCOL: &str = "drydock-stream";
/// Query of a stream's path: if another client uses the stream, the request is refused instead of replacing that
/// client.
const PRESERVE_SESSION: &str = "preserve=true";
/// Query of `freeze`: the number of seconds until the agent thaws the file systems by itself.
const THAW_AFTER: &str = "thawAfter";
/// Path prefix of requests to guests; the UID of the guest's VirtualMachineInstance follows.
const GUESTS: &str = "/guests/";

/// A command to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GuestCommand {
    /// Stops the guest's virtual CPUs.
    Pause,
    /// Resumes the guest's virtual CPUs.
    Unpause,
    /// Requests a restart by the guest's operating system.
    SoftReboot,
    /// Restarts the virtual machine at once, like a reset button.
    Reset,
    /// Has the guest agent flush and freeze the guest's file systems, for a consistent backup.
    Freeze {
        /// Seconds until the node's agent thaws the file systems by itself; `None`: never.
        thaw_after: Option<NonZeroU32>,
    },
    /// Thaws the guest's file systems.
    Unfreeze,
}

impl GuestCommand {
    /// All commands.
    pub const ALL: [Self; 6] = [
        Self::Pause,
        Self::Unpause,
        Self::SoftReboot,
        Self::Reset,
        Self::Freeze { thaw_after: None },
        Self::Unfreeze,
    ];

    /// Returns the command's name in paths, which is the name of KubeVirt's subresource.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Unpause => "unpause",
            Self::SoftReboot => "softreboot",
            Self::Reset => "reset",
            Self::Freeze { .. } => "freeze",
            Self::Unfreeze => "unfreeze",
        }
    }

    /// Parses the name and the query of a command.
    fn parse(name: &str, query: Option<&str>) -> Option<Self> {
        let command = Self::ALL.into_iter().find(|known| known.as_str() == name)?;
        match (command, query) {
            (Self::Freeze { .. }, Some(query)) => {
                let seconds = query.strip_prefix(THAW_AFTER)?.strip_prefix('=')?.parse().ok()?;
                Some(Self::Freeze {
                    thaw_after: Some(seconds),
                })
            }
            (command, None) => Some(command),
            (_, Some(_)) => None,
        }
    }
}

/// A report about a guest, read with a single request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GuestReport {
    /// Information about the guest, as the guest agent reports it.
    GuestOsInfo,
    /// Users of the guest, as the guest agent reports them.
    UserList,
    /// File systems of the guest, as the guest agent reports them.
    FilesystemList,
    /// A picture of the guest's display.
    Screenshot,
}

impl GuestReport {
    /// All reports.
    pub const ALL: [Self; 4] = [
        Self::GuestOsInfo,
        Self::UserList,
        Self::FilesystemList,
        Self::Screenshot,
    ];

    /// Returns the report's name in paths, which is the name of KubeVirt's subresource, except for the screenshot.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::GuestOsInfo => "guestosinfo",
            Self::UserList => "userlist",
            Self::FilesystemList => "filesystemlist",
            Self::Screenshot => "screenshot",
        }
    }
}

/// A device of a guest whose data is transferred as a stream of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GuestStream {
    /// The first serial port.
    Console,
    /// The display, as RFB.
    Vnc,
}

impl GuestStream {
    /// All streams.
    pub const ALL: [Self; 2] = [Self::Console, Self::Vnc];

    /// Returns the stream's name in paths, which is the name of KubeVirt's subresource.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Console => "console",
            Self::Vnc => "vnc",
        }
    }
}

/// A request to the port of an agent, as encoded in its path and query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeApiRequest<'a> {
    /// A command to the guest with this UID.
    Command(&'a str, GuestCommand),
    /// A report about the guest with this UID.
    Report(&'a str, GuestReport),
    /// A stream of the guest with this UID, and whether the request is refused while another client uses the stream.
    Stream(&'a str, GuestStream, bool),
}

impl<'a> NodeApiRequest<'a> {
    /// Returns the path of the request, with its query.
    pub fn path(self) -> String {
        match self {
            Self::Command(
                uid,
                GuestCommand::Freeze {
                    thaw_after: Some(seconds),
                },
            ) => format!("{GUESTS}{uid}/freeze?{THAW_AFTER}={seconds}"),
            Self::Command(uid, command) => format!("{GUESTS}{uid}/{}", command.as_str()),
            Self::Report(uid, report) => format!("{GUESTS}{uid}/{}", report.as_str()),
            Self::Stream(uid, stream, false) => format!("{GUESTS}{uid}/{}", stream.as_str()),
            Self::Stream(uid, stream, true) => format!("{GUESTS}{uid}/{}?{PRESERVE_SESSION}", stream.as_str()),
        }
    }

    /// Parses the path and the query of a request.
    pub fn parse(path: &'a str, query: Option<&str>) -> Option<Self> {
        let (uid, name) = path.strip_prefix(GUESTS)?.split_once('/')?;
        if uid.is_empty() {
            return None;
        }
        if let Some(stream) = GuestStream::ALL.into_iter().find(|known| known.as_str() == name) {
            return Some(Self::Stream(uid, stream, query == Some(PRESERVE_SESSION)));
        }
        if let Some(report) = GuestReport::ALL.into_iter().find(|known| known.as_str() == name) {
            return Some(Self::Report(uid, report));
        }
        Some(Self::Command(uid, GuestCommand::parse(name, query)?))
    }
}

/// The body of a response whose status is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeApiRefusal {
    /// Machine-readable reason.
    pub reason: RefusalReason,
    /// Human-readable message.
    pub message: String,
}

impl NodeApiRefusal {
    /// Creates a refusal.
    pub fn new(reason: RefusalReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

/// Why an agent refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalReason {
    /// The node does not know the guest, or the guest is not on the node.
    NotHere,
    /// The request is impossible in the present state of the guest.
    Conflict,
    /// Another client uses the stream, and the request does not replace that client.
    InUse,
    /// The node carries its maximum number of streams, or too many other requests are in progress.
    TooMany,
    /// The request failed, for example in libvirt or in the guest's pod.
    Failed,
    /// A reason of a later version.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_api_paths_parse_to_the_original_request() {
        let thaw_after = NonZeroU32::new(300);
        let commands = GuestCommand::ALL
            .into_iter()
            .chain([GuestCommand::Freeze { thaw_after }]);
        let mut requests: Vec<NodeApiRequest<'_>> = commands
            .map(|command| NodeApiRequest::Command("0-1", command))
            .collect();
        requests.extend(GuestReport::ALL.map(|report| NodeApiRequest::Report("0-1", report)));
        for stream in GuestStream::ALL {
            requests.extend([false, true].map(|preserve| NodeApiRequest::Stream("0-1", stream, preserve)));
        }
        for request in requests {
            let path = request.path();
            let (path, query) = path
                .split_once('?')
                .map_or((path.as_str(), None), |(path, query)| (path, Some(query)));
            assert_eq!(NodeApiRequest::parse(path, query), Some(request));
        }
        for (path, query) in [
            ("", None),
            ("/", None),
            ("/guests/0-1", None),
            ("/guests//pause", None),
            ("/guests/0-1/fly", None),
            ("/guests/0-1/pause/now", None),
            ("/others/0-1/pause", None),
            ("/guests/0-1/pause", Some("thawAfter=1")),
            ("/guests/0-1/freeze", Some("thawAfter=0")),
            ("/guests/0-1/freeze", Some("thawAfter=-1")),
            ("/guests/0-1/freeze", Some("after=1")),
        ] {
            assert_eq!(NodeApiRequest::parse(path, query), None, "{path} {query:?}");
        }
    }

    #[test]
    fn reason_of_a_later_version_is_unknown() {
        let refusal: NodeApiRefusal = serde_json::from_str(r#"{"reason": "Later", "message": "text"}"#).unwrap();
        assert_eq!(refusal.reason, RefusalReason::Unknown);
    }
}
