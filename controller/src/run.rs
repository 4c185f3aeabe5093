//! `drydock-controller run`: puts the parts of the process together.

use std::{collections::BTreeMap, convert::Infallible, error::Error, process::ExitCode, sync::Arc, time::Duration};

use drydock_api::{CONTROLLER_FIELD_MANAGER, leases::CONTROLLER_LEASE};
use drydock_core::migration::deadlines::Deadlines;
use drydock_runtime::{
    Admin, Change, ClientMetrics, ClientOptions, EventMetrics, Events, Key, Liveness, LogHandle, Process, Readiness,
    Reporter, Start, Threads, Trigger, WatchMetrics, Watches, WorkQueue, clock, connect,
    lease::{Candidacy, Leadership, releases},
    metrics::registry,
};

use crate::{
    admission::{
        self, evictions::Evictions, maintenances::MaintenanceReview, migrations::ClusterState, removal::RemovalReview,
    },
    args::RunArgs,
    budget_task::{self, BudgetTask, concerned},
    budgets::Budgets,
    certificates::{CertificateMetrics, CertificatesTask, ConsoleCertificateTask, Place, ServedCertificate},
    configuration_in_force::ConfigurationInForce,
    drain_task::{self, DrainMetrics, DrainTask, Previewer},
    in_force_task::InForceTask,
    instance_task::InstanceTask,
    instances::{Instances, sets_of_change},
    launchers::Launchers,
    liveness_task::{LivenessTask, SilentAgents},
    machine_task::{self, MachineTask, watch_machines},
    maintenance_task::{self, MaintenanceTask, Places},
    maintenances::Maintenances,
    metrics::Metrics,
    migration_rate::MigrationRate,
    migration_task::{self, MigrationTask},
    migrations::{MigrationMetrics, Migrations, begun_or_ended, instances_of},
    node_pods::NodePods,
    nodes::Nodes,
    removal_task::RemovalTask,
    replica_set_task::{self, ReplicaSetTask},
    replicas_task::ReplicasTask,
    rooms::Rooms,
    subresources::{ActiveStreams, StreamTimeouts, SubresourceMetrics, SubresourcesServer},
    webhook_server::{DEADLINE, LEAVE, WebhookMetrics, WebhookServer},
};

const COMPONENT: &str = "drydock-controller";
/// How many instances are reconciled concurrently.
const INSTANCES_AT_ONCE: usize = 16;
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs until the process is stopped.
pub(crate) fn run(args: RunArgs) -> ExitCode {
    let start = Start {
        component: COMPONENT,
        version: VERSION,
        threads: Threads::One,
        log_format: args.log_format,
        log_level: args.log.clone(),
        drain: Start::DRAIN,
    };
    start.run(|process, logs| wire(args, process, logs))
}

/// Returns a time limit in seconds, of which 0 means none.
fn limit(seconds: u64) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

