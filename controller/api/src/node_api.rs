//! The contract of an agent's port, through which controllers reach the guests of its node: commands, and the streams of
//! consoles.
//!
//! ```text
//! controller ── PUT /guests/UID/pause ─────────────────────▶ agent ── libvirt ─▶ guest
//!            ── GET /guests/UID/console, Upgrade: stream ──▶       ── socket in the pod
//! ```
//!
//! TLS 1.3 with a certificate on each side: the agent's is made when its process starts, and controllers know it by the
//! fingerprint in the node's Hypervisor; the controller's is that of its webhooks, which agents verify by the bundle in
//! the APIService that API servers verify it by.

use serde::{Deserialize, Serialize};

/// The APIService whose `caBundle` agents verify controllers by.
pub const TRUST_ANCHOR: &str = "v1.subresources.kubevirt.io";
/// The protocol of a stream, in the header `Upgrade`: bytes of the guest's device in both directions.
pub const STREAM_PROTOCOL: &str = "drydock-stream";
/// Query of a stream's path: the stream is refused while there is another, instead of replacing it.
pub const PRESERVE_SESSION: &str = "preserve=true";
/// Path below which guests are, by the UID of their VirtualMachineInstance.
const GUESTS: &str = "/guests/";

/// A command to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GuestCommand {
    /// Stops its virtual CPUs.
    Pause,
    /// Lets them continue.
    Unpause,
    /// Requests that its operating system restarts.
    SoftReboot,
    /// Restarts its virtual machine at once, like a reset button.
    Reset,
}

impl GuestCommand {
    /// All commands.
    pub const ALL: [Self; 4] = [Self::Pause, Self::Unpause, Self::SoftReboot, Self::Reset];

    /// Returns the name in paths, which is that of KubeVirt's subresource.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Unpause => "unpause",
            Self::SoftReboot => "softreboot",
            Self::Reset => "reset",
        }
    }
}

/// A device of a guest that is carried as a stream of bytes.
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

    /// Returns the name in paths, which is that of KubeVirt's subresource.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Console => "console",
            Self::Vnc => "vnc",
        }
    }
}

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// A command to the guest with this UID.
    Command(&'a str, GuestCommand),
    /// A stream of the guest with this UID.
    Stream(&'a str, GuestStream),
}

impl<'a> Request<'a> {
    /// Returns the path.
    pub fn path(self) -> String {
        let (uid, name) = match self {
            Self::Command(uid, command) => (uid, command.as_str()),
            Self::Stream(uid, stream) => (uid, stream.as_str()),
        };
        format!("{GUESTS}{uid}/{name}")
    }

    /// Parses a path, without its query.
    pub fn parse(path: &'a str) -> Option<Self> {
        let (uid, name) = path.strip_prefix(GUESTS)?.split_once('/')?;
        let command = GuestCommand::ALL.into_iter().find(|known| known.as_str() == name);
        let stream = GuestStream::ALL.into_iter().find(|known| known.as_str() == name);
        command
            .map(|command| Self::Command(uid, command))
            .or_else(|| stream.map(|stream| Self::Stream(uid, stream)))
            .filter(|_| !uid.is_empty())
    }
}

/// The body of a response whose status is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Why, for decisions.
    pub reason: RefusalReason,
    /// The same for people.
    pub message: String,
}

impl Refusal {
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
    /// The node has no such guest, or its guest does not run there.
    NotHere,
    /// The guest is in a state in which this cannot be done.
    Conflict,
    /// The stream is in use, and the request does not replace it.
    InUse,
    /// The node carries as many streams as it may.
    TooMany,
    /// libvirt or the guest's pod does not do it.
    Failed,
    /// A reason of a later version.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_parsed_to_what_they_were_made_of() {
        for command in GuestCommand::ALL {
            let request = Request::Command("0-1", command);
            assert_eq!(Request::parse(&request.path()), Some(request));
        }
        for stream in GuestStream::ALL {
            let request = Request::Stream("0-1", stream);
            assert_eq!(Request::parse(&request.path()), Some(request));
        }
        for path in [
            "",
            "/",
            "/guests/0-1",
            "/guests//pause",
            "/guests/0-1/fly",
            "/guests/0-1/pause/now",
            "/others/0-1/pause",
        ] {
            assert_eq!(Request::parse(path), None, "{path}");
        }
    }

    #[test]
    fn reason_of_a_later_version_is_unknown() {
        let refusal: Refusal = serde_json::from_str(r#"{"reason": "Later", "message": "text"}"#).unwrap();
        assert_eq!(refusal.reason, RefusalReason::Unknown);
    }
}
