//! The course of one drain: its changes and its result.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drydock_api::{
    hypervisor::DrainStatus,
    kubevirt::{VirtualMachineInstanceMigration, migration::MigrationPhase},
    maintenance::{Group, NodeMaintenance},
};
use drydock_runtime::chain;
use drydock_view::{
    drain::{DrainEvent, events},
    live::{DrainEnd, NodeCourse},
    maintenance_summary::pods_left,
};
use jiff::Timestamp;
use kube::ResourceExt;
use tokio::time::Instant;

use super::watching::Change;
use crate::failure::{CommandError, Exit};

/// State of a drain that is being followed.
#[derive(Debug, Default)]
pub(super) struct FollowedDrain {
    /// Displayed state of the drain.
    pub(super) shown: NodeCourse,
    /// Exit code, once the drain has ended.
    pub(super) exit: Option<Exit>,
    /// Time since which a guest has been blocked.
    blocked_since: Option<Instant>,
    /// Last error of the maintenance.
    error: Option<String>,
    /// API groups in which a maintenance of the node was seen.
    begun: Vec<Group>,
    migrations: BTreeMap<String, Arc<VirtualMachineInstanceMigration>>,
}

impl FollowedDrain {
    pub(super) fn new(node: &str) -> Self {
        Self {
            shown: NodeCourse {
                name: node.to_owned(),
                ..NodeCourse::default()
            },
            ..Self::default()
        }
    }

    pub(super) fn node(&self) -> &str {
        &self.shown.name
    }

    /// Returns the time at which a guest will have been blocked for `most`. Returns `None` if no guest is blocked.
    pub(super) fn blocked_for(&self, most: Duration) -> Option<Instant> {
        self.blocked_since
            .filter(|_| self.exit.is_none())
            .map(|since| since + most)
    }

    /// Processes a report of the drain; `None` means that the node is not being drained. Returns the changes as events.
    pub(super) fn drain(&mut self, drain: Option<DrainStatus>, now: Timestamp) -> Vec<DrainEvent> {
        let found = events(now, self.node(), self.shown.drain.as_ref(), drain.as_ref());
        let is_blocked = drain.as_ref().is_some_and(|drain| drain.blocked > 0);
        self.blocked_since = is_blocked.then(|| self.blocked_since.unwrap_or_else(Instant::now));
        self.shown.drain = drain;
        found
    }

    /// Processes the list of maintenances of an API group. Returns the changes as events.
    pub(super) fn listed(&mut self, group: Group, all: &[NodeMaintenance], now: Timestamp) -> Vec<DrainEvent> {
        let own: Vec<_> = all
            .iter()
            .filter(|object| object.spec.node_name == self.shown.name)
            .collect();
        if own.is_empty() && self.begun.contains(&group) {
            return self.cancelled(now);
        }
        let mut found = Vec::new();
        for object in own {
            found.extend(self.maintenance(group, object, false, now));
        }
        found
    }

    /// Processes a maintenance of the node. Returns the changes as events.
    pub(super) fn maintenance(
        &mut self,
        group: Group,
        object: &NodeMaintenance,
        is_gone: bool,
        now: Timestamp,
    ) -> Vec<DrainEvent> {
        if self.exit.is_some() {
            return Vec::new();
        }
        if is_gone || object.metadata.deletion_timestamp.is_some() {
            // A maintenance that was already being deleted at the start is an earlier one.
            return if self.begun.contains(&group) {
                self.cancelled(now)
            } else {
                Vec::new()
            };
        }
        if !self.begun.contains(&group) {
            self.begun.push(group);
        }
        let status = object.status.clone().unwrap_or_default();
        self.shown.pods = pods_left(&status);
        let error = status.last_error.filter(|error| !error.is_empty());
        let (exit, end, event) = match status.phase.as_deref() {
            Some("Succeeded") => (
                Exit::Done,
                DrainEnd::Empty,
                (
                    "Empty",
                    "MaintenanceSucceeded",
                    "it is safe to switch the node off".to_owned(),
                ),
            ),
            Some("Failed") => {
                let error = error.unwrap_or_default();
                (
                    Exit::Error,
                    DrainEnd::Failed(error.clone()),
                    ("Open", "MaintenanceFailed", error),
                )
            }
            _ => {
                let is_new = error != self.error;
                self.error.clone_from(&error);
                let error = error.filter(|_| is_new);
                return error
                    .map(|error| self.event(now, "Waiting", "PodsLeft", error))
                    .into_iter()
                    .collect();
            }
        };
        (self.exit, self.shown.end) = (Some(exit), Some(end));
        let (state, reason, message) = event;
        vec![self.event(now, state, reason, message)]
    }

