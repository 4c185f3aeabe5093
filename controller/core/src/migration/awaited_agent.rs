//! Agents that have to act in the current phase of a migration, and when they are late.
//!
//! The migration fails only when the deadline of its phase passes ([`deadlines`](super::deadlines)). Until then, its
//! condition `Waiting` names the node whose agent is late.

use std::time::Duration;

use drydock_api::kubevirt::{VirtualMachineInstanceMigration, migration::MigrationPhase};
use jiff::Timestamp;

use super::{
    deadlines::after,
    record::{MigrationRecord, reached_at},
    sides::{source, target},
};

/// Reason of the condition `Waiting`: the agent of the target node has not prepared the target.
pub const TARGET_NOT_PREPARED: &str = "TargetNotPrepared";
/// Reason of the condition `Waiting`: the target is prepared, but the agent of the source node has not started to move
/// the guest.
pub const TRANSFER_NOT_STARTED: &str = "TransferNotStarted";

/// Time after which an agent is late. Each of these phases usually takes less than a second, and several on a node
/// without KVM whose processors are busy.
pub const USUAL_TIME: Duration = Duration::from_secs(10);

/// The agent that has to act in a phase of a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedAgent {
    /// The phase.
    pub phase: MigrationPhase,
    /// From when on the agent is late.
    pub late_from: Timestamp,
    /// CamelCase reason.
    pub reason: &'static str,
    /// Human-readable message, valid from `late_from` on.
    pub message: String,
}

impl AwaitedAgent {
    /// Returns the agent for which a migration waits in its phase, and from when on this agent is late. Returns `None`
    /// if the phase needs no agent, or the guest moves already.
    pub fn of_migration(migration: &VirtualMachineInstanceMigration) -> Option<Self> {
        let record = MigrationRecord::of(migration);
        let phase = record.phase.filter(|_| record.source.is_none())?;
        let seconds = USUAL_TIME.as_secs();
        let (reason, message) = match phase {
            MigrationPhase::PreparingTarget => {
                let node = target(migration)?.node.as_deref()?;
                let message = format!("the agent of node {node} has not prepared the target within {seconds} s");
                (TARGET_NOT_PREPARED, message)
            }
            MigrationPhase::TargetReady => {
                let node = source(migration)?.node.as_deref()?;
                let message = format!(
                    "the target is prepared, but the agent of node {node} has not started to move the guest within \
                     {seconds} s"
                );
                (TRANSFER_NOT_STARTED, message)
            }
            _ => return None,
        };
        Some(Self {
            phase,
            late_from: after(reached_at(migration, phase)?, USUAL_TIME),
            reason,
            message,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn awaited(status: &Value) -> Option<AwaitedAgent> {
        let migration = json!({"metadata": {"name": "m"}, "spec": {"vmiName": "vm"}, "status": status});
        AwaitedAgent::of_migration(&serde_json::from_value(migration).unwrap())
    }

    fn in_phase(phase: &str, source: &Value, target: &Value) -> Value {
        let reached = json!([{"phase": phase, "phaseTransitionTimestamp": "2026-01-01T00:00:00Z"}]);
        json!({"phase": phase, "phaseTransitionTimestamps": reached, "source": source, "target": target})
    }

    #[test]
    fn late_agent_is_that_of_the_node_that_has_to_act() {
        let (source, target) = (json!({"node": "n1"}), json!({"node": "n2"}));
        for (phase, expected) in [
            ("Scheduled", None),
            (
                "PreparingTarget",
                Some((
                    TARGET_NOT_PREPARED,
                    "the agent of node n2 has not prepared the target within 10 s",
                )),
            ),
            (
                "TargetReady",
                Some((
                    TRANSFER_NOT_STARTED,
                    "the target is prepared, but the agent of node n1 has not started to move the guest within 10 s",
                )),
            ),
            ("Running", None),
            ("Failed", None),
        ] {
            let found = awaited(&in_phase(phase, &source, &target));
            let texts = found.as_ref().map(|agent| (agent.reason, agent.message.as_str()));
            assert_eq!(texts, expected, "{phase}");
            let late_from = "2026-01-01T00:00:10Z".parse().ok();
            assert_eq!(
                found.map(|agent| agent.late_from),
                late_from.filter(|_| expected.is_some()),
                "{phase}"
            );
        }
    }

    #[test]
    fn no_agent_is_awaited_once_the_guest_moves_or_without_a_time() {
        let (moving, target) = (json!({"node": "n1", "state": "Migrating"}), json!({"node": "n2"}));
        assert_eq!(awaited(&in_phase("PreparingTarget", &moving, &target)), None);
        assert_eq!(awaited(&json!({"phase": "PreparingTarget", "target": target})), None);
        assert_eq!(awaited(&json!({})), None);
    }
}
