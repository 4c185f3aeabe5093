//! The guest's interfaces and their networks.

use drydock_api::kubevirt::{
    VirtualMachineInstanceSpec,
    devices::{Interface, Port},
};

use super::name_rules::{DNS_LABEL, is_dns_label, is_port_name};
use crate::admission::{At, RefusalList};

pub(super) fn check(spec: &VirtualMachineInstanceSpec, at: &At, refusals: &mut RefusalList) {
    let at_networks = at.field("networks");
    let at_interfaces = at.field("domain").field("devices").field("interfaces");
    let interfaces = &spec.domain.devices.interfaces;
    for (index, network) in spec.networks.iter().enumerate() {
        let at_network = at_networks.index(index);
        if network.name.is_empty() {
            refusals.required(&at_network.field("name"), "interfaces refer to networks by name");
        }
        let earlier = &spec.networks[..index];
        if let Some(first) = earlier.iter().position(|other| other.name == network.name) {
            refusals.duplicate(&at_network.field("name"), &network.name, &at_networks.index(first));
        }
        if network.pod.is_none() && !refusals.has_refused_within(&at_network) {
            refusals.required(&at_network.field("pod"), "only the pod network is supported");
        }
        let first = earlier.iter().position(|other| other.pod.is_some());
        if let (Some(_), Some(first)) = (&network.pod, first) {
            refusals.conflict(&at_network.field("pod"), at_networks.index(first).field("pod"));
        }
        if !interfaces.iter().any(|interface| interface.name == network.name) {
            let allowed = format_args!("the name of one of {at_interfaces}");
            refusals.not_allowed(&at_network.field("name"), &network.name, allowed);
        }
    }
    for (index, interface) in interfaces.iter().enumerate() {
        let at_interface = at_interfaces.index(index);
        let earlier = &interfaces[..index];
        if let Some(first) = earlier.iter().position(|other| other.name == interface.name) {
            refusals.duplicate(
                &at_interface.field("name"),
                &interface.name,
                &at_interfaces.index(first),
            );
        } else if !spec.networks.iter().any(|network| network.name == interface.name) {
            let allowed = format_args!("the name of one of {at_networks}");
            refusals.not_allowed(&at_interface.field("name"), &interface.name, allowed);
        }
        if !is_interface_name(&interface.name) {
            refusals.not_allowed(&at_interface.field("name"), &interface.name, INTERFACE_NAME);
        }
        self::interface(interface, &at_interface, refusals);
        let same = |other: &Interface| mac(other).is_some() && mac(other) == mac(interface);
        if let Some(first) = earlier.iter().position(same) {
            let address = interface.mac_address.as_deref().unwrap_or_default();
            refusals.duplicate(&at_interface.field("macAddress"), address, &at_interfaces.index(first));
        }
    }
    ports(interfaces, &at_interfaces, refusals);
}

const INTERFACE_NAME: &str = "letters, digits, `-` and `_`";

fn is_interface_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
}

fn interface(interface: &Interface, at: &At, refusals: &mut RefusalList) {
    let bindings = [
        ("masquerade", &interface.masquerade),
        ("passt", &interface.passt),
        ("bridge", &interface.bridge),
    ];
    let mut named = bindings
        .iter()
        .filter(|(_, binding)| binding.is_some())
        .map(|(name, _)| *name);
    if let Some(first) = named.next() {
        for other in named {
            refusals.conflict(&at.field(other), at.field(first));
        }
    }
    let Some(address) = &interface.mac_address else { return };
    let at = at.field("macAddress");
    match mac(interface) {
        None => refusals.not_allowed(
            &at,
            address,
            "six pairs of hexadecimal digits such as 02:00:00:12:34:56",
        ),
        Some(bytes) if bytes[0] & 1 == 1 => {
            refusals.not_allowed(&at, address, "a unicast address: the first pair is an even number");
        }
        Some([0, 0, 0, 0, 0, 0]) => refusals.not_allowed(&at, address, "an address that is not all zeros"),
        Some(_) => {}
    }
}

/// Returns the MAC address of an interface, if it has a valid one.
fn mac(interface: &Interface) -> Option<[u8; 6]> {
    let address = interface.mac_address.as_deref()?;
    let mut bytes = [0; 6];
    let mut pairs = address.split([':', '-']);
    for byte in &mut bytes {
        let pair = pairs.next().filter(|pair| pair.len() == 2 && !pair.starts_with('+'))?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    pairs.next().is_none().then_some(bytes)
}

/// Checks the ports, which become ports of the pod, where names and numbers must be unique.
fn ports(interfaces: &[Interface], at: &At, refusals: &mut RefusalList) {
    let mut seen: Vec<(&Port, At)> = Vec::new();
    for (index, interface) in interfaces.iter().enumerate() {
        for (number, port) in interface.ports.iter().enumerate() {
            let at = at.index(index).field("ports").index(number);
            if !(1..=65535).contains(&port.port) {
                refusals.not_allowed(&at.field("port"), port.port, "1 to 65535");
            }
            let protocol = port.protocol.unwrap_or_default();
            let same = |other: &Port| other.port == port.port && other.protocol.unwrap_or_default() == protocol;
            if let Some((_, first)) = seen.iter().find(|(other, _)| same(other)) {
                refusals.duplicate(&at.field("port"), port.port, first);
            }
            if let Some(name) = &port.name {
                if !is_port_name(name) {
                    let allowed =
                        "up to 15 lower case letters, digits and `-`, with at least one letter, such as http-2";
                    refusals.not_allowed(&at.field("name"), name, allowed);
                }
                if let Some((_, first)) = seen.iter().find(|(other, _)| other.name.as_ref() == Some(name)) {
                    refusals.duplicate(&at.field("name"), name, first);
                }
            }
            seen.push((port, at));
        }
    }
}

/// Checks the pod's host name and subdomain.
pub(super) fn host_names(spec: &VirtualMachineInstanceSpec, at: &At, refusals: &mut RefusalList) {
    for (field, name) in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        if let Some(name) = name
            && !is_dns_label(name)
        {
            refusals.not_allowed(&at.field(field), name, DNS_LABEL);
        }
    }
}
