//! Tables of all virtual machines that have not ended, and of all migrations.

use std::collections::HashMap;

use drydock_api::{
    hypervisor::{RemainingGuest, RemainingState},
    kubevirt::names::conditions as types,
    kubevirt::{Phase, VirtualMachineInstance, VirtualMachineInstanceMigration, migration::MigrationPhase},
};
use drydock_core::{drain::guest_steps::memory, vm_conditions::find};
use jiff::Timestamp;
use serde::Serialize;

use crate::{
    listing::{Cell, Listing},
    live::{amounts, describe},
    snapshot::Snapshot,
    text::{bytes, seconds},
};

/// Row of a virtual machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineRow {
    /// Namespace of the instance.
    pub namespace: String,
    /// Name of the instance.
    pub name: String,
    /// Phase of the instance.
    pub phase: Phase,
    /// Node that the instance is on.
    pub node: Option<String>,
    /// Memory of the guest in bytes.
    pub memory_bytes: u64,
    /// Whether the instance can be migrated; `None` if that is not known.
    pub migratable: Option<bool>,
    /// State of the guest's departure from its node; `None` if the guest is not to leave.
    pub leaving: Option<RemainingState>,
    /// Human-readable reason of the state of departure.
    pub message: String,
    /// Creation time of the instance.
    pub created: Option<Timestamp>,
}

/// Row of a migration.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationRow {
    /// Namespace of the migration.
    pub namespace: String,
    /// Name of the migration.
    pub name: String,
    /// Instance that is migrated.
    pub instance: String,
    /// Phase of the migration.
    pub phase: MigrationPhase,
    /// Node that the guest leaves.
    pub source: Option<String>,
    /// Node that the guest moves to.
    pub target: Option<String>,
    /// Percentage, amount and time left, if they are known.
    pub progress: Vec<String>,
    /// Reason for which the migration waits, its result, or the reason of its failure.
    pub message: String,
    /// Creation time of the migration.
    pub created: Option<Timestamp>,
}

/// Returns the rows of all virtual machines that have not ended, sorted by namespace and name.
pub fn machines(snapshot: &Snapshot) -> Vec<MachineRow> {
    let drains = snapshot
        .hypervisors
        .iter()
        .filter_map(|hypervisor| hypervisor.status.as_ref()?.drain.as_ref());
    let leaving: HashMap<(&str, &str), &RemainingGuest> = drains
        .flat_map(|drain| &drain.remaining)
        .map(|guest| ((guest.namespace.as_str(), guest.name.as_str()), guest))
        .collect();
    let instances = snapshot.instances.iter().filter(|instance| {
        let phase = instance.phase();
        !phase.is_some_and(Phase::is_final)
    });
    let mut rows: Vec<MachineRow> = instances.map(|instance| machine(instance, &leaving)).collect();
    rows.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    rows
}

fn machine(instance: &VirtualMachineInstance, leaving: &HashMap<(&str, &str), &RemainingGuest>) -> MachineRow {
    let metadata = &instance.metadata;
    let (namespace, name) = (
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    );
    let status = instance.status.as_ref();
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let leaves = leaving.get(&(namespace.as_str(), name.as_str()));
    MachineRow {
        phase: status.and_then(|status| status.phase).unwrap_or_default(),
        node: status.and_then(|status| status.node_name.clone()),
        memory_bytes: memory(instance),
        migratable: find(conditions, types::LIVE_MIGRATABLE).map(|condition| condition.status == "True"),
        leaving: leaves.map(|guest| guest.state),
        message: leaves.map(|guest| guest.message.clone()).unwrap_or_default(),
        created: metadata.creation_timestamp.as_ref().map(|created| created.0),
        namespace,
        name,
    }
}

/// Returns the rows of all migrations: those that have not ended first, and the newest first within each group.
pub fn migrations(snapshot: &Snapshot) -> Vec<MigrationRow> {
    let mut rows: Vec<MigrationRow> = snapshot
        .migrations
        .iter()
        .map(|migration| migration_row(migration, snapshot.at))
        .collect();
    rows.sort_by(|one, other| {
        let key = |row: &MigrationRow| (row.phase.is_final(), std::cmp::Reverse(row.created));
        (key(one), &one.namespace, &one.name).cmp(&(key(other), &other.namespace, &other.name))
    });
    rows
}

fn migration_row(migration: &VirtualMachineInstanceMigration, now: Timestamp) -> MigrationRow {
    let metadata = &migration.metadata;
    let status = migration.status.as_ref();
    let (_, message) = describe(migration);
    let phase = status
        .and_then(|status| status.phase)
        .unwrap_or(MigrationPhase::Pending);
    let progress = status.and_then(|status| status.source.as_ref()?.progress.as_ref());
    let progress = progress.filter(|progress| progress.data_total > 0 && !phase.is_final());
    MigrationRow {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        instance: migration.spec.vmi_name.clone(),
        phase,
        source: status.and_then(|status| status.source_node.clone()),
        target: status.and_then(|status| status.target.as_ref()?.node.clone()),
        progress: progress.map(|progress| amounts(progress, now)).unwrap_or_default(),
        message,
        created: metadata.creation_timestamp.as_ref().map(|created| created.0),
    }
}

