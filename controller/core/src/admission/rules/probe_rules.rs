//! The guest's probes, which its launcher runs.

use drydock_api::kubevirt::{VirtualMachineInstanceSpec, instance::Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::name_rules::is_port_name;
use crate::admission::{At, RefusalList};

pub(super) fn check(spec: &VirtualMachineInstanceSpec, at: &At, refusals: &mut RefusalList) {
    for (field, found) in [
        ("livenessProbe", &spec.liveness_probe),
        ("readinessProbe", &spec.readiness_probe),
    ] {
        let Some(found) = found else { continue };
        let at = at.field(field);
        probe(found, spec, &at, refusals);
        // The kubelet restarts a container after liveness failures; Kubernetes allows no other success threshold than
        // 1.
        if field == "livenessProbe"
            && let Some(threshold) = found.success_threshold.filter(|threshold| *threshold > 1)
        {
            refusals.not_allowed(&at.field("successThreshold"), threshold, "1");
        }
    }
}

fn probe(probe: &Probe, spec: &VirtualMachineInstanceSpec, at: &At, refusals: &mut RefusalList) {
    match (&probe.http_get, &probe.tcp_socket) {
        // `exec` and `guestAgentPing` have already been refused by name.
        (None, None) if refusals.has_refused_within(at) => {}
        (None, None) => refusals.required(at, "one of httpGet and tcpSocket"),
        (Some(_), Some(_)) => refusals.conflict(&at.field("tcpSocket"), at.field("httpGet")),
        _ => {}
    }
    if let Some(get) = &probe.http_get {
        let at = at.field("httpGet");
        port(&get.port, spec, &at.field("port"), refusals);
        if let Some(scheme) = &get.scheme
            && !matches!(scheme.as_str(), "HTTP" | "HTTPS")
        {
            refusals.not_allowed(&at.field("scheme"), scheme, "HTTP, HTTPS");
        }
        for (index, header) in get.http_headers.iter().flatten().enumerate() {
            if !is_header_name(&header.name) {
                let at = at.field("httpHeaders").index(index).field("name");
                refusals.not_allowed(&at, &header.name, "an HTTP header name");
            }
        }
    }
    if let Some(socket) = &probe.tcp_socket {
        port(&socket.port, spec, &at.field("tcpSocket").field("port"), refusals);
    }
    let times = [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ];
    for (name, value) in times {
        if let Some(value) = value.filter(|value| *value < 0) {
            refusals.not_allowed(&at.field(name), value, "0 or more");
        }
    }
    let has_network = spec.networks.iter().any(|network| network.pod.is_some());
    let gets_one = spec.networks.is_empty()
        && spec.domain.devices.interfaces.is_empty()
        && spec.domain.devices.autoattach_pod_interface != Some(false);
    if !has_network && !gets_one {
        refusals.conflict(at, "a network configuration without a pod network");
    }
}

/// Returns whether the text is a header name, by Kubernetes' rule.
fn is_header_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn port(port: &IntOrString, spec: &VirtualMachineInstanceSpec, at: &At, refusals: &mut RefusalList) {
    match port {
        IntOrString::Int(number) if (1..=65535).contains(number) => {}
        IntOrString::Int(number) => refusals.not_allowed(at, number, "1 to 65535"),
        IntOrString::String(name) if is_port_name(name) => {
            let mut ports = spec
                .domain
                .devices
                .interfaces
                .iter()
                .flat_map(|interface| &interface.ports);
            if !ports.any(|port| port.name.as_ref() == Some(name)) {
                refusals.not_allowed(at, name, "a number, or the name of one of the interface's ports");
            }
        }
        IntOrString::String(name) => {
            refusals.not_allowed(at, name, "1 to 65535, or the name of one of the interface's ports");
        }
    }
}
