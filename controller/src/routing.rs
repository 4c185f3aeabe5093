//! Determines the reconcilers that a change concerns. Pure functions map a change to [`Route`]s, which [`Queues`]
//! follows.
//!
//! ```text
//!  change of ─────────▶ enqueues ──────────────────────────────────────── and wakes
//!  instance             itself, its machine, replica sets and migrations
//!    if drains see it   its PDB                                           drains, held evictions
//!  migration            itself, the instances that it moves               drains
//!    begun or ended     their machines
//!  machine              itself, the PDB of its instance
//!  launcher pod         its instance, its migrations, its PDB             drains, held evictions
//!  PDB of an instance   itself                                            held evictions
//!  other PDB            the PDBs of its namespace                         drains
//!  maintenance          its node
//!  node, Hypervisor     its maintenances                                  sweeps, drains, replicas, nodes of unresponsive
//!                                                                         agents, default CPU model, status of the
//!                                                                         configuration
//!  pod on a node        the node's maintenances                           drains
//!  resources of pods                                                      sweeps for room
//!  agent's liveness                                                       sweeps
//!  configuration                                                          sweeps, all PDBs, drains, held evictions,
//!                                                                         its status
//!  HyperConverged                                                         configuration and its status, certificates
//! ```
//!
//! A sweep reconciles all unfinished instances, or all migrations that wait for a node. A rule of the cluster, such as
//! a quota, enqueues the steps that the API server has refused ([`StepRefusals`](crate::refusals)). Watches that only
//! one task needs, such as those of replica sets and of Leases, enqueue the changed object itself and have no route.
//!
//! [`Queues`]: crate::queues::Queues

use drydock_api::kubevirt::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration};
use drydock_core::drain;
use drydock_runtime::{CacheChange, Key};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::{
    instances::sets_of_change,
    migrations::{begun_or_ended, instances_of},
    pdb_task::concerned,
};

/// A reconciler, and the objects that it has to reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// This `VirtualMachineInstance`.
    Instance(Key),
    /// This `VirtualMachine`.
    Machine(Key),
    /// This `VirtualMachineInstanceReplicaSet`.
    ReplicaSet(Key),
    /// This `VirtualMachineInstanceMigration`.
    Migration(Key),
    /// The PDB of this instance.
    Pdb(Key),
    /// The maintenances of this node.
    Maintenance(Key),
    /// All instances that have not ended or are being deleted.
    UnfinishedInstances,
    /// All instances that have not ended, a part at a time, because the resource usage on nodes has changed.
    Rooms,
    /// All migrations that wait for a node.
    WaitingMigrations,
    /// The PDBs of all instances that have not ended or are being deleted.
    AllPdbs,
    /// The drains of all nodes.
    Drains,
    /// The spread of the controller's own replicas over nodes.
    Replicas,
    /// The nodes of unresponsive agents.
    Liveness,
    /// The configuration in force, and the default CPU model of virtual machines.
    Configuration,
    /// The status of the configuration in force.
    ConfigurationStatus,
    /// The certificates, whose lifetimes are configured.
    Certificates,
    /// The evictions that are held until a guest has moved.
    HeldEvictions,
}

/// Returns the routes of a changed instance. `migrations_of` returns the migrations that the change concerns, or all
/// migrations of the instance if it was deleted.
pub(crate) fn of_instance(
    change: &CacheChange<VirtualMachineInstance>,
    migrations_of: impl FnOnce(&Key, bool) -> Vec<Key>,
) -> Vec<Route> {
    let CacheChange::Object { key, old, new } = change else {
        return Vec::new();
    };
    let mut routes = vec![Route::Instance(key.clone()), Route::Machine(key.clone())];
    routes.extend(sets_of_change(change).into_iter().map(Route::ReplicaSet));
    routes.extend(migrations_of(key, new.is_none()).into_iter().map(Route::Migration));
    if drain::concerns(old.as_deref(), new.as_deref()) {
        routes.extend([Route::Pdb(key.clone()), Route::Drains, Route::HeldEvictions]);
    }
    routes
}