    /// Processes a change of the migrations from the node.
    pub(super) fn take_migrations(&mut self, change: Change<VirtualMachineInstanceMigration>) {
        let is_over = |migration: &VirtualMachineInstanceMigration| {
            let phase = migration.phase();
            phase.is_some_and(MigrationPhase::is_final)
        };
        let key = |migration: &VirtualMachineInstanceMigration| migration.uid().unwrap_or_default();
        match change {
            Change::Listed(all) => {
                let open = all.into_iter().filter(|migration| !is_over(migration));
                self.migrations = open.map(|migration| (key(&migration), Arc::new(migration))).collect();
            }
            Change::Changed(migration) if !is_over(&migration) => {
                self.migrations.insert(key(&migration), Arc::new(migration));
            }
            Change::Changed(migration) | Change::Gone(migration) => {
                self.migrations.remove(&key(&migration));
            }
            // The guests are shown without their progress.
            Change::Unreachable(..) | Change::Failed(_) => {}
        }
        self.shown.migrations = self.migrations.values().cloned().collect();
    }

    /// Records that the drain can no longer be followed.
    pub(super) fn fail(&mut self, failure: &CommandError) {
        self.exit = Some(failure.exit());
        self.shown.end = Some(DrainEnd::Unread(chain(failure).to_string()));
    }

    fn cancelled(&mut self, now: Timestamp) -> Vec<DrainEvent> {
        if self.exit.is_some() {
            return Vec::new();
        }
        (self.exit, self.shown.end) = (Some(Exit::Cancelled), Some(DrainEnd::Cancelled));
        let message = "the maintenance was cancelled by another client".into();
        vec![self.event(now, "Open", "MaintenanceStopped", message)]
    }

