//! Executes the commands of users on a guest. [`drydock_core::guest_command`] decides the effect of a command.

use std::num::NonZeroU32;

use drydock_api::{
    kubevirt::VirtualMachineInstance,
    node_api::{GuestCommand, NodeApiRefusal, RefusalReason},
};
use drydock_core::guest_command::{self, CommandInput, GuestCall, RunState};
use drydock_host::domain::{CallError, DomainHandle, DomainState, PausedReason, ShutdownBy};
use drydock_runtime::{Events, Severity, chain};
use kube::ResourceExt;
use tracing::{info, warn};

use super::{directory::CommandRequest, status_report::publish_event};

/// A change to the file systems of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileSystems {
    /// Freezes the file systems. They are thawed after this number of seconds, or never if `None`.
    Freeze(Option<NonZeroU32>),
    /// Thaws the file systems.
    Thaw,
}

/// State and resources that commands depend on besides libvirt.
pub(super) struct CommandContext<'a> {
    /// VMI of the guest.
    pub(super) instance: &'a VirtualMachineInstance,
    /// Name of the agent's own node.
    pub(super) node: &'a str,
    /// Whether the guest agent is connected.
    pub(super) agent_connected: bool,
    /// Sink for events.
    pub(super) events: &'a Events,
}

/// Executes a command and reports the result to the sender. `file_systems` freezes and thaws the guest's file systems.
pub(super) async fn carry_out(
    handle: &DomainHandle,
    target: &CommandContext<'_>,
    request: CommandRequest,
    file_systems: impl AsyncFnOnce(FileSystems) -> Result<(), NodeApiRefusal>,
) {
    // The user was informed that the command failed, so it must not be executed later.
    if request.result.is_closed() {
        return;
    }
    let command = request.command;
    let result = execute(handle, target, command, file_systems).await;
    let vmi = format!(
        "{}/{}",
        target.instance.namespace().unwrap_or_default(),
        target.instance.name_any()
    );
    match &result {
        Ok(()) => {
            info!(vmi, command = command.as_str(), "command executed");
            if let Some((reason, note)) = event(command) {
                publish_event(target.events, target.instance, Severity::Normal, reason, note.into());
            }
        }
        Err(refusal) => warn!(
            vmi,
            command = command.as_str(),
            error = refusal.message,
            "command failed"
        ),
    }
    // The sender may have stopped waiting.
    let _ = request.result.send(result);
}

/// Converts an error of a libvirt call.
pub(super) fn failed(error: &CallError) -> NodeApiRefusal {
    NodeApiRefusal::new(RefusalReason::Failed, chain(error).to_string())
}

async fn execute(
    handle: &DomainHandle,
    target: &CommandContext<'_>,
    command: GuestCommand,
    file_systems: impl AsyncFnOnce(FileSystems) -> Result<(), NodeApiRefusal>,
) -> Result<(), NodeApiRefusal> {
    let activity = match handle.state().await {
        Ok(state) => activity(state),
        Err(CallError::NoDomain) => RunState::Off,
        Err(error) => return Err(failed(&error)),
    };
    let activity = match activity {
        RunState::Running | RunState::Paused if handle.job().await.map_err(|error| failed(&error))?.is_some() => {
            RunState::Migrating
        }
        activity => activity,
    };
    let facts = CommandInput {
        instance: target.instance,
        node: target.node,
        activity,
        agent_connected: target.agent_connected,
    };
    match guest_command::plan(&facts, command)? {
        GuestCall::Suspend => handle.suspend().await,
        GuestCall::Resume => handle.resume().await,
        GuestCall::RebootByPowerButton => handle.reboot(ShutdownBy::PowerButton).await,
        GuestCall::RebootByAgent => match handle.reboot(ShutdownBy::Agent).await {
            // A guest agent that does not respond may hang, or may restart the guest before it responds.
            Err(CallError::AgentUnresponsive(_)) => Ok(()),
            result => result,
        },
        GuestCall::Reset => handle.reset().await,
        GuestCall::Freeze { thaw_after } => return file_systems(FileSystems::Freeze(thaw_after)).await,
        GuestCall::Thaw => return file_systems(FileSystems::Thaw).await,
    }
    .map_err(|error| failed(&error))
}

/// Returns the Kubernetes event of a command, with KubeVirt's reason. The VMI's condition reports pauses as well.
fn event(command: GuestCommand) -> Option<(&'static str, &'static str)> {
    Some(match command {
        GuestCommand::Pause => ("Paused", "VirtualMachineInstance paused"),
        GuestCommand::Unpause => ("Unpaused", "VirtualMachineInstance unpaused"),
        GuestCommand::SoftReboot => ("SoftRebooted", "VirtualMachineInstance soft rebooted"),
        GuestCommand::Reset => ("Reset", "VirtualMachineInstance reset"),
        GuestCommand::Freeze { .. } => ("Frozen", "The guest's file systems were frozen."),
        GuestCommand::Unfreeze => ("Thawed", "The guest's file systems were thawed."),
    })
}

