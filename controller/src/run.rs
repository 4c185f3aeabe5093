//! `drydock-controller run`: starts the parts of the process.
//!
//! ```text
//!  API server ─▶ watches ─▶ caches ─▶ routing ─▶ queues ─▶ reconcilers ─▶ API server
//!                              └────────▶ webhooks, subresources
//! ```
//!
//! - [`caches`] starts the watches that several reconcilers share. Each change goes through [`crate::routing`] to the
//!   [`Queues`].
//! - [`servers`] serves admission webhooks and the subresources API from the caches, in every replica.
//! - [`tasks`] spawns the reconcilers, which work while this process leads.

mod caches;
mod servers;
mod tasks;
mod telemetry;

use std::{error::Error, process::ExitCode, sync::Arc};

use drydock_api::{CONTROLLER_FIELD_MANAGER, leases::CONTROLLER_LEASE};
use drydock_runtime::{
    Admin, ClientOptions, Component, Events, LogHandle, Process, Readiness, Reporter, StartParameters, WatchStarter,
    clock, connect,
    lease::{Candidacy, Leadership, leader_status, releases},
    metrics::registry,
};
use kube::Client;

use crate::{args::ControllerRunArgs, certificates::ServedCertificate, queues::Queues, refusals::StepRefusals};
use caches::ControllerCaches;
use telemetry::ControllerTelemetry;

const COMPONENT: Component = Component {
    name: "drydock-controller",
    version: env!("CARGO_PKG_VERSION"),
};

/// Context that all parts of the process use.
struct ProcessContext {
    args: ControllerRunArgs,
    process: Process,
    client: Client,
    watches: WatchStarter,
    leadership: Leadership,
    refusals: StepRefusals,
    events: Events,
    telemetry: ControllerTelemetry,
}

/// Runs until the process is stopped.
pub(crate) fn run(args: ControllerRunArgs) -> ExitCode {
    let start = StartParameters::new(COMPONENT, args.logs.clone());
    start.run(|process, logs| start_parts(args, process, logs))
}

async fn start_parts(
    args: ControllerRunArgs,
    process: Process,
    logs: LogHandle,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let readiness = Readiness::new();
    let context = connected(args, process, logs, &readiness).await?;
    let queues = Queues::new(&context.telemetry.work_queues);
    let caches = ControllerCaches::start(&context, &queues);
    let certificate = ServedCertificate::new(readiness.handle("webhook certificate"));
    let evictions = caches.evictions(&context, &queues);
    let replica_sets = tasks::replica_sets(&context, &caches, &queues);
    servers::serve(&context, &caches, evictions, &replica_sets, &certificate).await?;
    tasks::spawn(&context, caches, replica_sets, certificate, &queues);
    Ok(())
}

/// Serves health and metrics, connects to the API server and takes part in the leader election.
async fn connected(
    args: ControllerRunArgs,
    process: Process,
    logs: LogHandle,
    readiness: &Readiness,
) -> Result<ProcessContext, Box<dyn Error + Send + Sync>> {
    let mut registry = registry(COMPONENT);
    let telemetry = ControllerTelemetry::register(&mut registry);
    let port = Admin {
        readiness: readiness.clone(),
        registry: Arc::new(registry),
        logs,
    };
    port.serve(&process, args.metrics_bind_address).await?;
    let options = ClientOptions::new(COMPONENT, args.kubeconfig.clone());
    let client = connect(&options, &telemetry.client).await?;
    let watches = WatchStarter::new(&process, readiness, &telemetry.watches);
    let candidacy = Candidacy {
        namespace: args.namespace.clone(),
        name: CONTROLLER_LEASE.into(),
        // A container that is restarted in the same pod is another candidate.
        identity: format!("{}_{}", args.pod_name, clock::now().as_microsecond()),
        field_manager: CONTROLLER_FIELD_MANAGER,
    };
    // Replicas that do not lead keep their caches up to date and write nothing.
    let released = releases(&client, &watches, &candidacy);
    let leadership = Leadership::stand(&process, client.clone(), candidacy, released);
    telemetry
        .leader
        .set(leader_status(CONTROLLER_LEASE, leadership.clone()));
    let reporter = Reporter {
        component: COMPONENT.name,
        instance: args.pod_name.clone(),
    };
    let events = Events::start(&process, client.clone(), reporter, &telemetry.events);
    Ok(ProcessContext {
        args,
        process,
        client,
        watches,
        leadership,
        refusals: StepRefusals::default(),
        events,
        telemetry,
    })
}
