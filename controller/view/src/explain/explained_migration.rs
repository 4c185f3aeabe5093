//! Explains the state of a migration: its phase, its position in the queue, its progress, and the reason of its
//! failure.

use drydock_api::{
    kubevirt::migration::{SourceState, TargetState},
    kubevirt::{
        VirtualMachineInstance, VirtualMachineInstanceMigration,
        migration::{MigrationPhase, MigrationProgress},
    },
};
use drydock_core::{
    launcher_pod::made_for,
    migration::{
        queue::{QueueStage, QueuedMigration, Urgency, entry, grants},
        waiting::{WAITING, Waiting},
    },
    vm_conditions::find,
};
use jiff::Timestamp;
use serde::Serialize;

use crate::{
    live::{amounts, describe},
    snapshot::{ClusterObjects, Snapshot, UnreadKind, is_of},
    text::{beside, bytes, seconds},
};

/// Column at which messages begin.
const MESSAGE: usize = 16;

/// The explanation of a migration.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationExplanation {
    /// Namespace of the migration.
    pub namespace: String,
    /// Name of the migration.
    pub name: String,
    /// Instance that is migrated.
    pub instance: String,
    /// Phase of the migration.
    pub phase: MigrationPhase,
    /// Time at which the migration reached this phase.
    pub since: Option<Timestamp>,
    /// Reason for which the migration waits, its result, or the reason of its failure.
    pub message: String,
    /// Node that the guest leaves.
    pub source: Option<String>,
    /// Node that the guest moves to.
    pub target: Option<String>,
    /// Reports of the agents of both nodes, as text.
    pub sides: Vec<String>,
    /// Position of the migration among all migrations that have not ended.
    pub queue: Option<QueuePosition>,
    /// The progress of the transfer.
    pub progress: Option<MigrationProgress>,
    /// Kinds of objects that were not considered.
    pub unread: Vec<UnreadKind>,
}

/// Position of a migration in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueuePosition {
    /// Urgency of the migration.
    pub urgency: &'static str,
    /// Stage of the migration, such as `waits`, `starts the target pod`, `waits for a slot` or `has a slot`.
    pub stage: &'static str,
    /// Position among the waiting migrations, from 1; `None` if the migration does not wait for a limit.
    pub place: Option<usize>,
    /// Number of waiting migrations.
    pub waiting: usize,
    /// Limit for which the migration waits, in one CamelCase word.
    pub limit: Option<&'static str>,
    /// Other migrations that have a slot now, as NAMESPACE/NAME. They use up the limit.
    pub running: Vec<String>,
}

/// Returns the explanation of a migration. Returns `None` if no migration has this name.
pub fn migration(snapshot: &Snapshot, namespace: &str, name: &str) -> Option<MigrationExplanation> {
    let found = snapshot.migrations.iter().find(|migration| {
        let metadata = &migration.metadata;
        metadata.namespace.as_deref() == Some(namespace) && metadata.name.as_deref() == Some(name)
    })?;
    let status = found.status.clone().unwrap_or_default();
    let phase = status.phase.unwrap_or(MigrationPhase::Pending);
    let mut transitions = status.phase_transition_timestamps.iter();
    let since = transitions.find(|transition| transition.phase == phase);
    let (_, message) = describe(found);
    let sides = [
        status.source.as_ref().and_then(|side| {
            let state = side.state.map(source_state)?;
            Some(with("source", state, side.message.as_deref()))
        }),
        status.target.as_ref().and_then(|side| {
            let state = side.state.map(target_state)?;
            Some(with("target", state, side.message.as_deref()))
        }),
    ];
    Some(MigrationExplanation {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        instance: found.spec.vmi_name.clone(),
        phase,
        since: since.map(|transition| transition.phase_transition_timestamp),
        message,
        source: status.source_node.clone(),
        target: status.target.as_ref().and_then(|side| side.node.clone()),
        sides: sides.into_iter().flatten().collect(),
        queue: queue(snapshot, found),
        progress: status
            .source
            .and_then(|side| side.progress)
            .filter(|progress| progress.data_total > 0),
        unread: snapshot.unread.clone(),
    })
}

fn with(side: &str, state: &str, message: Option<&str>) -> String {
    match message.filter(|message| !message.is_empty()) {
        Some(message) => format!("{side} {state}: {message}"),
        None => format!("{side} {state}"),
    }
}

fn source_state(state: SourceState) -> &'static str {
    match state {
        SourceState::Migrating => "sends the guest",
        SourceState::Halted => "has paused the guest, and waits for the target",
        SourceState::Released => "has released the guest",
        SourceState::Stopped | SourceState::HandedOver => "has handed the guest over",
        SourceState::Stayed => "has kept the guest",
        SourceState::Ended => "reports that the guest has ended",
        SourceState::Unknown => "reports a state that this version does not support",
    }
}

