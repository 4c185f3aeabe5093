//! A complete process without own work: four watches, a Lease, leader election, events and an admin port.
//!
//! The example shows how the parts of the framework are assembled, and which resources they use before Drydock's own
//! code is added.
//!
//!     cargo run --release -p drydock-runtime --example idle -- KUBECONFIG NAMESPACE [ADMIN-ADDRESS]

use drydock_runtime::{
    Admin, ClientMetrics, ClientOptions, Component, Event, EventMetrics, Events, LogArgs, LogFormat, LogHandle,
    Process, Readiness, Reporter, Severity, StartParameters, Trigger, Watch, WatchMetrics, WatchStarter, connect,
    lease::{Candidacy, Holding, Leadership, LeaseHolder},
    metrics,
};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Namespace, Node, ObjectReference},
};
use std::{error::Error, path::PathBuf, process::ExitCode, time::Duration};

const COMPONENT: Component = Component {
    name: "drydock-idle",
    version: env!("CARGO_PKG_VERSION"),
};

fn main() -> ExitCode {
    let logs = LogArgs {
        log_format: LogFormat::Text,
        log_level: "info".to_owned(),
    };
    let start = StartParameters::new(COMPONENT, logs);
    start.run(wire)
}

/// Returns the definition of the heartbeat Lease of this process.
fn holding(namespace: &str, identity: &str) -> Holding {
    Holding {
        namespace: namespace.to_owned(),
        name: "idle-life".to_owned(),
        identity: identity.to_owned(),
        renew_every: Duration::from_secs(10),
        duration: Duration::from_secs(40),
        field_manager: COMPONENT.name,
    }
}

/// Returns the event that the leader publishes.
fn leading(namespace: String) -> Event {
    Event {
        regarding: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Namespace".to_owned()),
            name: Some(namespace),
            ..ObjectReference::default()
        },
        related: None,
        severity: Severity::Normal,
        reason: "Idle".into(),
        action: "Idle".into(),
        note: "leading, with nothing to do".to_owned(),
    }
}

async fn wire(process: Process, logs: LogHandle) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: idle KUBECONFIG NAMESPACE [ADMIN-ADDRESS]";
    let (kubeconfig, namespace) = (args.next().ok_or(usage)?, args.next().ok_or(usage)?);
    let address = args.next().unwrap_or_else(|| "127.0.0.1:0".to_owned()).parse()?;

    let mut registry = metrics::registry(COMPONENT);
    let client_metrics = ClientMetrics::register(&mut registry);
    let watch_metrics = WatchMetrics::register(&mut registry);
    let event_metrics = EventMetrics::register(&mut registry);
    let readiness = Readiness::new();
    let admin = Admin {
        readiness: readiness.clone(),
        registry: registry.into(),
        logs,
    };
    admin.serve(&process, address).await?;

    let options = ClientOptions::new(COMPONENT, Some(PathBuf::from(kubeconfig)));
    let client = connect(&options, &client_metrics).await?;
    let watches = WatchStarter::new(&process, &readiness, &watch_metrics);
    let changed = Trigger::new();
    let nodes = watches.start(Watch::<Node>::all(client.clone(), "nodes").wakes(&changed));
    let leases = watches.start(Watch::<Lease>::namespaced(client.clone(), &namespace, "leases"));
    let maps =
        watches.start(Watch::<ConfigMap>::namespaced(client.clone(), &namespace, "configuration").wakes(&changed));
    let own = Watch::<Namespace>::one(client.clone(), &namespace, "namespace").wakes(&changed);
    let own = watches.start(own);

    let identity = format!("{}-{}", COMPONENT.name, std::process::id());
    LeaseHolder::start(&process, client.clone(), holding(&namespace, &identity), &changed).take_over();
    let candidacy = Candidacy {
        namespace: namespace.clone(),
        name: "idle-leader".to_owned(),
        identity: identity.clone(),
        field_manager: COMPONENT.name,
    };
    let mut leadership = Leadership::stand(&process, client.clone(), candidacy, Trigger::new());
    let events = Events::start(
        &process,
        client,
        Reporter {
            component: COMPONENT.name,
            instance: identity,
        },
        &event_metrics,
    );

    let stopping = process.stopping();
    process.spawn_critical("print changes", async move {
        let term = stopping.run_until_cancelled(leadership.elected()).await;
        events.publish(leading(namespace));
        drop(term);
        while stopping.run_until_cancelled(changed.notified()).await.is_some() {
            let counts = (nodes.len(), leases.len(), maps.len(), own.len());
            tracing::info!(
                nodes = counts.0,
                leases = counts.1,
                maps = counts.2,
                namespaces = counts.3,
                "changed"
            );
        }
    });
    Ok(())
}
