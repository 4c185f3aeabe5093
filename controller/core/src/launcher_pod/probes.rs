//! What the kubelet asks a launcher pod, so that it hears of the guest.
//!
//! - HTTP it asks at the pod's address itself, which is the guest's.
//! - A TCP connection would always succeed, since passt accepts it before it asks the guest. So the launcher makes
//!   it, and waits for what the guest makes of it.
//! - Whether the guest lives is not asked before it runs in this pod: one that arrives by a migration may take long.

use drydock_api::{
    kubevirt::{VirtualMachineInstanceSpec, instance::Probe},
    launcher::{PROBE_TCP, PROGRAM, STARTED_WITHIN_SECONDS, WAIT_STARTED},
};
use k8s_openapi::{
    api::core::v1::{ExecAction, Probe as PodProbe, TCPSocketAction},
    apimachinery::pkg::util::intstr::IntOrString,
};

/// How long a probe may take where nobody says, in seconds. Kubernetes'.
const TIMEOUT: i32 = 1;
/// How long a guest may take at most to refuse a connection, in milliseconds.
const REFUSED_WITHIN: i32 = 1000;

/// The container's liveness probe.
pub(super) fn liveness(spec: &VirtualMachineInstanceSpec) -> Option<PodProbe> {
    Some(probe(spec.liveness_probe.as_ref()?, spec))
}

/// Its readiness probe.
pub(super) fn readiness(spec: &VirtualMachineInstanceSpec) -> Option<PodProbe> {
    Some(probe(spec.readiness_probe.as_ref()?, spec))
}

/// Its startup probe, without which it would be taken for dead while its guest is still on its way.
pub(super) fn startup(spec: &VirtualMachineInstanceSpec) -> Option<PodProbe> {
    spec.liveness_probe.as_ref()?;
    Some(PodProbe {
        exec: Some(launcher([WAIT_STARTED])),
        period_seconds: Some(1),
        // A little more than it takes by itself.
        timeout_seconds: Some(STARTED_WITHIN_SECONDS + 5),
        // As often as it takes: when a guest has to have arrived is the migration's to say.
        failure_threshold: Some(i32::MAX),
        ..PodProbe::default()
    })
}

fn probe(probe: &Probe, spec: &VirtualMachineInstanceSpec) -> PodProbe {
    let asked = probe.tcp_socket.as_ref();
    let port = asked.and_then(|socket| port_of_guest(socket, spec));
    let patience = probe.timeout_seconds.filter(|timeout| *timeout > 0).unwrap_or(TIMEOUT);
    // The other half is for its start, which takes tens of milliseconds.
    let patience = patience.saturating_mul(500).min(REFUSED_WITHIN);
    PodProbe {
        http_get: probe.http_get.clone(),
        tcp_socket: probe.tcp_socket.clone().filter(|_| port.is_none()),
        exec: port.map(|port| launcher([PROBE_TCP, &port.to_string(), &patience.to_string()])),
        initial_delay_seconds: probe.initial_delay_seconds,
        timeout_seconds: probe.timeout_seconds,
        period_seconds: probe.period_seconds,
        success_threshold: probe.success_threshold,
        failure_threshold: probe.failure_threshold,
        ..PodProbe::default()
    }
}

/// The port that is asked, if it is one of the guest's: another host is the kubelet's to ask.
fn port_of_guest(socket: &TCPSocketAction, spec: &VirtualMachineInstanceSpec) -> Option<i32> {
    if socket.host.as_ref().is_some_and(|host| !host.is_empty()) {
        return None;
    }
    let mut ports = (spec.domain.devices.interfaces.iter()).flat_map(|interface| &interface.ports);
    match &socket.port {
        IntOrString::Int(port) => Some(*port),
        IntOrString::String(name) => ports
            .find(|port| port.name.as_ref() == Some(name))
            .map(|port| port.port),
    }
}

fn launcher<const N: usize>(arguments: [&str; N]) -> ExecAction {
    let command = std::iter::once(PROGRAM).chain(arguments);
    ExecAction {
        command: Some(command.map(str::to_owned).collect()),
    }
}
