//! The guest's watchdog and sound card.

use drydock_api::kubevirt::devices::{Devices, Sound, Watchdog};

use super::{element::Element, pci};

/// Returns the watchdog and the sound card, if the spec has them.
pub(super) fn elements(devices: &Devices) -> Vec<Element> {
    let watchdog = devices.watchdog.iter().map(watchdog);
    let sound = devices.sound.iter().flat_map(sound);
    watchdog.chain(sound).collect()
}

fn watchdog(watchdog: &Watchdog) -> Element {
    let card = watchdog.i6300esb.as_ref();
    let action = card.and_then(|card| card.action).unwrap_or_default();
    Element::new("watchdog")
        .with("model", "i6300esb")
        .with("action", action.as_str())
        .child(pci::WATCHDOG.element())
}

/// Returns the sound card. Its output is discarded: a pod has no sound device, and VNC viewers receive no sound.
fn sound(sound: &Sound) -> [Element; 2] {
    let model = sound.model.unwrap_or_default();
    [
        Element::new("sound")
            .with("model", model.as_str())
            .child(Element::new("audio").with("id", "1"))
            .child(pci::SOUND.element()),
        Element::new("audio").with("id", "1").with("type", "none"),
    ]
}
