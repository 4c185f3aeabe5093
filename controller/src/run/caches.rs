//! The caches that several parts share. Each passes its changes through [`routing`] to the queues.

use drydock_api::{HyperConverged, kubevirt::VirtualMachine};
use drydock_runtime::{AssumeCache, Cache, Watch};

use super::ProcessContext;
use crate::{
    admission::evictions::EvictionReviews, configuration_in_force::ConfigurationInForce, guest_context::GuestContext,
    instances::Instances, launchers::Launchers, liveness_task::UnresponsiveAgents, machine_task::watch_machines,
    maintenances::Maintenances, migrations::Migrations, node_pods::NodePods, nodes::Nodes, pdbs::Pdbs, queues::Queues,
    rooms::Rooms, routing,
};

/// The shared caches.
pub(super) struct ControllerCaches {
    pub(super) hyperconvergeds: Cache<HyperConverged>,
    pub(super) configuration: ConfigurationInForce,
    pub(super) machines: AssumeCache<VirtualMachine>,
    pub(super) maintenances: Maintenances,
    pub(super) unresponsive_agents: UnresponsiveAgents,
    pub(super) nodes: Nodes,
    pub(super) rooms: Rooms,
    pub(super) node_pods: NodePods,
    pub(super) guests: GuestContext,
}

impl ControllerCaches {
    /// Starts the watches.
    pub(super) fn start(context: &ProcessContext, queues: &Queues) -> Self {
        let ProcessContext { client, watches, .. } = context;
        let router = || queues.clone();
        let hyperconvergeds = hyperconvergeds(context, queues);
        let (configuration, resolver) = ConfigurationInForce::start(
            client,
            watches,
            hyperconvergeds.clone(),
            context.args.configuration_namespaces.clone(),
            queues.configuration.clone(),
        );
        let migrations = migrations(context, queues);
        let instances = instances(context, queues, &migrations);
        let queue = router();
        let maintenances = Maintenances::start(client, watches, move |node| {
            queue.follow(routing::of_maintenance(node));
        });
        let queue = router();
        let unresponsive_agents = UnresponsiveAgents::new(move || queue.follow(routing::of_unresponsive_agents()))
            .notifying(queues.liveness.clone());
        let (queue, known) = (router(), maintenances.clone());
        let nodes = Nodes::start(
            client,
            watches,
            maintenances.clone(),
            unresponsive_agents.clone(),
            move |node| {
                queue.follow(routing::of_node(node, known.concerns(node)));
            },
        );
        let queue = router();
        resolver.start(&context.process, nodes.hypervisors.shown().clone(), move || {
            queue.follow(routing::of_configuration());
        });
        let gauges = (nodes.hypervisors.shown().clone(), maintenances.clone());
        context
            .telemetry
            .drains
            .watch(gauges.0, gauges.1, context.leadership.clone());
        let queue = router();
        let rooms = Rooms::start(client, watches, move || queue.follow(routing::of_rooms()));
        let queue = router();
        let machines = watch_machines(client, watches, move |change| queue.follow(routing::of_machine(change)));
        let (queue, known) = (router(), migrations.clone());
        let launchers = Launchers::start(
            client,
            watches,
            machines.clone(),
            (nodes.clone(), rooms.clone()),
            pdbs(context, queues, &instances),
            configuration.clone(),
            context.args.launcher_image.clone(),
            move |instance, made_for| {
                queue.follow(routing::of_launcher_pod(instance, made_for, |instance, made_for| {
                    known.keys_of_pod(instance, made_for)
                }));
            },
        );
        let queue = router();
        let node_pods = NodePods::start(client, watches, move |node| queue.follow(routing::of_node_pod(node)));
        let guests = GuestContext::new(
            client.clone(),
            (instances, migrations, launchers),
            context.events.clone(),
            context.refusals.clone(),
        );
        Self {
            hyperconvergeds,
            configuration,
            machines,
            maintenances,
            unresponsive_agents,
            nodes,
            rooms,
            node_pods,
            guests,
        }
    }

    /// Returns the review of evictions with these caches.
    pub(super) fn evictions(&self, context: &ProcessContext, queues: &Queues) -> EvictionReviews {
        EvictionReviews::new(
            self.guests.clone(),
            queues.held_evictions(),
            context.telemetry.held_evictions.clone(),
        )
    }
}

fn hyperconvergeds(context: &ProcessContext, queues: &Queues) -> Cache<HyperConverged> {
    let queue = queues.clone();
    let watch = Watch::<HyperConverged>::all(context.client.clone(), "configuration")
        .optional()
        .prune(|object| object.spec.other.clear())
        .on_change(move |_| queue.follow(routing::of_hyperconverged()));
    context.watches.start(watch)
}

fn migrations(context: &ProcessContext, queues: &Queues) -> Migrations {
    let (queue, metrics, leadership) = (
        queues.clone(),
        context.telemetry.migrations.clone(),
        context.leadership.clone(),
    );
    let migrations = Migrations::start(&context.client, &context.watches, move |change| {
        metrics.observe(change, &leadership);
        queue.follow(routing::of_migration(change));
    });
    let gauges = &context.telemetry.migrations;
    gauges.watch(migrations.clone(), context.leadership.clone());
    migrations
}

fn instances(context: &ProcessContext, queues: &Queues, migrations: &Migrations) -> Instances {
    let (queue, known, streams) = (queues.clone(), migrations.clone(), context.telemetry.streams.clone());
    Instances::start(&context.client, &context.watches, move |change| {
        streams.observe(change);
        queue.follow(routing::of_instance(change, |instance, deleted| {
            known.keys_of(instance, deleted)
        }));
    })
}

fn pdbs(context: &ProcessContext, queues: &Queues, instances: &Instances) -> Pdbs {
    let (queue, known) = (queues.clone(), instances.clone());
    Pdbs::start(&context.client, &context.watches, move |change| {
        queue.follow(routing::of_pdb(change, |namespace| known.unfinished_in(namespace)));
    })
}
