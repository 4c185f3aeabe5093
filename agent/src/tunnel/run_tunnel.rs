//! `drydock-agent tunnel`: wires the parts of the process together.

use std::{error::Error, net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use drydock_runtime::{Admin, Component, LogHandle, Process, Readiness, StartParameters, metrics::registry, tcp};
use tracing::info;

use super::{
    guest_access::LibvirtGuests,
    listener::PortState,
    metrics::TunnelMetrics,
    server,
    sessions::{Setting, TunnelSessions},
};
use crate::args::TunnelArgs;

const COMPONENT: Component = Component {
    name: "drydock-tunnel",
    version: env!("CARGO_PKG_VERSION"),
};

/// Maximum time for which sessions continue after the signal to stop.
///
/// A guest that has partly arrived is lost if its tunnel ends, so the time is nearly as long as the pod's grace period
/// (`terminationGracePeriodSeconds`).
const DRAIN: Duration = Duration::from_secs(24 * 3600 - 60);

/// Runs the tunnel until the process is signalled to stop and its last session has ended.
pub(crate) fn run(args: TunnelArgs) -> ExitCode {
    let start = StartParameters {
        drain: DRAIN,
        ..StartParameters::new(COMPONENT, args.logs.clone())
    };
    start.run(|process, logs| wire(args, process, logs))
}

async fn wire(args: TunnelArgs, process: Process, logs: LogHandle) -> Result<(), Box<dyn Error + Send + Sync>> {
    let TunnelArgs {
        kubelet,
        pod_uid,
        advertise_address,
        port,
        socket_dir,
        metrics_bind_address,
        logs: _,
    } = args;
    let mut registry = registry(COMPONENT);
    let metrics = TunnelMetrics::register(&mut registry);
    let served = Admin {
        readiness: Readiness::new(),
        registry: Arc::new(registry),
        logs,
    };
    served.serve(&process, metrics_bind_address).await?;
    let address = SocketAddr::new(advertise_address, port);
    let (listener, address) = tcp::listen("port for other tunnels", address).await?;
    let setting = Setting {
        kubelet: kubelet.kubelet_dir,
        address,
        owner: Setting::launcher_user(),
        guests: Arc::new(LibvirtGuests),
        metrics,
    };
    let sessions = TunnelSessions::new(setting, &process);
    process.spawn(
        "port for other tunnels",
        PortState::new(&sessions, &process).accept(listener),
    );
    info!(%address, "listening for other tunnels");
    server::serve(&sessions, &socket_dir, &pod_uid, &process)?;
    Ok(())
}
