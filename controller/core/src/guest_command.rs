//! What a command of a user does to a guest, decided by its agent.
//!
//! A command is carried out only on the node that the instance names, and never while a migration has the guest: during the
//! hand-over a guest that is paused on the target must not run before the source has proven that it stopped
//! (`migration/PROTOCOL.md`). So no command changes which side of a migration runs; the search of migrations
//! (`tests/migration_search`) tries an unpause in every state.

use std::num::NonZeroU32;

use drydock_api::{
    kubevirt::VirtualMachineInstance,
    node_api::{GuestCommand, Refusal, RefusalReason},
};

/// What a guest does, according to its libvirt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It runs.
    Running,
    /// It is paused, for whatever reason but its migration.
    Paused,
    /// libvirt runs a migration of it, or it is paused for one.
    Migrating,
    /// It is ending, or there is none.
    Off,
}

/// The input of the decision.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The instance.
    pub instance: &'a VirtualMachineInstance,
    /// The agent's own node.
    pub node: &'a str,
    /// What the guest does.
    pub activity: Activity,
    /// Whether the guest agent is connected.
    pub agent_connected: bool,
}

/// A call of libvirt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
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
fn is_settled_here(instance: &VirtualMachineInstance, node: &str) -> Result<(), Refusal> {
    is_here(instance, node)?;
    let state = instance
        .status
        .as_ref()
        .and_then(|status| status.migration_state.as_ref());
    match state.filter(|state| !state.has_ended()) {
        Some(_) => Err(Refusal::new(RefusalReason::Conflict, MIGRATING)),
        None => Ok(()),
    }
}

/// Returns whether the guest of an instance is on this node.
///
/// # Errors
/// Why not.
pub fn is_here(instance: &VirtualMachineInstance, node: &str) -> Result<(), Refusal> {
    let status = instance.status.as_ref();
    if status.and_then(|status| status.node_name.as_deref()) == Some(node) {
        return Ok(());
    }
    let message = format!("the guest is not on node {node}");
    Err(Refusal::new(RefusalReason::NotHere, message))
}

/// Decides which call a command is.
///
/// # Errors
/// Why it is refused.
pub fn plan(facts: &Facts<'_>, command: GuestCommand) -> Result<Call, Refusal> {
    use Activity::{Migrating, Off, Paused, Running};
    // A thaw does not change where a guest runs, and must not wait.
    match command {
        GuestCommand::Unfreeze => is_here(facts.instance, facts.node)?,
        _ => is_settled_here(facts.instance, facts.node)?,
    }
    let conflict = |message| Err(Refusal::new(RefusalReason::Conflict, message));
    match (command, facts.activity) {
        // A frozen agent refuses most commands, and may count as disconnected.
        (GuestCommand::Unfreeze, Migrating | Running) => Ok(Call::Thaw),
        (_, Migrating) => conflict(MIGRATING),
        (_, Off) => conflict("VMI is not running"),
        (GuestCommand::Pause, Running) => Ok(Call::Suspend),
        (GuestCommand::Pause, Paused) => conflict("VMI is already paused"),
        (GuestCommand::Unpause, Paused) => Ok(Call::Resume),
        (GuestCommand::Unpause, Running) => conflict("VMI is not paused"),
        (GuestCommand::SoftReboot, Running) if facts.agent_connected => Ok(Call::RebootByAgent),
        (GuestCommand::SoftReboot, Running) => Ok(Call::RebootByPowerButton),
        (GuestCommand::SoftReboot, Paused) => conflict("VMI is paused"),
        (GuestCommand::Reset, Running | Paused) => Ok(Call::Reset),
        (GuestCommand::Freeze { thaw_after }, Running) if facts.agent_connected => Ok(Call::Freeze { thaw_after }),
        (GuestCommand::Freeze { .. }, Running) => conflict(NO_AGENT),
        (GuestCommand::Freeze { .. } | GuestCommand::Unfreeze, Paused) => conflict("VMI is paused"),
    }
}

/// Message where a command needs the guest agent (KubeVirt's).
pub const NO_AGENT: &str = "VMI does not have guest agent connected";
const MIGRATING: &str = "VMI is migrating; wait until that has ended, or cancel it";

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
    fn command_is_a_call_where_the_activity_of_the_guest_allows_it() {
        use Activity::{Migrating, Off, Paused, Running};
        use GuestCommand::{Pause, Reset, SoftReboot, Unfreeze, Unpause};
        const FREEZE: GuestCommand = GuestCommand::Freeze { thaw_after: None };
        let instance = instance("here", &Value::Null);
        for (command, activity, agent_connected, expected) in [
            (Pause, Running, false, Ok(Call::Suspend)),
            (Pause, Paused, false, Err("VMI is already paused")),
            (Unpause, Paused, false, Ok(Call::Resume)),
            (Unpause, Running, false, Err("VMI is not paused")),
            (SoftReboot, Running, false, Ok(Call::RebootByPowerButton)),
            (SoftReboot, Running, true, Ok(Call::RebootByAgent)),
            (SoftReboot, Paused, true, Err("VMI is paused")),
            (Reset, Running, false, Ok(Call::Reset)),
            (Reset, Paused, false, Ok(Call::Reset)),
            (Pause, Migrating, false, Err(MIGRATING)),
            (Unpause, Migrating, false, Err(MIGRATING)),
            (SoftReboot, Migrating, true, Err(MIGRATING)),
            (Reset, Migrating, false, Err(MIGRATING)),
            (Pause, Off, false, Err("VMI is not running")),
            (Unpause, Off, false, Err("VMI is not running")),
            (SoftReboot, Off, false, Err("VMI is not running")),
            (Reset, Off, false, Err("VMI is not running")),
            (FREEZE, Running, true, Ok(Call::Freeze { thaw_after: None })),
            (FREEZE, Running, false, Err(NO_AGENT)),
            (FREEZE, Paused, true, Err("VMI is paused")),
            (FREEZE, Migrating, true, Err(MIGRATING)),
            (FREEZE, Off, true, Err("VMI is not running")),
            (Unfreeze, Running, true, Ok(Call::Thaw)),
            (Unfreeze, Running, false, Ok(Call::Thaw)),
            (Unfreeze, Paused, true, Err("VMI is paused")),
            (Unfreeze, Migrating, true, Ok(Call::Thaw)),
            (Unfreeze, Off, true, Err("VMI is not running")),
        ] {
            let facts = Facts {
                instance: &instance,
                node: "here",
                activity,
                agent_connected,
            };
            let result = plan(&facts, command);
            let expected = expected.map_err(|message| Refusal::new(RefusalReason::Conflict, message));
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
                // What unpauses a guest would be the worst.
                let activity = match command {
                    GuestCommand::Unpause => Activity::Paused,
                    _ => Activity::Running,
                };
                let instance = instance(node, &migration);
                let facts = Facts {
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
