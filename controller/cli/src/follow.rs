//! `kubectl drydock drain` and `watch`: follow drains by watches.
//!
//! ```text
//!  watching::watch                                         course::FollowedDrain     show::Show
//!  Hypervisor of each node ───┐                          ┌─ of each node ─┐   ┌─ one line for each change
//!  migrations from it ────────┼─▶ FollowedChange ─▶ take ┤                ├─▶ ┤
//!  NodeMaintenances ──────────┘                          └─ its exit code ┘   └─ a block, drawn again
//! ```

mod course;
mod followed_machine;
mod show;
pub(crate) mod watching;

use std::{collections::BTreeMap, io::Write, time::Duration};

use drydock_api::{
    Hypervisor,
    kubevirt::VirtualMachineInstanceMigration,
    maintenance::{Group, NodeMaintenance},
};
use drydock_runtime::{chain, clock};
use drydock_view::drain::DrainEvent;
use jiff::Timestamp;
use kube::{Api, Client};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::{
    arguments::Follow,
    failure::{CommandError, Exit},
    screen::Screen,
};

use course::FollowedDrain;
use show::Show;
use watching::{Change, watch};

pub(crate) use followed_machine::follow as follow_machine;

/// Timeout for a timer that never fires in practice.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Drains that a command follows.
pub(crate) enum FollowedNodes {
    /// The drains of these nodes.
    Named(Vec<String>),
    /// The drains of all nodes in maintenance, including nodes whose maintenance starts later.
    InMaintenance,
}

/// Follows drains until all of them have ended. Returns the worst exit code.
///
/// # Errors
/// If the maintenances cannot be read, or the output cannot be written.
pub(crate) async fn follow(
    client: &Client,
    nodes: FollowedNodes,
    options: &Follow,
    screen: Option<Screen>,
    out: &mut dyn Write,
) -> Result<Exit, CommandError> {
    let mut session = FollowSession::new(client, nodes, Show::new(options.output, screen));
    let (mut interrupt, mut resized) = (signal(SignalKind::interrupt())?, signal(SignalKind::window_change())?);
    let began = Instant::now();
    let deadline = began + options.timeout.map_or(NEVER, Duration::from_secs);
    loop {
        session.refresh(true, out)?;
        if let Some(exit) = session.exit() {
            if session.courses.is_empty() {
                eprintln!("no node is in maintenance");
            }
            session.refresh(false, out)?;
            return Ok(exit);
        }
        let blocked = session.blocked(options.fail_when_blocked);
        let wake = [
            deadline,
            session.show.due(),
            blocked.as_ref().map_or(deadline, |(at, _)| *at),
        ];
        let wake = wake.into_iter().min().unwrap_or(deadline);
        tokio::select! {
            seen = session.seen.recv() => if let Some(seen) = seen { session.take(seen, out)? },
            () = sleep_until(wake) => {}
            _ = resized.recv() => session.show.changed(&[], out)?,
            _ = interrupt.recv() => return session.interrupted(out),
        }
        let now = Instant::now();
        if let Some((_, node)) = blocked.filter(|(at, _)| *at <= now) {
            session.refresh(false, out)?;
            eprintln!("node {node} has been blocked for the maximum time (--fail-when-blocked); the drain continues");
            return Ok(session.worst().worse(Exit::Blocked));
        }
        if deadline <= now && session.exit().is_none() {
            session.refresh(false, out)?;
            eprintln!("the drain did not end within the timeout, and continues");
            return Ok(session.worst().worse(Exit::NotInTime));
        }
    }
}

/// An event of one of the watches.
enum FollowedChange {
    Drain(String, Box<Change<Hypervisor>>),
    Migration(String, Box<Change<VirtualMachineInstanceMigration>>),
    Maintenance(Group, Box<Change<NodeMaintenance>>),
}

