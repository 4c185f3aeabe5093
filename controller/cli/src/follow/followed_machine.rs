//! `kubectl drydock watch --vm`: the migration of one virtual machine.

use std::{collections::BTreeMap, io::Write, time::Duration};

use drydock_api::kubevirt::{VirtualMachineInstanceMigration, migration::MigrationPhase};
use drydock_runtime::clock;
use drydock_view::{
    drain::DrainEvent,
    live::{describe, migration},
};
use jiff::Timestamp;
use kube::{Api, Client, ResourceExt};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc::unbounded_channel,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    NEVER, show,
    watching::{Change, watch},
};
use crate::{
    arguments::{CourseOutput, Follow},
    failure::{CommandError, Exit},
    screen::Screen,
};

/// Interval at which a block is drawn again, because it shows remaining times.
const TICK: Duration = Duration::from_secs(1);

/// Follows the migration of a virtual machine until it has ended. This is the running migration, or else the newest
/// one.
///
/// # Errors
/// If migrations cannot be read, the virtual machine has none, or the output cannot be written.
pub(crate) async fn follow(
    client: &Client,
    namespace: &str,
    name: &str,
    options: &Follow,
    screen: Option<Screen>,
    out: &mut dyn Write,
) -> Result<Exit, CommandError> {
    let mut screen = screen.filter(|_| options.output == CourseOutput::Text);
    let (sender, mut seen) = unbounded_channel();
    let mut watches = JoinSet::new();
    let api = Api::<VirtualMachineInstanceMigration>::namespaced(client.clone(), namespace);
    watches.spawn(watch(api, None, move |change| sender.send(change).is_ok()));
    let (mut interrupt, mut resized) = (signal(SignalKind::interrupt())?, signal(SignalKind::window_change())?);
    let deadline = Instant::now() + options.timeout.map_or(NEVER, Duration::from_secs);
    let mut followed = Followed::default();
    loop {
        if let (Some(screen), Some(newest)) = (&mut screen, followed.newest()) {
            let canvas = screen.canvas();
            screen.draw(migration(newest, clock::now(), canvas), canvas, out)?;
        }
        if let Some(exit) = followed.exit() {
            return exit.ok_or_else(|| CommandError::NoMigration(format!("{namespace}/{name}")));
        }
        let tick = if screen.is_some() {
            Instant::now() + TICK
        } else {
            deadline
        };
        tokio::select! {
            change = seen.recv() => match change {
                Some(Change::Failed(failure)) => return Err(failure),
                Some(Change::Unreachable(_, cause)) => {
                    eprintln!("no updates: the API server cannot be reached ({cause})");
                }
                Some(change) => {
                    let event = followed.take(change, name, clock::now());
                    if let Some(event) = event.filter(|_| screen.is_none()) {
                        show::print(&event, options.output == CourseOutput::Json, out)?;
                    }
                }
                None => {}
            },
            () = sleep_until(tick.min(deadline)) => {}
            _ = resized.recv() => {}
            _ = interrupt.recv() => {
                eprintln!("the migration continues");
                return Ok(Exit::Done);
            }
        }
        if deadline <= Instant::now() && followed.exit().is_none() {
            eprintln!("the migration did not end within the timeout, and continues");
            return Ok(Exit::NotInTime);
        }
    }
}