    fn event(&self, now: Timestamp, state: &'static str, reason: &str, message: String) -> DrainEvent {
        DrainEvent::of_node(now, self.node(), state, reason, message)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object(node: &str, status: &Value) -> NodeMaintenance {
        let object = json!({"metadata": {"name": "m"}, "spec": {"nodeName": node}, "status": status});
        serde_json::from_value(object).unwrap()
    }

    fn now() -> Timestamp {
        "2026-11-27T14:00:00Z".parse().unwrap()
    }

    /// Returns the lines of events without their times.
    fn lines(events: &[DrainEvent]) -> Vec<String> {
        let lines = events.iter().map(DrainEvent::line);
        lines.map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
    }

    #[test]
    fn end_of_the_maintenance_is_the_end_of_the_course() {
        for (status, is_gone, exit, line) in [
            (
                json!({"phase": "Succeeded"}),
                false,
                Exit::Done,
                "worker-1 - Empty MaintenanceSucceeded it is safe to switch the node off",
            ),
            (
                json!({"phase": "Failed", "lastError": "too late"}),
                false,
                Exit::Error,
                "worker-1 - Open MaintenanceFailed too late",
            ),
            (
                json!({}),
                true,
                Exit::Cancelled,
                "worker-1 - Open MaintenanceStopped the maintenance was cancelled by another client",
            ),
        ] {
            let mut course = FollowedDrain::new("worker-1");
            let running = object("worker-1", &json!({"phase": "Running"}));
            assert_eq!(course.maintenance(Group::Medik8s, &running, false, now()), []);
            let last = course.maintenance(Group::Medik8s, &object("worker-1", &status), is_gone, now());
            assert_eq!((course.exit, lines(&last)), (Some(exit), vec![line.to_owned()]));
            // Later changes have no effect.
            let later = course.listed(Group::Medik8s, &[], now());
            assert_eq!((course.exit, later), (Some(exit), vec![]));
        }
    }

    #[test]
    fn maintenance_that_is_not_listed_again_was_cancelled() {
        let running = || vec![object("worker-1", &json!({"phase": "Running"}))];
        let mut course = FollowedDrain::new("worker-1");
        course.listed(Group::Medik8s, &running(), now());
        // The list is of the other API group, which never had a maintenance of the node.
        course.listed(Group::KubeVirt, &[], now());
        assert_eq!(course.exit, None);
        course.listed(
            Group::Medik8s,
            &[object("worker-2", &json!({"phase": "Failed"}))],
            now(),
        );
        assert_eq!(course.exit, Some(Exit::Cancelled));
    }

    #[test]
    fn errors_are_events_once_and_other_nodes_none() {
        let mut course = FollowedDrain::new("worker-1");
        // A maintenance that was already being deleted at the start is not the followed one.
        assert_eq!(
            course.maintenance(Group::Medik8s, &object("worker-1", &json!({})), true, now()),
            []
        );
        let waits = object("worker-1", &json!({"phase": "Running", "lastError": "pg-0 waits"}));
        let found = course.maintenance(Group::Medik8s, &waits, false, now());
        assert_eq!(lines(&found), ["worker-1 - Waiting PodsLeft pg-0 waits"]);
        assert_eq!(course.maintenance(Group::Medik8s, &waits, false, now()), []);
        assert_eq!(course.exit, None);
    }

    #[tokio::test(start_paused = true)]
    async fn guests_are_blocked_since_the_first_blocked_report() {
        let drain = |blocked: u32| -> Option<DrainStatus> {
            let drain = json!({"startedAt": "2026-11-27T14:00:00Z", "total": 3, "left": 3, "moving": 0, "waiting": 0,
                "blocked": blocked, "shuttingDown": 0});
            Some(serde_json::from_value(drain).unwrap())
        };
        let most = Duration::from_secs(60);
        let mut course = FollowedDrain::new("worker-1");
        course.drain(drain(0), now());
        assert_eq!(course.blocked_for(most), None);
        let first = Instant::now();
        course.drain(drain(1), now());
        tokio::time::advance(Duration::from_secs(5)).await;
        course.drain(drain(2), now());
        assert_eq!(course.blocked_for(most), Some(first + most));
        course.drain(drain(0), now());
        assert_eq!(course.blocked_for(most), None);
    }

    #[test]
    fn followed_migrations_are_kept_until_over() {
        let migration = |uid: &str, phase: &str| -> VirtualMachineInstanceMigration {
            let migration =
                json!({"metadata": {"name": uid, "uid": uid}, "spec": {"vmiName": "web"}, "status": {"phase": phase}});
            serde_json::from_value(migration).unwrap()
        };
        let mut course = FollowedDrain::new("worker-1");
        course.take_migrations(Change::Listed(vec![
            migration("a", "Succeeded"),
            migration("b", "Running"),
        ]));
        course.take_migrations(Change::Changed(migration("c", "Scheduling")));
        let names = |course: &FollowedDrain| -> Vec<String> {
            course.shown.migrations.iter().map(|one| one.name_any()).collect()
        };
        assert_eq!(names(&course), ["b", "c"]);
        course.take_migrations(Change::Changed(migration("b", "Failed")));
        course.take_migrations(Change::Gone(migration("c", "Scheduling")));
        assert_eq!(names(&course), [""; 0]);
    }
}
