//! The operation of each method on a subresource.

use drydock_api::node_api::{GuestCommand, GuestReport, GuestStream};

use super::{GroupResource, SubresourceError, SubresourceTarget};

/// An operation on a machine or an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubresourceOperation {
    /// Starts a machine.
    Start,
    /// Stops a machine.
    Stop,
    /// Stops a machine and starts it again.
    Restart,
    /// Creates a migration of a machine's instance.
    Migrate,
    /// Returns a machine with its instance type expanded.
    ExpandSpec,
    /// Returns the machine in the request's body with its instance type expanded.
    ExpandGivenSpec,
    /// Removes the evacuation request of a machine's instance.
    CancelEvacuationOfMachine,
    /// Removes the evacuation request of an instance.
    CancelEvacuation,
    /// Sends a command to the guest of an instance.
    Command(GuestCommand),
    /// Freezes the file systems of the guest of an instance.
    Freeze,
    /// Returns a report about the guest of an instance.
    Report(GuestReport),
    /// Connects the client to a device of the guest.
    Stream(GuestStream),
    /// Connects the client to a port of the guest of an instance, or of a machine's instance.
    PortForward,
}

impl SubresourceOperation {
    /// Returns the operation's name for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
            Self::Migrate => "migrate",
            Self::ExpandSpec => "expand-spec",
            Self::ExpandGivenSpec => "expand-vm-spec",
            Self::CancelEvacuationOfMachine | Self::CancelEvacuation => "evacuate/cancel",
            Self::Command(command) => command.as_str(),
            Self::Freeze => "freeze",
            Self::Report(GuestReport::Screenshot) => "vnc/screenshot",
            Self::Report(report) => report.as_str(),
            Self::Stream(stream) => stream.as_str(),
            Self::PortForward => "portforward",
        }
    }
}

const PUT: &str = "PUT";
const GET: &str = "GET";

/// Returns the operation that a request names.
///
/// # Errors
/// 404 if KubeVirt has no such subresource, 405 if KubeVirt has it for other methods only, and KubeVirt's or Drydock's
/// refusal if Drydock does not implement it.
pub fn operation(method: &str, target: &SubresourceTarget) -> Result<SubresourceOperation, SubresourceError> {
    use GroupResource::{ExpandSpec, Instance, Machine};
    let (allowed, operation) = match (target.resource, target.subresource.as_str()) {
        (Machine, "start") => (PUT, Ok(SubresourceOperation::Start)),
        (Machine, "stop") => (PUT, Ok(SubresourceOperation::Stop)),
        (Machine, "restart") => (PUT, Ok(SubresourceOperation::Restart)),
        (Machine, "migrate") => (PUT, Ok(SubresourceOperation::Migrate)),
        (Machine, "expand-spec") => (GET, Ok(SubresourceOperation::ExpandSpec)),
        (Machine, "evacuate/cancel") => (PUT, Ok(SubresourceOperation::CancelEvacuationOfMachine)),
        (Instance, "evacuate/cancel") => (PUT, Ok(SubresourceOperation::CancelEvacuation)),
        (ExpandSpec, "") => (PUT, Ok(SubresourceOperation::ExpandGivenSpec)),
        (Instance, "pause") => (PUT, Ok(SubresourceOperation::Command(GuestCommand::Pause))),
        (Instance, "unpause") => (PUT, Ok(SubresourceOperation::Command(GuestCommand::Unpause))),
        (Instance, "softreboot") => (PUT, Ok(SubresourceOperation::Command(GuestCommand::SoftReboot))),
        (Instance, "reset") => (PUT, Ok(SubresourceOperation::Command(GuestCommand::Reset))),
        (Instance, "freeze") => (PUT, Ok(SubresourceOperation::Freeze)),
        (Instance, "unfreeze") => (PUT, Ok(SubresourceOperation::Command(GuestCommand::Unfreeze))),
        (Instance, "guestosinfo") => (GET, Ok(SubresourceOperation::Report(GuestReport::GuestOsInfo))),
        (Instance, "userlist") => (GET, Ok(SubresourceOperation::Report(GuestReport::UserList))),
        (Instance, "filesystemlist") => (GET, Ok(SubresourceOperation::Report(GuestReport::FilesystemList))),
        (Instance, "vnc/screenshot") => (GET, Ok(SubresourceOperation::Report(GuestReport::Screenshot))),
        (Instance, "console") => (GET, Ok(SubresourceOperation::Stream(GuestStream::Console))),
        (Instance, "vnc") => (GET, Ok(SubresourceOperation::Stream(GuestStream::Vnc))),
        (Machine | Instance, "portforward") => (GET, Ok(SubresourceOperation::PortForward)),
        (Machine | Instance, "addvolume" | "removevolume") => (PUT, Err("volume hotplug")),
        (Machine, "memorydump" | "removememorydump") => (PUT, Err("memory dumps")),
        (Instance, "backup" | "redefine-checkpoint" | "sev/setupsession" | "sev/injectlaunchsecret") => {
            (PUT, Err(subject(&target.subresource)))
        }
        (Instance, "vsock" | "usbredir" | "sev/fetchcertchain" | "sev/querylaunchmeasurement") => {
            (GET, Err(subject(&target.subresource)))
        }
        (Machine | Instance, "objectgraph") => (GET, Err("object graphs")),
        _ => return Err(SubresourceError::no_such_path()),
    };
    if method != allowed {
        return Err(SubresourceError::method_not_allowed(allowed));
    }
    operation.map_err(SubresourceError::not_supported)
}

/// Returns the topic of a subresource, which follows "Drydock does not support".
fn subject(subresource: &str) -> &'static str {
    match subresource {
        "backup" | "redefine-checkpoint" => "backups of guests",
        "vsock" => "AF_VSOCK sockets",
        "usbredir" => "USB redirection",
        _ => "encrypted guests",
    }
}
