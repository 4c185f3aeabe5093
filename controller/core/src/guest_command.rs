//! The effect of a user's command on a guest, decided by the agent of the guest's node.
//!
//! A command is carried out only on the node that the instance names, and never while a migration moves the guest:
//! during the hand-over, a guest that is paused on the target must not run before the source has proven that it stopped
//! (`migration/PROTOCOL.md`). So no command changes which side of a migration runs; the search of migrations
//! (`tests/migration_search`) tries an unpause in every state.

use std::num::NonZeroU32;

use drydock_api::{
    kubevirt::VirtualMachineInstance,
    node_api::{GuestCommand, NodeApiRefusal, RefusalReason},
};

/// The activity of a guest, according to its libvirt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// The guest runs.
    Running,
    /// The guest is paused, for whatever reason but its migration.
    Paused,
    /// libvirt runs a migration of the guest, or the guest is paused for one.
    Migrating,
    /// The guest is ending, or there is none.
    Off,
}

/// The input of the decision.
#[derive(Clone, Copy, Debug)]
pub struct CommandInput<'a> {
    /// The instance.
    pub instance: &'a VirtualMachineInstance,
    /// The agent's own node.
    pub node: &'a str,
    /// The guest's activity.
    pub activity: RunState,
    /// Whether the guest agent is connected.
    pub agent_connected: bool,
}

/// A call of libvirt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestCall {
    /// `virDomainSuspend`
    Suspend,
    /// `virDomainResume`
    Resume,
    /// `virDomainReboot` through the guest agent.
    RebootByAgent,
    /// `virDomainReboot` through the power button.
    RebootByPowerButton,
    /// `virDomainReset`
    Reset,
    /// `virDomainFSFreeze`
    Freeze {
        /// Seconds until the file systems are thawed by themselves; `None`: never.
        thaw_after: Option<NonZeroU32>,
    },
    /// `virDomainFSThaw`
    Thaw,
}

/// Returns whether the guest of an instance is on this node, and no migration moves it.
fn is_settled_here(instance: &VirtualMachineInstance, node: &str) -> Result<(), NodeApiRefusal> {
    is_here(instance, node)?;
    let state = instance
        .status
        .as_ref()
        .and_then(|status| status.migration_state.as_ref());
    match state.filter(|state| !state.has_ended()) {
        Some(_) => Err(NodeApiRefusal::new(RefusalReason::Conflict, MIGRATING)),
        None => Ok(()),
    }
}

/// Returns whether the guest of an instance is on this node.
///
/// # Errors
/// The refusal, if the guest is not on this node.
pub fn is_here(instance: &VirtualMachineInstance, node: &str) -> Result<(), NodeApiRefusal> {
    let status = instance.status.as_ref();
    if status.and_then(|status| status.node_name.as_deref()) == Some(node) {
        return Ok(());
    }
    let message = format!("the guest is not on node {node}");
    Err(NodeApiRefusal::new(RefusalReason::NotHere, message))
}

/// Returns the libvirt call for a command.
///
/// # Errors
/// The refusal of the command, with its reason.
pub fn plan(facts: &CommandInput<'_>, command: GuestCommand) -> Result<GuestCall, NodeApiRefusal> {
    use RunState::{Migrating, Off, Paused, Running};
    // A thaw does not change where a guest runs, and must not wait.
    match command {
        GuestCommand::Unfreeze => is_here(facts.instance, facts.node)?,
        _ => is_settled_here(facts.instance, facts.node)?,
    }
    let conflict = |message| Err(NodeApiRefusal::new(RefusalReason::Conflict, message));
    match (command, facts.activity) {
        // A frozen agent refuses most commands, and may count as disconnected.
        (GuestCommand::Unfreeze, Migrating | Running) => Ok(GuestCall::Thaw),
        (_, Migrating) => conflict(MIGRATING),
        (_, Off) => conflict("VMI is not running"),
        (GuestCommand::Pause, Running) => Ok(GuestCall::Suspend),
        (GuestCommand::Pause, Paused) => conflict("VMI is already paused"),
        (GuestCommand::Unpause, Paused) => Ok(GuestCall::Resume),
        (GuestCommand::Unpause, Running) => conflict("VMI is not paused"),
        (GuestCommand::SoftReboot, Running) if facts.agent_connected => Ok(GuestCall::RebootByAgent),
        (GuestCommand::SoftReboot, Running) => Ok(GuestCall::RebootByPowerButton),
        (GuestCommand::SoftReboot, Paused) => conflict("VMI is paused"),
        (GuestCommand::Reset, Running | Paused) => Ok(GuestCall::Reset),
        (GuestCommand::Freeze { thaw_after }, Running) if facts.agent_connected => Ok(GuestCall::Freeze { thaw_after }),
        (GuestCommand::Freeze { .. }, Running) => conflict(NO_AGENT),
        (GuestCommand::Freeze { .. } | GuestCommand::Unfreeze, Paused) => conflict("VMI is paused"),
    }
}