async fn wire(args: RunArgs, process: Process, logs: LogHandle) -> Result<(), Box<dyn Error + Send + Sync>> {
    let RunArgs {
        pod_name,
        namespace,
        kubeconfig,
        configuration_namespaces,
        admin,
        webhooks,
        subresources,
        launcher_image,
        lease_namespace,
        kubevirt_lease_namespace,
        stream_idle_timeout,
        stream_timeout,
        migration_preparing,
        migration_starting,
        log: _,
        log_format: _,
    } = args;
    let deadlines = Deadlines {
        preparing: Duration::from_secs(migration_preparing),
        starting: Duration::from_secs(migration_starting),
        ..Deadlines::default()
    };
    let mut registry = registry(COMPONENT, VERSION);
    let metrics = Metrics::register(&mut registry);
    let watch_metrics = WatchMetrics::register(&mut registry);
    let event_metrics = EventMetrics::register(&mut registry);
    let client_metrics = ClientMetrics::register(&mut registry);
    let certificate_metrics = CertificateMetrics::register(&mut registry);
    let webhook_metrics = WebhookMetrics::register(&mut registry);
    let subresource_metrics = SubresourceMetrics::register(&mut registry);
    let active_streams = ActiveStreams::register(&mut registry);
    let migration_metrics = MigrationMetrics::register(&mut registry);
    let drain_metrics = DrainMetrics::register(&mut registry);
    let readiness = Readiness::new();
    let port = Admin {
        readiness: readiness.clone(),
        liveness: Liveness::new(),
        registry: Arc::new(registry),
        logs,
    };
    port.serve(&process, admin).await?;
    let options = ClientOptions {
        component: COMPONENT,
        version: VERSION,
        kubeconfig,
        context: None,
    };
    let client = connect(&options, &client_metrics).await?;
    let watches = Watches::new(&process, &readiness, &watch_metrics);
    let candidacy = Candidacy {
        namespace: namespace.clone(),
        name: CONTROLLER_LEASE.into(),
        // A container that is started again in the same pod is another candidate.
        identity: format!("{pod_name}_{}", clock::now().as_microsecond()),
        labels: BTreeMap::new(),
        field_manager: CONTROLLER_FIELD_MANAGER,
    };
    // Replicas that do not lead keep their caches full and write nothing.
    let released = releases(&client, &watches, &candidacy);
    let leadership = Leadership::stand(&process, client.clone(), candidacy, released);
    let events = Events::start(
        &process,
        client.clone(),
        Reporter {
            component: COMPONENT,
            instance: pod_name.clone(),
        },
        &event_metrics,
    );
    let (surroundings, of_nodes) = (Trigger::new(), Trigger::new());
    let (of_configuration, of_drains) = (Trigger::new(), Trigger::new());
    let changes = Arc::new(tokio::sync::watch::Sender::new(0_u64));
    let (configuration, resolver) = ConfigurationInForce::start(&client, &watches, configuration_namespaces.clone());
    let work = WorkQueue::new("instances", INSTANCES_AT_ONCE);
    let machine_work = WorkQueue::new("machines", machine_task::MAX_CONCURRENT_RECONCILES);
    let set_work = WorkQueue::new("replica sets", replica_set_task::MAX_CONCURRENT_RECONCILES);
    let migration_work = WorkQueue::new("migrations", migration_task::MAX_CONCURRENT_RECONCILES);
    let budget_work = WorkQueue::new("budgets", budget_task::MAX_CONCURRENT_RECONCILES);
    let (of_machines, of_instances, of_migrations) = (machine_work.clone(), work.clone(), migration_work.clone());
    let drains = of_drains.clone();
    let all_migrations = Migrations::start(&client, &watches, move |change| {
        for instance in begun_or_ended(change) {
            of_machines.add(instance);
        }
        for instance in instances_of(change) {
            of_instances.add(instance);
        }
        of_migrations.apply(change);
        drains.notify();
    });
    migration_metrics.watch(all_migrations.clone(), leadership.clone());
    let (of_instances, of_machines, of_sets) = (work.clone(), machine_work.clone(), set_work.clone());
    let (known, of_migrations) = (all_migrations.clone(), migration_work.clone());
    let (of_budgets, drains, news) = (budget_work.clone(), of_drains.clone(), Arc::clone(&changes));
    let all_instances = Instances::start(&client, &watches, move |change| {
        if let Change::Object { old, new, .. } = change
            && drain_task::concerns(old.as_deref(), new.as_deref())
        {
            of_budgets.apply(change);
            drains.notify();
            news.send_modify(|number| *number = number.wrapping_add(1));
        }
        of_instances.apply(change);
        of_machines.apply(change);
        if let Change::Object { key, new, .. } = change {
            known.add_of(key, new.is_none(), &of_migrations);
        }
        for set in sets_of_change(change) {
            of_sets.add(set);
        }
    });
    let maintenance_work = WorkQueue::new("maintenances", maintenance_task::MAX_CONCURRENT_RECONCILES);
    let of_maintenances = maintenance_work.clone();
    let all_maintenances = Maintenances::start(&client, &watches, move |node| of_maintenances.add(Key::cluster(node)));
    let of_replicas = Trigger::new();
    let (changed, drains, models, replicas) = (
        (surroundings.clone(), of_nodes.clone()),
        of_drains.clone(),
        resolver.nodes_changed(),
        of_replicas.clone(),
    );
    let (of_maintenances, known_maintenances) = (maintenance_work.clone(), all_maintenances.clone());
    let silent_agents = SilentAgents::new([surroundings.clone(), of_nodes.clone()]);
    let silent = silent_agents.clone();
    let nodes = Nodes::start(&client, &watches, all_maintenances.clone(), silent, move |node| {
        if known_maintenances.concerns(node) {
            of_maintenances.add(Key::cluster(node));
        }
        changed.0.notify();
        changed.1.notify();
        drains.notify();
        models.notify();
        replicas.notify();
    });
    let (changed, judging) = ((surroundings.clone(), of_nodes.clone()), Trigger::new());
    let judged = judging.clone();
    // What an eviction does may be another thing by now.
    let (of_budgets, drains, news) = (of_configuration.clone(), of_drains.clone(), Arc::clone(&changes));
    resolver.start(&process, nodes.hypervisors.clone(), move || {
        changed.0.notify();
        changed.1.notify();
        of_budgets.notify();
        drains.notify();
        news.send_modify(|number| *number = number.wrapping_add(1));
        judged.notify();
    });
    let all_nodes = nodes.clone();
    drain_metrics.watch(nodes.hypervisors.clone(), all_maintenances.clone(), leadership.clone());
    let (of_budgets, known, news) = (budget_work.clone(), all_instances.clone(), Arc::clone(&changes));
    let drains = of_drains.clone();
    let budgets = Budgets::start(&client, &watches, move |change| match concerned(change) {
        Some((_, Some(instance))) => {
            of_budgets.add(instance);
            news.send_modify(|number| *number = number.wrapping_add(1));
        }
        Some((namespace, None)) => {
            let keys = known.keys().into_iter();
            keys.filter(|key| key.namespace.as_deref() == Some(namespace.as_str()))
                .for_each(|key| of_budgets.add(key));
            // It may hold up a guest that is to be shut down.
            drains.notify();
        }
        None => {}
    });
    let (of_instances, of_migrations, known) = (work.clone(), migration_work.clone(), all_migrations.clone());
    let (of_budgets, drains, news) = (budget_work.clone(), of_drains.clone(), Arc::clone(&changes));
    let of_rooms = Trigger::new();
    let rooms = Rooms::start(&client, &watches, of_rooms.clone());
    let replicas = ReplicasTask::new(
        client.clone(),
        &watches,
        (&namespace, pod_name),
        (nodes.clone(), rooms.clone()),
        of_replicas,
        leadership.clone(),
        process.clone(),
    );
    process.spawn_critical("keeping replicas apart", async move {
        replicas.run().await;
        Ok::<_, Infallible>(())
    });
    let all_machines = watch_machines(&client, &watches, [machine_work.clone(), budget_work.clone()]);
    let launchers = Launchers::start(
        &client,
        &watches,
        all_machines.clone(),
        (nodes, rooms),
        budgets,
        configuration.clone(),
        launcher_image,
        move |instance| {
            known.add_of(&instance, false, &of_migrations);
            of_budgets.add(instance.clone());
            of_instances.add(instance);
            drains.notify();
            news.send_modify(|number| *number = number.wrapping_add(1));
        },
    );
    let drains = of_drains.clone();
    let of_maintenances = maintenance_work.clone();
    let pods = NodePods::start(&client, &watches, move |node| {
        drains.notify();
        of_maintenances.add(Key::cluster(node));
    });
    let node_pods = pods.clone();
    let pace = MigrationRate::new(all_instances.clone(), all_migrations.clone());
    let previewer = Previewer::new(
        all_instances.clone(),
        all_migrations.clone(),
        launchers.clone(),
        pace.clone(),
    );
    let maintenance_review = MaintenanceReview::new(
        client.clone(),
        all_nodes.nodes.shown().clone(),
        all_maintenances.clone(),
        &namespace,
        Arc::new({
            let previewer = previewer.clone();
            move |node: &str| previewer.lines(node)
        }),
    );
    let state = ClusterState::new(client.clone(), all_instances.clone(), all_migrations.clone());
    let evictions = Evictions::new(
        client.clone(),
        all_instances.clone(),
        all_migrations.clone(),
        launchers.clone(),
        pace,
        changes.subscribe(),
    );
    let sets = ReplicaSetTask::new(
        client.clone(),
        &watches,
        all_instances.clone(),
        events.clone(),
        &set_work,
    );
    let removal_review = RemovalReview::new(
        all_machines.shown().clone(),
        all_instances.clone(),
        sets.shown(),
        all_maintenances.clone(),
    );
    let certificate = ServedCertificate::new(readiness.handle("webhook certificate"));
    let webhook_server = WebhookServer {
        handlers: admission::handlers(configuration.clone(), state, evictions)
            .and(maintenance_review.handlers())
            .and(removal_review.handlers()),
        certificate: certificate.clone(),
        metrics: webhook_metrics,
        leave: LEAVE,
        deadline: DEADLINE,
    };
    webhook_server.serve(&process, webhooks).await?;
    let subresources_server = SubresourcesServer {
        client: client.clone(),
        configuration: configuration.clone(),
        certificate: certificate.clone(),
        metrics: subresource_metrics,
        streams: active_streams,
        timeouts: StreamTimeouts {
            idle: limit(stream_idle_timeout),
            total: limit(stream_timeout),
        },
        version: VERSION,
        leave: LEAVE,
    };
    subresources_server.serve(&process, &watches, subresources).await?;
    let places = Places {
        leases: lease_namespace,
        kubevirt_leases: kubevirt_lease_namespace.unwrap_or_else(|| namespace.clone()),
        own: namespace.clone(),
    };
    let of_certificates = Trigger::new();
    let removal = RemovalTask::new(
        client.clone(),
        &watches,
        namespace.clone(),
        &of_certificates,
        leadership.clone(),
        process.clone(),
    );
    let console = ConsoleCertificateTask::new(
        client.clone(),
        &watches,
        &namespace,
        leadership.clone(),
        process.clone(),
    );
    let certificates = CertificatesTask::new(
        client.clone(),
        &watches,
        Place {
            namespace,
            configuration_namespaces: configuration_namespaces.clone(),
        },
        (removal.shown(), of_certificates),
        certificate,
        leadership.clone(),
        certificate_metrics,
        process.clone(),
    );
    let liveness = LivenessTask::new(
        client.clone(),
        &watches,
        leadership.clone(),
        silent_agents.clone(),
        events.clone(),
        metrics.clone(),
        process.clone(),
    );
    let drains = DrainTask::new(
        client.clone(),
        previewer,
        pods,
        events.clone(),
        drain_metrics,
        of_drains,
    );
    let (own, leads) = (process.clone(), leadership.clone());
    process.spawn_critical("emptying nodes", async move {
        drains.run(own, leads).await;
        Ok::<_, Infallible>(())
    });
    let budgets = BudgetTask::new(client.clone(), all_instances.clone(), launchers.clone());
    let (own, leads) = (process.clone(), leadership.clone());
    process.spawn_critical("looking after budgets", async move {
        budgets.run(own, leads, budget_work, of_configuration).await;
        Ok::<_, Infallible>(())
    });
    let instances = InstanceTask::new(
        client.clone(),
        all_instances.clone(),
        all_migrations.clone(),
        launchers.clone(),
        silent_agents,
        events.clone(),
    );
    let migrations = MigrationTask::new(
        client.clone(),
        all_migrations.clone(),
        all_instances.clone(),
        launchers,
        events.clone(),
        deadlines,
        migration_work,
    );
    let (own, leads) = (process.clone(), leadership.clone());
    process.spawn_critical("looking after migrations", async move {
        migrations.run(own, leads, of_nodes).await;
        Ok::<_, Infallible>(())
    });
    let (own, leads) = (process.clone(), leadership.clone());
    process.spawn_critical("looking after instances", async move {
        instances.run(own, leads, work, (surroundings, of_rooms)).await;
        Ok::<_, Infallible>(())
    });
    let machines = MachineTask::new(
        client.clone(),
        all_machines,
        all_instances.clone(),
        all_migrations,
        events.clone(),
    );
    let (own, leads) = (process.clone(), leadership.clone());
    process.spawn_critical("looking after machines", async move {
        machines.run(own, leads, machine_work).await;
        Ok::<_, Infallible>(())
    });
    let (own, leads) = (process.clone(), leadership.clone());
    process.spawn_critical("looking after replica sets", async move {
        sets.run(own, leads, set_work).await;
        Ok::<_, Infallible>(())
    });
    let maintenances = MaintenanceTask::new(
        client.clone(),
        &watches,
        all_maintenances,
        all_nodes,
        node_pods,
        &places,
        events,
        &maintenance_work,
    );
    let (own, leads) = (process.clone(), leadership.clone());
    process.spawn_critical("looking after maintenances", async move {
        maintenances.run(own, leads, maintenance_work).await;
        Ok::<_, Infallible>(())
    });
    let in_force = InForceTask::new(
        client,
        &watches,
        configuration_namespaces,
        configuration,
        leadership,
        judging,
        metrics,
        process.clone(),
    );
    process.spawn_critical("keeping certificates", async move {
        certificates.run().await;
        Ok::<_, Infallible>(())
    });
    process.spawn_critical("keeping the console's certificate", async move {
        console.run().await;
        Ok::<_, Infallible>(())
    });
    process.spawn_critical("protecting Drydock from removal", async move {
        removal.run().await;
        Ok::<_, Infallible>(())
    });
    process.spawn_critical("watching over agents", async move {
        liveness.run().await;
        Ok::<_, Infallible>(())
    });
    process.spawn_critical("judging configuration", async move {
        in_force.run().await;
        Ok::<_, Infallible>(())
    });
    Ok(())
}