/// Returns the routes of a changed migration. Drains are also notified of a failure of the watch.
pub(crate) fn of_migration(change: &CacheChange<VirtualMachineInstanceMigration>) -> Vec<Route> {
    let mut routes = vec![Route::Drains];
    if let CacheChange::Object { key, .. } = change {
        routes.push(Route::Migration(key.clone()));
    }
    routes.extend(instances_of(change).into_iter().map(Route::Instance));
    routes.extend(begun_or_ended(change).into_iter().map(Route::Machine));
    routes
}

/// Returns the routes of a changed machine, whose instance has the same key.
pub(crate) fn of_machine(change: &CacheChange<VirtualMachine>) -> Vec<Route> {
    match change {
        CacheChange::Object { key, .. } => vec![Route::Machine(key.clone()), Route::Pdb(key.clone())],
        CacheChange::Unreadable { .. } | CacheChange::SyncState(_) => Vec::new(),
    }
}

/// Returns the routes of a changed launcher pod of this instance. `made_for` is the UID of the migration whose target
/// the pod is. `migrations_of` returns the migrations of an instance that a change of such a pod concerns.
pub(crate) fn of_launcher_pod(
    instance: Key,
    made_for: Option<&str>,
    migrations_of: impl FnOnce(&Key, Option<&str>) -> Vec<Key>,
) -> Vec<Route> {
    let migrations = migrations_of(&instance, made_for).into_iter().map(Route::Migration);
    let mut routes: Vec<Route> = migrations.collect();
    routes.extend([
        Route::Pdb(instance.clone()),
        Route::Instance(instance),
        Route::Drains,
        Route::HeldEvictions,
    ]);
    routes
}

/// Returns the routes of a changed PDB. A PDB of another owner may block any guest of its namespace. `instances_in`
/// returns the unfinished instances of a namespace.
pub(crate) fn of_pdb(
    change: &CacheChange<PodDisruptionBudget>,
    instances_in: impl FnOnce(&str) -> Vec<Key>,
) -> Vec<Route> {
    match concerned(change) {
        Some((_, Some(instance))) => vec![Route::Pdb(instance), Route::HeldEvictions],
        Some((namespace, None)) => {
            let pdbs = instances_in(&namespace).into_iter().map(Route::Pdb);
            pdbs.chain([Route::Drains]).collect()
        }
        None => Vec::new(),
    }
}

/// Returns the routes of a node whose Node or Hypervisor has changed in a way that matters to virtual machines.
pub(crate) fn of_node(node: &str, is_in_maintenance: bool) -> Vec<Route> {
    let mut routes = vec![
        Route::UnfinishedInstances,
        Route::WaitingMigrations,
        Route::Drains,
        Route::Replicas,
        Route::Liveness,
        Route::Configuration,
        Route::ConfigurationStatus,
    ];
    if is_in_maintenance {
        routes.push(Route::Maintenance(Key::cluster(node)));
    }
    routes
}

/// Returns the routes of a changed maintenance of this node.
pub(crate) fn of_maintenance(node: &str) -> Vec<Route> {
    vec![Route::Maintenance(Key::cluster(node))]
}

/// Returns the routes of a changed pod on this node, which is being drained.
pub(crate) fn of_node_pod(node: &str) -> Vec<Route> {
    vec![Route::Maintenance(Key::cluster(node)), Route::Drains]
}

/// Returns the routes of a change of the resources that pods use on nodes.
pub(crate) fn of_rooms() -> Vec<Route> {
    vec![Route::Rooms]
}

/// Returns the routes of a change of the set of unresponsive agents.
pub(crate) fn of_unresponsive_agents() -> Vec<Route> {
    vec![Route::UnfinishedInstances, Route::WaitingMigrations]
}

/// Returns the routes of a change of the configuration in force, which also determines the effect of evictions.
pub(crate) fn of_configuration() -> Vec<Route> {
    vec![
        Route::UnfinishedInstances,
        Route::WaitingMigrations,
        Route::AllPdbs,
        Route::Drains,
        Route::HeldEvictions,
        Route::ConfigurationStatus,
    ]
}

/// Returns the routes of a changed HyperConverged. One of them contains the configuration.
pub(crate) fn of_hyperconverged() -> Vec<Route> {
    vec![Route::Configuration, Route::ConfigurationStatus, Route::Certificates]
}

#[cfg(test)]
mod tests;
