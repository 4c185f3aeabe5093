//! The migrations from and to this node, with one task for each side that this node has.
//!
//! ```text
//!  migrations from here ─┐                       ┌─▶ SourceTask ─▶ libvirt in the pod that the guest leaves
//!  migrations to here ───┼─▶ LocalMigrations ────┤        └──────▶ the node's tunnel ═══▶ the target's
//!  launcher pods here ───┘   (one per side)      └─▶ TargetTask ─▶ libvirt in the pod that it arrives in
//! ```
//!
//! The tasks execute the steps of [`drydock_core::migration::source`] and [`drydock_core::migration::target`]. After
//! a restart, they recover their state from the object, from libvirt, and from the tunnel.

#[cfg(test)]
mod fixture;
mod migration_watches;
mod seen;
mod side;
mod source_task;
mod status_patch;
mod target_task;
mod unneeded_sessions;

use std::{collections::BTreeSet, sync::Arc};

use drydock_api::kubevirt::VirtualMachineInstanceMigration;
use drydock_core::migration::record::MigrationRecord;
use drydock_runtime::{Key, Process};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tokio::sync::watch;
use tracing::{Instrument, info_span};

use crate::{
    guests::{Host, TaskContext},
    object_tasks::{ObjectTasks, TaskObservation, pod_differs},
    tunnel::{local::Role, tunnels::Tunnels},
};
pub(crate) use migration_watches::MigrationWatches;
use source_task::SourceTask;
use target_task::TargetTask;
use unneeded_sessions::UnneededSessions;

/// The observed state of one side of a migration.
#[derive(Clone, Debug)]
pub(crate) struct SideState {
    /// Object of the migration.
    pub(crate) migration: Arc<VirtualMachineInstanceMigration>,
    /// The pod of this side, if it exists.
    pub(crate) pod: Option<Arc<Pod>>,
    /// Host that the agent runs on.
    pub(crate) host: Arc<Host>,
}

/// The migrations of this node.
pub(crate) struct LocalMigrations {
    shared: TaskContext,
    watches: MigrationWatches,
    tunnels: Tunnels,
    host: watch::Receiver<Option<Arc<Host>>>,
    process: Process,
    tasks: ObjectTasks<(String, bool), SideState>,
    /// Whether no reconcile has run yet. An earlier process may have started the migrations that the first reconcile
    /// finds.
    first: bool,
}

impl LocalMigrations {
    /// Prepares to serve the migrations that `watches` show.
    pub(crate) fn new(
        shared: TaskContext,
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
            tasks: ObjectTasks::new(process.clone()),
            process,
            first: true,
        }
    }

    /// Serves the migrations until the process stops. It does nothing before this agent acts for the node.
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
        let mut unneeded = UnneededSessions::new(self.shared.client.clone(), self.shared.node.clone());
        loop {
            let host = self.host.borrow_and_update().clone();
            if let Some(host) = host {
                let present = self.reconcile(&host);
                unneeded.close(&sessions.borrow_and_update(), &present, &self.watches);
            }
            tokio::select! {
                () = stopping.cancelled() => return,
                () = self.watches.changed() => {}
                _ = sessions.changed() => {}
                () = unneeded.changed() => {}
                changed = self.host.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Starts and stops tasks, and passes changes to tasks that continue. Returns the keys of the sides that exist.
    fn reconcile(&mut self, host: &Arc<Host>) -> BTreeSet<(String, bool)> {
        let mut present = BTreeSet::new();
        for role in [Role::Source, Role::Target] {
            for migration in self.watches.migrations(role) {
                if !concerns(&migration, role) {
                    continue;
                }
                let Some(uid) = migration.uid() else { continue };
                let read_status = self.may_have_begun(&uid);
                let key = (uid, role == Role::Source);
                present.insert(key.clone());
                let pod = seen::pod_uid(&migration, role).and_then(|uid| self.watches.pod(uid));
                let seen = SideState {
                    migration,
                    pod,
                    host: Arc::clone(host),
                };
                self.tasks.update(key, seen, |receiver| {
                    let (shared, tunnels) = (self.shared.clone(), self.tunnels.clone());
                    start(role, shared, tunnels, receiver, read_status)
                });
            }
        }
        self.tasks.stop_others(&present);
        self.first = false;
        present
    }

    /// Returns whether an earlier process may have served a migration.
    ///
    /// This is the case for a migration that the first reconcile finds, and for a migration of which a tunnel has a
    /// session. A watch that started from an outdated list can show such a migration later than the first reconcile.
    fn may_have_begun(&self, uid: &str) -> bool {
        let sessions = self.tunnels.sessions();
        let known = sessions.borrow();
        self.first || !known.is_complete || known.sessions.contains_key(uid)
    }
}

/// Returns the name and the future of the task of one side.
fn start(
    role: Role,
    shared: TaskContext,
    tunnels: Tunnels,
    seen: watch::Receiver<SideState>,
    read_status: bool,
) -> (String, BoxFuture<'static, ()>) {
    let migration = Arc::clone(&seen.borrow().migration);
    let name = format!("migration {} as {}", migration.uid().unwrap_or_default(), role.as_str());
    let span = info_span!("reconcile", controller = role.as_str(), key = %Key::of(migration.as_ref()));
    let task = match role {
        Role::Source => SourceTask::new(shared, tunnels, seen, read_status).run().boxed(),
        Role::Target => TargetTask::new(shared, tunnels, seen, read_status).run().boxed(),
        // No migration has a side with this role.
        Role::Unknown => std::future::ready(()).boxed(),
    };
    (name, task.instrument(span).boxed())
}

/// Returns whether this side of a migration has work to do, now or later.
fn concerns(migration: &VirtualMachineInstanceMigration, role: Role) -> bool {
    let record = MigrationRecord::of(migration);
    let settled = match role {
        Role::Source => record.source_is_settled(),
        Role::Target => record.target_is_settled(),
        Role::Unknown => true,
    };
    !(record.is_over() && settled)
}

impl TaskObservation for SideState {
    fn differs(&self, other: &Self) -> bool {
        self.migration.resource_version() != other.migration.resource_version()
            || pod_differs(self.pod.as_deref(), other.pod.as_deref())
            || self.host != other.host
    }
}
