//! The guest's network interfaces.
//!
//! passt gives the guest the address of its first pod by DHCP and forwards its connections, without privileges. The
//! guest keeps that address wherever it moves, and is reached by the address of its current pod. Inbound traffic is
//! limited to the ports that passt listens on:
//!
//! ```text
//!  ports: []              the usual ones, and those of its probes
//!  ports: [80, 53/UDP]    these, and those of its probes
//! ```
//!
//! Probes come through passt like any other connection: a healthy guest would fail a probe of a port that is not
//! open.
//!
//! A port costs passt a file descriptor and the kernel 5 to 6 KiB. All ports would be 75,000 descriptors and 400 MiB
//! for each guest, so a guest that lists none gets [`USUAL_TCP`] and [`USUAL_UDP`], for about 35 MiB. A guest that
//! lists its ports needs far less.

use std::{borrow::Cow, collections::BTreeSet, net::IpAddr};

use drydock_api::{
    kubevirt::{
        VirtualMachineInstanceSpec,
        devices::{Binding, Interface, InterfaceModel, Protocol},
    },
    launcher::PodAddress,
};

use crate::launcher_pod::probes;

use super::{DomainInput, boot::BootOrder, element::Element, identity, pci::PciSlots, problem::DomainProblem};

/// TCP ports that are open where an interface lists none: first and last of each range. The well-known ports, and the
/// ports that servers commonly use beyond them.
pub const USUAL_TCP: [(u16, u16); 4] = [(1, 1023), (3000, 3999), (5000, 5999), (8000, 9999)];
/// UDP ports that are open where an interface lists none.
pub const USUAL_UDP: [(u16, u16); 1] = [(1, 1023)];

/// Name of the default interface.
const DEFAULT: &str = "default";

/// Returns the spec's interfaces, or one interface on the pod network if the spec has none and does not opt out.
fn all(spec: &VirtualMachineInstanceSpec) -> Cow<'_, [Interface]> {
    let devices = &spec.domain.devices;
    if devices.interfaces.is_empty() && devices.autoattach_pod_interface != Some(false) {
        return Cow::Owned(vec![Interface {
            name: DEFAULT.into(),
            masquerade: Some(Binding::default()),
            ..Interface::default()
        }]);
    }
    Cow::Borrowed(&devices.interfaces)
}

/// Returns the interfaces of an instance.
///
/// The aliases of interfaces are numbers: passt's socket is named after the alias, and the path of a socket is limited
/// in length.
pub(super) fn elements(
    input: &DomainInput<'_>,
    order: &BootOrder,
    places: &mut PciSlots,
) -> Result<Vec<Element>, DomainProblem> {
    let probed: Vec<u16> = probes::ports(input.spec).collect();
    all(input.spec)
        .iter()
        .enumerate()
        .map(|(index, interface)| {
            let model = interface.model.unwrap_or(InterfaceModel::Virtio);
            let address = match model {
                InterfaceModel::Virtio | InterfaceModel::E1000e => places.interface()?,
                InterfaceModel::E1000 => places.card()?,
            };
            let boot = match order.interfaces.get(&interface.name) {
                Some(place) => Element::new("boot").with("order", place.to_string()),
                // The firmware need not load the network boot ROM.
                None => Element::new("rom").with("enabled", "no"),
            };
            Ok(Element::new("interface")
                .with("type", "user")
                .child(Element::new("mac").with("address", mac(interface, input.namespace, input.name)?))
                .children(own_addresses(input.addresses))
                .children(forwards(interface, if index == 0 { &probed } else { &[] })?)
                .child(Element::new("model").with("type", model.as_str()))
                .child(Element::new("backend").with("type", "passt"))
                .child(boot)
                .child(Element::new("alias").with("name", format!("ua-nic{index}")))
                .child(address.element()))
        })
        .collect()
}

/// Returns the guest's addresses, one per family: those of the pod that it starts in.
///
/// In the pod that the guest starts in, passt would find these addresses by itself. In a pod that the guest moves to,
/// passt would find that pod's address, and inbound traffic would not reach the guest until it has sent something.
/// Addresses that are set explicitly move with the guest.
fn own_addresses(addresses: &[PodAddress]) -> Vec<Element> {
    let of = |family: &str, is: fn(&PodAddress) -> bool| {
        let found = addresses.iter().find(|address| is(address))?;
        let element = Element::new("ip")
            .with("family", family)
            .with("address", found.address.to_string());
        // With passt, libvirt supports only the prefix 64 for IPv6, and the prefix must not be set.
        Some(match found.address {
            IpAddr::V4(_) => element.with("prefix", found.prefix.to_string()),
            IpAddr::V6(_) => element,
        })
    };
    let ipv4 = of("ipv4", |address| address.address.is_ipv4() && address.prefix <= 32);
    let ipv6 = of("ipv6", |address| address.address.is_ipv6());
    [ipv4, ipv6].into_iter().flatten().collect()
}

fn mac(interface: &Interface, namespace: &str, name: &str) -> Result<String, DomainProblem> {
    match &interface.mac_address {
        None => Ok(identity::mac_address(namespace, name, &interface.name)),
        Some(address) => identity::plain_mac_address(address).ok_or_else(|| DomainProblem::BadMacAddress {
            interface: interface.name.clone(),
            address: address.clone(),
        }),
    }
}

/// Returns the ports that passt listens on: an element for each protocol.
fn forwards(interface: &Interface, probed: &[u16]) -> Result<Vec<Element>, DomainProblem> {
    let (mut tcp, mut udp) = (BTreeSet::new(), BTreeSet::new());
    for port in &interface.ports {
        let number = u16::try_from(port.port).ok().filter(|number| *number > 0);
        let number = number.ok_or_else(|| DomainProblem::BadPort {
            interface: interface.name.clone(),
            port: port.port,
        })?;
        match port.protocol.unwrap_or_default() {
            Protocol::Tcp => tcp.insert((number, number)),
            Protocol::Udp => udp.insert((number, number)),
        };
    }
    if interface.ports.is_empty() {
        tcp.extend(USUAL_TCP);
        udp.extend(USUAL_UDP);
    }
    for port in probed {
        if !tcp.iter().any(|(first, last)| (first..=last).contains(&port)) {
            tcp.insert((*port, *port));
        }
    }
    let range = |(first, last): &(u16, u16)| {
        let range = Element::new("range").with("start", first.to_string());
        if first == last {
            range
        } else {
            range.with("end", last.to_string())
        }
    };
    let named = [("tcp", tcp), ("udp", udp)].into_iter();
    Ok(named
        .filter(|(_, ports)| !ports.is_empty())
        .map(|(protocol, ports)| {
            Element::new("portForward")
                .with("proto", protocol)
                .children(ports.iter().map(range))
        })
        .collect())
}