impl FollowedChange {
    /// Returns a name that identifies the watch.
    fn source(&self) -> String {
        match self {
            Self::Drain(node, _) => format!("drain of {node}"),
            Self::Migration(node, _) => format!("migrations of {node}"),
            Self::Maintenance(group, _) => group.as_str().to_owned(),
        }
    }

    /// Returns the time since which the watch cannot reach the API server, and the reason. Returns `None` if the watch
    /// has reached it.
    fn unreachable_since(&self) -> Option<(Timestamp, String)> {
        match self {
            Self::Drain(_, change) => change.unreachable_since(),
            Self::Migration(_, change) => change.unreachable_since(),
            Self::Maintenance(_, change) => change.unreachable_since(),
        }
    }
}

struct FollowSession<'a> {
    client: &'a Client,
    courses: Vec<FollowedDrain>,
    /// Whether nodes are added when their maintenance starts.
    adds_nodes: bool,
    /// API groups whose maintenances have been listed.
    listed: Vec<Group>,
    show: Show,
    /// Time since which a watch cannot reach the API server, by [`FollowedChange::source`].
    unreachable: BTreeMap<String, Timestamp>,
    watches: JoinSet<()>,
    sender: UnboundedSender<FollowedChange>,
    seen: UnboundedReceiver<FollowedChange>,
}

impl<'a> FollowSession<'a> {
    fn new(client: &'a Client, nodes: FollowedNodes, show: Show) -> Self {
        let (sender, seen) = unbounded_channel();
        let mut session = Self {
            client,
            courses: Vec::new(),
            adds_nodes: matches!(nodes, FollowedNodes::InMaintenance),
            listed: Vec::new(),
            show,
            unreachable: BTreeMap::new(),
            watches: JoinSet::new(),
            sender,
            seen,
        };
        for group in Group::ALL {
            let (sender, api) = (session.sender.clone(), Api::all_with(client.clone(), &group));
            let send = move |change| {
                sender
                    .send(FollowedChange::Maintenance(group, Box::new(change)))
                    .is_ok()
            };
            session.watches.spawn(watch::<NodeMaintenance>(api, None, send));
        }
        if let FollowedNodes::Named(names) = nodes {
            for name in names {
                session.add(&name);
            }
        }
        session
    }

    /// Starts to follow the drain of a node, unless it is followed already.
    fn add(&mut self, node: &str) {
        if self.courses.iter().any(|course| course.node() == node) {
            return;
        }
        self.courses.push(FollowedDrain::new(node));
        let (sender, name) = (self.sender.clone(), node.to_owned());
        let send = move |change| {
            sender
                .send(FollowedChange::Drain(name.clone(), Box::new(change)))
                .is_ok()
        };
        let fields = format!("metadata.name={node}");
        self.watches
            .spawn(watch(Api::all(self.client.clone()), Some(fields), send));
        // Only a block shows the progress of each migration.
        if self.show.is_block() {
            let (sender, name) = (self.sender.clone(), node.to_owned());
            let send = move |change| {
                sender
                    .send(FollowedChange::Migration(name.clone(), Box::new(change)))
                    .is_ok()
            };
            let fields = format!("status.source.node={node}");
            self.watches
                .spawn(watch(Api::all(self.client.clone()), Some(fields), send));
        }
    }

    /// Processes an event of a watch, and shows the changes.
    fn take(&mut self, seen: FollowedChange, out: &mut dyn Write) -> Result<(), CommandError> {
        match seen.unreachable_since() {
            Some((since, cause)) => {
                if self.unreachable.is_empty() {
                    self.show.unreachable(&cause);
                }
                self.unreachable.insert(seen.source(), since);
            }
            None => drop(self.unreachable.remove(&seen.source())),
        }
        let now = clock::now();
        let events = match seen {
            FollowedChange::Drain(node, change) => self.drain(&node, *change, now),
            FollowedChange::Migration(node, change) => {
                if let Some(course) = self.course(&node) {
                    course.take_migrations(*change);
                }
                Vec::new()
            }
            FollowedChange::Maintenance(group, change) => self.maintenance(group, *change, now)?,
        };
        self.show.changed(&events, out)
    }

