//! Checks of the subresources of an instance: commands to its guest, the streams of its consoles, and connections to
//! its ports.
//!
//! A command is refused while a migration moves the guest: its effect on one node could be lost on the other. The agent
//! of the guest's node checks that again by libvirt, since the instance may be outdated. A guest that only waits for
//! its migration accepts commands; a paused guest stays paused when it moves.

use std::net::IpAddr;

use drydock_api::{
    kubevirt::{
        Condition, Phase, VirtualMachineInstance, VirtualMachineInstanceStatus,
        names::conditions::{AGENT_CONNECTED, PAUSED},
    },
    node_api::{GuestCommand, GuestReport, GuestStream, NodeApiRefusal, RefusalReason},
};

use super::{GroupResource, SubresourceError};
use crate::guest_command::NO_AGENT;

/// Longest reason of a closed websocket, in bytes (RFC 6455, 5.5: 125 with the code).
const LONGEST_REASON: usize = 123;

/// Why a stream was closed, for the client's websocket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Close {
    /// The code (RFC 6455, 7.4.1).
    pub code: u16,
    /// The reason.
    pub reason: String,
}

/// The transport of a forwarded port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP: one connection.
    Tcp,
    /// UDP: datagrams, each of which is one message of the websocket.
    Udp,
}

/// A port of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardedPort {
    /// Number of the port.
    pub number: u16,
    /// Transport of the port.
    pub transport: Transport,
}

fn conflict(name: &str, why: &str) -> SubresourceError {
    SubresourceError::conflict(GroupResource::Instance, name, why)
}

fn found<'a>(
    name: &str,
    instance: Option<&'a VirtualMachineInstance>,
) -> Result<&'a VirtualMachineInstance, SubresourceError> {
    instance.ok_or_else(|| SubresourceError::not_found(GroupResource::Instance, name))
}

fn status(instance: &VirtualMachineInstance) -> Option<&VirtualMachineInstanceStatus> {
    instance.status.as_ref()
}

fn phase(instance: &VirtualMachineInstance) -> Phase {
    instance.phase().unwrap_or_default()
}

fn is_true(instance: &VirtualMachineInstance, type_: &str) -> bool {
    let holds = |condition: &Condition| condition.type_ == type_ && condition.status == "True";
    status(instance).is_some_and(|status| status.conditions.iter().any(holds))
}

/// Returns the node to which a migration moves the guest now, if a migration does.
fn migrates_to(instance: &VirtualMachineInstance) -> Option<&str> {
    let state = status(instance)?.migration_state.as_ref()?;
    (!state.has_ended()).then(|| state.target_node.as_deref().unwrap_or("another node"))
}

/// Checks a command to the guest of an instance, and returns the instance.
///
/// KubeVirt refuses to pause a guest with a liveness probe, which would fail; Drydock's probes are suspended while a
/// guest is paused.
///
/// # Errors
/// 404 if there is no instance, 409 with KubeVirt's message if its state does not allow the command (400 for `reset`),
/// and 409 while a migration moves the guest.
pub fn command<'a>(
    name: &str,
    instance: Option<&'a VirtualMachineInstance>,
    command: GuestCommand,
) -> Result<&'a VirtualMachineInstance, SubresourceError> {
    let instance = found(name, instance)?;
    let (phase, paused) = (phase(instance), is_true(instance, PAUSED));
    let runs = phase == Phase::Running;
    match command {
        GuestCommand::Pause if !runs => return Err(conflict(name, "VM is not running")),
        GuestCommand::Pause if paused => return Err(conflict(name, "VMI is already paused")),
        GuestCommand::Unpause if !runs => return Err(conflict(name, "VMI is not running")),
        GuestCommand::Unpause if !paused => return Err(conflict(name, "VMI is not paused")),
        GuestCommand::SoftReboot if !runs => return Err(conflict(name, "VM is not running")),
        GuestCommand::SoftReboot if paused => return Err(conflict(name, "VMI is paused")),
        GuestCommand::Freeze { .. } if !runs => return Err(conflict(name, "VM is not running")),
        GuestCommand::Unfreeze if !runs => return Err(conflict(name, "VMI is not running")),
        // A thaw does not change where the guest runs, and must not wait.
        GuestCommand::Unfreeze => return Ok(instance),
        GuestCommand::Reset if !runs => {
            return Err(SubresourceError::bad_request(format!(
                "Failed to reset non-running VMI with phase {}: Unable to connect to VirtualMachineInstance because \
                 phase is {} instead of Running",
                phase.as_str(),
                phase.as_str()
            )));
        }
        GuestCommand::Pause
        | GuestCommand::Unpause
        | GuestCommand::SoftReboot
        | GuestCommand::Reset
        | GuestCommand::Freeze { .. } => {}
    }
    if let Some(node) = migrates_to(instance) {
        let why =
            format!("VMI is migrating to node {node}; wait until the migration has ended, or cancel the migration");
        return Err(conflict(name, &why));
    }
    Ok(instance)
}

