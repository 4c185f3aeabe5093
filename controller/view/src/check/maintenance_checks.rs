//! Checks of nodes in maintenance, drains and migrations.

use drydock_api::{
    hypervisor::RemainingState,
    kubevirt::{VirtualMachineInstanceMigration, migration::MigrationPhase},
    maintenance::{Group, NodeMaintenance},
};
use jiff::SignedDuration;

use super::{Finding, Rule, RuleContext, full_name, is_older, name_of, namespace_of, since};
use crate::text::seconds;

/// Age from which a maintenance that has not emptied its node is reported. This is longer than the guests of a full
/// node need to leave.
const SLOW_AFTER: SignedDuration = SignedDuration::from_hours(1);
/// Age from which the maintenance of an empty node is considered forgotten.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_hours(7 * 24);
/// Time after which a finalizer of a deleted maintenance is reported. Drydock removes its own finalizer within seconds.
const HELD_AFTER: SignedDuration = SignedDuration::from_mins(10);
/// Age from which a migration that has not begun is reported. This is the deadline of 900 s for a target pod that is
/// not ready, after which the migration fails (`TargetPodNotReady`).
const PENDING_AFTER: SignedDuration = SignedDuration::from_secs(900);
/// Phases of a maintenance: the node is empty, or Drydock has aborted the maintenance.
const SUCCEEDED: &str = "Succeeded";
const FAILED: &str = "Failed";

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "maintenances name nodes that exist",
        needs: &["nodes", "nodemaintenances"],
        find: nodes_exist,
    },
    Rule {
        name: "each node has one maintenance at most",
        needs: &["nodemaintenances"],
        find: single,
    },
    Rule {
        name: "maintenances make progress",
        needs: &["nodes", "nodemaintenances"],
        find: progress,
    },
    Rule {
        name: "no maintenance is forgotten",
        needs: &["nodemaintenances"],
        find: forgotten,
    },
    Rule {
        name: "drains are not blocked",
        needs: &["hypervisors"],
        find: blocked,
    },
    Rule {
        name: "migrations begin",
        needs: &["virtualmachineinstancemigrations"],
        find: migrations,
    },
];

fn resource(group: Group, maintenance: &NodeMaintenance) -> String {
    format!("nodemaintenances.{} {}", group.as_str(), name_of(&maintenance.metadata))
}

fn maintenances<'a>(context: &RuleContext<'a>) -> impl Iterator<Item = (Group, &'a NodeMaintenance)> {
    let all = context.snapshot.maintenances.iter();
    all.map(|(group, maintenance)| (*group, &**maintenance))
}