/// Message where a command needs the guest agent (KubeVirt's).
pub const NO_AGENT: &str = "VMI does not have guest agent connected";
const MIGRATING: &str = "VMI is migrating; wait until the migration has ended, or cancel the migration";

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn instance(node: &str, migration: &Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "metadata": {"name": "vm"},
            "spec": {"domain": {"devices": {}}},
            "status": {"phase": "Running", "nodeName": node, "migrationState": migration},
        }))
        .unwrap()
    }

    #[test]
    fn command_becomes_a_call_if_the_guest_state_allows() {
        use GuestCommand::{Pause, Reset, SoftReboot, Unfreeze, Unpause};
        use RunState::{Migrating, Off, Paused, Running};
        const FREEZE: GuestCommand = GuestCommand::Freeze { thaw_after: None };
        let instance = instance("here", &Value::Null);
        for (command, activity, agent_connected, expected) in [
            (Pause, Running, false, Ok(GuestCall::Suspend)),
            (Pause, Paused, false, Err("VMI is already paused")),
            (Unpause, Paused, false, Ok(GuestCall::Resume)),
            (Unpause, Running, false, Err("VMI is not paused")),
            (SoftReboot, Running, false, Ok(GuestCall::RebootByPowerButton)),
            (SoftReboot, Running, true, Ok(GuestCall::RebootByAgent)),
            (SoftReboot, Paused, true, Err("VMI is paused")),
            (Reset, Running, false, Ok(GuestCall::Reset)),
            (Reset, Paused, false, Ok(GuestCall::Reset)),
            (Pause, Migrating, false, Err(MIGRATING)),
            (Unpause, Migrating, false, Err(MIGRATING)),
            (SoftReboot, Migrating, true, Err(MIGRATING)),
            (Reset, Migrating, false, Err(MIGRATING)),
            (Pause, Off, false, Err("VMI is not running")),
            (Unpause, Off, false, Err("VMI is not running")),
            (SoftReboot, Off, false, Err("VMI is not running")),
            (Reset, Off, false, Err("VMI is not running")),
            (FREEZE, Running, true, Ok(GuestCall::Freeze { thaw_after: None })),
            (FREEZE, Running, false, Err(NO_AGENT)),
            (FREEZE, Paused, true, Err("VMI is paused")),
            (FREEZE, Migrating, true, Err(MIGRATING)),
            (FREEZE, Off, true, Err("VMI is not running")),
            (Unfreeze, Running, true, Ok(GuestCall::Thaw)),
            (Unfreeze, Running, false, Ok(GuestCall::Thaw)),
            (Unfreeze, Paused, true, Err("VMI is paused")),
            (Unfreeze, Migrating, true, Ok(GuestCall::Thaw)),
            (Unfreeze, Off, true, Err("VMI is not running")),
        ] {
            let facts = CommandInput {
                instance: &instance,
                node: "here",
                activity,
                agent_connected,
            };
            let result = plan(&facts, command);
            let expected = expected.map_err(|message| NodeApiRefusal::new(RefusalReason::Conflict, message));
            assert_eq!(result, expected, "{command:?} {activity:?} {agent_connected}");
        }
    }

    #[test]
    fn no_command_reaches_a_guest_that_is_elsewhere_or_migrating() {
        for (node, migration, expected) in [
            ("here", Value::Null, None),
            ("there", Value::Null, Some(RefusalReason::NotHere)),
            ("here", json!({"targetNode": "there"}), Some(RefusalReason::Conflict)),
            ("there", json!({"targetNode": "here"}), Some(RefusalReason::NotHere)),
            ("here", json!({"targetNode": "here", "completed": true}), None),
            ("here", json!({"targetNode": "there", "failed": true}), None),
        ] {
            let others = GuestCommand::ALL
                .into_iter()
                .filter(|command| *command != GuestCommand::Unfreeze);
            for command in others {
                // A command that unpauses a guest would do the most harm.
                let activity = match command {
                    GuestCommand::Unpause => RunState::Paused,
                    _ => RunState::Running,
                };
                let instance = instance(node, &migration);
                let facts = CommandInput {
                    instance: &instance,
                    node: "here",
                    activity,
                    agent_connected: true,
                };
                let result = plan(&facts, command).map_err(|refusal| refusal.reason);
                assert_eq!(result.err(), expected, "{node} {migration} {command:?}");
            }
        }
    }
}
