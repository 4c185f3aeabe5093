//! The guest's network interfaces.
//!
//! passt gives the guest the pod's address by DHCP and carries its connections, without privilege.
//! What may come in is what passt listens on:
//!
//! ```text
//!  ports: []              all of TCP and all of UDP
//!  ports: [80, 53/UDP]    these
//! ```
//!
//! A port costs passt a file descriptor and the kernel 5 to 6 KiB, and "all" are those that the
//! kernel does not give out by itself: 37,304 of each protocol with Linux's defaults, for which it
//! wants 75,000 descriptors and 400 MiB. A guest that names its ports is far smaller.

use std::{borrow::Cow, collections::BTreeSet};

use drydock_api::kubevirt::{
    VirtualMachineInstanceSpec,
    devices::{Binding, Interface, InterfaceModel, Protocol},
};

use super::{boot::BootOrder, element::Element, identity, pci::Places, problem::DomainProblem};

/// Name of the interface that a guest has without asking for it.
const DEFAULT: &str = "default";

/// The spec's interfaces; one on the pod's network if it names none and does not say no.
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

/// The interfaces of the instance `namespace`/`name`.
///
/// Their aliases are numbers: passt's socket is named after the alias, and the path of a socket is
/// short.
pub(super) fn elements(
    spec: &VirtualMachineInstanceSpec,
    namespace: &str,
    name: &str,
    order: &BootOrder,
    places: &mut Places,
) -> Result<Vec<Element>, DomainProblem> {
    all(spec)
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
                // The firmware need not load what boots from a network.
                None => Element::new("rom").with("enabled", "no"),
            };
            Ok(Element::new("interface")
                .with("type", "user")
                .child(Element::new("mac").with("address", mac(interface, namespace, name)?))
                .children(forwards(interface)?)
                .child(Element::new("model").with("type", model.as_str()))
                .child(Element::new("backend").with("type", "passt"))
                .child(boot)
                .child(Element::new("alias").with("name", format!("ua-nic{index}")))
                .child(address.element()))
        })
        .collect()
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

/// What passt listens on: an element for each protocol, without a range for all ports.
fn forwards(interface: &Interface) -> Result<Vec<Element>, DomainProblem> {
    let forward = |protocol: &str| Element::new("portForward").with("proto", protocol);
    let (mut tcp, mut udp) = (BTreeSet::new(), BTreeSet::new());
    for port in &interface.ports {
        let number = u16::try_from(port.port).ok().filter(|number| *number > 0);
        let number = number.ok_or_else(|| DomainProblem::BadPort {
            interface: interface.name.clone(),
            port: port.port,
        })?;
        match port.protocol.unwrap_or_default() {
            Protocol::Tcp => tcp.insert(number),
            Protocol::Udp => udp.insert(number),
        };
    }
    if interface.ports.is_empty() {
        return Ok(vec![forward("tcp"), forward("udp")]);
    }
    let range = |number: &u16| Element::new("range").with("start", number.to_string());
    let named = [("tcp", tcp), ("udp", udp)].into_iter();
    Ok(named
        .filter(|(_, ports)| !ports.is_empty())
        .map(|(protocol, ports)| forward(protocol).children(ports.iter().map(range)))
        .collect())
}
