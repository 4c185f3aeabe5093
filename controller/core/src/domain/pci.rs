//! Addresses of the devices on the guest's PCI Express buses.
//!
//! Addresses follow from the spec alone: libvirt chooses none. So a guest that arrives by migration, or is started
//! again by another version, finds each device at the same address. Addresses also stay the same when a disk is added.
//!
//! ```text
//!  bus 0   01.0  screen
//!          02.0… root ports, eight a slot; port n is bus n
//!          10.0… SATA controllers after the first
//!          18.0… cards that are PCI, not PCI Express
//!          1d    sound card, if there is one
//!          1e    watchdog, if there is one
//!          1f    the chip set, with the first SATA controller
//!
//!  port 1  first interface          5  random numbers
//!       2  SCSI controller          6  USB controller
//!       3  serial controller        7  first tablet
//!       4  balloon                8 …  virtio disks, then more interfaces and tablets
//! ```
//!
//! At least [`SPARE`] ports stay free.

use drydock_api::kubevirt::devices::Devices;

use super::{element::Element, problem::DomainProblem};

/// Port of the first interface.
const FIRST_INTERFACE: u8 = 1;
/// Port of the SCSI controller.
pub(super) const SCSI: Address = Address::behind(2);
/// Port of the virtio serial controller.
pub(super) const SERIAL: Address = Address::behind(3);
/// Port of the balloon.
pub(super) const BALLOON: Address = Address::behind(4);
/// Port of the random number generator.
pub(super) const RNG: Address = Address::behind(5);
/// Port of the USB controller.
pub(super) const USB: Address = Address::behind(6);
/// Port of the first tablet that is no USB device.
pub(super) const TABLET: Address = Address::behind(7);
/// First port that is not reserved for a specific device.
const FIRST_FREE: u8 = 8;
/// Minimum number of ports.
const FEWEST: u8 = 16;
/// Minimum number of free ports.
const SPARE: u8 = 4;
/// Ports per slot.
const IN_SLOT: u8 = 8;
/// First slot of the root ports.
const PORT_SLOTS: u8 = 0x02;
/// First slot of further SATA controllers.
const SATA_SLOTS: u8 = 0x10;
/// First slot of cards that are PCI only, not PCI Express.
const CARD_SLOTS: u8 = 0x18;
/// The chip set's slot.
const CHIP_SET: u8 = 0x1f;
/// Maximum number of ports.
const MOST: u8 = (SATA_SLOTS - PORT_SLOTS) * IN_SLOT;
/// Address of the display card.
pub(super) const SCREEN: Address = Address {
    bus: 0,
    slot: 0x01,
    function: 0,
};
/// Address of the sound card.
pub(super) const SOUND: Address = Address {
    bus: 0,
    slot: 0x1d,
    function: 0,
};
/// Address of the watchdog.
pub(super) const WATCHDOG: Address = Address {
    bus: 0,
    slot: 0x1e,
    function: 0,
};
/// Address of the first SATA controller, assigned by QEMU.
pub(super) const FIRST_SATA: Address = Address {
    bus: 0,
    slot: CHIP_SET,
    function: 2,
};

/// An address on a PCI bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    bus: u8,
    slot: u8,
    function: u8,
}

impl Address {
    /// Returns the address behind the port with that number.
    const fn behind(port: u8) -> Self {
        Self {
            bus: port,
            slot: 0,
            function: 0,
        }
    }

    /// Returns the element `address`.
    pub(super) fn element(self) -> Element {
        Element::new("address")
            .with("type", "pci")
            .with("domain", "0x0000")
            .with("bus", format!("0x{:02x}", self.bus))
            .with("slot", format!("0x{:02x}", self.slot))
            .with("function", format!("0x{:x}", self.function))
    }
}

/// The next free address for each kind of device without a reserved address.
#[derive(Clone, Debug)]
pub(super) struct PciSlots {
    next_port: u8,
    first_interface_free: bool,
    next_sata: u8,
    next_card: u8,
    end_of_cards: u8,
}

impl PciSlots {
    /// Returns the initial state: all addresses are free but those of the sound card and the watchdog, if the guest has
    /// them.
    pub(super) fn new(devices: &Devices) -> Self {
        let end_of_cards = match (&devices.sound, &devices.watchdog) {
            (Some(_), _) => SOUND.slot,
            (None, Some(_)) => WATCHDOG.slot,
            (None, None) => CHIP_SET,
        };
        Self {
            next_port: FIRST_FREE,
            first_interface_free: true,
            next_sata: SATA_SLOTS,
            next_card: CARD_SLOTS,
            end_of_cards,
        }
    }

    /// Takes a port for a disk.
    pub(super) fn disk(&mut self) -> Result<Address, DomainProblem> {
        if self.next_port > MOST - SPARE {
            return Err(DomainProblem::TooManyDevices("virtio"));
        }
        self.next_port += 1;
        Ok(Address::behind(self.next_port - 1))
    }

    /// Takes a port for an interface.
    pub(super) fn interface(&mut self) -> Result<Address, DomainProblem> {
        if self.first_interface_free {
            self.first_interface_free = false;
            return Ok(Address::behind(FIRST_INTERFACE));
        }
        self.disk()
    }

    /// Takes a slot for an interface card that is not PCI Express.
    pub(super) fn card(&mut self) -> Result<Address, DomainProblem> {
        take_slot(&mut self.next_card, self.end_of_cards, "pci")
    }

    /// Takes a slot for a SATA controller other than the first.
    pub(super) fn sata_controller(&mut self) -> Result<Address, DomainProblem> {
        take_slot(&mut self.next_sata, CARD_SLOTS, "sata")
    }

    /// Returns the PCI Express root and the root ports.
    pub(super) fn controllers(&self) -> Vec<Element> {
        let used = self.next_port - 1;
        let ports = (used + SPARE).next_multiple_of(IN_SLOT).clamp(FEWEST, MOST);
        let root = Element::new("controller")
            .with("type", "pci")
            .with("index", "0")
            .with("model", "pcie-root");
        let port = |number: u8| {
            let index = number - 1;
            let address = Address {
                bus: 0,
                slot: PORT_SLOTS + index / IN_SLOT,
                function: index % IN_SLOT,
            };
            let mut place = address.element();
            if address.function == 0 {
                place = place.with("multifunction", "on");
            }
            Element::new("controller")
                .with("type", "pci")
                .with("index", number.to_string())
                .with("model", "pcie-root-port")
                .child(
                    Element::new("target")
                        .with("chassis", number.to_string())
                        .with("port", format!("0x{:x}", PORT_SLOTS * IN_SLOT + index)),
                )
                .child(place)
        };
        std::iter::once(root).chain((1..=ports).map(port)).collect()
    }
}

fn take_slot(next: &mut u8, end: u8, bus: &'static str) -> Result<Address, DomainProblem> {
    if *next >= end {
        return Err(DomainProblem::TooManyDevices(bus));
    }
    *next += 1;
    Ok(Address {
        bus: 0,
        slot: *next - 1,
        function: 0,
    })
}
