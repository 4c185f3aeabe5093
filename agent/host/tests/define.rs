//! Domains as `drydock-core` describes them, given to a real libvirtd.
//!
//! ```text
//!  any spec ─▶ domain_xml() ─▶ libvirt defines it ─▶ reads back: all that was written is there
//!                    └─▶ a few shapes are started too, paused and by emulation
//! ```
//!
//! Tests that need what is not installed say so by name and pass. Where libvirt has no passt (before
//! 9.2, or built without), they leave out what depends on it, and say that too.

#![expect(clippy::unwrap_used, reason = "helpers of tests may unwrap as tests do")]
#![expect(clippy::panic, reason = "helpers of tests may panic as tests do")]

#[path = "define/contained.rs"]
mod contained;
#[path = "define/host.rs"]
mod host;
#[path = "define/specs.rs"]
mod specs;

use std::{
    collections::BTreeSet,
    os::unix::net::{UnixListener, UnixStream},
};

use drydock_api::{
    facts::VirtType,
    kubevirt::VirtualMachineInstanceSpec,
    launcher::{CONSOLE_SOCKET, PreparedDisk, RUN_FOLDER},
};
use drydock_core::domain::{DomainInput, VNC_SOCKET, domain_name, domain_xml};
use proptest::test_runner::{Config, TestRunner};
use roxmltree::Document;
use serde_json::{Value, json};

use host::{Host, skipped};
use specs::Case;

const UID: &str = "7d5a3f80-0000-4000-8000-000000000001";

/// The domain of test/guest on a node that emulates.
fn described(
    spec: &VirtualMachineInstanceSpec,
    masked: &BTreeSet<String>,
    features: Option<&BTreeSet<String>>,
    disks: &[PreparedDisk],
) -> String {
    domain_xml(&DomainInput {
        namespace: "test",
        name: "guest",
        uid: UID,
        spec,
        virt_type: VirtType::Qemu,
        architecture: "x86_64",
        masked_features: masked,
        host_features: features,
        host_passthrough_migratable: None,
        disks,
        addresses: &[],
    })
    .unwrap_or_else(|problem| panic!("{}: {problem}", problem.reason()))
}

/// What libvirt adds to the devices of every such machine.
const ADDED: [&str; 4] = ["emulator", "input", "audio", "watchdog"];

/// Devices and addresses that libvirt made up.
fn made_up(written: &Document<'_>, read: &Document<'_>) -> Vec<String> {
    let addresses = |document: &Document<'_>| -> BTreeSet<String> {
        let all = document.descendants().filter(|node| node.has_tag_name("address"));
        all.map(|node| {
            format!(
                "{:?}",
                node.attributes()
                    .map(|a| (a.name().to_owned(), a.value().to_owned()))
                    .collect::<BTreeSet<_>>()
            )
        })
        .collect()
    };
    let devices = |document: &Document<'_>| -> Vec<String> {
        let parents = document.descendants().filter(|node| node.has_tag_name("devices"));
        parents
            .flat_map(|parent| parent.children().filter(roxmltree::Node::is_element))
            .map(|child| child.tag_name().name().to_owned())
            .filter(|name| !ADDED.contains(&name.as_str()))
            .collect()
    };
    let mut more: Vec<String> = addresses(read).difference(&addresses(written)).cloned().collect();
    let (mut had, mut has) = (devices(written), devices(read));
    had.sort();
    has.sort();
    if had != has {
        more.push(format!("{has:?} instead of {had:?}"));
    }
    more
}

