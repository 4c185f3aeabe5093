//! The details of one node: its maintenance, its drain, its guests and the remaining pods.

use std::collections::HashMap;

use drydock_api::{
    hypervisor::{DrainStatus, RemainingGuest, RemainingState},
    kubevirt::{Phase, VirtualMachineInstance},
    maintenance::{Group, NodeMaintenance, PendingPod},
};
use drydock_core::drain::guest_steps::memory;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Serialize;

use crate::{
    guest_tables::migrations,
    nodes::{NodeRow, row_in},
    snapshot::{ClusterObjects, Snapshot, UnreadKind},
};

/// The details of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeDetails {
    /// Row of the node in the table of all nodes.
    pub row: NodeRow,
    /// Maintenance of the node.
    pub maintenance: Option<MaintenanceSummary>,
    /// Last drain of the node, even if it has ended.
    pub drain: Option<DrainStatus>,
    /// Guests on the node. Guests that need a user come first.
    pub guests: Vec<GuestRow>,
    /// Pods that the maintenance of the node waits for.
    pub pods: Vec<PendingPod>,
    /// Conditions that the node's agent reports.
    pub conditions: Vec<Condition>,
    /// CPU models that guests on the node can have.
    pub models: Vec<String>,
    /// Kinds of objects that were not considered.
    pub unread: Vec<UnreadKind>,
}

/// The maintenance of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MaintenanceSummary {
    /// Name of the NodeMaintenance.
    pub name: String,
    /// API group of the NodeMaintenance.
    pub group: &'static str,
    /// Phase of the maintenance: `Running`, `Succeeded` or `Failed`.
    pub phase: Option<String>,
    /// Human-readable reason of the maintenance.
    pub reason: Option<String>,
    /// Creation time of the NodeMaintenance.
    pub since: Option<Timestamp>,
    /// Percentage of the pods that have left.
    pub progress: Option<i64>,
    /// Last error of the maintenance.
    pub error: Option<String>,
    /// Whether the NodeMaintenance is being deleted.
    pub ending: bool,
}

/// A guest on a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GuestRow {
    /// Namespace of the instance.
    pub namespace: String,
    /// Name of the instance.
    pub name: String,
    /// Phase of the instance.
    pub phase: Phase,
    /// Memory of the guest in bytes.
    pub memory_bytes: u64,
    /// State of the guest's departure; `None` if the guest is not to leave.
    pub leaving: Option<RemainingState>,
    /// Reason of the state of departure, in one CamelCase word.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
    /// Node that the guest moves to.
    pub target: Option<String>,
    /// Progress of the guest's migration: percentage, amount and remaining time, if they are known.
    pub progress: Vec<String>,
}

/// Returns the details of a node. Returns `None` if no node has this name.
pub fn node(snapshot: &Snapshot, name: &str) -> Option<NodeDetails> {
    snapshot.node(name)?;
    let world = ClusterObjects::of(snapshot);
    let status = world
        .hypervisor(name)
        .and_then(|hypervisor| hypervisor.status.clone())
        .unwrap_or_default();
    let maintenances: Vec<_> = snapshot.maintenances_of(name).collect();
    let drain = status.drain;
    Some(NodeDetails {
        row: row_in(&world, name)?,
        maintenance: maintenances
            .first()
            .map(|(group, object)| MaintenanceSummary::of(*group, object)),
        guests: guests(snapshot, name, drain.as_ref()),
        drain,
        pods: maintenances
            .iter()
            .filter_map(|(_, object)| object.status.as_ref())
            .flat_map(|status| status.pods.iter().cloned())
            .collect(),
        conditions: status.conditions,
        models: status
            .facts
            .and_then(|facts| facts.virtualization.as_ref().map(usable))
            .unwrap_or_default(),
        unread: snapshot.unread.clone(),
    })
}

fn usable(facts: &drydock_api::facts::VirtualizationFacts) -> Vec<String> {
    let models = facts.models.iter();
    let usable = models.filter(|model| model.usable == drydock_api::facts::Usable::Yes);
    usable.map(|model| model.name.clone()).collect()
}

impl MaintenanceSummary {
    fn of(group: Group, object: &NodeMaintenance) -> Self {
        let status = object.status.clone().unwrap_or_default();
        Self {
            name: object.metadata.name.clone().unwrap_or_default(),
            group: group.as_str(),
            phase: status.phase,
            reason: object.spec.reason.clone().filter(|reason| !reason.is_empty()),
            since: object.metadata.creation_timestamp.as_ref().map(|created| created.0),
            progress: status.drain_progress,
            error: status.last_error.filter(|error| !error.is_empty()),
            ending: object.metadata.deletion_timestamp.is_some(),
        }
    }
}