/// Checks a stream of the guest of an instance, and returns the instance.
///
/// # Errors
/// 404 if there is no instance; 400 if the guest has no such device, or does not run yet, upon which `virtctl console`
/// tries again; 409 if the guest will not run any more. (KubeVirt's code is 400 for an instance that has succeeded, so
/// that its `virtctl` waits for nothing.)
pub fn stream<'a>(
    name: &str,
    instance: Option<&'a VirtualMachineInstance>,
    stream: GuestStream,
) -> Result<&'a VirtualMachineInstance, SubresourceError> {
    let instance = found(name, instance)?;
    let devices = &instance.spec.domain.devices;
    match stream {
        GuestStream::Console if devices.autoattach_serial_console == Some(false) => {
            return Err(SubresourceError::bad_request("No serial consoles are present."));
        }
        GuestStream::Vnc if devices.autoattach_graphics_device == Some(false) => {
            return Err(SubresourceError::bad_request("No graphics devices are present."));
        }
        GuestStream::Console | GuestStream::Vnc => {}
    }
    match phase(instance) {
        Phase::Running => Ok(instance),
        Phase::Failed => Err(conflict(name, "VMI is in failed status")),
        Phase::Succeeded => Err(conflict(name, "VMI is in succeeded status")),
        _ => Err(SubresourceError::bad_request("VMI is not running")),
    }
}

/// Checks a report about the guest of an instance, and returns the instance.
///
/// # Errors
/// For a screenshot, the same as for a stream of the display. For all other reports, 404 if there is no instance, and
/// 409 with KubeVirt's message if the guest does not run, or its guest agent is not connected. (KubeVirt's code is 500
/// for each.)
pub fn report<'a>(
    name: &str,
    instance: Option<&'a VirtualMachineInstance>,
    report: GuestReport,
) -> Result<&'a VirtualMachineInstance, SubresourceError> {
    if report == GuestReport::Screenshot {
        return stream(name, instance, GuestStream::Vnc);
    }
    let instance = found(name, instance)?;
    if phase(instance) != Phase::Running {
        return Err(conflict(name, "VMI is not running"));
    }
    if !is_true(instance, AGENT_CONNECTED) {
        return Err(conflict(name, NO_AGENT));
    }
    Ok(instance)
}

/// Returns the node on which the guest of an instance is.
///
/// # Errors
/// 400 if the guest has no node yet.
pub fn node(instance: &VirtualMachineInstance) -> Result<&str, SubresourceError> {
    let node = status(instance).and_then(|status| status.node_name.as_deref());
    node.ok_or_else(|| SubresourceError::bad_request("VMI is not running"))
}

/// Parses the part of a path after `portforward`.
///
/// # Errors
/// 400 if that part is not a port, optionally followed by a transport.
pub fn port(rest: &[String]) -> Result<ForwardedPort, SubresourceError> {
    let (number, transport) = match rest {
        [number] => (number, "tcp"),
        [number, transport] => (number, transport.as_str()),
        _ => {
            return Err(SubresourceError::bad_request(
                "portforward: a port is required, as in portforward/22/tcp",
            ));
        }
    };
    let transport = match transport {
        "tcp" => Transport::Tcp,
        "udp" => Transport::Udp,
        other => {
            let why = format!("portforward: transport {other:?} is not allowed; allowed: \"tcp\", \"udp\"");
            return Err(SubresourceError::bad_request(why));
        }
    };
    match number.parse() {
        Ok(number) if number > 0 => Ok(ForwardedPort { number, transport }),
        _ => Err(SubresourceError::bad_request(format!(
            "portforward: port {number:?} is not allowed; allowed: 1 to 65535"
        ))),
    }
}