fn target_state(state: TargetState) -> &'static str {
    match state {
        TargetState::Prepared => "is prepared",
        TargetState::Refused => "refuses the guest",
        TargetState::Complete => "has received the whole guest, and waits for the source",
        TargetState::Running => "runs the guest",
        TargetState::Gone => "has no data of the guest",
        TargetState::Ended => "reports that the guest has ended",
        TargetState::Unknown => "reports a state that this version does not support",
    }
}

/// Returns the entry of a migration in the queue, according to the rules of the controller.
fn entry_of(
    world: &ClusterObjects<'_>,
    migration: &VirtualMachineInstanceMigration,
    instance: &VirtualMachineInstance,
) -> Option<QueuedMigration> {
    let uid = migration.metadata.uid.as_deref();
    let mut pods = world.pods_of(instance).iter();
    let pod = pods.find(|pod| uid.is_some() && made_for(pod) == uid);
    let conditions = migration.status.as_ref().map(|status| status.conditions.as_slice());
    let waits = find(conditions.unwrap_or_default(), WAITING).filter(|condition| condition.status == "True");
    let refused = waits
        .and_then(|waits| waits.reason.as_deref())
        .is_some_and(Waiting::is_refusal);
    entry(migration, Some(instance), pod.copied(), refused, world.snapshot.at)
}

/// Returns the position of a migration among all that have not ended. Returns `None` if the migration has ended, or if
/// its instance does not exist.
fn queue(snapshot: &Snapshot, migration: &VirtualMachineInstanceMigration) -> Option<QueuePosition> {
    let world = ClusterObjects::of(snapshot);
    let entries: Vec<QueuedMigration> = snapshot
        .migrations
        .iter()
        .filter_map(|other| {
            let mut instances = snapshot.instances.iter();
            let instance = instances.find(|instance| is_of(other, instance))?;
            entry_of(&world, other, instance)
        })
        .collect();
    let uid = migration.metadata.uid.as_deref()?;
    let own = entries.iter().find(|entry| entry.uid == uid)?;
    let found = grants(&world.configuration.migrations, &entries, snapshot.at);
    let place = found.waiting.iter().position(|(other, _)| other == uid);
    let running = entries
        .iter()
        .filter(|entry| matches!(entry.stage, QueueStage::Holding { .. }) && entry.uid != uid);
    Some(QueuePosition {
        urgency: match own.urgency {
            Urgency::None => "not set",
            Urgency::SystemMaintenance => "background maintenance",
            Urgency::UserTriggered => "a user waits for the migration",
            Urgency::SystemCritical => "a node is being drained",
        },
        stage: match own.stage {
            QueueStage::Waiting => "waits",
            QueueStage::Refused => "waits: the API server refuses the target pod",
            QueueStage::Placing { held_up: true } => "waits: the target pod does not start",
            QueueStage::Placing { held_up: false } => "starts the target pod",
            QueueStage::Placed { .. } => "waits for a slot; the target pod is ready",
            QueueStage::Holding { .. } => "has a slot",
        },
        place: place.map(|index| index + 1),
        waiting: found.waiting.len(),
        limit: place.map(|index| found.waiting[index].1.reason.as_str()),
        running: running.map(|entry| entry.name.clone()).collect(),
    })
}

