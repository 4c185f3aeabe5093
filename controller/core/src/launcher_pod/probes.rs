//! The guest's probes, which its launcher runs (`agent/launcher/src/probes.rs` explains why).
//!
//! The container itself has no probes: the kubelet would probe passt or the launcher, and its time-outs on a busy node
//! would count against the guest.

use drydock_api::{
    kubevirt::{VirtualMachineInstanceSpec, instance::Probe},
    launcher::{GuestProbe, GuestProbes, ProbeAction},
};
use k8s_openapi::{api::core::v1::HTTPGetAction, apimachinery::pkg::util::intstr::IntOrString};

/// Kubernetes' defaults: time-out in seconds, seconds between two probes, and how many successes or failures in a row
/// count.
const TIMEOUT: u32 = 1;
const PERIOD: u32 = 10;
const SUCCESSES: u32 = 1;
const FAILURES: u32 = 3;

/// Returns the probes of a guest. A guest that arrives by migration has already booted: the initial delay is over.
pub(super) fn of(spec: &VirtualMachineInstanceSpec, arrives: bool) -> GuestProbes {
    let probe = |probe: &Option<Probe>| {
        let mut probe = guest_probe(probe.as_ref()?, spec)?;
        if arrives {
            probe.initial_delay_seconds = 0;
        }
        Some(probe)
    };
    GuestProbes {
        liveness: probe(&spec.liveness_probe),
        readiness: probe(&spec.readiness_probe),
    }
}

/// Returns the guest's TCP ports that its probes connect to.
pub(crate) fn ports(spec: &VirtualMachineInstanceSpec) -> impl Iterator<Item = u16> {
    let GuestProbes { liveness, readiness } = of(spec, false);
    [liveness, readiness]
        .into_iter()
        .flatten()
        .filter_map(|probe| match probe.action {
            ProbeAction::Tcp { host: None, port } | ProbeAction::Http { host: None, port, .. } => Some(port),
            ProbeAction::Tcp { .. } | ProbeAction::Http { .. } => None,
        })
}

/// Returns the probe as the launcher runs it; `None` without an action or a valid port, which admission refuses.
fn guest_probe(probe: &Probe, spec: &VirtualMachineInstanceSpec) -> Option<GuestProbe> {
    let action = match (&probe.http_get, &probe.tcp_socket) {
        (Some(get), _) => http(get, port(&get.port, spec)?),
        (None, Some(socket)) => ProbeAction::Tcp {
            host: host(socket.host.as_deref()),
            port: port(&socket.port, spec)?,
        },
        (None, None) => return None,
    };
    // 0 is the default, as in Kubernetes.
    let or = |value: Option<i32>, default: u32| {
        let value = value.and_then(|value| u32::try_from(value).ok());
        value.filter(|value| *value > 0).unwrap_or(default)
    };
    Some(GuestProbe {
        action,
        initial_delay_seconds: or(probe.initial_delay_seconds, 0),
        timeout_seconds: or(probe.timeout_seconds, TIMEOUT),
        period_seconds: or(probe.period_seconds, PERIOD),
        success_threshold: or(probe.success_threshold, SUCCESSES),
        failure_threshold: or(probe.failure_threshold, FAILURES),
    })
}

fn http(get: &HTTPGetAction, port: u16) -> ProbeAction {
    let path = get.path.as_deref().unwrap_or_default();
    let headers = get.http_headers.iter().flatten();
    ProbeAction::Http {
        tls: get.scheme.as_deref() == Some("HTTPS"),
        host: host(get.host.as_deref()),
        port,
        path: if path.starts_with('/') {
            path.into()
        } else {
            format!("/{path}")
        },
        headers: headers
            .map(|header| (header.name.clone(), header.value.clone()))
            .collect(),
    }
}

fn host(host: Option<&str>) -> Option<String> {
    host.filter(|host| !host.is_empty()).map(str::to_owned)
}

fn port(port: &IntOrString, spec: &VirtualMachineInstanceSpec) -> Option<u16> {
    let number = match port {
        IntOrString::Int(port) => *port,
        IntOrString::String(name) => {
            let mut ports = (spec.domain.devices.interfaces.iter()).flat_map(|interface| &interface.ports);
            ports.find(|port| port.name.as_ref() == Some(name))?.port
        }
    };
    u16::try_from(number).ok().filter(|port| *port > 0)
}
