//! `drydock-agent run`: wires the parts of the process together.

use std::{error::Error, process::ExitCode, sync::Arc};

use drydock_runtime::{
    Admin, ClientMetrics, ClientOptions, Component, EventMetrics, Events, LogHandle, Process, ProcessError, Readiness,
    Reporter, StartParameters, Trigger, WatchMetrics, WatchStarter, connect, metrics::registry,
};
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::{
    args::AgentRunArgs,
    caches::AgentCaches,
    guests::{Gates, GuestDirectory, GuestWatches, LauncherPods, LocalGuests, TaskContext},
    lease::NodeLease,
    metrics::AgentMetrics,
    migrations::{LocalMigrations, MigrationWatches},
    node_api::{NodeApi, NodeApiMetrics},
    node_task::NodeTask,
    tunnel::tunnels::Tunnels,
    writes::Writes,
};

const COMPONENT: Component = Component {
    name: "drydock-agent",
    version: env!("CARGO_PKG_VERSION"),
};
/// Folder of the tunnels' sockets, in the folder that agents share.
const TUNNELS_FOLDER: &str = "tunnels";
/// Name of the task of the node.
const NODE_TASK: &str = "the node";

/// Runs the node agent until it is signalled to stop.
pub(crate) fn run(args: AgentRunArgs) -> ExitCode {
    let start = StartParameters::new(COMPONENT, args.logs.clone());
    start.run(|process, logs| wire(args, process, logs))
}

/// The metrics of the parts.
struct AgentTelemetry {
    agent: AgentMetrics,
    node_api: NodeApiMetrics,
    watches: WatchMetrics,
    events: EventMetrics,
    client: ClientMetrics,
}

impl AgentTelemetry {
    fn register(registry: &mut Registry) -> Self {
        Self {
            agent: AgentMetrics::register(registry),
            node_api: NodeApiMetrics::register(registry),
            watches: WatchMetrics::register(registry),
            events: EventMetrics::register(registry),
            client: ClientMetrics::register(registry),
        }
    }
}

fn node_api(shared: &TaskContext, guests: &GuestDirectory, metrics: NodeApiMetrics) -> NodeApi {
    NodeApi {
        client: shared.client.clone(),
        guests: guests.clone(),
        kubelet: shared.kubelet.clone(),
        node: shared.node.clone(),
        metrics,
    }
}

/// Runs the task of the node. The process stops if it fails.
async fn run_node_task(task: NodeTask, process: Process) {
    if let Err(error) = task.run().await {
        process.fail(ProcessError::Failed {
            task: NODE_TASK.into(),
            source: error.into(),
        });
    }
}

async fn wire(args: AgentRunArgs, process: Process, logs: LogHandle) -> Result<(), Box<dyn Error + Send + Sync>> {
    let args = Arc::new(args);
    let mut registry = registry(COMPONENT);
    let telemetry = AgentTelemetry::register(&mut registry);
    let readiness = Readiness::new();
    // Held until this agent is next in line for the host's lock and the host has been inspected.
    let ready = readiness.handle("the host");
    let admin = Admin {
        readiness: readiness.clone(),
        registry: Arc::new(registry),
        logs,
    };
    admin.serve(&process, args.metrics_bind_address).await?;
    let reporter = Reporter {
        component: COMPONENT.name,
        instance: args.pod_name.clone(),
    };
    let options = ClientOptions::new(COMPONENT, args.kubeconfig.clone());
    let client = connect(&options, &telemetry.client).await?;
    let watches = WatchStarter::new(&process, &readiness, &telemetry.watches);
    let caches = AgentCaches::start(&client, &watches, &args.node_name);
    let writes = Writes::new(client.clone(), args.node_name.clone());
    let events = Events::start(&process, client.clone(), reporter, &telemetry.events);
    let (guest_host, host) = watch::channel(None);
    let (deleted_node, node_deleted) = watch::channel(None);
    let (of_guests, of_migrations) = (Trigger::new(), Trigger::new());
    let wakes = [of_guests.clone(), of_migrations.clone()];
    let pods = LauncherPods::start(&client, &watches, &args.node_name, &wakes, caches.signal());
    let shared = TaskContext {
        client: client.clone(),
        gates: Gates::new(client.clone(), pods.clone(), telemetry.agent.clone()),
        events: events.clone(),
        metrics: telemetry.agent.clone(),
        kubelet: args.folders.kubelet.kubelet_dir.clone(),
        node: args.node_name.clone(),
    };
    let directory = GuestDirectory::default();
    let endpoint = match args.advertise_address {
        Some(address) => {
            let node_api = node_api(&shared, &directory, telemetry.node_api);
            Some(node_api.serve(&process, &watches, address, args.port).await?)
        }
        None => None,
    };
    let guests = LocalGuests::new(
        shared.clone(),
        GuestWatches::start(&client, &watches, &args.node_name, pods.clone(), of_guests),
        host.clone(),
        node_deleted,
        directory,
        process.clone(),
    );
    let tunnels = Tunnels::follow(&args.folders.state_dir.join(TUNNELS_FOLDER), &args.pod_uid, &process)?;
    let migrations = LocalMigrations::new(
        shared,
        MigrationWatches::start(&client, &watches, &args.node_name, pods.clone(), of_migrations),
        tunnels,
        host,
        process.clone(),
    );
    let lease = NodeLease::start(client, &args.node_name, &args.pod_uid, &process);
    let task = NodeTask::new(
        Arc::clone(&args),
        caches,
        pods,
        writes,
        &events,
        telemetry.agent,
        process.clone(),
        lease,
        ready,
        guest_host,
        deleted_node,
        endpoint,
    );
    process.spawn_critical("the guests", guests.run());
    process.spawn_critical("the migrations", migrations.run());
    process.spawn_critical(NODE_TASK, run_node_task(task, process.clone()));
    Ok(())
}