impl MigrationExplanation {
    /// Returns the explanation as text for a terminal with this width; `now` is the current time.
    pub fn text(&self, now: Timestamp, width: usize) -> String {
        let mut text = String::new();
        let mut line = |label: &str, message: &str| beside(&mut text, label, message, MESSAGE, width);
        let from = self
            .source
            .as_ref()
            .map(|node| format!(" from {node}"))
            .unwrap_or_default();
        let to = self
            .target
            .as_ref()
            .map(|node| format!(" to {node}"))
            .unwrap_or_default();
        let head = format!("moves {}/{}{from}{to}", self.namespace, self.instance);
        line(&format!("{}/{}", self.namespace, self.name), &head);
        let since = self
            .since
            .and_then(|since| u64::try_from(now.duration_since(since).as_secs()).ok());
        let since = since.map(|since| format!(" for {}", seconds(since)));
        let since = since.filter(|_| !self.phase.is_final()).unwrap_or_default();
        line("phase", &format!("{}{since}", self.phase.as_str()));
        if !self.message.is_empty() {
            let label = match self.phase {
                MigrationPhase::Failed => "failure",
                MigrationPhase::Succeeded => "",
                _ => "waits",
            };
            line(label, &self.message);
        }
        if let Some(queue) = &self.queue {
            let place = match (queue.place, queue.limit) {
                (Some(place), Some(limit)) => format!("position {place} of {}, limited by {limit}; ", queue.waiting),
                _ => String::new(),
            };
            line(
                "queue",
                &format!("{place}the migration {}; urgency: {}", queue.stage, queue.urgency),
            );
            if !queue.running.is_empty() && queue.place.is_some() {
                line("slots used by", &queue.running.join(", "));
            }
        }
        if let Some(progress) = self.progress.as_ref().filter(|_| !self.phase.is_final()) {
            line("progress", &amounts(progress, now).join(", "));
            let rates = [
                (progress.bandwidth, "are sent per second"),
                (progress.dirty_rate, "are changed by the guest per second"),
            ];
            let rates = rates
                .into_iter()
                .filter_map(|(rate, what)| Some(format!("{} {what}", bytes(rate?))));
            let rates = rates.collect::<Vec<_>>().join(", ");
            if !rates.is_empty() {
                line("", &rates);
            }
        }
        for (index, side) in self.sides.iter().enumerate() {
            line(if index == 0 { "agents" } else { "" }, side);
        }
        if !self.unread.is_empty() {
            line("not considered", &UnreadKind::list(&self.unread));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::plan::fixture::cluster;

    const NOW: &str = "2026-11-27T14:02:11Z";

    fn made(vm: &str, at: &str, status: &Value) -> Arc<VirtualMachineInstanceMigration> {
        let name = format!("m-{vm}");
        let migration = json!({"metadata": {"namespace": "shop", "name": name, "uid": name, "creationTimestamp": at},
            "spec": {"vmiName": vm}, "status": status});
        Arc::new(serde_json::from_value(migration).unwrap())
    }

    /// Returns a cluster in which two guests leave `a`, which is the limit, and two others wait.
    fn moving() -> Snapshot {
        let mut snapshot = cluster();
        let holding = |left: u64| {
            json!({"phase": "Running", "sourceNode": "a", "target": {"node": "b", "state": "Prepared"},
                "phaseTransitionTimestamps": [{"phase": "Running", "phaseTransitionTimestamp": "2026-11-27T14:01:31Z"}],
                "source": {"node": "a", "state": "Migrating", "progress": {"summary": "", "dataTotal": 4_294_967_296_u64,
                    "dataProcessed": 0, "dataRemaining": left, "bandwidth": 104_857_600, "dirtyRate": 10_485_760,
                    "estimatedEnd": "2026-11-27T14:02:49Z"}}})
        };
        snapshot.migrations = vec![
            made("web", "2026-11-27T14:00:00Z", &holding(1_500_000_000)),
            made("api", "2026-11-27T14:00:01Z", &holding(3_950_000_000)),
            made(
                "cache",
                "2026-11-27T14:00:02Z",
                &json!({"phase": "Pending", "sourceNode": "a"}),
            ),
            made(
                "scratch",
                "2026-11-27T14:00:03Z",
                &json!({"phase": "Pending", "sourceNode": "a",
                "conditions": [{"type": "Waiting", "status": "True", "reason": "SourceNodeLimit",
                    "message": "the source node has reached its limit of outbound migrations (2); queue position 2"}]}),
            ),
        ];
        snapshot
    }

    #[test]
    fn waiting_migration_has_a_place_and_a_limit() {
        let found = migration(&moving(), "shop", "m-scratch").unwrap();
        let queue = found.queue.clone().unwrap();
        assert_eq!(
            (queue.place, queue.waiting, queue.limit, queue.running),
            (
                Some(2),
                2,
                Some("SourceNodeLimit"),
                vec!["shop/m-web".into(), "shop/m-api".into()]
            )
        );
        insta::assert_snapshot!(found.text(NOW.parse().unwrap(), 80));
    }

    #[test]
    fn migration_under_way_has_progress_and_both_sides() {
        let found = migration(&moving(), "shop", "m-web").unwrap();
        assert_eq!(found.queue.as_ref().unwrap().place, None);
        insta::assert_snapshot!(format!(
            "{}\n{}",
            found.text(NOW.parse().unwrap(), 80),
            found.text(NOW.parse().unwrap(), 40)
        ));
    }

    #[test]
    fn failed_migration_has_a_reason_and_no_place() {
        let mut snapshot = moving();
        let status = json!({"phase": "Failed", "sourceNode": "a", "target": {"node": "b", "state": "Refused",
            "message": "the CPU lacks avx2"}, "source": {"node": "a", "state": "Stayed"},
            "migrationState": {"failed": true, "failureReason": "the target refused the guest"}});
        snapshot.migrations[0] = made("web", "2026-11-27T14:00:00Z", &status);
        let found = migration(&snapshot, "shop", "m-web").unwrap();
        assert_eq!(found.queue, None);
        insta::assert_snapshot!(found.text(NOW.parse().unwrap(), 80));
        assert_eq!(migration(&snapshot, "shop", "none"), None);
    }
}
