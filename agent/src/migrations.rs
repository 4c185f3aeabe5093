//! The migrations from and to this node, with one task for each side that this node is.
//!
//! ```text
//!  migrations from here ─┐                    ┌─▶ SourceTask ─▶ libvirt in the pod that the guest leaves
//!  migrations to here ───┼─▶ Migrations ──────┤        └──────▶ the node's tunnel ═══▶ the target's
//!  launcher pods here ───┘   (one per side)   └─▶ TargetTask ─▶ libvirt in the pod that it arrives in
//! ```
//!
//! The tasks execute the steps of [`drydock_core::migration::source`] and [`drydock_core::migration::target`]. After
//! a restart, they recover their state from the object, from libvirt, and from the tunnel.

#[cfg(test)]
mod fixture;
mod progress;
mod seen;
mod source_task;
mod status_patch;
mod target_task;
mod watches;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use drydock_api::kubevirt::VirtualMachineInstanceMigration;
use drydock_core::migration::record::Record;
use drydock_runtime::{CancellationToken, Key, Process};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tokio::{sync::watch, task::JoinSet};
use tracing::{Instrument, info_span};

use crate::{
    guests::{Host, Shared},
    tunnel::{
        client::TunnelError,
        local::Role,
        tunnels::{KnownSessions, Tunnels},
    },
};
use source_task::SourceTask;
use target_task::TargetTask;
pub(crate) use watches::MigrationWatches;

/// The observed state of one side of a migration.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// The migration.
    pub(crate) migration: Arc<VirtualMachineInstanceMigration>,
    /// The pod of this side, if it exists.
    pub(crate) pod: Option<Arc<Pod>>,
    /// The host.
    pub(crate) host: Arc<Host>,
}

/// The migrations of this node.
pub(crate) struct Migrations {
    shared: Shared,
    watches: MigrationWatches,
    tunnels: Tunnels,
    host: watch::Receiver<Option<Arc<Host>>>,
    process: Process,
    running: BTreeMap<(String, bool), Running>,
    /// Whether no reconcile has run yet: an earlier process may have started the migrations that the first one finds.
    first: bool,
}

/// The task of one side.
struct Running {
    seen: watch::Sender<Seen>,
    stop: CancellationToken,
}

impl Migrations {
    /// Prepares to serve the migrations that `watches` show.
    pub(crate) fn new(
        shared: Shared,
        watches: MigrationWatches,
        tunnels: Tunnels,
        host: watch::Receiver<Option<Arc<Host>>>,
        process: Process,
    ) -> Self {
        Self {
            shared,
            watches,
            tunnels,
            host,
            process,
            running: BTreeMap::new(),
            first: true,
        }
    }

    /// Serves the migrations until the process stops. Does nothing before this agent acts for the node.
    pub(crate) async fn run(mut self) {
        let stopping = self.process.stopping();
        if stopping
            .run_until_cancelled(self.watches.wait_until_synced())
            .await
            .is_none()
        {
            return;
        }
        let mut sessions = self.tunnels.sessions();
        let mut closing = JoinSet::new();
        loop {
            let host = self.host.borrow_and_update().clone();
            if let Some(host) = host {
                let present = self.reconcile(&host);
                self.close_others(&sessions.borrow_and_update(), &present, &mut closing);
            }
            tokio::select! {
                () = stopping.cancelled() => return,
                () = self.watches.changed() => {}
                _ = sessions.changed() => {}
                Some(_) = closing.join_next() => {}
                changed = self.host.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Starts and stops tasks, and passes changes on to those that continue. Returns the sides that exist.
    fn reconcile(&mut self, host: &Arc<Host>) -> BTreeSet<(String, bool)> {
        let mut present = BTreeSet::new();
        for role in [Role::Source, Role::Target] {
            for migration in self.watches.migrations(role) {
                if !concerns(&migration, role) {
                    continue;
                }
                let Some(uid) = migration.uid() else { continue };
                let key = (uid, role == Role::Source);
                present.insert(key.clone());
                let pod = seen::pod_uid(&migration, role).and_then(|uid| self.watches.pod(uid));
                let seen = Seen {
                    migration,
                    pod,
                    host: Arc::clone(host),
                };
                self.notify(key, role, seen);
            }
        }
        self.running.retain(|key, task| {
            let keep = present.contains(key);
            if !keep {
                task.stop.cancel();
            }
            keep
        });
        self.first = false;
        present
    }

    /// Closes sessions of the tunnels that are no longer needed: those of migrations that are over and settled here,
    /// or deleted. (A session that is being created belongs to a migration that the watches have shown.)
    fn close_others(
        &self,
        known: &KnownSessions,
        present: &BTreeSet<(String, bool)>,
        closing: &mut JoinSet<Result<(), TunnelError>>,
    ) {
        for (uid, session) in &known.sessions {
            // A side of a later version may be needed for a purpose that only that version knows.
            let is_unknown = session.state.role == Role::Unknown;
            if is_unknown || present.contains(&(uid.clone(), session.state.role == Role::Source)) {
                continue;
            }
            let (uid, tunnel) = (uid.clone(), session.tunnel.clone());
            closing.spawn(async move { tunnel.close(&uid).await });
        }
    }

    fn notify(&mut self, key: (String, bool), role: Role, seen: Seen) {
        if let Some(task) = self.running.get(&key) {
            task.seen.send_if_modified(|before| {
                let changed = differs(before, &seen);
                *before = seen;
                changed
            });
            return;
        }
        let name = format!("migration {} as {}", key.0, role.as_str());
        let span = info_span!("reconcile", controller = role.as_str(), key = %Key::of(seen.migration.as_ref()));
        let (sender, receiver) = watch::channel(seen);
        let stop = self.process.stopping().child_token();
        let (ended, shared, tunnels) = (stop.clone(), self.shared.clone(), self.tunnels.clone());
        let first = self.first;
        match role {
            Role::Source => {
                let task = SourceTask::new(shared, tunnels, receiver, first);
                let run = async move {
                    ended.run_until_cancelled(task.run()).await;
                };
                self.process.spawn(name, run.instrument(span));
            }
            Role::Target => {
                let task = TargetTask::new(shared, tunnels, receiver, first);
                let run = async move {
                    ended.run_until_cancelled(task.run()).await;
                };
                self.process.spawn(name, run.instrument(span));
            }
            // No migration has such a side.
            Role::Unknown => return,
        }
        self.running.insert(key, Running { seen: sender, stop });
    }
}

/// Returns whether there is anything to do for this side, now or later.
fn concerns(migration: &VirtualMachineInstanceMigration, role: Role) -> bool {
    let record = Record::of(migration);
    let settled = match role {
        Role::Source => record.source_is_settled(),
        Role::Target => record.target_is_settled(),
        Role::Unknown => true,
    };
    !(record.is_over() && settled)
}

fn differs(one: &Seen, other: &Seen) -> bool {
    let version = |pod: &Option<Arc<Pod>>| pod.as_ref().and_then(|pod| pod.resource_version());
    one.migration.resource_version() != other.migration.resource_version()
        || version(&one.pod) != version(&other.pod)
        || one.host != other.host
}
