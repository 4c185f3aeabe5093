//! The guest's serial port, display, and channel of the guest agent.

use drydock_api::{
    kubevirt::devices::Devices,
    launcher::{CONSOLE_SOCKET, RUN_FOLDER},
};

use super::{element::Element, pci};

/// The guest's VNC socket, below the run folder.
pub const VNC_SOCKET: &str = "vnc.sock";

/// Channel name by which the guest agent finds its channel.
const GUEST_AGENT: &str = "org.qemu.guest_agent.0";

/// Returns the virtio serial controller, the guest agent's channel, and the serial port and display if the spec enables
/// them.
pub(super) fn elements(devices: &Devices) -> Vec<Element> {
    let mut elements = vec![
        Element::new("controller")
            .with("type", "virtio-serial")
            .with("index", "0")
            .child(pci::SERIAL.element()),
    ];
    if devices.autoattach_serial_console != Some(false) {
        elements.extend(serial_port());
    }
    elements.push(guest_agent());
    if devices.autoattach_graphics_device != Some(false) {
        elements.extend(screen());
    }
    elements
}

/// Returns the serial port. QEMU connects to the launcher's socket, and reconnects if the connection is lost.
fn serial_port() -> [Element; 2] {
    let port = |name: &'static str| {
        let source = Element::new("source")
            .with("mode", "connect")
            .with("path", format!("{RUN_FOLDER}/{CONSOLE_SOCKET}"))
            .child(Element::new("reconnect").with("enabled", "yes").with("timeout", "1"));
        Element::new(name).with("type", "unix").child(source)
    };
    let isa = Element::new("target")
        .with("type", "isa-serial")
        .with("port", "0")
        .child(Element::new("model").with("name", "isa-serial"));
    let first = Element::new("target").with("type", "serial").with("port", "0");
    [port("serial").child(isa), port("console").child(first)]
}

fn guest_agent() -> Element {
    Element::new("channel")
        .with("type", "unix")
        .child(Element::new("target").with("type", "virtio").with("name", GUEST_AGENT))
        .child(
            Element::new("address")
                .with("type", "virtio-serial")
                .with("controller", "0")
                .with("bus", "0")
                .with("port", "1"),
        )
}

/// Returns VNC on a Unix socket in the pod, never on the pod's network, and a display card that all guests support.
fn screen() -> [Element; 2] {
    let socket = format!("{RUN_FOLDER}/{VNC_SOCKET}");
    let listen = Element::new("listen")
        .with("type", "socket")
        .with("socket", socket.as_str());
    let model = Element::new("model")
        .with("type", "vga")
        .with("vram", "16384")
        .with("heads", "1")
        .with("primary", "yes");
    [
        Element::new("graphics")
            .with("type", "vnc")
            .with("socket", socket)
            .child(listen),
        Element::new("video").child(model).child(pci::SCREEN.element()),
    ]
}
