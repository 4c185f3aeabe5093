//! The reconcilers. Each of them works while this process leads.

use drydock_core::migration::deadlines::PhaseDeadlines;
use drydock_runtime::Trigger;

use super::{ProcessContext, caches::ControllerCaches};
use crate::{
    certificates::{CertificatesTask, ConsoleCertificateTask, ServedCertificate, TaskNamespaces},
    drain_task::DrainTask,
    in_force_task::InForceTask,
    instance_task::InstanceTask,
    liveness_task::LivenessTask,
    machine_task::MachineTask,
    maintenance_task::{LeaseNamespaces, MaintenanceTask},
    migration_task::MigrationTask,
    pdb_task::PdbTask,
    queues::Queues,
    reconciler::triggered::{self, Triggered},
    refusal_task::RefusalTask,
    removal_task::RemovalTask,
    replica_set_task::ReplicaSetTask,
    replicas_task::ReplicasTask,
};

impl ProcessContext {
    /// Spawns a reconciler that `changed` triggers.
    fn spawn_triggered(&self, name: &'static str, reconciler: impl Triggered + Send + 'static, changed: &Trigger) {
        let (process, leadership) = (self.process.clone(), self.leadership.clone());
        let metrics = self.telemetry.work_queues.clone();
        self.process.spawn_critical(
            name,
            triggered::run(reconciler, changed.clone(), leadership, process, metrics),
        );
    }
}

/// Starts the watch of replica sets, which admission also uses.
pub(super) fn replica_sets(context: &ProcessContext, caches: &ControllerCaches, queues: &Queues) -> ReplicaSetTask {
    ReplicaSetTask::new(caches.guests.clone(), &context.watches, &queues.replica_sets)
}

/// Spawns all reconcilers.
pub(super) fn spawn(
    context: &ProcessContext,
    caches: ControllerCaches,
    replica_sets: ReplicaSetTask,
    certificate: ServedCertificate,
    queues: &Queues,
) {
    let (process, leadership) = (&context.process, &context.leadership);
    let queue = queues.replica_sets.clone();
    context.process.spawn_critical(
        "reconciling replica sets",
        replica_sets.run(process.clone(), leadership.clone(), queue),
    );
    spawn_guests(context, &caches, queues);
    spawn_migrations(context, &caches, queues);
    spawn_nodes(context, &caches, queues);
    spawn_installation(context, &caches, certificate, queues);
    spawn_maintenances(context, caches, queues);
}

/// Spawns the reconcilers of machines, instances and their PDBs.
fn spawn_guests(context: &ProcessContext, caches: &ControllerCaches, queues: &Queues) {
    let (process, leadership) = (&context.process, &context.leadership);
    let machines = MachineTask::new(caches.guests.clone(), caches.machines.clone());
    context.process.spawn_critical(
        "reconciling machines",
        machines.run(process.clone(), leadership.clone(), queues.machines.clone()),
    );
    let instances = InstanceTask::new(caches.guests.clone());
    let triggers = (queues.unfinished_instances.clone(), queues.rooms.clone());
    context.process.spawn_critical(
        "reconciling instances",
        instances.run(process.clone(), leadership.clone(), queues.instances.clone(), triggers),
    );
    let pdbs = PdbTask::new(caches.guests.clone());
    let (queue, all) = (queues.pdbs.clone(), queues.all_pdbs.clone());
    context.process.spawn_critical(
        "reconciling PDBs",
        pdbs.run(process.clone(), leadership.clone(), queue, all),
    );
}

/// Spawns the reconcilers of migrations and drains.
fn spawn_migrations(context: &ProcessContext, caches: &ControllerCaches, queues: &Queues) {
    let (process, leadership) = (&context.process, &context.leadership);
    let deadlines = PhaseDeadlines {
        preparing: context.args.migration_prepare_timeout,
        starting: context.args.migration_start_timeout,
        ..PhaseDeadlines::default()
    };
    let migrations = MigrationTask::new(caches.guests.clone(), deadlines, queues.migrations.clone());
    migrations.export(&context.telemetry.slots, leadership);
    context.process.spawn_critical(
        "reconciling migrations",
        migrations.run(process.clone(), leadership.clone(), queues.waiting_migrations.clone()),
    );
    let drains = DrainTask::new(
        caches.guests.clone(),
        caches.node_pods.clone(),
        context.telemetry.drains.clone(),
        queues.drains.clone(),
    );
    context.spawn_triggered("reconciling drains", drains, &queues.drains);
    let refusals = RefusalTask::new(
        context.client.clone(),
        context.watches.clone(),
        context.refusals.clone(),
        queues.clone(),
    );
    context.process.spawn_critical(
        "retrying refused steps",
        refusals.run(process.clone(), leadership.clone()),
    );
}