#[test]
fn libvirt_takes_every_spec_and_gives_back_what_was_written() {
    if skipped("libvirt_takes_every_spec_and_gives_back_what_was_written") {
        return;
    }
    let host = Host::start();
    let config = Config {
        cases: 64,
        // This is not the tests of a library, next to whose source the file would be.
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&specs::cases(), |case: Case| {
            let xml = described(&case.spec, &case.masked, case.features.as_ref(), &case.disks);
            assert_eq!(
                xml,
                described(&case.spec, &case.masked, case.features.as_ref(), &case.disks)
            );
            let given = host.understood(&xml);
            let read = host.defined(&given).unwrap_or_else(|error| panic!("{error}\n{given}"));
            assert_eq!(host.defined(&given).as_ref(), Ok(&read));
            let (written, read) = (Document::parse(&given).unwrap(), Document::parse(&read).unwrap());
            if let Some(lost) = contained::lost(written.root_element(), read.root_element()) {
                panic!("{lost}\n{given}");
            }
            assert_eq!(made_up(&written, &read), Vec::<String>::new(), "{given}");
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

/// A shape of guest: its name, its spec, the features that are masked.
struct Shape {
    name: &'static str,
    domain: Value,
    masked: &'static [&'static str],
}

fn shapes() -> Vec<Shape> {
    let shape = |name, domain| Shape {
        name,
        domain,
        masked: &[],
    };
    let long = "l".repeat(63);
    let interface = |model: &str| json!([{"name": long, "masquerade": {}, "model": model, "ports": [{"port": 40022}]}]);
    let disk = |i: usize| {
        let target = match i % 8 {
            0 => json!({"disk": {"bus": "virtio", "readonly": true}}),
            1 => json!({"disk": {"bus": "scsi"}}),
            2 => json!({"cdrom": {"bus": "scsi"}}),
            3 => json!({"cdrom": {}}),
            4 => json!({"disk": {"bus": "virtio"}, "cache": "writethrough"}),
            _ => json!({"disk": {"bus": "sata"}, "serial": "A 1.b+c_d-e"}),
        };
        let mut disk = json!({"name": format!("disk-{i}")});
        disk.as_object_mut()
            .unwrap()
            .extend(target.as_object().unwrap().clone());
        disk
    };
    let features = |policies: &[&str]| -> Vec<Value> {
        let names = ["aes", "avx", "pcid", "x2apic"].into_iter().zip(policies);
        names
            .map(|(name, policy)| json!({"name": name, "policy": policy}))
            .collect()
    };
    vec![
        shape(
            "nothing asked for",
            json!({"devices": {"autoattachPodInterface": false}}),
        ),
        shape(
            "a card of each model: virtio",
            json!({"devices": {"interfaces": interface("virtio")}}),
        ),
        shape(
            "a card of each model: e1000e",
            json!({"devices": {"interfaces": interface("e1000e")}}),
        ),
        shape(
            "a card of each model: e1000",
            json!({"devices": {"interfaces": interface("e1000")}}),
        ),
        shape(
            "many disks",
            json!({"devices": {"disks": (0..24).map(disk).collect::<Vec<_>>(), "autoattachPodInterface": false}}),
        ),
        shape(
            "long names",
            json!({"devices": {"disks": [{"name": long}], "interfaces": interface("virtio")}}),
        ),
        shape(
            "all timers, and no console",
            json!({
                "clock": {"timezone": "Europe/Rome", "timer": {
                    "hpet": {"tickPolicy": "merge"}, "pit": {"tickPolicy": "discard"},
                    "rtc": {"tickPolicy": "catchup", "track": "guest"}, "kvm": {}, "hyperv": {},
                }},
                "firmware": {"serial": "a, b=\"c\" <&>"},
                "devices": {
                    "autoattachSerialConsole": false, "autoattachGraphicsDevice": false,
                    "autoattachPodInterface": false, "rng": {},
                },
            }),
        ),
        shape(
            "a CPU model with features",
            json!({
                "cpu": {
                    "model": "Penryn", "sockets": 2, "cores": 2, "threads": 2,
                    "features": features(&["require", "optional", "force", "disable"]),
                },
                "memory": {"guest": "67109889"},
                "devices": {"autoattachPodInterface": false},
            }),
        ),
        Shape {
            name: "a CPU model without what is masked",
            domain: json!({"cpu": {"model": "Haswell-noTSX"}, "devices": {"autoattachPodInterface": false}}),
            masked: &["aes", "avx2", "sse4.2"],
        },
        Shape {
            name: "the host's model without what is masked",
            domain: json!({"cpu": {"model": "host-passthrough"}, "devices": {"autoattachPodInterface": false}}),
            masked: &["aes", "avx2", "sse4.2"],
        },
    ]
}

#[test]
fn shapes_of_guests_start() {
    if skipped("shapes_of_guests_start") {
        return;
    }
    let host = Host::start();
    let console = UnixListener::bind(host.folder().join(CONSOLE_SOCKET)).unwrap();
    host.hand_over(&host.folder().join(CONSOLE_SOCKET));
    for shape in shapes() {
        let mut domain = shape.domain;
        if domain.get("memory").is_none() {
            domain["memory"] = json!({"guest": "64Mi"});
        }
        let spec: VirtualMachineInstanceSpec = serde_json::from_value(json!({"domain": domain})).unwrap();
        let masked = shape.masked.iter().map(|&name| name.to_owned()).collect();
        let disks = host.prepare(&spec);
        // As in a pod, but in the test's own folder.
        let xml = described(&spec, &masked, None, &disks).replace(RUN_FOLDER, host.folder().to_str().unwrap());
        let given = host.understood(&xml);
        let live = host
            .started(&given)
            .unwrap_or_else(|error| panic!("{}: {error}\n{given}", shape.name));
        let (written, read) = (Document::parse(&given).unwrap(), Document::parse(&live).unwrap());
        let devices = |document: &Document<'_>| {
            let found = document.descendants().find(|node| node.has_tag_name("devices"));
            found.map(|node| node.id())
        };
        let lost = contained::lost(
            written.get_node(devices(&written).unwrap()).unwrap(),
            read.get_node(devices(&read).unwrap()).unwrap(),
        );
        assert_eq!(lost, None, "{}", shape.name);
        assert_eq!(made_up(&written, &read), Vec::<String>::new(), "{}", shape.name);
        for feature in shape.masked {
            let node = read.descendants().find(|node| node.attribute("name") == Some(feature));
            let policy = node.and_then(|node| node.attribute("policy"));
            assert_eq!(policy, Some("disable"), "{}: {feature}", shape.name);
        }
        if has_device(&given, "serial") {
            console.accept().unwrap();
        }
        let screen = UnixStream::connect(host.folder().join(VNC_SOCKET)).is_ok();
        assert_eq!(screen, has_device(&given, "graphics"), "{}", shape.name);
        host.ended(&domain_name("test", "guest"));
        println!("started: {}", shape.name);
    }
}

/// Whether there is such a device.
fn has_device(xml: &str, name: &str) -> bool {
    let document = Document::parse(xml).unwrap();
    let mut devices = document.descendants().filter(|node| node.has_tag_name("devices"));
    devices.any(|parent| parent.children().any(|child| child.has_tag_name(name)))
}

/// libvirt itself refuses what is refused in Drydock's words, so none of it is refused for nothing.
#[test]
fn libvirt_refuses_it_too() {
    if skipped("libvirt_refuses_it_too") {
        return;
    }
    let host = Host::start();
    let spec: VirtualMachineInstanceSpec = serde_json::from_value(json!({"domain": {
        "memory": {"guest": "64Mi"},
        "clock": {"timer": {"rtc": {"tickPolicy": "catchup"}, "pit": {"tickPolicy": "delay"}}},
        "devices": {
            "disks": [{"name": "a", "disk": {"bus": "sata"}, "serial": "A1"}, {"name": "b", "cdrom": {"bus": "scsi"}}],
            "interfaces": [{"name": "default", "masquerade": {}, "macAddress": "02:00:00:00:00:01"}],
        },
    }}))
    .unwrap();
    let xml = host.understood(&described(&spec, &BTreeSet::new(), None, &host.prepare(&spec)));
    host.defined(&xml).unwrap();
    for (good, bad) in [
        (r#"dev="sda" bus="sata"/>"#, r#"dev="sda" bus="sata"/><readonly/>"#),
        (r#"dev="sdb" bus="scsi"/>"#, r#"dev="vda" bus="virtio"/>"#),
        ("<serial>A1<", "<serial>A,1<"),
        (r#"order="2""#, r#"order="1""#),
        (r#"order="2""#, r#"order="0""#),
        (r#"address="02:"#, r#"address="01:"#),
        (r#"tickpolicy="catchup""#, r#"tickpolicy="merge""#),
        (r#"tickpolicy="catchup""#, r#"tickpolicy="discard""#),
        (r#"tickpolicy="delay""#, r#"tickpolicy="merge""#),
        (r#"machine="q35""#, r#"machine="virt""#),
        (">1</vcpu>", ">256</vcpu>"),
        (r#"cores="1""#, r#"cores="0""#),
    ] {
        assert_eq!(xml.matches(good).count(), 1, "{good}");
        assert!(host.defined(&xml.replace(good, bad)).is_err(), "{bad}");
    }
}
