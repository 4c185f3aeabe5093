//! The queues and triggers of the reconcilers. [`Queues::follow`] passes changes to them.

use std::sync::Arc;

use drydock_runtime::{Trigger, WorkQueue, WorkQueueMetrics};
use tokio::sync::watch;

use crate::{
    instance_task, machine_task, maintenance_task::MaintenanceQueues, migration_task, pdb_task, replica_set_task,
    routing::Route,
};

/// The queues and triggers of all reconcilers. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    /// Instances to reconcile.
    pub(crate) instances: WorkQueue,
    /// Machines to reconcile.
    pub(crate) machines: WorkQueue,
    /// Replica sets to reconcile.
    pub(crate) replica_sets: WorkQueue,
    /// Migrations to reconcile.
    pub(crate) migrations: WorkQueue,
    /// Instances whose PDBs to reconcile.
    pub(crate) pdbs: WorkQueue,
    /// Nodes whose maintenances to reconcile, and evictions to request.
    pub(crate) maintenances: MaintenanceQueues,
    /// Notified when every unfinished instance has to be reconciled.
    pub(crate) unfinished_instances: Trigger,
    /// Notified when the resource usage of pods on nodes has changed.
    pub(crate) rooms: Trigger,
    /// Notified when every migration that waits for a node has to be reconciled.
    pub(crate) waiting_migrations: Trigger,
    /// Notified when the PDBs of all unfinished instances have to be reconciled.
    pub(crate) all_pdbs: Trigger,
    /// Notified when the drains have to be reconciled.
    pub(crate) drains: Trigger,
    /// Notified when the spread of the controller's replicas has to be reconciled.
    pub(crate) replicas: Trigger,
    /// Notified when the nodes of unresponsive agents have to be reconciled.
    pub(crate) liveness: Trigger,
    /// Notified when the configuration has to be resolved, and the default CPU model chosen again.
    pub(crate) configuration: Trigger,
    /// Notified when the status of the configuration has to be reconciled.
    pub(crate) configuration_status: Trigger,
    /// Notified when the certificates have to be reconciled.
    pub(crate) certificates: Trigger,
    /// Changes when a held eviction may be granted.
    held_evictions: Arc<watch::Sender<u64>>,
}

impl Queues {
    /// Creates empty queues. They report to `metrics`.
    pub(crate) fn new(metrics: &WorkQueueMetrics) -> Self {
        let queue = |name, at_once| WorkQueue::new(name, at_once, metrics);
        Self {
            instances: queue("instances", instance_task::MAX_CONCURRENT_RECONCILES),
            machines: queue("machines", machine_task::MAX_CONCURRENT_RECONCILES),
            replica_sets: queue("replicasets", replica_set_task::MAX_CONCURRENT_RECONCILES),
            migrations: queue("migrations", migration_task::MAX_CONCURRENT_RECONCILES),
            pdbs: queue("pdbs", pdb_task::MAX_CONCURRENT_RECONCILES),
            maintenances: MaintenanceQueues::new(metrics),
            unfinished_instances: Trigger::new(),
            rooms: Trigger::new(),
            waiting_migrations: Trigger::new(),
            all_pdbs: Trigger::new(),
            drains: Trigger::new(),
            replicas: Trigger::new(),
            liveness: Trigger::new(),
            configuration: Trigger::new(),
            configuration_status: Trigger::new(),
            certificates: Trigger::new(),
            held_evictions: Arc::new(watch::Sender::new(0)),
        }
    }

    /// Enqueues the keys of these routes and notifies their triggers. Never waits.
    pub(crate) fn follow(&self, routes: impl IntoIterator<Item = Route>) {
        for route in routes {
            match route {
                Route::Instance(key) => self.instances.add(key),
                Route::Machine(key) => self.machines.add(key),
                Route::ReplicaSet(key) => self.replica_sets.add(key),
                Route::Migration(key) => self.migrations.add(key),
                Route::Pdb(key) => self.pdbs.add(key),
                Route::Maintenance(node) => self.maintenances.nodes.add(node),
                Route::UnfinishedInstances => self.unfinished_instances.notify(),
                Route::Rooms => self.rooms.notify(),
                Route::WaitingMigrations => self.waiting_migrations.notify(),
                Route::AllPdbs => self.all_pdbs.notify(),
                Route::Drains => self.drains.notify(),
                Route::Replicas => self.replicas.notify(),
                Route::Liveness => self.liveness.notify(),
                Route::Configuration => self.configuration.notify(),
                Route::ConfigurationStatus => self.configuration_status.notify(),
                Route::Certificates => self.certificates.notify(),
                Route::HeldEvictions => self
                    .held_evictions
                    .send_modify(|number| *number = number.wrapping_add(1)),
            }
        }
    }

    /// Returns a receiver that changes when a held eviction may be granted.
    pub(crate) fn held_evictions(&self) -> watch::Receiver<u64> {
        self.held_evictions.subscribe()
    }
}