/// Migrations of one virtual machine.
#[derive(Default)]
struct Followed {
    is_listed: bool,
    migrations: BTreeMap<String, VirtualMachineInstanceMigration>,
    last: Option<(&'static str, String)>,
}

impl Followed {
    /// Processes a change. Returns it as an event if the state or the message of the followed migration has changed.
    fn take(
        &mut self,
        change: Change<VirtualMachineInstanceMigration>,
        name: &str,
        now: Timestamp,
    ) -> Option<DrainEvent> {
        let is_own = |migration: &VirtualMachineInstanceMigration| migration.spec.vmi_name == name;
        match change {
            Change::Listed(all) => {
                let own = all.into_iter().filter(is_own);
                self.migrations = own
                    .map(|migration| (migration.uid().unwrap_or_default(), migration))
                    .collect();
                self.is_listed = true;
            }
            Change::Changed(migration) if is_own(&migration) => {
                self.migrations.insert(migration.uid().unwrap_or_default(), migration);
            }
            // A deleted migration keeps its last state.
            Change::Changed(_) | Change::Gone(_) | Change::Unreachable(..) | Change::Failed(_) => {}
        }
        let newest = self.newest()?;
        let (state, message) = describe(newest);
        let status = newest.status.as_ref();
        let event = DrainEvent {
            at: now,
            node: status
                .and_then(|status| status.source_node.clone())
                .unwrap_or_else(|| "-".into()),
            object: format!("{}/{name}", newest.namespace().unwrap_or_default()),
            state,
            reason: status
                .and_then(|status| status.reason.clone())
                .unwrap_or_else(|| "-".into()),
            message: message.clone(),
        };
        let is_new = self.last.as_ref() != Some(&(state, message.clone()));
        self.last = Some((state, message));
        is_new.then_some(event)
    }

    /// Returns the running migration, or else the newest one.
    fn newest(&self) -> Option<&VirtualMachineInstanceMigration> {
        self.migrations.values().max_by_key(|migration| {
            let created = migration.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (migration.phase().is_none_or(|phase| !phase.is_final()), created)
        })
    }

    /// Returns the exit code if the migration has ended. The inner value is `None` if there is no migration.
    fn exit(&self) -> Option<Option<Exit>> {
        if !self.is_listed {
            return None;
        }
        let Some(newest) = self.newest() else {
            return Some(None);
        };
        match newest.phase()? {
            MigrationPhase::Succeeded => Some(Some(Exit::Done)),
            MigrationPhase::Failed => Some(Some(Exit::Error)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn made(uid: &str, at: &str, status: &Value) -> VirtualMachineInstanceMigration {
        let migration = json!({"metadata": {"namespace": "shop", "name": uid, "uid": uid, "creationTimestamp": at},
            "spec": {"vmiName": "web"}, "status": status});
        serde_json::from_value(migration).unwrap()
    }

    #[test]
    fn migration_of_a_machine_is_followed_to_the_end() {
        let now: Timestamp = "2026-11-27T14:00:00Z".parse().unwrap();
        let early = "2026-11-27T13:00:00Z";
        let mut followed = Followed::default();
        assert_eq!(followed.exit(), None);
        // A newer migration that has ended does not hide the running one.
        let done = made("a", "2026-11-27T13:30:00Z", &json!({"phase": "Succeeded"}));
        let running = |message: &str| {
            let wait = json!([{"type": "Waiting", "status": "True", "message": message}]);
            made(
                "b",
                early,
                &json!({"phase": "Pending", "sourceNode": "worker-1", "conditions": wait, "reason": "ClusterLimit"}),
            )
        };
        let take = |followed: &mut Followed, change| followed.take(change, "web", now).map(|event| event.line());
        assert_eq!(
            take(&mut followed, Change::Listed(vec![done, running("its place is 2")])).as_deref(),
            Some("2026-11-27T14:00:00Z worker-1 shop/web Pending ClusterLimit its place is 2")
        );
        assert_eq!(take(&mut followed, Change::Changed(running("its place is 2"))), None);
        assert!(take(&mut followed, Change::Changed(running("its place is 1"))).is_some());
        assert_eq!(followed.exit(), None);
        for (phase, exit) in [("Succeeded", Exit::Done), ("Failed", Exit::Error)] {
            let mut over = Followed::default();
            take(
                &mut over,
                Change::Listed(vec![made("b", early, &json!({"phase": phase}))]),
            );
            assert_eq!(over.exit(), Some(Some(exit)));
        }
    }

    #[test]
    fn machine_that_never_migrated_has_nothing_to_follow() {
        let now: Timestamp = "2026-11-27T14:00:00Z".parse().unwrap();
        let mut followed = Followed::default();
        let other = made("a", "2026-11-27T13:00:00Z", &json!({}));
        assert_eq!(followed.take(Change::Listed(vec![other]), "db", now), None);
        assert_eq!(followed.exit(), Some(None));
    }
}