fn guests(snapshot: &Snapshot, node: &str, drain: Option<&DrainStatus>) -> Vec<GuestRow> {
    let remaining = drain.map(|drain| drain.remaining.as_slice()).unwrap_or_default();
    let moving: HashMap<(String, String), Vec<String>> = migrations(snapshot)
        .into_iter()
        .filter(|migration| !migration.phase.is_final())
        .map(|migration| ((migration.namespace, migration.instance), migration.progress))
        .collect();
    let mut guests: Vec<GuestRow> = snapshot
        .guests_on(node)
        .map(|instance| {
            let mut guest = guest(instance, remaining);
            let key = (guest.namespace.clone(), guest.name.clone());
            guest.progress = moving.get(&key).cloned().unwrap_or_default();
            guest
        })
        .collect();
    // Blocked guests are first, guests that are not to leave are last.
    guests.sort_by(|one, other| {
        let key = |guest: &GuestRow| (guest.leaving.is_none(), guest.leaving);
        (key(one), &one.namespace, &one.name).cmp(&(key(other), &other.namespace, &other.name))
    });
    guests
}

fn guest(instance: &VirtualMachineInstance, remaining: &[RemainingGuest]) -> GuestRow {
    let namespace = instance.metadata.namespace.clone().unwrap_or_default();
    let name = instance.metadata.name.clone().unwrap_or_default();
    let mut all = remaining.iter();
    let leaving = all.find(|guest| guest.namespace == namespace && guest.name == name);
    let status = instance.status.as_ref();
    let migration = status.and_then(|status| status.migration_state.as_ref());
    GuestRow {
        phase: status.and_then(|status| status.phase).unwrap_or_default(),
        memory_bytes: memory(instance),
        leaving: leaving.map(|guest| guest.state),
        reason: leaving.map(|guest| guest.reason.clone()).unwrap_or_default(),
        message: leaving.map(|guest| guest.message.clone()).unwrap_or_default(),
        target: migration
            .filter(|migration| !migration.has_ended())
            .and_then(|migration| migration.target_node.clone()),
        progress: Vec::new(),
        namespace,
        name,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::plan::fixture::cluster;

    #[test]
    fn guests_in_need_of_attention_are_first() {
        let mut snapshot = cluster();
        let drain: DrainStatus = serde_json::from_value(json!({"startedAt": "2026-11-27T14:00:00Z", "total": 4,
            "left": 3, "moving": 1, "waiting": 0, "blocked": 1, "shuttingDown": 0, "remaining": [
                {"namespace": "shop", "name": "web", "state": "Moving", "reason": "Migration", "message": "it moves"},
                {"namespace": "shop", "name": "cache", "state": "Blocked", "reason": "NotMigratable", "message": "it cannot"}]}))
        .unwrap();
        Arc::make_mut(&mut snapshot.hypervisors[0])
            .status
            .as_mut()
            .unwrap()
            .drain = Some(drain);
        let web = snapshot
            .instances
            .iter_mut()
            .find(|instance| instance.metadata.name.as_deref() == Some("web"));
        let state = json!({"targetNode": "b", "startTimestamp": "2026-11-27T14:00:01Z"});
        Arc::make_mut(web.unwrap()).status.as_mut().unwrap().migration_state =
            Some(serde_json::from_value(state).unwrap());
        let guests = node(&snapshot, "a").unwrap().guests;
        let summary: Vec<_> = guests
            .iter()
            .map(|guest| (guest.name.as_str(), guest.leaving, guest.target.as_deref()))
            .collect();
        assert_eq!(
            summary,
            [
                ("cache", Some(RemainingState::Blocked), None),
                ("web", Some(RemainingState::Moving), Some("b")),
                ("api", None, None),
                ("scratch", None, None),
            ]
        );
    }

    #[test]
    fn maintenance_is_that_of_the_node_in_either_group() {
        let mut snapshot = cluster();
        assert_eq!(node(&snapshot, "b").unwrap().maintenance, None);
        let object = json!({"metadata": {"name": "m", "creationTimestamp": "2026-11-27T14:00:00Z"},
            "spec": {"nodeName": "b", "reason": "new disk"},
            "status": {"phase": "Running", "drainProgress": 40, "lastError": "pg-0 waits", "pods": [
                {"namespace": "shop", "name": "pg-0", "reason": "BlockedByBudget"}]}});
        let object: NodeMaintenance = serde_json::from_value(object).unwrap();
        snapshot.maintenances.push((Group::KubeVirt, Arc::new(object)));
        let details = node(&snapshot, "b").unwrap();
        let maintenance = details.maintenance.unwrap();
        assert_eq!(
            (maintenance.group, maintenance.progress, maintenance.error.as_deref()),
            ("nodemaintenance.kubevirt.io", Some(40), Some("pg-0 waits"))
        );
        assert!(details.row.in_maintenance);
        assert_eq!(details.pods[0].name, "pg-0");
        assert_eq!(details.models, ["EPYC"]);
        assert!(!node(&snapshot, "a").unwrap().row.in_maintenance);
        assert_eq!(node(&snapshot, "z"), None);
    }
}