fn phase(maintenance: &NodeMaintenance) -> &str {
    let status = maintenance.status.as_ref();
    status.and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn age_since_creation(maintenance: &NodeMaintenance) -> Option<jiff::Timestamp> {
    maintenance.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

fn nodes_exist(context: &RuleContext<'_>) -> Vec<Finding> {
    let lost = maintenances(context).filter(|(_, maintenance)| !context.snapshot.has_node(&maintenance.spec.node_name));
    let found = lost.map(|(group, maintenance)| {
        let message = format!(
            "{} refers to the node {}, which does not exist: if a node with this name is added, it is drained at once",
            resource(group, maintenance),
            maintenance.spec.node_name
        );
        Finding::warning(message).helps_by(
            "delete the NodeMaintenance",
            format!("kubectl delete {}", resource(group, maintenance)),
        )
    });
    found.collect()
}

fn single(context: &RuleContext<'_>) -> Vec<Finding> {
    let mut all: Vec<_> = maintenances(context).collect();
    all.sort_by_key(|(group, maintenance)| (&maintenance.spec.node_name, *group));
    let found = all.chunk_by(|(_, one), (_, other)| one.spec.node_name == other.spec.node_name);
    let found = found.filter(|of_node| of_node.len() > 1).map(|of_node| {
        let names: Vec<String> = of_node.iter().map(|(group, other)| resource(*group, other)).collect();
        let node = of_node
            .first()
            .map(|(_, first)| first.spec.node_name.as_str())
            .unwrap_or_default();
        let message = format!(
            "several NodeMaintenances exist for {node} ({}): all except the first have failed",
            names.join(", ")
        );
        Finding::warning(message).helps_by(
            "delete the NodeMaintenances that have failed",
            "kubectl drydock maintenance list",
        )
    });
    found.collect()
}

fn progress(context: &RuleContext<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (group, maintenance) in maintenances(context) {
        let node = &maintenance.spec.node_name;
        let status = maintenance.status.clone().unwrap_or_default();
        let why = status.last_error.filter(|why| !why.is_empty());
        let name = resource(group, maintenance);
        if let Some(deleted) = &maintenance.metadata.deletion_timestamp {
            if is_older(context.now, deleted.0, HELD_AFTER) {
                let finalizers = maintenance
                    .metadata
                    .finalizers
                    .as_deref()
                    .unwrap_or_default()
                    .join(", ");
                let message = format!(
                    "{name} was deleted {} ago, but still exists because of its finalizers ({finalizers})",
                    seconds(since(context.now, deleted.0))
                );
                found.push(Finding::warning(message).helps("check the component that has set the finalizer"));
            }
            continue;
        }
        // Other checks report maintenances of missing nodes, and several maintenances of one node.
        let is_alone = context.snapshot.maintenances_of(node).count() == 1;
        if !context.snapshot.has_node(node) || !is_alone || phase(maintenance) == SUCCEEDED {
            continue;
        }
        if phase(maintenance) == FAILED {
            let message = format!(
                "the maintenance of {node} has failed: {}",
                why.unwrap_or_else(|| "no reason was reported".into())
            );
            found.push(Finding::error(message).helps_by(
                "delete the NodeMaintenance, and start the maintenance again",
                format!("kubectl delete {name}"),
            ));
        } else if let Some(created) =
            age_since_creation(maintenance).filter(|created| is_older(context.now, *created, SLOW_AFTER))
        {
            let message = format!(
                "{node} has been in maintenance for {} and is not empty: {}",
                seconds(since(context.now, created)),
                why.unwrap_or_else(|| format!("{} pods have not left the node", status.pending.unwrap_or(0)))
            );
            found.push(Finding::warning(message).helps_by(
                "see the causes and the remedies",
                format!("kubectl drydock plan {node}"),
            ));
        }
    }
    found
}

fn forgotten(context: &RuleContext<'_>) -> Vec<Finding> {
    let found = maintenances(context).filter_map(|(_, maintenance)| {
        let created = age_since_creation(maintenance)?;
        let is_done = phase(maintenance) == SUCCEEDED && maintenance.metadata.deletion_timestamp.is_none();
        if !is_done || !is_older(context.now, created, FORGOTTEN_AFTER) {
            return None;
        }
        let node = &maintenance.spec.node_name;
        let message = format!(
            "{node} is empty, and has been in maintenance for {}: other nodes carry its load",
            seconds(since(context.now, created))
        );
        Some(Finding::warning(message).helps_by(
            "end the maintenance if the work is done",
            format!("kubectl drydock maintenance stop {node}"),
        ))
    });
    found.collect()
}

fn blocked(context: &RuleContext<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for hypervisor in &context.snapshot.hypervisors {
        let drain = hypervisor.status.as_ref().and_then(|status| status.drain.as_ref());
        // A cordoned node without a maintenance also lists its guests.
        let Some(drain) = drain.filter(|drain| drain.finished_at.is_none() && !drain.requested_by.is_empty()) else {
            continue;
        };
        let node = name_of(&hypervisor.metadata);
        let stuck = drain
            .remaining
            .iter()
            .filter(|guest| guest.state == RemainingState::Blocked);
        for guest in stuck {
            let message = format!(
                "{}/{} blocks the drain of {node}: {}",
                guest.namespace, guest.name, guest.message
            );
            found.push(Finding::error(message).helps_by(
                "see the remedy",
                format!("kubectl drydock explain vm {}/{}", guest.namespace, guest.name),
            ));
        }
    }
    found
}

fn migrations(context: &RuleContext<'_>) -> Vec<Finding> {
    let waits = |migration: &VirtualMachineInstanceMigration| {
        let phase = migration.phase();
        matches!(phase, None | Some(MigrationPhase::Pending | MigrationPhase::Scheduling))
    };
    let found = context.snapshot.migrations.iter().filter(|migration| waits(migration));
    let found = found.filter_map(|migration| {
        let created = migration.metadata.creation_timestamp.as_ref()?.0;
        if !is_older(context.now, created, PENDING_AFTER) {
            return None;
        }
        let status = migration.status.clone().unwrap_or_default();
        let mut reasons = status.conditions.iter().filter(|condition| condition.status == "True");
        let why = reasons
            .find_map(|condition| condition.message.clone())
            .or(status.reason);
        let message = format!(
            "migration {} has been waiting for {}: {}",
            full_name(&migration.metadata),
            seconds(since(context.now, created)),
            why.unwrap_or_else(|| "no reason was reported".into())
        );
        Some(Finding::warning(message).helps_by(
            "see which nodes can run the guest, or delete the migration to abort it",
            format!(
                "kubectl drydock explain vm {}/{}",
                namespace_of(&migration.metadata),
                migration.spec.vmi_name
            ),
        ))
    });
    found.collect()
}