/// Spawns the reconcilers of the liveness of agents, the configuration in force, and the controller's own replicas.
fn spawn_nodes(context: &ProcessContext, caches: &ControllerCaches, queues: &Queues) {
    let liveness = LivenessTask::new(
        context.client.clone(),
        &context.watches,
        caches.nodes.nodes.clone(),
        caches.unresponsive_agents.clone(),
        &context.events,
        context.telemetry.nodes.clone(),
    );
    context.spawn_triggered("observing agents' Leases", liveness, &queues.liveness);
    let in_force = InForceTask::new(
        context.client.clone(),
        (caches.hyperconvergeds.clone(), caches.nodes.hypervisors.shown().clone()),
        context.args.configuration_namespaces.clone(),
        caches.configuration.clone(),
        context.telemetry.nodes.clone(),
    );
    context.spawn_triggered(
        "reconciling the status of the configuration",
        in_force,
        &queues.configuration_status,
    );
    let replicas = ReplicasTask::new(
        context.client.clone(),
        &context.watches,
        (&context.args.namespace, context.args.pod_name.clone()),
        (caches.nodes.clone(), caches.rooms.clone()),
        &queues.replicas,
    );
    context.spawn_triggered("keeping replicas on different nodes", replicas, &queues.replicas);
}

/// Spawns the reconciler of maintenances of nodes.
fn spawn_maintenances(context: &ProcessContext, caches: ControllerCaches, queues: &Queues) {
    let own = &context.args.namespace;
    let places = LeaseNamespaces {
        leases: context.args.node_lease_namespace.clone(),
        kubevirt_leases: context
            .args
            .kubevirt_node_lease_namespace
            .clone()
            .unwrap_or_else(|| own.clone()),
        own: own.clone(),
    };
    let maintenances = MaintenanceTask::new(
        context.client.clone(),
        &context.watches,
        caches.maintenances,
        caches.nodes,
        caches.node_pods,
        &places,
        context.events.clone(),
        &queues.maintenances,
    );
    let queue = queues.maintenances.nodes.clone();
    context.process.spawn_critical(
        "reconciling maintenances",
        maintenances.run(context.process.clone(), context.leadership.clone(), queue),
    );
}

/// Spawns the reconcilers of certificates, and of the protection of Drydock's own objects.
fn spawn_installation(
    context: &ProcessContext,
    caches: &ControllerCaches,
    certificate: ServedCertificate,
    queues: &Queues,
) {
    let ProcessContext {
        args,
        process,
        client,
        watches,
        leadership,
        telemetry,
        ..
    } = context;
    let removal_changed = Trigger::new();
    let removal = RemovalTask::new(
        client.clone(),
        watches,
        args.namespace.clone(),
        (&removal_changed, &queues.certificates),
    );
    let console = ConsoleCertificateTask::new(
        client.clone(),
        watches,
        &args.namespace,
        leadership.clone(),
        process.clone(),
    );
    let place = TaskNamespaces {
        namespace: args.namespace.clone(),
        configuration_namespaces: args.configuration_namespaces.clone(),
    };
    let certificates = CertificatesTask::new(
        client.clone(),
        watches,
        place,
        caches.hyperconvergeds.clone(),
        (removal.shown(), queues.certificates.clone()),
        certificate,
        leadership.clone(),
        telemetry.certificates.clone(),
        process.clone(),
    );
    context.process.spawn_critical(
        "renewing the webhook certificate",
        certificates.run(telemetry.work_queues.clone()),
    );
    context.process.spawn_critical(
        "renewing the console's certificate",
        console.run(telemetry.work_queues.clone()),
    );
    context.spawn_triggered("protecting Drydock from removal", removal, &removal_changed);
}