/// Returns the address at which the ports of an instance's guest are reached.
///
/// # Errors
/// 409 if the guest is paused, 400 if it has no address.
pub fn address(name: &str, instance: &VirtualMachineInstance) -> Result<IpAddr, SubresourceError> {
    if is_true(instance, PAUSED) {
        return Err(conflict(name, "VMI is paused"));
    }
    let first = status(instance).and_then(|status| status.interfaces.first());
    let address = first.and_then(|interface| interface.ip_address.as_deref()?.parse().ok());
    address.ok_or_else(|| SubresourceError::bad_request("no network interfaces are present"))
}

/// Converts an agent's refusal of a request about an instance to the failure that clients receive.
pub fn refused(name: &str, refusal: &NodeApiRefusal) -> SubresourceError {
    let why = refusal.message.as_str();
    match refusal.reason {
        RefusalReason::NotHere | RefusalReason::Conflict => conflict(name, why),
        RefusalReason::TooMany => SubresourceError::too_many(why),
        RefusalReason::InUse | RefusalReason::Failed | RefusalReason::Unknown => SubresourceError::internal(why),
    }
}

/// Returns why a stream has ended at the guest's side, given the instance with which it began and the current one.
/// `None` if the reason is unknown: another client has taken the stream, or the connection broke.
pub fn close(before: &VirtualMachineInstance, now: Option<&VirtualMachineInstance>) -> Option<Close> {
    /// Code for a stream that does not continue (going away).
    const AWAY: u16 = 1001;
    /// Code for a stream that the client may open again (service restart).
    const AGAIN: u16 = 1012;
    let (code, reason) = match now {
        None => (AWAY, "the virtual machine instance was deleted".to_owned()),
        Some(now) if now.metadata.uid != before.metadata.uid => {
            (AGAIN, "the virtual machine was restarted: connect again".to_owned())
        }
        Some(now) if phase(now).is_final() => (AWAY, "the guest has ended".to_owned()),
        Some(now) => {
            let node = |instance| status(instance).and_then(|status| status.node_name.as_deref());
            let elsewhere = node(now).filter(|here| Some(*here) != node(before));
            let to = elsewhere.or_else(|| migrates_to(now))?;
            (
                AGAIN,
                format!("the guest has moved, connect again: it migrated to node {to}"),
            )
        }
    };
    let mut end = reason.len().min(LONGEST_REASON);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let reason = reason[..end].to_owned();
    Some(Close { code, reason })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn instance(phase: &str, change: impl FnOnce(&mut Value)) -> VirtualMachineInstance {
        let mut object = json!({
            "metadata": {"name": "vm", "uid": "i"},
            "spec": {"domain": {"devices": {}}},
            "status": {"phase": phase, "nodeName": "a", "conditions": []},
        });
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    fn with(condition: &str) -> impl FnOnce(&mut Value) {
        let condition = json!([{"type": condition, "status": "True"}]);
        move |object| object["status"]["conditions"] = condition
    }

    fn outcome<T>(result: Result<T, SubresourceError>) -> (u16, String) {
        result.map_or_else(
            |failure| {
                let prefix = "Operation cannot be fulfilled on virtualmachineinstance.kubevirt.io \"vm\": ";
                (failure.code, failure.message.replace(prefix, ""))
            },
            |_| (200, String::new()),
        )
    }

    #[test]
    fn command_checks_have_order_and_text_of_kubevirt() {
        use GuestCommand::{Pause, Reset, SoftReboot, Unpause};
        let plain = |_: &mut Value| {};
        for (given, commands) in [
            (
                instance("Running", plain),
                [
                    (Pause, 200, ""),
                    (Unpause, 409, "VMI is not paused"),
                    (SoftReboot, 200, ""),
                    (Reset, 200, ""),
                ],
            ),
            (
                instance("Running", with("Paused")),
                [
                    (Pause, 409, "VMI is already paused"),
                    (Unpause, 200, ""),
                    (SoftReboot, 409, "VMI is paused"),
                    (Reset, 200, ""),
                ],
            ),
            (
                instance("Scheduled", plain),
                [
                    (Pause, 409, "VM is not running"),
                    (Unpause, 409, "VMI is not running"),
                    (SoftReboot, 409, "VM is not running"),
                    (
                        Reset,
                        400,
                        "Failed to reset non-running VMI with phase Scheduled: Unable to connect to \
                         VirtualMachineInstance because phase is Scheduled instead of Running",
                    ),
                ],
            ),
        ] {
            for (requested, code, message) in commands {
                let result = outcome(command("vm", Some(&given), requested));
                assert_eq!(result, (code, message.to_owned()), "{requested:?}");
            }
        }
        let result = outcome(command("vm", None, Pause));
        assert_eq!(
            result,
            (404, "virtualmachineinstance.kubevirt.io \"vm\" not found".to_owned())
        );
    }

    #[test]
    fn commands_are_refused_while_a_migration_has_the_guest() {
        for (state, refused) in [
            (json!({"targetNode": "b"}), true),
            (json!({}), true),
            (json!({"targetNode": "b", "completed": true}), false),
            (json!({"targetNode": "b", "failed": true}), false),
        ] {
            for requested in [GuestCommand::Pause, GuestCommand::SoftReboot, GuestCommand::Reset] {
                let moving = instance("Running", |object| object["status"]["migrationState"] = state.clone());
                let (code, message) = outcome(command("vm", Some(&moving), requested));
                assert_eq!(code == 409, refused, "{state} {requested:?}");
                assert_eq!(message.starts_with("VMI is migrating to "), refused, "{message}");
            }
        }
    }

    #[test]
    fn report_needs_a_guest_agent_that_is_connected() {
        let connected = instance("Running", with(AGENT_CONNECTED));
        let without_agent = instance("Running", |_| {});
        let starting = instance("Scheduled", with(AGENT_CONNECTED));
        for kind in [
            GuestReport::GuestOsInfo,
            GuestReport::UserList,
            GuestReport::FilesystemList,
        ] {
            for (given, expected) in [
                (Some(&connected), (200, "")),
                (Some(&without_agent), (409, NO_AGENT)),
                (Some(&starting), (409, "VMI is not running")),
                (None, (404, "virtualmachineinstance.kubevirt.io \"vm\" not found")),
            ] {
                let (code, message) = outcome(report("vm", given, kind));
                assert_eq!((code, message.as_str()), expected, "{kind:?}");
            }
        }
        // QEMU takes the screenshot, without the guest agent.
        assert_eq!(
            outcome(report("vm", Some(&without_agent), GuestReport::Screenshot)).0,
            200
        );
        assert_eq!(outcome(report("vm", Some(&starting), GuestReport::Screenshot)).0, 400);
    }

    #[test]
    fn frozen_guest_is_thawed_even_during_a_migration() {
        let moving = instance("Running", |object| {
            object["status"]["migrationState"] = json!({"targetNode": "b"});
        });
        let freeze = GuestCommand::Freeze { thaw_after: None };
        assert_eq!(outcome(command("vm", Some(&moving), freeze)).0, 409);
        assert_eq!(outcome(command("vm", Some(&moving), GuestCommand::Unfreeze)).0, 200);
        let ended = instance("Succeeded", |_| {});
        assert_eq!(
            outcome(command("vm", Some(&ended), freeze)),
            (409, "VM is not running".into())
        );
        let unfreeze = outcome(command("vm", Some(&ended), GuestCommand::Unfreeze));
        assert_eq!(unfreeze, (409, "VMI is not running".into()));
    }

    #[test]
    fn stream_needs_the_device_and_a_running_guest() {
        let without = |object: &mut Value| {
            object["spec"]["domain"]["devices"] =
                json!({"autoattachSerialConsole": false, "autoattachGraphicsDevice": false});
        };
        for (given, console, vnc) in [
            (instance("Running", |_| {}), (200, ""), (200, "")),
            (
                instance("Running", without),
                (400, "No serial consoles are present."),
                (400, "No graphics devices are present."),
            ),
            (
                instance("Scheduling", |_| {}),
                (400, "VMI is not running"),
                (400, "VMI is not running"),
            ),
            (
                instance("Failed", |_| {}),
                (409, "VMI is in failed status"),
                (409, "VMI is in failed status"),
            ),
            (
                instance("Succeeded", |_| {}),
                (409, "VMI is in succeeded status"),
                (409, "VMI is in succeeded status"),
            ),
        ] {
            for (kind, (code, message)) in [(GuestStream::Console, console), (GuestStream::Vnc, vnc)] {
                let result = outcome(stream("vm", Some(&given), kind));
                assert_eq!(result, (code, message.to_owned()), "{kind:?}");
            }
        }
        assert_eq!(outcome(stream("vm", None, GuestStream::Vnc)).0, 404);
    }

    #[test]
    fn agent_refusal_becomes_a_status_with_the_message() {
        for (reason, code) in [
            (RefusalReason::NotHere, 409),
            (RefusalReason::Conflict, 409),
            (RefusalReason::InUse, 500),
            (RefusalReason::TooMany, 429),
            (RefusalReason::Failed, 500),
            (RefusalReason::Unknown, 500),
        ] {
            let refusal = NodeApiRefusal {
                reason,
                message: "why".into(),
            };
            let failure = refused("vm", &refusal);
            assert_eq!(failure.code, code, "{reason:?}");
            assert!(failure.message.ends_with("why"), "{}", failure.message);
        }
    }

    #[test]
    fn port_is_a_number_and_maybe_a_transport() {
        let (tcp, udp) = (Transport::Tcp, Transport::Udp);
        for (rest, expected) in [
            (&["22"][..], Some((22, tcp))),
            (&["22", "tcp"], Some((22, tcp))),
            (&["53", "udp"], Some((53, udp))),
            (&["65535"], Some((65535, tcp))),
            (&["0"], None),
            (&["65536"], None),
            (&["ssh"], None),
            (&["22", "sctp"], None),
            (&[], None),
            (&["22", "tcp", "more"], None),
        ] {
            let rest: Vec<String> = rest.iter().map(|part| (*part).to_owned()).collect();
            let expected = expected.map(|(number, transport)| ForwardedPort { number, transport });
            assert_eq!(port(&rest).ok(), expected, "{rest:?}");
        }
    }

    #[test]
    fn address_is_of_the_first_interface_unless_paused() {
        let interfaces = |object: &mut Value| {
            object["status"]["interfaces"] = json!([{"ipAddress": "10.0.0.1"}, {"ipAddress": "::1"}]);
        };
        let given = instance("Running", interfaces);
        assert_eq!(address("vm", &given).unwrap().to_string(), "10.0.0.1");
        let none = instance("Running", |_| {});
        assert_eq!(outcome(address("vm", &none)).1, "no network interfaces are present");
        let paused = instance("Running", |object| {
            interfaces(object);
            with("Paused")(object);
        });
        assert_eq!(outcome(address("vm", &paused)), (409, "VMI is paused".to_owned()));
    }

    #[test]
    fn closed_stream_has_a_reason_where_the_guest_left_or_ended() {
        let before = instance("Running", |_| {});
        let again = |object: &mut Value| object["metadata"]["uid"] = json!("j");
        let moved = |object: &mut Value| object["status"]["nodeName"] = json!("b");
        let moving = |object: &mut Value| object["status"]["migrationState"] = json!({"targetNode": "c"});
        let far = |object: &mut Value| object["status"]["nodeName"] = json!("é".repeat(120));
        for (now, expected) in [
            (None, Some((1001, "the virtual machine instance was deleted"))),
            (
                Some(instance("Running", again)),
                Some((1012, "the virtual machine was restarted: connect again")),
            ),
            (Some(instance("Succeeded", |_| {})), Some((1001, "the guest has ended"))),
            (
                Some(instance("Running", moved)),
                Some((1012, "the guest has moved, connect again: it migrated to node b")),
            ),
            (
                Some(instance("Running", moving)),
                Some((1012, "the guest has moved, connect again: it migrated to node c")),
            ),
            (Some(instance("Running", |_| {})), None),
        ] {
            let expected = expected.map(|(code, reason)| Close {
                code,
                reason: reason.to_owned(),
            });
            assert_eq!(close(&before, now.as_ref()), expected);
        }
        let long = close(&before, Some(&instance("Running", far))).unwrap();
        assert!(long.reason.len() <= LONGEST_REASON && long.reason.len() > LONGEST_REASON - 2);
    }
}
