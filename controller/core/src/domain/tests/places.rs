//! Places of devices on the guest's buses.

use std::collections::BTreeSet;

use roxmltree::Document;
use serde_json::json;

use super::{spec, xml};

/// Returns the address of each device by its alias.
fn addresses(xml: &str) -> Vec<(String, String)> {
    let document = Document::parse(xml).unwrap();
    let child = |node: roxmltree::Node<'_, '_>, name: &str| {
        let found = node.children().find(|child| child.has_tag_name(name));
        found.map(|child| xml[child.range()].to_owned())
    };
    let devices = document.descendants().filter(|node| node.has_tag_name("devices"));
    devices
        .flat_map(|devices| devices.children())
        .filter_map(|node| Some((child(node, "alias")?, child(node, "address")?)))
        .collect()
}

#[test]
fn device_addresses_are_stable_when_a_disk_is_added() {
    const BUSES: [&str; 3] = ["virtio", "sata", "scsi"];
    let list = |count: usize| {
        let all = (0..count).map(|i| json!({"name": format!("d{i}"), "disk": {"bus": BUSES[i % 3]}}));
        json!({"devices": {"disks": all.collect::<Vec<_>>()}})
    };
    let mut before = Vec::new();
    for count in 0..40 {
        let now = addresses(&xml(&spec(&list(count))).unwrap());
        for device in &before {
            assert!(now.contains(device), "{device:?} with {count} disks");
        }
        assert_eq!(now.len(), count + 1);
        before = now;
    }
}

#[test]
fn no_two_devices_share_an_address_and_ports_stay_free() {
    for count in [0, 1, 5, 6, 60, 101] {
        let all = (0..count).map(|i| json!({"name": format!("d{i}")}));
        let xml = xml(&spec(
            &json!({"devices": {"disks": all.collect::<Vec<_>>(), "rng": {}, "watchdog": {"name": "w"}, "sound": {"name": "s"},
                "inputs": [{"name": "a", "bus": "usb"}, {"name": "b", "bus": "virtio"}]}}),
        ))
        .unwrap();
        let document = Document::parse(&xml).unwrap();
        let used: Vec<_> = document
            .descendants()
            .filter(|node| node.has_tag_name("address") && node.attribute("type") == Some("pci"))
            .map(|node| ["bus", "slot", "function"].map(|name| node.attribute(name).unwrap()))
            .collect();
        let distinct: BTreeSet<_> = used.iter().collect();
        assert_eq!(distinct.len(), used.len());
        let ports = xml.matches("pcie-root-port").count();
        let behind: BTreeSet<_> = used.iter().map(|[bus, ..]| bus).filter(|bus| **bus != "0x00").collect();
        assert!(ports >= 16 && ports - behind.len() >= 4, "{count} disks: {ports} ports");
    }
}
