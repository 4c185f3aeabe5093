//! The guest's pointing devices.

use drydock_api::kubevirt::devices::{Devices, Input, InputBus};

use super::{
    element::Element,
    pci::{self, PciSlots},
    problem::DomainProblem,
};

/// Ports of the USB controller (QEMU's `qemu-xhci`).
const USB_PORTS: usize = 4;

/// Returns the buses of the spec's inputs. A guest without inputs gets a tablet if the spec enables the default input.
fn buses(devices: &Devices) -> Vec<InputBus> {
    if devices.inputs.is_empty() && devices.autoattach_input_device == Some(true) {
        return vec![InputBus::default()];
    }
    let bus = |input: &Input| input.bus.unwrap_or_default();
    devices.inputs.iter().map(bus).collect()
}

/// Returns the USB controller, or an element without a controller: by default, libvirt would add one.
pub(super) fn usb_controller(devices: &Devices) -> Element {
    let controller = Element::new("controller").with("type", "usb").with("index", "0");
    if !buses(devices).contains(&InputBus::Usb) {
        return controller.with("model", "none");
    }
    controller
        .with("model", "qemu-xhci")
        .with("ports", USB_PORTS.to_string())
        .child(pci::USB.element())
}

/// Returns the pointing devices.
pub(super) fn elements(devices: &Devices, places: &mut PciSlots) -> Result<Vec<Element>, DomainProblem> {
    let mut next_usb_port = 1;
    let mut is_first_virtio = true;
    let tablet = |bus: &'static str, address: Element| {
        Element::new("input")
            .with("type", "tablet")
            .with("bus", bus)
            .child(address)
    };
    let elements = buses(devices).into_iter().map(|bus| match bus {
        InputBus::Usb if next_usb_port > USB_PORTS => Err(DomainProblem::TooManyDevices("usb")),
        InputBus::Usb => {
            let address = Element::new("address")
                .with("type", "usb")
                .with("bus", "0")
                .with("port", next_usb_port.to_string());
            next_usb_port += 1;
            Ok(tablet("usb", address))
        }
        InputBus::Virtio if is_first_virtio => {
            is_first_virtio = false;
            Ok(tablet("virtio", pci::TABLET.element()))
        }
        InputBus::Virtio => Ok(tablet("virtio", places.disk()?.element())),
    });
    elements.collect()
}