/// Returns the time since the creation of an object.
fn age(created: Option<Timestamp>, now: Timestamp) -> Cell {
    let age = created.map(|created| u64::try_from(now.duration_since(created).as_secs()).unwrap_or(0));
    age.map_or_else(Cell::none, |age| Cell::number(age, seconds(age)))
}

/// Returns the table of virtual machines; `now` is the current time.
pub fn machine_listing(rows: &[MachineRow], now: Timestamp) -> Listing {
    let cells = rows.iter().map(|row| {
        let leaving = row.leaving.map(|state| match state {
            RemainingState::Blocked => "blocked",
            RemainingState::Waiting => "waiting",
            RemainingState::Moving => "moving",
            RemainingState::ShuttingDown => "stopping",
            RemainingState::Unknown => "unknown",
        });
        let movable = row
            .migratable
            .map(|movable| if movable { "yes" } else { "no" }.to_owned());
        vec![
            Cell::text(format!("{}/{}", row.namespace, row.name)),
            Cell::text(row.phase.as_str()),
            Cell::optional(row.node.clone()),
            Cell::number(row.memory_bytes, bytes(row.memory_bytes)),
            Cell::optional(movable),
            Cell::optional(leaving.map(str::to_owned)),
            age(row.created, now),
            Cell::optional(Some(row.message.clone())),
        ]
    });
    let columns = ["VM", "PHASE", "NODE", "MEMORY", "MOVABLE", "LEAVING", "AGE", "WHY"];
    Listing::new(&columns, cells.collect())
}

/// Returns the table of migrations; `now` is the current time.
pub fn migration_listing(rows: &[MigrationRow], now: Timestamp) -> Listing {
    let cells = rows.iter().map(|row| {
        let mut progress = row.progress.iter();
        let percent = progress
            .next()
            .and_then(|percent| percent.trim_end_matches('%').parse::<u64>().ok());
        vec![
            Cell::text(format!("{}/{}", row.namespace, row.name)),
            Cell::text(row.instance.clone()),
            Cell::text(row.phase.as_str()),
            Cell::optional(row.source.clone()),
            Cell::optional(row.target.clone()),
            percent.map_or_else(Cell::none, |percent| Cell::number(percent, format!("{percent}%"))),
            Cell::optional(progress.next().cloned()),
            Cell::optional(progress.next().map(|left| left.trim_end_matches(" left").to_owned())),
            age(row.created, now),
            Cell::optional(Some(row.message.clone())),
        ]
    });
    let columns = [
        "MIGRATION",
        "VM",
        "PHASE",
        "FROM",
        "TO",
        "DONE",
        "MOVED",
        "LEFT",
        "AGE",
        "WHY",
    ];
    Listing::new(&columns, cells.collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::plan::fixture::cluster;

    #[test]
    fn machines_are_a_table() {
        let mut snapshot = cluster();
        let drain = json!({"startedAt": "2026-11-27T14:00:00Z", "total": 4, "left": 3, "moving": 1, "waiting": 0, "blocked": 1,
            "shuttingDown": 0, "remaining": [
                {"namespace": "shop", "name": "web", "state": "Moving", "reason": "Migration", "message": ""},
                {"namespace": "shop", "name": "cache", "state": "Blocked", "reason": "NotMigratable", "message": "it cannot move"}]});
        let status = Arc::make_mut(&mut snapshot.hypervisors[0]).status.as_mut().unwrap();
        status.drain = Some(serde_json::from_value(drain).unwrap());
        Arc::make_mut(&mut snapshot.instances[4]).status = None;
        let mut listing = machine_listing(&machines(&snapshot), snapshot.at);
        insta::assert_snapshot!(listing.lines().join("\n"));
        listing.sort("leaving").unwrap();
        assert!(listing.lines()[1].starts_with("shop/cache "), "{:#?}", listing.lines());
    }

    #[test]
    fn migrations_are_a_table_with_those_under_way_first() {
        let mut snapshot = cluster();
        for (vm, at, status) in [
            (
                "web",
                "2026-11-27T14:00:00Z",
                json!({"phase": "Running", "sourceNode": "a", "target": {"node": "b"},
                "source": {"node": "a", "progress": {"summary": "", "dataTotal": 4_294_967_296_u64, "dataProcessed": 0,
                    "dataRemaining": 1_500_000_000, "estimatedEnd": "2026-11-27T14:02:49Z"}}}),
            ),
            (
                "api",
                "2026-11-27T14:01:00Z",
                json!({"phase": "Failed", "sourceNode": "a",
                "migrationState": {"failed": true, "failureReason": "the target refused the guest"}}),
            ),
        ] {
            let migration = json!({"metadata": {"namespace": "shop", "name": format!("m-{vm}"), "creationTimestamp": at},
                "spec": {"vmiName": vm}, "status": status});
            snapshot
                .migrations
                .push(Arc::new(serde_json::from_value(migration).unwrap()));
        }
        let listing = migration_listing(&migrations(&snapshot), snapshot.at);
        insta::assert_snapshot!(listing.lines().join("\n"));
    }
}