    fn drain(&mut self, node: &str, change: Change<Hypervisor>, now: Timestamp) -> Vec<DrainEvent> {
        let is_block = self.show.is_block();
        let Some(course) = self.course(node) else {
            return Vec::new();
        };
        let object = match change {
            Change::Listed(all) => all.into_iter().next(),
            Change::Changed(object) => Some(object),
            Change::Gone(_) => None,
            Change::Unreachable(..) => return Vec::new(),
            Change::Failed(failure) => {
                if !is_block {
                    eprintln!("error: node {node}: {}", chain(&failure));
                }
                course.fail(&failure);
                return Vec::new();
            }
        };
        course.drain(object.and_then(|object| object.status?.drain), now)
    }

    fn maintenance(
        &mut self,
        group: Group,
        change: Change<NodeMaintenance>,
        now: Timestamp,
    ) -> Result<Vec<DrainEvent>, CommandError> {
        let (objects, is_gone) = match change {
            Change::Listed(all) => {
                if !self.listed.contains(&group) {
                    self.listed.push(group);
                }
                self.add_all(&all);
                let courses = self.courses.iter_mut();
                return Ok(courses.flat_map(|course| course.listed(group, &all, now)).collect());
            }
            Change::Changed(object) => (vec![object], false),
            Change::Gone(object) => (vec![object], true),
            Change::Unreachable(..) => return Ok(Vec::new()),
            // No drain can be followed without the maintenances.
            Change::Failed(failure) => return Err(failure),
        };
        if !is_gone {
            self.add_all(&objects);
        }
        let mut events = Vec::new();
        for object in &objects {
            if let Some(course) = self.course(&object.spec.node_name) {
                events.extend(course.maintenance(group, object, is_gone, now));
            }
        }
        Ok(events)
    }

    fn add_all(&mut self, maintenances: &[NodeMaintenance]) {
        if self.adds_nodes {
            for object in maintenances
                .iter()
                .filter(|object| object.metadata.deletion_timestamp.is_none())
            {
                self.add(&object.spec.node_name);
            }
        }
    }

    fn course(&mut self, node: &str) -> Option<&mut FollowedDrain> {
        self.courses.iter_mut().find(|course| course.node() == node)
    }

    /// Returns the exit code if all drains have ended.
    fn exit(&self) -> Option<Exit> {
        let is_known = !self.adds_nodes || self.listed.len() == Group::ALL.len();
        let is_over = is_known && self.courses.iter().all(|course| course.exit.is_some());
        is_over.then(|| self.worst())
    }

    /// Returns the worst exit code of the drains that have ended.
    fn worst(&self) -> Exit {
        let exits = self.courses.iter().filter_map(|course| course.exit);
        exits.fold(Exit::Done, Exit::worse)
    }

    /// Returns the time at which the first node will have been blocked for `most`, and its name.
    fn blocked(&self, most: Option<Duration>) -> Option<(Instant, String)> {
        let courses = self.courses.iter();
        let ends = courses.filter_map(|course| Some((course.blocked_for(most?)?, course.node().to_owned())));
        ends.min()
    }

    fn refresh(&mut self, goes_on: bool, out: &mut dyn Write) -> Result<(), CommandError> {
        let since = self.unreachable.values().min().copied();
        self.show.refresh(&self.courses, since, goes_on, out)
    }

    /// Ends the view. The drains continue in the cluster.
    fn interrupted(&mut self, out: &mut dyn Write) -> Result<Exit, CommandError> {
        self.refresh(false, out)?;
        let open = self.courses.iter().filter(|course| course.exit.is_none());
        let names: Vec<&str> = open.map(FollowedDrain::node).collect();
        if !names.is_empty() {
            eprintln!(
                "the drain continues; to cancel it: kubectl drydock maintenance stop {}",
                names.join(" ")
            );
        }
        Ok(self.worst())
    }
}