fn activity(state: DomainState) -> RunState {
    match state {
        DomainState::Running(_) | DomainState::Blocked => RunState::Running,
        DomainState::Paused(
            PausedReason::Migration
            | PausedReason::PostCopy
            | PausedReason::PostCopyFailed
            // The guest arrives by migration, or its QEMU is starting.
            | PausedReason::StartingUp,
        ) => RunState::Migrating,
        DomainState::Paused(_) | DomainState::PmSuspended => RunState::Paused,
        DomainState::NoState | DomainState::ShuttingDown | DomainState::ShutOff(_) | DomainState::Crashed(_) | DomainState::Unknown { .. } => {
            RunState::Off
        }
    }
}

#[cfg(test)]
mod tests {
    use drydock_host::{
        domain::{InitialState, RunningReason, ShutOffReason},
        fake::fake_guest::FakeLibvirt,
    };
    use drydock_runtime::{EventMetrics, Process, Registry, Reporter, fake::api_server};
    use serde_json::json;
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn guest_that_stands_still_for_a_migration_is_migrating() {
        for (state, expected) in [
            (DomainState::Running(RunningReason::Booted), RunState::Running),
            (DomainState::Blocked, RunState::Running),
            (DomainState::Paused(PausedReason::User), RunState::Paused),
            (DomainState::Paused(PausedReason::IoError), RunState::Paused),
            (DomainState::Paused(PausedReason::Migration), RunState::Migrating),
            (DomainState::Paused(PausedReason::PostCopy), RunState::Migrating),
            (DomainState::Paused(PausedReason::PostCopyFailed), RunState::Migrating),
            (DomainState::Paused(PausedReason::StartingUp), RunState::Migrating),
            (DomainState::PmSuspended, RunState::Paused),
            (DomainState::ShuttingDown, RunState::Off),
            (DomainState::ShutOff(ShutOffReason::Migrated), RunState::Off),
            (DomainState::NoState, RunState::Off),
        ] {
            assert_eq!(activity(state), expected, "{state}");
        }
    }

    fn events() -> Events {
        let reporter = Reporter {
            component: "test",
            instance: "test".into(),
        };
        let metrics = EventMetrics::register(&mut Registry::default());
        Events::start(&Process::new(), api_server().0, reporter, &metrics)
    }

    async fn send(handle: &DomainHandle, command: GuestCommand, node: &str) -> Result<(), NodeApiRefusal> {
        let instance: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "vm", "namespace": "ns"},
            "spec": {"domain": {"devices": {}}},
            "status": {"phase": "Running", "nodeName": "here"},
        }))
        .unwrap();
        let target = CommandContext {
            instance: &instance,
            node,
            agent_connected: true,
            events: &events(),
        };
        let (result, carried_out) = oneshot::channel();
        let request = CommandRequest { command, result };
        carry_out(handle, &target, request, async |file_systems| match file_systems {
            FileSystems::Freeze(_) => handle.freeze().await.map_err(|error| failed(&error)),
            FileSystems::Thaw => handle.thaw().await.map_err(|error| failed(&error)),
        })
        .await;
        carried_out.await.unwrap()
    }

    #[tokio::test]
    async fn commands_reach_libvirt_only_where_the_guest_is() {
        let libvirt = FakeLibvirt::default();
        let (handle, _events) = libvirt.connect("ns_vm").await.unwrap();
        handle.define("<domain/>").await.unwrap();
        assert!(send(&handle, GuestCommand::Pause, "here").await.is_err());
        handle.create(InitialState::Running).await.unwrap();
        assert_eq!(
            send(&handle, GuestCommand::Pause, "there").await.unwrap_err().reason,
            RefusalReason::NotHere
        );
        send(&handle, GuestCommand::Pause, "here").await.unwrap();
        assert_eq!(libvirt.state(), Some(DomainState::Paused(PausedReason::User)));
        send(&handle, GuestCommand::Unpause, "here").await.unwrap();
        assert_eq!(libvirt.state(), Some(DomainState::Running(RunningReason::Unpaused)));
        send(&handle, GuestCommand::SoftReboot, "here").await.unwrap();
        send(&handle, GuestCommand::Reset, "here").await.unwrap();
        let freeze = GuestCommand::Freeze { thaw_after: None };
        send(&handle, freeze, "here").await.unwrap();
        send(&handle, GuestCommand::Unfreeze, "here").await.unwrap();
        assert_eq!(
            libvirt.calls(),
            [
                "define", "create", "suspend", "resume", "reboot", "reset", "freeze", "thaw"
            ]
        );
    }

    #[tokio::test]
    async fn command_abandoned_by_the_sender_is_not_executed() {
        let libvirt = FakeLibvirt::default();
        let (handle, _events) = libvirt.connect("ns_vm").await.unwrap();
        handle.define("<domain/>").await.unwrap();
        handle.create(InitialState::Running).await.unwrap();
        let instance: VirtualMachineInstance =
            serde_json::from_value(json!({"metadata": {"name": "vm"}, "spec": {"domain": {"devices": {}}}})).unwrap();
        let target = CommandContext {
            instance: &instance,
            node: "here",
            agent_connected: false,
            events: &events(),
        };
        let (result, carried_out) = oneshot::channel();
        drop(carried_out);
        let command = GuestCommand::Pause;
        let request = CommandRequest { command, result };
        carry_out(&handle, &target, request, async |_| Ok(())).await;
        assert_eq!(libvirt.calls(), ["define", "create"]);
    }
}
